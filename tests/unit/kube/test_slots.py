"""Requests to the API server at a time: groups that wait take turns."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from caretaker.kube.slots import Slots


async def spin() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Requests:
    """Requests that last until they are ended."""

    def __init__(self, slots: int) -> None:
        self.slots = Slots(slots)
        self.running: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, group: str) -> asyncio.Task[None]:
        self.tasks.append(task := asyncio.create_task(self._send(group)))
        return task

    async def _send(self, group: str) -> None:
        async with self.slots.slot(group):
            mine = group, asyncio.Event()
            self.running.append(mine)
            try:
                await mine[1].wait()
            finally:
                self.running.remove(mine)

    async def end(self) -> None:
        """The oldest one."""
        self.running[0][1].set()
        await spin()

    def groups(self) -> list[str]:
        return [group for group, _ in self.running]


async def test_a_burst_of_one_group_delays_another_by_one_request() -> None:
    requests = Requests(2)
    for _ in range(100):
        requests.send("a")
    await spin()
    requests.send("b")
    requests.send("b")
    await spin()
    assert requests.groups() == ["a", "a"]
    await requests.end()
    await requests.end()
    assert requests.groups() == ["a", "b"]
    await requests.end()
    assert requests.groups() == ["b", "a"], "a group whose turn is over waits behind the others"
    await requests.end()
    assert requests.groups() == ["a", "b"]


async def test_within_a_group_the_first_comes_first() -> None:
    slots, order = Slots(1), []

    async def send(number: int) -> None:
        async with slots.slot("a"):
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(send(number) for number in range(10)))
    assert order == list(range(10))


async def test_one_that_is_cancelled_with_its_turn_passes_it_on() -> None:
    requests = Requests(1)

    async def first() -> None:
        async with requests.slots.slot("a"):
            await spin()
        cancelled.cancel()  # it has the slot since the line above, and does not know

    running = asyncio.create_task(first())
    await asyncio.sleep(0)
    cancelled = requests.send("a")
    requests.send("b")
    await running
    await spin()
    assert cancelled.cancelled()
    assert requests.groups() == ["b"]


async def test_one_that_is_cancelled_while_it_waits_takes_no_slot() -> None:
    requests = Requests(1)
    requests.send("a")
    await spin()
    cancelled = requests.send("a")
    requests.send("b")
    requests.send("b")
    await spin()
    cancelled.cancel()
    await spin()
    assert requests.groups() == ["a"], "the slot is still held"
    await requests.end()
    assert requests.groups() == ["b"]
    await requests.end()
    assert requests.groups() == ["b"]
    await requests.end()
    requests.send("a")
    await spin()
    assert requests.groups() == ["a"]


@given(
    limit=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["send", "end", "cancel"]), st.integers(0, 50)), max_size=60),
)
def test_no_slot_is_lost_and_none_is_made(limit: int, steps: list[tuple[str, int]]) -> None:
    async def history() -> None:
        requests = Requests(limit)
        for step, number in steps:
            if step == "send":
                requests.send("abc"[number % 3])
            elif step == "cancel" and requests.tasks:
                requests.tasks[number % len(requests.tasks)].cancel()
            elif requests.running:
                requests.running[number % len(requests.running)][1].set()
            if number % 2:
                await spin()
            assert len(requests.running) <= limit
        await spin()
        left = Counter(not task.done() for task in requests.tasks)[True]
        assert len(requests.running) == min(left, limit), "none waits beside a free slot"
        while requests.running:
            await requests.end()
        assert all(task.done() for task in requests.tasks)

    asyncio.run(history())


class ClosedError(Exception):
    """The slots are closed."""


async def test_once_closed_nobody_begins_and_who_has_begun_goes_on() -> None:
    requests = Requests(2)
    begun = [requests.send("a"), requests.send("a")]
    waiting = [requests.send("a"), requests.send("b")]
    cancelled = requests.send("b")
    await spin()
    cancelled.cancel()
    requests.running[0][1].set()
    await asyncio.sleep(0)  # its slot is given away, and nobody knows yet
    requests.slots.close(ClosedError)
    late = requests.send("c")
    await spin()
    assert [type(task.exception()) for task in (*waiting, late)] == [ClosedError] * 3
    assert (len(requests.running), begun[1].done()) == (1, False)
    await requests.end()
    assert begun[1].exception() is None
