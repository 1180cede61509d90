"""Looks at the source queue of a resource and for its targets, now and then and when there is a reason to.

Inputs: SQS, the target. It reports its findings and asks for a pass (`on_news`). It must not judge:
queue_view.py does.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection
from typing import Final

from msgspec.structs import replace

from caretaker.api.s3refresh import MAX_TARGETS, SQSSource
from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Sqs
from caretaker.kube.errors import NotLeader
from caretaker.s3refresh import conditions
from caretaker.s3refresh.queue_view import (
    ATTRIBUTES,
    NEAR_MOST_IN_FLIGHT,
    SOURCE,
    QueueView,
    dead_letter_queue,
    no_dead_letter_queue,
    refreshes_as_dead_letters,
    view_of,
)
from caretaker.s3refresh.receiver import Receiver
from caretaker.s3refresh.resource import Reading, WorkerConfig
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient

logger = logging.getLogger(__name__)

DEPTH = "ApproximateNumberOfMessages"
# The queue's attributes are read every minute while messages arrive or wait, else hourly: in between, an
# empty long poll shows that the queue is empty.
CHECK_SECONDS: Final = 60.0
QUIET_CHECKS: Final = 60
REDISCOVER_SECONDS: Final = 10.0  # at least, between two discoveries that failed calls ask for
BACKOFF_SECONDS: Final = (2.0, 5.0, 15.0, 60.0)
NOTHING_KNOWN: Final = Discovery()


def backoff(failures: int) -> float:
    """Seconds until the next try after so many failures in a row."""
    return BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)] * random.uniform(0.5, 1)


class QueueInspector:
    """Looks at the source queue: its attributes, and how many messages lie in its dead-letter queue.

    view  the last look
    dead  CaughtUp reports dead letters, until they are redriven or purged
    """

    def __init__(self, receiver: Receiver, on_news: Callable[[], None]) -> None:
        self.view = QueueView()
        self.dead = False
        self._looked = 0.0  # when `view` was read
        self._receiver = receiver
        self._on_news = on_news

    async def run(self, sqs: Sqs, source: Reading, sent: Collection[str] = ()) -> None:
        """Look for ever. `sent`: the ARNs that refreshes are sent to."""
        failures, second, receiver = 0, 0.0, self._receiver
        while True:
            received, looked = receiver.received, time.monotonic()
            late = 0 < second <= looked
            try:
                view = await inspect(sqs, source.source, self.view, sent)
            except Exception as error:  # an unexpected answer must not end the resource's work
                logger.exception("the queue's attributes cannot be read")
                fault = f"{type(error).__name__}: {error}"
                view = replace(self.view, problem=fault, code="")
            view = replace(view, late=late)
            if view != self.view:
                self.view = view
                self._on_news()
            if view.problem:
                await asyncio.sleep(backoff(failures))
                failures += 1
                continue
            failures, self._looked = 0, looked
            if receiver.source is not None:
                self.report()
                second = second or time.monotonic() + source.visibility
            if not late:
                await asyncio.sleep(CHECK_SECONDS)
                continue
            for _ in range(QUIET_CHECKS):
                await asyncio.sleep(CHECK_SECONDS)
                if receiver.received != received or self._watched:
                    break

    def report(self) -> None:
        """The poller learns of the messages that the last look has shown."""
        if (poller := self._receiver.source) is not None and self.view.checked:
            poller.backlog.saw(self.view.visible, self._looked)

    @property
    def _watched(self) -> bool:
        """Whether the queue's counts are read every minute: CaughtUp depends on messages that may be removed
        without this process receiving them."""
        poller = self._receiver.source
        behind = poller is not None and poller.backlog.behind
        return self.dead or behind or self.view.in_flight >= NEAR_MOST_IN_FLIGHT


async def inspect(sqs: Sqs, source: SQSSource, before: QueueView, sent: Collection[str] = ()) -> QueueView:
    """The present attributes; `before`, with the problem, when SQS does not answer."""
    try:
        answer = await sqs.get_queue_attributes(QueueUrl=source.queue_url, AttributeNames=ATTRIBUTES)
    except AwsError as error:
        return replace(before, problem=conditions.describe(error, SOURCE), code=str(error.error_class))
    found = answer.get("Attributes", {})
    view = view_of(found, source)
    dlq_arn = dead_letter_queue(found)
    if not dlq_arn:
        return view
    account, name = dlq_arn.split(":")[4:]
    if any(arn.split(":")[2:3] + arn.split(":")[4:] == ["sqs", account, name] for arn in sent):
        view = replace(view, fault=refreshes_as_dead_letters(source, name))
    try:
        return replace(view, dead_letters=await _dead_letters(sqs, account, name), dlq_arn=dlq_arn)
    except AwsError as error:
        # Not being allowed to look at it is no fault: it carries nothing.
        lost = error.not_found and not view.fault and source.malformed == "DeadLetter"
        return replace(view, fault=no_dead_letter_queue(source, name)) if lost else view


async def _dead_letters(sqs: Sqs, account: str, name: str) -> int:
    url = (await sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account))["QueueUrl"]
    answer = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=(DEPTH,))
    return int(answer.get("Attributes", {}).get(DEPTH, 0))


class Discoverer:
    """`discovery`: the last result. `on_news` asks for a pass."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.discovery = Discovery()
        self._on_news = on_news
        self._again = asyncio.Event()  # discovery is asked for

    def ask(self) -> None:
        """Something that was found is not there, or is not as it was."""
        self._again.set()

    async def run(self, target: TargetClient, config: WorkerConfig, on_complete: Callable[[], None]) -> None:
        """Discover every so many seconds; `on_complete` is called when all is known."""
        failures = 0
        while True:
            self._again.clear()
            before = self.discovery
            try:
                found = _with_unseen(await target.discover(), before)
                found = bounded(found, config.target_type, before)
            except NotLeader:  # nothing was asked; the Lease may be renewed yet
                await asyncio.sleep(backoff(failures))
                failures += 1
                continue
            except Exception as error:  # an unexpected answer must not end the resource's work
                logger.exception("discovery failed")
                found = Discovery(shares=before.shares, faults=(f"{type(error).__name__}: {error}",))
            if found != self.discovery:
                self.discovery = found
                self._on_news()
            wait = config.rediscover
            if found.complete:
                on_complete()
            if found.complete and not found.retry:
                failures = 0
            else:
                wait, failures = min(wait, backoff(failures)), failures + 1
            await asyncio.sleep(min(wait, REDISCOVER_SECONDS))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._again.wait()


def _with_unseen(found: Discovery, before: Discovery) -> Discovery:
    """A region that does not answer takes no share away: events of a share that was known would be deleted
    unmarked where the bucket has another, or wear out their receive counts where it has none. Where all were
    listed, the record says where the others are."""
    if found.locatable:
        return found
    ids = {share.id for share in found.shares}
    unseen = tuple(share for share in before.shares if share.id not in ids)
    return replace(found, shares=(*found.shares, *unseen))


def bounded(found: Discovery, target_type: TargetType, before: Discovery = NOTHING_KNOWN) -> Discovery:
    """A resource's record holds so many targets; those that are in it already stay."""
    if len(found.shares) <= MAX_TARGETS:
        return found
    fault = (
        f"{len(found.shares)} {target_type.noun} match, and a resource keeps {MAX_TARGETS}: name fewer in "
        f"{target_type.chosen_by}, and the others in a resource with a queue of its own"
    )
    old = {share.id for share in before.shares}
    kept = sorted(found.shares, key=lambda share: (share.id not in old, share.id))[:MAX_TARGETS]
    return Discovery(shares=tuple(kept), faults=(fault, *found.faults))
