"""The worker of one resource outside its passes: discovery, checks of its queue, polling, calls.

Each part reports its findings and asks for a pass; none decides or writes anything. Everything here can be
lost at any time: the record is in the resource's status.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.aws.sqs import Sqs
from caretaker.kube.errors import NotLeader
from caretaker.obs import log
from caretaker.registry import S3_AGGREGATED_REFRESH
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.debounce import CALL_SECONDS, NOT_MADE, UNKNOWN, Claim
from caretaker.s3refresh.inspection import Discoverer, QueueInspector
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.receiver import Queues, Receiver
from caretaker.s3refresh.resource import WorkerConfig
from caretaker.s3refresh.snapshot import Discovery, End, Plan, Reception, Result
from caretaker.s3refresh.targets import TargetClient
from caretaker.s3refresh.timing import TargetTracker

logger = logging.getLogger(__name__)

ENDS_SECONDS: Final = 5.0  # between two questions for the ends of refreshes in flight


class RefreshCalls:
    """The calls under way. `results`: those that no pass has written yet. `on_result` asks for a pass,
    `on_failed` is called for a call that has failed, `on_called` when one is made, and with the time by which
    it may have been accepted. The resource may have another spec by then, or be gone."""

    def __init__(
        self,
        on_result: Callable[[], None],
        on_failed: Callable[[], None],
        on_called: Callable[[Share, float], None],
    ) -> None:
        self.results: list[Result] = []
        self.stopping = False  # no further call begins
        self._on_called = on_called
        self._on_result = on_result
        self._on_failed = on_failed
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._written = asyncio.Event()  # every result is on record
        self._written.set()

    @property
    def running(self) -> frozenset[str]:
        """Claims whose calls are under way, or whose results no pass has written yet."""
        return frozenset(self._calls) | {result.claim_id for result in self.results}

    def launch(self, target: TargetClient, calls: Iterable[tuple[Share, Claim]]) -> None:
        """Make the calls that are on record."""
        for share, claim in calls:
            if self.stopping:
                self._ended(Result(share.id, claim.id, code=NOT_MADE))
                continue
            self._on_called(share, time.monotonic())
            work = self._call(target, share, claim)
            self._calls[claim.id] = asyncio.create_task(work, name="s3refresh-call")

    def record(self, written: Iterable[Result]) -> None:
        """These results are on record."""
        past = set(map(id, written))
        self.results = [result for result in self.results if id(result) not in past]
        if not self.results:
            self._written.set()

    async def recorded(self) -> None:
        """Wait until the calls under way are answered and every result is on record."""
        if self._calls:
            await asyncio.wait(self._calls.values())
        await self._written.wait()

    async def end(self) -> None:
        """Cancel the calls under way."""
        await cancel(*self._calls.values())

    async def _call(self, target: TargetClient, share: Share, claim: Claim) -> None:
        try:
            result = await target.refresh(share, claim)
        except NotLeader as error:  # nothing was sent now, perhaps by an earlier attempt
            code = NOT_MADE if self.stopping else UNKNOWN if claim.attempt > 1 else "NotLeader"
            result = Result(share.id, claim.id, code=code, message=str(error))
        except asyncio.CancelledError:  # what was sent may be accepted all the same
            self._on_called(share, time.monotonic() + CALL_SECONDS)
            raise
        except Exception as error:
            logger.exception("the call for %s failed", share.id)
            result = Result(share.id, claim.id, code=UNKNOWN, message=f"{type(error).__name__}: {error}")
        finally:
            self._calls.pop(claim.id, None)
        if result.code in ("", UNKNOWN):
            self._on_called(share, time.monotonic() + (CALL_SECONDS if result.code else 0.0))
        self._ended(result)

    def _ended(self, result: Result) -> None:
        self.results.append(result)
        self._written.clear()
        if result.code not in ("", NOT_MADE):
            self._on_failed()
        self._on_result()


class RefreshEnds:
    """`ends`: those that no pass has written yet. `on_result` asks for a pass."""

    def __init__(self, on_result: Callable[[], None]) -> None:
        self.ends: tuple[End, ...] = ()
        self._on_result = on_result
        self._in_flight: frozenset[str] = frozenset()  # ids of refreshes
        self._any_in_flight = asyncio.Event()

    def set_in_flight(self, names: Iterable[str]) -> None:
        """By the record, these refreshes are in flight now; the ends that were handed in are recorded."""
        self._in_flight, self.ends = frozenset(names), ()
        if self._in_flight:
            self._any_in_flight.set()
        else:
            self._any_in_flight.clear()

    async def watch(self, target: TargetClient) -> None:
        """Ask for the ends of refreshes in flight, for ever."""
        while True:
            await self._any_in_flight.wait()
            await asyncio.sleep(ENDS_SECONDS)
            try:
                self.ends = tuple(await target.ended(self._in_flight))
            except Exception:  # an unexpected answer must not end the resource's work
                logger.exception("the ends of refreshes cannot be asked for")
            if self.ends:
                self._on_result()


class PassMemory:
    """What the passes of a resource remember for the next one, for as long as this process lives.

    inherited      no pass has judged yet the messages that others had received before
    blocked_since  since when no refresh can be called, by time.monotonic()
    matched        events since the last accepted refresh
    shares         of the targets on record, as last found, if their calls take turns
    """

    def __init__(self) -> None:
        self.tracker = TargetTracker()
        self.inherited = True
        self.blocked_since = math.inf
        self.matched = 0
        self.shares: dict[str, Share] = {}


class WorkerState(msgspec.Struct, frozen=True):
    """What a pass reads of a worker. The default is that of one whose tasks have not begun."""

    memory: PassMemory = msgspec.field(default_factory=PassMemory)
    running: frozenset[str] = frozenset()
    discovery: Discovery = Discovery()
    queue: QueueView = QueueView()
    reception: Reception = Reception()


class Worker:
    """One resource, by the UID in its metadata. `add` asks for a pass, in its turn or, if urgent, at once.
    `on_called`: see RefreshCalls."""

    def __init__(
        self,
        meta: WireMeta,
        queues: Queues,
        add: Callable[..., None],
        on_called: Callable[[Share, float], None],
    ) -> None:
        key = Key(S3_AGGREGATED_REFRESH.kind, meta.namespace, meta.name)
        on_news, on_result = partial(add, key), partial(add, key, urgent=True)
        self.uid = meta.uid
        self.config: WorkerConfig | None = None
        self.memory = PassMemory()
        self.receiver = Receiver(key, queues, on_news)
        self.discoverer = Discoverer(on_news)
        self.calls = RefreshCalls(on_result, self.discoverer.ask, on_called)
        self.ends = RefreshEnds(on_result)
        self.inspector = QueueInspector(self.receiver, on_news)
        self._target: TargetClient | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._began = math.inf  # when the tasks began, by time.monotonic()

    # ---------------------------------------------------------------- life

    async def begin(self, config: WorkerConfig, sqs: Sqs, target: TargetClient) -> None:
        """Discover, look, and poll once there is a complete list of targets. Earlier tasks end first."""
        await self.pause()
        self.config, self._target = config, target
        self.memory.inherited = True
        self._began = time.monotonic()

        discovery = self.discoverer.run(target, config, self.receive)
        with log.outside_pass():
            self._tasks = [
                asyncio.create_task(discovery, name="s3refresh-discover"),
                asyncio.create_task(
                    self.inspector.run(sqs, config.source, config.sent), name="s3refresh-check"
                ),
            ]
            if config.target_type.idempotent:  # messages report the ends of the others
                self._tasks.append(asyncio.create_task(self.ends.watch(target), name="s3refresh-ends"))

    def receive(self) -> None:
        """Poll. Not before every target is known, or an event would seem to have no target."""
        if self.config is not None:
            self.receiver.start(self.config.readings)
            self.inspector.report()

    async def pause(self) -> None:
        """Nothing more is polled or asked; calls under way go on. Earlier findings do not count any more."""
        tasks, self._tasks = self._tasks, []
        await cancel(*tasks)
        await self.receiver.pause()
        self.config = None
        self.discoverer.discovery, self.inspector.view = Discovery(), QueueView()

    async def quiesce(self) -> None:
        """Receive nothing more; return once calls under way are answered, and that is written."""
        await self.receiver.pause(stopped=True)
        await asyncio.gather(self.calls.recorded(), self.receiver.settled())

    async def end(self) -> None:
        """The resource is gone, or this process is to do nothing more."""
        await self.pause()
        await asyncio.gather(self.calls.end(), self.receiver.end())

    # ---------------------------------------------------------------- for a pass

    def state(self) -> WorkerState:
        """What a pass reads."""
        return WorkerState(
            memory=self.memory,
            running=self.calls.running,
            discovery=self.discoverer.discovery,
            queue=self.inspector.view,
            reception=self.receiver.reception(),
        )

    def listened(self, *, more: bool) -> float:
        """See PlanInput. It counts from the beginning of the tasks: a queue may never come to be read.
        `more`: received messages wait for the next pass."""
        if self.config is None:
            return 0.0
        return math.inf if self.receiver.emptied and not more else time.monotonic() - self._began

    # ---------------------------------------------------------------- after a pass

    def settle(self, plan: Plan, written: Iterable[Result]) -> None:
        """The status stands: messages may go, calls may be made, and these results are on record."""
        self.calls.record(written)
        self.receiver.settle(plan)
        if self._target is not None:  # begin() has set it wherever a plan has calls
            self.calls.launch(self._target, plan.calls)
        self.ends.set_in_flight(t.in_flight.notification_id for t in plan.targets if t.in_flight is not None)
