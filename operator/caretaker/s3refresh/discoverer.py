"""Discovers the targets of one resource, now and then and when a call has failed.

It hands in its findings and asks for a pass. It decides nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from caretaker.api.s3refresh import MAX_TARGETS
from caretaker.kube.errors import NotLeader
from caretaker.s3refresh.inspection import backoff
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient

logger = logging.getLogger(__name__)

REDISCOVER_SECONDS: Final = 10.0  # at least, between two discoveries that failed calls ask for
NOTHING_KNOWN: Final = Discovery()


class Discoverer:
    """`discovery`: the last result. `on_news` asks for a pass."""

    def __init__(self, on_news: Callable[[], None], scale: float) -> None:
        self.discovery = Discovery()
        self._on_news = on_news
        self._scale = scale
        self._again = asyncio.Event()  # discovery is asked for

    def reset(self) -> None:
        """Earlier findings do not count any more."""
        self.discovery = Discovery()

    def ask(self) -> None:
        """Something that was found is not there, or is not as it was."""
        self._again.set()

    async def run(
        self, target: TargetClient, target_type: TargetType, every: float, on_complete: Callable[[], None]
    ) -> None:
        """Discover every so many seconds; `on_complete` is called when all is known."""
        failures = 0
        while True:
            self._again.clear()
            try:
                found = await self._found(target, target_type)
            except NotLeader:  # nothing was asked; the Lease may be renewed yet
                await asyncio.sleep(backoff(failures) * self._scale)
                failures += 1
                continue
            if found != self.discovery:
                self.discovery = found
                self._on_news()
            if found.complete:
                on_complete()
            wait = every * self._scale
            if not found.complete:
                wait = min(wait, backoff(failures) * self._scale)
            failures = 0 if found.complete else failures + 1
            await asyncio.sleep(min(wait, REDISCOVER_SECONDS * self._scale))
            await _wait_any(self._again, wait)

    async def _found(self, target: TargetClient, target_type: TargetType) -> Discovery:
        try:
            return bounded(_with_unseen(await target.discover(), self.discovery), target_type, self.discovery)
        except NotLeader:
            raise
        except Exception as error:  # an unexpected answer must not end the resource's work
            logger.exception("discovery failed")
            return Discovery(shares=self.discovery.shares, faults=(f"{type(error).__name__}: {error}",))


def _with_unseen(found: Discovery, before: Discovery) -> Discovery:
    """A region that does not answer takes no share away: events of a share that was known would be deleted
    unmarked where the bucket has another, or wear out their receive counts where it has none."""
    if found.complete:
        return found
    ids = {share.id for share in found.shares}
    unseen = tuple(share for share in before.shares if share.id not in ids)
    return msgspec.structs.replace(found, shares=(*found.shares, *unseen))


def bounded(found: Discovery, target_type: TargetType, before: Discovery = NOTHING_KNOWN) -> Discovery:
    """A resource's record holds so many targets; those that are in it already stay."""
    if len(found.shares) <= MAX_TARGETS:
        return found
    fault = (
        f"{len(found.shares)} {target_type.noun} match, and a resource keeps {MAX_TARGETS}: name fewer in "
        f"{target_type.chosen_by}, and the others in a resource with a queue of its own"
    )
    old = {share.id for share in before.shares}
    kept = sorted(found.shares, key=lambda share: (share.id not in old, share.id))[:MAX_TARGETS]
    return Discovery(shares=tuple(kept), faults=(fault, *found.faults))


async def _wait_any(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
