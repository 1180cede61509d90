"""S3AggregatedRefresh: the structs behind crds/s3aggregatedrefreshes.yaml (a test keeps the two equal), all
but the members of spec.target.

Pure data. Field semantics are documented in the CRD, which is the source of truth; here stand only types and
defaults. Durations are text, read by api/durations.py.
"""

from typing import Literal

import msgspec

from caretaker.api.aws import AwsSpec
from caretaker.api.conditions import Condition
from caretaker.api.objects import Wire, WireMeta

MAX_TARGETS = 64


class SQSSource(Wire, frozen=True):
    """The queue that the events come by."""

    queue_url: str = msgspec.field(name="queueURL")
    envelope: Literal["Auto", "S3", "SNS", "EventBridge"] = "Auto"
    wait_time: str = "20s"
    visibility_timeout: str = "60s"
    malformed: Literal["DeadLetter", "RefreshAll", "Discard"] = "DeadLetter"


class Source(Wire, frozen=True):
    """Where events come from."""

    sqs: SQSSource


class Filter(Wire, frozen=True):
    """Which events count. An empty list excludes nothing."""

    buckets: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    exclude_prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    exclude_suffixes: tuple[str, ...] = ()
    events: tuple[Literal["ObjectCreated", "ObjectRemoved", "LifecycleExpiration"], ...] = (
        "ObjectCreated",
        "ObjectRemoved",
        "LifecycleExpiration",
    )
    ignore_principals: tuple[str, ...] = ()


class Debounce(Wire, frozen=True):
    """When a refresh starts."""

    quiet_period: str = "30s"
    max_delay: str = "10m"
    min_interval: str = "60s"


class Resync(Wire, frozen=True):
    """Refreshes that no event asks for."""

    on_start: bool = True
    interval: str = "0s"


class CostSpec(Wire, frozen=True):
    """The estimate of costs. Prices of 1,000 requests are text, which s3refresh/costs.py reads."""

    list_price: str = "0.005"
    head_price: str = "0.0004"
    max_estimated_cost_per_day: str | None = None


class TargetSpec(Wire, frozen=True):
    """The target of refreshes: exactly one member. Each is declared by the module that refreshes it;
    s3refresh/targets/__init__.py has the Spec with all of them."""


class Retry(Wire, frozen=True):
    """Full jitter between the two; it never gives up."""

    initial: str = "30s"
    max: str = "15m"


class Spec(Wire, frozen=True):
    """S3AggregatedRefresh spec."""

    aws: AwsSpec
    source: Source
    target: TargetSpec
    suspend: bool = False
    filter: Filter = Filter()
    debounce: Debounce = Debounce()
    resync: Resync = Resync()
    retry: Retry = Retry()
    cost: CostSpec | None = None
    on_delete: Literal["Discard", "Flush"] = "Discard"


class QueueStatus(Wire, frozen=True, omit_defaults=False):
    """The state of the queues by SQS, at most once a minute."""

    visible: int = 0
    in_flight: int = 0
    dlq_visible: int = 0
    dlq_covered: int = 0  # how many of those arrived before a refresh of everything
    checked_at: str | None = None
    dlq_arn: str = msgspec.field(default="", name="dlqARN")  # of the dead-letter queue with these figures


class RequestsStatus(Wire, frozen=True, omit_defaults=False):
    """The requests by annotation that were taken."""

    refresh_at: str | None = None
    folders_at: str | None = None
    done_at: str | None = None
    taken: tuple[str, ...] = ()  # hashes of the entries of refresh-folders


class LaterStatus(Wire, frozen=True):
    """The waiting scope: everything, single folders, and trees (folders with all below them)."""

    since: str
    all: bool = False
    folders: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    requested: bool = False


class ScopeStatus(LaterStatus, frozen=True):
    """The dirty scope and the later changes that wait behind it."""

    closed: bool = False
    later: LaterStatus | None = None
    max_folders: int = 0


class ClaimStatus(Wire, frozen=True):
    """A call, written before it is made."""

    id: str
    owner: str
    started_at: str
    since: str
    folders: tuple[str, ...]
    recursive: bool = False
    attempt: int = 1
    requested: bool = False


class InFlightStatus(Wire, frozen=True):
    """A refresh that was accepted and has not been heard to end."""

    notification_id: str = msgspec.field(name="notificationID")
    accepted_at: str
    folders: tuple[str, ...]
    recursive: bool = False
    requested: bool = False


class LastStatus(Wire, frozen=True):
    """The last call."""

    requested_at: str | None = None
    accepted_at: str | None = None
    completed_at: str | None = None
    full_at: str | None = None
    full_seconds: int | None = None
    duration_seconds: int | None = None
    folders: int = 0
    result: Literal["", "Succeeded", "Failed", "Assumed", "Lost"] = ""
    endpoint: str = ""


class FailureStatus(Wire, frozen=True):
    """Calls that failed one after the other."""

    count: int
    code: str = ""
    message: str = ""
    next_attempt_at: str | None = None


class TargetStatus(Wire, frozen=True):
    """The write-ahead record of one target."""

    id: str
    phase: Literal["Clean", "Debouncing", "Due", "Claimed", "InFlight", "Backoff"] = "Clean"
    location: str = ""
    dirty: ScopeStatus | None = None
    claim: ClaimStatus | None = None
    in_flight: InFlightStatus | None = None
    last: LastStatus | None = None
    failure: FailureStatus | None = None


class BucketStatus(Wire, frozen=True):
    """The objects of one bucket by CloudWatch, as last asked for."""

    bucket: str
    region: str
    targets: int = 1
    objects: int | None = None
    counted_at: str | None = None
    asked_at: str | None = None
    failures: int = 0
    problem: str = ""


class CostStatus(Wire, frozen=True, omit_defaults=False):
    """The estimated cost of refreshes."""

    buckets: tuple[BucketStatus, ...] = ()
    refresh_cost: str | None = None
    refresh_seconds: int | None = None
    min_interval: str | None = None


class Status(Wire, frozen=True, omit_defaults=False):
    """S3AggregatedRefresh status."""

    observed_generation: int = -1
    conditions: tuple[Condition, ...] = ()
    queue: QueueStatus = QueueStatus()
    requests: RequestsStatus | None = None
    cost: CostStatus | None = None
    targets: tuple[TargetStatus, ...] = ()


class S3AggregatedRefresh(msgspec.Struct, frozen=True):
    """The whole object, as a pass reads it."""

    metadata: WireMeta
    spec: Spec
    status: Status = Status()
