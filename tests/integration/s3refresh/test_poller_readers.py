"""One queue with several readers, a backlog in it, and readers that are behind."""

import asyncio
import json
import re
import time

import pytest

from awsdoubles.envelopes import Queue
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.sqsproxy.rules import Match, Slow
from caretaker.aws.calls import Aws as AwsCalls
from caretaker.kube.errors import NotLeader
from caretaker.runtime import queue_consumer
from caretaker.runtime.queue_consumer import BATCH, MOST_RECEIVES
from caretaker.s3refresh import inflight
from testbed.paths import CHECKOUT
from testing.aws import Aws
from testing.customresource import TIMEOUT
from testing.polling import OWNER, Polling, polling

pytestmark = pytest.mark.slow

SHARE = "arn:aws:storagegateway:eu-west-1:111122223333:share/share-E51FBS9C"
OTHER = "other"
LONG = 120  # seconds: nothing comes again


def event(key: str) -> str:
    what = {"bucket": {"name": "bucket"}, "object": {"key": key}}
    return json.dumps({"Records": [{"eventVersion": "2.1", "eventName": "ObjectCreated:Put", "s3": what}]})


def completion(notification_id: str, more: str = "") -> str:
    """`more`: further content of the message."""
    return json.dumps(
        {
            "more": more,
            "source": "aws.storagegateway",
            "detail-type": "Storage Gateway Refresh Cache Event",
            "resources": [SHARE],
            "detail": {"notification-id": notification_id},
        }
    )


def send(aws: Aws, queue: Queue, *bodies: str) -> None:
    for first in range(0, len(bodies), 10):
        entries = [{"Id": str(at), "MessageBody": text} for at, text in enumerate(bodies[first : first + 10])]
        assert not aws.sqs.send_message_batch(QueueUrl=queue.url, Entries=entries).get("Failed")


async def left(aws: Aws, queue: Queue, count: int, at_work: Polling, *readers: str) -> None:
    """Return once the queue holds so many messages, seen or unseen, with these readers done with all that
    comes. More than once: a deletion that comes too late does nothing."""
    async with asyncio.timeout(TIMEOUT):
        while sum(await asyncio.to_thread(aws.depth, queue.url)) != count:
            for reader in readers:
                await at_work.done(reader)
            await asyncio.sleep(0.1)  # SQS tells nobody


def ids(at_work: Polling, reader: str) -> set[str]:
    return {c.notification_id for message in at_work.waiting(reader) for c in message.completions}


async def test_what_concerns_two_readers_is_deleted_when_both_are_done(aws: Aws, calls: AwsCalls) -> None:
    queue = aws.queue()
    send(aws, queue, event("a/1"), completion("n-1"))
    async with polling(calls, aws.url, queue, visibility=LONG) as at_work:
        at_work.join(OTHER)
        await at_work.until(lambda: at_work.keys() == ["a/1"] and ids(at_work, OTHER) == {"n-1"})
        assert ids(at_work, OWNER) == {"n-1"}
        assert at_work.keys(OTHER) == []
        await left(aws, queue, 1, at_work, OWNER)
        assert at_work.waiting(OWNER) == ()
        assert ids(at_work, OTHER) == {"n-1"}
        await left(aws, queue, 0, at_work, OWNER, OTHER)


@pytest.mark.parametrize("last", [OWNER, OTHER])
async def test_what_one_reader_keeps_is_not_deleted_by_the_other(
    last: str, aws: Aws, calls: AwsCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_consumer, "AGAIN_SECONDS", 0)
    queue = aws.queue()
    send(aws, queue, completion("n-1"))
    async with polling(calls, aws.url, queue) as at_work:
        at_work.join(OTHER)
        await at_work.until(lambda: bool(at_work.waiting(OWNER) and at_work.waiting(OTHER)))
        (first,) = {OWNER, OTHER} - {last}
        await at_work.keep(first)
        await at_work.done(last)
        await at_work.until(lambda: bool(at_work.waiting(OWNER) and at_work.waiting(OTHER)))
        assert at_work.poller.received >= 2, "it was given back and came again"
        await left(aws, queue, 0, at_work, OWNER, OTHER)


async def test_a_reader_of_completions_never_deletes_what_it_is_not_asked_about(
    aws: Aws, calls: AwsCalls
) -> None:
    """Events and garbage of a queue that somebody else's operator owns, perhaps. What says nothing is asked
    of everybody, or it would come again for ever."""
    queue = aws.queue()
    send(aws, queue, event("a/1"), "garbage", completion("n-1"), '{"Event": "s3:TestEvent"}')
    async with polling(calls, aws.url, queue, owner=False) as at_work:
        at_work.join(OTHER)
        await at_work.until(lambda: at_work.poller.received >= 4)
        assert len(at_work.waiting(OTHER)) == 2
        await left(aws, queue, 2, at_work, OTHER)
        again = at_work.poller.received
        await at_work.until(lambda: at_work.poller.received >= again + 2)
        assert at_work.waiting(OTHER) == ()
        assert at_work.poller.deleted == 2
        at_work.join(OWNER, owner=True)
        await at_work.until(lambda: len(at_work.waiting(OWNER)) == 2)
        await left(aws, queue, 0, at_work, OWNER, OTHER)


async def test_an_owner_that_comes_later_is_asked_about_what_is_here_already(
    aws: Aws, calls: AwsCalls
) -> None:
    queue = aws.queue()
    send(aws, queue, completion("n-1"))
    async with polling(calls, aws.url, queue, owner=False, visibility=LONG) as at_work:
        at_work.join(OTHER)
        await at_work.until(lambda: ids(at_work, OTHER) == {"n-1"})
        at_work.join(OWNER, owner=True)
        assert ids(at_work, OWNER) == {"n-1"}
        await at_work.done(OTHER)
        assert sum(aws.depth(queue.url)) == 1, "the owner has not answered yet"
        await left(aws, queue, 0, at_work, OWNER, OTHER)


async def test_an_end_that_nobody_knows_waits_for_a_reader_that_joins_late(
    aws: Aws, calls: AwsCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start, say: one resource's shares are found at once, the other's regions do not answer."""
    queue = aws.queue()
    send(aws, queue, completion("n-1"), completion("n-2"))
    async with polling(calls, aws.url, queue, visibility=LONG) as at_work:
        await at_work.until(lambda: ids(at_work, OWNER) == {"n-1", "n-2"})
        await at_work.unclaimed(OWNER)
        assert at_work.waiting(OWNER) == ()
        at_work.join(OTHER)
        assert ids(at_work, OTHER) == {"n-1", "n-2"}
        known = at_work.waiting(OTHER)[0].id
        await at_work.poller.settle(OTHER, [known], [], [])
        assert sum(aws.depth(queue.url)) == 1, "it is deleted at once, since somebody has waited for it"
        await at_work.unclaimed(OTHER)
        assert sum(aws.depth(queue.url)) == 1
        monkeypatch.setattr(inflight, "UNCLAIMED_SECONDS", 0.0)
        await left(aws, queue, 0, at_work)
        at_work.join("third")
        assert len(ids(at_work, "third")) == 1, "deleted, and remembered"
        at_work.poller.messages.leave("third")
        at_work.join("fourth")
        await at_work.done("fourth")
        at_work.join("fifth")
        assert at_work.waiting("fifth") == (), "somebody has waited for it"


async def test_of_large_ends_that_nobody_knows_only_the_newest_are_kept(
    aws: Aws, calls: AwsCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others stay in the queue, and come again."""
    monkeypatch.setattr(inflight, "MOST_UNCLAIMED_BYTES", 2_500)
    queue = aws.queue()
    ends = [str(number) for number in range(4)]
    async with polling(calls, aws.url, queue, visibility=LONG) as at_work:
        for end in ends:
            send(aws, queue, completion(end, "x" * 1000))
            await at_work.until(lambda end=end: ids(at_work, OWNER) == {end})  # type: ignore[misc]
            await at_work.unclaimed(OWNER)
        send(aws, queue, event("a/1"))
        await at_work.until(lambda: at_work.keys() == ["a/1"])
        at_work.join(OTHER)
        assert ids(at_work, OTHER) == set(ends[2:])
        assert sum(aws.depth(queue.url)) == 5


async def test_without_the_lease_nothing_is_deleted_and_the_polling_goes_on(
    aws: Aws, calls: AwsCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the ends that nobody knows, which the poller parts with by itself."""

    refused = []

    def guard(seconds: float) -> None:
        refused.append(seconds)
        raise NotLeader("the Lease is gone")

    monkeypatch.setattr(inflight, "UNCLAIMED_SECONDS", 0.0)
    queue = aws.queue()
    send(aws, queue, completion("n-1"))
    async with polling(calls, aws.url, queue, visibility=LONG) as at_work:
        await at_work.until(lambda: ids(at_work, OWNER) == {"n-1"})
        calls.hooks.guard = guard
        await at_work.unclaimed(OWNER)
        send(aws, queue, event("a/1"))
        await at_work.until(lambda: at_work.keys() == ["a/1"] and bool(refused))
        assert sum(aws.depth(queue.url)) == 2
        calls.hooks.guard = None
        send(aws, queue, event("a/2"))
        await at_work.until(lambda: at_work.keys() == ["a/1", "a/2"])
        await left(aws, queue, 1, at_work, OWNER)


async def test_the_first_receive_does_not_wait_and_so_tells_at_once_whether_the_queue_can_be_read(
    aws: Aws, sqs_proxy: SqsProxy, calls: AwsCalls
) -> None:
    queue = aws.queue()
    async with polling(calls, sqs_proxy.url, queue) as at_work:
        await at_work.until(lambda: sqs_proxy.calls.count("ReceiveMessage") >= 3)
        first, *others = sqs_proxy.calls.all("ReceiveMessage")
        assert (first.wait, {call.wait for call in others}) == (0, {1})
        assert at_work.poller.connected


async def test_what_a_reader_had_not_answered_for_when_it_left_comes_again(aws: Aws, calls: AwsCalls) -> None:
    queue = aws.queue()
    send(aws, queue, event("a/1"), completion("n-1"))
    async with polling(calls, aws.url, queue) as at_work:
        at_work.join(OTHER)
        await at_work.until(lambda: at_work.keys() == ["a/1"] and ids(at_work, OTHER) == {"n-1"})
        at_work.poller.messages.leave(OWNER)
        assert not at_work.poller.messages.idle
        await at_work.done(OTHER)
        assert at_work.waiting(OWNER) == ()
        at_work.join(OWNER, owner=True)
        await at_work.until(lambda: at_work.keys() == ["a/1"] and ids(at_work, OTHER) == {"n-1"})
        at_work.poller.messages.leave(OTHER)
        at_work.poller.messages.leave(OWNER)
        assert at_work.poller.messages.idle


async def test_a_backlog_comes_in_by_several_receives_at_a_time(
    aws: Aws, sqs_proxy: SqsProxy, calls: AwsCalls
) -> None:
    queue = aws.queue()
    send(aws, queue, *(event(f"a/{n}") for n in range(400)))
    sqs_proxy.add(Match("ReceiveMessage"), Slow(0.3))
    async with polling(calls, sqs_proxy.url, queue, visibility=LONG) as at_work:
        await at_work.until(lambda: len(at_work.waiting()) == 400)
        receives = sorted(call.at for call in sqs_proxy.calls.all("ReceiveMessage"))
        together = max(sum(at <= other < at + 0.3 for other in receives) for at in receives)
        assert 1 < together <= MOST_RECEIVES
        await left(aws, queue, 0, at_work, OWNER)
    deletes = sqs_proxy.calls.all("DeleteMessageBatch")
    assert [call.entries for call in deletes] == [BATCH] * 40


def _quiet(sqs_proxy: SqsProxy, seconds: float) -> bool:
    """Whether no receive has begun for so long; a long poll takes one second here."""
    return time.time() - sqs_proxy.calls.all("ReceiveMessage")[-1].at > seconds


async def test_nothing_more_is_received_while_readers_are_behind(
    aws: Aws, sqs_proxy: SqsProxy, calls: AwsCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server is away, say: receipts grow old, and another operator may do better."""
    monkeypatch.setattr(inflight, "LONGEST_WAIT", 0.5)
    queue = aws.queue()
    send(aws, queue, event("a/1"))
    async with polling(calls, sqs_proxy.url, queue, visibility=LONG) as at_work:
        await at_work.until(lambda: at_work.keys() == ["a/1"])

        await at_work.until(lambda: _quiet(sqs_proxy, 2))
        before = sqs_proxy.calls.count("ReceiveMessage")
        send(aws, queue, event("a/2"))
        await at_work.until(lambda: _quiet(sqs_proxy, 4))
        assert sqs_proxy.calls.count("ReceiveMessage") == before
        assert at_work.keys() == ["a/1"]
        await at_work.done()
        await at_work.until(lambda: at_work.keys() == ["a/2"])
        await left(aws, queue, 0, at_work, OWNER)


@pytest.mark.parametrize(("bound", "most"), [("MOST_WAITING", 20), ("MOST_BYTES", 20_000)])
async def test_no_more_than_so_much_waits_here(
    bound: str, most: int, aws: Aws, sqs_proxy: SqsProxy, calls: AwsCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 messages of a kilobyte each, 20 and what was on its way when they were here."""
    monkeypatch.setattr(inflight, bound, most)
    queue = aws.queue()
    send(aws, queue, *(event(f"a/{n}/{'x' * 850}") for n in range(200)))
    async with polling(calls, sqs_proxy.url, queue, visibility=LONG) as at_work:
        await at_work.until(lambda: bool(at_work.waiting()) and _quiet(sqs_proxy, 3))
        seen = set(at_work.keys())
        assert 20 <= len(seen) <= 20 + BATCH * MOST_RECEIVES
        while len(seen) < 200:
            await at_work.done()
            await at_work.until(lambda: bool(at_work.waiting()))
            seen.update(at_work.keys())
        await left(aws, queue, 0, at_work, OWNER)


async def test_a_queue_whose_owner_does_not_read_is_left_alone(
    aws: Aws, sqs_proxy: SqsProxy, calls: AwsCalls
) -> None:
    """Each receive of an event that nobody may act on would bring it nearer to the dead-letter queue."""
    queue = aws.queue()
    send(aws, queue, event("a/1"), completion("n-1"))
    away = True
    how = {"owner": False, "owner_absent": lambda: away}
    async with polling(calls, sqs_proxy.url, queue, visibility=LONG, **how) as at_work:
        at_work.join(OTHER)
        began = time.monotonic()
        await at_work.until(lambda: time.monotonic() - began > 3)
        assert sqs_proxy.calls.count("ReceiveMessage") == 0
        away = False
        await at_work.until(lambda: ids(at_work, OTHER) == {"n-1"})


async def test_a_reader_that_never_answers_does_not_keep_the_queue_from_the_others(
    aws: Aws, calls: AwsCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes fail, say. It is asked again when the message has come again."""
    monkeypatch.setattr(inflight, "LONGEST_WAIT", 0.5)
    queue = aws.queue()
    send(aws, queue, completion("n-1"))
    async with polling(calls, aws.url, queue, visibility=3) as at_work:
        at_work.join(OTHER)
        await at_work.until(lambda: ids(at_work, OWNER) == {"n-1"})
        await at_work.done(OWNER)
        send(aws, queue, event("a/1"))
        await at_work.until(lambda: at_work.keys() == ["a/1"])
        await at_work.done(OWNER)
        await at_work.until(lambda: ids(at_work, OTHER) == {"n-1"})
        await left(aws, queue, 0, at_work, OWNER, OTHER)


def test_an_end_that_nobody_knows_goes_before_any_visibility_timeout_is_over() -> None:
    """Or it would come again and again, until it is dead."""
    rule = r"visibilityTimeout must be a duration from (\d+)s"
    (least,) = re.findall(rule, (CHECKOUT / "crds" / "s3aggregatedrefreshes.yaml").read_text())
    assert int(least) > inflight.UNCLAIMED_SECONDS
