"""Clocks of kubelets, years off in either direction: what is decided is what a right clock would lead to.

`true` times are those of the API server and the operator. A kubelet at a constant offset misplaces the end of
a run by what it took from the binding to taking the Pod up, if it is slow; if it is fast, to the record, at
the latest. One that is set during the run can place it anywhere between binding and record.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.api.daemontask import FailurePolicy
from caretaker.api.names import RESUME_AT
from caretaker.api.objects import Node, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.store import Store
from simulation.daemontask.cluster import Clock
from simulation.daemontask.operator import KEY
from simulation.daemontask.world import virtual_time
from testing.examples import examples
from unit.daemontask.build import (
    NOW,
    UID,
    entry,
    failed,
    node,
    pod,
    snapshot,
    started,
    states,
    succeeded,
    task,
)
from unit.daemontask.kubelet_status import container, ended, reported_pod

YEARS: Final = 10 * 365 * 86400
A, B = node("a"), node("b")
BEGAN: Final = NOW + 2 * YEARS  # no time of these histories is before 1970
TTL: Final = 300


class Run(msgspec.Struct, frozen=True):
    """When what happened, truly; and how wrong the kubelet's clock is as it takes the Pod up, and later."""

    placed: float  # after its creation
    taken_up: float  # after that, and so on
    took: float
    seen: float
    off: int
    set_by: int = 0

    @property
    def binding(self) -> float:
        return BEGAN + self.placed

    @property
    def end(self) -> float:
        return self.binding + self.taken_up + self.took

    @property
    def now(self) -> float:
        """When the operator sees the end."""
        return self.end + self.seen

    def pod(self, phase: str) -> Pod:
        """As the API server shows it."""
        begun, finished = self.binding + self.taken_up + self.off, self.end + self.off + self.set_by
        code, stamp = int(phase == "Failed"), format_time(finished)
        return reported_pod(
            A,
            created=BEGAN,
            phase=phase,
            startTime=format_time(begun),
            conditions=[
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(self.binding)},
                {"type": "Ready", "status": "False", "lastTransitionTime": stamp},
            ],
            containerStatuses=[container(ended(code, startedAt=format_time(begun), finishedAt=stamp))],
        )

    def look(self, at: float, entries: dict[str, Entry] | None = None, pods: Any = (), **spec: Any) -> Plan:
        ledger = Ledger(entries or {}, shards=1, since=dict.fromkeys(entries or {}, self.now))
        return plan(snapshot(task(**spec), [A, B], list(pods), ledger=ledger, now=at))

    def record(self, phase: str, **spec: Any) -> Entry:
        return self.look(self.now, pods=[self.pod(phase)], **spec).records["a"]


lasting = st.integers(0, 3600).map(float)
runs = st.builds(
    Run,
    placed=lasting,
    taken_up=st.integers(0, 5).map(float),
    took=lasting,
    seen=lasting,
    off=st.one_of(st.integers(-YEARS, YEARS), st.integers(-7200, 7200), st.just(0)),
)
set_back_or_forth = st.builds(
    msgspec.structs.replace, runs, set_by=st.one_of(st.integers(-YEARS, YEARS), st.integers(-7200, 7200))
)
tries = settings(max_examples=examples(300), deadline=None)


@tries
@given(runs)
def test_when_a_run_ended_is_known_within_little(run: Run) -> None:
    found = run.record("Failed").finished_at
    assert run.end - run.taken_up - 1 <= found <= run.now
    assert run.off > 0 or found <= run.end
    assert run.off or found == run.end


@tries
@given(set_back_or_forth)
def test_no_run_ended_before_it_was_placed_or_after_it_was_recorded(run: Run) -> None:
    assert run.binding <= run.record("Failed").finished_at <= run.now


@tries
@given(set_back_or_forth, st.integers(0, 3))
def test_a_failure_is_retried_when_it_would_be_and_counted_once(run: Run, limit: int) -> None:
    record = run.record("Failed", backoff_limit=limit)
    assert (record.attempts, record.disruptions) == (1, 0)
    assert record.result == ("Retry" if limit else "Failed")
    if limit:
        assert "a" in started(run.look(run.now + 10, {"a": record}, backoff_limit=limit))


@tries
@given(set_back_or_forth)
def test_a_slot_is_kept_for_min_success_seconds_at_most(run: Run) -> None:
    spec = {"parallelism": 1, "min_success_seconds": 60}
    record = run.record("Succeeded", **spec)
    result = run.look(run.now + 60, {"a": record}, **spec)
    assert (started(result), states(result)) == (["b"], {"succeeded": 1, "pending": 1})


@tries
@given(runs)
def test_a_slot_is_kept_for_min_success_seconds_at_least(run: Run) -> None:
    spec = {"parallelism": 1, "min_success_seconds": 60}
    record = run.record("Succeeded", **spec)
    last = run.end - run.taken_up - 1 + 59
    if last >= run.now:
        assert started(run.look(last, {"a": record}, **spec)) == []


@tries
@given(set_back_or_forth)
def test_resume_at_resumes(run: Run) -> None:
    """Whoever says it has seen that the task is paused."""
    spec = {"failure_policy": FailurePolicy(0, "Pause"), "backoff_limit": 0}
    record = run.record("Failed", **spec)
    marks = {RESUME_AT: format_time(run.now)}
    assert run.look(run.now, {"a": record}, **spec).hold == "Paused"
    assert run.look(run.now, {"a": record}, annotations=marks, **spec).hold == ""


@tries
@given(set_back_or_forth)
def test_resume_at_forgives_nothing_that_began_after_it(run: Run) -> None:
    spec = {"failure_policy": FailurePolicy(0, "Pause"), "backoff_limit": 0}
    record = run.record("Failed", **spec)
    marks = {RESUME_AT: format_time(run.binding - 1)}
    assert run.look(run.now, {"a": record}, annotations=marks, **spec).hold == "Paused"


@tries
@given(set_back_or_forth)
def test_a_pod_goes_when_its_time_is_over_and_not_years_later(run: Run) -> None:
    spec = {"ttl_seconds_after_finished": TTL}
    record, shown = run.record("Succeeded", **spec), run.pod("Succeeded")
    late = run.look(run.now + TTL + 30, {"a": record}, [shown], **spec)
    assert late.deletes == (shown,)
    again = msgspec.structs.replace(record, seq=2, pod_uid="later", finished_at=int(run.now))
    assert run.look(run.now + TTL + 30, {"a": again}, [shown], **spec).deletes == (shown,)


@tries
@given(runs)
def test_nor_before_it(run: Run) -> None:
    spec = {"ttl_seconds_after_finished": TTL}
    record, shown = run.record("Succeeded", **spec), run.pod("Succeeded")
    early = run.end - run.taken_up - 1 + TTL - 1
    if early >= run.now:
        assert run.look(early, {"a": record}, [shown], **spec).deletes == ()


# ---------------------------------------------------------------- what stands in ledgers already


@pytest.mark.parametrize("ahead", [1, 3600, 86400, YEARS])
@pytest.mark.parametrize("result", ["Succeeded", "Retry", "Failed"])
def test_an_entry_that_ends_in_the_future_ends_now_and_is_written_so_once(result: str, ahead: int) -> None:
    of = entry(A, result, attempts=1, finished_at=int(NOW + ahead))
    found = plan(snapshot(task(), [A], [], {"a": of})).records["a"]
    assert found == msgspec.structs.replace(of, finished_at=int(NOW))
    assert plan(snapshot(task(), [A], [], {"a": found})).records == {}


@pytest.mark.parametrize("ahead", [3600, YEARS])
def test_nothing_waits_for_such_an_entry(ahead: int) -> None:
    """r2: a retry after 86,410 s; a slot held for as long; resume-at = now that does not resume."""
    future = {"finished_at": int(NOW + ahead)}

    def later(seconds: float, of: Entry, **spec: Any) -> Plan:
        healed = plan(snapshot(task(**spec), [A, B], [], {"a": of})).records
        return plan(snapshot(task(**spec), [A, B], [], healed, now=NOW + seconds))

    assert "a" in started(later(10, entry(A, "Retry", attempts=1, **future)))
    slots = {"parallelism": 1, "min_success_seconds": 60}
    assert started(later(60, entry(A, **future), **slots)) == ["b"]
    assert started(later(59, entry(A, **future), **slots)) == []
    pause = {"failure_policy": FailurePolicy(0, "Pause"), "annotations": {RESUME_AT: format_time(NOW)}}
    assert later(1, entry(A, "Failed", **future), **pause).hold == ""


def test_reboots_that_lie_ahead_make_no_loop() -> None:
    of = entry(A, boot_id="before", reboot_runs=(int(NOW + YEARS),) * 3)
    assert started(plan(snapshot(task(rerun_on=("NodeReboot",)), [A], [], {"a": of}))) == ["a"]


def test_an_unschedulable_pod_is_late_though_the_schedulers_clock_is_fast() -> None:
    stuck = pod(A, node_name="", phase="Pending", unschedulable="no", unschedulable_since=NOW + YEARS)
    (found,) = plan(snapshot(task(), [A], [stuck])).nodes.blocked
    assert found.decision.since == stuck.created


# ---------------------------------------------------------------- nodes


class Watched:
    """What an operator makes of the nodes that it hears of."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._store = Store[Node]()
        self._watch_handlers = WatchHandlers(self._store, Store[Pod](), lambda *_, **__: None)
        self._watch_handlers.task_states.of(KEY, UID)

    def hears(self, ready: bool, since: float, **changes: Any) -> Node:
        """The node "a", as its kubelet tells of it."""
        self._store.apply(node("a", ready=ready, ready_since=since, **changes), self._store.version + 1)
        return self._watch_handlers.nodes["a"]


@pytest.fixture
def watched() -> Iterator[Watched]:
    with virtual_time() as clock:
        yield Watched(clock)


@pytest.mark.parametrize("off", [-YEARS, -7200, -61, 61, 7200, YEARS])
def test_a_ready_condition_that_was_seen_to_change_changed_then(watched: Watched, off: int) -> None:
    clock = watched.clock
    watched.hears(True, clock.now - 86400 + off)
    clock.now += 100
    fell = clock.now
    assert watched.hears(False, fell + off).ready_since == fell
    clock.now += 50
    assert watched.hears(False, fell + off, unschedulable=True).ready_since == fell, "told once more"
    assert watched.hears(True, clock.now + off).ready_since == clock.now


def test_what_a_right_clock_says_stands(watched: Watched) -> None:
    watched.hears(True, watched.clock.now - 86400)
    assert watched.hears(False, watched.clock.now - 7).ready_since == watched.clock.now - 7


def test_a_node_that_was_so_before_was_so_at_the_first_look_at_the_latest(watched: Watched) -> None:
    assert watched.hears(False, watched.clock.now - 7200).ready_since == watched.clock.now - 7200
    other = Watched(watched.clock)
    assert other.hears(False, other.clock.now + YEARS).ready_since == other.clock.now


@settings(max_examples=examples(200), deadline=None)
@given(st.one_of(st.integers(-YEARS, YEARS), st.integers(-7200, 7200)))
def test_a_slot_of_a_node_that_does_not_answer_is_kept_for_the_deadline(off: int) -> None:
    """Ready was set to False by a kubelet whose clock is wrong."""
    with virtual_time() as clock:
        watched = Watched(clock)
        watched.hears(True, clock.now - 86400 + off)
        lost, at = watched.hears(False, clock.now + off), clock.now
        running = pod(A, created=at - 7200)
        spec = task(parallelism=1, progress_deadline_seconds=600)
        early = plan(snapshot(spec, [lost, B], [running], now=at + 539))
        late = plan(snapshot(spec, [lost, B], [running], now=at + 600))
    assert (started(early), started(late)) == ([], ["b"])


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, YEARS))
def test_a_ready_condition_that_lies_ahead_keeps_no_slot(ahead: int) -> None:
    """However it came into the operator's memory: its own clock was set back, say."""
    spec = {"parallelism": 1, "min_success_seconds": 60, "progress_deadline_seconds": 600}
    strange = node("a", ready_since=NOW + ahead)
    of = entry(A, finished_at=int(NOW - 60))
    assert started(plan(snapshot(task(**spec), [strange, B], [], {"a": of}))) == ["b"]
    silent = node("a", ready=False, ready_since=NOW + ahead)
    waits = plan(snapshot(task(**spec), [silent, B], [pod(A, created=NOW - 60)]))
    assert (started(waits), waits.wake) == ([], NOW + 540)


# ---------------------------------------------------------------- reboots


@settings(max_examples=examples(300), deadline=None)
@given(st.one_of(st.integers(1, YEARS), st.integers(1, 7200)), st.booleans())
def test_a_reboot_that_the_task_causes_is_its_own_at_whatever_time_the_node_says(
    off: int, ahead: bool
) -> None:
    spec = task(rerun_on=("TemplateChange", "NodeReboot"), reboots_node=True)
    of = entry(A, boot_id="before", finished_at=int(NOW - 30))
    at = node("a", ready_since=NOW + off if ahead else NOW - 30 - off)
    result = plan(snapshot(spec, [at], [], {"a": of}))
    assert (started(result), result.records["a"].boot_absorbed) == ([], True)


@given(st.floats(-YEARS, YEARS))
@settings(max_examples=examples(200), deadline=None)
def test_a_pod_that_ended_has_ended_by_now(off: float) -> None:
    """Of records that no API server made."""
    for ended_pod in (failed(A, finished=NOW + off), succeeded(A, finished=NOW + off)):
        assert plan(snapshot(task(), [A], [ended_pod])).records["a"].finished_at <= NOW
