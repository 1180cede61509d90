"""caretaker's command line at another pace, with a wall clock that is off, or behind, for OperatorProcess.

    python -P pace.py SCALE SKEW LAG run --no-leader-elect

SCALE: factor on the operator's backoffs, floors and, from 0.4 on, Lease times. SKEW: seconds that its wall
clock is ahead. LAG: seconds after which its writes of status are sent, and after which it gets the events of
its own watches.
"""

import asyncio
import contextlib
import importlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from caretaker.cli import main
from caretaker.kube.transport import Request, Transport


def fall_behind(seconds: float) -> None:
    """A test that takes one thing for a sign of another, such as a Pod for the status that counts it, then
    fails in its first run and not in its hundredth."""
    call, stream = Transport.call, Transport.stream

    async def late_call(self: Transport, request: Request, *, urgent: bool = False) -> bytes:
        if request.verb == "patch" and request.path.endswith("/status"):
            await asyncio.sleep(seconds)
        return await call(self, request, urgent=urgent)

    async def late_stream(self: Transport, *args: Any, **options: Any) -> AsyncIterator[bytes]:
        async with contextlib.aclosing(_late(stream(self, *args, **options), seconds)) as lines:
            async for line in lines:
                yield line

    Transport.call = late_call  # type: ignore[method-assign]
    Transport.stream = late_stream  # type: ignore[method-assign]


async def _late(source: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """Each line that much later."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        try:
            async for line in source:
                came.put_nowait((loop.time() + seconds, line))
        finally:
            came.put_nowait((0.0, b""))

    receiving = loop.create_task(receive())
    try:
        while True:
            due, line = await came.get()
            if not line:
                break
            await asyncio.sleep(due - loop.time())
            yield line
        await receiving
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


if __name__ == "__main__":
    scale, skew, lag = map(float, sys.argv[1:4])
    if skew:
        right = time.time
        time.time = lambda: right() + skew
    if lag:
        fall_behind(lag)
    if scale != 1.0:
        sys.path.append(str(Path(__file__).parents[1]))
        waits = importlib.import_module("testing.waits")
        waits.shorten(scale, lease="--no-leader-elect" not in sys.argv)
    raise SystemExit(main(sys.argv[4:]))
