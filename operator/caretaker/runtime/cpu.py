"""What each resource takes of the event loop's CPU, and how long it rests when that is more than its share.

Inputs: passes, as coroutines. Their steps are timed by the thread's CPU clock, so that passes that interleave
are told apart and waiting costs nothing; so are the steps of the tasks that a pass begins. A resource may
take BURST seconds at once and SHARE of a core for good. What takes more rests before its next pass: until its
share allows that, and longer each time. It knows no kind, and must not do I/O.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from caretaker.obs import log
from caretaker.obs.metrics import Metrics
from caretaker.runtime.queue import Key

T = TypeVar("T")

SHARE: Final = 0.25  # of a core, for good
BURST: Final = 30.0  # seconds of CPU at once: a rollout to 5,000 nodes takes 10
REST: Final = (1.0, 60.0)  # seconds of the first rest and of the longest that doubling leads to
REST_MAX: Final = 600.0  # seconds, where a pass has taken more than its share of as much
LONG: Final = 0.05  # seconds of one step: all that is due in the loop waits so long


class Account:
    """Counts the steps of one resource, or of one of its tasks that outlive a pass."""

    def __init__(self, on_step: Callable[[float], None]) -> None:
        self.taken = 0.0  # seconds of CPU that the passes since the last rest() have taken
        self._on_step = on_step

    def add(self, seconds: float) -> None:
        """One step."""
        self.taken += seconds
        if seconds >= LONG:
            self._on_step(seconds)


_account: ContextVar[Account | None] = ContextVar("caretaker_cpu", default=None)


class Timed(Coroutine[Any, Any, T]):
    """A coroutine whose steps are put on an account."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], account: Account) -> None:
        self._coroutine = coroutine
        self._account = account

    def send(self, value: Any) -> Any:
        """A step."""
        began = time.thread_time()
        try:
            return self._coroutine.send(value)
        finally:
            self._account.add(time.thread_time() - began)

    def throw(self, *error: Any) -> Any:
        """A step that begins with an error."""
        began = time.thread_time()
        try:
            return self._coroutine.throw(*error)
        finally:
            self._account.add(time.thread_time() - began)

    def close(self) -> None:
        """As a coroutine's."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # cr_code and the like, of which a task's repr is made


def new_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    /,
    **options: Any,
) -> "asyncio.Task[T]":
    """A task factory: what a pass begins is on the pass's account."""
    account = _account.get()
    if account is not None and isinstance(coroutine, Coroutine):
        if not log.in_pass():  # it outlives the pass, and events keep it at work, which have to be read
            account = Account(account._on_step)
        coroutine = Timed(coroutine, account)
    return asyncio.Task(coroutine, loop=loop, **options)


class _Balance:
    def __init__(self, account: Account, now: float) -> None:
        self.account = account
        self.left = BURST  # seconds of CPU; below 0 = owed
        self.at = now
        self.rests = 0  # one after the other
        self.throttled = False


class Shares:
    """Every resource's account. `clock` gives seconds that never go back."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._balances: dict[Key, _Balance] = {}

    async def timed(self, key: Key, a_pass: Coroutine[Any, Any, T]) -> T:
        """The pass, on its resource's account."""
        token = _account.set(self._balance(key).account)
        try:
            return await Timed(a_pass, self._balance(key).account)
        finally:
            _account.reset(token)

    def rest(self, key: Key) -> float:
        """A pass has ended: seconds until the next one may begin. A resource that owes CPU is throttled until
        half of BURST is left. None of one that is gone and owes nothing."""
        balance, now = self._balances.get(key), self._clock()
        if balance is None:
            return 0.0
        taken, balance.account.taken = balance.account.taken, 0.0
        self._metrics.pass_cpu.labels(key.kind).observe(taken)
        grown = balance.left + (now - balance.at) * SHARE
        balance.left = max(min(grown, BURST) - taken, -REST_MAX * SHARE)
        balance.at = now
        if balance.left >= BURST / 2:
            balance.rests, balance.throttled = 0, False
        if balance.left >= 0:
            return 0.0
        balance.throttled = True
        first, most = REST
        doubled = min(first * 2.0 ** min(balance.rests, 16), most)
        balance.rests += 1
        return max(-balance.left / SHARE, doubled)

    def throttled(self, key: Key) -> bool:
        """Whether the resource took more than its share."""
        balance = self._balances.get(key)
        return balance is not None and balance.throttled

    def forget(self, key: Key) -> None:
        """The resource is gone. What it owes is kept: one that is made anew would owe nothing."""
        balance = self._balances.get(key)
        if balance is not None and balance.left + (self._clock() - balance.at) * SHARE >= BURST / 2:
            del self._balances[key]

    def _balance(self, key: Key) -> _Balance:
        if key not in self._balances:
            long = self._metrics.long_steps.labels(key.kind)
            self._balances[key] = _Balance(Account(lambda _: long.inc()), self._clock())
        return self._balances[key]
