"""Receives and the queue's attributes show whether messages have not been received yet. A queue that cannot
be read is tried again."""

import asyncio
import itertools
import time
from typing import Any

import msgspec
import pytest

from caretaker.api.objects import WireMeta
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.runtime.queue_consumer import BATCH
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.receiver import Poller, Queues, Receiver
from caretaker.s3refresh.resource import WorkerConfig
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.target_types import NO_TARGET
from caretaker.s3refresh.worker import Worker
from fakes.virtualtime import run
from testing.s3refreshes import reading

Script = list[int]


class Sqs:
    """Answers each receive with the next number of messages; after the last one it never answers."""

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)
        self._last = 0
        self.silent = asyncio.Event()

    async def receive_message(self, **_: Any) -> Any:
        if not self._counts:
            self.silent.set()
            await asyncio.Event().wait()
        names = range(self._last, self._last + self._counts.pop(0))
        self._last = names.stop
        return {"Messages": [{"MessageId": str(n), "ReceiptHandle": "r", "Body": "{}"} for n in names]}

    async def delete_message_batch(self, **_: Any) -> Any:
        return {}


async def after(*counts: int, wait: int = 20) -> tuple[Poller, list[bool]]:
    """A poller after these receives, and `behind` at each of its notifications."""
    sqs: Any = Sqs(*counts)
    poller, told = Poller(sqs, reading("q", wait)), []
    poller.messages.join("owner", lambda: told.append(poller.backlog.behind), owner=True)
    task = asyncio.create_task(poller.run())
    async with asyncio.timeout(10):
        await sqs.silent.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return poller, told


@pytest.mark.parametrize(
    ("counts", "behind"),
    [
        pytest.param([0], False, id="nothing has come"),
        pytest.param([3], False, id="one receive that was not full"),
        pytest.param([BATCH], True, id="a full one: there may be more"),
        pytest.param([BATCH, BATCH, BATCH], True, id="more and more"),
        pytest.param([BATCH, BATCH, 3], True, id="short polls say nothing of the rest"),
        pytest.param([BATCH, 0, 0, 0], False, id="a long poll that brings nothing does"),
    ],
)
async def test_receives(counts: Script, behind: bool) -> None:
    poller, _ = await after(*counts)
    assert poller.backlog.behind is behind


async def test_short_polls_that_the_spec_asks_for_say_nothing_of_the_rest() -> None:
    poller, _ = await after(BATCH, 0, wait=0)
    assert poller.backlog.behind


async def test_a_flood_of_malformed_messages_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    poller, _ = await after(BATCH, BATCH, BATCH)
    assert poller.received == 3 * BATCH
    assert [one for one in caplog.messages if "cannot be read" in one] == [
        f"message 0 cannot be read: {poller.malformed.recent()}"
    ]


async def test_readers_are_told_when_it_changes() -> None:
    _, told = await after(BATCH, 0, 0, 0)
    assert told[-2:] == [True, False]


@pytest.mark.parametrize(
    ("counts", "visible", "ago", "behind"),
    [
        pytest.param([3], 50_000, 0.0, True, id="messages are visible"),
        pytest.param([3], 0, 0.0, False, id="none are"),
        pytest.param([0, 0], 50_000, 3600.0, False, id="a long poll has brought nothing since"),
        pytest.param([BATCH], 0, 0.0, False, id="all have been received since"),
        pytest.param([BATCH], 0, 3600.0, True, id="more have come since"),
    ],
)
async def test_looks(counts: Script, visible: int, ago: float, behind: bool) -> None:
    poller, _ = await after(*counts)
    poller.backlog.saw(visible, time.monotonic() - ago)
    assert poller.backlog.behind is behind


def test_a_queue_that_cannot_be_read_is_tried_again_ever_later() -> None:
    class Down:
        """Does not answer, but for the seventh receive."""

        def __init__(self) -> None:
            self.asked: list[float] = []
            self.enough = asyncio.Event()

        async def receive_message(self, **_: Any) -> Any:
            self.asked.append(asyncio.get_running_loop().time())
            if len(self.asked) == 7:
                return {}
            if len(self.asked) == 10:
                self.enough.set()
            raise AwsError(ErrorClass.TRANSIENT, "Down", "no", service="sqs", operation="ReceiveMessage")

    async def asked() -> list[float]:
        sqs: Any = Down()
        poller = Poller(sqs, reading("q"))
        poller.messages.join("owner", lambda: None, owner=True)
        task = asyncio.create_task(poller.run())
        await sqs.enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [later - before for before, later in itertools.pairwise(sqs.asked)]

    assert run(asked()) == [1, 2, 5, 15, 30, 30, 0, 1, 2]


async def test_a_message_that_is_settled_does_not_wait_for_the_next_pass() -> None:
    """That pass may begin before its deletion: its events would be refreshed twice."""
    poller, _ = await after(3)
    settled = [message.id for message in poller.messages.waiting("owner")[0]]
    assert len(settled) == 3
    deletion = poller.settle("owner", settled, [])
    assert poller.messages.waiting("owner")[0] == ()
    assert poller.deleted == 0
    await deletion
    assert poller.deleted == 3


@pytest.mark.parametrize("counts", [(), (0,)], ids=["nothing was received yet", "an empty short poll"])
async def test_a_look_counts_that_came_before_the_targets_were_found(counts: Script) -> None:
    """Then nothing is received yet, and the next look is a minute away."""
    config = WorkerConfig(
        reading("https://sqs.eu-west-1.amazonaws.com/111122223333/q"), None, 600.0, NO_TARGET, ()
    )
    looked = asyncio.Event()

    class Looked(Sqs):
        async def get_queue_attributes(self, **_: Any) -> Any:
            return {"Attributes": {"ApproximateNumberOfMessages": "50"}}

    class Slow:
        async def discover(self) -> Discovery:
            await looked.wait()
            return Discovery(complete=True, shares=of_buckets(["media"]))

    def news(*_: Any) -> None:
        if worker.inspector.view.checked:
            looked.set()

    sqs = Looked(*counts)
    aws: Any = type("Aws", (), {"sqs": lambda *_: sqs})()
    target: Any = Slow()
    client: Any = sqs
    worker = Worker(
        WireMeta(name="r", namespace="n", uid="u"), Queues(aws, lambda _: False), news, lambda *_: None
    )
    await worker.begin(config, client, target)
    async with asyncio.timeout(10):
        await sqs.silent.wait()
    reception = worker.state().reception
    await worker.end()
    assert (reception.polling, reception.behind) == (True, True)


async def test_the_counts_of_a_queue_are_told_while_its_completion_queue_has_no_reader() -> None:
    """That queue is the source of another resource, which is suspended."""
    source, ends = reading("https://sqs.eu-west-1.amazonaws.com/111122223333/q"), reading("https://sqs/ends")
    news, sqs = asyncio.Event(), Sqs(0)
    aws: Any = type("Aws", (), {"sqs": lambda *_: sqs})()
    queues = Queues(aws, lambda arn: arn == "ends")
    receiver = Receiver(Key("S3AggregatedRefresh", "n", "r"), queues, news.set)
    receiver.start([source, msgspec.structs.replace(ends, arn="ends")])
    async with asyncio.timeout(10):
        await sqs.silent.wait()
    told = receiver.reception()
    await receiver.pause()
    assert (told.polling, told.reading, told.behind) == (True, True, False)
