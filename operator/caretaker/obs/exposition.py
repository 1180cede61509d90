"""The text of all metrics: made outside the event loop, and at most once a second, however many ask for it.

Inputs: a registry, whose collectors must be safe in any thread. What is returned was begun after it was asked
for. It must not know HTTP but for the Accept header.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

OPENMETRICS: Final = "application/openmetrics-text"


class _Form:
    """One of the formats. `next`: the text that is made next; `at`: when the last one was begun."""

    def __init__(self, accept: str) -> None:
        # Of all that a client may ask for these two: each form costs a second's text of its own.
        self.encode, self.content_type = choose_encoder(accept)
        self.next: asyncio.Task[bytes] | None = None
        self.at = float("-inf")


class Exposition:
    """See the module. `every`: seconds between two texts of one format."""

    def __init__(self, registry: CollectorRegistry, every: float = 1.0) -> None:
        self._registry = registry
        self._every = every
        self._plain = _Form("")
        self._openmetrics = _Form(f"{OPENMETRICS}; version=1.0.0")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    async def get(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type. All who come before it is begun share one."""
        wanted = {part.partition(";")[0].strip() for part in accept.split(",")}
        form = self._openmetrics if OPENMETRICS in wanted else self._plain
        if form.next is None:
            form.next = asyncio.create_task(self._make(form), name="metrics")
        return await asyncio.shield(form.next), form.content_type

    async def _make(self, form: _Form) -> bytes:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(form.at + self._every - loop.time())
        form.at = loop.time()
        form.next = None
        return await loop.run_in_executor(self._thread, form.encode, self._registry)

    def close(self) -> None:
        """Make no more. Whoever waits is let down."""
        for form in (self._plain, self._openmetrics):
            if form.next is not None:
                form.next.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
