"""The poller against real SQS protocol servers, with a proxy that does what no emulator does."""

import asyncio

import pytest

from awsdoubles.envelopes import Envelope, Queue
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.sqsproxy.rules import (
    Action,
    Duplicate,
    EmptyReceive,
    Fail,
    FailEntries,
    LoseReply,
    Match,
    NotDeleted,
)
from caretaker.aws.calls import Aws as AwsCalls
from testing.aws import Aws
from testing.customresource import TIMEOUT
from testing.polling import polling

LONG = 120  # seconds: nothing comes again, however late it is deleted


async def emptied(aws: Aws, queue: Queue) -> None:
    async with asyncio.timeout(TIMEOUT):
        while await asyncio.to_thread(aws.depth, queue.url) != (0, 0):  # noqa: ASYNC110 - SQS tells nobody
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope.S3,
        Envelope.EVENTBRIDGE,
        pytest.param(Envelope.SNS, marks=pytest.mark.slow),
        pytest.param(Envelope.SNS_RAW, marks=pytest.mark.slow),
    ],
)
async def test_events_of_s3_are_received_kept_and_deleted_when_they_are_on_record(
    envelope: Envelope, aws: Aws, calls: AwsCalls
) -> None:
    source = aws.source(envelope)
    keys = ["a b/ü+.txt", "/lead", "c/d/", *(f"many/{n}" for n in range(20))]
    aws.put(source.bucket, *keys)
    async with polling(calls, aws.url, source.queue, visibility=LONG) as at_work:
        await at_work.until(lambda: at_work.keys() == sorted(keys))
        assert sum(aws.depth(source.queue.url)) >= len(keys), "nothing is deleted before it is on record"
        await at_work.done()
        assert at_work.waiting() == ()
        await emptied(aws, source.queue)


@pytest.mark.parametrize(
    ("operation", "action", "count"),
    [
        pytest.param("DeleteMessageBatch", NotDeleted(), 2, id="200 and not deleted"),
        pytest.param(
            "DeleteMessageBatch", FailEntries(3), 2, id="some of the batch failed", marks=pytest.mark.slow
        ),
        pytest.param("DeleteMessageBatch", LoseReply(), 1, id="the reply to a deletion is lost"),
        pytest.param(
            "DeleteMessageBatch", Fail(), 2, id="a deletion is answered by an error", marks=pytest.mark.slow
        ),
        pytest.param("ReceiveMessage", LoseReply(), 2, id="the reply to a receive is lost"),
        pytest.param(
            "ReceiveMessage", Fail(), 2, id="a receive is answered by an error", marks=pytest.mark.slow
        ),
        pytest.param("ReceiveMessage", EmptyReceive(), 2, id="silence", marks=pytest.mark.slow),
        pytest.param("ReceiveMessage", Duplicate(), 3, id="delivered twice", marks=pytest.mark.slow),
    ],
)
async def test_whatever_happens_every_event_comes_and_the_queue_is_empty_in_the_end(
    operation: str, action: Action, count: int, aws: Aws, sqs_proxy: SqsProxy, calls: AwsCalls
) -> None:
    source = aws.source()
    keys = {f"d/{n}" for n in range(12)}
    aws.put(source.bucket, *keys)
    seen: set[str] = set()
    rule = sqs_proxy.add(Match(operation), action, count)
    async with polling(calls, sqs_proxy.url, source.queue) as at_work:
        async with asyncio.timeout(TIMEOUT):
            while seen < keys or await asyncio.to_thread(aws.depth, source.queue.url) != (0, 0):
                seen.update(at_work.keys())
                await at_work.done()
                await asyncio.sleep(0.1)  # the visibility timeout has no event
    assert rule.applied >= 1
    assert seen == keys


async def test_a_message_that_is_kept_comes_again_and_a_malformed_one_ends_in_the_dead_letter_queue(
    aws: Aws, calls: AwsCalls
) -> None:
    queue = aws.queue(max_receives=2, visibility=1)
    aws.sqs.send_message(QueueUrl=queue.url, MessageBody="no event")
    async with polling(calls, aws.url, queue) as at_work:
        async with asyncio.timeout(TIMEOUT):
            while await asyncio.to_thread(aws.depth, queue.dead_letters) != (1, 0):
                await at_work.keep()
                await asyncio.sleep(0.1)
    assert at_work.poller.received >= 2


async def test_a_queue_that_is_not_there_is_told_and_read_once_it_is(aws: Aws, calls: AwsCalls) -> None:
    queue = aws.queue()
    aws.sqs.delete_queue(QueueUrl=queue.url)
    async with polling(calls, aws.url, queue) as at_work:
        await at_work.until(lambda: at_work.poller.problem is not None)
        assert at_work.poller.problem is not None
        assert at_work.poller.problem.not_found
        name = queue.url.rpartition("/")[2]
        aws.sqs.create_queue(QueueName=name)
        aws.sqs.send_message(QueueUrl=queue.url, MessageBody='{"Event": "s3:TestEvent"}')
        # Of receives side by side, one sent before may be refused after another has brought the message.
        await at_work.until(lambda: bool(at_work.waiting()) and at_work.poller.problem is None)
