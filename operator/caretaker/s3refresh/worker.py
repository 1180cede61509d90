"""The worker of one resource outside its passes: discovery, checks of its queue, polling, calls.

Each part hands in its findings and asks for a pass; none decides or writes anything. Everything here can be
lost at any time: the record is in the resource's status.
"""

import asyncio
import math
from collections.abc import Callable, Iterable

import msgspec

from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import Sqs
from caretaker.obs import log
from caretaker.runtime.tasks import cancel
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.discoverer import Discoverer
from caretaker.s3refresh.inspection import QueueInspector
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.queues import Queues
from caretaker.s3refresh.receiver import Receiver
from caretaker.s3refresh.refresh_calls import RefreshCalls, RefreshEnds
from caretaker.s3refresh.snapshot import Discovery, Plan, Reception, Result
from caretaker.s3refresh.target_tracker import TargetTracker
from caretaker.s3refresh.targets import TargetClient
from caretaker.s3refresh.worker_config import WorkerConfig


class PassRequests(msgspec.Struct, frozen=True):
    """What asks for a pass: in its turn, or at once."""

    on_news: Callable[[], None]
    on_result: Callable[[], None]


class PassMemory:
    """What the passes of a resource remember for the next one, for as long as this process lives.

    inherited      no pass has judged yet the messages that others had received before
    blocked_since  since when no refresh can be called, by time.monotonic()
    matched        events since the last accepted refresh
    """

    def __init__(self) -> None:
        self.tracker = TargetTracker()
        self.inherited = True
        self.blocked_since = math.inf
        self.matched = 0


class WorkerState(msgspec.Struct, frozen=True):
    """What a pass reads of a worker. The default is that of one whose tasks have not begun."""

    memory: PassMemory = msgspec.field(default_factory=PassMemory)
    running: frozenset[str] = frozenset()
    discovery: Discovery = Discovery()
    queue: QueueView = QueueView()
    reception: Reception = Reception()


class Worker:
    """One resource, by UID."""

    def __init__(self, key: Key, uid: str, queues: Queues, ask: PassRequests, scale: float = 1.0) -> None:
        self.uid = uid
        self.config: WorkerConfig | None = None
        self.memory = PassMemory()
        self.receiver = Receiver(key, queues, ask.on_news, scale)
        self.calls = RefreshCalls(ask.on_result)
        self.ends = RefreshEnds(ask.on_result, scale)
        self.discoverer = Discoverer(ask.on_news, scale)
        self.inspector = QueueInspector(self.receiver, ask.on_news, scale)
        self._target: TargetClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------- life

    async def begin(self, config: WorkerConfig, sqs: Sqs, target: TargetClient) -> None:
        """Discover, look, and poll once there is a complete list of targets. Earlier tasks end first."""
        await self.pause()
        self.config, self._target = config, target
        self.memory.inherited = True

        def read() -> None:
            """Not before every target is known, or an event would seem to have no target."""
            self.receiver.start(config.readings)

        discovery = self.discoverer.run(target, config.target_type, config.rediscover, read)
        with log.outside_pass():
            self._tasks = [
                asyncio.create_task(self.ends.watch(target), name="s3refresh-ends"),
                asyncio.create_task(discovery, name="s3refresh-discover"),
                asyncio.create_task(self.inspector.run(sqs, config.source), name="s3refresh-check"),
            ]

    async def pause(self) -> None:
        """Nothing more is polled or asked; calls under way go on. Earlier findings do not count any more."""
        tasks, self._tasks = self._tasks, []
        await cancel(*tasks)
        await self.receiver.pause()
        self.config = None
        self.discoverer.reset()
        self.inspector.reset()

    async def quiesce(self) -> None:
        """Receive nothing more; return once calls under way are answered, and that is written."""
        await self.receiver.stop()
        await asyncio.gather(self.calls.answered(), self.receiver.settled())
        await self.calls.recorded()

    async def end(self) -> None:
        """The resource is gone, or this process is to do nothing more."""
        await self.pause()
        await asyncio.gather(self.calls.end(), self.receiver.end())

    # ---------------------------------------------------------------- for a pass

    @property
    def problem(self) -> AwsError | None:
        """Why a queue cannot be read."""
        return self.receiver.problem

    def state(self, clock: float) -> WorkerState:
        """What a pass reads."""
        return WorkerState(
            memory=self.memory,
            running=self.calls.running,
            discovery=self.discoverer.discovery,
            queue=self.inspector.view,
            reception=self.receiver.reception(clock),
        )

    # ---------------------------------------------------------------- after a pass

    def settle(self, plan: Plan, written: Iterable[Result]) -> None:
        """The status stands: messages may go, calls may be made, and these results are on record."""
        self.calls.record(written)
        self.receiver.settle(plan)
        self._launch(plan.calls)
        self.ends.set_in_flight(t.in_flight.notification_id for t in plan.targets if t.in_flight is not None)

    def _launch(self, calls: Iterable[tuple[Share, Claim]]) -> None:
        if self._target is not None:  # begin() has set it wherever a plan has calls
            self.calls.launch(self._target, calls, self.discoverer.ask)
