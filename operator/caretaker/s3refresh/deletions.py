"""Deletes messages of a queue, and returns others to it. What fails comes again by itself.

Inputs: SQS and the queue's URL. A message that a failed or partial deletion leaves behind is received again,
and is covered by then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Sqs
from caretaker.aws.text_limits import word
from caretaker.kube.errors import NotLeader
from caretaker.s3refresh.inflight import Batch
from caretaker.s3refresh.queue_state import QueueProblems

logger = logging.getLogger(__name__)

BATCH: Final = 10  # messages of one deletion (SQS's own limit)
AT_A_TIME: Final = 8  # batches
AGAIN_SECONDS: Final = 10  # until a message that was returned may be received again


class Deletions:
    """`deleted`: so many messages, repetitions included."""

    def __init__(self, sqs: Sqs, queue_url: str, problems: QueueProblems) -> None:
        self.deleted = 0
        self._sqs = sqs
        self._queue_url = queue_url
        self._problems = problems
        self._gate = asyncio.Semaphore(AT_A_TIME)

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
