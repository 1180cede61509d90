"""An answer has a bound in bytes and in time, whatever the endpoint sends."""

import asyncio
import gc
import re
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import botocore.session
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from awsdoubles.ec2.answers import ec2_result
from caretaker.aws import large_answers, responses
from caretaker.aws.calls import Aws
from caretaker.aws.connections import EgressCheck
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey, Identity
from caretaker.aws.large_answers import Hold, kept
from caretaker.aws.pages import MOST_BYTES, KeptBytes
from caretaker.aws.response_check import UNREADABLE
from caretaker.aws.session import Options
from caretaker.obs.metrics import AwsMetrics
from fakes.aws import Answer, FakeAws
from testing.operator import parse_metrics
from testing.servicemodels import service_model

pytestmark = pytest.mark.usefixtures("environment")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\n"
SHARE = "arn:aws:storagegateway:eu-west-1:123456789012:share/share-1"
ROLE = "arn:aws:iam::123456789012:role/team-a"
MIB = 1 << 20
PACE = 0.05  # seconds between two parts, far below the time that a read may take
# What is sent first, and then again and again.
DRIPS = {
    "status line": (b"HTTP/1.1 200 ", b"O"),
    "headers": (HEAD + b"X-Long: ", b"x"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (HEAD + b"Content-Length: 1000000000\r\n\r\n", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


class Endless:
    """Answers every request with `first`, and then with `part` until the client closes the connection.

    sent    bytes of all parts
    closed  the client has closed a connection
    """

    def __init__(self, first: bytes, part: bytes, pace: float) -> None:
        self.sent = 0
        self.requests = 0
        self.closed = threading.Event()
        self._first, self._part, self._pace = first, part, pace
        self._ended = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def end(self) -> None:
        self._ended.set()
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            self.requests += 1
            connection.sendall(self._first)
            while not self._ended.wait(self._pace):
                connection.sendall(self._part)
                self.sent += len(self._part)
        self.closed.set()


@contextmanager
def endless(first: bytes, part: bytes, pace: float = PACE) -> Iterator[Endless]:
    server = Endless(first, part, pace)
    try:
        yield server
    finally:
        server.end()


def hasty() -> Aws:
    return Aws(Options(threads=1, per_client=1, read_seconds=0.5))


def at(url: str) -> ClientKey:
    return ClientKey("storagegateway", "eu-west-1", endpoint_url=url)


async def failing(call: "asyncio.Future[object]") -> AwsError:
    with pytest.raises(AwsError) as raised:
        await asyncio.wait_for(call, 10)
    return raised.value


@pytest.mark.parametrize("drip", DRIPS)
async def test_an_answer_that_drips_is_cut_and_its_thread_is_free(fake: FakeAws, drip: str) -> None:
    registry = CollectorRegistry()
    with endless(*DRIPS[drip]) as server:
        async with hasty() as aws:
            aws.hooks.observer = AwsMetrics(registry)
            found = await failing(asyncio.ensure_future(aws.call(at(server.url), "list_file_shares")))
            assert (found.code, found.error_class) == (UNREADABLE, ErrorClass.TRANSIENT)
            assert found.message == "the answer cannot be read: it takes longer than 0.5 s"
            assert (found.service, found.operation) == ("storagegateway", "ListFileShares")
            assert await asyncio.to_thread(server.closed.wait, 10)
            assert server.requests == 1
            await asyncio.wait_for(aws.call(at(fake.url), "list_file_shares"), 10)
    series = 'caretaker_aws_requests_total{code="UnreadableAnswer",operation="ListFileShares",'
    assert parse_metrics(generate_latest(registry).decode())[series + 'service="storagegateway"}'] == 1


async def test_the_outcome_of_a_write_is_unknown() -> None:
    with endless(*DRIPS["body"]) as server:
        async with hasty() as aws:
            call = aws.call(at(server.url), "refresh_cache", FileShareARN=SHARE)
            found = await failing(asyncio.ensure_future(call))
    assert (found.code, found.unknown_outcome) == (UNREADABLE, True)


async def test_no_role_is_assumed_from_it() -> None:
    with endless(*DRIPS["body"]) as server:
        identity = Identity(None, ROLE, "", "eu-west-1", server.url)
        async with hasty() as aws:
            call = aws.call(ClientKey("storagegateway", "eu-west-1", identity), "list_file_shares")
            found = await failing(asyncio.ensure_future(call))
    assert (found.code, found.service, found.operation) == (UNREADABLE, "sts", "AssumeRole")


@pytest.mark.parametrize(
    "first",
    [DRIPS["body"][0], HEAD + b"\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 1000000000\r\n\r\n"],
    ids=["of a length", "until it ends", "an error"],
)
async def test_an_answer_that_is_too_large_is_cut(first: bytes) -> None:
    with endless(first, b" " * MIB, 0) as server:
        async with Aws(Options(threads=1, per_client=1)) as aws:
            found = await failing(asyncio.ensure_future(aws.call(at(server.url), "list_file_shares")))
            assert await asyncio.to_thread(server.closed.wait, 10)
    assert (found.code, found.error_class) == (UNREADABLE, ErrorClass.TRANSIENT)
    assert found.message == "the answer cannot be read: it is larger than 4 MiB"
    assert server.sent < 32 * MIB  # the rest is in the buffers of both sockets


async def test_ten_messages_of_the_largest_size_are_received(fake: FakeAws, aws: Aws) -> None:
    """SQS escapes every quotation mark of a body."""
    message = '{"MessageId": "m", "ReceiptHandle": "h", "Body": "%s"}' % ('\\"' * MIB)
    fake.on("ReceiveMessage", Answer(f'{{"Messages": [{", ".join([message] * 10)}]}}'))
    found = await aws.sqs(ClientKey("sqs", "eu-west-1")).receive_message(QueueUrl=SHARE)
    assert [len(one["Body"]) for one in found["Messages"]] == [MIB] * 10


async def test_all_addresses_of_a_name_share_the_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have hundreds. A socket whose backlog is full takes no connection and refuses none."""
    with socket.create_server(("", 0), backlog=0) as silent, ExitStack() as stack:
        port = silent.getsockname()[1]
        for _ in range(3):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(("127.0.0.1", port))
        real = socket.getaddrinfo

        def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
            names = [f"127.0.0.{n}" for n in range(1, 41)] if host == "many.test" else [host]
            return [found for name in names for found in real(name, *args, **kwargs)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        check = EgressCheck(["127.0.0.0/8"], "")
        async with Aws(Options(threads=1, per_client=1, connect_seconds=0.5, egress_check=check)) as aws:
            call = aws.call(at(f"http://many.test:{port}"), "refresh_cache", FileShareARN=SHARE)
            found = await failing(asyncio.ensure_future(call))
    assert (found.code, found.unknown_outcome) == ("Unreachable", False)


async def test_large_answers_are_in_memory_one_at_a_time(fake: FakeAws, aws: Aws) -> None:
    message = '{"MessageId": "m", "ReceiptHandle": "h", "Body": "%s"}' % ("x" * MIB)
    fake.on("ReceiveMessage", Answer(f'{{"Messages": [{message}]}}'))
    sqs, here, most = aws.sqs(ClientKey("sqs", "eu-west-1")), 0, 0

    async def receive() -> None:
        nonlocal here, most
        with kept("a"):
            found = await sqs.receive_message(QueueUrl=SHARE)
            here, most = here + 1, max(most, here + 1)
            await aws.call(ClientKey("sqs", "eu-west-1"), "get_queue_url", QueueName="small")
            here -= len(found["Messages"])

    await asyncio.gather(*(receive() for _ in range(4)))
    assert (here, most) == (0, 1)


async def test_a_large_answer_that_gets_no_turn_is_an_error(
    fake: FakeAws, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_answers, "SLOT_SECONDS", 0.1)
    fake.on("ListFileShares", Answer('{"FileShareInfoList": [], "Marker": "%s"}' % ("x" * MIB)))
    with Hold("a") as hold:
        assert hold.acquire(aws._pools.slots)
        found = await failing(asyncio.ensure_future(asked(aws, "ListFileShares")))
    assert (found.code, found.transient) == (UNREADABLE, True)
    assert found.message == "the answer cannot be read: other large answers are being read"
    await asked(aws, "ListFileShares")


ATTRIBUTES = " ".join(f"a{number}=''" for number in range(MIB // 2))
MANY = {
    "lists": ("ReceiveMessage", '{"Messages": [], "x": [%s[]]}' % ("[]," * 2 * MIB)),
    "deep lists": ("ReceiveMessage", '{"x": ' + "[" * 6 * MIB),
    "lists of another service": ("ListFileShares", '{"FileShareInfoList": [%s{}]}' % ("[]," * MIB)),
    "elements": ("DescribeInstances", "<DescribeInstancesResponse>" + "<a/>" * 2 * MIB),
    "attributes": ("DescribeInstances", f"<DescribeInstancesResponse {ATTRIBUTES}/>"),
    "entities": ("DescribeInstances", f"<!DOCTYPE a [<!ENTITY b '{'x' * MIB}'>]><a>{'&b;' * 90}</a>"),
    "deep elements": ("DescribeAutoScalingGroups", "<DescribeAutoScalingGroupsResponse>" + "<a>" * MIB),
}


def asked(aws: Aws, action: str) -> Any:
    if action == "ReceiveMessage":
        return aws.sqs(ClientKey("sqs", "eu-west-1")).receive_message(QueueUrl=SHARE)
    if action == "ListFileShares":
        return aws.call(ClientKey("storagegateway", "eu-west-1"), "list_file_shares")
    if action == "DescribeInstances":
        return aws.call(ClientKey("ec2", "eu-west-1"), "describe_instances")
    return aws.call(ClientKey("autoscaling", "eu-west-1"), "describe_auto_scaling_groups")


@pytest.mark.parametrize(
    "many",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("attributes", "deep elements", "deep lists")))
        for name in MANY
    ],
)
async def test_an_answer_of_many_parts_takes_a_few_times_its_bytes(
    fake: FakeAws, aws: Aws, many: str
) -> None:
    action, body = MANY[many]
    with suppress(AwsError):
        await asked(aws, action)
    fake.on(action, Answer(body))
    tracemalloc.start()
    try:
        with suppress(AwsError):
            await asked(aws, action)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(body)


def whole(shape: Any) -> Any:
    """A value with all that AWS may send, once."""
    if shape.type_name == "structure":
        return {name: whole(member) for name, member in shape.members.items()}
    if shape.type_name == "list":
        return [whole(shape.member)]
    return (getattr(shape, "enum", None) or ["x"])[0] if shape.type_name == "string" else 1


@pytest.mark.slow
def test_a_page_of_a_thousand_instances_with_all_that_each_may_have_is_read() -> None:
    """With every member that EC2 describes, and as many tags as there may be: 383,000 elements."""
    shape = service_model("ec2").operation_model("DescribeInstances").output_shape
    page = whole(shape)
    page["Reservations"][0]["Instances"][0]["Tags"] = [{"Key": f"k{n}", "Value": "v"} for n in range(50)]
    answer = ec2_result("DescribeInstances", shape, page)
    head, one, tail = re.split("(?<=<reservationSet>)(.*)(?=</reservationSet>)", answer)
    thousand = f"{head}{one * 1000}{tail}"
    parts = thousand.count("<") - thousand.count("</") + thousand.count("=")
    assert 350_000 < parts < 400_000
    session = botocore.session.Session()
    responses.install(session)
    parser = session.get_component("response_parser_factory").create_parser("ec2")

    def parsed(text: str) -> Any:
        operation = {"operation_name": "DescribeInstances"}
        answer = {"status_code": 200, "headers": {}, "body": text.encode(), "context": operation}
        return parser.parse(answer, shape)

    assert len(parsed(thousand)["Reservations"]) == 1000
    beyond = thousand.replace("<value>v<", f"<value>{'=' * (500_001 - parts)}<", 1)  # each counts, too
    assert parsed(beyond)["Error"]["Code"] == UNREADABLE


async def test_an_error_keeps_nothing_of_the_answer(fake: FakeAws, aws: Aws) -> None:
    """Pollers keep the last error of each queue."""
    await asked(aws, "ListFileShares")
    fake.on("ListFileShares", Answer('{"x": "%s"}' % ("x" * 2 * MIB)))
    tracemalloc.start()
    try:
        found = await failing(asyncio.ensure_future(asked(aws, "ListFileShares")))
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.code == UNREADABLE
    assert kept_bytes < MIB


async def test_an_error_of_sts_keeps_nothing_of_the_answer(fake: FakeAws, aws: Aws) -> None:
    def call(name: str) -> "asyncio.Future[object]":
        role = Identity(None, f"{ROLE}{name}", "", "eu-west-1", fake.url)
        key = ClientKey("storagegateway", "eu-west-1", role)
        return asyncio.ensure_future(aws.call(key, "list_file_shares"))

    fake.on("AssumeRole", Answer("<a></a>"))
    await failing(call("1"))
    fake.on("AssumeRole", Answer("<a>%s</a>" % ("x" * 2 * MIB)))
    tracemalloc.start()
    try:
        found = await failing(call("2"))
        gc.collect()
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.code, found.operation) == (UNREADABLE, "AssumeRole")
    assert kept_bytes < MIB


async def test_the_bytes_of_an_answer_are_known(fake: FakeAws, aws: Aws) -> None:
    """Callers that keep the content of many pages count them."""
    body = '{"FileShareInfoList": []}'
    fake.on("ListFileShares", Answer(body))
    found = await asked(aws, "ListFileShares")
    with pytest.raises(AwsError, match="its pages have more than 16 MiB"):
        _add(found, MOST_BYTES // len(body) + 1)
    _add(found, MOST_BYTES // len(body))


def _add(page: Any, times: int) -> None:
    kept_bytes = KeptBytes()
    for _ in range(times):
        kept_bytes.add(page)
