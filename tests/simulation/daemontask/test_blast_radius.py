"""How far a run that fails everywhere gets: whole rollouts of the planner in virtual time.

Nothing is remembered between two passes but status, ledger and Pods: every pass is one after a restart, too.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.api import names
from caretaker.api.daemontask import Budget, FailurePolicy, Status, resolve
from caretaker.api.objects import ContainerEnd, Node, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from testing.examples import examples
from unit.daemontask.build import NOW, REVISION, node, pod, snapshot, task

PAUSE = FailurePolicy(0, "Pause")


class Rollout:
    """One task; a run takes `seconds`, and fails on the nodes in `bad` or, without, on all."""

    def __init__(self, count: int, seconds: float, bad: frozenset[str] | None = None, **spec: Any) -> None:
        self.nodes = {f"n{i:03}": node(f"n{i:03}") for i in range(count)}
        self.seconds, self.bad, self.spec = seconds, bad, spec
        self.annotations: dict[str, str] = {}
        self.revision = ""  # the template's own
        self.status = Status()
        self.entries: dict[str, Entry] = {}
        self.pods: dict[str, Pod] = {}
        self.hit: set[str] = set()
        self.hit_by: dict[str, set[str]] = {}  # by what was asked for: a re-run is a rollout of its own
        self.failed_by: dict[str, set[str]] = {}  # likewise: nodes on which an attempt has failed
        self.now = NOW
        self.last: Plan
        self.settled = False  # the last pass changed nothing that the next one reads

    def one_pass(self) -> None:
        before = self.status
        of = task(status=self.status, annotations=self.annotations, **self.spec)
        pods = list(self.pods.values())
        nodes = list(self.nodes.values())
        with_data = {"revision": self.revision} if self.revision else {}
        seen = snapshot(of, nodes, pods, dict(self.entries), now=self.now, **with_data)
        self.last = plan(seen)
        self.entries |= self.last.records
        started = set()
        for start in self.last.launch.starts:
            revision = self.revision or REVISION
            made = pod(self.nodes[start.node_name], start.seq, revision=revision, created=self.now)
            marks = {**made.annotations, names.POD_RUN_KEY: start.run_key, names.POD_NONCE: start.nonce}
            self.pods[start.node_name] = msgspec.structs.replace(made, annotations=marks)
            started.add(start.node_name)
            self.hit_by.setdefault(start.nonce, set()).add(start.node_name)
        self.hit |= started
        outcome = Outcome(created=len(started), started=frozenset(started), shards=1)
        self.status = status_of(seen, self.last, outcome)
        self.settled = not started and not self.last.records and self.status == before

    def advance(self, until: float, step: float) -> None:
        """To the next pass: after `step` seconds or, as the operator, at an event or at the plan's wake."""
        due = self.now
        if self.settled:
            due = min([until, *self.changes(), *([self.last.wake] if self.last.wake else [])])
        self.let_pass(step * max(1, math.ceil((due - self.now) / step)))

    def changes(self) -> Iterator[float]:
        """When let_pass changes something."""
        return (found.created + self.seconds for found in self.pods.values() if not found.terminal)

    def let_pass(self, seconds: float) -> None:
        self.now += seconds
        for name, found in self.pods.items():
            if not found.terminal and self.now - found.created >= self.seconds:
                self.pods[name] = self._ended(name, found)

    def _ended(self, name: str, found: Pod) -> Pod:
        if self.bad is not None and name not in self.bad:
            return msgspec.structs.replace(found, phase="Succeeded", finished=self.now)
        ends = (ContainerEnd("main", 1, "Error"),)
        self.failed_by.setdefault(found.annotations.get(names.POD_NONCE, ""), set()).add(name)
        return msgspec.structs.replace(found, phase="Failed", finished=self.now, ends=ends)

    def roll_on(self, seconds: float, step: float = 5.0) -> None:
        """Until failurePolicy holds it, at most so long."""
        until = self.now + seconds
        while self.now < until:
            self.one_pass()
            if self.last.hold:
                return
            self.advance(until, step)

    @property
    def ready(self) -> str:
        return next(c.reason for c in self.status.conditions if c.type == "Ready")


@pytest.mark.parametrize(
    "backoff_limit", [0, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (1, 6)), 3]
)
@pytest.mark.parametrize("min_success", [0, 60])
def test_a_template_that_fails_reaches_a_tenth_of_the_nodes(backoff_limit: int, min_success: int) -> None:
    """The spec of examples/patch-sysctl.yaml, with any number of retries."""
    spec = {"parallelism": "10%", "backoff_limit": backoff_limit, "min_success_seconds": min_success}
    rollout = Rollout(100, 2, **spec, failure_policy=PAUSE)
    rollout.roll_on(7200)
    assert rollout.ready == "Paused"
    assert len(rollout.hit) == 10


@pytest.mark.parametrize("name", ["n000", "new"])
def test_a_node_that_auto_repair_puts_in_the_place_of_a_failed_one_is_another_node(name: str) -> None:
    """The replacement runs, also under the name of the deleted node, whose failure no longer counts."""
    rollout = Rollout(1, 2, parallelism=1, backoff_limit=0, failure_policy=PAUSE)
    rollout.roll_on(60)
    assert rollout.ready == "Paused"
    del rollout.nodes["n000"], rollout.pods["n000"]
    rollout.nodes[name] = node(name, uid="uid-new")
    rollout.one_pass()
    assert ([start.node_uid for start in rollout.last.launch.starts], rollout.ready) == (
        ["uid-new"],
        "RollingOut",
    )
    rollout.let_pass(5)
    rollout.one_pass()
    assert rollout.ready == "Paused"


widths = st.one_of(st.integers(1, 12), st.sampled_from(["1%", "10%", "34%", "100%"]))


class Case(NamedTuple):
    """What may make a failing run reach further: `joins` and `rerun` in seconds after the beginning."""

    count: int
    seconds: float
    parallelism: int | str | None
    budget: int | str | None
    allowed: int | str
    action: Literal["Pause", "Fail"]
    retries: int
    min_success: int
    joins: list[int]
    rerun: int | None
    step: float


CASES = st.builds(
    Case,
    count=st.integers(1, 25),
    seconds=st.sampled_from([0.0, 1.0, 7.0, 60.0, 600.0]),
    parallelism=st.one_of(st.none(), widths),
    budget=st.one_of(st.none(), widths),
    allowed=st.one_of(st.integers(0, 5), st.sampled_from(["0%", "10%", "50%"])),
    action=st.sampled_from(["Pause", "Fail"]),
    retries=st.integers(0, 6),
    min_success=st.sampled_from([0, 30, 300]),
    joins=st.lists(st.integers(0, 900), max_size=5),
    rerun=st.one_of(st.none(), st.integers(0, 600)),
    step=st.sampled_from([1.0, 11.0, 60.0]),
)


def most(case: Case, total: int) -> int:
    """Nodes that may be hit while there are so many."""
    limits = [resolve(w, total, up=True) for w in (case.parallelism, case.budget) if w is not None]
    return max(min([*limits, total]), 1) + resolve(case.allowed, total, up=False)


@settings(max_examples=examples(250), deadline=None)
@given(CASES)
def test_a_run_that_fails_everywhere_reaches_no_more_nodes_than_slots_and_allowed_failures(
    case: Case,
) -> None:
    spec: dict[str, Any] = {"backoff_limit": case.retries, "min_success_seconds": case.min_success}
    budgets = (Budget(case.budget),) if case.budget is not None else ()
    policy = FailurePolicy(case.allowed, case.action)
    spec |= {"parallelism": case.parallelism, "budgets": budgets, "failure_policy": policy}
    rollout = Rollout(case.count, case.seconds, **spec)
    began, last = rollout.now, max([*case.joins, case.rerun or 0])
    reached: dict[str, set[str]] = {}  # before the rollout was finished; later nodes begin one at a time
    for _ in range(400):
        before = {nonce: set(hit) for nonce, hit in rollout.hit_by.items()}
        rollout.one_pass()
        at_most = resolve(case.allowed, len(rollout.nodes), up=False)
        for nonce, hit in rollout.hit_by.items() if not rollout.last.rollout.finished else ():
            fresh, failed = hit - before.get(nonce, set()), rollout.failed_by.get(nonce, ())
            reached.setdefault(nonce, set()).update(fresh)
            assert len(reached[nonce]) <= most(case, len(rollout.nodes))
            assert not fresh or len(failed) <= at_most, "no other node begins a run that fails"
        if rollout.last.hold and rollout.now > began + last:
            break
        for at in case.joins:
            if at <= rollout.now - began:
                rollout.nodes.setdefault(f"late-{at}", node(f"late-{at}"))
        if case.rerun is not None and rollout.now >= began + case.rerun:
            rollout.annotations[names.RERUN_AT] = format_time(began + case.rerun)
        rollout.let_pass(max(case.step, case.seconds / 4))
    at_most = resolve(case.allowed, len(rollout.nodes), up=False)
    assert rollout.last.hold or rollout.last.rollout.finished or len(rollout.last.nodes.failed) <= at_most


def test_without_a_failure_policy_no_more_nodes_than_slots_are_in_the_middle_of_a_failing_run() -> None:
    rollout = Rollout(30, 2, parallelism=3, backoff_limit=2)
    for _ in range(400):
        rollout.one_pass()
        middle = [e for e in rollout.entries.values() if e.result == "Retry"]
        live = {p.node_uid for p in rollout.pods.values() if not p.terminal}
        assert len(live | {e.node_uid for e in middle}) <= 3
        rollout.let_pass(5)
    assert rollout.status.failed > 3, "each gives its slot up once its retries are used up"


def test_retries_show_whether_the_node_is_at_fault_and_the_rollout_goes_on() -> None:
    flaky = frozenset({"n001"})
    rollout = Rollout(12, 2, flaky, parallelism=12, backoff_limit=3, failure_policy=PAUSE)
    rollout.one_pass()
    assert len(rollout.hit) == 12
    rollout.nodes["late"] = node("late")
    rollout.let_pass(5)
    rollout.one_pass()
    rollout.one_pass()
    assert "late" not in rollout.hit
    assert "1 node(s) are failing, first n001" in rollout.status.conditions[0].message
    rollout.bad = frozenset()
    rollout.roll_on(60)
    assert rollout.ready == "Succeeded"
    assert "late" in rollout.hit


def test_a_finished_rollout_is_not_paused_by_a_node_that_joins_years_later() -> None:
    rollout = Rollout(3, 2, frozenset(), parallelism=1, failure_policy=PAUSE, backoff_limit=0)
    rollout.roll_on(100)
    assert rollout.status.finished_rollout == f"{rollout.status.current_revision}/-/-"
    rollout.bad = frozenset({"bad"})
    rollout.nodes["bad"] = node("bad")
    rollout.let_pass(3e8)
    rollout.roll_on(100)
    assert (rollout.status.failed, rollout.ready) == (1, "NodesFailed")
    for number in range(5):
        rollout.nodes[f"good-{number}"] = node(f"good-{number}")
    rollout.roll_on(100)
    assert rollout.status.succeeded == 8


def test_nodes_that_join_after_a_rollout_and_fail_are_followed_by_one_at_a_time_until_one_succeeds() -> None:
    rollout = Rollout(3, 2, frozenset(), parallelism=4, failure_policy=PAUSE, backoff_limit=1)
    rollout.roll_on(30)
    rollout.bad = None
    rollout.nodes |= {f"x{i:02}": node(f"x{i:02}") for i in range(20)}
    for _ in range(4):
        rollout.one_pass()
        rollout.let_pass(5)
    assert len(rollout.hit) == 3 + 4
    most = 0
    for _ in range(40):
        before = len(rollout.hit)
        rollout.one_pass()
        most = max(most, len(rollout.hit) - before)
        rollout.let_pass(1)
    assert most == 1
    assert len(rollout.hit) < 3 + 4 + 5
    rollout.bad = frozenset()
    rollout.roll_on(60)
    assert rollout.status.pending == 0


def test_a_node_that_goes_not_ready_after_its_success_counts_while_it_is_watched() -> None:
    """A setting that cuts the node off succeeds first."""
    rollout = Rollout(20, 2, frozenset(), parallelism=2, min_success_seconds=60, failure_policy=PAUSE)
    rollout.one_pass()
    first = set(rollout.hit)
    rollout.let_pass(5)
    rollout.one_pass()
    for name in first:
        lost: Node = rollout.nodes[name]
        rollout.nodes[name] = msgspec.structs.replace(lost, ready=False, ready_since=rollout.now + 10)
    rollout.let_pass(20)
    rollout.one_pass()
    assert "2 node(s) are failing" in rollout.status.conditions[0].message
    rollout.roll_on(10 * 3600, step=600)
    assert rollout.hit == first
    assert rollout.ready == "Paused"
    assert "2 node(s) count as failed" in rollout.status.conditions[0].message
    rollout.annotations[names.RESUME_AT] = format_time(rollout.now)
    rollout.roll_on(100)
    assert len(rollout.hit) > 2


class Halting(Rollout):
    """A run that reboots or halts its node: the kubelet's graceful shutdown ends the Pod, which is a
    disruption (condition DisruptionTarget), and the node is NotReady for `down` seconds."""

    def __init__(self, count: int, down: float, **spec: Any) -> None:
        super().__init__(count, 2, **spec)
        self.down = down
        self.most_down = 0

    def _ended(self, name: str, found: Pod) -> Pod:
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], ready=False, ready_since=self.now)
        ended = super()._ended(name, found)
        told = (("DisruptionTarget", "True", "TerminationByKubelet"),)
        return msgspec.structs.replace(ended, reason="Terminated", conditions=told)

    def let_pass(self, seconds: float) -> None:
        super().let_pass(seconds)
        down = [one for one in self.nodes.values() if not one.ready]
        self.most_down = max(self.most_down, len(down))
        for one in down:
            if self.now >= one.ready_since + self.down:
                self.nodes[one.name] = msgspec.structs.replace(one, ready=True, ready_since=self.now)

    def changes(self) -> Iterator[float]:
        down = (one.ready_since + self.down for one in self.nodes.values() if not one.ready)
        return itertools.chain(super().changes(), down)


def test_no_more_nodes_than_slots_are_rebooted_at_once() -> None:
    rollout = Halting(12, 120, parallelism=2, backoff_limit=0)
    rollout.roll_on(1200)
    assert (rollout.most_down, len(rollout.hit)) == (2, 2)


@pytest.mark.parametrize("allowed", [0, 2])
def test_a_run_that_halts_its_node_reaches_no_more_nodes_than_run_at_once_and_may_fail(allowed: int) -> None:
    rollout = Halting(12, 1e9, parallelism=2, backoff_limit=3, failure_policy=FailurePolicy(allowed, "Pause"))
    rollout.roll_on(40 * 3600, step=60)
    assert rollout.ready == "Paused"
    assert len(rollout.hit) <= 2 + allowed
    assert f"{len(rollout.hit)} node(s) count as failed" in rollout.status.conditions[0].message


def test_a_node_that_was_disrupted_and_is_not_ready_holds_up_no_other_beyond_its_deadline() -> None:
    spec: dict[str, Any] = {"parallelism": 1, "progress_deadline_seconds": 600}
    rollout = Halting(3, 1e9, **spec)
    rollout.one_pass()
    rollout.let_pass(5)
    rollout.one_pass()
    slots = rollout.status.slots
    assert slots is not None
    (holder,) = slots.holders
    assert (holder.reason, holder.until) == ("NodeNotReady", format_time(NOW + 5 + 600))
    rollout.now = NOW + 5 + 599
    rollout.one_pass()
    assert len(rollout.hit) == 1
    rollout.now += 1
    rollout.one_pass()
    assert len(rollout.hit) == 2


class Filling(Rollout):
    """A run that fills the disk of its node: it is evicted, which is a disruption, and then the kubelet
    rejects every Pod until the node is repaired."""

    def __init__(self, count: int, **spec: Any) -> None:
        super().__init__(count, 2, frozenset(), **spec)
        self.full: set[str] = set()
        self.mended: set[str] = set()

    def _ended(self, name: str, found: Pod) -> Pod:
        ended = super()._ended(name, found)
        if name in self.mended:
            return ended
        told = (("DisruptionTarget", "True", "TerminationByKubelet"),)
        ends = () if name in self.full else (ContainerEnd("main", 137, "Error"),)
        conditions = () if name in self.full else told
        self.full.add(name)
        return msgspec.structs.replace(
            ended, phase="Failed", reason="Evicted", ends=ends, conditions=conditions
        )


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("allowed", [0, 2])
def test_a_run_that_fills_the_disk_reaches_no_more_nodes_than_run_at_once_and_may_fail(
    allowed: int, retries: int
) -> None:
    policy = FailurePolicy(allowed, "Pause")
    rollout = Filling(12, parallelism=2, backoff_limit=retries, failure_policy=policy)
    rollout.roll_on(12 * 3600, step=60)
    assert rollout.ready == "Paused"
    assert len(rollout.full) <= 2 + allowed


def test_a_node_that_rejects_pods_after_a_disruption_tries_again_in_its_own_slot() -> None:
    rollout = Filling(2, parallelism=1)
    rollout.roll_on(120)
    (first,) = rollout.full
    assert rollout.entries[first].rejections > 2
    rollout.mended = set(rollout.nodes)
    rollout.roll_on(1200, step=30)
    assert rollout.ready == "Succeeded"
    assert rollout.full == {first}


@pytest.mark.parametrize("slot", ["a retry", "a deletion", "an image"])
def test_status_names_who_holds_a_slot_and_until_when(slot: str) -> None:
    rollout = Rollout(4, 2, parallelism=1, backoff_limit=3)
    rollout.one_pass()
    (name,) = rollout.hit
    made = rollout.pods[name]
    if slot == "a retry":
        rollout.let_pass(5)
        rollout.one_pass()
        rollout.one_pass()
        expected: tuple[str, str, str | None] = ("Backoff", format_time(NOW + 5), format_time(NOW + 15))
    elif slot == "a deletion":
        rollout.pods[name] = msgspec.structs.replace(made, deletion=NOW + 30, deletion_asked=NOW)
        rollout.one_pass()
        expected = ("PredecessorTerminating", format_time(NOW), None)
    else:
        rollout.pods[name] = msgspec.structs.replace(made, phase="Pending", waiting="ErrImagePull")
        rollout.one_pass()
        expected = ("ErrImagePull", format_time(NOW), None)
    slots = rollout.status.slots
    assert slots is not None
    assert (slots.width, slots.held) == (1, 1)
    (holder,) = slots.holders
    assert (holder.node_name, holder.reason, holder.since, holder.until) == (name, *expected)


def test_a_rollout_whose_every_slot_is_stuck_is_stalled() -> None:
    rollout = Rollout(20, 2, parallelism="10%", progress_deadline_seconds=60)
    rollout.one_pass()
    for name, made in rollout.pods.items():
        rollout.pods[name] = msgspec.structs.replace(made, phase="Pending", waiting="ImagePullBackOff")
    rollout.now += 59
    rollout.one_pass()
    assert rollout.ready == "RollingOut"
    rollout.now += 1
    rollout.one_pass()
    assert rollout.ready == "ProgressDeadlineExceeded"
    assert {c.type: c.reason for c in rollout.status.conditions}["Stalled"] == "ProgressDeadlineExceeded"
