"""Counts the turns of the event loop that other tasks have while a coroutine runs."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def beside_others(work: Awaitable[T]) -> tuple[T, int]:
    """The result of `work`, and the number of turns that another task had meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await asyncio.sleep(0)
    try:
        return await work, turns
    finally:
        beside.cancel()
