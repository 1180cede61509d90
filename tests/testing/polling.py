"""A poller of one queue at work, with what passes of its readers would do with it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from awsdoubles.clients import REGION
from awsdoubles.envelopes import Queue
from caretaker.aws.calls import Aws as AwsCalls
from caretaker.aws.identity import ClientKey
from caretaker.s3refresh.receiver import Poller
from caretaker.s3refresh.snapshot import Message
from testing.customresource import TIMEOUT
from testing.s3refreshes import reading

OWNER: Final = "owner"
VISIBILITY: Final = 3  # seconds: what is not deleted comes again soon


class Polling:
    """`url` is the SQS endpoint. Readers are named by text; the owner is there from the start if asked."""

    def __init__(
        self,
        calls: AwsCalls,
        url: str,
        queue: Queue,
        *,
        owner: bool = True,
        visibility: int = VISIBILITY,
        owner_absent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._news = asyncio.Event()
        key = ClientKey("sqs", REGION, endpoint_url=url)
        self.poller = Poller(calls.sqs(key), reading(queue.url, 1, visibility), owner_absent)
        if owner:
            self.join(OWNER, owner=True)

    def join(self, reader: str, *, owner: bool = False) -> None:
        """A reader comes."""
        self.poller.messages.join(reader, self._news.set, owner=owner)

    def waiting(self, reader: str = OWNER) -> tuple[Message, ...]:
        """What a reader is asked about."""
        return self.poller.messages.waiting(reader)[0]

    def keys(self, reader: str = OWNER) -> list[str]:
        """The keys of all events that a reader is asked about."""
        return sorted(event.key for message in self.waiting(reader) for event in message.events)

    async def done(self, reader: str = OWNER) -> None:
        """Everything that this reader is asked about is on record."""
        await self.poller.settle(reader, [message.id for message in self.waiting(reader)], [])

    async def keep(self, reader: str = OWNER) -> None:
        """This reader can do nothing about it yet."""
        await self.poller.settle(reader, [], [message.id for message in self.waiting(reader)])

    async def unclaimed(self, reader: str = OWNER) -> None:
        """Nothing that this reader is asked about is on record: ends of others' refreshes."""
        await self.poller.settle(reader, [], [], [message.id for message in self.waiting(reader)])

    async def until(self, wanted: Callable[[], bool]) -> None:
        """Return once it holds; looked at whenever the poller has news, and now and then."""
        async with asyncio.timeout(TIMEOUT):
            while not wanted():
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await self._news.wait()


@asynccontextmanager
async def polling(calls: AwsCalls, url: str, queue: Queue, **how: Any) -> AsyncIterator[Polling]:
    """The poller runs within the block; `how` as of Polling."""
    made = Polling(calls, url, queue, **how)
    task = asyncio.create_task(made.poller.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
