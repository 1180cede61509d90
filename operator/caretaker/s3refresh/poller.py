"""One source queue: receives, keeps what nothing has been done about yet, deletes what was.

Inputs: SQS, the queue, `on_news`, called when there is something to look at. It decides nothing: a message
stays here until settle() names it. A message that is received again while it is here is the same message with
a newer receipt. What a failed or partial deletion leaves behind comes again, and is covered by then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from caretaker.api.s3refresh import SQSSource
from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Sqs
from caretaker.s3refresh.envelope import parse
from caretaker.s3refresh.plan import Message

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one receive, one deletion (SQS's own limit)
# Messages that wait here before no more are received: passes are behind, and receipts grow old.
MOST_WAITING: Final = 5000
DELETIONS: Final = 4  # batches at a time
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
AGAIN_SECONDS: Final = 10  # until a message that was kept may be received again

Entry = tuple[str, str, Message]  # SQS's message id, the latest receipt, the message
Entries = Sequence[Entry]


class Poller:
    """Runs until cancelled. `problem` is why the queue cannot be read, "" while it can."""

    def __init__(
        self, sqs: Sqs, source: SQSSource, wait: int, visibility: int, on_news: Callable[[], None]
    ) -> None:
        self.problem: AwsError | None = None
        self.received = 0  # messages, repetitions included
        self.deleted = 0
        self._sqs = sqs
        self._source = source
        self._wait = wait
        self._visibility = visibility
        self._on_news = on_news
        self._numbers: dict[str, int] = {}  # SQS's message id -> ours
        self._waiting: dict[int, Entry] = {}  # by our number
        self._last = 0
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        """Receive for ever; back off while the queue cannot be read."""
        failures = 0
        while True:
            await self._room.wait()
            try:
                answer = await self._sqs.receive_message(
                    QueueUrl=self._source.queue_url,
                    MaxNumberOfMessages=BATCH,
                    WaitTimeSeconds=self._wait,
                    VisibilityTimeout=self._visibility,
                )
            except AwsError as error:
                self._failed(error)
                await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                failures += 1
                continue
            failures = 0
            if self.problem is not None:
                self.problem = None
                self._on_news()
            for found in answer.get("Messages", []):
                self._take(found["MessageId"], found["ReceiptHandle"], found.get("Body", ""))

    def waiting(self) -> tuple[Message, ...]:
        """What nothing has been done about yet, oldest first."""
        return tuple(message for _, _, message in self._waiting.values())

    async def settle(self, done: Sequence[int], kept: Sequence[int]) -> None:
        """Delete `done`; forget `kept`, which the queue delivers again. Malformed ones are left to age: their
        receive count is what takes them to the dead-letter queue."""
        gone = [entry for number in done if (entry := self._pop(number)) is not None]
        back = [entry for number in kept if (entry := self._pop(number)) is not None]
        self._make_room()
        soon = [entry for entry in back if not entry[2].malformed]
        gate = asyncio.Semaphore(DELETIONS)
        await asyncio.gather(
            *(self._send(gate, self._delete, some) for some in _tens(gone)),
            *(self._send(gate, self._again, some) for some in _tens(soon)),
        )

    async def _send(
        self, gate: asyncio.Semaphore, work: Callable[[Entries], Awaitable[None]], some: Entries
    ) -> None:
        async with gate:
            try:
                await work(some)
            except AwsError as error:
                logger.warning("%d messages come again: %s", len(some), error)

    def _take(self, name: str, receipt: str, body: str) -> None:
        self.received += 1
        number = self._numbers.get(name)
        if number is not None:
            self._waiting[number] = (name, receipt, self._waiting[number][2])
            return
        parsed = parse(body, self._source.envelope)
        if parsed.malformed:
            logger.warning("message %s cannot be read: %s", name, parsed.malformed)
        self._last += 1
        message = Message(self._last, parsed.events, parsed.completions, bool(parsed.malformed))
        self._numbers[name] = self._last
        self._waiting[self._last] = (name, receipt, message)
        if len(self._waiting) >= MOST_WAITING:
            self._room.clear()
        self._on_news()

    def _failed(self, error: AwsError) -> None:
        if self.problem is None or str(self.problem) != str(error):
            logger.warning("the queue cannot be read: %s", error)
            self.problem = error
            self._on_news()

    def _pop(self, number: int) -> Entry | None:
        entry = self._waiting.pop(number, None)
        if entry is not None:
            self._numbers.pop(entry[0], None)
        return entry

    def _make_room(self) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._room.set()

    async def _delete(self, entries: Entries) -> None:
        answer = await self._sqs.delete_message_batch(
            QueueUrl=self._source.queue_url,
            Entries=[{"Id": str(at), "ReceiptHandle": entry[1]} for at, entry in enumerate(entries)],
        )
        failed = answer.get("Failed", [])  # with HTTP 200
        self.deleted += len(entries) - len(failed)
        if failed:
            logger.warning("%d messages not deleted, first: %s; they come again", len(failed), failed[0])

    async def _again(self, entries: Entries) -> None:
        await self._sqs.change_message_visibility_batch(
            QueueUrl=self._source.queue_url,
            Entries=[
                {"Id": str(at), "ReceiptHandle": entry[1], "VisibilityTimeout": AGAIN_SECONDS}
                for at, entry in enumerate(entries)
            ],
        )


def _tens(entries: Entries) -> Iterable[Entries]:
    return (entries[at : at + BATCH] for at in range(0, len(entries), BATCH))
