"""One message of a queue while it is here: what the poller knows of it, and how its body is read.

Inputs: what a receive brought. It must not call AWS.
"""

import asyncio
import time
from collections.abc import Hashable
from typing import Final

from caretaker.api.s3refresh import SQSSource
from caretaker.s3refresh.envelope import Parsed, parsing
from caretaker.s3refresh.plan import Message

LARGE_BYTES: Final = 64 * 1024  # of a body; after each one that is longer the loop is let go


class Held:
    """A message that is here: SQS's id, its latest receipt, who has not answered yet."""

    __slots__ = (
        "answered",
        "asked",
        "deleted",
        "kept",
        "known",
        "message",
        "name",
        "receipt",
        "since",
        "size",
    )

    def __init__(self, name: str, receipt: str, size: int, message: Message, asked: set[Hashable]) -> None:
        self.name = name
        self.receipt = receipt
        self.size = size
        self.message = message
        self.asked = asked
        self.answered = False  # by one reader at least
        self.kept = False
        self.known = False  # to one reader at least
        self.deleted = False  # from the queue
        self.since = time.monotonic()


async def parsed_of(body: str, source: SQSSource) -> Parsed:
    """The message. A long one is read in slices, so that it holds nobody up."""
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
