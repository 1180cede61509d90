"""One queue of events: receives, tells every task that reads it, deletes.

Inputs: SQS and a queue. What it hands on is a hint, never the only word: whoever starts looks at everything,
and looks again every resyncSeconds. So a message is deleted as soon as it was told, whatever comes of it, and
several tasks may share a queue. Not the poller of S3AggregatedRefresh, which keeps a message until its reader
has written down what it says, and gives a queue to one reader alone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import Target
from caretaker.aws.sqs import Message, Sqs
from caretaker.daemontask.ecs.envelope import Notice, parse
from caretaker.kube.errors import NotLeader
from caretaker.runtime.tasks import cancel

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one receive, one deletion (SQS's own limit)
WAIT: Final = 20  # seconds of a long poll (SQS's own limit)
VISIBILITY: Final = 30  # seconds until what could not be deleted comes again
MOST_RECEIVES: Final = 8  # at a time, while each comes back full
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
REFUSED_SECONDS: Final = 600.0  # for which a deletion that was refused is told of
MALFORMED_SECONDS: Final = 3600.0  # for which a malformed message is told of

Listener = Callable[[Sequence[Notice]], None]
Counted = Callable[[str, int], None]


class Reader:
    """Runs until cancelled. `count` is told of messages by result: Event, Other, Malformed."""

    def __init__(self, sqs: Sqs, url: str, count: Counted, scale: float = 1.0) -> None:
        self.heard = False  # a receive has come back
        self._sqs = sqs
        self._url = url
        self._count = count
        self._scale = scale
        self._listeners: dict[Hashable, tuple[Listener, Callable[[], None]]] = {}
        self._receiving: AwsError | None = None
        self._deleting: tuple[AwsError, float] | None = None  # the last refusal, and when
        self._malformed = ("", 0.0)
        self._told = (False, "", False)  # of heard, problem and malformed, at the last on_state

    def join(self, name: Hashable, listener: Listener, on_state: Callable[[], None]) -> None:
        """Tell `listener` of events from now on, and `on_state` when the queue can or cannot be read."""
        self._listeners[name] = (listener, on_state)

    def leave(self, name: Hashable) -> None:
        """Tell it no more."""
        self._listeners.pop(name, None)

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not self._listeners

    @property
    def problem(self) -> AwsError | None:
        """Why the queue cannot be read, or messages not be deleted."""
        if self._receiving is not None or self._deleting is None:
            return self._receiving
        error, at = self._deleting
        return error if time.monotonic() - at < REFUSED_SECONDS else None

    @property
    def malformed(self) -> str:
        """What is wrong with the latest message that could not be read; "" when that was an hour ago."""
        fault, at = self._malformed
        return fault if fault and time.monotonic() - at < MALFORMED_SECONDS * self._scale else ""

    async def run(self) -> None:
        """Receive for ever; back off while the queue cannot be read."""
        failures, width = 0, 1
        while True:
            # One long poll, or several short ones while a backlog comes in. The first tells at once whether
            # the queue can be read.
            wait = WAIT if width == 1 and self.heard else 0
            answers = await asyncio.gather(
                *(self._receive(wait) for _ in range(width)), return_exceptions=True
            )
            error = next((one for one in answers if isinstance(one, BaseException)), None)
            found = [message for one in answers if not isinstance(one, BaseException) for message in one]
            if error is not None and not isinstance(error, AwsError):
                raise error
            await self._take(found)
            self._state(error)
            if error is not None:
                wait_seconds = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
                await asyncio.sleep(wait_seconds * self._scale)
                failures, width = failures + 1, 1
                continue
            failures = 0
            width = min(width * 2, MOST_RECEIVES) if len(found) == BATCH * width else 1

    async def _receive(self, wait: int) -> Sequence[Message]:
        answer = await self._sqs.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=wait, VisibilityTimeout=VISIBILITY
        )
        return answer.get("Messages", [])

    async def _take(self, messages: Sequence[Message]) -> None:
        """Tell, then delete: what is told twice changes nothing."""
        notices: list[Notice] = []
        for message in messages:
            parsed = parse(message.get("Body", ""))
            if parsed.notice is not None:
                notices.append(parsed.notice)
            elif parsed.malformed:
                logger.warning("message %s cannot be read: %s", message["MessageId"], parsed.malformed)
                self._malformed = (parsed.malformed, time.monotonic())
            self._count("Event" if parsed.notice else "Malformed" if parsed.malformed else "Other", 1)
        for listener, _ in list(self._listeners.values()):
            listener(notices)
        batches = (messages[at : at + BATCH] for at in range(0, len(messages), BATCH))
        await asyncio.gather(*(self._delete(batch) for batch in batches))

    async def _delete(self, batch: Sequence[Message]) -> None:
        try:
            answer = await self._sqs.delete_message_batch(
                QueueUrl=self._url,
                Entries=[
                    {"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(batch)
                ],
            )
        except NotLeader as error:
            logger.info("%d messages come again: %s", len(batch), error)
        except AwsError as error:
            logger.warning("%d messages come again: %s", len(batch), error)
            if not error.transient:
                self._deleting = (error, time.monotonic())
        else:
            self._deleting = None
            if failed := answer.get("Failed"):  # with HTTP 200
                logger.warning("%d messages come again, the first: %s", len(failed), failed[0])

    def _state(self, error: AwsError | None) -> None:
        """Say so when the queue can, or cannot be used any more, or a message not be read."""
        if error is not None and str(error) != str(self._receiving):
            logger.warning("the queue cannot be used: %s", error)
        self.heard = self.heard or error is None
        self._receiving = error
        problem = self.problem
        state = (self.heard, str(problem) if problem is not None else "", bool(self.malformed))
        if state != self._told:
            self._told = state
            for _, on_state in list(self._listeners.values()):
                on_state()


class _Queue:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.task = asyncio.create_task(_for_ever(reader), name="ecs-events")


class Readers:
    """The queues of all tasks: one reader for each identity and URL."""

    def __init__(self, aws: Aws, count: Counted, scale: float = 1.0) -> None:
        self._aws = aws
        self._count = count
        self._scale = scale
        self._queues: dict[tuple[Target, str], _Queue] = {}

    def join(
        self, name: Hashable, target: Target, url: str, listener: Listener, on_state: Callable[[], None]
    ) -> Reader:
        """The queue's reader, with `name` among those whom it tells."""
        queue = self._queues.get((target, url))
        if queue is None:
            reader = Reader(self._aws.sqs(target), url, self._count, self._scale)
            queue = self._queues[target, url] = _Queue(reader)
        queue.reader.join(name, listener, on_state)
        return queue.reader

    async def leave(self, name: Hashable) -> None:
        """`name` reads nothing any more. A reader to whom nobody listens ends."""
        await cancel(*self.drop(name))

    def drop(self, name: Hashable) -> "list[asyncio.Task[None]]":
        """As leave(), at once; the tasks that are left to be stopped."""
        ended = []
        for address, queue in list(self._queues.items()):
            queue.reader.leave(name)
            if queue.reader.idle:
                ended.append(queue.task)
                del self._queues[address]
        return ended

    async def close(self) -> None:
        """Nobody reads anything any more."""
        tasks = [queue.task for queue in self._queues.values()]
        self._queues.clear()
        await cancel(*tasks)


async def _for_ever(reader: Reader) -> None:
    """An answer that nobody foresaw must not end the reading."""
    while True:
        try:
            await reader.run()
        except Exception:
            logger.exception("reading events failed; again in %.0f s", BACKOFF_SECONDS[2])
        await asyncio.sleep(BACKOFF_SECONDS[2])
