"""A plan that remembers the last one is the plan that asks every node, whatever changed between them."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.conditions import Condition
from caretaker.api.daemontask import Status
from caretaker.api.objects import Pod
from caretaker.api.times import format_time
from caretaker.daemontask.decision import Basis, Decision, DecisionCache, NodeReport
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.plan import plan
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.snapshot import Snapshot
from unit.daemontask.build import (
    NOW,
    REVISION,
    TEMPLATE,
    entry,
    failed,
    node,
    pod,
    snapshot,
    succeeded,
    taint,
    task,
)

Change = Callable[[Snapshot], Snapshot]
SPEC: dict[str, Any] = {"min_success_seconds": 60, "ttl_seconds_after_finished": 300}
NODES = {
    name: node(name)
    for name in ("new", "done", "just-done", "kept-pod", "running", "placing", "failed", "retry", "two-pods")
}
NODES["cordoned"] = node("cordoned", unschedulable=True)
NODES["tainted"] = node("tainted", taints=(taint("dedicated"),))
NODES["unready"] = node("unready", ready=False, ready_since=NOW - 10)
RUNNING = pod(NODES["running"])


def before() -> Snapshot:
    """Nodes in every state."""
    of = NODES
    pods = [
        succeeded(of["kept-pod"], finished=NOW - 200),
        RUNNING,
        pod(of["placing"], phase="Pending", node_name=""),
        failed(of["retry"]),
        pod(of["two-pods"], 1),
        pod(of["two-pods"], 2),
    ]
    entries = {
        "done": entry(of["done"]),
        "just-done": entry(of["just-done"], finished_at=int(NOW - 5)),
        "kept-pod": entry(of["kept-pod"], finished_at=int(NOW - 200)),
        "failed": entry(of["failed"], "Failed", reason="Error", attempts=4),
        "retry": entry(of["retry"], "Retry", attempts=1, finished_at=int(NOW - 5)),
    }
    under_way = task(status=Status(current_revision=REVISION), **SPEC)
    return snapshot(under_way, list(of.values()), pods, entries, decision_cache=DecisionCache())


def later(seconds: float) -> Change:
    return lambda s: msgspec.structs.replace(s, now=s.now + seconds)


def with_node(name: str, **changes: Any) -> Change:
    return lambda s: msgspec.structs.replace(s, nodes={**s.nodes, name: node(name, **changes)})


def with_pods(name: str, *pods: Pod) -> Change:
    return lambda s: msgspec.structs.replace(s, pods={**s.pods, NODES[name].uid: {p.name: p for p in pods}})


def with_entry(name: str, **changes: Any) -> Change:
    def change(s: Snapshot) -> Snapshot:
        entries = {**s.ledger.entries, name: entry(NODES[name], **changes)}
        return msgspec.structs.replace(s, ledger=msgspec.structs.replace(s.ledger, entries=entries))

    return change


def without_entry(name: str) -> Change:
    def change(s: Snapshot) -> Snapshot:
        entries = {at: found for at, found in s.ledger.entries.items() if at != name}
        return msgspec.structs.replace(s, ledger=msgspec.structs.replace(s.ledger, entries=entries))

    return change


def with_spec(**changes: Any) -> Change:
    def change(s: Snapshot) -> Snapshot:
        of = task(status=s.task.status, **{**SPEC, **changes})
        rules = (
            s.eligibility_rules
            if of.spec.template == s.task.spec.template
            else EligibilityRules(of.spec.template)
        )
        return msgspec.structs.replace(s, task=of, revision=revision_of(of.spec), eligibility_rules=rules)

    return change


def annotated(**annotations: str) -> Change:
    marks = {f"caretaker.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return lambda s: msgspec.structs.replace(s, task=task(annotations=marks, status=s.task.status, **SPEC))


def lost(s: Snapshot) -> Snapshot:
    """A shard is gone, and somebody has said that its nodes are done."""
    ledger = msgspec.structs.replace(s.ledger, lost=1)
    of = task(annotations={names.LEDGER_DECISION: "assume-done: done"}, status=Status(), **SPEC)
    return msgspec.structs.replace(s, task=of, ledger=ledger)


def without_node(s: Snapshot) -> Snapshot:
    return msgspec.structs.replace(s, nodes={name: n for name, n in s.nodes.items() if name != "done"})


def ticked(last: str) -> Change:
    """The schedule's tick that status stores."""
    of = task(status=Status(last_schedule_time=last), schedule="0 * * * *", **SPEC)
    return lambda s: msgspec.structs.replace(s, task=of)


def begun(at: float) -> Change:
    """What status says of when the rollout began."""
    of = task(status=Status(current_revision=REVISION, start_time=format_time(at)), **SPEC)
    moving = Condition(c.PROGRESSING, "True", "RollingOut", last_transition_time=format_time(at))
    of = msgspec.structs.replace(of, status=msgspec.structs.replace(of.status, conditions=(moving,)))
    return lambda s: msgspec.structs.replace(s, task=of)


CHANGES: dict[str, Change] = {
    "the revision alone": lambda s: msgspec.structs.replace(s, revision="another"),
    "successes hold slots no more": with_spec(min_success_seconds=0),
    "a schedule is given": with_spec(schedule="0 * * * *"),
    "the rollout began at another time": begun(NOW - 5),
    "a tick is stored": ticked("1970-01-12T13:00:00Z"),
    "backoff ends": later(20),
    "minSuccessSeconds are over": later(90),
    "the time of a finished Pod is over": later(101),
    "the progress deadline passes": later(3600),
    "the clock is set back": later(-3600),
    "a node is cordoned": with_node("new", unschedulable=True),
    "a node goes NotReady": with_node("new", ready=False, ready_since=NOW),
    "a node is tainted": with_node("new", taints=(taint("dedicated"),)),
    "a node is replaced": with_node("done", uid="another"),
    "a node is gone": without_node,
    "a node comes": with_node("another"),
    "a Pod ends": with_pods("running", succeeded(NODES["running"])),
    "a Pod is placed": with_pods("placing", pod(NODES["placing"])),
    "a Pod is gone": with_pods("running"),
    "a second Pod comes": with_pods("running", RUNNING, pod(NODES["running"], 2)),
    "the second Pod goes": with_pods("two-pods", pod(NODES["two-pods"], 1)),
    "a run is recorded": with_entry("new"),
    "a record says otherwise": with_entry("done", result="Failed", reason="Error"),
    "a record is lost": without_entry("done"),
    "minSuccessSeconds is edited": with_spec(min_success_seconds=0),
    "ttlSecondsAfterFinished is edited": with_spec(ttl_seconds_after_finished=0),
    "progressDeadlineSeconds is edited": with_spec(progress_deadline_seconds=1),
    "the template is edited": with_spec(template={"spec": {**TEMPLATE["spec"], "hostPID": True}}),
    "everything is to run again": annotated(rerun_at="2026-01-01T00:00:00Z"),
    "one node is to run again": annotated(rerun_nodes='{"done": "2026-01-01T00:00:00Z"}'),
    "the ledger is lost": lost,
    "a Pod vanished": lambda s: msgspec.structs.replace(s, vanished={NODES["new"].uid: NOW + 60}),
    "a name is taken": lambda s: msgspec.structs.replace(s, seq_skips={NODES["new"].uid: 3}),
    "a namesake is there": lambda s: msgspec.structs.replace(
        s, namesakes={NODES["new"].uid: pod(NODES["new"], 7, owner_uid="earlier")}
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_was_found_before_changes_no_plan(change: Change) -> None:
    first = before()
    known = plan(first)
    second = change(first)
    fresh = plan(msgspec.structs.replace(second, decision_cache=None))
    assert plan(second) == fresh
    assert fresh != known, "nothing that a plan reads has changed"
    back = plan(first)
    assert back == plan(msgspec.structs.replace(first, decision_cache=None)) == known


def test_the_next_tick_changes_every_plan_that_is_remembered() -> None:
    at_noon = with_entry("done", tick=993_600)
    first = ticked("1970-01-12T12:00:00Z")(at_noon(before()))
    known = plan(first)
    second = ticked("1970-01-12T13:00:00Z")(first)
    assert plan(second) == plan(msgspec.structs.replace(second, decision_cache=None)) != known


def test_a_second_look_asks_no_node_again() -> None:
    """What an idle pass over thousands of nodes costs hangs on it."""
    first = before()
    known = plan(first)
    asked: list[str] = []

    class Rules(EligibilityRules):
        def check(self, of: Any) -> Any:
            asked.append(of.name)
            return super().check(of)

    # The same rules by another object: all are asked once more, then only those that something is due on.
    watched = msgspec.structs.replace(first, eligibility_rules=Rules(first.task.spec.template))
    assert plan(watched) == known
    assert sorted(asked) == sorted(NODES)
    asked.clear()
    assert plan(watched) == known
    assert sorted(asked) == ["two-pods"]


# ---------------------------------------------------------------- one report

ONE, FIRST, SECOND = node("one"), pod(node("one"), 1), pod(node("one"), 2)
LONE = {FIRST.name: FIRST}
BOTH = {**LONE, SECOND.name: SECOND}


def reported(*, expired: tuple[Pod, ...] = (), expires: float = 0.0, **decision: Any) -> NodeReport:
    return NodeReport(ONE, Decision(state="active", **decision), None, expired, expires)


def basis(**changes: Any) -> Basis:
    made = Basis(task().spec, REVISION, EligibilityRules(TEMPLATE), "", {}, 0, 0.0)
    return msgspec.structs.replace(made, **changes)


SAME = basis()


def remembering(report: NodeReport, pods: dict[str, Pod] | None = None) -> DecisionCache:
    found = DecisionCache()
    found.begin(SAME, NOW)
    found.put(LONE if pods is None else pods, None, report)
    return found


@pytest.mark.parametrize("pods", [pytest.param({}, id="without a Pod"), pytest.param(LONE, id="with one")])
def test_a_report_that_asks_for_nothing_is_found_again(pods: dict[str, Pod]) -> None:
    report = reported()
    assert remembering(report, pods).get(ONE, pods, None) is report


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(reported(record=entry(ONE)), id="a record"),
        pytest.param(reported(delete=(FIRST,)), id="a deletion"),
        pytest.param(reported(expired=(FIRST,)), id="the end of a finished Pod"),
    ],
)
def test_one_that_asks_for_something_is_made_anew(report: NodeReport) -> None:
    cache = remembering(reported())
    cache.put(LONE, None, report)
    assert cache.get(ONE, LONE, None) is None


def test_one_about_two_pods_is_made_anew() -> None:
    assert remembering(reported(), BOTH).get(ONE, LONE, None) is None
    assert remembering(reported()).get(ONE, BOTH, None) is None


@pytest.mark.parametrize(
    ("report", "until"),
    [
        pytest.param(reported(wake=NOW + 5), NOW + 5, id="its time"),
        pytest.param(reported(expires=NOW + 5), NOW + 5, id="that of a finished Pod"),
        pytest.param(reported(wake=NOW + 9, expires=NOW + 5), NOW + 5, id="the earlier of both"),
        pytest.param(reported(wake=NOW + 5, expires=NOW + 9), NOW + 5, id="of both, the earlier"),
    ],
)
def test_it_holds_until_its_time(report: NodeReport, until: float) -> None:
    cache = remembering(report)
    cache.begin(SAME, until - 0.1)
    assert cache.get(ONE, LONE, None) is report
    cache.begin(SAME, until)
    assert cache.get(ONE, LONE, None) is None


@pytest.mark.parametrize(
    ("of", "now", "known"),
    [
        pytest.param(SAME, NOW, True, id="the same again"),
        pytest.param(SAME, NOW - 1, False, id="a clock that went back"),
        pytest.param(basis(eligibility_rules=SAME.eligibility_rules), NOW, True, id="an equal one"),
        pytest.param(basis(eligibility_rules=SAME.eligibility_rules, tick=1), NOW, False, id="another tick"),
    ],
)
def test_what_every_decision_reads_has_to_be_the_same(of: Basis, now: float, known: bool) -> None:
    cache = remembering(reported())
    cache.begin(of, now)
    assert (cache.get(ONE, LONE, None) is not None) is known


def test_what_a_report_was_made_from_has_to_be_the_same() -> None:
    cache = remembering(reported())
    assert cache.get(msgspec.structs.replace(ONE), LONE, None) is None
    assert cache.get(ONE, {FIRST.name: msgspec.structs.replace(FIRST)}, None) is None
    assert cache.get(ONE, {}, None) is None
    assert cache.get(ONE, LONE, entry(ONE)) is None
    assert cache.get(node("two"), LONE, None) is None


def test_a_node_that_is_gone_is_forgotten() -> None:
    cache = remembering(reported())
    cache.forget("two")
    assert cache.get(ONE, LONE, None) is not None
    cache.forget("one")
    assert cache.get(ONE, LONE, None) is None
