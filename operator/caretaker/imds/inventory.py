"""What EC2 says of the cluster's instances: one look for all policies, and one for those that are new.

Inputs: AWS, the ids that policies ask for. One lock for each identity and region: policies that look at the
same moment share one answer. It decides nothing and changes nothing; what could not be asked is told.

The cluster's instances are told from the account's others by their cluster tag, which the first look by id
teaches; what does not carry it is asked for by id.
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

from caretaker.api.imds import Options
from caretaker.aws.ec2 import Ec2, Filter, Instance, MetadataOptions
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import Target
from caretaker.aws.pages import pages
from caretaker.imds.judge import STOPPED, Seen

log = logging.getLogger(__name__)

PAGE: Final = 1000  # DescribeInstances' own limit
IDS: Final = 200  # values of all filters of a call together (FilterLimitExceeded)
BACKOFF_SECONDS: Final = (15.0, 30.0, 60.0, 300.0)
# From the first change that EC2 has not applied yet (`pending`) to each further look; the last one repeats.
POLL_SECONDS: Final = (3.0, 6.0, 12.0)
# How long our own change outranks a description that does not know of it yet (Amazon EC2 API reference,
# "Eventual consistency").
OWN_SECONDS: Final = 30.0
# Tags that the metadata service can show (Amazon EC2 user guide, "View tags for your EC2 instances using
# instance metadata").
TAG_KEY: Final = re.compile(r"(?!(?:\.|\.\.|_index)$)[0-9a-zA-Z\-_+=,.@:]{1,255}")
GROUP_TAG: Final = "aws:autoscaling:groupName"
# Cluster tags (Amazon EKS user guide, "Tag your Amazon EKS resources"; Kubernetes cloud provider for AWS).
EKS_TAG: Final = "aws:eks:cluster-name"
OWNED_TAG: Final = "kubernetes.io/cluster/"
# Of instances of managed node groups (Amazon EKS user guide, "Managed node groups").
NODEGROUP_CLUSTER_TAG: Final = "eks:cluster-name"
# Set on every instance that came from one (Amazon EC2 user guide, "Tag your Amazon EC2 resources").
TEMPLATE_TAG: Final = "aws:ec2launchtemplate:id"
VERSION_TAG: Final = "aws:ec2launchtemplate:version"
# The fields of Seen that tags tell.
BY_TAGS: Final = ("tagged", "group", "unfit_tags", "template", "version", "cluster")


class Region(msgspec.Struct, frozen=True):
    """One region as one identity sees it. `at` by time.monotonic(), of the last whole look; 0 = never."""

    instances: dict[str, Seen] = {}
    at: float = 0.0
    problem: AwsError | None = None  # why the last look failed; what stands in `instances` is old then


class _Place:
    """What is kept of a region."""

    def __init__(self, tag: Filter | None) -> None:
        self.lock = asyncio.Lock()
        self.view = Region()
        self.asked: set[str] = set()  # ids that EC2 was asked for since the last whole look
        self.tag = tag  # what the cluster's instances have in common
        self.failures = 0
        self.again_at = 0.0  # not before this, after a failure
        self.own: dict[str, float] = {}  # instance -> when we changed it
        self.tried: dict[str, Mapping[str, Any]] = {}  # instance -> what it was sent, and no answer yet
        self.polls = 0  # looks for what is pending, since something is
        self.poll_at = 0.0


class Inventory:
    """Regions by Target. `calls` counts pages of DescribeInstances."""

    def __init__(self, ec2: Callable[[Target], Ec2], scale: float = 1.0, cluster: str = "") -> None:
        """`cluster`: by whose tag instances are asked for; "" = by the one that they are found to have."""
        self.calls = 0
        self._ec2 = ec2
        self._scale = scale
        self._tag: Filter | None = {"Name": "tag-key", "Values": [OWNED_TAG + cluster]} if cluster else None
        self._places: dict[Target, _Place] = {}

    async def look(self, target: Target, ids: Collection[str], max_age: float) -> Region:
        """The region, not older than `max_age` seconds, with these instances in it if EC2 knows them."""
        place = self._place(target)
        async with place.lock:
            now = time.monotonic()
            whole = not place.view.at or now - place.view.at >= max_age or place.view.problem is not None
            missing = set(ids) - place.asked
            if (whole or missing) and now >= place.again_at:
                await self._ask(place, self._ec2(target), set(ids) if whole else missing, whole=whole)
            return place.view

    async def again(self, target: Target, ids: Collection[str], since: float) -> None:
        """Ask for those of these that were asked for before `since` (time.monotonic())."""
        place = self._place(target)
        async with place.lock:
            known = place.view.instances
            old = {one for one in ids if one not in known or known[one].at < since}
            if old and time.monotonic() >= place.again_at:
                await self._ask(place, self._ec2(target), old, whole=False)

    async def poll(self, target: Target) -> None:
        """Which changes are not applied yet, in one call for all; nothing while it is too early. Those of a
        stopped instance come into force when it starts."""
        place = self._place(target)
        async with place.lock:
            now, known = time.monotonic(), place.view.instances
            waiting = {one for one, seen in known.items() if seen.pending and seen.state not in STOPPED}
            if not waiting:
                place.polls, place.poll_at = 0, 0.0
            elif not place.poll_at:
                self._poll_later(place, now)
            elif now >= max(place.poll_at, place.again_at):
                log.debug("EC2 is asked what is pending", extra={"pending": len(waiting), "began": now})
                await self._poll(place, self._ec2(target), waiting)
                self._poll_later(place, now)

    def changed(self, target: Target, instance: str, options: MetadataOptions) -> None:
        """EC2 has taken a change of ours, and answered with what the instance is to have."""
        place = self._place(target)
        before = place.view.instances.get(instance)
        if before is None:
            return
        now = time.monotonic()
        after = msgspec.structs.replace(
            before, options=_options(options), pending=options.get("State") == "pending", at=now
        )
        place.own[instance] = now
        place.tried.pop(instance, None)
        _put(place, {instance: after})
        if after.pending and not place.poll_at:
            self._poll_later(place, now)

    def doubt(self, target: Target, instance: str, options: Mapping[str, Any]) -> None:
        """It is sent these options: until EC2 has answered, what stands here is older than any limit."""
        place = self._place(target)
        place.tried[instance] = options
        if (before := place.view.instances.get(instance)) is not None:
            _put(place, {instance: msgspec.structs.replace(before, at=-math.inf)})

    def gone(self, target: Target, instance: str) -> None:
        """EC2 does not know it any more."""
        place = self._place(target)
        left = {one: seen for one, seen in place.view.instances.items() if one != instance}
        place.view = msgspec.structs.replace(place.view, instances=left)

    def _poll_later(self, place: _Place, now: float) -> None:
        wait = POLL_SECONDS[min(place.polls, len(POLL_SECONDS) - 1)]
        place.polls += 1
        place.poll_at = now + wait * self._scale

    async def _poll(self, place: _Place, ec2: Ec2, waiting: set[str]) -> None:
        pending: Filter = {"Name": "metadata-options.state", "Values": ["pending"]}
        size = IDS - len(pending["Values"])
        if len(waiting) > size and place.tag is not None:
            which: list[Filter] = [place.tag]
        else:
            which = [{"Name": "instance-id", "Values": some} for some in _chunks(sorted(waiting), size)]
        now, found = time.monotonic(), []
        try:
            for one in which:
                found += await self._describe(ec2, pending, one)
        except AwsError as error:
            self._failed(place, error)
            return
        told = _seen(place, found, now)
        # But for what was changed, or found gone, since the question was put.
        asked = {one: seen for one, seen in place.view.instances.items() if one in waiting and seen.at <= now}
        applied = {
            one: msgspec.structs.replace(asked[one], pending=False, at=now)
            for one in asked.keys() - told.keys()
        }
        _put(place, {**applied, **{one: told[one] for one in told.keys() & asked.keys()}})

    def _place(self, target: Target) -> _Place:
        return self._places.setdefault(target, _Place(self._tag))

    def clear(self) -> None:
        """Another process may have changed everything."""
        self._places.clear()

    async def _ask(self, place: _Place, ec2: Ec2, ids: set[str], *, whole: bool) -> None:
        began = time.monotonic()
        what = "the cluster's instances" if whole else f"{len(ids)} instance(s)"
        log.debug("EC2 is asked for %s", what, extra={"whole": whole, "began": began})
        try:
            found = await self._found(place, ec2, ids, whole=whole)
        except AwsError as error:
            self._failed(place, error)
            return
        place.failures, place.again_at = 0, 0.0
        seen = _seen(place, found, began)
        self._keep_own(place, seen, began)
        running = {one for one, known in seen.items() if known.state == "running"}
        place.asked = ids | running if whole else place.asked | ids
        # What was asked for by its id and not found is gone.
        known = {} if whole else place.view.instances
        others = {one: known[one] for one in known.keys() - ids}
        place.view = Region({**others, **seen}, began if whole else place.view.at)
        place.tag = self._tag or cluster_tag(found) or place.tag

    def _failed(self, place: _Place, error: AwsError) -> None:
        wait = BACKOFF_SECONDS[min(place.failures, len(BACKOFF_SECONDS) - 1)]
        place.failures += 1
        place.again_at = time.monotonic() + wait * self._scale
        place.view = msgspec.structs.replace(place.view, problem=error)

    def _keep_own(self, place: _Place, seen: dict[str, Seen], asked: float) -> None:
        """What we have just changed is not believed to be as it was before; it may be as a later change of
        ours, of which EC2 gave no answer, would make it."""
        place.own = {one: at for one, at in place.own.items() if asked - at < OWN_SECONDS * self._scale}
        place.tried = {one: given for one, given in place.tried.items() if one in place.own}
        for one in place.own.keys() & seen.keys() & place.view.instances.keys():
            ours = place.view.instances[one]
            if seen[one].options not in (ours.options, _changed(ours.options, place.tried.get(one, {}))):
                seen[one] = msgspec.structs.replace(ours, state=seen[one].state, at=asked)

    async def _found(self, place: _Place, ec2: Ec2, ids: set[str], *, whole: bool) -> list[Instance]:
        if not ids:
            return []
        found: list[Instance] = []
        if whole and place.tag is not None:
            found = await self._describe(ec2, place.tag)
            ids = ids - {one["InstanceId"] for one in found}
        for some in _chunks(sorted(ids)):
            found += await self._describe(ec2, {"Name": "instance-id", "Values": some})
        return found

    async def _describe(self, ec2: Ec2, *only: Filter) -> list[Instance]:
        """All pages. By filter: one id that EC2 does not know would fail the whole call else."""
        found: list[Instance] = []
        async for page in pages(ec2.describe_instances, Filters=only, MaxResults=PAGE):
            self.calls += 1
            found += [one for group in page["Reservations"] for one in group["Instances"]]
        return found


def _put(place: _Place, seen: dict[str, Seen]) -> None:
    place.view = msgspec.structs.replace(place.view, instances={**place.view.instances, **seen})


def _options(options: Mapping[str, Any]) -> Options:
    return msgspec.convert({name[0].lower() + name[1:]: value for name, value in options.items()}, Options)


def _changed(options: Options, given: Mapping[str, Any]) -> Options:
    return msgspec.convert({**dict(options.given()), **dict(_options(given).given())}, Options)


def seen_of(instance: Instance, asked: float) -> Seen:
    """The instance as decisions see it. `asked`: when, by time.monotonic()."""
    options = instance.get("MetadataOptions") or {}
    tags = {tag.get("Key", ""): tag.get("Value", "") for tag in instance.get("Tags", ())}
    return Seen(
        options=_options(options),
        state=(instance.get("State") or {}).get("Name", ""),
        pending=options.get("State") == "pending",
        managed=bool((instance.get("Operator") or {}).get("Managed")),
        tagged=bool(tags),
        group=tags.get(GROUP_TAG, ""),
        unfit_tags=any(TAG_KEY.fullmatch(key) is None for key in tags) if tags else None,
        at=asked,
        template=tags.get(TEMPLATE_TAG, ""),
        version=tags.get(VERSION_TAG, ""),
        cluster=tags.get(EKS_TAG) or tags.get(NODEGROUP_CLUSTER_TAG, ""),
    )


def _seen(place: _Place, found: Iterable[Instance], asked: float) -> dict[str, Seen]:
    """By id. An instance that had tags has them still where EC2 tells none: their lack would take it out of
    its group, and give it to another policy."""
    seen = {one["InstanceId"]: seen_of(one, asked) for one in found}
    known = place.view.instances
    return {name: one if one.tagged else _retagged(one, known.get(name, one)) for name, one in seen.items()}


def _retagged(seen: Seen, before: Seen) -> Seen:
    tags = {field: getattr(before, field) for field in BY_TAGS}
    return msgspec.structs.replace(seen, **tags)


def cluster_tag(instances: Iterable[Instance]) -> Filter | None:
    """The cluster tag that most of these instances carry; None where none does."""
    count: Counter[tuple[str, str]] = Counter()
    for instance in instances:
        count.update(set(_cluster_tags(instance)))
    if not count:
        return None
    name, value = max(sorted(count), key=lambda tag: count[tag])
    return {"Name": name, "Values": [value]}


def _cluster_tags(instance: Instance) -> Iterator[tuple[str, str]]:
    for tag in instance.get("Tags", ()):
        key = tag.get("Key", "")
        if key == EKS_TAG and tag.get("Value"):
            yield f"tag:{EKS_TAG}", tag["Value"]
        elif key.startswith(OWNED_TAG):
            yield "tag-key", key


def _chunks(ids: Sequence[str], size: int = IDS) -> Iterator[Sequence[str]]:
    return (ids[at : at + size] for at in range(0, len(ids), size))
