"""Consumers of SQS queues. Each kind derives its own: here are receives, deletions, back-off and problems.

Inputs: SQS. Nothing is decided here: a derived class handles the messages, and names those that may be
deleted. A message that a failed or partial deletion leaves behind is received again.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from caretaker.aws.errors import AwsError, word
from caretaker.aws.identity import ClientKey
from caretaker.aws.pages import batched
from caretaker.aws.sqs import Message, Sqs
from caretaker.kube.errors import NotLeader
from caretaker.kube.slots import Slots
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one receive or one deletion (SQS's own limit)
MOST_RECEIVES: Final = 8  # at a time, while each comes back full
DELETIONS_AT_A_TIME: Final = 8  # batches
AGAIN_SECONDS: Final = 10  # until a message that was returned may be received again
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
RESTART_SECONDS: Final = 5.0
REFUSED_SECONDS: Final = 600.0  # for which a refused deletion is reported
MALFORMED_SECONDS: Final = 3600.0  # for which a malformed message is reported
LOG_SECONDS: Final = 60.0  # between two lines about malformed messages
LEAST_SECONDS: Final = 1  # of a long poll
RECEIVE: Final = "receive"

T = TypeVar("T")


class MalformedLog:
    """Logs the malformed messages of one queue, of which a sender may send any number: the first at once,
    then one line a minute with their number."""

    def __init__(self) -> None:
        self._open = False  # a line was written less than a minute ago
        self._count = 0  # of messages since then
        self._last = ("", "")
        self._at = 0.0  # when that came

    def add(self, message_id: str, fault: str) -> None:
        """A message cannot be read."""
        self._count += 1
        self._last, self._at = (word(message_id), fault), time.monotonic()
        if not self._open:
            self._write()

    def recent(self) -> str:
        """The fault of the last message; "" if that came more than an hour ago."""
        return self._last[1] if time.monotonic() - self._at < MALFORMED_SECONDS else ""

    def _write(self) -> None:
        self._open = self._count > 0
        if not self._open:
            return
        (message_id, fault), count = self._last, self._count
        self._count = 0
        if count == 1:
            logger.warning("message %s cannot be read: %s", message_id, fault)
        else:
            logger.warning(
                "%d messages cannot be read within a minute, the last, %s: %s", count, message_id, fault
            )
        asyncio.get_running_loop().call_later(LOG_SECONDS, self._write)


class LongPolls:
    """Limits the number of long polls that run at a time, over all queues of a kind.

    A long poll occupies a thread while it waits. With more queues than slots, each queue waits for a slot,
    and its long poll is shorter, so that it is polled as often as before. The owner of a slot is a namespace;
    it has an equal part of the slots and of those that others leave of theirs. Threads beyond the slots
    are reserved for short polls, which receive a backlog.

    queues  those with long polls, by namespace
    """

    def __init__(self, slots: int) -> None:
        self.queues: dict[str, set[Hashable]] = {}
        self._total = slots
        self._slots = Slots(slots)

    def add(self, namespace: str, queue: Hashable) -> None:
        """The queue takes part from now on."""
        self.queues.setdefault(namespace, set()).add(queue)
        self._slots.limit(self._per_namespace())

    def remove(self, namespace: str, queue: Hashable) -> None:
        """The queue is read by short polls, cannot be read, or is not read any more."""
        self.queues.get(namespace, set()).discard(queue)
        if not self.queues.get(namespace):
            self.queues.pop(namespace, None)
        self._slots.limit(self._per_namespace())

    @asynccontextmanager
    async def slot(self, namespace: str, seconds: int) -> AsyncIterator[int]:
        """Waits for a slot; yields the seconds that the long poll may wait, at most `seconds`."""
        async with self._slots.slot(namespace):
            most = self._slots.per_owner
            shorter = int(seconds * most / max(len(self.queues.get(namespace, ())), most))
            yield max(shorter, min(seconds, LEAST_SECONDS))

    def _per_namespace(self) -> float:
        """Of a namespace that wants more than others: what those leave that want less is divided."""
        free: float = self._total
        numbers = sorted(len(queues) for queues in self.queues.values())
        for at, number in enumerate(numbers):
            equal = free / (len(numbers) - at)
            if number > equal:
                return equal
            free -= number
        return self._total


class QueueConsumer(ABC):
    """One queue.

    connected   whether a receive has ever come back
    deleted     messages, repetitions included
    malformed   its messages that cannot be read
    long_polls  limits those of many queues; None = nothing does. Consumers set it
    namespace   of its first reader
    """

    long_polls: LongPolls | None = None

    def __init__(self, sqs: Sqs, url: str, namespace: str = "") -> None:
        self.connected = False
        self.deleted = 0
        self.malformed = MalformedLog()
        self.namespace = namespace
        self._sqs = sqs
        self._url = url
        self._deletions = asyncio.Semaphore(DELETIONS_AT_A_TIME)
        self._errors: dict[str, tuple[AwsError, float]] = {}  # by operation: the last one, and when

    @property
    def problem(self) -> AwsError | None:
        """Why the queue cannot be read, or messages not be deleted. Receiving goes on for ever; the others
        happen when there is a reason to: a refusal of one counts for a while only."""
        since = time.monotonic() - REFUSED_SECONDS
        found = sorted(self._errors.items(), key=lambda item: item[0] != RECEIVE)
        return next((error for what, (error, at) in found if what == RECEIVE or at > since), None)

    def _failed(self, operation: str, error: AwsError) -> None:
        before, _ = self._errors.get(operation, (None, 0.0))
        self._errors[operation] = (error, time.monotonic())
        if before is None or str(before) != str(error):
            logger.warning("the queue cannot be used: %s", error)
            self.on_change()

    def _recovered(self, operation: str) -> None:
        if self._errors.pop(operation, None) is not None:
            self.on_change()

    # ---------------------------------------------------------------- of a derived class

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether it has no reader."""

    @abstractmethod
    def leave(self, reader: Key) -> None:
        """Remove the reader."""

    @abstractmethod
    def on_change(self) -> None:
        """The queue begins or ceases to work."""

    @abstractmethod
    async def run(self) -> None:
        """Receive until cancelled."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """The queue is not read any more."""

    # ---------------------------------------------------------------- receive

    async def receive(self, number: int, wait: int, visibility: int) -> Sequence[Message]:
        """At most so many messages."""
        answer = await self._sqs.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=number,
            WaitTimeSeconds=wait,
            VisibilityTimeout=visibility,
        )
        return answer.get("Messages", [])

    async def receive_all(
        self, width: int, wait: int, receive: Callable[[int], Awaitable[T]]
    ) -> tuple[list[T], BaseException | None]:
        """(the results of so many calls of `receive` at a time, the first error). A long poll waits for its
        turn: `receive` gets the seconds that it may take."""
        if self.long_polls is not None and (wait or self.connected):  # short polls need none of the slots
            (self.long_polls.add if wait else self.long_polls.remove)(self.namespace, self)
        polls = self.long_polls if wait else None
        async with polls.slot(self.namespace, wait) if polls else contextlib.nullcontext(wait) as seconds:
            receives = (receive(seconds) for _ in range(width))
            answers = await asyncio.gather(*receives, return_exceptions=True)
        error = next((one for one in answers if isinstance(one, BaseException)), None)
        return [one for one in answers if not isinstance(one, BaseException)], error

    def received_all(self) -> None:
        """Receives have come back, and none has failed."""
        self._recovered(RECEIVE)
        if not self.connected:
            self.connected = True
            self.on_change()

    async def back_off(self, error: BaseException, failures: int) -> None:
        """A receive has failed, after so many failures in a row: wait. Raises anything but AwsError."""
        if not isinstance(error, AwsError):
            raise error
        if self.long_polls is not None:
            self.long_polls.remove(self.namespace, self)
        self._failed(RECEIVE, error)
        await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])

    # ---------------------------------------------------------------- delete

    async def delete(self, gone: Sequence[str], back: Sequence[str] = ()) -> None:
        """Delete the messages with the receipt handles `gone`, and return those with `back`."""
        await asyncio.gather(
            *(self._send("delete", self._delete, some) for some in batched(gone, BATCH)),
            *(self._send("return", self._again, some) for some in batched(back, BATCH)),
        )

    async def _send(
        self, operation: str, work: Callable[[Sequence[str]], Awaitable[None]], batch: Sequence[str]
    ) -> None:
        async with self._deletions:
            try:
                await work(batch)
            except NotLeader as error:
                logger.info("%d messages come again: %s", len(batch), error)
            except AwsError as error:
                logger.warning("%d messages come again: %s", len(batch), error)
                if not error.transient:
                    self._failed(operation, error)
            else:
                self._recovered(operation)

    async def _delete(self, batch: Sequence[str]) -> None:
        answer = await self._sqs.delete_message_batch(
            QueueUrl=self._url,
            Entries=[{"Id": str(at), "ReceiptHandle": receipt} for at, receipt in enumerate(batch)],
        )
        failed = answer.get("Failed", [])  # with HTTP 200
        self.deleted += len(batch) - len(failed)
        if failed:
            code = word(failed[0]["Code"])
            logger.warning("%d messages not deleted, first: %s; they come again", len(failed), code)

    async def _again(self, batch: Sequence[str]) -> None:
        await self._sqs.change_message_visibility_batch(
            QueueUrl=self._url,
            Entries=[
                {"Id": str(at), "ReceiptHandle": receipt, "VisibilityTimeout": AGAIN_SECONDS}
                for at, receipt in enumerate(batch)
            ],
        )


C = TypeVar("C", bound=QueueConsumer)


class Consumers(Generic[C]):
    """The consumers of a kind, one for each queue: its URL and identity. `name`: of their tasks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: dict[tuple[ClientKey, str], tuple[C, asyncio.Task[None]]] = {}

    def of_queue(self, target: ClientKey, url: str, long_polls: LongPolls | None, make: Callable[[], C]) -> C:
        """The queue's consumer. Readers of one queue share it, with the role session of the first."""
        address = (target.shared, url)
        if address not in self._running:
            made = make()
            made.long_polls = long_polls
            if long_polls is not None:
                long_polls.add(made.namespace, made)
            self._running[address] = made, asyncio.create_task(_run_forever(made), name=self._name)
        return self._running[address][0]

    async def leave(self, reader: Key) -> None:
        """Remove the reader. A consumer without readers ends."""
        await cancel(*self.drop(reader))

    def drop(self, reader: Key) -> "list[asyncio.Task[None]]":
        """As leave(), without waiting; returns the tasks to cancel."""
        for consumer, _ in self._running.values():
            consumer.leave(reader)
        return self._end([address for address, (consumer, _) in self._running.items() if consumer.idle])

    async def close(self) -> None:
        """End all consumers."""
        await cancel(*self._end(list(self._running)))

    def _end(self, addresses: Sequence[tuple[ClientKey, str]]) -> "list[asyncio.Task[None]]":
        ended = [self._running.pop(address) for address in addresses]
        for consumer, _ in ended:
            consumer.close()
            if consumer.long_polls is not None:
                consumer.long_polls.remove(consumer.namespace, consumer)
                consumer.long_polls = None
        return [task for _, task in ended]


async def _run_forever(consumer: QueueConsumer) -> None:
    """An unexpected answer must not end the reading."""
    while True:
        try:
            await consumer.run()
        except Exception:
            logger.exception("reading a queue failed; again in %.0f s", RESTART_SECONDS)
        await asyncio.sleep(RESTART_SECONDS)
