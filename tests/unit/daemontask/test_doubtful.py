"""Of which nodes a plan may rest on an old view: a look at the API server comes before it acts there."""

from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.plan import plan
from caretaker.daemontask.recheck import doubtful, unlisted
from unit.daemontask.build import NOW, entry, node, pod, snapshot, succeeded, task

A, B = node("a"), node("b")
GONE = node("gone")
OLD = entry(A, revision="old")
REBOOT: dict[str, Any] = {"rerun_on": ("TemplateChange", "NodeReboot")}


def unplaced(of: Node, **changes: Any) -> Pod:
    return pod(of, **{"node_name": "", "phase": "Pending", "created": NOW - 4000, **changes})


@pytest.mark.parametrize(
    ("spec", "pods", "entries", "found"),
    [
        pytest.param({}, [], {}, set(), id="a node that has never run"),
        pytest.param({}, [], {"a": entry(A, "Retry", attempts=1)}, set(), id="a retry"),
        pytest.param({}, [], {"a": entry(A, node_uid="earlier")}, {"a"}, id="a node that was replaced"),
        pytest.param(
            {}, [succeeded(A)], {"a": entry(A, node_uid="earlier")}, {"a"}, id="a record of a replaced node"
        ),
        pytest.param(
            {}, [], {"a": entry(A, revision="old", boot_id="before")}, set(), id="a reboot is no trigger"
        ),
        pytest.param(REBOOT, [], {"a": entry(A, boot_id="before")}, {"a"}, id="a reboot that starts a run"),
        pytest.param(REBOOT, [], {"a": entry(A, revision="old")}, set(), id="a start with the known boot ID"),
        pytest.param({}, [unplaced(A)], {}, set(), id="a deletion on a node that is known"),
        pytest.param({}, [unplaced(GONE)], {}, {"gone"}, id="a deletion on one that is not"),
        pytest.param(
            {}, [pod(node("a", uid="earlier"))], {}, {"a"}, id="a deletion on a namesake of its node"
        ),
        pytest.param(
            {},
            [unplaced(GONE, annotations={names.POD_NODE_UID: GONE.uid})],
            {},
            set(),
            id="the deletion of a Pod that names no node",
        ),
    ],
)
def test_doubtful_is_what_another_operator_may_know_better(
    spec: dict[str, Any], pods: list[Pod], entries: dict[str, Entry], found: set[str]
) -> None:
    seen = snapshot(task(**spec), [A], pods, entries)
    made = plan(seen)
    assert made.launch.starts or made.records or made.deletes
    assert doubtful(seen.task.spec, seen.nodes, seen.ledger, made) == found


def test_a_record_that_no_pod_tells_of_is_doubtful() -> None:
    once: dict[str, Any] = {"run_guarantee": "AtMostOnce", "backoff_limit": 0}
    seen = snapshot(task(**once), [A, B], ledger=Ledger({"b": entry(B)}, {"a": "cut"}, shards=1))
    assert doubtful(seen.task.spec, seen.nodes, seen.ledger, plan(seen)) == {"a"}
    own = entry(A, boot_id="before", finished_at=int(NOW - 300))
    seen = snapshot(task(reboots_node=True, **REBOOT), [node("a", ready_since=NOW - 200)], [], {"a": own})
    assert doubtful(seen.task.spec, seen.nodes, seen.ledger, plan(seen)) == {"a"}


@pytest.mark.parametrize(
    ("before", "pods", "asked"),
    [
        pytest.param({"reason": "Error"}, [], False, id="its Pod had ended"),
        pytest.param({"reason": "BackoffLimitExceeded"}, [], True, id="its Pod lived on and is not seen"),
        pytest.param({"reason": "BackoffLimitExceeded"}, [succeeded(A)], False, id="its Pod is seen"),
        pytest.param({"reason": "RebootLoop"}, [], True, id="it may have lived on before that"),
        pytest.param({"reason": "OutcomeUnknown", "pod_uid": ""}, [], True, id="no Pod told of it"),
        pytest.param(
            {"reason": "OutcomeUnknown", "pod_uid": "", "intent": "i", "finished_at": 1},
            [],
            True,
            id="its Pod was not found, and may be on its way",
        ),
        pytest.param({"result": "Retry", "pod_uid": ""}, [], False, id="nothing of it ran"),
        pytest.param({"result": "Succeeded", "pod_seq": 1}, [], True, id="a Pod told of a broken entry"),
        pytest.param(
            {"reason": "BackoffLimitExceeded", "node_uid": "earlier"},
            [],
            False,
            id="a node that was replaced",
        ),
    ],
)
def test_pods_are_listed_before_a_start_where_one_may_live_that_is_not_seen(
    before: dict[str, Any], pods: list[Pod], asked: bool
) -> None:
    known = entry(A, **{"result": "Failed", "revision": "old", **before})
    of = snapshot(task(), [A], pods, {"a": known})
    made = plan(of)
    assert [start.node_name for start in made.launch.starts] == ["a"]
    assert unlisted(of.pods, of.ledger, made) == ({"a": A.uid} if asked else {})


def test_pods_of_each_node_are_listed_whatever_the_ledger_has_of_another() -> None:
    known = (
        entry(A, "Failed", revision="old", node_uid="earlier"),
        entry(B, "Failed", revision="old", intent="i"),
    )
    of = snapshot(task(), [A, B], [], dict(zip("ab", known, strict=True)))
    assert unlisted(of.pods, of.ledger, plan(of)) == {"b": B.uid}


@pytest.mark.parametrize(
    ("ledger", "asked"),
    [
        pytest.param(Ledger({}), "", id="nodes that have never run"),
        pytest.param(Ledger({}, {"a": "cut"}), "a", id="a broken entry"),
        pytest.param(Ledger({"a": OLD}, shards=1, lost=1), "b", id="a record that is gone"),
        pytest.param(
            Ledger({"a": OLD}, shards=1, lost=1, older=frozenset("a")), "ab", id="a record of an older copy"
        ),
    ],
)
def test_and_before_a_start_where_the_ledger_does_not_have_the_last_run(ledger: Ledger, asked: str) -> None:
    of = snapshot(task(annotations={names.LEDGER_DECISION: "rerun"}), [A, B], [], ledger=ledger)
    made = plan(of)
    assert len(made.launch.starts) == 2
    assert unlisted(of.pods, of.ledger, made) == {name: {"a": A, "b": B}[name].uid for name in asked}


@pytest.mark.parametrize(
    ("ledger", "asked"),
    [
        pytest.param(Ledger({}, {"a": "cut"}, shards=1), "a", id="a broken entry"),
        pytest.param(Ledger({"a": OLD}, shards=1, lost=1), "b", id="a record that is gone"),
    ],
)
def test_and_before_a_record_in_place_of_an_entry_that_nobody_has_read(ledger: Ledger, asked: str) -> None:
    ended = [pod(of, seq=2, phase="Succeeded", node_name=of.name) for of in (A, B)]
    of = snapshot(task(annotations={names.LEDGER_DECISION: "rerun"}), [A, B], ended, ledger=ledger)
    made = plan(of)
    assert set(made.records) == {"a", "b"}
    of = msgspec.structs.replace(of, nodes={})  # they go meanwhile
    assert unlisted(of.pods, of.ledger, made) == {name: {"a": A, "b": B}[name].uid for name in asked}
