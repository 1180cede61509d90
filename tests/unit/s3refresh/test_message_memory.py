"""Messages in flight have a bound in bytes, for a namespace and for all; no namespace waits for others."""

import asyncio

from caretaker.s3refresh.envelope import parse
from caretaker.s3refresh.inflight import (
    MOST_BYTES,
    MOST_BYTES_OF_ALL,
    InFlightMessages,
    MessageMemory,
)
from fakes.virtualtime import run

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


def test_a_namespace_over_its_share_waits_with_all_its_queues_and_others_go_on() -> None:
    async def scenario() -> None:
        memory = MessageMemory()
        one, two, other = (owned(memory, name) for name in ("a", "a", "b"))
        number = put(one, MOST_BYTES)
        assert [await waits(queue) for queue in (one, two, other)] == [True, True, False]
        waiting = asyncio.create_task(two.room(600))
        await asyncio.sleep(2)
        assert not waiting.done()
        one.settle("owner", [number], [], [])
        await asyncio.wait_for(waiting, 5)

    run(scenario())


def test_a_queue_of_completion_events_alone_is_read_for_all_namespaces() -> None:
    async def scenario() -> None:
        memory = MessageMemory()
        put(owned(memory, "a"), MOST_BYTES)
        completions = InFlightMessages(memory, "a")
        completions.join("reader", lambda: None, owner=False)
        assert not await waits(completions)

    run(scenario())


def test_where_all_have_too_much_those_with_less_than_an_equal_share_go_on() -> None:
    async def scenario() -> None:
        memory = MessageMemory()
        queues = [owned(memory, name) for name in "abcd"]
        for queue, mib in zip(queues, (7, 7, 5, 1), strict=True):
            put(queue, mib << 20)
        assert MOST_BYTES_OF_ALL == 4 * (4 << 20)
        assert [await waits(queue) for queue in queues] == [True, True, True, False]
        assert not await waits(owned(memory, "e"))

    run(scenario())


def test_a_queue_that_is_not_read_any_more_takes_nothing() -> None:
    async def scenario() -> None:
        memory = MessageMemory()
        one, two = (owned(memory, "a") for _ in range(2))
        put(one, MOST_BYTES)
        one.clear()
        assert not await waits(two)
        put(one, MOST_BYTES)
        one.leave("owner")
        assert not await waits(two)

    run(scenario())


def test_ends_that_no_reader_claims_keep_no_other_queue_waiting() -> None:
    async def scenario() -> None:
        memory = MessageMemory()
        one, two = (owned(memory, "a") for _ in range(2))
        number = put(one, MOST_BYTES)
        one.settle("owner", [], [], [number])
        assert [await waits(one), await waits(two)] == [False, False]
        assert len(one.unclaimed()) == 0
        assert memory.room("a")

    run(scenario())
