"""One received message that is not deleted or returned yet, and the parsing of its body.

Inputs: the message of a ReceiveMessage response. It must not call AWS.
"""

import asyncio
import time
from collections.abc import Hashable
from typing import Final

from caretaker.api.s3refresh import SQSSource
from caretaker.s3refresh.envelope import Parsed, parsing
from caretaker.s3refresh.snapshot import Message

LARGE_BYTES: Final = 64 * 1024  # a longer body yields to the event loop after it is parsed


class InFlightMessage:
    """A message in flight: SQS's id, its latest receipt handle, the readers that have not answered for it."""

    __slots__ = (
        "answered",
        "asked",
        "claimed",
        "deleted",
        "message",
        "name",
        "receipt",
        "returned",
        "since",
        "size",
    )

    def __init__(self, name: str, receipt: str, size: int, message: Message, asked: set[Hashable]) -> None:
        self.name = name
        self.receipt = receipt
        self.size = size
        self.message = message
        self.asked = asked
        self.answered = False  # at least one reader has answered
        self.returned = False
        self.claimed = False  # at least one reader claims it
        self.deleted = False  # from the queue
        self.since = time.monotonic()


async def parsed_of(body: str, source: SQSSource) -> Parsed:
    """Parse a body. A long one is parsed in slices, with a yield to the event loop after each."""
    steps = parsing(body, source.envelope)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            if len(body) > LARGE_BYTES:
                await asyncio.sleep(0)
            parsed: Parsed = end.value
            return parsed
        await asyncio.sleep(0)
