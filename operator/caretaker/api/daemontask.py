"""DaemonTask: the structs behind crds/daemontasks.yaml (a test keeps the two in agreement).

Pure data and the arithmetic that belongs to it. Field semantics are documented in the CRD, which is the
source of truth; here stand only types and defaults. Durations are whole seconds.
"""

import math
from typing import Annotated, Any, Final, Literal

import msgspec

from caretaker.api.conditions import Condition
from caretaker.api.ecs import EcsCluster, EcsSpec
from caretaker.api.health_gate import HealthCondition, HealthGate
from caretaker.api.names import GROUP
from caretaker.api.objects import Wire, WireMeta

IntOrPercent = int | str
Trigger = Literal["TemplateChange", "NodeReboot", "ReferencedDataChange"]

MAX_TEMPLATE_BYTES = 256 * 1024
MAX_HOLDERS = 20  # status.slots.holders
MAX_TICKS = 10  # status.scheduleHistory
MAX_LISTED = 50  # failedNodes and blockedNodes: the size of status does not depend on the number of nodes


class OnExitCodes(Wire, frozen=True):
    """batch/v1 PodFailurePolicyOnExitCodesRequirement."""

    operator: Literal["In", "NotIn"]
    values: tuple[int, ...]
    container_name: str | None = None


class OnPodCondition(Wire, frozen=True):
    """batch/v1 PodFailurePolicyOnPodConditionsPattern."""

    type: str
    status: Literal["True", "False", "Unknown"] = "True"


class FailureRule(Wire, frozen=True):
    """batch/v1 PodFailurePolicyRule. FailJob fails the task, FailIndex the node."""

    action: Literal["FailJob", "FailIndex", "Ignore", "Count"]
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: tuple[OnPodCondition, ...] = ()


class PodFailurePolicy(Wire, frozen=True):
    """batch/v1 PodFailurePolicy."""

    rules: tuple[FailureRule, ...]


class FailurePolicy(Wire, frozen=True):
    """The number of failed nodes that is too many, and the action then."""

    max_failed_nodes: IntOrPercent = 0
    action: Literal["Continue", "Pause", "Fail"] = "Continue"


class Budget(Wire, frozen=True):
    """How many nodes may run at a time while it is active; always, without a schedule."""

    nodes: IntOrPercent
    schedule: str | None = None
    duration: str | None = None  # of the window that each tick opens


class DependsOn(Wire, frozen=True):
    """A DaemonTask of the same namespace that has to succeed on a node first."""

    name: str


class DataRef(Wire, frozen=True):
    """A ConfigMap or Secret of the namespace of the task."""

    kind: Literal["ConfigMap", "Secret"]
    name: str


class NodeGate(Wire, frozen=True):
    """The task removes its taint from the nodes that it has succeeded on. No field yet."""


class Exclusive(Wire, frozen=True):
    """Of the DaemonTasks of the namespace with this group one at a time is on a node; `parallelism`: how many
    nodes they may be on together."""

    group: str
    parallelism: IntOrPercent | None = None


class SelectorRequirement(Wire, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class PodSelector(Wire, frozen=True):
    """metav1.LabelSelector."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[SelectorRequirement, ...] = ()


class Drain(Wire, frozen=True):
    """The node is cordoned and its Pods are evicted before the run, as kubectl drain does."""

    timeout_seconds: int = 600
    grace_period_seconds: int | None = None  # None: each Pod's own
    delete_empty_dir_data: bool = False
    force: bool = False  # evict Pods without a controller too
    pod_selector: PodSelector | None = None  # Pods that are evicted; None: all
    on_failure: Literal["KeepCordoned", "Uncordon"] = "KeepCordoned"


class Canary(Wire, frozen=True):
    """The nodes that begin a rollout, and for how long they are watched before the others follow."""

    nodes: IntOrPercent = 1
    soak_seconds: int = 0


class Result(Wire, frozen=True):
    """A field of the JSON that the task's program leaves in its termination message."""

    name: str
    type: Literal["Number", "Text"] = "Number"
    unit: str = ""


class Spec(Wire, frozen=True):
    """DaemonTask spec: either a template or, where there is none, `ecs`."""

    template: dict[str, Any] = msgspec.field(default_factory=dict)
    ecs: EcsSpec | None = None
    suspend: bool = False
    schedule: str | None = None
    time_zone: str = "Etc/UTC"
    starting_deadline_seconds: int | None = None
    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    rerun_on: tuple[Trigger, ...] = ("TemplateChange",)
    data_refs: tuple[DataRef, ...] = ()
    reboots_node: bool = False
    run_guarantee: Literal["AtLeastOnce", "AtMostOnce"] = "AtLeastOnce"
    parallelism: IntOrPercent | None = None
    budgets: tuple[Budget, ...] = ()
    min_success_seconds: int = 0
    backoff_limit: int = 3
    pod_failure_policy: PodFailurePolicy | None = None
    failure_policy: FailurePolicy = FailurePolicy()
    active_deadline_seconds: int | None = None
    progress_deadline_seconds: int = 1800
    ttl_seconds_after_finished: int | None = None
    results: tuple[Result, ...] = ()
    node_gate: NodeGate | None = None
    drain: Drain | None = None
    health_gate: HealthGate | None = None
    rollout_deadline_seconds: int | None = None
    depends_on: tuple[DependsOn, ...] = ()
    exclusive: Exclusive | None = None
    canary: Canary | None = None
    topology_key: str | None = None

    @property
    def health_conditions(self) -> tuple[HealthCondition, ...]:
        """Those of healthGate."""
        return self.health_gate.conditions if self.health_gate is not None else ()

    @property
    def at_most_once(self) -> bool:
        """Whether no run may be repeated."""
        return self.run_guarantee == "AtMostOnce"


class FailedNode(Wire, frozen=True):
    """A node whose retries are exhausted."""

    node_name: str
    reason: str
    message: str = ""
    exit_code: int | None = None
    attempts: int = 0
    last_finish_time: str | None = None
    pod_name: str = ""


class BlockedNode(Wire, frozen=True):
    """A node that cannot start or finish now, and since when."""

    node_name: str
    reason: str
    since: str | None = None
    message: str = ""


class Slot(Wire, frozen=True):
    """A node that holds one of the slots of parallelism and budgets."""

    node_name: str
    reason: str  # Running, or another state of the node
    since: str | None = None
    until: str | None = None  # when the reason ends by itself; absent where only an event ends it


class SlotStatus(Wire, frozen=True, omit_defaults=False):
    """The number of slots, and their holders."""

    width: int
    held: int
    holders: tuple[Slot, ...] = ()  # at most MAX_HOLDERS, those out of the ordinary first


class GateStatus(Wire, frozen=True, omit_defaults=False):
    """The taint of spec.nodeGate, and the nodes that carry it."""

    taint: str  # its key
    gated_nodes: int
    excluded_nodes: int  # of them, those that the task is not for: they keep it


class ResultValue(Wire, frozen=True):
    """A text, and how many nodes gave it."""

    value: str
    nodes: int


class ResultStatus(Wire, frozen=True):
    """One declared result over all nodes whose run succeeded; figures that no node gave are left out."""

    name: str
    type: Literal["Number", "Text"]
    unit: str
    count: int  # nodes that gave it
    min: float | None = None
    median: float | None = None
    p95: float | None = None
    max: float | None = None
    values: tuple[ResultValue, ...] = ()  # of Text, the most frequent first
    values_omitted: int = 0


class ResultError(Wire, frozen=True):
    """A node whose run succeeded without a valid result."""

    node_name: str
    message: str


class ObservedSchedule(Wire, frozen=True):
    """The schedule that the operator goes by, and since when its ticks count."""

    schedule: str
    time_zone: str
    since: str


class EndedTick(Wire, frozen=True, omit_defaults=False):
    """A tick that a later one followed: the counts of status when that began."""

    schedule_time: str
    desired: int
    succeeded: int
    failed: int
    completion_time: str | None = None  # when a run of it last succeeded


# Some readers decode numbers as floats.
Figure = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class LedgerStatus(Wire, frozen=True, omit_defaults=False):
    """The size of the ledger at the last write; less later is a loss, not a fresh start. No figure here
    ever exceeds one that the ledger had."""

    shards: int = 0  # NOT_KNOWN where it could not be read
    recorded: Figure = 0  # nodes
    writes: tuple[Figure, ...] = ()  # by shard: the write that it was made by
    done_run: str = ""  # the run that every desired node had succeeded in; empty while one had not
    done_at: str | None = None  # since when


NOT_KNOWN: Final = -1


class FormerRevision(Wire, frozen=True):
    """The revision that an older version gave to a template, by the hash that it has now."""

    template: str
    revision: str


class PostedEvent(Wire, frozen=True):
    """An Event that is not posted again."""

    reason: str
    time: str


class Rollout(Wire, frozen=True, omit_defaults=False):
    """The last requests by annotation, and the Events of the rollout since, by reason."""

    rerun_at: str | None = None
    resume_at: str | None = None
    start_time: str | None = None  # of the clock of rolloutDeadlineSeconds
    events: tuple[PostedEvent, ...] = ()


class Status(Wire, frozen=True, omit_defaults=False):
    """DaemonTask status. On every write: desired = succeeded + failed + active + pending + blocked."""

    observed_generation: int = -1
    current_revision: str = ""  # of the template and of its data, or EcsSpec.revision
    former_revision: FormerRevision | None = None
    completed_revision: str = ""  # currentRevision once its rollout is complete, else empty
    finished_rollout: str = ""  # revision, tick and re-run of which every node has ended
    passed_canary: str = ""  # revision, tick and re-run of which the canary has passed, likewise
    conditions: tuple[Condition, ...] = ()
    desired: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    pending: int = 0
    blocked: int = 0
    start_time: str | None = None
    last_schedule_time: str | None = None
    next_schedule_time: str | None = None
    observed_schedule: ObservedSchedule | None = None
    schedule_history: tuple[EndedTick, ...] = ()  # newest first
    last_completion_time: str | None = None
    failed_nodes: tuple[FailedNode, ...] = ()
    failed_nodes_omitted: int = 0  # how many more than failedNodes lists
    blocked_nodes: tuple[BlockedNode, ...] = ()
    blocked_nodes_omitted: int = 0
    slots: SlotStatus | None = None  # where parallelism or a budget limits how many nodes run at once
    node_gate: GateStatus | None = None  # where spec.nodeGate is set
    results: tuple[ResultStatus, ...] = ()
    result_errors: tuple[ResultError, ...] = ()
    result_errors_omitted: int = 0
    ledger: LedgerStatus = LedgerStatus()
    rollout: Rollout | None = None
    ecs: tuple[EcsCluster, ...] = ()
    ecs_omitted: int = 0


class DaemonTask(msgspec.Struct, frozen=True):
    """The whole object, as a pass reads it."""

    metadata: WireMeta
    spec: Spec
    status: Status = Status()


def gate_of(meta: WireMeta, spec: Spec) -> str:
    """The key of the taint that the task removes; "" = none. A task can name no other one, and the names of
    all tasks fit into it."""
    return f"{meta.namespace}.gate.{GROUP}/{meta.name}" if spec.node_gate is not None else ""


def drainer_of(meta: WireMeta, spec: Spec) -> str:
    """The UID in the mark on nodes that the task cordons; "" = it cordons none."""
    return meta.uid if spec.drain is not None else ""


def resolve(value: IntOrPercent, total: int, *, up: bool) -> int:
    """An int as it is; a percentage of `total`, rounded up or down. Raises ValueError for any other text."""
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)
