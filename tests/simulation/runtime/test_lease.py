"""Leader election in virtual time: at most one holds, somebody soon does, and a guard that keeps its word."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from caretaker.kube.errors import ApiError, NotLeader
from caretaker.kube.transport import Request
from caretaker.runtime.lease import Lease, LeaseTimes, NoLease, WireLease
from fakes.leases import LeaseServer, Line
from fakes.virtualtime import played
from testing.examples import SEED, examples

DURATION, DEADLINE, RETRY = 15.0, 10.0, 2.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Candidate:
    """One process that stands for election over its own line, with its own clock."""

    def __init__(self, server: LeaseServer, name: str, offset: float = 0.0) -> None:
        self.line = Line(server)
        self.offset = offset  # its clock shows something else altogether
        self.lease = Lease(self.line, ("ns", "caretaker"), name, clock=lambda: now() + self.offset)
        self.told: list[str] = []
        self.task: asyncio.Task[None] | None = None

    async def started(self) -> None:
        self.told.append("started")
        await asyncio.get_running_loop().create_future()

    async def stopped(self) -> None:
        self.told.append("stopped")

    def start(self) -> None:
        self.task = asyncio.create_task(self.lease.run(self.started, self.stopped))

    async def stop(self) -> None:
        """A clean stop."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})

    def kill(self) -> None:
        """kill -9, as the others see it: nothing arrives any more."""
        self.line.blackhole = True


@asynccontextmanager
async def election(*names: str) -> AsyncIterator[list[Candidate]]:
    """Candidates of one Lease; whatever happens, no two of them ever may write at a time."""
    server = LeaseServer()
    candidates = [Candidate(server, name, offset=1e6 * i) for i, name in enumerate(names)]

    async def never_two() -> None:
        while True:
            held = [c.lease.identity for c in candidates if c.lease.held]
            assert len(held) < 2, f"{held} hold the Lease at {now()}"
            await asyncio.sleep(0.05)

    referee = asyncio.create_task(never_two())
    try:
        yield candidates
    finally:
        running = [c.task for c in candidates if c.task is not None]
        for task in [referee, *running]:
            task.cancel()
        await asyncio.wait({referee, *running})
    assert referee.cancelled(), referee.exception()


async def until(condition: Callable[[], bool], within: float) -> float:
    """Seconds until it is true."""
    started = now()
    while not condition():
        assert now() - started < within, f"not within {within} s"
        await asyncio.sleep(0.05)
    return now() - started


@played
async def test_the_first_candidate_takes_the_lease_at_once() -> None:
    async with election("a") as (a,):
        a.start()
        await until(lambda: a.lease.held, within=0.1)
        a.lease.guard(5.0)
        assert a.told == ["started"]
        assert a.lease.holder == "a"


@played
async def test_a_holder_renews_and_a_standby_waits() -> None:
    async with election("a", "b") as (a, b):
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(600)
        assert (a.lease.held, b.told, b.lease.holder) == (True, [], "a")
        times = [time for _, time in a.line.server.writes]
        assert 290 <= len(times) <= 301
        with pytest.raises(NotLeader):
            b.lease.guard(0.0)


@played
async def test_a_clean_stop_hands_over_within_3_seconds() -> None:
    async with election("a", "b") as (a, b):
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(30)
        await a.stop()
        assert not a.lease.held
        assert a.told == ["started", "stopped"]
        assert a.line.server.writes[-1][0] == ""
        await until(lambda: b.lease.held, within=3.0)


@played
async def test_after_a_kill_a_standby_takes_over_within_20_seconds() -> None:
    async with election("a", "b") as (a, b):
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(31.9)
        a.kill()
        took = await until(lambda: b.lease.held, within=DURATION + RETRY * 1.5)
        assert took > DURATION - RETRY


@played
async def test_a_holder_that_cannot_renew_steps_down_before_anybody_may_take_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with election("a", "b") as (a, b):
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(30)
        a.line.blackhole = True
        await until(lambda: a.told == ["started", "stopped"], within=DEADLINE + 0.1)
        assert not b.lease.held
        assert f"was not renewed within {DEADLINE:g} s" in caplog.text
        await until(lambda: b.lease.held, within=DURATION)
        a.line.blackhole = False
        await asyncio.sleep(60)
        assert (a.lease.held, b.lease.held) == (False, True)
        await b.stop()
        await until(lambda: a.lease.held, within=3.0)
        assert a.told == ["started", "stopped", "started"]


@played
async def test_the_guard_lets_pass_only_what_ends_before_the_lease_may() -> None:
    async with election("a") as (a,):
        sent = now()
        a.start()
        await asyncio.sleep(0.1)
        a.line.blackhole = True
        left = DURATION - (now() - sent)
        a.lease.guard(left - 0.01)
        with pytest.raises(NotLeader, match="the call may take"):
            a.lease.guard(left + 0.01)
        await asyncio.sleep(9)
        with pytest.raises(NotLeader):
            a.lease.guard(left - 9 + 0.01)
        a.lease.guard(left - 9 - 0.01)
        await asyncio.sleep(2)
        with pytest.raises(NotLeader):
            a.lease.guard(0.0)


@played
async def test_a_renewal_counts_from_before_it_was_sent() -> None:
    async with election("a") as (a,):
        a.line.delay = 2.0
        sent_after = now() + 4.0  # the look that finds no Lease comes first
        a.start()
        await until(lambda: a.lease.held, within=10)
        with pytest.raises(NotLeader):
            a.lease.guard(sent_after + DURATION - now())


@played
async def test_a_renewal_that_hangs_extends_nothing() -> None:
    async with election("a") as (a,):
        sent = now()
        a.start()
        await asyncio.sleep(RETRY - 0.1)
        a.line.blackhole = True
        await asyncio.sleep(4.0)
        with pytest.raises(NotLeader):
            a.lease.guard(sent + DURATION - now() + 0.1)


@played
async def test_a_holder_that_was_frozen_holds_nothing_when_it_wakes() -> None:
    async with election("a") as (a,):
        a.start()
        await asyncio.sleep(5)
        a.offset += 3600.0  # its process stood still for an hour
        assert not a.lease.held
        with pytest.raises(NotLeader):
            a.lease.guard(0.0)


@played
async def test_an_update_whose_answer_was_lost_is_read_again() -> None:
    async with election("a") as (a,):
        a.start()
        await asyncio.sleep(1)
        a.line.deaf = True
        await asyncio.sleep(3)
        a.line.deaf = False
        await asyncio.sleep(60)
        assert a.told == ["started"]
        a.lease.guard(10.0)


@played
async def test_a_lost_answer_to_the_taking_is_read_again() -> None:
    async with election("a") as (a,):
        a.line.server.create({"spec": {"holderIdentity": ""}})
        a.line.deaf = True
        a.start()
        await asyncio.sleep(1)
        a.line.deaf = False
        await until(lambda: a.lease.held, within=20)


@played
async def test_short_trouble_of_the_server_costs_no_leadership() -> None:
    async with election("a", "b") as (a, b):
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(10)
        for candidate in (a, b):
            candidate.line.failing = True
        await asyncio.sleep(DEADLINE - 3)
        for candidate in (a, b):
            candidate.line.failing = False
        await asyncio.sleep(60)
        assert (a.told, b.told) == (["started"], [])


@played
async def test_a_lease_that_somebody_else_has_written_is_lost_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with election("a") as (a,):
        a.start()
        await asyncio.sleep(1)
        stored = a.line.server.read()
        a.line.server.patch(stored | {"spec": {"holderIdentity": "stranger", "leaseDurationSeconds": 15}})
        await until(lambda: "stopped" in a.told, within=RETRY + 0.1)
        assert a.lease.holder == "stranger"
        assert "is held by stranger" in caplog.text
        await until(lambda: a.lease.held, within=DURATION + RETRY * 1.5)


@played
async def test_a_deleted_lease_is_not_taken_from_a_holder_that_does_not_know_yet() -> None:
    async with election("a", "b") as (a, b):
        a.start()
        await asyncio.sleep(1)
        b.start()
        await asyncio.sleep(10)
        a.line.blackhole = True
        a.line.server.spec = None
        took = await until(lambda: b.lease.held, within=DURATION + RETRY * 1.5)
        assert took > DURATION - 2 * RETRY
        await asyncio.sleep(5)
        assert a.told == ["started", "stopped"]


@played
async def test_a_deleted_lease_is_made_again() -> None:
    async with election("a") as (a,):
        a.start()
        await asyncio.sleep(1)
        a.line.server.spec = None
        await until(lambda: a.line.server.spec is not None, within=2 * RETRY)
        await until(lambda: a.lease.held, within=1.0)


@played
async def test_transitions_are_counted_and_the_duration_is_written_rounded_up() -> None:
    server = LeaseServer()
    for name in ("a", "b"):
        candidate = Candidate(server, name)
        candidate.lease = Lease(candidate.line, ("ns", "l"), name, LeaseTimes(1.5, 1.0, 0.2), now)
        candidate.start()
        await until(lambda: candidate.lease.held, within=1)  # noqa: B023
        assert server.spec is not None
        assert server.spec["leaseDurationSeconds"] == 2
        await candidate.stop()
    assert server.spec is not None
    assert server.spec["leaseTransitions"] == 1


def test_times_that_cannot_work_are_refused() -> None:
    for duration, deadline, retry in ((10, 10, 2), (15, 2, 2), (15, 20, 2)):
        with pytest.raises(ValueError, match="must hold"):
            LeaseTimes(duration, deadline, retry)


class TestCallbacks:
    @played
    async def test_the_lease_is_renewed_while_a_clean_stop_drains(self) -> None:
        async with election("a", "b") as (a, b):
            drained: list[bool] = []

            async def drain() -> None:
                await asyncio.sleep(2 * DURATION)
                drained.append(a.lease.held)

            a.task = asyncio.create_task(a.lease.run(a.started, drain))
            await asyncio.sleep(1)
            b.start()
            await asyncio.sleep(30)
            await a.stop()
            assert drained == [True]
            assert not b.lease.held
            await until(lambda: b.lease.held, within=3.0)

    @played
    async def test_what_starts_is_cancelled_when_the_lease_is_lost(self) -> None:
        async with election("a") as (a,):
            ended: list[str] = []

            async def work() -> None:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    ended.append("work")

            a.task = asyncio.create_task(a.lease.run(work, lambda: ended.append("stopped")))
            await asyncio.sleep(1)
            a.line.blackhole = True
            await until(lambda: bool(ended), within=DEADLINE + 1)
            assert ended == ["work", "stopped"]
            assert not a.lease.held

    @played
    async def test_what_starts_may_end_and_the_lease_is_kept_until_a_clean_stop(self) -> None:
        async with election("a") as (a,):
            a.task = asyncio.create_task(a.lease.run(lambda: None, a.stopped))
            await asyncio.sleep(60)
            assert a.lease.held
            await a.stop()
            assert a.line.server.writes[-1][0] == ""

    @played
    async def test_what_fails_at_the_start_releases_the_lease_and_is_raised(self) -> None:
        async with election("a") as (a,):

            async def fail() -> None:
                raise RuntimeError("no start")

            with pytest.raises(RuntimeError, match="no start"):
                await a.lease.run(fail, a.stopped)
            assert a.told == ["stopped"]
            assert a.line.server.writes[-1][0] == ""

    @played
    async def test_a_stop_while_nobody_answers_does_not_take_long(self) -> None:
        async with election("a") as (a,):
            a.start()
            await asyncio.sleep(1)
            a.line.blackhole = True
            before = now()
            await a.stop()
            assert now() - before < 3.0


class TestNoLease:
    @played
    async def test_leads_always_and_guards_nothing(self) -> None:
        told: list[str] = []
        lease = NoLease()
        task = asyncio.create_task(lease.run(lambda: told.append("started"), lambda: told.append("stopped")))
        await asyncio.sleep(100)
        lease.guard(1e9)
        assert lease.held
        task.cancel()
        await asyncio.wait({task})
        assert told == ["started", "stopped"]


@pytest.mark.random
@pytest.mark.parametrize("seed", range(SEED, SEED + examples(6, quick_percent=34)))
@played
async def test_no_weather_makes_two_leaders_or_keeps_the_seat_empty(seed: int) -> None:
    """Random lines for ten virtual minutes; the referee of election() watches every 50 ms."""
    chance = random.Random(seed)
    async with election("a", "b", "c") as candidates:
        for candidate in candidates:
            candidate.start()
        for _ in range(100):
            await asyncio.sleep(chance.uniform(0.5, 12))
            candidate = chance.choice(candidates)
            line = candidate.line
            line.delay = chance.choice((0.005, 0.005, 0.5, 2.0, 6.0))
            line.blackhole = chance.random() < 0.2
            line.deaf = chance.random() < 0.2
            line.failing = chance.random() < 0.2
            if chance.random() < 0.15:
                await candidate.stop()
                candidate.start()
        for candidate in candidates:
            candidate.line.__init__(candidate.line.server)  # type: ignore[misc]
        await until(lambda: any(c.lease.held for c in candidates), within=DURATION + 4 * RETRY)
        writers = [holder for holder, _ in candidates[0].line.server.writes]
        assert len({holder for holder, _ in itertools.groupby(writers)} - {""}) > 1


@played
async def test_the_server_refusing_everything_is_not_an_end(caplog: pytest.LogCaptureFixture) -> None:
    async with election("a") as (a,):

        async def refuse(*_: object, **__: object) -> None:
            raise ApiError(403, "Forbidden", "leases is forbidden", verb="get", path="/leases")

        allowed, a.line.urgent = a.line.urgent, refuse  # type: ignore[method-assign,assignment]
        a.start()
        await asyncio.sleep(60)
        a.line.urgent = allowed  # type: ignore[method-assign]
        await until(lambda: a.lease.held, within=3.0)
    assert caplog.text.count("leases is forbidden") == 1  # not once per look


@played
async def test_a_namespace_that_is_missing_is_named_with_the_mend(caplog: pytest.LogCaptureFixture) -> None:
    async with election("a") as (a,):
        allowed = a.line.urgent

        async def refuse(request: Request, wanted: type[WireLease]) -> WireLease:
            if request.verb != "create":
                return await allowed(request, wanted)
            message = 'namespaces "ops" not found'
            raise ApiError(404, "NotFound", message, verb="create", path=request.path)

        a.line.urgent = refuse  # type: ignore[method-assign]
        a.start()
        await asyncio.sleep(60)
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 'namespaces "ops" not found' in said
    assert "create that namespace, or name another one with --operator-namespace" in said
