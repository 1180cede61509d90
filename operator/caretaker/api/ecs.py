"""spec.ecs and status.ecs of a DaemonTask. Pure data; crds/daemontasks.yaml documents the fields.

Names are those of the Amazon ECS API reference.
"""

from typing import Final, Literal

import msgspec

from caretaker.api.aws import AwsSpec
from caretaker.api.hashing import h10
from caretaker.api.objects import Wire

MAX_CLUSTERS: Final = 100  # status.ecs


class EcsAws(Wire, frozen=True):
    """Identity, region and endpoints of calls to AWS: the fields of spec.aws of the other kinds, Secrets
    apart."""

    region: str
    role_arn: str = msgspec.field(name="roleARN", default="")
    external_id: str = msgspec.field(name="externalID", default="")
    endpoint_urls: dict[str, str] = msgspec.field(name="endpointURLs", default_factory=dict)

    @property
    def spec(self) -> AwsSpec:
        """The struct that the AWS layer knows."""
        return AwsSpec(self.region, self.role_arn, self.external_id, endpoint_urls=self.endpoint_urls)


class EcsEvents(Wire, frozen=True):
    """The queue to which a rule of EventBridge sends the events of container instances."""

    sqs_queue_url: str = msgspec.field(name="sqsQueueURL")


class EcsSpec(Wire, frozen=True):
    """spec.ecs. No clusters = every one that runs the service."""

    aws: EcsAws
    service: str
    events: EcsEvents
    clusters: tuple[str, ...] = ()
    count_instances: Literal["Registered", "Active"] = "Active"
    max_count: int | None = None
    max_decrease_percent: int = 50
    resync_seconds: int = 300

    @property
    def revision(self) -> str:
        """Identifies the account and the service of status. The other fields say how its count is set."""
        aws = self.aws
        return h10(aws.region, aws.role_arn, aws.endpoint_urls.get("ecs", ""), self.service)


class EcsCluster(Wire, frozen=True):
    """One cluster as it was looked at last. `reason`, `message`: why its service is left as it is, or a
    doubt about it."""

    cluster: str
    desired_count: int | None = None
    running_count: int | None = None
    registered_container_instances: int | None = None  # or those that are ACTIVE, as countInstances says
    last_event_time: str | None = None
    last_update_time: str | None = None
    last_calls: int = 0
    reason: str = ""
    message: str = ""
