"""Who ends tasks hears of its own end all the same."""

import asyncio

import pytest

from caretaker.runtime.tasks import cancel


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
