"""Conditions as kstatus reads them, each type and reason that caretaker sets, and Events as values.

Rules: Ready summarises and is always present. Reconciling and Stalled are abnormal-true: present only
while True. lastTransitionTime moves only when a condition's status changes
(https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md).
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

ConditionStatus = Literal["True", "False", "Unknown"]
ConditionState = tuple[ConditionStatus, str, str]  # (status, reason, message)

# The summary and the two abnormal-true types of kstatus.
READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
# Of every kind, abnormal-true.
CPU_THROTTLED: Final = "CPUThrottled"
# DaemonTask's own.
SPEC_VALID: Final = "SpecValid"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
SUSPENDED: Final = "Suspended"
# S3AggregatedRefresh's own.
QUEUE_REACHABLE: Final = "QueueReachable"
TARGETS_RESOLVED: Final = "TargetsResolved"
CAUGHT_UP: Final = "CaughtUp"
MALFORMED_MESSAGES: Final = "MalformedMessages"
INVALID_REQUEST: Final = "InvalidRequest"
COST_ESTIMATED: Final = "CostEstimated"

# IMDSPolicy's own.
PERMISSION_OK: Final = "PermissionOK"
COMPLIANT: Final = "Compliant"
CONFLICTED: Final = "Conflicted"
SLOW_AND_OPEN: Final = "SlowAndOpen"
ENFORCING: Final = "Enforcing"
THROTTLED: Final = "Throttled"
VERIFIED: Final = "Verified"
SOURCES_COMPLIANT: Final = "SourcesCompliant"

# Kubernetes' own limit on a condition's message.
MAX_MESSAGE: Final = 32768


class CpuReason:
    """The reason of CPUThrottled."""

    SHARE_EXCEEDED: Final = "CPUShareExceeded"


class Reason:
    """CamelCase reasons, each in this one place."""

    ROLLING_OUT: Final = "RollingOut"
    ROLLOUT_COMPLETE: Final = "RolloutComplete"
    SUCCEEDED: Final = "Succeeded"
    RUNNING: Final = "Running"
    NO_MATCHING_NODES: Final = "NoMatchingNodes"
    NODES_FAILED: Final = "NodesFailed"
    NODES_BLOCKED: Final = "NodesBlocked"
    PAUSED: Final = "Paused"
    SUSPENDED: Final = "Suspended"
    AWAITING_SCHEDULE: Final = "AwaitingSchedule"
    HELD_BY_BUDGET: Final = "HeldByBudget"
    AWAITING_DEPENDENCY: Final = "AwaitingDependency"
    DEPENDENCY_CYCLE: Final = "DependencyCycle"
    DATA_UNAVAILABLE: Final = "ReferencedDataUnavailable"
    HELD_BY_GROUP: Final = "HeldByGroup"
    LARGE_PODS: Final = "LargePods"
    INVALID_SPEC: Final = "InvalidSpec"
    ACCEPTED: Final = "Accepted"
    NOT_CHECKED: Final = "NotChecked"
    LEDGER_LOST: Final = "LedgerLost"
    LEDGER_CORRUPT: Final = "LedgerCorrupt"
    NAME_CONFLICT: Final = "NameConflict"
    PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
    ROLLOUT_DEADLINE_EXCEEDED: Final = "RolloutDeadlineExceeded"
    LEDGER_WRITE_REFUSED: Final = "LedgerWriteRefused"
    POD_CREATION_REFUSED: Final = "PodCreationRefused"
    POD_DELETION_REFUSED: Final = "PodDeletionRefused"
    GATE_REFUSED: Final = "GateRefused"
    DRAIN_REFUSED: Final = "DrainRefused"
    PERMISSION_DENIED: Final = "PermissionDenied"
    INVALID_ANNOTATION: Final = "InvalidAnnotation"
    INVALID_RESULTS: Final = "InvalidResults"


class EcsReason:
    """Reasons of a DaemonTask's ECS target."""

    IN_STEP: Final = "InStep"
    STARTING: Final = "Starting"
    SUSPENDED: Final = "Suspended"
    INVALID_SPEC: Final = "InvalidSpec"
    ACCEPTED: Final = "Accepted"
    NOT_GRANTED: Final = "NotGranted"
    ACCESS_DENIED: Final = "AccessDenied"
    NO_IDENTITY: Final = "NoIdentity"
    THROTTLED: Final = "Throttled"
    UNREACHABLE: Final = "Unreachable"
    REQUEST_REFUSED: Final = "RequestRefused"
    NO_CLUSTERS: Final = "NoClusters"
    CLUSTER_NOT_FOUND: Final = "ClusterNotFound"
    SERVICE_NOT_FOUND: Final = "ServiceNotFound"
    SERVICE_INACTIVE: Final = "ServiceInactive"
    DAEMON_SERVICE: Final = "DaemonService"
    FARGATE_SERVICE: Final = "FargateService"
    MANAGED_SCALING: Final = "ManagedScaling"
    SEVERAL_CAPACITY_PROVIDERS: Final = "SeveralCapacityProviders"
    PLACEMENT_BY_TASKS: Final = "PlacementByTasks"
    CONFIRMING_DECREASE: Final = "ConfirmingDecrease"
    NO_DISTINCT_INSTANCE: Final = "NoDistinctInstance"
    MAX_COUNT_REACHED: Final = "MaxCountReached"
    DRAIN_MAY_HANG: Final = "DrainMayHang"
    TASK_DEFINITION_UNREAD: Final = "TaskDefinitionUnread"
    QUEUE_NOT_FOUND: Final = "QueueNotFound"
    REACHABLE: Final = "Reachable"
    NOT_CHECKED: Final = "NotChecked"
    UNREADABLE: Final = "Unreadable"


class RefreshReason:
    """S3AggregatedRefresh's reasons."""

    CONSUMING: Final = "Consuming"
    STARTING: Final = "Starting"
    FLUSHING: Final = "Flushing"
    SUSPENDED: Final = "Suspended"
    INVALID_SPEC: Final = "InvalidSpec"
    NOT_GRANTED: Final = "NotGranted"
    CREDENTIALS_UNAVAILABLE: Final = "CredentialsUnavailable"
    QUEUE_CONFLICT: Final = "QueueConflict"
    QUEUE_UNREACHABLE: Final = "QueueUnreachable"
    QUEUE_NOT_FOUND: Final = "QueueNotFound"
    QUEUE_UNSUITABLE: Final = "QueueUnsuitable"
    ACCESS_DENIED: Final = "AccessDenied"
    NO_IDENTITY: Final = "NoIdentity"
    REACHABLE: Final = "Reachable"
    NOT_CHECKED: Final = "NotChecked"
    RESOLVED: Final = "Resolved"
    NO_TARGETS: Final = "NoTargets"
    TARGETS_UNRESOLVED: Final = "TargetsUnresolved"
    TARGET_GONE: Final = "TargetGone"
    REFRESH_FAILING: Final = "RefreshFailing"
    COMPLETION_LOST: Final = "CompletionLost"
    IN_FLIGHT_LIMIT: Final = "InFlightLimit"
    BACKLOG: Final = "Backlog"
    DEAD_LETTERS: Final = "DeadLetters"
    WAITING: Final = "Waiting"
    REFRESHING: Final = "Refreshing"
    UP_TO_DATE: Final = "UpToDate"
    UNREADABLE: Final = "Unreadable"
    PERMISSION_DENIED: Final = "PermissionDenied"
    INVALID_ANNOTATION: Final = "InvalidAnnotation"
    # Of spec.cost.
    ESTIMATED: Final = "Estimated"
    INTERVAL_WIDENED: Final = "IntervalWidened"
    OVER_BUDGET: Final = "OverBudget"
    COST_UNKNOWN: Final = "CostUnknown"


class PolicyReason:
    """IMDSPolicy's reasons."""

    AUDITED: Final = "Audited"
    SUSPENDED: Final = "Suspended"
    INVALID_SPEC: Final = "InvalidSpec"
    NOT_GRANTED: Final = "NotGranted"
    CONFLICT: Final = "Conflict"
    ACCESS_DENIED: Final = "AccessDenied"
    NO_IDENTITY: Final = "NoIdentity"
    NOT_ASKED: Final = "NotAsked"
    PERMITTED: Final = "Permitted"
    COMPLIANT: Final = "Compliant"
    DRIFTED: Final = "Drifted"
    NO_MATCHING_NODES: Final = "NoMatchingNodes"
    UNKNOWN: Final = "Unknown"
    PENDING: Final = "Pending"
    HOP_LIMIT_ONE: Final = "HopLimitOneTokensOptional"
    IMDSV1_OPEN: Final = "IMDSv1ReachableFromPods"
    # Of Enforce.
    ENFORCED: Final = "Enforced"
    CHANGING: Final = "Changing"
    CANARY_CHANGING: Final = "CanaryChanging"
    CANARY_SOAKING: Final = "CanarySoaking"
    CANARY_PASSED: Final = "CanaryPassed"
    DRIFT_TOO_WIDE: Final = "DriftTooWide"
    BREAKER_OPEN: Final = "BreakerOpen"
    BLOCKED_BY_ACCOUNT_POLICY: Final = "BlockedByAccountPolicy"
    WOULD_CUT_CREDENTIALS: Final = "WouldCutOwnCredentials"
    NODE_NOT_READY: Final = "NodeNotReady"
    LOOSENING_NOT_ALLOWED: Final = "LooseningNotAllowed"
    TIGHTENING_NOT_ALLOWED: Final = "TighteningNotAllowed"
    HOP_LIMIT_TOO_LOW: Final = "HopLimitTooLow"
    TAG_KEYS_UNFIT: Final = "TagKeysUnfit"
    # Of spec.tokenGate. Waiting ends by time alone.
    IMDSV1_IN_USE: Final = "IMDSv1InUse"
    IMDSV1_WAITING: Final = "IMDSv1Waiting"
    IMDSV1_USE_UNKNOWN: Final = "IMDSv1UseUnknown"
    INSTANCES_FAILING: Final = "InstancesFailing"
    FIGHTING: Final = "Fighting"
    NOT_APPLIED: Final = "NotApplied"
    OTHER_CLUSTER: Final = "OtherCluster"
    SAME_PROVIDER_ID: Final = "SameProviderID"
    THROTTLED: Final = "RequestLimitExceeded"
    # Of the probe.
    PROVED: Final = "Proved"
    PROBING: Final = "Probing"
    NOT_PROVED: Final = "NotProved"
    NOT_PROBEABLE: Final = "NotProbeable"
    PROBE_UNAVAILABLE: Final = "ProbeUnavailable"
    SET_BUT_UNREACHABLE: Final = "SetButUnreachable"
    STILL_REACHABLE: Final = "StillReachable"
    SLOW: Final = "Slow"
    PERMISSION_DENIED: Final = "PermissionDenied"
    SOURCES_COMPLIANT: Final = "SourcesCompliant"
    SOURCES_DRIFTED: Final = "SourcesDrifted"
    LAUNCHES_FAIL: Final = "LaunchesFail"
    SOURCES_UNKNOWN: Final = "SourcesUnknown"


class BreakerReason:
    """Values of status.breaker.reason of an IMDSPolicy."""

    CHANGES_FAILED: Final = "ChangesFailed"
    CHANGE_DENIED: Final = "ChangeDenied"
    CANARY_LOST: Final = "CanaryLost"
    CANARY_SET_BACK: Final = "CanarySetBack"
    CANARY_NOT_READY: Final = "CanaryNotReady"
    CANARY_UNREACHABLE: Final = "CanaryUnreachable"
    CANARY_REJECTED: Final = "CanaryRejectedIMDSv1"
    INSTANCE_LOST: Final = "InstanceLost"
    INSTANCE_SET_BACK: Final = "InstanceSetBack"


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """metav1.Condition."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The condition of that type, or None."""
    for condition in conditions:
        if condition.type == kind:
            return condition
    return None


def merge(previous: Iterable[Condition], wanted: Iterable[Condition], now: str) -> tuple[Condition, ...]:
    """`wanted` with times: an unchanged status keeps its lastTransitionTime, a changed one gets `now`.

    Types that are in `previous` and not in `wanted` are dropped: a planner names all it owns each time.
    """
    old = {c.type: c for c in previous}
    merged = []
    for condition in wanted:
        before = old.get(condition.type)
        kept = before is not None and before.status == condition.status and before.last_transition_time
        since = before.last_transition_time if before is not None and kept else now
        merged.append(
            msgspec.structs.replace(
                condition, message=condition.message[:MAX_MESSAGE], last_transition_time=since
            )
        )
    return tuple(merged)


class Event(msgspec.Struct, frozen=True):
    """A transition: `reason` in CamelCase, `message` for a person. runtime/events.py posts it."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class ObjectRef(msgspec.Struct, frozen=True):
    """The object that an Event is about. `namespace` is empty for a cluster-scoped one."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


# Annotations of users, in messages: a resource may have thousands, of any length.
NAMED: Final = 10  # errors of a kind that are named; a hint for a slip takes 0.1 ms
LONGEST: Final = 100  # characters of a key, name or value


def cut(text: str) -> str:
    """The text, shortened."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
