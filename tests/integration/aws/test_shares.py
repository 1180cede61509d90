"""Endpoints of tenants that do not answer delay neither AWS itself nor other namespaces."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from caretaker.api.aws import AwsSpec
from caretaker.aws.calls import Aws
from caretaker.aws.connections import EgressCheck
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey, Identity, Keys, User
from caretaker.aws.services import Rate
from caretaker.aws.session import Options
from fakes.aws import FakeAws, assumed, error

pytestmark = pytest.mark.usefixtures("environment")

OWN = ClientKey("sqs", "eu-west-1")  # AWS itself: the environment's endpoint
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
ROLE = "arn:aws:iam::123456789012:role/team-a"


@pytest.fixture
def endpoint() -> Iterator[FakeAws]:
    """A tenant's."""
    with FakeAws() as server:
        yield server


@pytest.fixture
def good() -> Iterator[FakeAws]:
    """Another tenant's."""
    with FakeAws() as server:
        yield server


def at(url: str, namespace: str, key: str = "AKIA") -> ClientKey:
    return ClientKey("sqs", "eu-west-1", Identity(Keys(key, "s")), url, namespace=namespace)


@asynccontextmanager
async def going_on(*calls: Any) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answered(aws: Aws, *keys: ClientKey, within: float = 5) -> None:
    for key in keys:
        await asyncio.wait_for(aws.call(key, "get_queue_url", QueueName="q"), within)


async def test_calls_that_hang_are_a_share_of_their_namespace(endpoint: FakeAws, good: FakeAws) -> None:
    """Each key is an identity of its own, and a Secret has as many as its author likes."""
    endpoint.hang("GetQueueUrl")
    async with Aws(Options(threads=4, endpoint_threads=4)) as aws:
        bad = [at(endpoint.url, "evil", f"AKIA{n}") for n in range(8)]
        async with going_on(*(aws.call(key, "get_queue_url", QueueName="q") for key in bad)):
            await endpoint.received(2)
            await answered(aws, OWN, at(good.url, "good"), OWN)
            assert len(endpoint.calls) == 2
            endpoint.release()
            await endpoint.received(8)


@pytest.mark.parametrize("poll", [False, True])
async def test_calls_to_aws_that_hang_are_a_share_of_their_namespace(fake: FakeAws, poll: bool) -> None:
    """Each region has a client of its own, and many regions may be out of reach."""

    def key(namespace: str, region: str) -> ClientKey:
        return ClientKey.of(AwsSpec(region), "sqs", user=User(namespace, "s3ar", "a"))

    fake.hang("GetQueueUrl")
    async with Aws(Options(threads=4, per_namespace=3, polls=4, polls_per_namespace=3)) as aws:
        ask = aws.poll if poll else aws.call
        bad = [key("evil", f"eu-west-{n}") for n in range(8)]
        async with going_on(*(ask(one, "get_queue_url", QueueName="q") for one in bad)):
            await fake.received(3)
            for one in (key("good", "eu-west-1"), OWN):
                await asyncio.wait_for(ask(one, "list_queues"), 5)
            assert [call.action for call in fake.calls] == ["GetQueueUrl"] * 3 + ["ListQueues"] * 2


async def test_many_namespaces_delay_no_call_to_aws(fake: FakeAws, endpoint: FakeAws) -> None:
    endpoint.hang("GetQueueUrl")
    async with Aws(Options(threads=1, endpoint_threads=4)) as aws:
        bad = [at(endpoint.url, f"evil{n}", f"AKIA{n}") for n in range(8)]
        async with going_on(*(aws.call(key, "get_queue_url", QueueName="q") for key in bad)):
            await endpoint.received(4)
            await answered(aws, OWN)
            assert (len(fake.calls), len(endpoint.calls)) == (1, 4)


async def test_polls_that_hang_are_a_share_of_their_namespace(
    fake: FakeAws, endpoint: FakeAws, good: FakeAws
) -> None:
    endpoint.hang("ReceiveMessage")
    async with Aws(Options(polls=1, endpoint_polls=4, endpoint_polls_per_namespace=3)) as aws:
        bad = [aws.sqs(at(endpoint.url, "evil", f"AKIA{n}")) for n in range(8)]
        async with going_on(*(one.receive_message(QueueUrl=URL) for one in bad)):
            await endpoint.received(3)
            for key in (OWN, at(good.url, "good")):
                await asyncio.wait_for(aws.sqs(key).receive_message(QueueUrl=URL), 5)
            assert (len(fake.calls), len(good.calls), len(endpoint.calls)) == (1, 1, 3)


async def test_roles_that_are_not_assumed_are_in_the_share(endpoint: FakeAws, good: FakeAws) -> None:
    endpoint.hang("AssumeRole", error("AccessDenied", status=403))

    def role(name: str) -> ClientKey:
        identity = Identity(None, ROLE, "", "eu-west-1", endpoint.url, User("evil", "s3refresh", name))
        return ClientKey("sqs", "eu-west-1", identity)

    async with Aws(Options(threads=2, endpoint_threads=4)) as aws:
        calls = (aws.call(role(f"r{n}"), "get_queue_url", QueueName="q") for n in range(6))
        async with going_on(*calls):
            await endpoint.received(2)
            await answered(aws, OWN, at(good.url, "good"))
            assert len(endpoint.calls) == 2


async def test_of_resources_without_a_namespace_each_endpoint_has_a_share(
    endpoint: FakeAws, good: FakeAws
) -> None:
    """Policies of the whole cluster: one whose endpoint does not answer delays no other."""

    def key(url: str, role: str) -> ClientKey:
        aws = AwsSpec("eu-west-1", ROLE if role else "", role, endpoint_urls={"ec2": url, "sts": url})
        return ClientKey.of(aws, "ec2", user=User("", "imds", ""))

    endpoint.hang("AssumeRole", error("AccessDenied", status=403))
    endpoint.hang("DescribeInstances")
    good.on("AssumeRole", assumed("AKIA", "2999-01-01T00:00:00Z"))
    async with Aws(Options(threads=2, endpoint_threads=8)) as aws:
        bad = [key(endpoint.url, role) for role in ("", "", "", "r1", "r2", "r3")]
        async with going_on(*(aws.call(one, "describe_instances") for one in bad)):
            await endpoint.received(2)
            for role in ("", "r1"):
                await asyncio.wait_for(aws.call(key(good.url, role), "describe_instances"), 5)
            assert len(endpoint.calls) == 2


@pytest.mark.parametrize("poll", [False, True])
async def test_a_name_server_that_does_not_answer_is_in_the_share(
    good: FakeAws, monkeypatch: pytest.MonkeyPatch, poll: bool
) -> None:
    real, asked, release = socket.getaddrinfo, [], threading.Event()
    two, slow = threading.Event(), f"slow-{poll}.test".lower()  # calls of the other try go on

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != slow:
            return real(host, *args, **kwargs)
        asked.append(host)
        if len(asked) == 2:
            two.set()
        release.wait(300)  # no time limit of the operator ends it before
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    check = EgressCheck(["127.0.0.1", "localhost"], "")
    polls = Options(polls=2, endpoint_polls=4, endpoint_polls_per_namespace=2)
    async with Aws(replace(polls, threads=2, endpoint_threads=4, egress_check=check)) as aws:
        bad = [at(f"http://{slow}:1", "evil", f"AKIA{n}") for n in range(6)]
        ask = aws.poll if poll else aws.call
        async with going_on(*(ask(key, "get_queue_url", QueueName="q") for key in bad)):
            assert await asyncio.to_thread(two.wait, 60)
            await answered(aws, OWN, at(good.url, "good"), within=60)
            await asyncio.wait_for(aws.poll(at(good.url, "good"), "get_queue_url", QueueName="q"), 60)
            await asyncio.wait_for(aws.poll(OWN, "get_queue_url", QueueName="q"), 60)
            assert len(asked) == 2
            release.set()


async def test_an_endpoint_that_says_throttled_slows_its_own_calls_alone(
    fake: FakeAws, endpoint: FakeAws
) -> None:
    endpoint.on("GetQueueUrl", error("ThrottlingException"))
    async with Aws(rates={"sqs": Rate(0.001, 10)}) as aws:
        with pytest.raises(AwsError, match="ThrottlingException"):
            await aws.call(
                ClientKey("sqs", "eu-west-1", endpoint_url=endpoint.url), "get_queue_url", QueueName="q"
            )
        await answered(aws, OWN)
    assert len(fake.calls) == 1
