"""The loop begins and ends with the Lease, and may begin again: no key is lost on the way."""

import asyncio
import time
from typing import Any

import pytest

from caretaker.kube.errors import ApiError
from caretaker.obs.metrics import create_metrics
from caretaker.runtime.controller import Controller, Postponed
from caretaker.runtime.work_queue import Key, WorkQueue
from fakes.virtualtime import played

A, B = Key("DaemonTask", "default", "a"), Key("DaemonTask", "default", "b")

# The API server's words.
NOT_FOUND = {
    "deleted": 'daemontasks.caretaker.dev "deleted" not found',
    "without-crd": "the server could not find the requested resource",
    "of-another": 'configmaps "of-another" not found',
}


class Seen:
    """A kind whose resources are all gone: a pass only looks. One named `torn` awaits what was cancelled."""

    kind = "DaemonTask"

    def __init__(self) -> None:
        self.passes: asyncio.Queue[Key] = asyncio.Queue()

    def admit(self, key: Key) -> float:
        if key.name != "later":
            return 0.0
        self.passes.put_nowait(key)
        return 600.0

    async def gather(self, key: Key) -> None:
        self.passes.put_nowait(key)
        if key.name == "large":
            raise Postponed(600)
        if key.name == "torn":
            raise asyncio.CancelledError
        if key.name in NOT_FOUND:
            raise ApiError(404, "NotFound", NOT_FOUND[key.name])

    def forget(self, key: Key) -> None:
        """Nothing is kept."""


class Cleaned(Seen):
    """What belongs to its resources is deleted by calls, of which the first one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def forget(self, key: Key) -> None:  # type: ignore[override]  # noqa: ARG002
        await asyncio.sleep(0)
        self.calls += 1
        if self.calls == 1:
            raise ApiError(503, "ServiceUnavailable")


class Loop:
    """A controller and its queue."""

    def __init__(self) -> None:
        self.queue = WorkQueue()
        self.seen = Seen()
        unused: Any = None  # a pass over what is gone makes no call
        self.controller = Controller(
            unused, self.queue, [self.seen], unused, create_metrics("test"), lambda _: None
        )  # type: ignore[list-item]

    async def begin(self) -> "asyncio.Task[None]":
        """Running, and with nothing due."""
        running = asyncio.create_task(self.controller.run())
        self.queue.add_after(A, 0)
        await self.passed(A)
        self.queue.add_after(B, 600)  # so that the workers wait for a time
        await asyncio.sleep(0.01)
        return running

    async def passed(self, key: Key) -> None:
        """Return once there was a pass over it."""
        async with asyncio.timeout(10):
            assert await self.seen.passes.get() == key


@pytest.mark.parametrize("later", range(-5, 6))
@pytest.mark.parametrize("how", ["stopped", "cancelled"])
async def test_what_comes_as_the_lease_goes_is_answered_when_it_is_back(how: str, later: int) -> None:
    """The end comes `later` than the event by so many turns of the event loop, or earlier."""
    loop = Loop()
    running = await loop.begin()
    end = loop.controller.stop if how == "stopped" else running.cancel
    for turn in range(-5, 6):
        if turn == 0:
            loop.queue.add_after(A, 0)
        if turn == later:
            end()
        await asyncio.sleep(0)
    await asyncio.wait({running}, timeout=10)
    assert running.done()
    while not loop.seen.passes.empty():  # it may have been answered before
        loop.seen.passes.get_nowait()

    again = asyncio.create_task(loop.controller.run())
    for _ in range(3):
        loop.queue.add_after(A, 0)
        await loop.passed(A)
    loop.controller.stop()
    await asyncio.wait({again}, timeout=10)
    assert again.done()


@pytest.mark.parametrize("name", ["later", "large"])
async def test_a_pass_that_may_not_begin_yet_comes_later_whatever_arrives(name: str) -> None:
    loop, later = Loop(), Key("DaemonTask", "default", name)
    running = await loop.begin()
    loop.queue.add_after(later, 0)
    await loop.passed(later)
    loop.queue.add_after(A, 0)
    await loop.passed(A)
    assert loop.queue.pending(later)
    loop.queue.add(later, urgent=True)
    assert loop.queue._due[later] >= time.monotonic() + 500
    assert loop.queue.retry(later) < 1, "it has not failed"
    loop.controller.stop()
    await asyncio.wait({running}, timeout=10)


@pytest.mark.parametrize(("name", "warnings"), [("deleted", 0), ("without-crd", 1), ("of-another", 1)])
async def test_a_resource_that_is_deleted_before_it_is_written_is_no_failure(
    name: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    loop, key = Loop(), Key("DaemonTask", "default", name)
    await loop.controller.run_pass(key)
    assert len(caplog.records) == warnings
    assert loop.queue.pending(key)


async def test_no_pass_begins_after_the_stop() -> None:
    loop = Loop()
    running = await loop.begin()
    loop.queue.add_after(A, 0)
    loop.controller.stop()
    await asyncio.wait({running}, timeout=10)
    assert running.done()
    assert loop.seen.passes.empty()
    assert loop.queue.pending(A), "it is due still"


async def test_a_worker_that_is_torn_out_ends_the_others_after_their_passes() -> None:
    loop = Loop()
    running = await loop.begin()
    assert loop.controller.working
    torn = Key("DaemonTask", "default", "torn")
    loop.queue.add_after(torn, 0)
    await loop.passed(torn)
    await asyncio.wait({running}, timeout=10)
    assert running.done()
    loop.queue.add_after(A, 0)
    for _ in range(100):  # turns of the event loop, many more than it takes
        await asyncio.sleep(0)
    assert not loop.controller.working
    assert loop.seen.passes.empty()


@played
async def test_a_resource_is_gone_only_once_its_cleaning_has_succeeded() -> None:
    queue = WorkQueue(asyncio.get_running_loop().time)
    kind, gone = Cleaned(), asyncio.Queue[Key]()
    unused: Any = None
    controller = Controller(unused, queue, [kind], unused, create_metrics("test"), gone.put_nowait)  # type: ignore[list-item]
    running = asyncio.create_task(controller.run())
    queue.add(A)
    async with asyncio.timeout(10):
        assert await gone.get() == A
    assert kind.calls == 2
    assert kind.passes.qsize() == 2, "it was read again"
    controller.stop()
    await asyncio.wait({running}, timeout=10)
