"""IMDSPolicy: the structs behind crds/imdspolicies.yaml (a test keeps the two equal).

Pure data. Names and values of options are EC2's own (EC2 API reference, InstanceMetadataOptionsRequest).
Durations are text, read by api/durations.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from caretaker.api.aws import AwsSpec
from caretaker.api.conditions import Condition
from caretaker.api.objects import Wire, WireMeta

MAX_EXCEPTIONS = 50
MAX_GROUPS = 500
MAX_COMMAND = 4096  # characters of one command; MAX_COMMANDS of all
MAX_COMMANDS = 262144
MAX_CANARY = 50  # instances in status.canary.instances
MAX_CANARIES = 1000  # instances of all canaries
MAX_CHANGED = 1000  # watched instances
MAX_PASSED = 1000
MAX_UNEXPECTED = 50

Switch = Literal["enabled", "disabled"]
# Values of safety.allowLoosening (a higher hop limit, optional tokens, the others enabled) and of
# safety.allowTightening (the opposite changes).
Permit = Literal["HopLimit", "Tokens", "Endpoint", "Tags", "IPv6"]
Expectation = Literal["PodReachable", "PodBlocked", "Any"]
GroupKind = Literal["EKSManagedNodegroup", "KarpenterNodePool", "AutoScalingGroup"]
# InUse: IMDSv1 is used; Waiting: more hours are needed; Unknown: data are missing.
TokenGateState = Literal["Quiet", "InUse", "Waiting", "Unknown"]
SourceState = Literal[
    "Compliant",
    "Drifted",
    "Unset",
    "LaunchesFail",
    "EKSOwned",
    "IaCOwned",
    "Ephemeral",
    "Unsupported",
    "Unknown",
]


class Options(Wire, frozen=True):
    """Metadata options. None: not set in a spec; unknown for an instance."""

    http_put_response_hop_limit: int | None = None
    http_tokens: Literal["optional", "required"] | None = None
    http_endpoint: Switch | None = None
    http_protocol_ipv6: Switch | None = None
    instance_metadata_tags: Switch | None = None

    def given(self) -> Iterator[tuple[str, Any]]:
        """(field, value) of the set options, fields as in the API."""
        for field, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, field)
            if value is not None:
                yield name, value


def ec2_name(option: str) -> str:
    """HttpTokens for httpTokens."""
    return option[0].upper() + option[1:]


def described_options(response: Mapping[str, Any]) -> Options:
    """Options in a response of EC2. Empty if one of them has an unknown value: as if EC2 did not describe
    them, so that they are read again and nothing is changed on their account."""
    try:
        return msgspec.convert(
            {name[:1].lower() + name[1:]: value for name, value in response.items()}, Options
        )
    except msgspec.ValidationError:
        return Options()


class Requirement(Wire, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    """metav1.LabelSelector. Empty selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class GroupTerm(Wire, frozen=True):
    """Node groups by kind and name; `*` and `?` in names."""

    kind: GroupKind
    names: tuple[str, ...]


class Selector(Wire, frozen=True):
    """Which nodes. All terms that are given must match; none = every EC2 node."""

    node_selector: LabelSelector | None = None
    groups: tuple[GroupTerm, ...] = ()
    exclude: LabelSelector | None = None


class Aws(Wire, frozen=True):
    """The identity that calls EC2: api/aws.py without Secrets, which have a namespace; this kind has none."""

    region: str = ""
    role_arn: str = msgspec.field(name="roleARN", default="")
    external_id: str = msgspec.field(name="externalID", default="")
    endpoint_urls: dict[str, str] = msgspec.field(name="endpointURLs", default_factory=dict)

    def within(self, region: str) -> AwsSpec:
        """The struct that all kinds share, for calls in this region."""
        return AwsSpec(region, self.role_arn, self.external_id, endpoint_urls=self.endpoint_urls)


class Canary(Wire, frozen=True):
    """The number of instances of each group that are changed first, their soak, and the action on failure.
    0 instances: no canary, and changed instances are not watched."""

    instances: int = 1
    soak: str = "2m"
    on_failure: Literal["Keep", "Restore"] = "Keep"


class Safety(Wire, frozen=True):
    """The limits of Enforce, and when it stops."""

    max_hop_limit: int = 3
    allow_loosening: tuple[Permit, ...] = ()
    allow_tightening: tuple[Permit, ...] = ()
    canary: Canary = Canary()
    max_changes_per_minute: int = 60
    max_drift_percent: int = 100
    stop_after_consecutive_failures: int = 5


class Verification(Wire, frozen=True):
    """Whether some nodes of each group are probed from a pod, and the expected result."""

    probe: bool = False
    nodes_per_group: int = 3
    expect: Expectation = "PodReachable"
    max_latency_milliseconds: int = 200
    interval: str = "24h"


class TokenGate(Wire, frozen=True):
    """Tokens are required of a group in which IMDSv1 was not used for so many days, by CloudWatch."""

    days: int = 7


class Spec(Wire, frozen=True):
    """The desired options and the selected nodes."""

    options: Options
    mode: Literal["Audit", "Enforce"] = "Audit"
    priority: int = 100
    suspend: bool = False
    aws: Aws = Aws()
    selector: Selector = Selector()
    safety: Safety = Safety()
    verification: Verification = Verification()
    token_gate: TokenGate | None = None
    resync_interval: str = "15m"
    pending_timeout: str = "2m"


class Summary(Wire, frozen=True, omit_defaults=False):
    """Selected nodes, each counted once; `overridden`: those where another policy wins a field."""

    nodes: int = 0
    compliant: int = 0
    drifted: int = 0
    pending: int = 0
    failed: int = 0
    unknown: int = 0
    gone: int = 0
    skipped: int = 0
    overridden: int = 0


class ProbeStatus(Wire, frozen=True):
    """Measurements of the probes of a group. `p95` of those that were answered."""

    probed: int = 0
    reachable: int = 0
    p95_milliseconds: float | None = None


class SourceStatus(Wire, frozen=True):
    """The source of a group's future nodes. `mend`: fix commands for a shell; "" = not needed, or none."""

    state: SourceState
    launch_template: str = ""
    version: str = ""
    node_class: str = ""
    auto_scaling_group: str = ""
    message: str = ""
    mend: str = ""


class GroupStatus(Wire, frozen=True, omit_defaults=False):
    """One node group."""

    kind: GroupKind
    name: str
    nodes: int = 0
    compliant: int = 0
    drifted: int = 0
    required_hop_limit: int | None = None
    probe: ProbeStatus | None = None
    source: SourceStatus | None = None


class ExceptionStatus(Wire, frozen=True):
    """One differing field of a node, or the reason for which a node is skipped."""

    node: str
    reason: str
    instance: str = ""
    field: str = ""
    current: str = ""
    desired: str = ""
    message: str = ""
    since: str | None = None


class PlanStatus(Wire, frozen=True, omit_defaults=False):
    """Pending changes: instances, by Enforce; sources of future nodes, by their owner."""

    instances: int = 0
    launch_templates: int = 0
    ec2_node_classes: int = msgspec.field(name="ec2NodeClasses", default=0)


class FieldChange(Wire, frozen=True):
    """One option with its old and new value, as text; `before` is "unknown" if EC2 does not report it."""

    field: str
    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")


class ChangedInstance(Wire, frozen=True):
    """An instance that was, or may have been, sent a change.

    at           time of the change, or when the canary passed
    applied      EC2 reported the change as applied; of a failed canary: a part of it is left
    ready_since  lastTransitionTime of the Node's Ready condition: compared for equality, never ordered; "" =
                 the Node has not been seen Ready since
    unready      the Node is NotReady, and counts as such
    restored     with onFailure Restore, it was read without the change after its canary had failed
    """

    instance: str
    node: str
    at: str
    applied: bool = False
    ready_since: str = ""
    unready: bool = False
    restored: bool = False


class ChangedGroup(Wire, frozen=True):
    """Instances of a node group with the same changes. Empty kind and name: nodes without a group."""

    kind: str
    name: str
    changes: tuple[FieldChange, ...]
    instances: tuple[ChangedInstance, ...]


class GroupCanary(ChangedGroup, frozen=True):
    """The canary of a group. `since`: start of the phase."""

    phase: Literal["Changing", "Soaking", "Failed"]
    started_at: str
    since: str
    message: str = ""


class PassedChange(Wire, frozen=True):
    """A change that passed on the canary of a group. `proved`: with a probe; `expected`: its expected result,
    "" = not recorded; `held`: nodes of the group on which another policy holds `before`, or held it and which
    were not deleted; `closed_to_pods`: the canary had hop limit 1 and required tokens afterwards."""

    kind: str
    name: str
    field: str
    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")
    at: str
    proved: bool = False
    expected: str = ""
    held: int = 0
    closed_to_pods: bool = False


class CanaryStatus(Wire, frozen=True, omit_defaults=False):
    """All canaries. The first five fields summarise the running ones, or the last that passed; `phase` is the
    least advanced."""

    generation: int
    instances: tuple[str, ...]
    phase: Literal["Failed", "Changing", "Soaking", "Passed"]
    started_at: str
    since: str
    groups: tuple[GroupCanary, ...] = ()
    passed: tuple[PassedChange, ...] = ()


class BreakerStatus(Wire, frozen=True, omit_defaults=False):
    """The open breaker: reason and instance. `failures`: number of consecutive failures."""

    generation: int
    failures: int
    opened_at: str
    message: str = ""
    reason: str = "ChangesFailed"
    instance: str = ""
    node: str = ""


class UnexpectedResult(Wire, frozen=True):
    """An unexpected result of the probe. `mark`: when it was requested, "" = with the task."""

    node: str
    instance: str
    verdict: str
    at: str
    mark: str = ""
    latency_milliseconds: float | None = None
    needed_hops: int | None = None
    imdsv1: Literal["Open", "Closed"] | None = None


class TokenGateGroup(Wire, frozen=True, omit_defaults=False):
    """A group with instances whose tokens are to be required. Empty kind and name: nodes without a group.
    `instances`: those that were judged; `using`: those that used IMDSv1."""

    kind: str
    name: str
    state: TokenGateState
    instances: int = 0
    using: int = 0
    message: str = ""


class TokenGateStatus(Wire, frozen=True, omit_defaults=False):
    """The last reading of CloudWatch: when it began, the number of metrics that it requested, and the `days`
    of its windows, for which the quiet groups are recorded."""

    read_at: str | None = None
    metrics: int = 0
    days: int = 0
    groups: tuple[TokenGateGroup, ...] = ()


class ScanStatus(Wire, frozen=True, omit_defaults=False):
    """Time of the EC2 read behind this status; written only with another change."""

    at: str | None = None


class Status(Wire, frozen=True, omit_defaults=False):
    """IMDSPolicy status. It is written as a merge patch: an object that left a field out would keep the
    field's stored value."""

    observed_generation: int = -1
    conditions: tuple[Condition, ...] = ()
    summary: Summary = Summary()
    plan: PlanStatus = PlanStatus()
    groups: tuple[GroupStatus, ...] = ()
    groups_omitted: int = 0
    exceptions: tuple[ExceptionStatus, ...] = ()
    exceptions_omitted: int = 0
    canary: CanaryStatus | None = None
    changed: tuple[ChangedGroup, ...] = ()
    breaker: BreakerStatus | None = None
    unexpected: tuple[UnexpectedResult, ...] = ()
    token_gate: TokenGateStatus | None = None
    last_scan: ScanStatus = ScanStatus()


class IMDSPolicy(msgspec.Struct, frozen=True):
    """The whole object, as a pass reads it."""

    metadata: WireMeta
    spec: Spec
    status: Status = Status()
