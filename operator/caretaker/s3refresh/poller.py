"""One queue: receives messages, keeps them until they are handled, deletes them.

Inputs: SQS, the queue, readers. It decides nothing: a message stays here until every reader that it concerns
has answered for it. One reader, the owner, gets everything; the others only events about refreshes that have
ended.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.s3refresh import SQSSource
from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Message as Received
from caretaker.aws.sqs import Sqs
from caretaker.s3refresh.deletions import Deletions
from caretaker.s3refresh.inflight import (
    LARGE_BYTES,
    LOOK_SECONDS,
    InFlightMessage,
    InFlightMessages,
    numbered,
    parsed_of,
)
from caretaker.s3refresh.longpolls import LongPolls
from caretaker.s3refresh.queue_state import RECEIVE, Backlog, QueueProblems, Readers
from caretaker.s3refresh.snapshot import Message

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one receive (SQS's own limit)
MOST_RECEIVES: Final = 8  # at a time, while each comes back full
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)


class ReceiveOptions(msgspec.Struct, frozen=True):
    """How a queue is received from. `wait` and `visibility` in seconds."""

    source: SQSSource
    wait: int
    visibility: int


class Malformed(msgspec.Struct, frozen=True):
    """Messages that could not be read: how many, the last one's fault, when it came by time.monotonic()."""

    count: int = 0
    fault: str = ""
    at: float = 0.0


class Poller:
    """Runs until cancelled.

    received   messages, repetitions included
    connected  whether a receive has ever come back
    malformed  messages that could not be read

    `owner_absent` returns whether the queue is the source of a resource that does not read it now. Then
    nothing is received: each receive of a message for its owner brings it nearer to the dead-letter queue.
    """

    def __init__(
        self,
        sqs: Sqs,
        options: ReceiveOptions,
        owner_absent: Callable[[], bool] = lambda: False,
        long_polls: LongPolls | None = None,
    ) -> None:
        self.received = 0
        self.connected = False
        self.malformed = Malformed()
        self._sqs = sqs
        self._options = options
        self._owner_absent = owner_absent
        self._long_polls = long_polls or LongPolls()
        self._readers = Readers()
        self._messages = InFlightMessages()
        self._backlog = Backlog(self._readers)
        self._problems = QueueProblems(self._readers)
        self._deletions = Deletions(sqs, options.source.queue_url, self._problems)

    # ---------------------------------------------------------------- readers

    def join(self, reader: Hashable, on_news: Callable[[], None], *, owner: bool) -> None:
        """Ask this reader about messages from now on; the owner about all, also those that are here."""
        self._readers.add(reader, on_news, owner=owner)
        self._messages.join(reader, owner=owner)
        on_news()

    def read_as(self, options: ReceiveOptions) -> None:
        """An owner has come to a queue that others read already: from now on it is read as the owner says."""
        self._options = options

    def leave(self, reader: Hashable) -> None:
        """The reader is not asked any more. Messages that the owner has not answered for go back to the queue
        by themselves, when their visibility timeout is over."""
        self._readers.remove(reader)
        self._messages.leave(reader)

    @property
    def problem(self) -> AwsError | None:
        """Why the queue cannot be read or messages not be deleted, None while they can."""
        return self._problems.current

    @property
    def behind(self) -> bool:
        """Whether the queue may hold messages that have not been received."""
        return self._backlog.behind

    @property
    def deleted(self) -> int:
        """Messages, repetitions included."""
        return self._deletions.deleted

    @property
    def idle(self) -> bool:
        """Whether there are no readers."""
        return self._readers.idle

    def saw(self, visible: int, at: float) -> None:
        """The queue's attributes, as of time.monotonic() `at`, report so many visible messages."""
        self._backlog.saw(visible, at)

    def waiting(self, reader: Hashable) -> tuple[tuple[Message, ...], float]:
        """(the messages that this reader has not answered for yet, oldest first; when the newest of them
        came, by time.monotonic())."""
        return self._messages.waiting(reader)

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
        return self._deletions.settle(*self._messages.settle(reader, done, returned, unclaimed))

    # ---------------------------------------------------------------- receiving

    async def run(self) -> None:
        """Receive for ever; back off while the queue cannot be read."""
        failures, width = 0, 1
        while True:
            await self._messages.room(self._options.visibility)
            if self._readers.owner is None and self._owner_absent():
                await asyncio.sleep(LOOK_SECONDS)
                continue
            # One long poll, or several short ones while a backlog comes in. The first shows at once whether
            # the queue can be read.
            wait = self._options.wait if width == 1 and self.connected else 0
            answers = await self._receive_all(width, wait)
            found, size = await self._take_all(answers)
            error = next((one for one in answers if isinstance(one, BaseException)), None)
            if error is None:
                failures, full = 0, found == BATCH * width
                self._answered()
                self._backlog.received(full=full, empty=not found, wait=wait)
                await self._deletions.settle(self._messages.unclaimed())
                width = min(width * 2, MOST_RECEIVES) if full and size < LARGE_BYTES * found else 1
                if not found and not self._options.wait:  # short polls, as spec.source.sqs.waitTime 0s asks
                    await asyncio.sleep(LOOK_SECONDS)
                continue
            if not isinstance(error, AwsError):
                raise error
            self._problems.failed(RECEIVE, error)
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
            failures, width = failures + 1, 1

    async def _receive_all(self, width: int, wait: int) -> list[Sequence[Received] | BaseException]:
        async with self._long_polls.slot(wait) if wait else contextlib.nullcontext(0) as seconds:
            receives = (self._receive(seconds) for _ in range(width))
            return await asyncio.gather(*receives, return_exceptions=True)

    async def _receive(self, wait: int) -> Sequence[Received]:
        answer = await self._sqs.receive_message(
            QueueUrl=self._options.source.queue_url,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=wait,
            VisibilityTimeout=self._options.visibility,
        )
        return answer.get("Messages", [])

    async def _take_all(self, answers: Iterable[Sequence[Received] | BaseException]) -> tuple[int, int]:
        """Keep the received messages. Returns (their number, the characters of their bodies)."""
        news: set[Hashable] = set()
        count = size = 0
        for one in (one for answer in answers if not isinstance(answer, BaseException) for one in answer):
            body = one.get("Body", "")
            news |= await self._take(one["MessageId"], one["ReceiptHandle"], body)
            count, size = count + 1, size + len(body)
        self._readers.notify(news)
        return count, size

    async def _take(self, name: str, receipt: str, body: str) -> set[Hashable]:
        """Keep a message; returns the readers to ask about it."""
        self.received += 1
        if self._messages.renew(name, receipt):
            return set()
        parsed = await parsed_of(body, self._options.source)
        if parsed.malformed:
            self.malformed = Malformed(self.malformed.count + 1, parsed.malformed, time.monotonic())
            logger.warning("message %s cannot be read: %s", name, parsed.malformed)
        message = numbered(parsed)
        asked = self._readers.concerned(message)
        # Without a reader: of no resource here, and perhaps of another operator, so not ours to delete.
        if asked:
            self._messages.add(InFlightMessage(name, receipt, len(body), message, asked))
        return asked

    def _answered(self) -> None:
        self._problems.recovered(RECEIVE)
        if not self.connected:
            self.connected = True
            self._readers.notify()
