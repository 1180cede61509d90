"""Looks at a source queue: its attributes, and how many messages lie in its dead-letter queue.

Inputs: SQS. It must not judge: queue_view.py does.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

import msgspec

from caretaker.api.s3refresh import SQSSource
from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Sqs
from caretaker.s3refresh import advice
from caretaker.s3refresh.queue_view import (
    ATTRIBUTES,
    NEAR_MOST_IN_FLIGHT,
    QueueView,
    dead_letter_queue,
    no_dead_letter_queue,
    view_of,
)
from caretaker.s3refresh.receiver import Receiver
from caretaker.s3refresh.worker_config import Reading

logger = logging.getLogger(__name__)

DEPTH = "ApproximateNumberOfMessages"
# The queue's attributes are read every minute while messages arrive or wait, else hourly: in between, an
# empty long poll shows that the queue is empty.
CHECK_SECONDS: Final = 60.0
QUIET_CHECKS: Final = 60
BACKOFF_SECONDS: Final = (2.0, 5.0, 15.0, 60.0)


def backoff(failures: int) -> float:
    """Seconds until the next try after so many failures in a row."""
    return BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)] * random.uniform(0.5, 1)


class QueueInspector:
    """Looks at the source queue of one resource when there is a reason to, and asks for a pass (`on_news`).

    view  the last look
    dead  CaughtUp reports dead letters, until they are redriven or purged
    """

    def __init__(self, receiver: Receiver, on_news: Callable[[], None], scale: float) -> None:
        self.view = QueueView()
        self.dead = False
        self._receiver = receiver
        self._on_news = on_news
        self._scale = scale

    def reset(self) -> None:
        """Earlier findings do not count any more."""
        self.view = QueueView()

    async def run(self, sqs: Sqs, source: Reading) -> None:
        """Look for ever."""
        failures, second, receiver = 0, 0.0, self._receiver
        while True:
            received, looked = receiver.received, time.monotonic()
            late = 0 < second <= looked
            view = msgspec.structs.replace(await self._inspect(sqs, source), late=late)
            if view != self.view:
                self.view = view
                self._on_news()
            if view.problem:
                await asyncio.sleep(backoff(failures) * self._scale)
                failures += 1
                continue
            failures = 0
            receiver.saw(view.visible, looked)
            if not second and receiver.receiving:
                second = time.monotonic() + source.visibility
            if not late:
                await asyncio.sleep(CHECK_SECONDS * self._scale)
                continue
            for _ in range(QUIET_CHECKS):
                await asyncio.sleep(CHECK_SECONDS * self._scale)
                if receiver.received != received or self._watched:
                    break

    @property
    def _watched(self) -> bool:
        """Whether the queue's counts are read every minute: CaughtUp depends on messages that may be removed
        without this process receiving them."""
        return self.dead or self._receiver.behind or self.view.in_flight >= NEAR_MOST_IN_FLIGHT

    async def _inspect(self, sqs: Sqs, source: Reading) -> QueueView:
        try:
            return await inspect(sqs, source.source, self.view)
        except Exception as error:  # an unexpected answer must not end the resource's work
            logger.exception("the queue's attributes cannot be read")
            return msgspec.structs.replace(self.view, problem=f"{type(error).__name__}: {error}", code="")


async def inspect(sqs: Sqs, source: SQSSource, before: QueueView) -> QueueView:
    """The present attributes; `before`, with the problem, when SQS does not answer."""
    try:
        answer = await sqs.get_queue_attributes(QueueUrl=source.queue_url, AttributeNames=ATTRIBUTES)
    except AwsError as error:
        return msgspec.structs.replace(
            before, problem=advice.describe(error, advice.QUEUE), code=str(error.error_class)
        )
    found = answer.get("Attributes", {})
    view = view_of(found, source, None)
    place = dead_letter_queue(found)
    if place is None:
        return view
    try:
        return msgspec.structs.replace(view, dead_letters=await _dead_letters(sqs, *place))
    except AwsError as error:
        # Not being allowed to look at it is no fault: it carries nothing.
        lost = error.not_found and not view.fault and source.malformed == "DeadLetter"
        return msgspec.structs.replace(view, fault=no_dead_letter_queue(source, place[1])) if lost else view


async def _dead_letters(sqs: Sqs, account: str, name: str) -> int:
    url = (await sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account))["QueueUrl"]
    answer = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=(DEPTH,))
    return int(answer.get("Attributes", {}).get(DEPTH, 0))
