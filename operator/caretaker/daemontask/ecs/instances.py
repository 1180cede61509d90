"""The container instances of a cluster that count. It parses the events of the queue, and separates those
that change the number of instances from the others.

Pure. Inputs: the instances of a list, and the bodies of EventBridge events "ECS Container Instance State
Change" (ECS developer guide); other fields are ignored, since AWS adds fields. An agent that connects, a task
that starts, a drain where DRAINING counts: each makes an event, and none changes the number. The state is
lost with the process and read again with a list.
"""

import re
from collections.abc import Collection
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from caretaker.daemontask.ecs.check import Counts

DETAIL_TYPE: Final = "ECS Container Instance State Change"
_CLUSTER: Final = re.compile(r"arn:aws[\w-]*:ecs:([a-z0-9-]+):\d*:cluster/([\w-]{1,255})")
_INSTANCE: Final = re.compile(r"arn:aws[\w-]*:ecs:[a-z0-9-]+:\d*:container-instance/[\w/-]{1,300}")
MAX_FAULT: Final = 200
_ABSENT: Final = msgspec.Raw()

T = TypeVar("T")


class Notice(msgspec.Struct, frozen=True):
    """The status of a container instance. `version` grows with each of its changes; 0 = absent."""

    region: str
    cluster: str  # its name
    instance: str  # ARN
    status: str
    version: int = 0


class Parsed(msgspec.Struct, frozen=True):
    """A notice, or why the message is malformed. Neither: an event of another kind, which is ignored."""

    notice: Notice | None = None
    malformed: str = ""


class _Event(msgspec.Struct, frozen=True):
    """Of an event of EventBridge, the fields that are needed. All others are skipped without being decoded:
    a message may hold 1 MiB of them."""

    detail_type: msgspec.Raw = msgspec.field(name="detail-type", default=_ABSENT)
    detail: msgspec.Raw = _ABSENT


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    cluster_arn: msgspec.Raw = _ABSENT
    container_instance_arn: msgspec.Raw = _ABSENT
    status: msgspec.Raw = _ABSENT
    version: msgspec.Raw = _ABSENT


def parse(body: str) -> Parsed:
    """The content of a message. Never raises."""
    try:
        event = msgspec.json.decode(body, type=_Event)
    except msgspec.ValidationError:
        event = _Event()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _malformed(f"no JSON: {error}")
    detail_type = _field(event.detail_type, str)
    if detail_type is None:
        return _malformed("no event of EventBridge: it has no detail-type")
    if detail_type != DETAIL_TYPE:
        return Parsed()
    detail = _field(event.detail, _Detail)
    return _notice(detail) if detail is not None else _malformed("its detail is no object")


def _notice(detail: _Detail) -> Parsed:
    texts = (detail.cluster_arn, detail.container_instance_arn, detail.status)
    arn, instance, status = (_field(text, str) or "" for text in texts)
    cluster = _CLUSTER.fullmatch(arn)
    if cluster is None:
        return _malformed(f"detail.clusterArn is no cluster's ARN: {arn}")
    if not _INSTANCE.fullmatch(instance):
        return _malformed(f"detail.containerInstanceArn is no container instance's ARN: {instance}")
    if not status:
        return _malformed("detail.status is missing")
    number = _field(detail.version, int) or 0
    return Parsed(Notice(cluster[1], cluster[2], instance, status, max(number, 0)))


def _field(raw: msgspec.Raw, of: type[T]) -> T | None:
    """None: it is absent, or of another type."""
    try:
        return msgspec.json.decode(raw, type=of)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _malformed(fault: str) -> Parsed:
    return Parsed(malformed=fault[:MAX_FAULT])


# API reference, Cluster: registeredContainerInstancesCount "includes container instances in both ACTIVE and
# DRAINING status".
COUNTED: Final[dict[Counts, tuple[str, ...]]] = {
    "Registered": ("ACTIVE", "DRAINING"),
    "Active": ("ACTIVE",),
}
MOST: Final = 20_000  # kept for one cluster; instances that do not count are dropped first


class _Known(msgspec.Struct, frozen=True):
    counts: bool = False
    version: int = 0  # of the event
    by_event: bool = False  # an event says that it counts, and no list since confirms it
    left_out: bool = False


class Instances:
    """The container instances of one cluster. Before learn(), an unknown instance may count or not.

    An instance does not count either if its status does but a later list of ECS lacks it (`_Known.left_out`):
    the service may not run there, so its events change nothing.
    """

    def __init__(self, counts: Counts) -> None:
        self._statuses = COUNTED[counts]
        self._known: dict[str, _Known] = {}  # by ARN
        self._complete = False
        self._heard: set[str] = set()  # instances with an event since begin(), MOST at most
        self._missed = False  # there were more

    @property
    def complete(self) -> bool:
        """Whether every instance that counts is known."""
        return self._complete

    def begin(self) -> None:
        """A list is about to be requested."""
        self._heard.clear()
        self._missed = False

    def learn(self, arns: Collection[str], counts: Counts) -> None:
        """Take this list of all instances that count. Events since begin() may be newer, and stay."""
        self._statuses = COUNTED[counts]
        if self._missed:  # it is not known of which instances the list is too old
            self._complete = False
            return
        for arn in {*arns, *self._known} - self._heard:
            before = self._known.get(arn, _Known())
            left_out = arn not in arns and (before.left_out or before.by_event)
            self._known[arn] = _Known(arn in arns, before.version, left_out=left_out)
        self._complete = True

    def changed(self, notice: Notice) -> bool:
        """Note the event; return whether the number may have changed. Repeated and late events change
        nothing."""
        counts = notice.status in self._statuses
        if len(self._heard) < MOST:
            self._heard.add(notice.instance)
        elif notice.instance not in self._heard:
            self._missed = True
        known = self._known.get(notice.instance)
        before = known or _Known()
        if before.version and notice.version and notice.version <= before.version:
            return False
        version = max(notice.version, before.version)
        # After a gap in the versions an unseen change may be why the list lacks it.
        if before.left_out and counts and notice.version <= before.version + 1:
            self._known[notice.instance] = replace(before, version=version)
            return False
        self._known[notice.instance] = _Known(counts, version, by_event=counts)
        if len(self._known) > MOST:
            self._shrink()
        return counts != before.counts or (known is None and not self._complete)

    def _shrink(self) -> None:
        self._known = {arn: one for arn, one in self._known.items() if one.counts}
        if len(self._known) > MOST:
            self._known.clear()
            self._complete = False
