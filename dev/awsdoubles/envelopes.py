"""Wire a bucket to a queue, once for each way in which S3's events can reach SQS.

Inputs: the address of MiniStack (or of AWS itself). The names of topic and rule follow from those of
bucket and queue, so several buckets may feed one queue, and one bucket several queues.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from awsdoubles.clients import REGION, client

EVENTS: Final = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*")
DAY: Final = 24 * 3600
# Nobody may send but these services: AWS's default refuses them, and MiniStack's would not.
SENDERS: Final = ("s3.amazonaws.com", "sns.amazonaws.com", "events.amazonaws.com")


class Envelope(StrEnum):
    """What stands around an event when it is received."""

    S3 = "s3"
    SNS = "sns"
    SNS_RAW = "sns-raw"
    EVENTBRIDGE = "eventbridge"


@dataclass(frozen=True)
class Queue:
    """A queue and, with a redrive policy, its dead-letter queue."""

    url: str
    arn: str
    dead_letters: str = ""  # URL


class Wiring:
    """Makes queues and notifications; its clients are public, tests need them too. Close it when done.

    `sqs_url` may be the address of a fault proxy, or of another SQS whose queues S3 cannot reach.
    """

    def __init__(self, url: str, *, region: str = REGION, sqs_url: str = "") -> None:
        self.region = region
        self.s3: Any = client("s3", url, region=region)
        self.sqs: Any = client("sqs", sqs_url or url, region=region)
        self.sns: Any = client("sns", url, region=region)
        self.events: Any = client("events", url, region=region)

    def close(self) -> None:
        """Close the clients' connections."""
        for one in (self.s3, self.sqs, self.sns, self.events):
            one.close()

    def bucket(self, name: str, *, versioned: bool = False) -> str:
        """Create a bucket."""
        self.s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": self.region})
        if versioned:
            self.s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    def queue(self, name: str, *, visibility: int = 60, max_receives: int | None = 5) -> Queue:
        """Create a Standard queue; unless `max_receives` is None, with a dead-letter queue."""
        attributes = {"VisibilityTimeout": str(visibility), "MessageRetentionPeriod": str(4 * DAY)}
        dead_letters = ""
        if max_receives is not None:
            dead_letters = self.sqs.create_queue(QueueName=f"{name}-dlq")["QueueUrl"]
            redrive = {"deadLetterTargetArn": self.arn_of(dead_letters), "maxReceiveCount": max_receives}
            attributes["RedrivePolicy"] = json.dumps(redrive)
        url = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return Queue(url, self.arn_of(url), dead_letters)

    def arn_of(self, queue_url: str) -> str:
        """A queue's ARN."""
        found = self.sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
        return str(found["Attributes"]["QueueArn"])

    def connect(
        self, bucket: str, queue: Queue, envelope: Envelope = Envelope.S3, events: Sequence[str] = EVENTS
    ) -> None:
        """Send the bucket's events to the queue; replaces the bucket's notifications, as S3 does."""
        self._allow(queue)
        if envelope is Envelope.S3:
            self._notify(bucket, QueueConfigurations=[{"QueueArn": queue.arn, "Events": list(events)}])
        elif envelope is Envelope.EVENTBRIDGE:
            self._notify(bucket, EventBridgeConfiguration={})
            self._rule(bucket, queue)
        else:
            topic = self._topic(bucket, queue, raw=envelope is Envelope.SNS_RAW)
            self._notify(bucket, TopicConfigurations=[{"TopicArn": topic, "Events": list(events)}])

    def _allow(self, queue: Queue) -> None:
        statement = {
            "Effect": "Allow",
            "Principal": {"Service": list(SENDERS)},
            "Action": "sqs:SendMessage",
            "Resource": queue.arn,
        }
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        self.sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"Policy": json.dumps(policy)})

    def _notify(self, bucket: str, **configuration: Any) -> None:
        self.s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)

    def _topic(self, bucket: str, queue: Queue, *, raw: bool) -> str:
        name = f"{bucket}-to-{_name(queue)}"[:256]
        topic = str(self.sns.create_topic(Name=name)["TopicArn"])
        self.sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=queue.arn,
            Attributes={"RawMessageDelivery": "true" if raw else "false"},
        )
        return topic

    def _rule(self, bucket: str, queue: Queue) -> None:
        name = f"{bucket}-to-{_name(queue)}"[:64]
        pattern = {
            "source": ["aws.s3"],
            "detail-type": ["Object Created", "Object Deleted"],
            "detail": {"bucket": {"name": [bucket]}},
        }
        self.events.put_rule(Name=name, EventPattern=json.dumps(pattern))
        self.events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": queue.arn}])


def _name(queue: Queue) -> str:
    return queue.arn.rsplit(":", 1)[1]
