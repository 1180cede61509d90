"""Nodes and Pods, cut down to the fields that a decision reads.

Pure data, frozen: two records are equal exactly when nothing that matters differs, so a heartbeat
changes nothing (the resourceVersion is therefore the store's, not the record's). kube/ decodes watch
events straight into the wire shapes here; unnamed fields are skipped by the decoder and never allocated.
"""

from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.hashing import HASHED, h10
from caretaker.api.names import POD_NODE_UID, POD_SEQ
from caretaker.api.times import parse_time
from caretaker.api.wire_conditions import NodeCondition, WireCondition, node_conditions

MAX_SEQ: Final = 2**62  # it has room for a resourceVersion


# gc=False here and on the parts of plans: these hold no cycles, and full collections would stop the loop.


class Taint(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """corev1.Taint."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class Node(msgspec.Struct, frozen=True, gc=False):
    """The part of a Node that planners read."""

    name: str
    uid: str
    labels: dict[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    provider_id: str = ""
    boot_id: str = ""
    ready: bool = False
    ready_since: float = 0.0  # seconds since the epoch: the Ready condition's lastTransitionTime
    deleting: bool = False
    created: float = 0.0  # seconds since the epoch
    cordon: str = ""  # the annotation CORDONED_BY
    conditions: tuple[NodeCondition, ...] = ()  # but for Ready; without heartbeats


class ContainerEnd(msgspec.Struct, frozen=True, gc=False):
    """How one container of a finished Pod ended."""

    name: str
    exit_code: int
    reason: str = ""
    message: str = ""
    init: bool = False
    created: bool = True  # False: the kubelet says that it ended, and shows no trace of it


class Pod(msgspec.Struct, frozen=True, gc=False):
    """The part of a Pod that planners read. Times are seconds since the epoch, 0 where unknown."""

    name: str
    namespace: str
    uid: str
    owner_uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    created: float
    deletion: float = 0.0  # deletionTimestamp: when the grace period ends; 0 = not being deleted
    deletion_asked: float = 0.0  # when its deletion was asked for: the grace period earlier
    node_name: str = ""  # spec.nodeName: empty until bound
    phase: str = "Pending"
    reason: str = ""  # status.reason: Evicted, DeadlineExceeded, OutOfcpu, NodeAffinity ...
    message: str = ""
    conditions: tuple[tuple[str, str, str], ...] = ()  # (type, status, reason) as podFailurePolicy reads them
    unschedulable: str = ""  # the scheduler's message while PodScheduled is False/Unschedulable
    unschedulable_since: float = 0.0
    # The first waiting container's reason: ImagePullBackOff, CrashLoopBackOff. A sidecar's only until the Pod
    # runs.
    waiting: str = ""
    ends: tuple[ContainerEnd, ...] = ()
    # How often its containers have failed and were started again in the same Pod, or are about to be.
    failures: int = 0
    crash: ContainerEnd | None = None  # how a container ended that was started again
    # 0 until the phase is terminal. By its kubelet's clock, never before `created`; it may lie ahead.
    finished: float = 0.0
    # How many Pods had been created for the node when this one was, itself included; 0 if not ours. Read from
    # the annotations once, not at every look: every pass asks it of every Pod.
    seq: int = 0

    def __post_init__(self) -> None:
        text = self.annotations.get(POD_SEQ, "")
        # int() refuses thousands of digits.
        seq = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQ)) else 0
        msgspec.structs.force_setattr(self, "seq", seq if seq < MAX_SEQ else 0)

    @property
    def terminal(self) -> bool:
        """Whether the phase can no longer change."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def node_uid(self) -> str:
        """The UID of the Node this run was created for."""
        return self.annotations.get(POD_NODE_UID, "")


# ---------------------------------------------------------------- wire shapes

# Characters of a container's termination message that are kept: the limit of the kubelet, in bytes.
MAX_MESSAGE: Final = 4096
MAX_CRASH_MESSAGE: Final = 256  # of one that was started again
CRASH_LOOP: Final = "CrashLoopBackOff"
# The reason of a container whose end the kubelet did not see: it may never have created it.
CONTAINER_LOST: Final = "ContainerStatusUnknown"


_OWN: Final = sorted(
    value for name, value in vars(names).items() if name.startswith(("POD_", "LABEL_")) and "/" in value
)
_MOST: Final = 253  # characters of a label or annotation that is kept: of the longest, a node's name
_BOOT_ID: Final = 64  # the kernel's has 36


def _boot_id(text: str) -> str:
    """The node's boot ID, or its hash: the ledger and Pods, where room is short, have a copy."""
    plain = text.isascii() and text.isprintable() and len(text) <= _BOOT_ID
    return text if plain else f"{HASHED}{h10(text)}"


class WireOwner(msgspec.Struct):
    uid: str
    kind: str = "DaemonTask"
    controller: bool = False


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of the structs that are decoded from and encoded to the API."""


class WireBareMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: list[WireOwner] | None = None
    finalizers: list[str] | None = None


class WireMeta(WireBareMeta):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


_fields = ((f"own{i}", str | None, msgspec.field(name=name, default=None)) for i, name in enumerate(_OWN))


class WireOwn(msgspec.defstruct("_Own", _fields)):  # type: ignore[misc]
    """The labels or annotations of a Pod. Only ours are decoded: all may have more than 1 MiB."""

    def kept(self) -> dict[str, str]:
        """Without those that are too long."""
        values = zip(_OWN, msgspec.structs.astuple(self), strict=True)
        return {name: text for name, text in values if text is not None and len(text) <= _MOST}


class WirePodMeta(WireBareMeta):
    labels: WireOwn | None = None
    annotations: WireOwn | None = None


class WireNodeSpec(msgspec.Struct, rename="camel"):
    unschedulable: bool = False
    taints: list[Taint] | None = None
    provider_id: str = msgspec.field(name="providerID", default="")


class WireNodeInfo(msgspec.Struct, rename="camel"):
    boot_id: str = msgspec.field(name="bootID", default="")


class WireNodeStatus(msgspec.Struct, rename="camel"):
    conditions: list[WireCondition] | None = None
    node_info: WireNodeInfo | None = None


class WireNode(msgspec.Struct):
    metadata: WireMeta
    spec: WireNodeSpec = msgspec.field(default_factory=WireNodeSpec)
    status: WireNodeStatus = msgspec.field(default_factory=WireNodeStatus)

    def record(self) -> Node:
        """The planner's view of this Node."""
        meta, conditions = self.metadata, node_conditions(self.status.conditions or ())
        readiness = [one for one in conditions if one[0] == "Ready"]
        _, ready, ready_since = readiness[0] if readiness else ("", "Unknown", 0.0)
        return Node(
            name=meta.name,
            uid=meta.uid,
            labels=meta.labels or {},
            taints=tuple(self.spec.taints or ()),
            unschedulable=self.spec.unschedulable,
            provider_id=self.spec.provider_id,
            boot_id=_boot_id(self.status.node_info.boot_id) if self.status.node_info else "",
            ready=ready == "True",
            ready_since=ready_since,
            deleting=meta.deletion_timestamp is not None,
            created=parse_time(meta.creation_timestamp) or 0.0,
            cordon=(meta.annotations or {}).get(names.CORDONED_BY, "")[: _MOST * 2],
            conditions=tuple([one for one in conditions if one[0] != "Ready"]),
        )


class WireTerminated(msgspec.Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class WireWaiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class WireState(msgspec.Struct):
    waiting: WireWaiting | None = None
    terminated: WireTerminated | None = None


class WireContainerStatus(msgspec.Struct, rename="camel"):
    name: str
    state: WireState = msgspec.field(default_factory=WireState)
    last_state: WireState = msgspec.field(default_factory=WireState)
    restart_count: int = 0
    container_id: str = msgspec.field(name="containerID", default="")

    def end(self, init: bool, wanted: bool) -> ContainerEnd | None:
        """How it ended, with its message where that is wanted; None while it has not."""
        end = self.state.terminated
        if end is None:
            return None
        trace = self.container_id or self.last_state.terminated or self.restart_count
        created = bool(trace) or end.reason != CONTAINER_LOST
        message = end.message[:MAX_MESSAGE] if wanted else ""
        return ContainerEnd(self.name, end.exit_code, end.reason, message, init, created)

    def crash(self, init: bool) -> ContainerEnd | None:
        """How it ended before it was started again."""
        last = self.last_state.terminated
        if last is None:
            return None
        return ContainerEnd(self.name, last.exit_code, last.reason, last.message[:MAX_CRASH_MESSAGE], init)

    @property
    def waiting(self) -> str:
        """The reason why the container waits."""
        return self.state.waiting.reason if self.state.waiting is not None else ""

    @property
    def failures(self) -> int:
        """How often it was started again, or is about to be."""
        return self.restart_count + (self.waiting == CRASH_LOOP)


class WireContainer(msgspec.Struct):
    name: str = ""


class WirePodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    restart_policy: str = ""
    containers: list[WireContainer] | None = None


class WirePodStatus(msgspec.Struct, rename="camel"):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[WireCondition] | None = None
    container_statuses: list[WireContainerStatus] | None = None
    init_container_statuses: list[WireContainerStatus] | None = None


class WirePod(msgspec.Struct):
    metadata: WirePodMeta
    spec: WirePodSpec = msgspec.field(default_factory=WirePodSpec)
    status: WirePodStatus = msgspec.field(default_factory=WirePodStatus)

    def record(self) -> Pod:
        """The planner's view of this Pod."""
        meta, status = self.metadata, self.status
        owners = (o for o in meta.owner_references or () if o.controller and o.kind == "DaemonTask")
        owner = next((o.uid for o in owners), "")
        unschedulable, unschedulable_since = "", 0.0
        for condition in status.conditions or ():
            if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
                unschedulable = condition.message
                unschedulable_since = parse_time(condition.last_transition_time) or 0.0
        created, deletion = (parse_time(t) or 0.0 for t in (meta.creation_timestamp, meta.deletion_timestamp))
        return Pod(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            owner_uid=owner,
            labels=meta.labels.kept() if meta.labels else {},
            annotations=meta.annotations.kept() if meta.annotations else {},
            created=created,
            deletion=deletion,
            deletion_asked=max(deletion - (meta.deletion_grace_period_seconds or 0), 0.0),
            node_name=self.spec.node_name,
            phase=status.phase or "Pending",
            reason=status.reason,
            message=status.message,
            conditions=tuple((c.type, c.status, c.reason) for c in status.conditions or ()),
            unschedulable=unschedulable,
            unschedulable_since=unschedulable_since,
            waiting=self._waiting(),
            ends=self._ends(),
            failures=self._failures(),
            crash=self._crash(),
            finished=self._finished(created) if status.phase in ("Succeeded", "Failed") else 0.0,
        )

    def _ends(self) -> tuple[ContainerEnd, ...]:
        ends: list[ContainerEnd] = []
        has_message = False
        for init, group in ((True, self.status.init_container_statuses), (False, self._in_order())):
            for container in group or ():
                # Of the succeeded containers one has results: the store needs no messages of the others.
                failed = container.state.terminated is not None and container.state.terminated.exit_code != 0
                end = container.end(init, wanted=failed or not (init or has_message))
                if end is not None:
                    has_message = has_message or (
                        not init and end.exit_code == 0 and bool(end.message.strip())
                    )
                    ends.append(end)
        return tuple(ends)

    def _waiting(self) -> str:
        status = self.status
        # Once the Pod runs, an init container that waits is a sidecar, which keeps nothing from its end.
        inits = status.init_container_statuses if status.phase != "Running" else None
        return next((c.waiting for c in (*(inits or ()), *(self._in_order() or ())) if c.waiting), "")

    def _failures(self) -> int:
        """Failures of every container with OnFailure, as batch/v1 counts; with Never a container may have a
        policy of its own, and a sidecar has."""
        inits = self.status.init_container_statuses if self.spec.restart_policy == "OnFailure" else None
        return sum(c.failures for c in (*(inits or ()), *(self.status.container_statuses or ())))

    def _crash(self) -> ContainerEnd | None:
        for init, group in ((False, self._in_order()), (True, self.status.init_container_statuses)):
            found = next((c.crash(init) for c in group or () if c.last_state.terminated is not None), None)
            if found is not None:
                return found
        return None

    def _finished(self, created: float) -> float:
        """When its last container ended, or, without any, when its kubelet refused it; by that one's clock.

        Creation and binding have the API server's time. A kubelet that took the Pod up before them has a slow
        clock: its times are moved by the difference.
        """
        status, placed, moved = self.status, created, 0.0
        for condition in status.conditions or ():
            changed = parse_time(condition.last_transition_time) or 0.0
            if condition.type != "PodScheduled":
                moved = max(moved, changed)
            elif condition.status == "True":
                placed = max(placed, changed)
        begun = parse_time(status.start_time) or 0.0
        found = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        ends = (c.state.terminated.finished_at for c in found if c.state.terminated is not None)
        ended = max((parse_time(end) or 0.0 for end in ends), default=0.0) or max(moved, begun)
        slow = max(placed - begun, 0.0) if begun else 0.0
        return max(ended + slow, placed)

    def _in_order(self) -> list[WireContainerStatus] | None:
        """The containers' statuses in the order of the spec: the kubelet sorts them by name."""
        found = self.status.container_statuses
        if found is None or len(found) == 1:
            return found
        places = {container.name: place for place, container in enumerate(self.spec.containers or ())}
        return sorted(found, key=lambda status: places.get(status.name, len(places)))
