"""Messages in flight have a bound in bytes, for a namespace and for all; no namespace waits for others."""

import asyncio
from typing import Any

from caretaker.s3refresh.envelope import parse
from caretaker.s3refresh.inflight import (
    MOST_BYTES,
    MOST_BYTES_OF_ALL,
    InFlightMessages,
    MessageMemory,
)
from caretaker.s3refresh.receiver import Poller
from fakes.virtualtime import played
from testing.s3refreshes import reading

BODY = '{"Records": [{"eventVersion": "2.1", "eventName": "ObjectCreated:Put"}]}'


def owned(memory: MessageMemory, namespace: str) -> InFlightMessages:
    messages = InFlightMessages(memory, namespace)
    messages.join("owner", lambda: None, owner=True)
    return messages


def put(messages: InFlightMessages, size: int) -> int:
    """A message of that size; its number."""
    messages.join("owner", lambda: None, owner=True)
    messages.add("m", "r", size, parse(BODY))
    return messages.waiting("owner")[0][-1].id


async def waits(messages: InFlightMessages) -> bool:
    try:
        async with asyncio.timeout(5):
            await messages.room(600)
    except TimeoutError:
        return True
    return False


@played
async def test_a_namespace_over_its_share_waits_with_all_its_queues_and_others_go_on() -> None:
    memory = MessageMemory()
    one, two, other = (owned(memory, name) for name in ("a", "a", "b"))
    number = put(one, MOST_BYTES)
    assert [await waits(queue) for queue in (one, two, other)] == [True, True, False]
    waiting = asyncio.create_task(two.room(600))
    await asyncio.sleep(2)
    assert not waiting.done()
    one.settle("owner", [number], [], [])
    await asyncio.wait_for(waiting, 5)


@played
async def test_a_queue_of_completion_events_alone_is_read_for_all_namespaces() -> None:
    memory = MessageMemory()
    put(owned(memory, "a"), MOST_BYTES)
    completions = InFlightMessages(memory, "a")
    completions.join("reader", lambda: None, owner=False)
    assert not await waits(completions)


@played
async def test_where_all_have_too_much_those_with_less_than_an_equal_share_go_on() -> None:
    memory = MessageMemory()
    queues = [owned(memory, name) for name in "abcd"]
    for queue, mib in zip(queues, (7, 7, 5, 1), strict=True):
        put(queue, mib << 20)
    assert MOST_BYTES_OF_ALL == 4 * (4 << 20)
    assert [await waits(queue) for queue in queues] == [True, True, True, False]
    assert not await waits(owned(memory, "e"))


@played
async def test_a_queue_that_is_not_read_any_more_takes_nothing() -> None:
    memory = MessageMemory()
    one, two = (owned(memory, "a") for _ in range(2))
    put(one, MOST_BYTES)
    one.clear()
    assert not await waits(two)
    put(one, MOST_BYTES)
    one.leave("owner")
    assert not await waits(two)


@played
async def test_ends_that_no_reader_claims_keep_no_other_queue_waiting() -> None:
    memory = MessageMemory()
    one, two = (owned(memory, "a") for _ in range(2))
    number = put(one, MOST_BYTES)
    one.settle("owner", [], [], [number])
    assert [await waits(one), await waits(two)] == [False, False]
    assert len(one.unclaimed()) == 0
    assert memory.room("a")


@played
async def test_what_receives_under_way_are_likely_to_bring_counts_for_further_ones() -> None:
    memory = MessageMemory()
    one, other = owned(memory, "a"), owned(memory, "b")
    with memory.expecting("a", MOST_BYTES):
        assert [await waits(one), await waits(other)] == [True, False]
        assert one.fits(MOST_BYTES)
        with memory.expecting("c", MOST_BYTES):
            await asyncio.wait_for(other.room(600, 1 << 20), 5)
            with memory.expecting("d", 1), memory.expecting("b", 1):
                assert not memory.room("b", MOST_BYTES)
    assert not await waits(one)


class Sqs:
    """Has messages of `size` bytes. `news` is set when it has none, or gets some back."""

    def __init__(self, messages: int, size: int = 1 << 20) -> None:
        self.left = messages
        self.body = BODY + " " * (size - len(BODY))
        self.asked: list[tuple[int, bool]] = []  # of each receive: messages, whether it is a long poll
        self.back: list[str] = []
        self.news = asyncio.Event()
        self.more = asyncio.Event()

    async def receive_message(
        self,
        *,
        MaxNumberOfMessages: int,  # noqa: N803 - AWS's names
        WaitTimeSeconds: int,  # noqa: N803
        **_: Any,
    ) -> Any:
        self.asked.append((MaxNumberOfMessages, WaitTimeSeconds > 0))
        if not self.left and WaitTimeSeconds:
            self.news.set()
            await self.more.wait()
        numbers = range(self.left, max(self.left - MaxNumberOfMessages, 0), -1)
        self.left -= len(numbers)
        body = self.body
        return {"Messages": [{"MessageId": str(n), "ReceiptHandle": f"r{n}", "Body": body} for n in numbers]}

    async def change_message_visibility_batch(self, *, Entries: Any, **_: Any) -> Any:  # noqa: N803
        self.back += [one["ReceiptHandle"] for one in Entries]
        self.news.set()
        return {}


def polled(sqs: Any, memory: MessageMemory, namespace: str) -> tuple[Poller, "asyncio.Task[None]"]:
    poller = Poller(sqs, reading("q", 20), messages=owned(memory, namespace))
    return poller, asyncio.create_task(poller.run())


async def ended(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@played
async def test_of_large_messages_few_are_asked_for_at_a_time_and_none_is_waited_for_long() -> None:
    sqs = Sqs(16, 500_000)
    poller, task = polled(sqs, MessageMemory(), "a")
    await asyncio.wait_for(sqs.news.wait(), 10)
    assert len(poller.messages.waiting("owner")[0]) == 16
    assert sqs.asked == [(10, False), (4, False), (4, False), (4, False), (10, True)]
    await ended(task)


@played
async def test_small_messages_for_which_there_is_no_room_are_received_once() -> None:
    """Each time that they are received counts towards the dead-letter queue."""

    memory, share = MessageMemory(), MOST_BYTES_OF_ALL // 4
    for name, size in (("b", share), ("c", share), ("d", share + 100), ("a", share - 100)):
        put(owned(memory, name), size)
    sqs = Sqs(10_000, 1800)
    _, task = polled(sqs, memory, "a")
    await asyncio.wait_for(sqs.news.wait(), 10)
    await asyncio.sleep(10)
    assert (len(sqs.asked), len(sqs.back)) == (1, 10)
    await ended(task)


@played
async def test_a_namespace_that_has_nothing_receives_however_much_others_keep() -> None:
    memory = MessageMemory()
    for number in range(20):
        put(owned(memory, f"stuck-{number}"), MOST_BYTES_OF_ALL // 20 + 1)
    sqs = Sqs(1, 1800)
    poller, task = polled(sqs, memory, "a")
    await asyncio.wait_for(sqs.news.wait(), 10)
    assert (len(poller.messages.waiting("owner")[0]), sqs.back) == (1, [])
    assert not memory.room("b", MOST_BYTES_OF_ALL)
    await ended(task)


@played
async def test_what_comes_at_once_and_finds_no_room_goes_back() -> None:
    """Long polls of one namespace, in which all queues fill at a time."""

    memory, queues = MessageMemory(), [Sqs(0) for _ in range(3)]
    pollers = [polled(sqs, memory, "a") for sqs in queues]
    for sqs in queues:
        await asyncio.wait_for(sqs.news.wait(), 10)
        sqs.left = 5
    for sqs in queues:
        sqs.news.clear()
        sqs.more.set()
    await asyncio.wait_for(queues[2].news.wait(), 10)
    assert sum(len(poller.messages.waiting("owner")[0]) for poller, _ in pollers) == 8
    assert sum(len(sqs.back) for sqs in queues) == 7
    assert [bool(sqs.back) for sqs in queues] == [poller.backlog.behind for poller, _ in pollers]
    await ended(*(task for _, task in pollers))


def test_a_message_that_comes_twice_at_a_time_is_one() -> None:
    messages = owned(MessageMemory(), "a")
    messages.add("m", "r1", 1, parse(BODY))
    messages.add("m", "r2", 1, parse(BODY))
    (waiting,) = messages.waiting("owner")[0]
    ((entry,), _) = messages.settle("owner", [waiting.id], [], [])
    assert entry.receipt == "r2"
