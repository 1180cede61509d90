"""Events are about a rollout and its transitions, never about a node: which, how many, and when again."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.api.conditions import ObjectRef, Reason
from caretaker.api.daemontask import FailurePolicy, Status
from caretaker.api.names import RERUN_AT, RESUME_AT
from caretaker.api.objects import ContainerEnd, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.decision import DecisionCache, WriteRefusal
from caretaker.daemontask.events import QUIET, transitions
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.plan import plan
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.runtime.events import EventRecorder
from testing.examples import examples
from unit.daemontask.build import NOW, UID, entry, node, pod, snapshot, task

REF = ObjectRef("caretaker.dev/v1alpha1", "DaemonTask", "default", "task", UID)
WIDE: dict[str, Any] = {"parallelism": "1%", "min_success_seconds": 30, "backoff_limit": 1}


class Posted:
    """The API server, as the recorder sees it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    async def create(self, _: str, body: dict[str, Any]) -> None:
        self.events.append((body["reason"], body["message"]))


class Fleet:
    """Nodes on which a task runs in virtual time; what an operator remembers goes with restart()."""

    def __init__(self, names: int, bad: int = 0, seconds: float = 20.0, **spec: Any) -> None:
        self.task = task(**spec)
        self.nodes = {f"n{i:04}": node(f"n{i:04}") for i in range(names)}
        self.bad = set(list(self.nodes)[names - bad :])
        self.entries: dict[str, Entry] = {}
        self.now = NOW
        self.posted = Posted()
        self.refusal: WriteRefusal | None = None
        self.refuses: Iterator[bool] = iter(())
        self._seconds = seconds
        self._pods: dict[str, dict[str, Pod]] = {}
        self.restart()

    def restart(self) -> None:
        self._recorder = EventRecorder(self.posted, clock=lambda: self.now)
        self._decision_cache, self._eligibility_rules = (
            DecisionCache(),
            EligibilityRules(self.task.spec.template),
        )

    async def look(self) -> Status:
        seen = snapshot(
            self.task,
            list(self.nodes.values()),
            entries=dict(self.entries),
            now=self.now,
            eligibility_rules=self._eligibility_rules,
            decision_cache=self._decision_cache,
        )
        seen = msgspec.structs.replace(seen, pods=dict(self._pods))
        made = plan(seen)
        self.entries |= made.records
        for gone in made.deletes:
            self._pods[gone.node_uid] = {
                name: pod for name, pod in self._pods[gone.node_uid].items() if pod.uid != gone.uid
            }
        refused = next(self.refuses, False)
        refusal, starts = None, made.launch.starts
        if refused and starts:
            words = f'pods "task-{starts[0].node_name}" is forbidden: exceeded quota'
            refusal, starts = WriteRefusal(Reason.POD_CREATION_REFUSED, words), ()
        outcome = Outcome(
            created=len(starts), refusal=refusal, shards=1, recorded=len(self.entries), more=made.more
        )
        for start in starts:
            new = pod(self.nodes[start.node_name], start.seq, created=self.now)
            marks = {
                **new.annotations,
                "caretaker.dev/run-key": start.run_key,
                "caretaker.dev/nonce": start.nonce,
            }
            self._add(msgspec.structs.replace(new, annotations=marks))
        before = self.task.status
        status = status_of(seen, made, outcome)
        self.task = msgspec.structs.replace(self.task, status=status)
        await self._recorder.post(REF, transitions(before, status, made.nodes.duplicates))
        return status

    async def finish(self, seconds: float = 10) -> Status:
        """Passes, some seconds apart, until every node has ended."""
        for _ in range(3000):
            status = await self.look()
            if not (status.active or status.pending):
                return await self.look()
            self.now += seconds
            self.end()
        raise AssertionError(f"no end: {status.succeeded} succeeded, {status.failed} failed")

    def annotate(self, key: str, value: str) -> None:
        meta = msgspec.structs.replace(self.task.metadata, annotations={key: value})
        self.task = msgspec.structs.replace(self.task, metadata=meta)

    @property
    def told(self) -> Counter[str]:
        return Counter(reason for reason, _ in self.posted.events)

    def _add(self, new: Pod) -> None:
        self._pods[new.node_uid] = {**self._pods.get(new.node_uid, {}), new.name: new}

    def end(self) -> None:
        for pods in list(self._pods.values()):
            for one in pods.values():
                if not one.terminal and self.now - one.created >= self._seconds:
                    failed = one.node_name in self.bad
                    ends = (ContainerEnd("main", int(failed), "Error" if failed else "Completed"),)
                    phase = "Failed" if failed else "Succeeded"
                    self._add(msgspec.structs.replace(one, phase=phase, finished=self.now, ends=ends))


@pytest.mark.slow
async def test_a_rollout_over_5000_nodes_by_1_percent_posts_at_most_10_events() -> None:
    """60 nodes fail, each twice, and the operator is restarted meanwhile."""
    fleet = Fleet(5000, 60, **WIDE, failure_policy=FailurePolicy("10%"))
    for _ in range(20):
        await fleet.look()
        fleet.now += 30
        fleet.end()
    fleet.restart()
    status = await fleet.finish(seconds=30)
    assert (status.succeeded, status.failed) == (4940, 60)
    assert sum(fleet.told.values()) <= 10
    assert fleet.told == {"RunStarted": 1, "RunFailed": 1, "RunSucceeded": 1, "RolloutComplete": 1}


async def test_what_fails_beyond_the_limit_is_told_once_too() -> None:
    fleet = Fleet(60, 55, **WIDE)
    await fleet.finish()
    assert fleet.told == {"RunStarted": 1, "RunFailed": 1, "NodesFailed": 1}


async def test_the_51st_failed_node_is_an_event_where_no_other_was() -> None:
    """status.failedNodes names 50."""
    fleet = Fleet(60, 60, backoff_limit=0)
    await fleet.finish()
    assert fleet.task.status.failed_nodes_omitted == 10
    ((_, message),) = [event for event in fleet.posted.events if event[0] == "RunFailed"]
    assert message.startswith("retries are used up on n00")


async def test_a_quota_that_lets_some_pods_pass_again_and_again_is_told_once() -> None:
    fleet = Fleet(100, parallelism=2)
    fleet.refuses = iter([False, False, True] * 1000)
    await fleet.finish()
    assert fleet.told == {"RunStarted": 1, "PodCreationRefused": 1, "RunSucceeded": 1, "RolloutComplete": 1}


async def test_each_rerun_is_told_and_nodes_that_join_are_not() -> None:
    fleet = Fleet(5)
    await fleet.finish()
    for moment in ("1970-01-20T00:00:00Z", "1970-01-21T00:00:00Z"):
        fleet.annotate(RERUN_AT, moment)
        fleet.now += 60
        await fleet.finish()
    assert fleet.told == {"RunStarted": 3, "RunSucceeded": 3, "RolloutComplete": 1}
    fleet.posted.events.clear()
    for name in ("x", "y"):
        fleet.nodes[name] = node(name)
        fleet.now += 3600
        await fleet.finish()
    fleet.annotate("other", "taken away by whoever keeps the manifest")
    fleet.nodes["z"] = node("z")
    await fleet.finish()
    assert fleet.told == {}


async def test_failures_are_told_again_once_the_task_is_resumed_or_half_a_day_has_passed() -> None:
    fleet = Fleet(1, 1, backoff_limit=0)
    await fleet.finish()
    assert fleet.told["RunFailed"] == 1
    fleet.nodes["x"], fleet.bad = node("x"), {*fleet.bad, "x"}
    await fleet.finish()
    assert fleet.told["RunFailed"] == 1, "the same trouble"
    fleet.annotate(RESUME_AT, format_time(fleet.now))
    fleet.nodes["y"], fleet.bad = node("y"), {*fleet.bad, "y"}
    await fleet.finish()
    assert fleet.told["RunFailed"] == 2
    fleet.now += QUIET
    fleet.nodes["z"], fleet.bad = node("z"), {*fleet.bad, "z"}
    await fleet.finish()
    assert fleet.told["RunFailed"] == 3


def test_a_status_that_an_older_version_wrote_is_told_no_second_time() -> None:
    nodes = [node("a"), node("b")]
    done = {of.name: entry(of) for of in nodes}
    seen = snapshot(task(), nodes, entries=done)
    before = msgspec.structs.replace(status_of(seen, plan(seen), Outcome()), rollout=None)
    joined = node("c")
    seen = snapshot(task(status=before), [*nodes, joined], [pod(joined)], done)
    assert transitions(before, status_of(seen, plan(seen), Outcome(created=1))) == []


RESULTS = ("Succeeded", "Retry", "Failed", "")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["Succeeded", "Retry", "Failed", ""])), max_size=30
    )
)
def test_whatever_becomes_of_nodes_a_reason_is_posted_once_in_a_rollout(steps: list[tuple[str, str]]) -> None:
    nodes, before, told = [node(name) for name in "abc"], Status(), Counter[str]()
    entries: dict[str, Entry] = {}
    for at, (name, result) in enumerate(steps):
        of = node(name)
        entries = {key: value for key, value in entries.items() if key != name}
        if result:
            entries[name] = entry(of, result, finished_at=int(NOW + at))
        seen = snapshot(task(status=before, parallelism=1), nodes, entries=entries, now=NOW + at)
        made = plan(seen)
        after = status_of(seen, made, Outcome(created=len(made.launch.starts)))
        told.update(event.reason for event in transitions(before, after))
        assert transitions(after, after) == [], "a restart repeats nothing"
        before = after
    assert max(told.values(), default=1) == 1, told
