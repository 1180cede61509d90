"""The cluster's instances as EC2 describes them: one full read for all policies, and reads by ID.

Inputs: AWS, the IDs that policies ask for. There is one lock for each identity and region: policies that read
at the same time share a response. It makes no decisions and no changes; failed reads are reported.

A full read lists the instances with the cluster tag, which the first read by ID reveals; instances without it
are read by ID.

A description may lag (Amazon EC2 API reference, "Eventual consistency"). So a missing entry proves nothing:
changed instances are read by ID until EC2 reports the values that were sent. An instance is gone if EC2 says
so, or if two responses lack it.
"""

import asyncio
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.imds import Options, described_options
from caretaker.aws.ec2 import Ec2, Filter, Instance, MetadataOptions
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.pages import pages
from caretaker.aws.response_check import UNREADABLE
from caretaker.imds.checks import ENDED, OWN_SECONDS, ObservedInstance

log = logging.getLogger(__name__)

PAGES: Final[tuple[int, ...]] = (1000, 250, 60)  # fewer after an answer that may have been too large
IDS: Final = 200  # values of all filters of a call together (FilterLimitExceeded)
BACKOFF_SECONDS: Final = (15.0, 30.0, 60.0, 300.0)
# From the first pending change to each further read; the last one repeats.
POLL_SECONDS: Final = (3.0, 6.0, 12.0)
# From a response that lacks an instance to the next one, which counts.
LOST_SECONDS: Final = 10.0
# How long a gone instance is remembered: longer than any resyncInterval.
GONE_SECONDS: Final = 2 * 86400.0
# Tag keys that the metadata service supports (Amazon EC2 user guide, "View tags for your EC2 instances using
# instance metadata").
TAG_KEY: Final = re.compile(r"(?!(?:\.|\.\.|_index)$)[0-9a-zA-Z\-_+=,.@:]{1,255}")
GROUP_TAG: Final = "aws:autoscaling:groupName"
# Cluster tags (Amazon EKS user guide, "Tag your Amazon EKS resources"; Kubernetes cloud provider for AWS).
EKS_TAG: Final = "aws:eks:cluster-name"
OWNED_TAG: Final = "kubernetes.io/cluster/"
# Of instances of managed node groups (Amazon EKS user guide, "Managed node groups").
NODEGROUP_CLUSTER_TAG: Final = "eks:cluster-name"
# Set on every instance from a launch template (Amazon EC2 user guide, "Tag your Amazon EC2 resources").
TEMPLATE_TAG: Final = "aws:ec2launchtemplate:id"
VERSION_TAG: Final = "aws:ec2launchtemplate:version"
# The fields of ObservedInstance that come from tags.
BY_TAGS: Final = ("tagged", "group", "unfit_tags", "template", "version", "cluster", "clusters")


class Region(msgspec.Struct, frozen=True):
    """One region as one identity sees it. `at`: of the last full read, by time.monotonic(); 0 = never;
    `lost`: instances that are read again soon."""

    instances: dict[str, ObservedInstance] = {}
    at: float = 0.0
    problem: AwsError | None = None  # of the last read; `instances` is then from an earlier one
    lost: frozenset[str] = frozenset()


class _RegionCache:
    """The state of a region."""

    def __init__(self, tag: Filter | None) -> None:
        self.lock = asyncio.Lock()
        self.view = Region()
        self.asked: set[str] = set()  # IDs that were read since the last full read
        self.tag = tag  # cluster tag
        self.failures = 0
        self.pages = PAGES
        self.again_at = 0.0  # not before this, after a failure
        self.own: dict[str, float] = {}  # instance -> when we changed it
        # instance -> (when, parameters) of a call without an answer
        self.tried: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self.before: Mapping[str, ObservedInstance] = {}  # the instances before the last full read
        self.lost: dict[str, float] = {}  # instance -> time of the first response that lacks it
        self.gone: dict[str, float] = {}  # instance -> when it was last found to be gone
        self.stripped: dict[str, float] = {}  # instance -> time of the first response without its group tag
        self.account = ""
        self.polls = 0  # reads of pending instances, since there are some
        self.poll_at = 0.0


class Inventory:
    """Regions by ClientKey. `calls` counts pages of DescribeInstances."""

    def __init__(self, ec2: Callable[[ClientKey], Ec2], scale: float = 1.0, cluster: str = "") -> None:
        """`cluster`: name of the cluster, for its tag; "" = derive the tag from the instances."""
        self.calls = 0
        self.cluster = cluster
        self._ec2 = ec2
        self._scale = scale
        self._tag: Filter | None = {"Name": "tag-key", "Values": [OWNED_TAG + cluster]} if cluster else None
        self._caches: dict[ClientKey, _RegionCache] = {}

    async def get(self, target: ClientKey, ids: Collection[str], max_age: float) -> Region:
        """The region, not older than `max_age` seconds, with these instances in it if EC2 knows them."""
        cache = self._cache(target)
        async with cache.lock:
            now = time.monotonic()
            whole = not cache.view.at or now - cache.view.at >= max_age or cache.view.problem is not None
            missing = (set(ids) - cache.asked) | (self._due(cache, now) & set(ids))
            if (whole or missing) and now >= cache.again_at:
                await self._ask(cache, self._ec2(target), set(ids) if whole else missing, whole=whole)
            return cache.view

    async def again(self, target: ClientKey, ids: Collection[str], since: float) -> None:
        """Read those of these whose last read is before `since` (time.monotonic())."""
        cache = self._cache(target)
        async with cache.lock:
            instances = cache.view.instances
            old = {one for one in ids if one not in instances or instances[one].at < since}
            if old and time.monotonic() >= cache.again_at:
                await self._ask(cache, self._ec2(target), old, whole=False)

    async def poll(self, target: ClientKey) -> None:
        """Read pending instances by ID, if it is time. A stopped instance is not read: EC2 applies its change
        when it starts."""
        cache = self._cache(target)
        async with cache.lock:
            now = time.monotonic()
            waiting = {one for one, observed in cache.view.instances.items() if observed.under_way}
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

    def read_at(self, target: ClientKey, instance: str) -> float:
        """Time of its last read (time.monotonic()); -inf = the known values may be wrong."""
        observed = self._cache(target).view.instances.get(instance)
        return observed.at if observed is not None else -math.inf

    def applied(self, target: ClientKey, instance: str, options: Mapping[str, Any]) -> bool:
        """Whether EC2's last report has these options as applied."""
        one = self._cache(target).view.instances.get(instance)
        return one is not None and not one.under_way and _changed(one.options, options) == one.options

    def changed(self, target: ClientKey, instance: str, options: MetadataOptions) -> None:
        """EC2 accepted our change and answered with the new values, which a description has to confirm."""
        cache = self._cache(target)
        before = cache.view.instances.get(instance)
        if before is None:
            return
        now = time.monotonic()
        pending = options.get("State") == "pending"
        after = msgspec.structs.replace(
            before, options=described_options(options), pending=pending, confirmed=False, at=now
        )
        cache.own[instance] = now
        cache.tried.pop(instance, None)
        _put(cache, {instance: after})
        if not cache.poll_at:
            self._poll_later(cache, now)

    def doubt(self, target: ClientKey, instance: str, options: Mapping[str, Any]) -> None:
        """The instance is being sent these options: until EC2 answers, its known values count as too old."""
        cache = self._cache(target)
        cache.tried[instance] = time.monotonic(), options
        if (before := cache.view.instances.get(instance)) is not None:
            _put(cache, {instance: msgspec.structs.replace(before, at=-math.inf)})

    def refused(self, target: ClientKey, instance: str) -> None:
        """EC2 refused the change: descriptions count at once again."""
        self._cache(target).tried.pop(instance, None)

    def gone(self, target: ClientKey, instance: str) -> None:
        """EC2 no longer knows it."""
        cache = self._cache(target)
        cache.gone[instance] = time.monotonic()
        left = {one: observed for one, observed in cache.view.instances.items() if one != instance}
        cache.view = msgspec.structs.replace(cache.view, instances=left)

    def _poll_later(self, cache: _RegionCache, now: float) -> None:
        wait = POLL_SECONDS[min(cache.polls, len(POLL_SECONDS) - 1)]
        cache.polls += 1
        cache.poll_at = now + wait * self._scale

    def _due(self, cache: _RegionCache, now: float) -> set[str]:
        """Instances that the last response lacked, and that are due for the next read."""
        instances, wait = cache.view.instances, LOST_SECONDS * self._scale
        return {one for one in cache.lost if one not in instances or now - instances[one].at >= wait}

    def _cache(self, target: ClientKey) -> _RegionCache:
        return self._caches.setdefault(target, _RegionCache(self._tag))

    def clear(self) -> None:
        """Forget all: another process may have led in between."""
        self._caches.clear()

    async def _ask(self, cache: _RegionCache, ec2: Ec2, ids: set[str], *, whole: bool) -> None:
        began = time.monotonic()
        what = "the cluster's instances" if whole else f"{len(ids)} instance(s)"
        log.debug("EC2 is asked for %s", what, extra={"whole": whole, "began": began})
        try:
            found = await self._found(cache, ec2, ids, whole=whole)
        except AwsError as error:
            self._failed(cache, error)
            return
        cache.failures, cache.again_at = 0, 0.0
        observed = self._described(cache, found, began)
        self._keep_own(cache, observed, began)
        running = {one for one, instances in observed.items() if instances.state == "running"}
        cache.asked = ids | running if whole else cache.asked | ids
        instances = cache.view.instances
        observed |= self._missing(cache, ids - observed.keys(), began)
        others = {} if whole else {one: instances[one] for one in instances.keys() - ids}
        cache.before = instances if whole else cache.before
        cache.lost = {one: at for one, at in cache.lost.items() if one in observed or one in others}
        cache.stripped = {one: at for one, at in cache.stripped.items() if one in observed or one in others}
        at = began if whole else cache.view.at
        cache.view = Region({**others, **observed}, at, lost=frozenset(cache.lost))
        cache.tag = self._tag or cluster_tag(found) or cache.tag

    def _missing(self, cache: _RegionCache, ids: Iterable[str], asked: float) -> dict[str, ObservedInstance]:
        """Instances that a response lacks: unknown at first, gone at the second time."""
        kept, wait = {}, LOST_SECONDS * self._scale
        for one in ids:
            if one in cache.gone or asked - cache.lost.setdefault(one, asked) >= wait:
                cache.lost.pop(one, None)
                cache.gone[one] = max(asked, cache.gone.get(one, asked))
            else:
                kept[one] = msgspec.structs.replace(_known(cache, one) or _NEVER, lost=True, at=asked)
        cache.gone = {one: at for one, at in cache.gone.items() if asked - at < GONE_SECONDS}
        return kept

    def _failed(self, cache: _RegionCache, error: AwsError) -> None:
        wait = BACKOFF_SECONDS[min(cache.failures, len(BACKOFF_SECONDS) - 1)]
        cache.failures += 1
        if (error.code, error.service) == (UNREADABLE, "ec2") and error.status in (0, 200):
            cache.pages = cache.pages[1:] or PAGES[-1:]
        cache.again_at = time.monotonic() + wait * self._scale
        cache.view = msgspec.structs.replace(cache.view, problem=error)

    def _described(
        self, cache: _RegionCache, found: Iterable[Instance], asked: float
    ) -> dict[str, ObservedInstance]:
        """By ID, without instances that were found to be gone after the request."""
        every = {one["InstanceId"]: observed_instance(one, asked) for one in found}
        observed = {}
        for name, one in every.items():
            if cache.gone.get(name, -math.inf) >= asked:
                continue
            cache.gone.pop(name, None)
            before = _known(cache, name)
            observed[name] = self._tagged(cache, name, self._whole(cache, name, one, before), before)
        return observed

    def _whole(
        self, cache: _RegionCache, name: str, one: ObservedInstance, before: ObservedInstance | None
    ) -> ObservedInstance:
        """With the previous options, if the response has none."""
        if not one.lost:
            cache.lost.pop(name, None)
            return one
        cache.lost.setdefault(name, one.at)
        return msgspec.structs.replace(one, options=before.options) if before is not None else one

    def _tagged(
        self, cache: _RegionCache, name: str, one: ObservedInstance, before: ObservedInstance | None
    ) -> ObservedInstance:
        """With the previous tags, if the response has none: it would leave its group, and another policy
        might select it. If the group's tag alone is missing, a later response must confirm that."""
        if not one.tagged:
            return one if before is None or before.ungrouped_at else _retagged(one, before)
        if one.group:
            cache.stripped.pop(name, None)
            return one
        since = cache.stripped.setdefault(name, one.at)
        if one.at - since >= OWN_SECONDS * self._scale:
            return one
        if before is not None and before.group:
            return _retagged(one, before)
        return msgspec.structs.replace(one, ungrouped_at=since)

    def _keep_own(self, cache: _RegionCache, observed: dict[str, ObservedInstance], asked: float) -> None:
        """A description with the values from before our change does not count for OWN_SECONDS. Values of a
        later change of ours without an answer are unconfirmed until EC2 reports them."""
        since = asked - OWN_SECONDS * self._scale
        cache.own = {one: at for one, at in cache.own.items() if at > since}
        cache.tried = {one: tried for one, tried in cache.tried.items() if tried[0] > since}
        for one in (cache.own.keys() | cache.tried.keys()) & observed.keys():
            described, ours, (_, given) = observed[one], _known(cache, one), cache.tried.get(one, (0.0, {}))
            if one not in cache.own or ours is None:
                ours = described
            if described.options not in (ours.options, _changed(ours.options, given)):
                kept = {"options": ours.options, "pending": ours.pending, "confirmed": False}
                observed[one] = msgspec.structs.replace(described, **kept)
            elif _changed(described.options, given) != described.options:
                observed[one] = msgspec.structs.replace(described, confirmed=False)

    async def _found(self, cache: _RegionCache, ec2: Ec2, ids: set[str], *, whole: bool) -> list[Instance]:
        if not ids:
            return []
        found: list[Instance] = []
        if whole and cache.tag is not None:
            found = await self._describe(cache, ec2, cache.tag)
            ids = ids - {one["InstanceId"] for one in found}
        for some in _chunks(sorted(ids)):
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


# An instance that EC2 has not described yet.
_NEVER: Final = ObservedInstance(Options(), state="", tagged=False)


def _known(cache: _RegionCache, instance: str) -> ObservedInstance | None:
    """Its last description."""
    return cache.view.instances.get(instance) or cache.before.get(instance)


def _put(cache: _RegionCache, observed: dict[str, ObservedInstance]) -> None:
    cache.view = msgspec.structs.replace(cache.view, instances={**cache.view.instances, **observed})


def _changed(options: Options, given: Mapping[str, Any]) -> Options:
    return msgspec.convert({**dict(options.given()), **dict(described_options(given).given())}, Options)


def observed_instance(instance: Instance, asked: float) -> ObservedInstance:
    """The instance as the decisions see it. `asked`: time of the request, by time.monotonic()."""
    described = instance.get("MetadataOptions") or {}
    options = described_options(described)
    state = (instance.get("State") or {}).get("Name", "")
    tags = {tag.get("Key", ""): tag.get("Value", "") for tag in instance.get("Tags", ())}
    return ObservedInstance(
        options=options,
        state=state,
        pending=described.get("State") == "pending",
        lost=options == Options() and state not in ENDED,
        managed=bool((instance.get("Operator") or {}).get("Managed")),
        tagged=bool(tags),
        group=tags.get(GROUP_TAG, ""),
        unfit_tags=any(TAG_KEY.fullmatch(key) is None for key in tags) if tags else None,
        at=asked,
        template=tags.get(TEMPLATE_TAG, ""),
        version=tags.get(VERSION_TAG, ""),
        cluster=tags.get(EKS_TAG) or tags.get(NODEGROUP_CLUSTER_TAG, ""),
        clusters=tuple(sorted(_clusters(tags))),
    )


def _clusters(tags: Mapping[str, str]) -> set[str]:
    """All clusters in the tags of an instance."""
    clusters = {tags.get(EKS_TAG, ""), tags.get(NODEGROUP_CLUSTER_TAG, "")}
    clusters |= {key.removeprefix(OWNED_TAG) for key in tags if key.startswith(OWNED_TAG)}
    return clusters - {""}


def _retagged(observed: ObservedInstance, before: ObservedInstance) -> ObservedInstance:
    tags = {field: getattr(before, field) for field in BY_TAGS}
    return msgspec.structs.replace(observed, **tags)


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


def _chunks(ids: Sequence[str], size: int = IDS) -> Iterator[Sequence[str]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))
