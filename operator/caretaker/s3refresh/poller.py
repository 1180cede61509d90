"""One queue: receives messages, keeps them until they are handled, deletes them.

Inputs: SQS, the queue, readers. It decides nothing: a message stays here until every reader that it concerns
has answered for it. A message that a failed or partial deletion leaves behind is received again, and is
covered by then.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, Final

import msgspec

from caretaker.aws.errors import AwsError, word
from caretaker.aws.large_answers import kept
from caretaker.aws.malformed_log import MalformedLog
from caretaker.aws.sqs import Message as Received
from caretaker.aws.sqs import Sqs
from caretaker.aws.threads import LongPolls
from caretaker.kube.errors import NotLeader
from caretaker.s3refresh.inflight import (
    LARGE_BYTES,
    LOOK_SECONDS,
    Batch,
    InFlightMessage,
    InFlightMessages,
    parsed_of,
)
from caretaker.s3refresh.resource import Reading
from caretaker.s3refresh.snapshot import Message

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one receive or one deletion (SQS's own limit)
MOST_RECEIVES: Final = 8  # at a time, while each comes back full
RECEIVE_BYTES: Final = 2 * 1024 * 1024  # for which a receive asks, if messages are as large as the last ones
DELETIONS_AT_A_TIME: Final = 8  # batches
AGAIN_SECONDS: Final = 10  # until a message that was returned may be received again
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
REFUSED_SECONDS: Final = 600.0  # for which a refused deletion is reported
RECEIVE: Final = "receive"

# Of the threads that aws.session.Options gives to polls.
MOST_LONG_POLLS: Final = 224


class QueueProblems:
    """Why the queue cannot be read or messages not be deleted."""

    def __init__(self, messages: InFlightMessages) -> None:
        self._messages = messages
        self._by_operation: dict[str, tuple[AwsError, float]] = {}  # the last error, and when

    @property
    def current(self) -> AwsError | None:
        """None while there is none. Receiving goes on for ever; the others happen when there is a reason to:
        a refusal of one counts for a while only."""
        since = time.monotonic() - REFUSED_SECONDS
        found = self._by_operation.items()
        return next((error for what, (error, at) in found if what == RECEIVE or at > since), None)

    def failed(self, operation: str, error: AwsError) -> None:
        """The operation has failed."""
        before, _ = self._by_operation.get(operation, (None, 0.0))
        self._by_operation[operation] = (error, time.monotonic())
        if before is None or str(before) != str(error):
            logger.warning("the queue cannot be used: %s", error)
            self._messages.notify()

    def recovered(self, operation: str) -> None:
        """The operation has succeeded."""
        if self._by_operation.pop(operation, None) is not None:
            self._messages.notify()


class Backlog:
    """Whether the queue may hold messages that have not been received: `behind`."""

    def __init__(self, messages: InFlightMessages) -> None:
        self.behind = False
        self._messages = messages
        self._full_at = 0.0  # when receives last came back full
        self._empty_at = 0.0  # when a long poll last came back empty

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


class Deletions:
    """`deleted`: so many messages, repetitions included."""

    def __init__(self, sqs: Sqs, queue_url: str, problems: QueueProblems) -> None:
        self.deleted = 0
        self._sqs = sqs
        self._queue_url = queue_url
        self._problems = problems
        self._gate = asyncio.Semaphore(DELETIONS_AT_A_TIME)

    async def settle(self, gone: Batch, back: Batch = ()) -> None:
        """Delete `gone`, and return `back`."""
        await asyncio.gather(
            *(self._send("delete", self._delete, some) for some in _batched(gone)),
            *(self._send("return", self._again, some) for some in _batched(back)),
        )

    async def _send(self, operation: str, work: Callable[[Batch], Awaitable[None]], some: Batch) -> None:
        async with self._gate:
            try:
                await work(some)
            except NotLeader as error:
                logger.info("%d messages come again: %s", len(some), error)
            except AwsError as error:
                logger.warning("%d messages come again: %s", len(some), error)
                if not error.transient:
                    self._problems.failed(operation, error)
            else:
                self._problems.recovered(operation)

    async def _delete(self, batch: Batch) -> None:
        answer = await self._sqs.delete_message_batch(
            QueueUrl=self._queue_url,
            Entries=[{"Id": str(at), "ReceiptHandle": entry.receipt} for at, entry in enumerate(batch)],
        )
        failed = answer.get("Failed", [])  # with HTTP 200
        self.deleted += len(batch) - len(failed)
        if failed:
            code = word(failed[0]["Code"])
            logger.warning("%d messages not deleted, first: %s; they come again", len(failed), code)

    async def _again(self, batch: Batch) -> None:
        await self._sqs.change_message_visibility_batch(
            QueueUrl=self._queue_url,
            Entries=[
                {"Id": str(at), "ReceiptHandle": entry.receipt, "VisibilityTimeout": AGAIN_SECONDS}
                for at, entry in enumerate(batch)
            ],
        )


def _batched(entries: Batch) -> Iterable[Batch]:
    return (entries[at : at + BATCH] for at in range(0, len(entries), BATCH))


class Malformed(msgspec.Struct, frozen=True):
    """Messages that could not be read: how many, the last one's fault, when it came by time.monotonic()."""

    count: int = 0
    fault: str = ""
    at: float = 0.0


class Poller:
    """Runs until cancelled.

    reading    how the queue is received from: as its owner asks, or without one the first reader
    received   messages, repetitions included
    connected  whether a receive has ever come back
    malformed  messages that could not be read

    `owner_absent` returns whether the queue is the source of a resource that does not read it now. Then
    nothing is received: each receive of a message for its owner brings it nearer to the dead-letter queue.
    """

    def __init__(
        self,
        sqs: Sqs,
        reading: Reading,
        owner_absent: Callable[[], bool] = lambda: False,
        long_polls: LongPolls | None = None,
        messages: InFlightMessages | None = None,
    ) -> None:
        self.reading = reading
        self.received = 0
        self.connected = False
        self.malformed = Malformed()
        self.messages = messages or InFlightMessages()
        self.backlog = Backlog(self.messages)
        self.problems = QueueProblems(self.messages)
        self.deletions = Deletions(sqs, reading.source.queue_url, self.problems)
        self._sqs = sqs
        self._owner_absent = owner_absent
        self.long_polls = long_polls or LongPolls(MOST_LONG_POLLS)
        self._malformed_log = MalformedLog(logger)

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
        return self.deletions.settle(*self.messages.settle(reader, done, returned, unclaimed))

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
            answers = await self._receive_all(width, number, expected, wait)
            error = next((one for one in answers if isinstance(one, BaseException)), None)
            taken = [one for one in answers if not isinstance(one, BaseException)]
            found, size = sum(one.count for one in taken), sum(one.size for one in taken)
            back = [entry for one in taken for entry in one.back]
            self.messages.notify({reader for one in taken for reader in one.news})
            if error is None:
                failures, full = 0, found == number * width or bool(back)
                self.problems.recovered(RECEIVE)
                if not self.connected:
                    self.connected = True
                    self.messages.notify()
                self.backlog.received(full=full, empty=not found, wait=wait)
                await self.deletions.settle(self.messages.unclaimed(), back)
                large = size >= LARGE_BYTES * max(found, 1)
                width = min(width * 2, MOST_RECEIVES) if full and not (large or back) else 1
                number = min(max(RECEIVE_BYTES * found // size, 1), BATCH) if large else BATCH
                expected = number * size // found if large or back else 0
                if not found and not self.reading.wait:  # short polls, as spec.source.sqs.waitTime 0s asks
                    await asyncio.sleep(LOOK_SECONDS)
                continue
            await self.deletions.settle((), back)
            if not isinstance(error, AwsError):
                raise error
            self.problems.failed(RECEIVE, error)
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
            failures, width, number = failures + 1, 1, 1

    async def _receive_all(
        self, width: int, number: int, expected: int, wait: int
    ) -> "list[_Taken | BaseException]":
        async with self.long_polls.slot(wait) if wait else contextlib.nullcontext(0) as seconds:
            receives = (self._receive(number, expected, seconds) for _ in range(width))
            return await asyncio.gather(*receives, return_exceptions=True)

    async def _receive(self, number: int, expected: int, wait: int) -> "_Taken":
        with kept(self.messages.namespace):
            with self.messages.expecting(expected):
                answer = await self._sqs.receive_message(
                    QueueUrl=self.reading.source.queue_url,
                    MaxNumberOfMessages=number,
                    WaitTimeSeconds=wait,
                    VisibilityTimeout=self.reading.visibility,
                )
            return await self._take(answer.get("Messages", []))

    async def _take(self, messages: Sequence[Received]) -> "_Taken":
        """Keep the received messages, unless there is no room: several receives may have brought too much."""
        news: set[Hashable] = set()
        size, back = 0, list[InFlightMessage]()
        for one in messages:
            name, receipt, body = one["MessageId"], one["ReceiptHandle"], one.get("Body", "")
            self.received, size = self.received + 1, size + len(body)
            if self.messages.renew(name, receipt):
                continue
            parsed = await parsed_of(body, self.reading.source)
            if not self.messages.fits(len(body)):
                back.append(InFlightMessage(name, receipt, len(body), Message(0), set()))
                continue
            if parsed.malformed:
                self.malformed = Malformed(self.malformed.count + 1, parsed.malformed, time.monotonic())
                self._malformed_log.add(name, parsed.malformed)
            news |= self.messages.add(name, receipt, len(body), parsed)
        return _Taken(len(messages), size, back, news)


class _Taken(msgspec.Struct, frozen=True):
    """What a receive brought: messages, the characters of their bodies, those for which there is no room, the
    readers to ask about the others."""

    count: int
    size: int
    back: Batch
    news: set[Hashable]
