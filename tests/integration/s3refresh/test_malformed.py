"""Messages that cannot be read: what spec.source.sqs.malformed makes of them, and that they stop nobody."""

import json
import time
from typing import Any

import pytest

from awsdoubles.envelopes import Queue
from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Json
from testing.refreshing import TIME_SCALE, TIMEOUT, Refreshing, sqs

pytestmark = pytest.mark.slow

TEST_EVENT = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "any"})
LONG_KEY = (  # longer than any of S3's, and 32,000 levels deep
    '{"Records": [{"eventVersion": "2.1", "eventName": "ObjectCreated:Put", '
    '"s3": {"bucket": {"name": "any"}, "object": {"key": "' + "a/" * 32_000 + '"}}}]}'
)
POISON = [
    "no event",
    "{}",
    '{"Records": 3}',
    '{"Records": [{"eventVersion": "9.0"}]}',
    "\N{SNOWMAN}",
    LONG_KEY,
]
RECEIVES = 5  # the redrive policy of the tests' queues
MOST = 2**20  # bytes of a message, SQS's own limit
MINUTE = 60.0 * TIME_SCALE
MANY = 1000  # records of about 1 KiB each


def record(bucket: str, key: str, **more: Any) -> dict[str, Any]:
    """An event as S3 sends it."""
    what = {"bucket": {"name": bucket}, "object": {"key": key, "size": 1}}
    return {"eventVersion": "2.6", "eventName": "ObjectCreated:Put", "s3": what, **more}


def body(*records: dict[str, Any]) -> str:
    return json.dumps({"Records": records})


def send(refreshing: Refreshing, queue: Queue, *bodies: str) -> None:
    """One batch: they are received together, as far as SQS likes to."""
    entries = [{"Id": str(at), "MessageBody": text} for at, text in enumerate(bodies)]
    sent = refreshing.aws.sqs.send_message_batch(QueueUrl=queue.url, Entries=entries)
    assert not sent.get("Failed")


def burn(refreshing: Refreshing, queue: Queue, count: int) -> None:
    """Receive every message once and leave it where it is."""
    seen: set[str] = set()
    handles = []
    while len(seen) < count:
        batch = refreshing.aws.sqs.receive_message(
            QueueUrl=queue.url, MaxNumberOfMessages=10, WaitTimeSeconds=1
        )["Messages"]
        seen |= {message["MessageId"] for message in batch}
        handles += [message["ReceiptHandle"] for message in batch]
    for handle in handles:
        refreshing.aws.sqs.change_message_visibility(
            QueueUrl=queue.url, ReceiptHandle=handle, VisibilityTimeout=0
        )


def dead_letters(refreshing: Refreshing, queue: Queue) -> list[str]:
    """The bodies of all dead letters."""
    found: list[str] = []
    while len(found) < len(POISON):
        batch = refreshing.aws.sqs.receive_message(
            QueueUrl=queue.dead_letters, MaxNumberOfMessages=10, WaitTimeSeconds=1
        )["Messages"]
        found += [message["Body"] for message in batch]
    return found


def sandwich(bucket: str) -> list[str]:
    """Poison, a test event and another bucket's event between two good ones."""
    return [
        body(record(bucket, "first/1")),
        *POISON,
        TEST_EVENT,
        body(record("somebody-elses-bucket", "theirs/1")),
        body(record(bucket, "last/1")),
    ]


async def test_with_discard_poison_is_deleted_and_the_rest_of_the_batch_is_refreshed(
    shared: Refreshing,
) -> None:
    bucket = shared.aws.bucket("first/0", "last/0")
    queue, share = shared.aws.queue(), shared.share(bucket)
    shared.aws.put(bucket, "first/1", "last/1")
    send(shared, queue, *sandwich(bucket))
    resource = await shared.create(queue, source={"sqs": sqs(queue, malformed="Discard")})
    (made,) = await shared.refreshed(share)
    await shared.fresh(share)
    assert set(made["folders"]) == {"/", "first", "last"}
    told = await resource.condition("MalformedMessages", reason="Unreadable")
    assert told["message"].startswith("messages of the last hour could not be read, the latest: ")
    await shared.emptied(queue.url)
    assert shared.aws.depth(queue.dead_letters) == (0, 0)


async def test_with_refresh_all_every_share_is_refreshed_whole(shared: Refreshing) -> None:
    bucket, other = shared.aws.bucket("a/0"), shared.aws.bucket("b/0")
    queue, shares = shared.aws.queue(), [shared.share(bucket), shared.share(other)]
    shared.aws.put(bucket, "a/1")
    shared.aws.put(other, "b/1")
    send(shared, queue, *POISON)
    await shared.create(queue, source={"sqs": sqs(queue, malformed="RefreshAll")})
    for share in shares:
        (made,) = await shared.refreshed(share)
        assert (made["folders"], made["recursive"]) == (["/"], True)
        await shared.fresh(share)
    await shared.emptied(queue.url)
    assert shared.aws.depth(queue.dead_letters) == (0, 0)


async def test_with_dead_letter_poison_ends_in_the_dead_letter_queue_and_nothing_else_does(
    shared: Refreshing,
) -> None:
    """Hole 21: the article had neither a dead-letter queue nor an alarm."""
    bucket = shared.aws.bucket("first/0", "last/0")
    queue, share = shared.aws.queue(), shared.share(bucket)
    shared.aws.put(bucket, "first/1", "last/1")
    send(shared, queue, *sandwich(bucket))
    for _ in range(RECEIVES - 1):  # of what the queue's redrive policy allows; the operator's is the last
        burn(shared, queue, len(POISON) + 4)
    resource = await shared.create(queue, source={"sqs": sqs(queue, malformed="DeadLetter")})
    (made,) = await shared.refreshed(share)
    await shared.fresh(share)
    assert set(made["folders"]) == {"/", "first", "last"}
    await resource.condition("MalformedMessages", reason="Unreadable")
    await resource.condition("Ready")
    await shared.until(
        lambda: shared.aws.depth(queue.dead_letters)[0] == len(POISON), "all poison is a dead letter"
    )
    await shared.emptied(queue.url)
    assert sorted(dead_letters(shared, queue)) == sorted(POISON)


def dead_and_covered(found: Json) -> tuple[int, int]:
    """(dead letters, how many of them are covered by a refresh of everything)."""
    queue = found["status"]["queue"]
    return queue["dlqVisible"], queue["dlqCovered"]


async def test_dead_letters_are_followed_by_a_refresh_of_everything_or_told_until_they_are_gone(
    shared: Refreshing, sqs_proxy: SqsProxy
) -> None:
    """Messages that were received too often: by former leaders, or by another consumer while the queue is
    read. Dead letters that are older than the resource do not count."""
    bucket = shared.aws.bucket("a/0")
    queue, share = shared.aws.queue(), shared.share(bucket)
    shared.aws.wiring.connect(bucket, queue)
    shared.aws.sqs.send_message(QueueUrl=queue.dead_letters, MessageBody="of old")
    resource = await shared.create(queue)
    await shared.put(bucket, "a/1")
    await resource.caught_up()
    assert dead_and_covered(await resource.get()) == (1, 1)
    told = body(record(bucket, "b/1"))

    shared.aws.sqs.send_message(QueueUrl=queue.dead_letters, MessageBody=told)
    _, second = await shared.refreshed(share, 2)
    assert (second["folders"], second["recursive"]) == (["/"], True)
    assert dead_and_covered(await resource.caught_up()) == (2, 2)

    # The queue is checked every minute until messages of former leaders are visible again, then hourly.
    name = queue.url.rpartition("/")[2]
    await shared.until(
        lambda: time.time() - sqs_proxy.calls.all("GetQueueAttributes", name)[-1].at > 1.5 * MINUTE,
        "the queue is quiet",
        2 * TIMEOUT,
    )
    shared.aws.sqs.send_message(QueueUrl=queue.dead_letters, MessageBody=told)
    await shared.put(bucket, "a/2")  # while messages arrive, the queue is checked every minute
    said = await resource.condition("CaughtUp", "False", "DeadLetters")
    assert said["message"].startswith("about 1 message(s) in the dead-letter queue")
    await resource.condition("Ready")
    assert dead_and_covered(await resource.get()) == (3, 2)
    assert not any(made["recursive"] for made in shared.control.refreshes(share)[2:]), "only reported"
    shared.aws.sqs.purge_queue(QueueUrl=queue.dead_letters)
    await resource.condition("CaughtUp")


async def test_a_backlog_is_told_though_nothing_of_it_concerns_a_share(shared: Refreshing) -> None:
    bucket = shared.aws.bucket()
    queue = shared.aws.queue()
    shared.share(bucket)
    theirs = body(record("somebody-elses-bucket", "theirs/1"))
    for _ in range(20):
        send(shared, queue, *[theirs] * 10)
    resource = await shared.create(queue)
    await resource.condition("CaughtUp", "False", "Backlog")
    await resource.condition("CaughtUp")
    assert shared.aws.depth(queue.url) == (0, 0)


async def test_a_body_as_large_as_sqs_takes_is_read_to_its_end(shared: Refreshing) -> None:
    keys = [f"{n % 3}/{'x' * 900}{n}" for n in range(MANY)]
    bucket = shared.aws.bucket("0/a", "1/a", "2/a", "last/a")
    queue, share = shared.aws.queue(), shared.share(bucket)
    text = body(*(record(bucket, key) for key in (*keys, "last/1")))
    assert 0.99 * MOST < len(text) <= MOST
    shared.aws.put(bucket, *keys[:3], "last/1")
    send(shared, queue, text.ljust(MOST))
    await shared.create(queue)
    (made,) = await shared.refreshed(share)
    assert set(made["folders"]) == {"/", "0", "1", "2", "last"}
    await shared.fresh(share)
    await shared.emptied(queue.url)
