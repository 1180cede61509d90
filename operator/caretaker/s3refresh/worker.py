"""The worker of one resource outside its passes: discovery, checks of its queue, polling, calls.

Each hands in its findings and asks for a pass; none decides or writes anything. Everything here can be lost
at any time: the record is in the resource's status.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec

from caretaker.api.s3refresh import MAX_TARGETS
from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Sqs
from caretaker.kube.errors import NotLeader
from caretaker.obs import log
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import advice, inspection
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.poller import Malformed, Poller
from caretaker.s3refresh.queue_view import NEAR_MOST_IN_FLIGHT, QueueView
from caretaker.s3refresh.queues import Queues
from caretaker.s3refresh.snapshot import Discovery, End, Message, Plan, Reception, Result
from caretaker.s3refresh.target_tracker import TargetTracker
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient
from caretaker.s3refresh.worker_config import WorkerConfig

logger = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = (2.0, 5.0, 15.0, 60.0)
# The queue's attributes are read every minute while messages arrive or wait, else hourly: in between, an
# empty long poll shows that the queue is empty.
CHECK_SECONDS: Final = 60.0
QUIET_CHECKS: Final = 60
ENDS_SECONDS: Final = 5.0  # between two questions for the ends of refreshes in flight
REDISCOVER_SECONDS: Final = 10.0  # at least, between two discoveries that failed calls ask for
NOTHING_KNOWN: Final = Discovery()
MALFORMED_SECONDS: Final = 3600.0  # for which the condition reports a malformed message
PASS_EVENTS: Final = 500  # in one pass, unless its first message has more; the next pass follows at once


class WorkerState(msgspec.Struct, frozen=True):
    """What a pass reads of a worker. The default is that of one whose tasks have not begun.

    inherited      no pass has judged yet the messages that others had received before
    blocked_since  since when no refresh can be called, by time.monotonic()
    """

    tracker: TargetTracker = msgspec.field(default_factory=TargetTracker)
    running: frozenset[str] = frozenset()
    inherited: bool = True
    blocked_since: float = math.inf
    discovery: Discovery = Discovery()
    queue: QueueView = QueueView()
    reception: Reception = Reception()


class Worker:
    """One resource, by UID. `on_news` asks for a pass."""

    def __init__(
        self, key: Key, uid: str, queues: Queues, on_news: Callable[[], None], scale: float = 1.0
    ) -> None:
        self.uid = uid
        self.config: WorkerConfig | None = None
        self.tracker = TargetTracker()
        self.discovery = Discovery()
        self.queue = QueueView()
        self.results: list[Result] = []
        self.ends: tuple[End, ...] = ()
        self.inherited = True  # no pass has judged yet the messages that others had received before
        self.blocked_since = math.inf  # since when no refresh can be called, by time.monotonic()
        self.dead = False  # CaughtUp reports dead letters, until they are redriven or purged
        self.matched = 0  # events since the last accepted refresh
        self.on_result = on_news
        self._key = key
        self._queues = queues
        self._on_news = on_news
        self._scale = scale
        self._target: TargetClient | None = None
        self._pollers: list[Poller] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._again = asyncio.Event()  # discovery is asked for
        self._written = asyncio.Event()  # every result is on record
        self._written.set()
        self._receiving_stopped = False
        self._in_flight: frozenset[str] = frozenset()  # ids of refreshes
        self._any_in_flight = asyncio.Event()  # some refresh is in flight

    # ---------------------------------------------------------------- life

    async def begin(self, config: WorkerConfig, sqs: Sqs, target: TargetClient) -> None:
        """Discover, look, and poll once there is a complete list of targets. Earlier tasks end first."""
        await self.pause()
        self.config, self._target, self._receiving_stopped = config, target, False
        self.inherited = True
        with log.outside_pass():
            self._tasks = [
                asyncio.create_task(self._watch_ends(target), name="s3refresh-ends"),
                asyncio.create_task(self._discover(config, target), name="s3refresh-discover"),
                asyncio.create_task(self._check(config, sqs), name="s3refresh-check"),
            ]

    async def pause(self) -> None:
        """Nothing more is polled or asked; calls under way go on. Earlier findings do not count any more."""
        tasks, self._tasks, self._pollers = self._tasks, [], []
        await cancel(*tasks)
        await self._queues.leave(self._key)
        self.config, self.discovery, self.queue = None, Discovery(), QueueView()

    async def stop_receiving(self) -> None:
        """Receive nothing more; dirty targets are still refreshed."""
        self._pollers, self._receiving_stopped = [], True
        await self._queues.leave(self._key)

    async def quiesce(self) -> None:
        """Receive nothing more; return once calls under way are answered, and that is written."""
        await self.stop_receiving()
        under_way = [*self._calls.values(), *self._chores]
        if under_way:
            await asyncio.wait(under_way)
        await self._written.wait()

    async def end(self) -> None:
        """The resource is gone, or this process is to do nothing more."""
        await self.pause()
        await cancel(*self._calls.values(), *self._chores)

    # ---------------------------------------------------------------- for a pass

    @property
    def running(self) -> frozenset[str]:
        """Claims whose calls are under way, or whose results no pass has written yet."""
        return frozenset(self._calls) | {result.claim_id for result in self.results}

    def state(self, clock: float) -> WorkerState:
        """What a pass reads."""
        return WorkerState(
            tracker=self.tracker,
            running=self.running,
            inherited=self.inherited,
            blocked_since=self.blocked_since,
            discovery=self.discovery,
            queue=self.queue,
            reception=self._reception(clock),
        )

    def _reception(self, clock: float) -> Reception:
        if not self._pollers:
            return Reception()
        problem, (malformed, fault) = self.problem, self._malformed(clock)
        return Reception(
            polling=True,
            reading=problem is None and all(poller.connected for poller in self._pollers),
            behind=self._behind,
            problem=self._complaint,
            code=str(problem.error_class) if problem is not None else "",
            malformed=malformed,
            fault=fault,
        )

    @property
    def _behind(self) -> bool:
        """Whether the source queue may hold messages that have not been received."""
        return bool(self._pollers) and self._pollers[0].behind

    @property
    def problem(self) -> AwsError | None:
        """Why a queue cannot be read."""
        return next((p.problem for p in self._pollers if p.problem is not None), None)

    @property
    def _complaint(self) -> str:
        """The message about `problem`; "" = there is none."""
        readings = self.config.readings if self.config is not None else ()
        found = zip((poller.problem for poller in self._pollers), readings, strict=False)
        return next((advice.describe(error, of.field) for error, of in found if error is not None), "")

    def messages(self) -> tuple[tuple[Message, ...], float, bool]:
        """(messages for the next pass, when the newest of all waiting messages arrived by time.monotonic(),
        whether more messages wait). Messages of the completion queue come first: an endless flow of events
        must not delay them."""
        found = [poller.waiting(self._key) for poller in (*self._pollers[1:], *self._pollers[:1])]
        newest = max((at for _, at in found), default=0.0)
        every = tuple(message for messages, _ in found for message in messages)
        before = itertools.accumulate((len(message.events) or 1 for message in every), initial=0)
        some = tuple(message for message, events in zip(every, before, strict=False) if events < PASS_EVENTS)
        return some, newest, len(some) < len(every)

    def _malformed(self, clock: float) -> tuple[int, str]:
        """(malformed messages so far, the last one's fault); (0, "") when the last is an hour ago."""
        found = self._pollers[0].malformed if self._pollers else Malformed()
        recent = clock - found.at < MALFORMED_SECONDS * self._scale
        return (found.count, found.fault) if found.count and recent else (0, "")

    # ---------------------------------------------------------------- after a pass

    def set_in_flight(self, names: Iterable[str]) -> None:
        """By the record, these refreshes are in flight now; the ends that were handed in are recorded."""
        self._in_flight, self.ends = frozenset(names), ()
        if self._in_flight:
            self._any_in_flight.set()
        else:
            self._any_in_flight.clear()

    def settle(self, plan: Plan, written: Iterable[Result]) -> None:
        """The status stands: messages may go, and these results are on record."""
        past = set(map(id, written))
        self.results = [result for result in self.results if id(result) not in past]
        if not self.results:
            self._written.set()
        if plan.done or plan.returned or plan.unclaimed:
            for poller in self._pollers:
                self._spawn(poller.settle(self._key, plan.done, plan.returned, plan.unclaimed))

    def launch(self, calls: Iterable[tuple[Share, Claim]]) -> None:
        """Make the calls that are on record."""
        for share, claim in calls:
            self._calls[claim.id] = asyncio.create_task(self._call(share, claim), name="s3refresh-call")

    def rediscover(self) -> None:
        """Something that was found is not there, or is not as it was."""
        self._again.set()

    # ---------------------------------------------------------------- tasks

    async def _call(self, share: Share, claim: Claim) -> None:
        assert self._target is not None  # noqa: S101 - begin() has set it
        try:
            result = await self._target.refresh(share, claim)
        except NotLeader as error:  # the guard: nothing was sent
            result = Result(share.id, claim.id, code="NotLeader", message=str(error))
        except Exception as error:
            logger.exception("the call for %s failed", share.id)
            result = Result(share.id, claim.id, code=UNKNOWN, message=f"{type(error).__name__}: {error}")
        finally:
            self._calls.pop(claim.id, None)
        self.results.append(result)
        self._written.clear()
        if result.code:
            self.rediscover()
        self.on_result()

    async def _watch_ends(self, target: TargetClient) -> None:
        """Ask for the ends of refreshes in flight, if the target can be asked."""
        while target.idempotent:
            await self._any_in_flight.wait()
            await asyncio.sleep(ENDS_SECONDS * self._scale)
            try:
                self.ends = tuple(await target.ended(self._in_flight))
            except Exception:  # an unexpected answer must not end the resource's work
                logger.exception("the ends of refreshes cannot be asked for")
            if self.ends:
                self.on_result()

    async def _discover(self, config: WorkerConfig, target: TargetClient) -> None:
        failures = 0
        while True:
            self._again.clear()
            try:
                found = await self._found(target, config.target_type)
            except NotLeader:  # nothing was asked; the Lease may be renewed yet
                await asyncio.sleep(_backoff(failures) * self._scale)
                failures += 1
                continue
            if found != self.discovery:
                self.discovery = found
                self._on_news()
            if found.complete and not self._pollers and not self._receiving_stopped:
                self._poll(config)
            wait = config.rediscover * self._scale
            if not found.complete:
                wait = min(wait, _backoff(failures) * self._scale)
            failures = 0 if found.complete else failures + 1
            await asyncio.sleep(min(wait, REDISCOVER_SECONDS * self._scale))
            await _wait_any(self._again, wait)

    async def _found(self, target: TargetClient, target_type: TargetType) -> Discovery:
        try:
            return bounded(_with_unseen(await target.discover(), self.discovery), target_type, self.discovery)
        except NotLeader:
            raise
        except Exception as error:  # an unexpected answer must not end the resource's work
            logger.exception("discovery failed")
            return Discovery(shares=self.discovery.shares, faults=(f"{type(error).__name__}: {error}",))

    def _poll(self, config: WorkerConfig) -> None:
        """Read the queues: not before every target is known, or an event would seem to have no target."""
        self._pollers = [
            self._queues.join(self._key, reading, self._on_news, owner=reading is config.source)
            for reading in config.readings
        ]

    async def _check(self, config: WorkerConfig, sqs: Sqs) -> None:
        """Look at the source queue when there is a reason to."""
        failures, second = 0, 0.0
        while True:
            received, looked = self._received(), time.monotonic()
            late = 0 < second <= looked
            view = msgspec.structs.replace(await self._inspect(config, sqs), late=late)
            if view != self.queue:
                self.queue = view
                self._on_news()
            if view.problem:
                await asyncio.sleep(_backoff(failures) * self._scale)
                failures += 1
                continue
            failures = 0
            if self._pollers:
                self._pollers[0].saw(view.visible, looked)
            if not second and self._pollers:
                second = time.monotonic() + config.source.visibility
            if not late:
                await asyncio.sleep(CHECK_SECONDS * self._scale)
                continue
            for _ in range(QUIET_CHECKS):
                await asyncio.sleep(CHECK_SECONDS * self._scale)
                if self._received() != received or self._watched:
                    break

    @property
    def _watched(self) -> bool:
        """Whether the queue's counts are read every minute: CaughtUp depends on messages that may be removed
        without this process receiving them."""
        return self.dead or self._behind or self.queue.in_flight >= NEAR_MOST_IN_FLIGHT

    async def _inspect(self, config: WorkerConfig, sqs: Sqs) -> QueueView:
        try:
            return await inspection.inspect(sqs, config.source.source, self.queue)
        except Exception as error:  # an unexpected answer must not end the resource's work
            logger.exception("the queue's attributes cannot be read")
            return msgspec.structs.replace(self.queue, problem=f"{type(error).__name__}: {error}", code="")

    def _received(self) -> int:
        return self._pollers[0].received if self._pollers else 0

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._done)

    def _done(self, chore: "asyncio.Task[None]") -> None:
        self._chores.discard(chore)
        if chore.cancelled() or (error := chore.exception()) is None:
            return
        if not isinstance(error, NotLeader):  # then another operator deletes them, or they come again
            logger.error("messages could not be settled: %s: %s", type(error).__name__, error)


def _with_unseen(found: Discovery, before: Discovery) -> Discovery:
    """A region that does not answer takes no share away: events of a share that was known would be deleted
    unmarked where the bucket has another, or wear out their receive counts where it has none."""
    if found.complete:
        return found
    ids = {share.id for share in found.shares}
    unseen = tuple(share for share in before.shares if share.id not in ids)
    return msgspec.structs.replace(found, shares=(*found.shares, *unseen))


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


def _backoff(failures: int) -> float:
    return BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)] * random.uniform(0.5, 1)


async def _wait_any(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
