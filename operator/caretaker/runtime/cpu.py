"""Measures the CPU time of each resource's passes, and pauses a resource that takes more than its share.

Inputs: passes, as coroutines. Each step of a pass, and of the tasks that it starts, is timed by the thread's
CPU clock: interleaved passes are measured separately, and waiting costs nothing. A resource may use BURST
seconds at once and SHARE of a core in the long run. Beyond that its next pass is delayed until its share
allows it, and longer each time. It knows no kind, and must not do I/O.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, CpuReason, Event
from caretaker.obs import log
from caretaker.obs.metrics import Metrics
from caretaker.runtime.work_queue import Key

T = TypeVar("T")

SHARE: Final = 0.25  # of a core, in the long run
BURST: Final = 30.0  # seconds of CPU at once: a rollout to 5,000 nodes takes 10
PAUSE: Final = (1.0, 60.0)  # seconds: the first pause, and the longest that doubling leads to
PAUSE_MAX: Final = 600.0  # seconds: the longest pause, for a resource that owes as much
LONG: Final = 0.05  # seconds: a longer step is counted, because it delays everything in the event loop
MESSAGE: Final = (
    f"the operator pauses its passes for up to {PAUSE_MAX / 60:g} min, because they take more CPU than one "
    f"resource may use, {SHARE * 100:g} % of a core. Other resources are not affected. Make its spec "
    "smaller, or let it select less"
)


class CpuMeter:
    """Sums the CPU time of one resource's passes, or of one of its tasks that outlive a pass."""

    def __init__(self, on_step: Callable[[float], None]) -> None:
        self.taken = 0.0  # seconds of CPU since the last pause()
        self._on_step = on_step

    def add(self, seconds: float) -> None:
        """Add the CPU time of one step."""
        self.taken += seconds
        if seconds >= LONG:
            self._on_step(seconds)


_meter: ContextVar[CpuMeter | None] = ContextVar("caretaker_cpu", default=None)


class TimedCoroutine(Coroutine[Any, Any, T]):
    """A coroutine whose steps are timed and added to a CpuMeter."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], meter: CpuMeter) -> None:
        self._coroutine = coroutine
        self._meter = meter

    def send(self, value: Any) -> Any:
        """See Coroutine.send; one step."""
        began = time.thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self._meter.add(time.thread_time() - began)

    def throw(self, *error: Any) -> Any:
        """See Coroutine.throw; one step."""
        began = time.thread_time()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._meter.add(time.thread_time() - began)

    def close(self) -> None:
        """See Coroutine.close."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # cr_code and others, which the repr of a task reads


def new_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    /,
    **options: Any,
) -> "asyncio.Task[T]":
    """A task factory: tasks that a pass starts are timed by the meter of the pass."""
    meter = _meter.get()
    if meter is not None and isinstance(coroutine, Coroutine):
        if not log.in_pass():  # it outlives the pass: events drive it, and their work is not the pass's
            meter = CpuMeter(meter._on_step)
        coroutine = TimedCoroutine(coroutine, meter)
    return asyncio.Task(coroutine, loop=loop, **options)


class _Budget:
    def __init__(self, meter: CpuMeter, now: float, observe: Callable[[float], None]) -> None:
        self.meter = meter
        self.observe = observe  # the CPU time of each pass
        self.left = BURST  # seconds of CPU; below 0 = owed
        self.at = now
        self.pauses = 0  # pauses in a row
        self.throttled = False


class CpuThrottle:
    """The CPU budgets of all resources. `clock` is monotonic, in seconds."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._budgets: dict[Key, _Budget] = {}

    async def timed(self, key: Key, a_pass: Coroutine[Any, Any, T]) -> T:
        """Run the pass, timed by its resource's meter."""
        token = _meter.set(self._budget(key).meter)
        try:
            return await TimedCoroutine(a_pass, self._budget(key).meter)
        finally:
            _meter.reset(token)

    def pause(self, key: Key) -> float:
        """A pass has ended: returns the seconds until the next one may begin. A resource that owes CPU is
        throttled until half of BURST is left. 0 for a resource that was forgotten."""
        budget, now = self._budgets.get(key), self._clock()
        if budget is None:
            return 0.0
        taken, budget.meter.taken = budget.meter.taken, 0.0
        budget.observe(taken)
        grown = budget.left + (now - budget.at) * SHARE
        budget.left = max(min(grown, BURST) - taken, -PAUSE_MAX * SHARE)
        budget.at = now
        if budget.left >= BURST / 2:
            budget.pauses, budget.throttled = 0, False
        if budget.left >= 0:
            return 0.0
        budget.throttled = True
        first, most = PAUSE
        doubled = min(first * 2.0 ** min(budget.pauses, 16), most)
        budget.pauses += 1
        return max(-budget.left / SHARE, doubled)

    def throttled(self, key: Key) -> bool:
        """Whether the resource has taken more than its share."""
        budget = self._budgets.get(key)
        return budget is not None and budget.throttled

    def forget(self, key: Key) -> None:
        """The resource was deleted. A debt is kept: recreating the resource must not clear it."""
        budget = self._budgets.get(key)
        if budget is not None and budget.left + (self._clock() - budget.at) * SHARE >= BURST / 2:
            del self._budgets[key]

    def _budget(self, key: Key) -> _Budget:
        if key not in self._budgets:
            long = self._metrics.passes.long_steps.labels(key.kind)
            observe = self._metrics.passes.cpu.labels(key.kind).observe
            self._budgets[key] = _Budget(CpuMeter(lambda _: long.inc()), self._clock(), observe)
        return self._budgets[key]


def with_condition(before: Any, status: Any, now: str) -> tuple[Any, list[Event]]:
    """(the status with CPUThrottled, an Event if the condition is new). `before`: the recorded status."""
    generation = getattr(status, "observed_generation", 0)
    condition = Condition(c.CPU_THROTTLED, "True", CpuReason.SHARE_EXCEEDED, MESSAGE, generation)
    old = c.find(before.conditions, c.CPU_THROTTLED)
    (condition,) = c.merge((old,) if old is not None else (), (condition,), now)
    with_it = msgspec.structs.replace(status, conditions=(*status.conditions, condition))
    return with_it, [] if old is not None else [Event("Warning", CpuReason.SHARE_EXCEEDED, MESSAGE)]
