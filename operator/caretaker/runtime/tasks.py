"""Tasks end with those who began them."""

import asyncio
from typing import Any


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel them and return when all have ended, whatever they raised.

    Nothing is suppressed here: a CancelledError is the caller's own, and one that is lost keeps the process
    from ending.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
