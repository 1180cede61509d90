"""Nodes and Pods, cut down to the fields that a decision reads.

Pure data, frozen: two records are equal exactly when nothing that matters differs, so a heartbeat
changes nothing (the resourceVersion is therefore the store's, not the record's). kube/ decodes watch
events straight into the wire shapes here; unnamed fields are skipped by the decoder and never allocated.
"""

from typing import Final, Literal

import msgspec

from caretaker.api.names import POD_NODE_UID, POD_SEQ
from caretaker.api.times import parse_time

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
MAX_SEQ: Final = 2**62  # it has room for a resourceVersion
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


# gc=False here and on what plans are made of: these hold no cycles, and with tens of thousands of them every
# full collection would stop the loop (the longest plan for 5,000 nodes: 42 ms with, 30 ms without).


class Taint(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """corev1.Taint."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class Node(msgspec.Struct, frozen=True, gc=False):
    """What a planner knows of a Node."""

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


class ContainerEnd(msgspec.Struct, frozen=True, gc=False):
    """How one container of a finished Pod ended."""

    name: str
    exit_code: int
    reason: str = ""
    message: str = ""
    init: bool = False


class Pod(msgspec.Struct, frozen=True, gc=False):
    """What a planner knows of a Pod. Times are seconds since the epoch, 0 where unknown."""

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
    waiting: str = ""  # the first waiting container's reason: ImagePullBackOff, CreateContainerConfigError
    ends: tuple[ContainerEnd, ...] = ()
    finished: float = 0.0  # 0 until the phase is terminal
    # How many Pods had been created for the node when this one was, itself included; 0 if not ours. Read from
    # the annotations once, not at every look: every pass asks it of every Pod.
    seq: int = 0

    def __post_init__(self) -> None:
        text = self.annotations.get(POD_SEQ, "")
        # int() refuses thousands of digits.
        told = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQ)) else 0
        msgspec.structs.force_setattr(self, "seq", told if told < MAX_SEQ else 0)

    @property
    def terminal(self) -> bool:
        """Whether the phase can no longer change."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def node_uid(self) -> str:
        """The UID of the Node this run was created for."""
        return self.annotations.get(POD_NODE_UID, "")


# ---------------------------------------------------------------- wire shapes

# Characters of a container's termination message that are kept: what the kubelet lets one have, in bytes.
MAX_MESSAGE: Final = 4096


class WireOwner(msgspec.Struct):
    uid: str
    controller: bool = False


class WireMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: list[WireOwner] | None = None
    finalizers: list[str] | None = None


class WireCondition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


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
        meta, ready, since = self.metadata, False, 0.0
        for condition in self.status.conditions or ():
            if condition.type == "Ready":
                ready = condition.status == "True"
                since = parse_time(condition.last_transition_time) or 0.0
        info = self.status.node_info
        return Node(
            name=meta.name,
            uid=meta.uid,
            labels=meta.labels or {},
            taints=tuple(self.spec.taints or ()),
            unschedulable=self.spec.unschedulable,
            provider_id=self.spec.provider_id,
            boot_id=info.boot_id if info else "",
            ready=ready,
            ready_since=since,
            deleting=meta.deletion_timestamp is not None,
            created=parse_time(meta.creation_timestamp) or 0.0,
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


class WireContainerStatus(msgspec.Struct):
    name: str
    state: WireState = msgspec.field(default_factory=WireState)


class WireContainer(msgspec.Struct):
    name: str = ""


class WirePodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[WireContainer] | None = None


class WirePodStatus(msgspec.Struct, rename="camel"):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[WireCondition] | None = None
    container_statuses: list[WireContainerStatus] | None = None
    init_container_statuses: list[WireContainerStatus] | None = None


class WirePod(msgspec.Struct):
    metadata: WireMeta
    spec: WirePodSpec = msgspec.field(default_factory=WirePodSpec)
    status: WirePodStatus = msgspec.field(default_factory=WirePodStatus)

    def record(self) -> Pod:
        """The planner's view of this Pod."""
        meta, status = self.metadata, self.status
        owner = next((o.uid for o in meta.owner_references or () if o.controller), "")
        unschedulable, unschedulable_since, moved = "", 0.0, 0.0
        for condition in status.conditions or ():
            changed = parse_time(condition.last_transition_time) or 0.0
            moved = max(moved, changed)
            if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
                unschedulable, unschedulable_since = condition.message, changed
        ends, waiting, finished, told = [], "", 0.0, False
        for init, group in ((True, status.init_container_statuses), (False, self._in_order())):
            for container in group or ():
                if container.state.terminated is not None:
                    end = container.state.terminated
                    # Of those that succeeded one has results: the others' words need no room in the store.
                    wanted = end.exit_code != 0 or not (init or told)
                    told = told or (not init and end.exit_code == 0 and bool(end.message.strip()))
                    message = end.message[:MAX_MESSAGE] if wanted else ""
                    ends.append(ContainerEnd(container.name, end.exit_code, end.reason, message, init))
                    finished = max(finished, parse_time(end.finished_at) or 0.0)
                elif container.state.waiting is not None and not waiting:
                    waiting = container.state.waiting.reason
        created = parse_time(meta.creation_timestamp) or 0.0
        deletion = parse_time(meta.deletion_timestamp) or 0.0
        return Pod(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            owner_uid=owner,
            labels=meta.labels or {},
            annotations=meta.annotations or {},
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
            waiting=waiting,
            ends=tuple(ends),
            # A Pod that the kubelet refused or that was evicted has no container statuses.
            finished=(finished or moved or created) if status.phase in ("Succeeded", "Failed") else 0.0,
        )

    def _in_order(self) -> list[WireContainerStatus] | None:
        """The containers' statuses in the order of the spec: the kubelet sorts them by name."""
        found = self.status.container_statuses
        if found is None or len(found) == 1:
            return found
        places = {container.name: place for place, container in enumerate(self.spec.containers or ())}
        return sorted(found, key=lambda status: places.get(status.name, len(places)))
