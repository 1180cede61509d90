"""Renders the text of all metrics outside the event loop, at most once a second for any number of requests.

Inputs: a registry, whose collectors must be thread-safe. The text of a request is rendered after the request
arrived, never before. Of HTTP it knows the Accept header only.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

OPENMETRICS: Final = "application/openmetrics-text"


class _Format:
    """One of the formats. `next`: the next rendering; `at`: when the last one began."""

    def __init__(self, accept: str) -> None:
        # Only two of the formats that clients may request: each format is rendered separately.
        self.encode, self.content_type = choose_encoder(accept)
        self.next: asyncio.Task[bytes] | None = None
        self.at = float("-inf")


class Exposition:
    """See the module. `every`: seconds between two texts of one format."""

    def __init__(self, registry: CollectorRegistry, every: float = 1.0) -> None:
        self._registry = registry
        self._every = every
        self._plain = _Format("")
        self._openmetrics = _Format(f"{OPENMETRICS}; version=1.0.0")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    async def get(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type. Requests that arrive before a rendering begins share it."""
        wanted = {part.partition(";")[0].strip() for part in accept.split(",")}
        form = self._openmetrics if OPENMETRICS in wanted else self._plain
        if form.next is None:
            form.next = asyncio.create_task(self._make(form), name="metrics")
        return await asyncio.shield(form.next), form.content_type

    async def _make(self, form: _Format) -> bytes:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(form.at + self._every - loop.time())
        form.at = loop.time()
        form.next = None
        return await loop.run_in_executor(self._thread, form.encode, self._registry)

    def close(self) -> None:
        """Stop rendering. Waiting requests are cancelled."""
        for form in (self._plain, self._openmetrics):
            if form.next is not None:
                form.next.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
