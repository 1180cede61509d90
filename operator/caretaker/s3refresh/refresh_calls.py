"""The calls of one resource that are under way, and the ends of the refreshes that they started.

Each hands in its findings and asks for a pass. It decides nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from caretaker.kube.errors import NotLeader
from caretaker.runtime.tasks import cancel
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.snapshot import End, Result
from caretaker.s3refresh.targets import TargetClient

logger = logging.getLogger(__name__)

ENDS_SECONDS: Final = 5.0  # between two questions for the ends of refreshes in flight


class RefreshCalls:
    """`results`: those that no pass has written yet. `on_result` asks for a pass."""

    def __init__(self, on_result: Callable[[], None]) -> None:
        self.results: list[Result] = []
        self._on_result = on_result
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._written = asyncio.Event()  # every result is on record
        self._written.set()

    @property
    def running(self) -> frozenset[str]:
        """Claims whose calls are under way, or whose results no pass has written yet."""
        return frozenset(self._calls) | {result.claim_id for result in self.results}

    def launch(
        self,
        target: TargetClient,
        calls: Iterable[tuple[Share, Claim]],
        on_failed: Callable[[], None],
    ) -> None:
        """Make the calls that are on record. `on_failed` is called for one that has failed."""
        for share, claim in calls:
            work = self._call(target, share, claim, on_failed)
            self._calls[claim.id] = asyncio.create_task(work, name="s3refresh-call")

    def record(self, written: Iterable[Result]) -> None:
        """These results are on record."""
        past = set(map(id, written))
        self.results = [result for result in self.results if id(result) not in past]
        if not self.results:
            self._written.set()

    async def answered(self) -> None:
        """Wait for the calls under way."""
        if self._calls:
            await asyncio.wait(self._calls.values())

    async def recorded(self) -> None:
        """Wait until every result is on record."""
        await self._written.wait()

    async def end(self) -> None:
        """Cancel the calls under way."""
        await cancel(*self._calls.values())

    async def _call(
        self, target: TargetClient, share: Share, claim: Claim, on_failed: Callable[[], None]
    ) -> None:
        try:
            result = await target.refresh(share, claim)
        except NotLeader as error:  # the guard: nothing was sent
            result = Result(share.id, claim.id, code="NotLeader", message=str(error))
        except Exception as error:
            logger.exception("the call for %s failed", share.id)
            result = Result(share.id, claim.id, code=UNKNOWN, message=f"{type(error).__name__}: {error}")
        finally:
            self._calls.pop(claim.id, None)
        self.results.append(result)
        self._written.clear()
        if result.code:
            on_failed()
        self._on_result()


class RefreshEnds:
    """`ends`: those that no pass has written yet. `on_result` asks for a pass."""

    def __init__(self, on_result: Callable[[], None], scale: float) -> None:
        self.ends: tuple[End, ...] = ()
        self._on_result = on_result
        self._scale = scale
        self._in_flight: frozenset[str] = frozenset()  # ids of refreshes
        self._any_in_flight = asyncio.Event()

    def set_in_flight(self, names: Iterable[str]) -> None:
        """By the record, these refreshes are in flight now; the ends that were handed in are recorded."""
        self._in_flight, self.ends = frozenset(names), ()
        if self._in_flight:
            self._any_in_flight.set()
        else:
            self._any_in_flight.clear()

    async def watch(self, target: TargetClient) -> None:
        """Ask for the ends of refreshes in flight, if the target can be asked."""
        while target.idempotent:
            await self._any_in_flight.wait()
            await asyncio.sleep(ENDS_SECONDS * self._scale)
            try:
                self.ends = tuple(await target.ended(self._in_flight))
            except Exception:  # an unexpected answer must not end the resource's work
                logger.exception("the ends of refreshes cannot be asked for")
            if self.ends:
                self._on_result()
