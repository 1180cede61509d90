"""Receives the queues of S3AggregatedRefreshes: a poller for each queue, and the queues of one resource.

Inputs: SQS, readers. Nothing is decided here: a message stays until every reader that it concerns has
answered for it. Of a resource the source queue comes first, then the completion queue if it is another one. A
completion queue may be read by many and may be another's source; admission.py decides about readers.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError
from caretaker.aws.large_answers import kept
from caretaker.aws.sqs import Message as Received
from caretaker.aws.sqs import Sqs
from caretaker.kube.errors import NotLeader
from caretaker.runtime.queue_consumer import BATCH, MOST_RECEIVES, Consumers, LongPolls, QueueConsumer
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import conditions
from caretaker.s3refresh.inflight import (
    LARGE_BYTES,
    LOOK_SECONDS,
    Batch,
    InFlightMessages,
    MessageMemory,
    parsed_of,
)
from caretaker.s3refresh.resource import Reading
from caretaker.s3refresh.snapshot import Message, Plan, Reception

logger = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 2 * 1024 * 1024  # for which a receive asks, if messages are as large as the last ones
PASS_EVENTS: Final = 500  # in one pass, unless its first message has more; the next pass follows at once
MOST_LONG_POLLS: Final = 224  # of the threads that aws.session.Options gives to polls
ENDPOINT_LONG_POLLS: Final = 12  # of those for the polls of one namespace at endpoints from specs


class Backlog:
    """Whether the queue may hold messages that have not been received: `behind`."""

    def __init__(self, messages: InFlightMessages) -> None:
        self.behind = False
        self._messages = messages
        self._full_at = 0.0  # when receives last came back full
        self._empty_at = 0.0  # when a long poll last came back empty

    @property
    def emptied(self) -> bool:
        """Whether a long poll has ever come back empty."""
        return self._empty_at > 0

    def received(self, *, full: bool, empty: bool, wait: int) -> None:
        """Full receives mean that more messages wait; an empty long poll means that none do. An empty short
        poll means nothing: it queries only some of SQS's servers."""
        now = time.monotonic()
        if full:
            self._full_at = now
            self._set(behind=True)
        elif empty and wait:
            self._empty_at = now
            self._set(behind=False)

    def saw(self, visible: int, at: float) -> None:
        """The queue's attributes, as of time.monotonic() `at`, report so many visible messages."""
        if visible and self._empty_at < at:
            self._set(behind=True)
        elif not visible and self._full_at < at:
            self._set(behind=False)

    def _set(self, *, behind: bool) -> None:
        if self.behind != behind:
            self.behind = behind
            self._messages.notify()


class Poller(QueueConsumer):
    """The queue of one or more resources.

    reading    how the queue is received from: as its owner asks, or without one the first reader
    received   messages, repetitions included

    `owner_absent` returns whether the queue is the source of a resource that does not read it now. Then
    nothing is received: each receive of a message for its owner brings it nearer to the dead-letter queue.
    """

    def __init__(
        self,
        sqs: Sqs,
        reading: Reading,
        owner_absent: Callable[[], bool] = lambda: False,
        messages: InFlightMessages | None = None,
    ) -> None:
        self.messages = messages or InFlightMessages()
        super().__init__(sqs, reading.source.queue_url, namespace=self.messages.namespace)
        self.reading = reading
        self.received = 0
        self.backlog = Backlog(self.messages)
        self._owner_absent = owner_absent

    @property
    def idle(self) -> bool:
        return self.messages.idle

    def leave(self, reader: Key) -> None:
        self.messages.leave(reader)

    def on_change(self) -> None:
        self.messages.notify()

    def close(self) -> None:
        self.messages.clear()

    def settle(
        self, reader: Hashable, done: Iterable[int], returned: Iterable[int], unclaimed: Iterable[int] = ()
    ) -> Coroutine[Any, Any, None]:
        """The reader has handled `done`, wants `returned` again later, and does not know the refreshes of the
        ends `unclaimed`. That counts at once: its next pass may begin before the messages are deleted, which
        the result does.

        A message is deleted once all readers have handled it, and a while later if none claims it. A message
        that one reader returns goes back to the queue. Malformed messages stay: their receive count takes
        them to the dead-letter queue.
        """
        gone, back = self.messages.settle(reader, done, returned, unclaimed)
        return self.delete(_receipts(gone), _receipts(back))

    async def run(self) -> None:
        """Receive for ever; back off while the queue cannot be read."""
        failures, width, number, expected = 0, 1, BATCH, 0
        while True:
            await self.messages.room(self.reading.visibility, expected)
            if self.messages.owner is None and self._owner_absent():
                await asyncio.sleep(LOOK_SECONDS)
                continue
            # One long poll, or several short ones while a backlog comes in. The first shows at once whether
            # the queue can be read. Expected bytes keep other queues waiting, so such a receive is no long
            # poll.
            wait = self.reading.wait if width == 1 and self.connected and not expected else 0
            taken, error = await self.receive_all(width, wait, partial(self._receive, number, expected))
            found, size = sum(one.count for one in taken), sum(one.size for one in taken)
            back = [receipt for one in taken for receipt in one.back]
            self.messages.notify({reader for one in taken for reader in one.news})
            if error is not None:
                await self.delete((), back)
                await self.back_off(error, failures)
                failures, width, number = failures + 1, 1, 1
                continue
            failures, full = 0, found == number * width or bool(back)
            self.received_all()
            self.backlog.received(full=full, empty=not found, wait=wait)
            await self.delete(_receipts(self.messages.unclaimed()), back)
            large = size >= LARGE_BYTES * max(found, 1)
            width = min(width * 2, MOST_RECEIVES) if full and not (large or back) else 1
            number = min(max(RECEIVE_BYTES * found // size, 1), BATCH) if large else BATCH
            expected = number * size // found if large or back else 0
            if not found and not self.reading.wait:  # short polls, as spec.source.sqs.waitTime 0s asks
                await asyncio.sleep(LOOK_SECONDS)

    async def _receive(self, number: int, expected: int, wait: int) -> "_Taken":
        with kept(self.namespace):
            with self.messages.expecting(expected):
                messages = await self.receive(number, wait, self.reading.visibility)
            return await self._take(messages)

    async def _take(self, messages: Sequence[Received]) -> "_Taken":
        """Keep the received messages, unless there is no room: several receives may have brought too much."""
        news: set[Hashable] = set()
        size, back = 0, list[str]()
        for one in messages:
            name, receipt, body = one["MessageId"], one["ReceiptHandle"], one.get("Body", "")
            self.received, size = self.received + 1, size + len(body)
            if self.messages.renew(name, receipt):
                continue
            parsed = await parsed_of(body, self.reading.source)
            if not self.messages.fits(len(body)):
                back.append(receipt)
                continue
            if parsed.malformed:
                self.malformed.add(name, parsed.malformed)
            news |= self.messages.add(name, receipt, len(body), parsed)
        return _Taken(len(messages), size, back, news)


def _receipts(messages: Batch) -> list[str]:
    return [message.receipt for message in messages]


class _Taken(msgspec.Struct, frozen=True):
    """What a receive brought: messages, the characters of their bodies, the receipts of those for which there
    is no room, the readers to ask about the others."""

    count: int
    size: int
    back: Sequence[str]
    news: set[Hashable]


class Queues(Consumers[Poller]):
    """Pollers by queue. `owner_absent`: whether the queue (its ARN) has an owner, which does not read it."""

    def __init__(self, aws: Aws, owner_absent: Callable[[str], bool]) -> None:
        super().__init__("sqs-poller")
        self._aws = aws
        self._owner_absent = owner_absent
        self._memory = MessageMemory()
        self._long_polls = LongPolls(MOST_LONG_POLLS)
        # By namespace, for endpoints from specs.
        self._endpoint_polls: WeakValueDictionary[str, LongPolls] = WeakValueDictionary()

    def join(self, key: Key, reading: Reading, on_news: Callable[[], None], *, owner: bool) -> Poller:
        """The queue's poller, with `key` among its readers."""

        def make() -> Poller:
            absent = partial(self._owner_absent, reading.arn)
            messages = InFlightMessages(self._memory, key.namespace)
            return Poller(self._aws.sqs(reading.target), reading, absent, messages)

        polls = self._long_polls
        if reading.target.endpoint_url:
            polls = self._endpoint_polls.setdefault(key.namespace, LongPolls(ENDPOINT_LONG_POLLS))
        poller = self.of_queue(reading.target, reading.source.queue_url, polls, make)
        if owner:
            poller.reading = reading
        poller.messages.join(key, on_news, owner=owner)
        return poller


class Receiver:
    """The queues of one resource. `on_news` asks for a pass."""

    def __init__(self, key: Key, queues: Queues, on_news: Callable[[], None]) -> None:
        self._key = key
        self._queues = queues
        self._on_news = on_news
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
        """Receive nothing until start(); nothing more, now or later, if `stopped`."""
        self._pollers = []
        self._stopped |= stopped
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
    def emptied(self) -> bool:
        """Whether the completion queue, or the only one, was empty once since it began to be read."""
        return bool(self._pollers) and self._pollers[-1].backlog.emptied

    @property
    def problem(self) -> tuple[AwsError, str] | None:
        """(why a queue cannot be read, the field of the spec with its URL)."""
        every = zip(self._pollers, self._readings, strict=False)
        found = ((poller.problem, reading.field) for poller, reading in every)
        return next(((error, field) for error, field in found if error is not None), None)

    def reception(self) -> Reception:
        """How the queues are read."""
        if (source := self.source) is None:
            return Reception()
        problem = self.problem
        return Reception(
            polling=True,
            reading=problem is None and source.connected,
            behind=source.backlog.behind or not source.connected,
            problem=conditions.describe(*problem) if problem is not None else "",
            code=str(problem[0].error_class) if problem is not None else "",
            malformed=source.malformed.recent(),
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
