"""Reads one queue of events: receives messages, notifies every task that shares the queue, deletes them.

Inputs: SQS and a queue. A message is only a hint: every cluster gets a check at the start and every
resyncSeconds. So a message is deleted once the tasks are notified, and several tasks may share a queue. The
poller of S3AggregatedRefresh differs: it keeps a message until its content is recorded, and a queue has one
reader.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from caretaker.aws.calls import Aws
from caretaker.aws.errors import AwsError, word
from caretaker.aws.identity import ClientKey
from caretaker.aws.large_answers import LARGE_BYTES, kept
from caretaker.aws.malformed_log import MalformedLog
from caretaker.aws.sqs import Sqs
from caretaker.aws.threads import LongPolls
from caretaker.daemontask.ecs.instances import Notice, Parsed, parse
from caretaker.kube.errors import NotLeader
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one receive, one deletion (SQS's own limit)
WAIT: Final = 20  # seconds of a long poll (SQS's own limit)
VISIBILITY: Final = 30  # seconds until a message that was not deleted comes again
MOST_RECEIVES: Final = 8  # in parallel, while each returns a full batch
# At a time, of the threads that aws.session.Options gives to polls; endpoints from specs have others.
MOST_LONG_POLLS: Final = 24
BACKOFF_SECONDS: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
REFUSED_SECONDS: Final = 600.0  # for which a refused deletion is reported
MALFORMED_SECONDS: Final = 3600.0  # for which a malformed message is reported

_Received = tuple[str, str, Parsed]  # a message's ID, receipt handle and content
Listener = Callable[[Sequence[Notice]], None]
Counted = Callable[[str, int], None]


class Reader:
    """The reader of one queue; runs until cancelled. `count` gets messages by result: Event, Other,
    Malformed. `long_polls`: limits its long polls; `namespace`: of its first listener."""

    def __init__(
        self,
        sqs: Sqs,
        url: str,
        count: Counted,
        scale: float = 1.0,
        long_polls: LongPolls | None = None,
        namespace: str = "",
    ) -> None:
        self.received = False  # a receive has succeeded
        self._sqs = sqs
        self._url = url
        self._count = count
        self._scale = scale
        self.long_polls = long_polls
        self._namespace = namespace
        self._listeners: dict[Hashable, tuple[Listener, Callable[[], None]]] = {}
        self._receiving: AwsError | None = None
        self._deleting: tuple[AwsError, float] | None = None  # the last refused deletion, and when
        self._malformed = ("", 0.0)
        self._malformed_log = MalformedLog(logger)
        self._reported = (False, "", False)  # received, problem and malformed at the last on_state

    def join(self, name: Hashable, listener: Listener, on_state: Callable[[], None]) -> None:
        """Call `listener` with events from now on, and `on_state` when the state of the queue changes."""
        self._listeners[name] = (listener, on_state)

    def leave(self, name: Hashable) -> None:
        """Stop calling the listener of this name."""
        self._listeners.pop(name, None)

    @property
    def idle(self) -> bool:
        """Whether there is no listener."""
        return not self._listeners

    @property
    def problem(self) -> AwsError | None:
        """Why messages cannot be received or deleted."""
        if self._receiving is not None or self._deleting is None:
            return self._receiving
        error, at = self._deleting
        return error if time.monotonic() - at < REFUSED_SECONDS else None

    @property
    def malformed(self) -> str:
        """The fault of the latest malformed message; "" when it is older than an hour."""
        fault, at = self._malformed
        return fault if fault and time.monotonic() - at < MALFORMED_SECONDS * self._scale else ""

    async def run(self) -> None:
        """Receive until cancelled; back off while the queue cannot be read."""
        failures, width = 0, 1
        while True:
            # One long poll, or several short ones while there is a backlog. The first is short, to learn at
            # once whether the queue can be read.
            wait = WAIT if width == 1 and self.received else 0
            turn = self.long_polls.slot(wait) if wait and self.long_polls else contextlib.nullcontext(wait)
            async with turn as seconds:
                receives = (self._receive(seconds) for _ in range(width))
                answers = await asyncio.gather(*receives, return_exceptions=True)
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

    async def _receive(self, wait: int) -> Sequence[_Received]:
        found: list[_Received] = []
        with kept(self._namespace):
            answer = await self._sqs.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=BATCH,
                WaitTimeSeconds=wait,
                VisibilityTimeout=VISIBILITY,
            )
            for one in answer.get("Messages", []):
                body = one.get("Body", "")
                found.append((one["MessageId"], one["ReceiptHandle"], parse(body)))
                if len(body) > LARGE_BYTES:
                    await asyncio.sleep(0)
        return found

    async def _take(self, messages: Sequence[_Received]) -> None:
        """Notify, then delete: an event that is handled twice changes nothing."""
        notices: list[Notice] = []
        for name, _, parsed in messages:
            if parsed.notice is not None:
                notices.append(parsed.notice)
            elif parsed.malformed:
                self._malformed_log.add(name, parsed.malformed)
                self._malformed = (parsed.malformed, time.monotonic())
            self._count("Event" if parsed.notice else "Malformed" if parsed.malformed else "Other", 1)
        for listener, _ in list(self._listeners.values()):
            listener(notices)
        batches = (messages[at : at + BATCH] for at in range(0, len(messages), BATCH))
        await asyncio.gather(*(self._delete(batch) for batch in batches))

    async def _delete(self, batch: Sequence[_Received]) -> None:
        try:
            answer = await self._sqs.delete_message_batch(
                QueueUrl=self._url,
                Entries=[{"Id": str(at), "ReceiptHandle": one[1]} for at, one in enumerate(batch)],
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
                logger.warning("%d messages not deleted, first: %s", len(failed), word(failed[0]["Code"]))

    def _state(self, error: AwsError | None) -> None:
        """Call on_state when the queue starts or stops working, or a malformed message appears."""
        if error is not None and str(error) != str(self._receiving):
            logger.warning("the queue cannot be used: %s", error)
        self.received = self.received or error is None
        self._receiving = error
        problem = self.problem
        state = (self.received, str(problem) if problem is not None else "", bool(self.malformed))
        if state != self._reported:
            self._reported = state
            for _, on_state in list(self._listeners.values()):
                on_state()


class _Queue:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.task = asyncio.create_task(_run_forever(reader), name="ecs-events")


class Readers:
    """The readers of all tasks' queues, one for each identity and URL."""

    def __init__(self, aws: Aws, count: Counted, scale: float = 1.0) -> None:
        self._aws = aws
        self._count = count
        self._scale = scale
        self._queues: dict[tuple[ClientKey, str], _Queue] = {}
        self._long_polls = LongPolls(MOST_LONG_POLLS)

    def join(
        self, name: Key, target: ClientKey, url: str, listener: Listener, on_state: Callable[[], None]
    ) -> Reader:
        """The queue's reader, with `name` among its listeners."""
        address = (target.shared, url)  # readers of one queue share the role session of the first
        queue = self._queues.get(address)
        if queue is None:
            polls = None if target.endpoint_url else self._long_polls
            sqs = self._aws.sqs(target)
            reader = Reader(sqs, url, self._count, self._scale, polls, name.namespace)
            self._long_polls.queues += polls is not None
            queue = self._queues[address] = _Queue(reader)
        queue.reader.join(name, listener, on_state)
        return queue.reader

    async def leave(self, name: Hashable) -> None:
        """Remove the listener `name`. A reader without listeners ends."""
        await cancel(*self.decrease(name))

    def decrease(self, name: Hashable) -> "list[asyncio.Task[None]]":
        """As leave(), without waiting; returns the tasks to cancel."""
        ended = []
        for address, queue in list(self._queues.items()):
            queue.reader.leave(name)
            if queue.reader.idle:
                ended.append(queue.task)
                self._long_polls.queues -= queue.reader.long_polls is not None
                del self._queues[address]
        return ended

    async def close(self) -> None:
        """End all readers."""
        tasks = [queue.task for queue in self._queues.values()]
        self._queues.clear()
        self._long_polls.queues = 0
        await cancel(*tasks)


async def _run_forever(reader: Reader) -> None:
    """An unexpected answer must not end the reading."""
    while True:
        try:
            await reader.run()
        except Exception:
            logger.exception("reading events failed; again in %.0f s", BACKOFF_SECONDS[2])
        await asyncio.sleep(BACKOFF_SECONDS[2])
