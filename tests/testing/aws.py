"""Fixtures of the AWS doubles: servers for the run, and for each test what it may call its own.

MiniStack and ElasticMQ start once, when a test first asks for them. Buckets and queues have names of
their own for each test; the doubles of Storage Gateway, EC2, ECS and CloudWatch and the fault proxy are
a test's own altogether.
boto3 clients make one attempt, so that a fault is seen and not retried away.
"""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from awsdoubles.clients import REGION, client
from awsdoubles.cloudwatch.server import CloudWatch
from awsdoubles.ec2.server import Ec2
from awsdoubles.ecs.server import Ecs
from awsdoubles.elasticmq import ElasticMq
from awsdoubles.envelopes import Envelope, Queue, Wiring
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.launch import Server
from awsdoubles.ministack import MiniStack
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.stack import environment

LONGEST_WAIT: Final = 20  # seconds, SQS's own


@dataclass(frozen=True)
class Source:
    """A bucket whose events reach a queue."""

    bucket: str
    queue: Queue


class Aws:
    """One test's AWS. `s3`, `sqs`, `sns`, `events` are boto3 clients; `url` is MiniStack's."""

    def __init__(self, url: str, region: str = REGION) -> None:
        self.url = url
        self.region = region
        self.wiring = Wiring(url, region=region)
        self.s3, self.sqs = self.wiring.s3, self.wiring.sqs
        self.sns, self.events = self.wiring.sns, self.wiring.events
        self._test = secrets.token_hex(4)
        self._made = 0
        self._clients: list[Any] = []

    def close(self) -> None:
        """Close all clients."""
        self.wiring.close()
        for one in self._clients:
            one.close()

    def client(self, service: str, url: str = "", *, region: str = "") -> Any:
        """A further client, closed after the test."""
        made = client(service, url or self.url, region=region or self.region)
        self._clients.append(made)
        return made

    def bucket(self, *keys: str, versioned: bool = False) -> str:
        """A new bucket with empty objects at these keys."""
        name = self.wiring.bucket(self._name("bucket"), versioned=versioned)
        self.put(name, *keys)
        return name

    def queue(self, **how: Any) -> Queue:
        """A new queue with a dead-letter queue; `how` as of Wiring.queue."""
        return self.wiring.queue(self._name("queue"), **how)

    def source(self, envelope: Envelope = Envelope.S3, *, versioned: bool = False, **how: Any) -> Source:
        """A new bucket, wired to a new queue."""
        made = Source(self.bucket(versioned=versioned), self.queue(**how))
        self.wiring.connect(made.bucket, made.queue, envelope)
        return made

    def put(self, bucket: str, *keys: str, body: bytes = b"") -> None:
        """Write objects."""
        for key in keys:
            self.s3.put_object(Bucket=bucket, Key=key, Body=body)

    def receive(self, queue: Queue, count: int = 1, timeout: float = 20.0) -> list[dict[str, Any]]:
        """The bodies of `count` messages, decoded and deleted; AssertionError when they do not come."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + timeout
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"{len(found)} of {count} messages in {timeout:.0f} s: {found}")
            batch = self.sqs.receive_message(
                QueueUrl=queue.url,
                MaxNumberOfMessages=min(10, count - len(found)),
                WaitTimeSeconds=min(LONGEST_WAIT, int(left) + 1),
            ).get("Messages", [])
            for message in batch:
                self.sqs.delete_message(QueueUrl=queue.url, ReceiptHandle=message["ReceiptHandle"])
                found.append(json.loads(message["Body"]))
        return found

    def depth(self, queue_url: str) -> tuple[int, int]:
        """How many messages a queue holds: visible, in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    def environment(
        self,
        gateway_url: str,
        sqs_url: str = "",
        *,
        ec2_url: str = "",
        ecs_url: str = "",
        cloudwatch_url: str = "",
    ) -> dict[str, str]:
        """The variables of a process that is to use these doubles."""
        return environment(
            self.url,
            gateway_url,
            sqs_url,
            self.region,
            ec2_url=ec2_url,
            ecs_url=ecs_url,
            cloudwatch_url=cloudwatch_url,
        )

    def _name(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._test}-{self._made}"


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    """S3, SNS, EventBridge and SQS for the run."""
    with MiniStack(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@pytest.fixture(scope="session")
def elasticmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticMq]:
    """The second SQS, for the run. S3's events do not reach it."""
    with ElasticMq(tmp_path_factory.mktemp("elasticmq")) as server:
        yield server


@pytest.fixture(params=["ministack", "elasticmq"])
def sqs_server(request: pytest.FixtureRequest) -> Server:
    """Either SQS, one after the other: for what must work with both."""
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def aws(ministack: MiniStack) -> Iterator[Aws]:
    """Buckets, queues and clients of this test."""
    made = Aws(ministack.url)
    yield made
    made.close()


@pytest.fixture
def storage_gateway(ministack: MiniStack) -> Iterator[StorageGateway]:
    """A Storage Gateway double of this test, over MiniStack's buckets."""
    with StorageGateway(ministack.url) as double:
        yield double


@pytest.fixture
def ec2() -> Iterator[Ec2]:
    """An EC2 double of this test, without instances; Auto Scaling answers at the same address."""
    with Ec2() as double:
        yield double


@pytest.fixture
def ecs() -> Iterator[Ecs]:
    """An ECS double of this test, without clusters."""
    with Ecs() as double:
        yield double


@pytest.fixture
def cloudwatch() -> Iterator[CloudWatch]:
    """A CloudWatch double of this test, without datapoints."""
    with CloudWatch() as double:
        yield double


@pytest.fixture
def sqs_proxy(ministack: MiniStack) -> Iterator[SqsProxy]:
    """A fault proxy of this test, in front of MiniStack's queues."""
    with SqsProxy(ministack.url) as proxy:
        yield proxy
