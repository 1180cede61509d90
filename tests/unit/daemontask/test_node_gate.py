"""The taint of spec.nodeGate: which nodes lose it, when, and what the patch asks for."""

from typing import Any

import msgspec
import pytest

from caretaker.api.daemontask import GateStatus, NodeGate
from caretaker.api.objects import Taint
from caretaker.daemontask.decision import WriteRefusal
from caretaker.daemontask.gate_control import opening
from caretaker.daemontask.plan import BATCH, plan
from caretaker.daemontask.pods import PodEncoder, Start, build, revision_of
from caretaker.daemontask.status import gated_by_state, requeue_after, status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.task_state import SpecCache
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import (
    NOW,
    UID,
    entry,
    failed,
    node,
    planned,
    pod,
    snapshot,
    started,
    states,
    succeeded,
    taint,
    task,
)

GATE = "default.gate.caretaker.dev/task"
SHUT = taint(GATE)
A = node("a", taints=(SHUT,))
GATED: dict[str, Any] = {"node_gate": NodeGate()}


def opened(*args: Any, **kwargs: Any) -> list[str]:
    return [one.name for one in planned(*args, **kwargs).opens]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "PreferNoSchedule"])
def test_the_task_runs_on_a_node_with_its_taint(effect: str) -> None:
    shut = node("a", taints=(taint(GATE, effect, "v"),))
    assert started(planned(task(**GATED), [shut])) == ["a"]


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("other.gate.caretaker.dev/task", id="of another namespace's task of this name"),
        pytest.param("default.gate.caretaker.dev/other", id="of another task of the namespace"),
        pytest.param("gate.caretaker.dev/task", id="of no namespace"),
        pytest.param("node.cilium.io/agent-not-ready", id="of somebody else"),
    ],
)
def test_a_taint_that_is_not_the_tasks_own_is_neither_tolerated_nor_removed(key: str) -> None:
    other = node("a", taints=(taint(key),))
    made = planned(task(**GATED), [other], [], {"a": entry(other)})
    assert (made.opens, made.nodes.gated) == ((), ())
    assert not started(planned(task(**GATED), [other]))


def test_without_node_gate_the_taint_is_as_any_other() -> None:
    assert not started(planned(task(), [A]))
    assert not opened(task(), [A], [], {"a": entry(A)})


@pytest.mark.parametrize(
    ("spec", "pods", "entries", "wanted"),
    [
        pytest.param({}, [succeeded(A)], {}, ["a"], id="as soon as the run has succeeded"),
        pytest.param({}, [], {"a": entry(A)}, ["a"], id="later, by the record alone"),
        pytest.param({}, [pod(A)], {}, [], id="not while it runs"),
        pytest.param({}, [], {}, [], id="not before it has run"),
        pytest.param({"backoff_limit": 0}, [failed(A)], {}, [], id="not after a failure"),
        pytest.param({}, [], {"a": entry(A, "Failed")}, [], id="not after a failure that is on record"),
        pytest.param({}, [], {"a": entry(A, revision="old")}, [], id="not by an older template's run"),
        pytest.param({}, [], {"a": entry(A, node_uid="other")}, [], id="not by a run of a replaced node"),
        pytest.param(
            {"rerun_on": ("NodeReboot",)},
            [],
            {"a": entry(A, boot_id="old")},
            [],
            id="not by another boot's run",
        ),
        pytest.param({"suspend": True}, [], {"a": entry(A)}, ["a"], id="though the task is suspended"),
        pytest.param({"min_success_seconds": 9999}, [succeeded(A)], {}, ["a"], id="though its slot is held"),
    ],
)
def test_a_node_is_opened(spec: dict[str, Any], pods: list[Any], entries: Any, wanted: list[str]) -> None:
    assert opened(task(**GATED, **spec), [A], pods, entries) == wanted


def test_a_new_run_that_was_asked_for_keeps_it_shut() -> None:
    asked = task(annotations={"caretaker.dev/rerun-at": "1970-01-02T00:00:00Z"}, **GATED)
    assert not opened(asked, [A], [], {"a": entry(A)})


def test_a_lost_ledger_opens_nothing() -> None:
    base = snapshot(task(**GATED), [A], [], {"a": entry(A)})
    lost = msgspec.structs.replace(base, ledger=msgspec.structs.replace(base.ledger, lost=1))
    assert plan(base).opens
    assert not plan(lost).opens


def test_nodes_that_the_template_does_not_select_keep_it_and_are_counted() -> None:
    template = {"spec": {"nodeSelector": {"pool": "gpu"}, "containers": [{"name": "main", "image": "b"}]}}
    mine = node("b", taints=(SHUT,), labels={"pool": "gpu", "kubernetes.io/os": "linux"})
    found = snapshot(task(template=template, **GATED), [A, mine, node("c")])
    made = plan(found)
    assert not made.opens
    assert status_of(found, made, Outcome()).node_gate == GateStatus(GATE, 2, 1)


def test_status_counts_what_this_pass_opened() -> None:
    found = snapshot(task(**GATED), [A], [], {"a": entry(A)})
    after = status_of(found, plan(found), Outcome(opened=frozenset({"a"})))
    assert after.node_gate == GateStatus(GATE, 0, 0)
    assert gated_by_state(plan(found), after) == {"succeeded": 0}
    before = status_of(found, plan(found), Outcome())
    assert gated_by_state(plan(found), before) == {"succeeded": 1}
    plain = snapshot(task(), [A])
    assert status_of(plain, plan(plain), Outcome()).node_gate is None


def test_a_pass_opens_a_bounded_number_and_asks_for_another() -> None:
    nodes = [node(f"n{number:03}", taints=(SHUT,)) for number in range(BATCH + 1)]
    made = planned(task(**GATED), nodes, [], {one.name: entry(one) for one in nodes})
    assert (len(made.opens), made.more) == (BATCH, True)
    assert states(made) == {"succeeded": BATCH + 1}


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(Outcome(), id="nothing else is left"),
        pytest.param(Outcome(refusal=WriteRefusal("QuotaExceeded", "no"), more=True), id="Pods are refused"),
    ],
)
def test_a_refused_node_is_looked_at_again_when_it_is_time(outcome: Outcome) -> None:
    made = planned(task(**GATED), [A], [], {"a": entry(A)})
    outcome = msgspec.structs.replace(outcome, open_at=NOW + 7)
    assert requeue_after(made, outcome, planned=NOW, now=NOW) == 7


# ---------------------------------------------------------------- the Pod and the patch


def test_the_pod_tolerates_the_taint_and_the_revision_stays() -> None:
    of, plain = task(**GATED), task()
    start = Start("a", "uid-a", 1, 1, "key", "", "boot", "NewNode")
    body = build(of.metadata, of.spec, "r", start)
    mine = {"key": GATE, "operator": "Exists"}
    assert body["spec"]["tolerations"][-1] == mine
    assert mine not in build(plain.metadata, plain.spec, "r", start)["spec"]["tolerations"]
    sent = PodEncoder(of.metadata, of.spec, "r").body(start)
    assert msgspec.json.decode(msgspec.json.encode(sent)) == body
    assert revision_of(of.spec) == revision_of(plain.spec)


def test_the_patch_removes_the_taint_of_this_node_alone() -> None:
    taints = (taint("x"), taint(GATE), Taint(GATE, "NoExecute", time_added="2026-01-01T00:00:00Z"))
    assert opening(node("a", taints=taints), GATE) == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-a"},
        {"op": "test", "path": "/spec/taints/2/key", "value": GATE},
        {"op": "test", "path": "/spec/taints/2/effect", "value": "NoExecute"},
        {"op": "remove", "path": "/spec/taints/2"},
        {"op": "test", "path": "/spec/taints/1/key", "value": GATE},
        {"op": "test", "path": "/spec/taints/1/effect", "value": "NoSchedule"},
        {"op": "remove", "path": "/spec/taints/1"},
    ]


@pytest.mark.parametrize(
    ("boot", "tested"),
    [
        pytest.param("boot-a", True, id="of the boot that the run was for"),
        pytest.param("hash-abc", False, id="an ID of which only the hash is known"),
        pytest.param("", False, id="none"),
    ],
)
def test_where_reboots_count_the_boot_is_tested(boot: str, tested: bool) -> None:
    of = node("a", taints=(SHUT,), boot_id=boot)
    step = {"op": "test", "path": "/status/nodeInfo/bootID", "value": boot}
    assert (step in opening(of, GATE, ("NodeReboot",))) is tested
    assert step not in opening(of, GATE, ("TemplateChange",))


# ---------------------------------------------------------------- events


@pytest.mark.parametrize(
    ("labels", "passes"),
    [
        pytest.param({}, 1, id="of a node that the template selects"),
        pytest.param({"kubernetes.io/os": "windows"}, 1, id="of one that it leaves out: status counts it"),
    ],
)
def test_the_taint_that_comes_or_goes_is_a_pass(labels: dict[str, str], passes: int) -> None:
    keys, nodes, _ = watching()
    nodes.apply(node("a", labels=labels), 5)
    keys.clear()
    nodes.apply(node("a", labels=labels, taints=(SHUT,)), 6)
    assert len(keys) == passes
    nodes.apply(node("a", labels=labels, taints=(SHUT, taint("x", "PreferNoSchedule"))), 7)
    assert len(keys) == passes, "the other taint means nothing to it"
    nodes.apply(node("a", labels=labels), 8)
    assert len(keys) == 2 * passes


def test_a_shut_node_that_joins_or_goes_is_a_pass_though_it_is_left_out() -> None:
    keys, nodes, _ = watching()
    left_out = {"kubernetes.io/os": "windows"}
    nodes.apply(node("a", labels=left_out), 5)
    assert not keys
    nodes.apply(node("b", labels=left_out, taints=(SHUT,)), 6)
    assert len(keys) == 1
    nodes.remove(("", "b"), "uid-b", 7)
    assert len(keys) == 2


@pytest.mark.parametrize(("of", "urgent"), [(A, True), (node("a"), False)], ids=["gated", "open"])
def test_the_end_of_a_run_on_a_gated_node_is_urgent(of: Any, urgent: bool) -> None:
    keys, nodes, pods = watching()
    nodes.apply(of, 5)
    pods.apply(pod(of), 6)
    keys.clear()
    pods.apply(succeeded(of), 7)
    assert keys == [urgent]


def watching() -> tuple[list[bool], Store[Any], Store[Any]]:
    """Whether each pass that is asked for is urgent; and the stores."""
    nodes, pods, keys = Store[Any](), Store[Any](), list[bool]()
    found = snapshot(task(**GATED), [])

    def note(_: Key, *, urgent: bool = False, patient: bool = False) -> None:
        keys.append(urgent)

    state = WatchHandlers(nodes, pods, note).task_states.of(Key("DaemonTask", "default", "task"), UID)
    state.spec = SpecCache(revision="r", rules=found.eligibility_rules)
    return keys, nodes, pods
