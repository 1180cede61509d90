"""Coroutines at work in a thread of their own, beside the tests: for waits that nothing shortens.

Inputs: what to run, by name. Leaving it cancels what has not ended. What runs must not touch anything that
another test uses.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

Work = Callable[[], Coroutine[Any, Any, None]]


class Meanwhile:
    """Use it as a context manager; they all begin when it is entered."""

    def __init__(self, works: Mapping[str, Work]) -> None:
        self._works = works
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="meanwhile", daemon=True)
        self._found: dict[str, concurrent.futures.Future[None]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        for name, work in self._works.items():
            self._found[name] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def result(self, name: str) -> None:
        """Wait until that one has ended; raises what it raised."""
        self._found[name].result()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
