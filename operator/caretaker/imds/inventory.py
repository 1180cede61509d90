"""The cluster's instances as EC2 describes them: one full read for all policies, and reads by ID.

Inputs: AWS, the IDs that policies ask for. There is one lock for each identity and region: policies that read
at the same time share a response. It makes no decisions and no changes; failed reads are reported.

A full read lists the instances with the cluster tag, which the first read by ID reveals; instances without it
are read by ID. observations.py merges the responses.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from caretaker.aws.ec2 import Ec2, Filter, Instance, MetadataOptions
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.pages import batched, pages
from caretaker.aws.response_check import UNREADABLE
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.observations import EKS_TAG, OWNED_TAG, Observations, OwnChanges
from caretaker.kube.errors import ApiError

log = logging.getLogger(__name__)

PAGES: Final[tuple[int, ...]] = (1000, 250, 60)  # fewer after an answer that may have been too large
IDS: Final = 200  # values of all filters of a call together (FilterLimitExceeded)
BACKOFF_SECONDS: Final = (15.0, 30.0, 60.0, 300.0)
# From the first pending change to each further read; the last one repeats.
POLL_SECONDS: Final = (3.0, 6.0, 12.0)


class Region(msgspec.Struct, frozen=True):
    """One region as one identity sees it. `at`: of the last full read, by time.monotonic(); 0 = never;
    `lost`: instances that are read again soon."""

    instances: dict[str, ObservedInstance] = {}
    at: float = 0.0
    problem: AwsError | ApiError | None = None  # of the last read; `instances` is then from an earlier one
    lost: frozenset[str] = frozenset()


class SharedRead:
    """One lock, when all was asked last, and until when a failure is waited out; by time.monotonic()."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.at = 0.0
        self.again_at = 0.0
        self.failures = 0
        self.problem: AwsError | ApiError | None = None

    def due(self, max_age: float) -> bool:
        """Whether all is to be asked again."""
        now = time.monotonic()
        return now >= self.again_at and (not self.at or now - self.at >= max_age)

    def done(self, problem: AwsError | ApiError | None) -> None:
        """The result."""
        self.problem = problem
        self.failures = self.failures + 1 if problem is not None else 0
        wait = BACKOFF_SECONDS[min(self.failures, len(BACKOFF_SECONDS)) - 1] if problem is not None else 0.0
        self.again_at = time.monotonic() + wait


class _RegionCache(SharedRead):
    """How a region is read. `instances`: what the responses show."""

    def __init__(self, tag: Filter | None, own: OwnChanges) -> None:
        super().__init__()
        self.instances = Observations(own)
        self.asked: set[str] = set()  # IDs that were read since the last full read
        self.tag = tag  # cluster tag
        self.pages = PAGES
        self.account = ""
        self.polls = 0  # reads of pending instances, since there are some
        self.poll_at = 0.0


class Inventory:
    """Regions by ClientKey. `calls` counts pages of DescribeInstances."""

    def __init__(self, ec2: Callable[[ClientKey], Ec2], cluster: str = "") -> None:
        """`cluster`: name of the cluster, for its tag; "" = derive the tag from the instances."""
        self.calls = 0
        self.cluster = cluster
        self._ec2 = ec2
        self._tag: Filter | None = {"Name": "tag-key", "Values": [OWNED_TAG + cluster]} if cluster else None
        self._caches: dict[ClientKey, _RegionCache] = {}
        self._own = OwnChanges()

    async def get(self, target: ClientKey, ids: Collection[str], max_age: float) -> Region:
        """The region, not older than `max_age` seconds, with these instances in it if EC2 knows them."""
        cache = self._cache(target)
        async with cache.lock:
            now = time.monotonic()
            whole = not cache.at or now - cache.at >= max_age or cache.problem is not None
            missing = (set(ids) - cache.asked) | (cache.instances.due(now) & set(ids))
            if (whole or missing) and now >= cache.again_at:
                await self._ask(cache, self._ec2(target), set(ids) if whole else missing, whole=whole)
            instances = cache.instances
            return Region(
                instances.known, cache.at, cache.problem, frozenset({*instances.lost, *instances.partial})
            )

    async def again(self, target: ClientKey, ids: Collection[str], since: float) -> None:
        """Read those of these whose last read is before `since` (time.monotonic())."""
        cache = self._cache(target)
        async with cache.lock:
            known = cache.instances.known
            old = {one for one in ids if one not in known or known[one].at < since}
            if old and time.monotonic() >= cache.again_at:
                await self._ask(cache, self._ec2(target), old, whole=False)

    async def poll(self, target: ClientKey) -> None:
        """Read pending instances by ID, if it is time. A stopped instance is not read: EC2 applies its change
        when it starts."""
        cache = self._cache(target)
        async with cache.lock:
            now = time.monotonic()
            waiting = {one for one, observed in cache.instances.known.items() if observed.under_way}
            if not waiting:
                cache.polls, cache.poll_at = 0, 0.0
            elif not cache.poll_at:
                self._poll_later(cache, now)
            elif now >= max(cache.poll_at, cache.again_at):
                log.debug("reading pending instances from EC2", extra={"pending": len(waiting), "began": now})
                await self._ask(cache, self._ec2(target), waiting, whole=False)
                self._poll_later(cache, now)

    def account(self, target: ClientKey) -> str:
        """The account of the instances; "" = not known yet."""
        return self._cache(target).account

    def instances(self, target: ClientKey) -> Observations:
        """Its instances, as known now."""
        return self._cache(target).instances

    def doubt(self, instance: str, options: Mapping[str, Any]) -> None:
        """The instance is being sent these options; see Observations."""
        for cache in self._caches.values():
            cache.instances.doubt(instance, options, time.monotonic())

    def changed(self, target: ClientKey, instance: str, options: MetadataOptions) -> None:
        """EC2 accepted our change and answered with the new values, which a description has to confirm. Other
        identities ask for the instance at their next read."""
        now = time.monotonic()
        for key, cache in self._caches.items():
            if cache.instances.changed(instance, options, now) and not cache.poll_at:
                self._poll_later(cache, now)
            if key != target:
                cache.asked.discard(instance)

    def _poll_later(self, cache: _RegionCache, now: float) -> None:
        wait = POLL_SECONDS[min(cache.polls, len(POLL_SECONDS) - 1)]
        cache.polls += 1
        cache.poll_at = now + wait

    def _cache(self, target: ClientKey) -> _RegionCache:
        return self._caches.setdefault(target, _RegionCache(self._tag, self._own))

    def clear(self) -> None:
        """Forget all: another process may have led in between."""
        self._caches.clear()
        self._own = OwnChanges()

    async def _ask(self, cache: _RegionCache, ec2: Ec2, ids: set[str], *, whole: bool) -> None:
        began = time.monotonic()
        what = "the cluster's instances" if whole else f"{len(ids)} instance(s)"
        log.debug("EC2 is asked for %s", what, extra={"whole": whole, "began": began})
        try:
            found = await self._found(cache, ec2, ids, whole=whole)
        except AwsError as error:
            if (error.code, error.service) == (UNREADABLE, "ec2") and error.status in (0, 200):
                cache.pages = cache.pages[1:] or PAGES[-1:]
            cache.done(error)
            return
        cache.done(None)
        running = cache.instances.read(found, ids, began, whole=whole)
        cache.asked = ids | running if whole else cache.asked | ids
        cache.at = began if whole else cache.at
        cache.tag = self._tag or cluster_tag(found) or cache.tag

    async def _found(self, cache: _RegionCache, ec2: Ec2, ids: set[str], *, whole: bool) -> list[Instance]:
        if not ids:
            return []
        found: list[Instance] = []
        if whole and cache.tag is not None:
            found = await self._describe(cache, ec2, cache.tag)
            ids = ids - {one["InstanceId"] for one in found}
        for some in batched(sorted(ids), IDS):
            found += await self._describe(cache, ec2, {"Name": "instance-id", "Values": some})
        return found

    async def _describe(self, cache: _RegionCache, ec2: Ec2, only: Filter) -> list[Instance]:
        """All pages. By filter: as a parameter, one unknown ID would fail the whole call."""
        found: list[Instance] = []
        async for page in pages(ec2.describe_instances, Filters=[only], MaxResults=cache.pages[0]):
            self.calls += 1
            for group in page["Reservations"]:
                cache.account = group.get("OwnerId") or cache.account
                found += group["Instances"]
        return found


def cluster_tag(instances: Iterable[Instance]) -> Filter | None:
    """The most frequent cluster tag of these instances; None = no instance has one."""
    count: Counter[tuple[str, str]] = Counter()
    for instance in instances:  # an answer may have 15,000 tags: one loop without calls
        count.update(
            {
                (f"tag:{EKS_TAG}", tag["Value"]) if key == EKS_TAG else ("tag-key", key)
                for tag in instance.get("Tags", ())
                if (key := tag.get("Key", "")).startswith(OWNED_TAG) or (key == EKS_TAG and tag.get("Value"))
            }
        )
    if not count:
        return None
    name, value = max(sorted(count), key=lambda tag: count[tag])
    return {"Name": name, "Values": [value]}
