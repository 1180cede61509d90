"""The queues of one resource: it reads them through the pollers that all resources share.

The source queue comes first, then the completion queue if it is another one. It decides nothing.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from caretaker.aws.errors import AwsError
from caretaker.kube.errors import NotLeader
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import advice
from caretaker.s3refresh.poller import Malformed, Poller
from caretaker.s3refresh.queues import Queues
from caretaker.s3refresh.snapshot import Message, Plan, Reception
from caretaker.s3refresh.worker_config import Reading

logger = logging.getLogger(__name__)

MALFORMED_SECONDS: Final = 3600.0  # for which the condition reports a malformed message
PASS_EVENTS: Final = 500  # in one pass, unless its first message has more; the next pass follows at once


class Receiver:
    """See the module. `on_news` asks for a pass; `stopped`: nothing is received any more."""

    def __init__(self, key: Key, queues: Queues, on_news: Callable[[], None], scale: float) -> None:
        self.stopped = False
        self._key = key
        self._queues = queues
        self._on_news = on_news
        self._scale = scale
        self._readings: Sequence[Reading] = ()
        self._pollers: list[Poller] = []
        self._settling: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------------- life

    def start(self, readings: Sequence[Reading]) -> None:
        """Receive from these queues, unless that is so already. The first is the source."""
        if self._pollers or self.stopped:
            return
        self._readings = readings
        self._pollers = [
            self._queues.join(self._key, reading, self._on_news, owner=number == 0)
            for number, reading in enumerate(readings)
        ]

    async def pause(self) -> None:
        """Receive nothing until start()."""
        self._pollers, self.stopped = [], False
        await self._queues.leave(self._key)

    async def stop(self) -> None:
        """Receive nothing more."""
        self._pollers, self.stopped = [], True
        await self._queues.leave(self._key)

    async def settled(self) -> None:
        """Wait for deletions under way."""
        if self._settling:
            await asyncio.wait(self._settling)

    async def end(self) -> None:
        """Cancel deletions under way."""
        await cancel(*self._settling)

    # ---------------------------------------------------------------- for a pass

    @property
    def behind(self) -> bool:
        """Whether the source queue may hold messages that have not been received."""
        return bool(self._pollers) and self._pollers[0].behind

    @property
    def problem(self) -> AwsError | None:
        """Why a queue cannot be read."""
        return next((p.problem for p in self._pollers if p.problem is not None), None)

    def reception(self, clock: float) -> Reception:
        """How the queues are read."""
        if not self._pollers:
            return Reception()
        problem, (malformed, fault) = self.problem, self._malformed(clock)
        return Reception(
            polling=True,
            reading=problem is None and all(poller.connected for poller in self._pollers),
            behind=self.behind,
            problem=self._complaint(),
            code=str(problem.error_class) if problem is not None else "",
            malformed=malformed,
            fault=fault,
        )

    def _complaint(self) -> str:
        """The message about `problem`; "" = there is none."""
        found = zip((poller.problem for poller in self._pollers), self._readings, strict=True)
        return next((advice.describe(error, of.field) for error, of in found if error is not None), "")

    def _malformed(self, clock: float) -> tuple[int, str]:
        """(malformed messages so far, the last one's fault); (0, "") when the last is an hour ago."""
        found = self._pollers[0].malformed if self._pollers else Malformed()
        recent = clock - found.at < MALFORMED_SECONDS * self._scale
        return (found.count, found.fault) if found.count and recent else (0, "")

    def messages(self) -> tuple[tuple[Message, ...], float, bool]:
        """(messages for the next pass, when the newest of all waiting messages arrived by time.monotonic(),
        whether more messages wait). Messages of the completion queue come first: an endless flow of events
        must not delay them."""
        found = [poller.waiting(self._key) for poller in (*self._pollers[1:], *self._pollers[:1])]
        newest = max((at for _, at in found), default=0.0)
        every = tuple(message for messages, _ in found for message in messages)
        before = itertools.accumulate((len(message.events) or 1 for message in every), initial=0)
        some = tuple(message for message, events in zip(every, before, strict=False) if events < PASS_EVENTS)
        return some, newest, len(some) < len(every)

    # ---------------------------------------------------------------- of the source queue

    @property
    def received(self) -> int:
        """Messages of the source queue."""
        return self._pollers[0].received if self._pollers else 0

    @property
    def receiving(self) -> bool:
        """Whether the queues are read."""
        return bool(self._pollers)

    def saw(self, visible: int, at: float) -> None:
        """The source queue's attributes, as of time.monotonic() `at`, report so many visible messages."""
        if self._pollers:
            self._pollers[0].saw(visible, at)

    # ---------------------------------------------------------------- after a pass

    def settle(self, plan: Plan) -> None:
        """The status stands: messages may go."""
        if not (plan.done or plan.returned or plan.unclaimed):
            return
        for poller in self._pollers:
            work = poller.settle(self._key, plan.done, plan.returned, plan.unclaimed)
            settling = asyncio.create_task(work)
            self._settling.add(settling)
            settling.add_done_callback(self._done)

    def _done(self, settling: "asyncio.Task[None]") -> None:
        self._settling.discard(settling)
        if settling.cancelled() or (error := settling.exception()) is None:
            return
        if not isinstance(error, NotLeader):  # then another operator deletes them, or they come again
            logger.error("messages could not be settled: %s: %s", type(error).__name__, error)
