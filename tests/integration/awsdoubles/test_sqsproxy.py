"""Each fault of the SQS proxy, with MiniStack and with ElasticMQ behind it."""

import asyncio
import contextlib
import gc
import http.client
import json
import secrets
import threading
import time
import urllib.error
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from awsdoubles.clients import client
from awsdoubles.launch import Server, free_port
from awsdoubles.loopback import DIRECT
from awsdoubles.serverthread import ServerThread
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.sqsproxy.rules import (
    Duplicate,
    EmptyReceive,
    Fail,
    FailEntries,
    LoseReply,
    Match,
    NotDeleted,
    Reorder,
    Slow,
    StaleSucceeds,
)

Message = dict[str, Any]


class Consumer:
    """A queue of its own, a client that goes through the proxy and one that does not."""

    def __init__(self, proxy: SqsProxy, server: Server) -> None:
        self.proxy = proxy
        self.near = client("sqs", proxy.url)
        self.far = client("sqs", server.url)
        self.name = f"q-{secrets.token_hex(4)}"
        self.url = self.far.create_queue(QueueName=self.name)["QueueUrl"]

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def send(self, count: int) -> None:
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(count)]
        self.far.send_message_batch(QueueUrl=self.url, Entries=entries)

    def receive(self, limit: int = 10, wait: int = 0, visibility: int = 60) -> list[Message]:
        answer = self.near.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=wait,
            VisibilityTimeout=visibility,
        )
        return list(answer.get("Messages", []))

    def delete(self, messages: list[Message]) -> tuple[list[str], list[str]]:
        entries = [{"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"]} for m in messages]
        answer = self.near.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return [e["Id"] for e in answer.get("Successful", [])], [e["Id"] for e in answer.get("Failed", [])]

    def left(self) -> int:
        """How many messages there really are."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.far.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def bodies(messages: list[Message]) -> list[str]:
    return sorted(message["Body"] for message in messages)


@pytest.fixture
def consumer(sqs_server: Server) -> Iterator[Consumer]:
    with SqsProxy(sqs_server.url) as proxy:
        made = Consumer(proxy, sqs_server)
        yield made
        made.close()


def test_without_a_rule_nothing_changes(consumer: Consumer) -> None:
    consumer.send(10)
    received = consumer.receive()
    assert bodies(received) == [str(n) for n in range(10)]
    assert len(consumer.delete(received)[0]) == 10
    assert consumer.left() == 0


def test_a_delete_answers_success_and_deletes_nothing(consumer: Consumer) -> None:
    consumer.send(3)
    received = consumer.receive()
    consumer.proxy.add(Match("DeleteMessage*"), NotDeleted(), count=2)
    assert sorted(consumer.delete(received)[0]) == bodies(received)
    consumer.near.delete_message(QueueUrl=consumer.url, ReceiptHandle=received[0]["ReceiptHandle"])
    assert consumer.left() == 3
    consumer.delete(received)
    assert consumer.left() == 0


def test_a_stale_handle_succeeds_as_with_aws(consumer: Consumer) -> None:
    """The emulators refuse it by themselves."""
    consumer.send(2)
    stale = consumer.receive(visibility=0)
    assert len(consumer.receive()) == 2
    assert consumer.delete(stale)[0] == []
    consumer.proxy.add(Match(), StaleSucceeds())
    assert sorted(consumer.delete(stale)[0]) == ["0", "1"]
    consumer.near.delete_message(QueueUrl=consumer.url, ReceiptHandle=stale[0]["ReceiptHandle"])
    assert consumer.left() == 2


def test_messages_come_again_after_they_were_deleted(consumer: Consumer) -> None:
    consumer.send(3)
    consumer.proxy.add(Match("ReceiveMessage"), Duplicate(), count=1)
    first = consumer.receive()
    consumer.delete(first)
    assert consumer.left() == 0
    again = consumer.receive(wait=20)
    assert {m["MessageId"] for m in again} == {m["MessageId"] for m in first}
    assert not {m["ReceiptHandle"] for m in again} & {m["ReceiptHandle"] for m in first}
    assert sorted(consumer.delete(again)[0]) == bodies(again)
    assert consumer.receive() == []


def test_a_copy_deletes_its_message(consumer: Consumer) -> None:
    consumer.send(1)
    consumer.proxy.add(Match("ReceiveMessage"), Duplicate(), count=1)
    consumer.receive()
    (copy,) = consumer.receive()
    near, which = consumer.near, {"QueueUrl": consumer.url, "ReceiptHandle": copy["ReceiptHandle"]}
    near.change_message_visibility(**which, VisibilityTimeout=100)
    near.delete_message(**which)
    assert consumer.left() == 0
    near.delete_message(**which)


def test_duplicates_may_share_a_batch(consumer: Consumer) -> None:
    consumer.send(4)
    consumer.proxy.add(Match("ReceiveMessage"), Duplicate(copies=2, at_once=True), count=1)
    assert len(consumer.receive()) == 10
    assert len(consumer.receive()) == 2


def test_messages_are_reordered_and_none_is_lost(consumer: Consumer) -> None:
    consumer.send(10)
    rule = consumer.proxy.add(Match("ReceiveMessage"), Reorder(hold=4))
    first = consumer.receive()
    second = consumer.receive(wait=20)
    assert (len(first), len(second)) == (6, 1)
    rule.remove()
    last = consumer.receive(wait=20)
    assert Counter(bodies([*first, *second, *last])) == Counter(str(n) for n in range(10))
    assert [m["Body"] for m in first] != sorted(m["Body"] for m in first)


def test_a_reply_is_lost_after_the_effect(consumer: Consumer) -> None:
    consumer.send(2)
    received = consumer.receive()
    rule = consumer.proxy.add(Match("DeleteMessageBatch"), LoseReply(), count=1)
    with pytest.raises(ConnectionClosedError):
        consumer.delete(received)
    assert consumer.left() == 0
    rule.wait()
    assert consumer.proxy.calls.all("DeleteMessageBatch")[0].status == 0


def test_the_messages_of_a_lost_receive_come_back_when_they_are_visible(consumer: Consumer) -> None:
    consumer.send(2)
    consumer.proxy.add(Match("ReceiveMessage"), LoseReply(), count=1)
    with pytest.raises(ConnectionClosedError):
        consumer.receive(visibility=3)
    assert consumer.receive() == []
    found: list[Message] = []
    while len(found) < 2:
        found += consumer.receive(wait=20)
    assert bodies(found) == ["0", "1"]


def test_entries_of_a_batch_fail(consumer: Consumer) -> None:
    consumer.send(5)
    received = consumer.receive()
    consumer.proxy.add(Match("DeleteMessageBatch"), FailEntries(2), count=1)
    good, failed = consumer.delete(received)
    assert sorted(failed) == bodies(received[:2])
    assert sorted(good) == bodies(received[2:])
    assert consumer.left() == 2
    consumer.proxy.add(Match("DeleteMessageBatch"), FailEntries(10), count=1)
    assert consumer.delete(received[:2])[0] == []
    assert consumer.left() == 2


def test_receives_fall_silent(consumer: Consumer) -> None:
    """As at 120,000 messages in flight: no error, no messages, the whole wait."""
    consumer.send(1)
    with consumer.proxy.fault(Match("ReceiveMessage"), EmptyReceive()):
        started = time.monotonic()
        assert consumer.receive(wait=1) == []
        assert time.monotonic() - started >= 1
    assert len(consumer.receive()) == 1


def test_a_client_that_is_gone_takes_no_message(consumer: Consumer) -> None:
    """As after kill -9 in a long poll. The emulators would give the message to nobody for a while."""
    body = json.dumps({"QueueUrl": consumer.url, "WaitTimeSeconds": 20}).encode()
    scope = "AWS4-HMAC-SHA256 Credential=test/20260101/eu-west-1/sqs/aws4_request, Signature=0"
    headers = {"X-Amz-Target": "AmazonSQS.ReceiveMessage", "Authorization": scope}
    gone = http.client.HTTPConnection("127.0.0.1", consumer.proxy.port)
    gone.request("POST", "/", body, {**headers, "Content-Type": "application/x-amz-json-1.0"})
    calls = consumer.proxy.calls
    until(lambda: calls.count("ReceiveMessage") == 1)
    gone.close()
    until(lambda: calls.all("ReceiveMessage")[0].seconds > 0)
    consumer.send(1)
    assert len(consumer.receive(wait=5)) == 1


class Hesitant(ServerThread):
    """An emulator that hands over its one message when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.told = threading.Event(), threading.Event()

    async def opened(self) -> None:
        """Nothing to open."""

    async def closing(self) -> None:
        """Nothing to close."""

    def routes(self) -> list[web.RouteDef]:
        """ReceiveMessage."""
        return [web.post("/", self._receive)]

    async def _receive(self, _: web.Request) -> web.Response:
        if self.asked.is_set():
            return web.json_response({})
        self.asked.set()
        await asyncio.to_thread(self.told.wait)
        return web.json_response({"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]})


def asked(proxy: SqsProxy, wait: int) -> http.client.HTTPConnection:
    """A connection over which a ReceiveMessage was sent."""
    headers = {"X-Amz-Target": "AmazonSQS.ReceiveMessage", "Content-Type": "application/x-amz-json-1.0"}
    body = {"QueueUrl": "q", "MaxNumberOfMessages": 10, "WaitTimeSeconds": wait}
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port)
    connection.request("POST", "/", json.dumps(body), headers)
    return connection


def answer_of(connection: http.client.HTTPConnection) -> Any:
    with contextlib.closing(connection):
        return json.loads(connection.getresponse().read())


def test_a_message_on_its_way_to_a_client_that_is_gone_is_the_next_ones() -> None:
    with Hesitant() as upstream, SqsProxy(upstream.url) as proxy:
        gone = asked(proxy, wait=20)
        assert upstream.asked.wait(10)
        gone.close()
        assert answer_of(asked(proxy, wait=0)) == {}, "by then the proxy knows that the other one is gone"
        upstream.told.set()
        until(lambda: proxy.calls.all("ReceiveMessage")[0].seconds > 0)
        found = answer_of(asked(proxy, wait=0))
    assert [one["MessageId"] for one in found["Messages"]] == ["m"]


def test_it_ends_while_a_receive_is_under_way(caplog: pytest.LogCaptureFixture) -> None:
    with Hesitant() as upstream:
        with SqsProxy(upstream.url) as proxy:
            waiting = asked(proxy, wait=20)
            assert upstream.asked.wait(10)
        upstream.told.set()
    waiting.close()
    gc.collect()
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        pytest.param(Fail(), 503, "ServiceUnavailable", id="5xx"),
        pytest.param(Fail(403, "AccessDenied", "no"), 403, "AccessDenied", id="refused"),
        pytest.param(Fail(400, "RequestThrottled", "slow down"), 400, "RequestThrottled", id="throttled"),
    ],
)
def test_calls_fail_without_effect(consumer: Consumer, fault: Fail, status: int, code: str) -> None:
    consumer.send(1)
    received = consumer.receive()
    consumer.proxy.add(Match("DeleteMessageBatch"), fault, count=1)
    with pytest.raises(ClientError) as caught:
        consumer.delete(received)
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert consumer.left() == 1


def test_calls_are_slow(consumer: Consumer) -> None:
    consumer.proxy.add(Match("ReceiveMessage"), Slow(0.3), count=1)
    started = time.monotonic()
    consumer.receive()
    assert time.monotonic() - started >= 0.3


def test_rules_pick_by_queue_and_end(consumer: Consumer) -> None:
    other = consumer.proxy.add(Match(queue="other-*"), Fail())
    mine = consumer.proxy.add(Match("Receive*", consumer.name[:4] + "*"), Fail(), count=1)
    with pytest.raises(ClientError):
        consumer.receive()
    assert consumer.receive() == []
    assert (other.applied, mine.applied) == (0, 1)
    with pytest.raises(AssertionError, match="hit 1 calls"):
        mine.wait(2, timeout=0)
    consumer.proxy.add(Match(), Fail())
    consumer.proxy.clear()
    consumer.receive()


def test_chance_follows_the_seed(sqs_server: Server) -> None:
    def outcomes(seed: int) -> list[int]:
        with SqsProxy(sqs_server.url, seed=seed) as proxy:
            consumer = Consumer(proxy, sqs_server)
            proxy.add(Match("ReceiveMessage", chance=0.5), Fail())
            for _ in range(12):
                try:
                    consumer.receive()
                except ClientError:
                    continue
            consumer.close()
            return [call.status for call in proxy.calls.all("ReceiveMessage")]

    assert outcomes(1) == outcomes(1)
    assert {200, 503} == set(outcomes(1))
    assert outcomes(1) != outcomes(2)


def test_every_call_is_logged(consumer: Consumer) -> None:
    consumer.send(3)  # not through the proxy
    started = time.time()
    received = consumer.receive()
    consumer.delete(received)
    consumer.proxy.add(Match("ReceiveMessage"), Slow(0))
    consumer.receive()
    first, delete, second = consumer.proxy.calls.all(queue=consumer.name)
    assert (first.operation, first.messages, first.status, first.faults) == ("ReceiveMessage", 3, 200, ())
    assert (delete.operation, delete.entries) == ("DeleteMessageBatch", 3)
    assert (second.messages, second.faults) == (0, ("Slow",))
    assert started <= first.at <= second.at
    assert consumer.proxy.calls.by_operation() == {"ReceiveMessage": 2, "DeleteMessageBatch": 1}
    consumer.proxy.calls.clear()
    assert consumer.proxy.calls.count() == 0


def test_the_query_protocol_passes_and_fails_too(consumer: Consumer) -> None:
    consumer.send(1)

    def ask(**fields: str) -> bytes:
        data = urllib.parse.urlencode({"QueueUrl": consumer.url, **fields}).encode()
        with DIRECT.open(consumer.proxy.url, data, timeout=10) as response:
            return bytes(response.read())

    assert b"<Body>0</Body>" in ask(Action="ReceiveMessage", VisibilityTimeout="0")
    with consumer.proxy.fault(Match("ReceiveMessage"), EmptyReceive()):
        assert b"<Body>" not in ask(Action="ReceiveMessage")
    for fault, status in ((Fail(), "503"), (Duplicate(), "400")):
        with (
            consumer.proxy.fault(Match("ReceiveMessage"), fault),
            pytest.raises(OSError, match=status) as caught,
        ):
            ask(Action="ReceiveMessage")
        caught.value.close()  # type: ignore[attr-defined]
    assert consumer.proxy.calls.count("ReceiveMessage", consumer.name) == 4


def test_an_sqs_that_is_down_is_a_reset_connection() -> None:
    with SqsProxy(f"http://127.0.0.1:{free_port()}") as proxy:
        near = client("sqs", proxy.url)
        with pytest.raises(ConnectionClosedError):
            near.list_queues()
        near.close()


def test_a_proxy_that_was_down_comes_back_on_its_port(ministack: Server) -> None:
    with SqsProxy(ministack.url) as proxy:
        near = client("sqs", proxy.url)
        near.list_queues()
        proxy.stop()
        with pytest.raises((EndpointConnectionError, ConnectionClosedError)):
            near.list_queues()
        proxy.start()
        near.list_queues()
        assert proxy.calls.count("ListQueues") == 2
        near.close()
