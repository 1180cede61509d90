"""More queues than threads: long polls take turns, and a queue with messages does not wait for idle ones."""

import asyncio
from collections import Counter
from typing import Any, Final

import pytest

from caretaker.aws.session import Options
from caretaker.daemontask.ecs import reader
from caretaker.runtime.queue_consumer import BATCH, MOST_RECEIVES, LongPolls
from caretaker.s3refresh.receiver import MOST_LONG_POLLS, Poller
from testing.s3refreshes import reading

QUEUES: Final = 400
BUSY: Final = "busy"


class Sqs:
    """SQS with a limited number of threads. A long poll waits until the test releases it; the busy queue
    always has more messages."""

    def __init__(self) -> None:
        self.polled: Counter[str] = Counter()  # queue -> long polls begun
        self.waits: set[int] = set()
        self.received = 0
        self.news = asyncio.Event()
        self._threads = asyncio.Semaphore(Options().polls)
        self._waiting: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def receive_message(self, *, QueueUrl: str, WaitTimeSeconds: int, **_: Any) -> Any:  # noqa: N803
        async with self._threads:
            self.news.set()
            if QueueUrl == BUSY:
                numbers = range(self.received, self.received + BATCH)
                self.received = numbers.stop
                return {"Messages": [_message(number) for number in numbers]}
            if WaitTimeSeconds:
                self.polled[QueueUrl] += 1
                self.waits.add(WaitTimeSeconds)
                ended = asyncio.Event()
                await self._waiting.put(ended)
                await ended.wait()
            return {}

    async def delete_message_batch(self, **_: Any) -> Any:
        return {}

    async def let_go(self) -> None:
        """End the long poll that has waited longest."""
        (await self._waiting.get()).set()


def _message(number: int) -> dict[str, str]:
    return {"MessageId": str(number), "ReceiptHandle": "r", "Body": '{"Event": "s3:TestEvent"}'}


async def settled(sqs: Sqs) -> None:
    """Wait until no further poll begins."""
    busy = True
    while busy:
        for _ in range(20):
            await asyncio.sleep(0)
        busy = sqs.news.is_set()
        sqs.news.clear()


@pytest.fixture
async def idle() -> Any:
    """(SQS, the long polls) of 400 idle queues."""
    sqs: Any = Sqs()
    long_polls = LongPolls(MOST_LONG_POLLS)
    pollers = [Poller(sqs, reading(f"q{n}")) for n in range(QUEUES)]
    for poller in pollers:
        poller.long_polls = long_polls
        poller.messages.join("owner", lambda: None, owner=True)
        long_polls.add("", poller)
    tasks = [asyncio.create_task(poller.run()) for poller in pollers]
    await settled(sqs)
    yield sqs, long_polls
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_a_backlog_comes_in_though_more_queues_are_idle_than_there_are_threads(idle: Any) -> None:
    """Without turns all threads waited for idle queues, 20 s each: 4 to 8 messages a second."""
    sqs, long_polls = idle
    busy = Poller(sqs, reading(BUSY))
    busy.long_polls = long_polls

    def settle() -> None:
        numbers = [message.id for message in busy.messages.waiting("owner")[0]]
        chores.add(asyncio.ensure_future(busy.settle("owner", numbers, [])))

    chores: set[asyncio.Future[None]] = set()
    busy.messages.join("owner", settle, owner=True)
    task = asyncio.create_task(busy.run())
    for _ in range(2000):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, *chores, return_exceptions=True)
    assert sqs.received > 50 * BATCH
    assert sum(sqs.polled.values()) == MOST_LONG_POLLS, "and no long poll has ended meanwhile"


async def test_idle_queues_take_turns(idle: Any) -> None:
    sqs, _ = idle
    assert len(sqs.polled) == MOST_LONG_POLLS
    for _ in range(3 * QUEUES):
        await sqs.let_go()
        await settled(sqs)
    assert len(sqs.polled) == QUEUES
    assert max(sqs.polled.values()) - min(sqs.polled.values()) <= 1
    assert sqs.waits == {20 * MOST_LONG_POLLS // QUEUES}, "each is polled about every 20 s"


@pytest.mark.parametrize(
    ("queues", "asked", "waits"),
    [(1, 20, 20), (224, 20, 20), (225, 20, 19), (448, 20, 10), (448, 1, 1), (100_000, 20, 1)],
)
async def test_a_long_poll_is_shorter_while_others_wait_for_theirs(
    queues: int, asked: int, waits: int
) -> None:
    long_polls = LongPolls(MOST_LONG_POLLS)
    for queue in range(queues):
        long_polls.add("", queue)
    async with long_polls.slot("", asked) as seconds:
        assert seconds == waits


@pytest.fixture
async def crowd() -> Any:
    """(long polls, those under way as (namespace, seconds, its end)) of 2,240 idle queues of one namespace
    and one of another."""
    long_polls, under_way = LongPolls(MOST_LONG_POLLS), list[tuple[str, int, asyncio.Event]]()

    async def idle(namespace: str) -> None:
        while True:
            async with long_polls.slot(namespace, 20) as seconds:
                one = (namespace, seconds, asyncio.Event())
                under_way.append(one)
                try:
                    await one[2].wait()
                finally:
                    under_way.remove(one)

    queues = ["many"] * 10 * MOST_LONG_POLLS + ["one"]
    for number, namespace in enumerate(queues):
        long_polls.add(namespace, number)
    tasks = [asyncio.create_task(idle(namespace)) for namespace in queues]
    await turns()
    yield long_polls, under_way, tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def of(namespace: str, under_way: list[tuple[str, int, asyncio.Event]]) -> list[int]:
    return [seconds for name, seconds, _ in under_way if name == namespace]


async def test_many_queues_of_a_namespace_take_no_long_poll_of_another(crowd: Any) -> None:
    _, under_way, _ = crowd
    for ended in ("one", "many", "one"):
        assert of("one", under_way) == [20], "it neither waits nor is shorter"
        assert of("many", under_way) == [1] * (MOST_LONG_POLLS - 1)
        for name, _, end in under_way[:]:
            if name == ended:
                end.set()
        await turns()


@pytest.mark.parametrize(("slots", "namespaces"), [(MOST_LONG_POLLS, 113), (24, 13)])
async def test_no_slot_is_free_while_a_queue_waits(slots: int, namespaces: int) -> None:
    """With two queues for each namespace an equal share is a little less than two."""
    long_polls, held = LongPolls(slots), list[str]()

    async def idle(namespace: str) -> None:
        async with long_polls.slot(namespace, 20):
            held.append(namespace)
            await asyncio.Event().wait()

    queues = [f"n{number // 2}" for number in range(2 * namespaces)]
    for number, namespace in enumerate(queues):
        long_polls.add(namespace, number)
    tasks = [asyncio.create_task(idle(namespace)) for namespace in queues]
    await turns()
    assert len(held) == slots
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_queue_that_cannot_be_read_has_no_share(crowd: Any) -> None:
    long_polls, under_way, tasks = crowd
    tasks[-1].cancel()
    await turns()
    assert len(under_way) == MOST_LONG_POLLS - 1, "a slot is left for its next one"
    long_polls.remove("one", len(tasks) - 1)
    await turns()
    assert len(of("many", under_way)) == MOST_LONG_POLLS


async def test_a_long_poll_that_is_cancelled_leaves_its_slot_to_another(crowd: Any) -> None:
    _, under_way, tasks = crowd
    for task in tasks[:-1:2]:
        task.cancel()
    await turns()
    assert len(under_way) == MOST_LONG_POLLS
    assert of("one", under_way) == [20]


async def test_more_namespaces_than_slots_take_turns() -> None:
    long_polls, order = LongPolls(2), list[str]()

    async def poll(namespace: str) -> None:
        long_polls.add(namespace, namespace)
        for _ in range(2):
            async with long_polls.slot(namespace, 20) as seconds:
                order.append(f"{namespace}{seconds}")
                await asyncio.sleep(0)

    await asyncio.gather(*(poll(name) for name in "abcd"))
    assert order[2:] == ["c10", "d10", "a10", "b10", "c10", "d10"]


def test_threads_are_left_for_backlogs() -> None:
    assert Options().polls - MOST_LONG_POLLS - reader.MOST_LONG_POLLS >= 4 * MOST_RECEIVES
