"""IMDSPolicy: the structs behind crds/imdspolicies.yaml (a test keeps the two equal).

Pure data. Names and values of options are EC2's own (EC2 API reference, InstanceMetadataOptionsRequest).
Durations are text, read by api/durations.py.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from caretaker.api.aws import AwsSpec
from caretaker.api.conditions import Condition
from caretaker.api.objects import WireMeta

MAX_EXCEPTIONS = 50
MAX_GROUPS = 500
MAX_MEND = 4096  # characters of one; together as many as MAX_MENDS
MAX_MENDS = 262144
MAX_CANARY = 50  # instances of one group's canary
MAX_CHANGED = 1000  # instances that are watched after their change
MAX_PASSED = 1000

Switch = Literal["enabled", "disabled"]
# An option, as safety.allowLoosening names what a change may open (a higher hop limit, optional tokens, the
# others switched on), and safety.allowTightening what it may close.
Permit = Literal["HopLimit", "Tokens", "Endpoint", "Tags", "IPv6"]
Expectation = Literal["PodReachable", "PodBlocked", "Any"]
GroupKind = Literal["EKSManagedNodegroup", "KarpenterNodePool", "AutoScalingGroup"]
SourceState = Literal[
    "Compliant", "Drifted", "Unset", "EKSOwned", "IaCOwned", "Ephemeral", "Unsupported", "Unknown"
]


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of what is decoded from and encoded to the API."""


class Options(Wire, frozen=True):
    """Metadata options; None is not managed in a spec, not known of an instance."""

    http_put_response_hop_limit: int | None = None
    http_tokens: Literal["optional", "required"] | None = None
    http_endpoint: Switch | None = None
    http_protocol_ipv6: Switch | None = None
    instance_metadata_tags: Switch | None = None

    def given(self) -> Iterator[tuple[str, Any]]:
        """(field, value) of what is set, fields as in the API."""
        for field, name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, field)
            if value is not None:
                yield name, value


class Requirement(Wire, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True):
    """metav1.LabelSelector. Empty selects everything."""

    match_labels: dict[str, str] = {}
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
    """As whom EC2 is called: api/aws.py without Secrets, which have a namespace and this kind has none."""

    region: str = ""
    role_arn: str = msgspec.field(name="roleARN", default="")
    external_id: str = msgspec.field(name="externalID", default="")
    endpoint_urls: dict[str, str] = msgspec.field(name="endpointURLs", default_factory=dict)

    def within(self, region: str) -> AwsSpec:
        """The struct that all kinds share, for calls in this region."""
        return AwsSpec(region, self.role_arn, self.external_id, endpoint_urls=self.endpoint_urls)


class Canary(Wire, frozen=True):
    """Which instances of each group are changed first, how long they have to stand, and what becomes of those
    that fail. 0 instances: there is no canary, and nothing is watched."""

    instances: int = 1
    soak: str = "2m"
    on_failure: Literal["Keep", "Restore"] = "Keep"


class Safety(Wire, frozen=True):
    """What Enforce may do, and when it stops."""

    max_hop_limit: int = 3
    allow_loosening: tuple[Permit, ...] = ()
    allow_tightening: tuple[Permit, ...] = ()
    canary: Canary = Canary()
    max_changes_per_minute: int = 60
    max_drift_percent: int = 100
    stop_after_consecutive_failures: int = 5


class Verification(Wire, frozen=True):
    """Whether some nodes of each group are probed from inside a pod, and what is to be found there."""

    probe: bool = False
    nodes_per_group: int = 3
    expect: Expectation = "PodReachable"
    max_latency_milliseconds: int = 200
    interval: str = "24h"


class Spec(Wire, frozen=True):
    """What is desired."""

    options: Options
    mode: Literal["Audit", "Enforce"] = "Audit"
    priority: int = 100
    suspend: bool = False
    aws: Aws = Aws()
    selector: Selector = Selector()
    safety: Safety = Safety()
    verification: Verification = Verification()
    resync_interval: str = "15m"
    pending_timeout: str = "2m"


class Summary(Wire, frozen=True, omit_defaults=False):
    """Nodes that the policy means, each counted once; `overridden` counts again those where another policy
    wins a field."""

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
    """What probes measured in a group. `p95` of those that were answered."""

    probed: int = 0
    reachable: int = 0
    p95_milliseconds: float | None = None


class SourceStatus(Wire, frozen=True):
    """What launches a group's future nodes. `mend`: shell commands; "" = none is needed, or there is none."""

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
    """One field of one node that is not as it should be, or why a node is not looked at."""

    node: str
    reason: str
    instance: str = ""
    field: str = ""
    current: str = ""
    desired: str = ""
    message: str = ""
    since: str | None = None


class PlanStatus(Wire, frozen=True, omit_defaults=False):
    """What would have to change: instances by Enforce, what launches them by somebody else."""

    instances: int = 0
    launch_templates: int = 0
    ec2_node_classes: int = msgspec.field(name="ec2NodeClasses", default=0)


class FieldChange(Wire, frozen=True):
    """One option, from one value to another, as text; `before` is "unknown" where EC2 does not tell it."""

    field: str
    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")


class ChangedInstance(Wire, frozen=True):
    """One instance that may have been sent a change.

    at           when, or when its canary passed
    applied      it was read so from EC2
    ready_since  the Ready condition's lastTransitionTime of its Node: compared, never ordered; "" = the Node
                 was not seen Ready since
    unready      its Node was Ready, and is not any more
    restored     it may have been sent the values from before
    """

    instance: str
    node: str
    at: str
    applied: bool = False
    ready_since: str = ""
    unready: bool = False
    restored: bool = False


class ChangedGroup(Wire, frozen=True):
    """Instances of one node group that are sent the same changes. No kind and no name: of no group."""

    kind: str
    name: str
    changes: tuple[FieldChange, ...]
    instances: tuple[ChangedInstance, ...]


class GroupCanary(ChangedGroup, frozen=True):
    """The instances of a group that are changed first. `since`: of the phase."""

    phase: Literal["Changing", "Soaking", "Failed"]
    started_at: str
    since: str
    message: str = ""


class PassedChange(Wire, frozen=True):
    """A change that a group's canary has stood. `proved`: by a probe, too."""

    kind: str
    name: str
    field: str
    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")
    at: str
    proved: bool = False


class CanaryStatus(Wire, frozen=True, omit_defaults=False):
    """All canaries. The first five fields are of all that run, or of the last that passed: `phase` is the one
    of the least advanced."""

    generation: int
    instances: tuple[str, ...]
    phase: Literal["Failed", "Changing", "Soaking", "Passed"]
    started_at: str
    since: str
    groups: tuple[GroupCanary, ...] = ()
    passed: tuple[PassedChange, ...] = ()


class BreakerStatus(Wire, frozen=True, omit_defaults=False):
    """Enforce has stopped: why, and by which instance. `failures`: how many there were in a row."""

    generation: int
    failures: int
    opened_at: str
    message: str = ""
    reason: str = "ChangesFailed"
    instance: str = ""
    node: str = ""


class ScanStatus(Wire, frozen=True, omit_defaults=False):
    """When EC2 was asked what stands above; written only with a change."""

    at: str | None = None


class Status(Wire, frozen=True, omit_defaults=False):
    """IMDSPolicy status. It is written as a merge patch: an object that left something out would keep what
    stands there."""

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
    last_scan: ScanStatus = ScanStatus()


class IMDSPolicy(msgspec.Struct, frozen=True):
    """The whole object, as a pass reads it."""

    metadata: WireMeta
    spec: Spec
    status: Status = Status()
