"""Who ends tasks hears of its own end all the same."""

import asyncio

import pytest

from caretaker.runtime import tasks as module
from caretaker.runtime.tasks import YieldingLock, cancel, in_pieces


async def slow() -> None:
    """Takes some turns of the event loop to end."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        for _ in range(3):
            await asyncio.sleep(0)


async def failing() -> None:
    raise ValueError("as it likes")


async def test_all_have_ended_whatever_they_raised() -> None:
    tasks = [asyncio.create_task(work()) for work in (slow, failing, slow)]
    await asyncio.sleep(0)
    await cancel(*tasks)
    assert [task.done() for task in tasks] == [True] * 3


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_meanwhile_goes_no_further(turns: int) -> None:
    """SIGTERM comes as the Lease is lost, say: what is lost here would keep the process from ending."""
    gone_on = asyncio.Event()

    async def ends() -> None:
        await cancel(asyncio.create_task(slow()))
        await asyncio.sleep(0)
        gone_on.set()
        await asyncio.get_running_loop().create_future()

    ending = asyncio.create_task(ends())
    for _ in range(turns):
        await asyncio.sleep(0)
    ending.cancel()
    done, _ = await asyncio.wait({ending}, timeout=10)
    assert done, "the cancellation was lost"
    assert ending.cancelled()


async def test_others_go_on_between_pieces_and_no_item_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    assert [item async for item in in_pieces(range(50))] == list(range(50))
    assert not turns, "fast items cause no yield"
    monkeypatch.setattr(module, "SLICE", 0.0)
    assert [item async for item in in_pieces(range(50))] == list(range(50))
    beside.cancel()
    assert len(turns) >= 50


async def test_of_what_takes_long_no_two_come_in_one_turn_of_the_loop() -> None:
    """Without it, passes that start together would delay all other tasks by their sum."""
    one, turn, done = YieldingLock(), 0, list[int]()

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def works() -> None:
        async with one:
            done.append(turn)

    counting = asyncio.create_task(count())
    await asyncio.gather(*(works() for _ in range(8)))
    counting.cancel()
    assert len(set(done)) == 8
    with pytest.raises(ValueError, match="x"):
        async with one:
            raise ValueError("x")
    async with asyncio.timeout(5), one:
        pass
