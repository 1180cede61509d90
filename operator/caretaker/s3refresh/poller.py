"""One queue: receives messages, keeps them until they are handled, deletes them.

Inputs: SQS, the queue, readers. It decides nothing: a message stays here until every reader that it concerns
has answered for it. One reader, the owner, gets everything; the others only events about refreshes that have
ended. A message that is received again while it is here is the same message with a newer receipt.
Messages that a failed or partial deletion leaves behind come again, and are covered by then.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Final

from caretaker.api.s3refresh import SQSSource
from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Message as Received
from caretaker.aws.sqs import Sqs
from caretaker.aws.text_limits import word
from caretaker.kube.errors import NotLeader
from caretaker.s3refresh.inflight import LARGE_BYTES, InFlightMessage, parsed_of
from caretaker.s3refresh.longpolls import LongPolls
from caretaker.s3refresh.snapshot import Message

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one receive, one deletion (SQS's own limit)
# Messages that wait here before no more are received: passes are behind, and receipts grow old.
MOST_WAITING: Final = 5000
MOST_BYTES: Final = 8 * 1024 * 1024  # of their bodies together; one body has up to 1 MiB
# Seconds for which a message may wait before no more are received: the API server is away, or passes fail.
LONGEST_WAIT: Final = 15.0
LOOK_SECONDS: Final = 1.0
MOST_RECEIVES: Final = 8  # at a time, while each comes back full
DELETIONS: Final = 8  # batches at a time
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
AGAIN_SECONDS: Final = 10  # until a message that was kept may be received again
REFUSED_SECONDS: Final = 600.0  # for which a refused deletion is reported
# Seconds for which the end of a refresh that is unknown here stays in the queue: after a start, its resource
# may join late, and this process may end before that. Shorter than a visibility timeout (the least is 30 s),
# so that the message is received once more at most. Then it is deleted, and remembered.
UNCLAIMED_SECONDS: Final = 25.0
MOST_UNCLAIMED: Final = 1000
MOST_UNCLAIMED_BYTES: Final = 4 * 1024 * 1024  # of their bodies, as they came
RECEIVE: Final = "receive"

_numbers = itertools.count(1)  # of messages, over all queues: a plan names those of two


Batch = Sequence[InFlightMessage]


class Poller:
    """Runs until cancelled.

    problem             why the queue cannot be read or messages not be deleted, None while they can
    received, deleted   messages, repetitions included
    malformed           (how many so far, the last one's fault, when it came by time.monotonic())
    connected           whether a receive has ever come back
    behind              whether the queue may hold messages that have not been received

    `owner_absent` returns whether the queue is the source of a resource that does not read it now. Then
    nothing is received: each receive of a message for its owner brings it nearer to the dead-letter queue.
    """

    def __init__(
        self,
        sqs: Sqs,
        source: SQSSource,
        wait: int,
        visibility: int,
        owner_absent: Callable[[], bool] = lambda: False,
        long_polls: LongPolls | None = None,
    ) -> None:
        self.received = 0
        self.deleted = 0
        self.connected = False
        self.behind = False
        self._full_at = 0.0  # when receives last came back full
        self._empty_at = 0.0  # when a long poll last came back empty
        self.malformed: tuple[int, str, float] = (0, "", 0.0)
        self._sqs = sqs
        self._source = source
        self._wait = wait
        self._visibility = visibility
        self._owner_absent = owner_absent
        self._long_polls = long_polls or LongPolls()
        self._owner: Hashable | None = None
        self._readers: dict[Hashable, Callable[[], None]] = {}
        self._by_name: dict[str, InFlightMessage] = {}
        self._by_number: dict[int, InFlightMessage] = {}
        self._unclaimed: dict[int, InFlightMessage] = {}  # completion events that no reader has recognised
        self._bytes = 0  # of the messages here
        self._left = asyncio.Event()  # something was settled
        self._gate = asyncio.Semaphore(DELETIONS)
        self._problems: dict[str, tuple[AwsError, float]] = {}  # by operation: the last error, and when

    # ---------------------------------------------------------------- readers

    def join(self, reader: Hashable, on_news: Callable[[], None], *, owner: bool) -> None:
        """Ask this reader about messages from now on; the owner about all, also those that are here."""
        self._readers[reader] = on_news
        if owner:
            self._owner = reader
        for entry in self._unclaimed.values():
            entry.since = time.monotonic()
        self._by_number |= self._unclaimed
        self._unclaimed.clear()
        for entry in self._by_number.values():
            if owner or entry.message.completions:
                entry.asked.add(reader)
        on_news()

    def read_as(self, source: SQSSource, wait: int, visibility: int) -> None:
        """An owner has come to a queue that others read already: from now on it is read as the owner says."""
        self._source, self._wait, self._visibility = source, wait, visibility

    def leave(self, reader: Hashable) -> None:
        """The reader is not asked any more. Messages that the owner has not answered for go back to the queue
        by themselves, when their visibility timeout is over."""
        self._readers.pop(reader, None)
        if self._owner == reader:
            self._owner = None
        for entry in list(self._by_number.values()):
            if reader not in entry.asked:
                continue
            entry.asked.discard(reader)
            if not entry.deleted:
                self._forget(entry)
            elif not entry.asked:  # it does not come again
                self._unclaimed[entry.message.id] = self._by_number.pop(entry.message.id)

    @property
    def problem(self) -> AwsError | None:
        """See the class. Receiving goes on for ever; the others happen when there is a reason to: a
        refusal of one counts for a while only."""
        since = time.monotonic() - REFUSED_SECONDS
        return next(
            (error for what, (error, at) in self._problems.items() if what == RECEIVE or at > since), None
        )

    def saw(self, visible: int, at: float) -> None:
        """The queue's attributes, as of time.monotonic() `at`, report so many visible messages."""
        if visible and self._empty_at < at:
            self._set_behind(behind=True)
        elif not visible and self._full_at < at:
            self._set_behind(behind=False)

    @property
    def idle(self) -> bool:
        """Whether there are no readers."""
        return not self._readers

    def waiting(self, reader: Hashable) -> tuple[tuple[Message, ...], float]:
        """(the messages that this reader has not answered for yet, oldest first; when the newest of them
        came, by time.monotonic())."""
        found = [entry for entry in self._by_number.values() if reader in entry.asked]
        return tuple(entry.message for entry in found), found[-1].since if found else 0.0

    async def settle(
        self, reader: Hashable, done: Iterable[int], returned: Iterable[int], unclaimed: Iterable[int] = ()
    ) -> None:
        """The reader has handled `done`, wants `returned` again later, and does not know the refreshes of the
        ends `unclaimed`.

        A message is deleted once all readers have handled it, and a while later if none claims it. A message
        that one reader returns goes back to the queue. Malformed messages stay: their receive count takes
        them to the dead-letter queue.
        """
        gone: list[InFlightMessage] = []
        back: list[InFlightMessage] = []
        for ids, stay, own in ((done, False, True), (returned, True, True), (unclaimed, False, False)):
            for entry in self._answers(reader, ids):
                entry.returned = entry.returned or stay
                entry.claimed = entry.claimed or own
                if entry.asked:
                    continue
                if not entry.claimed:
                    self._unclaimed[entry.message.id] = self._by_number.pop(entry.message.id)
                    continue
                self._forget(entry)
                if not entry.deleted:
                    (back if entry.returned else gone).append(entry)
        self._left.set()
        soon = [entry for entry in back if not entry.message.malformed]
        await asyncio.gather(
            *(self._send(self._delete, some) for some in _batched(gone)),
            *(self._send(self._again, some) for some in _batched(soon)),
        )

    def _answers(self, reader: Hashable, numbers: Iterable[int]) -> Iterable[InFlightMessage]:
        """Those that this reader was asked about, and has answered for now."""
        for number in numbers:
            entry = self._by_number.get(number)
            if entry is not None and reader in entry.asked:
                entry.asked.discard(reader)
                entry.answered = True
                yield entry

    # ---------------------------------------------------------------- receiving

    async def run(self) -> None:
        """Receive for ever; back off while the queue cannot be read."""
        failures, width = 0, 1
        while True:
            await self._room()
            if self._owner is None and self._owner_absent():
                await asyncio.sleep(LOOK_SECONDS)
                continue
            # One long poll, or several short ones while a backlog comes in. The first shows at once whether
            # the queue can be read.
            wait = self._wait if width == 1 and self.connected else 0
            answers = await self._receive_all(width, wait)
            found, size = await self._take_all(answers)
            error = next((one for one in answers if isinstance(one, BaseException)), None)
            if error is None:
                failures = 0
                self._answered()
                self._note_backlog(found, width, wait)
                await self._delete_unclaimed()
                more = found == BATCH * width and size < LARGE_BYTES * found
                width = min(width * 2, MOST_RECEIVES) if more else 1
                if not found and not self._wait:  # short polls, as spec.source.sqs.waitTime 0s asks for
                    await asyncio.sleep(LOOK_SECONDS)
                continue
            if not isinstance(error, AwsError):
                raise error
            self._failed(RECEIVE, error)
            await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
            failures, width = failures + 1, 1

    def _note_backlog(self, found: int, width: int, wait: int) -> None:
        """Full receives mean that more messages wait; an empty long poll means that none do. An empty short
        poll means nothing: it queries only some of SQS's servers."""
        now = time.monotonic()
        if found == BATCH * width:
            self._full_at = now
            self._set_behind(behind=True)
        elif not found and wait:
            self._empty_at = now
            self._set_behind(behind=False)

    def _set_behind(self, *, behind: bool) -> None:
        if self.behind != behind:
            self.behind = behind
            self._notify(self._readers)

    async def _room(self) -> None:
        """Wait while readers are behind. A message with some answers, but not all, is given up once it
        comes again: a reader whose passes fail must not keep the queue from the others. A message without
        any answer is kept: the API server is away, and to receive it again and again would make it dead."""
        while self._by_number:
            oldest = next(iter(self._by_number.values()))
            waited = time.monotonic() - oldest.since
            if waited > self._visibility and oldest.answered:
                self._forget(oldest)
                continue
            room = len(self._by_number) < MOST_WAITING and self._bytes < MOST_BYTES
            if room and waited <= LONGEST_WAIT:
                return
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._left.wait()

    async def _receive_all(self, width: int, wait: int) -> list[Sequence[Received] | BaseException]:
        async with self._long_polls.slot(wait) if wait else contextlib.nullcontext(0) as seconds:
            receives = (self._receive(seconds) for _ in range(width))
            return await asyncio.gather(*receives, return_exceptions=True)

    async def _receive(self, wait: int) -> Sequence[Received]:
        answer = await self._sqs.receive_message(
            QueueUrl=self._source.queue_url,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=wait,
            VisibilityTimeout=self._visibility,
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
        self._notify(news)
        return count, size

    async def _take(self, name: str, receipt: str, body: str) -> set[Hashable]:
        """Keep a message; returns the readers to ask about it."""
        self.received += 1
        entry = self._by_name.get(name)
        if entry is not None:
            entry.receipt = receipt
            entry.deleted = False  # a deletion that failed
            return set()
        parsed = await parsed_of(body, self._source)
        if parsed.malformed:
            self.malformed = (self.malformed[0] + 1, parsed.malformed, time.monotonic())
            logger.warning("message %s cannot be read: %s", name, parsed.malformed)
        message = Message(next(_numbers), parsed.events, parsed.completions, bool(parsed.malformed))
        # A message without an event to act on is every reader's to delete.
        whole = bool(message.completions) or not (message.events or message.malformed)
        asked = set(self._readers) if whole else {self._owner} & set(self._readers)
        if not asked:
            # Of no resource here, and perhaps of another operator: not ours to delete.
            return set()
        entry = InFlightMessage(name, receipt, len(body), message, asked)
        self._bytes += entry.size
        self._by_name[name] = self._by_number[message.id] = entry
        return asked

    def _failed(self, what: str, error: AwsError) -> None:
        before, _ = self._problems.get(what, (None, 0.0))
        self._problems[what] = (error, time.monotonic())
        if before is None or str(before) != str(error):
            logger.warning("the queue cannot be used: %s", error)
            self._notify(self._readers)

    def _answered(self) -> None:
        self._recovered(RECEIVE)
        if not self.connected:
            self.connected = True
            self._notify(self._readers)

    def _recovered(self, what: str) -> None:
        if self._problems.pop(what, None) is not None:
            self._notify(self._readers)

    def _notify(self, readers: Iterable[Hashable]) -> None:
        for reader in list(readers):
            on_news = self._readers.get(reader)
            if on_news is not None:
                on_news()

    # ---------------------------------------------------------------- deleting

    def _forget(self, entry: InFlightMessage) -> None:
        if self._by_name.pop(entry.name, None) is not None:
            self._bytes -= entry.size
        self._by_number.pop(entry.message.id, None)
        self._unclaimed.pop(entry.message.id, None)
        self._left.set()

    async def _delete_unclaimed(self) -> None:
        """Delete the ends that no reader has claimed in time; a reader that joins later is asked as well."""
        if not self._unclaimed:
            return
        since = time.monotonic() - UNCLAIMED_SECONDS
        size = sum(entry.size for entry in self._unclaimed.values())
        while len(self._unclaimed) > MOST_UNCLAIMED or size > MOST_UNCLAIMED_BYTES:
            oldest = next(iter(self._unclaimed.values()))
            size -= oldest.size
            self._forget(oldest)
        old = [entry for entry in self._unclaimed.values() if entry.since <= since and not entry.deleted]
        for entry in old:
            entry.deleted = True
        await asyncio.gather(*(self._send(self._delete, some) for some in _batched(old)))

    async def _send(self, work: Callable[[Batch], Awaitable[None]], some: Batch) -> None:
        async with self._gate:
            try:
                await work(some)
            except NotLeader as error:
                logger.info("%d messages come again: %s", len(some), error)
            except AwsError as error:
                logger.warning("%d messages come again: %s", len(some), error)
                if not error.transient:
                    self._failed(work.__name__, error)
            else:
                self._recovered(work.__name__)

    async def _delete(self, batch: Batch) -> None:
        answer = await self._sqs.delete_message_batch(
            QueueUrl=self._source.queue_url,
            Entries=[{"Id": str(at), "ReceiptHandle": entry.receipt} for at, entry in enumerate(batch)],
        )
        failed = answer.get("Failed", [])  # with HTTP 200
        self.deleted += len(batch) - len(failed)
        if failed:
            code = word(failed[0]["Code"])
            logger.warning("%d messages not deleted, first: %s; they come again", len(failed), code)

    async def _again(self, batch: Batch) -> None:
        await self._sqs.change_message_visibility_batch(
            QueueUrl=self._source.queue_url,
            Entries=[
                {"Id": str(at), "ReceiptHandle": entry.receipt, "VisibilityTimeout": AGAIN_SECONDS}
                for at, entry in enumerate(batch)
            ],
        )


def _batched(entries: Batch) -> Iterable[Batch]:
    return (entries[at : at + BATCH] for at in range(0, len(entries), BATCH))
