"""The queues of one resource, and the pollers that all resources share: one for each queue.

The source queue comes first, then the completion queue if it is another one. A completion queue may be read
by many and may be another's source; admission.py decides about readers. Nothing is decided here.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.threads import LongPolls
from caretaker.kube.errors import NotLeader
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import conditions
from caretaker.s3refresh.inflight import InFlightMessages, MessageMemory
from caretaker.s3refresh.poller import MOST_LONG_POLLS, Poller
from caretaker.s3refresh.resource import Reading
from caretaker.s3refresh.snapshot import Message, Plan, Reception

logger = logging.getLogger(__name__)

MALFORMED_SECONDS: Final = 3600.0  # for which the condition reports a malformed message
PASS_EVENTS: Final = 500  # in one pass, unless its first message has more; the next pass follows at once
AGAIN_SECONDS: Final = 5.0
# Of the threads that aws.session.Options gives to the polls of one namespace at endpoints from specs.
ENDPOINT_LONG_POLLS: Final = 12

Address = tuple[ClientKey, str]


class Queues:
    """Pollers by queue. `owner_absent`: whether the queue (its ARN) has an owner, which does not read it."""

    def __init__(self, aws: Aws, owner_absent: Callable[[str], bool]) -> None:
        self._aws = aws
        self._owner_absent = owner_absent
        self._pollers: dict[Address, tuple[Poller, asyncio.Task[None]]] = {}
        self._memory = MessageMemory()
        self._long_polls = LongPolls(MOST_LONG_POLLS)
        self._endpoint_polls: dict[str, LongPolls] = {}  # by namespace, for endpoints from specs

    def join(self, key: Key, reading: Reading, on_news: Callable[[], None], *, owner: bool) -> Poller:
        """The queue's poller, with `key` among its readers."""
        # Readers of one queue share a poller; it uses the role session of the first reader.
        address = (reading.target.shared, reading.source.queue_url)
        if address not in self._pollers:
            absent = partial(self._owner_absent, reading.arn)
            polls = self._long_polls
            if reading.target.endpoint_url:
                polls = self._endpoint_polls.setdefault(key.namespace, LongPolls(ENDPOINT_LONG_POLLS))
            messages = InFlightMessages(self._memory, key.namespace)
            made = Poller(self._aws.sqs(reading.target), reading, absent, polls, messages)
            self._pollers[address] = made, asyncio.create_task(_run_forever(made), name="sqs-poller")
            polls.queues += 1
        poller, _ = self._pollers[address]
        if owner:
            poller.reading = reading
        poller.messages.join(key, on_news, owner=owner)
        return poller

    async def leave(self, key: Key) -> None:
        """`key` reads nothing any more. A poller without readers ends."""
        for poller, _ in self._pollers.values():
            poller.messages.leave(key)
        await self._end([address for address, (poller, _) in self._pollers.items() if poller.messages.idle])

    async def close(self) -> None:
        """Stop all pollers."""
        await self._end(list(self._pollers))

    async def _end(self, addresses: Sequence[Address]) -> None:
        ended = [self._pollers.pop(address) for address in addresses]
        for poller, _ in ended:
            poller.messages.clear()
            poller.long_polls.queues -= 1
        self._endpoint_polls = {name: polls for name, polls in self._endpoint_polls.items() if polls.queues}
        await cancel(*(task for _, task in ended))


async def _run_forever(poller: Poller) -> None:
    """Polls until it is cancelled: an unexpected answer must not end that."""
    while True:
        try:
            await poller.run()
        except Exception:
            logger.exception("polling failed; again in %.0f s", AGAIN_SECONDS)
        await asyncio.sleep(AGAIN_SECONDS)


class Receiver:
    """The queues of one resource. `on_news` asks for a pass."""

    def __init__(self, key: Key, queues: Queues, on_news: Callable[[], None], scale: float) -> None:
        self._key = key
        self._queues = queues
        self._on_news = on_news
        self._scale = scale
        self._stopped = False  # nothing is received any more
        self._readings: Sequence[Reading] = ()
        self._pollers: list[Poller] = []
        self._settling: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------------- life

    def start(self, readings: Sequence[Reading]) -> None:
        """Receive from these queues, unless that is so already. The first is the source."""
        if self._pollers or self._stopped:
            return
        self._readings = readings
        self._pollers = [
            self._queues.join(self._key, reading, self._on_news, owner=number == 0)
            for number, reading in enumerate(readings)
        ]

    async def pause(self, *, stopped: bool = False) -> None:
        """Receive nothing until start(); nothing more if `stopped`."""
        self._pollers, self._stopped = [], stopped
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
    def source(self) -> Poller | None:
        """The poller of the source queue, while it is read."""
        return self._pollers[0] if self._pollers else None

    @property
    def received(self) -> int:
        """Messages of the source queue."""
        return self._pollers[0].received if self._pollers else 0

    @property
    def problem(self) -> tuple[AwsError, str] | None:
        """(why a queue cannot be read, the field of the spec with its URL)."""
        every = zip(self._pollers, self._readings, strict=False)
        found = ((poller.problems.current, reading.field) for poller, reading in every)
        return next(((error, field) for error, field in found if error is not None), None)

    def reception(self, clock: float) -> Reception:
        """How the queues are read."""
        if (source := self.source) is None:
            return Reception()
        problem, malformed = self.problem, source.malformed
        recent = clock - malformed.at < MALFORMED_SECONDS * self._scale
        return Reception(
            polling=True,
            reading=problem is None and all(poller.connected for poller in self._pollers),
            behind=source.backlog.behind,
            problem=conditions.describe(*problem) if problem is not None else "",
            code=str(problem[0].error_class) if problem is not None else "",
            malformed=malformed.count if recent else 0,
            fault=malformed.fault if recent else "",
        )

    def messages(self) -> tuple[tuple[Message, ...], float, bool]:
        """(messages for the next pass, when the newest of all waiting messages arrived by time.monotonic(),
        whether more messages wait). Messages of the completion queue come first: an endless flow of events
        must not delay them."""
        found = [poller.messages.waiting(self._key) for poller in (*self._pollers[1:], *self._pollers[:1])]
        newest = max((at for _, at in found), default=0.0)
        every = tuple(message for messages, _ in found for message in messages)
        before = itertools.accumulate((len(message.events) or 1 for message in every), initial=0)
        some = tuple(message for message, events in zip(every, before, strict=False) if events < PASS_EVENTS)
        return some, newest, len(some) < len(every)

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
