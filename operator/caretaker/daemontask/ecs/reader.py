"""Reads one queue of events: receives messages, notifies every task that shares the queue, deletes them.

Inputs: SQS and a queue. A message is only a hint: every cluster gets a check at the start and every
resyncSeconds. So a message is deleted once the tasks are notified, and several tasks may share a queue. The
poller of S3AggregatedRefresh differs: it keeps a message until its content is recorded, and a queue has one
reader.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from caretaker.aws.calls import Aws
from caretaker.aws.identity import ClientKey
from caretaker.aws.large_answers import LARGE_BYTES, kept
from caretaker.aws.sqs import Sqs
from caretaker.daemontask.ecs.instances import Notice, Parsed, parse
from caretaker.runtime.queue_consumer import BATCH, MOST_RECEIVES, Consumers, LongPolls, QueueConsumer
from caretaker.runtime.work_queue import Key

WAIT: Final = 20  # seconds of a long poll (SQS's own limit)
VISIBILITY: Final = 30  # seconds until a message that was not deleted comes again
# At a time, of the threads that aws.session.Options gives to polls; endpoints from specs have others.
MOST_LONG_POLLS: Final = 24

_Received = tuple[str, str, Parsed]  # a message's ID, receipt handle and content
Listener = Callable[[Sequence[Notice]], None]
Counted = Callable[[str, int], None]


class Reader(QueueConsumer):
    """The reader of one queue. `count` gets messages by result: Event, Other, Malformed."""

    def __init__(self, sqs: Sqs, url: str, count: Counted, namespace: str = "") -> None:
        super().__init__(sqs, url, namespace)
        self._count = count
        self._listeners: dict[Key, tuple[Listener, Callable[[], None]]] = {}
        self._reported = (False, "", False)  # connected, problem and malformed at the last on_state

    def join(self, name: Key, listener: Listener, on_state: Callable[[], None]) -> None:
        """Call `listener` with events from now on, and `on_state` when the state of the queue changes."""
        self._listeners[name] = (listener, on_state)

    def leave(self, reader: Key) -> None:
        self._listeners.pop(reader, None)

    @property
    def idle(self) -> bool:
        return not self._listeners

    @property
    def fault(self) -> str:
        """The fault of the latest malformed message; "" when it is older than an hour."""
        return self.malformed.recent()

    async def run(self) -> None:
        """Receive until cancelled; back off while the queue cannot be read."""
        failures, width = 0, 1
        while True:
            # One long poll, or several short ones while there is a backlog. The first is short, to learn at
            # once whether the queue can be read.
            wait = WAIT if width == 1 and self.connected else 0
            answers, error = await self.receive_all(width, wait, self._receive)
            found = [message for one in answers for message in one]
            await self._take(found)
            if error is not None:
                await self.back_off(error, failures)
                failures, width = failures + 1, 1
                continue
            self.received_all()
            self.on_change()
            failures, width = 0, min(width * 2, MOST_RECEIVES) if len(found) == BATCH * width else 1

    async def _receive(self, wait: int) -> Sequence[_Received]:
        found: list[_Received] = []
        with kept(self.namespace):
            for one in await self.receive(BATCH, wait, VISIBILITY):
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
                self.malformed.add(name, parsed.malformed)
            self._count("Event" if parsed.notice else "Malformed" if parsed.malformed else "Other", 1)
        for listener, _ in list(self._listeners.values()):
            listener(notices)
        await self.delete([receipt for _, receipt, _ in messages])

    def on_change(self) -> None:
        """Call on_state when the queue starts or stops working, or a malformed message appears."""
        problem = self.problem
        state = (self.connected, str(problem) if problem is not None else "", bool(self.fault))
        if state != self._reported:
            self._reported = state
            for _, on_state in list(self._listeners.values()):
                on_state()


class Readers(Consumers[Reader]):
    """The readers of all tasks' queues."""

    def __init__(self, aws: Aws, count: Counted) -> None:
        super().__init__("ecs-events")
        self._aws = aws
        self._count = count
        self._long_polls = LongPolls(MOST_LONG_POLLS)

    def join(
        self, name: Key, target: ClientKey, url: str, listener: Listener, on_state: Callable[[], None]
    ) -> Reader:
        """The queue's reader, with `name` among its listeners."""

        def make() -> Reader:
            return Reader(self._aws.sqs(target), url, self._count, name.namespace)

        reader = self.of_queue(target, url, None if target.endpoint_url else self._long_polls, make)
        reader.join(name, listener, on_state)
        return reader
