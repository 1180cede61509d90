"""spec.drain: which nodes are cordoned, which Pods are evicted, when a run begins and a cordon ends."""

from typing import Any

import msgspec
import pytest

from caretaker.api.daemontask import (
    Budget,
    Drain,
    FailurePolicy,
    ObservedSchedule,
    PodSelector,
    SelectorRequirement,
    Status,
)
from caretaker.api.objects import Node, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.cordon import Cordons, cordoning, is_cordoned_by, mark_of, uncordoning
from caretaker.daemontask.decision import DrainView
from caretaker.daemontask.drain import NodePod, continued, eviction, label_selector, next_wait, step
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.plan import Plan, keep_slots, plan
from caretaker.daemontask.pods import Start, build, revision_of, run_key
from caretaker.daemontask.recheck import doubtful
from caretaker.daemontask.refused_pods import RefusedPods
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.store import Store
from unit.daemontask.build import (
    NOW,
    REVISION,
    UID,
    entry,
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

MARK = f"default/task/{UID}/1970-01-12T13:45:40Z"  # a minute ago
DRAIN: dict[str, Any] = {"drain": Drain(), "parallelism": 1}
ELSEWHERE: Any = {"spec": {"nodeSelector": {"no": "node"}}}
GIVE_BACK = {"drain": Drain(on_failure="Uncordon")}
A = node("a", unschedulable=True, cordon=MARK)
B = node("b")


def run_of(of: Node = A, *, seq: int = 1, attempt: int = 1, nonce: str = "") -> str:
    return f"{run_key(UID, REVISION, of.uid, nonce, '')}/{seq}/{attempt}"


def view(of: Node = A, **changes: Any) -> dict[str, DrainView]:
    seen = DrainView(of.cordon, run_of(of), NOW - 5, NOW - 1, NOW + 4)
    return {of.uid: msgspec.structs.replace(seen, **changes)}


def acts(made: Plan) -> tuple[list[str], list[str], list[str], list[str]]:
    """(cordoned, drained, started, uncordoned)."""
    cordons = [one.node_name for one in made.launch.cordons]
    return cordons, [r.node.name for r in made.drains], started(made), [one.name for one in made.releases]


# ---------------------------------------------------------------- nodes


def test_a_node_that_has_got_its_slot_is_cordoned_before_anything_starts() -> None:
    made = planned(task(**DRAIN), [node("a"), B])
    assert sorted(len(one) for one in acts(made)) == [0, 0, 0, 1]
    assert len(made.launch.cordons) == 1
    assert not made.launch.intents


def test_a_cordoned_node_is_drained_and_holds_its_slot() -> None:
    made = planned(task(**DRAIN), [A, B])
    assert acts(made) == ([], ["a"], [], [])
    assert states(made) == {"pending": 2}, "no look has begun yet"
    assert states(planned(task(**DRAIN), [A, B], drains=view())) == {"active": 1, "pending": 1}


def test_the_run_begins_once_the_node_is_empty() -> None:
    assert acts(planned(task(**DRAIN), [A, B], drains=view(empty=True))) == ([], [], ["a"], [])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mark": "other"}, id="that was empty under another cordon"),
        pytest.param({"run": run_of(seq=7)}, id="that was empty for another Pod"),
        pytest.param({"run": run_of(nonce="x")}, id="that was empty for another run"),
        pytest.param({"run": run_of(attempt=2)}, id="that was empty for another attempt"),
        pytest.param({"looked": NOW - 31}, id="that was empty too long ago"),
        pytest.param({"looked": NOW + 3600}, id="that was empty before the clock was set back"),
    ],
)
def test_a_node_is_looked_at_again(changes: dict[str, Any]) -> None:
    made = planned(task(**DRAIN), [A], drains=view(**{"empty": True, "next": 0.0, **changes}))
    assert acts(made) == ([], ["a"], [], [])


def test_a_node_is_not_looked_at_before_its_time() -> None:
    made = planned(task(**DRAIN), [A], drains=view())
    assert (acts(made), made.wake) == (([], [], [], []), NOW + 4)


def test_a_node_that_somebody_else_cordoned_is_left_alone_whatever_the_template_tolerates() -> None:
    theirs = node("a", unschedulable=True)
    containers = [{"name": "m", "image": "b"}]
    template = {"spec": {"tolerations": [{"operator": "Exists"}], "containers": containers}}
    made = planned(task(template=template, **DRAIN), [theirs])
    assert (acts(made), states(made)) == (([], [], [], []), {"blocked": 1})
    assert made.nodes.blocked[0].decision.reason == "Cordoned"


def test_the_cordon_of_another_task_is_somebody_elses() -> None:
    theirs = node("a", unschedulable=True, cordon="default/other/uid/1970-01-12T13:45:40Z")
    made = planned(task(**DRAIN), [theirs])
    assert (acts(made), states(made)) == (([], [], [], []), {"blocked": 1})


def late(**changes: Any) -> dict[str, DrainView]:
    return view(**{"first": NOW - 601, "looked": NOW - 1, "message": "PDB web", **changes})


def test_an_attempt_fails_when_its_time_is_over_and_says_why() -> None:
    made = planned(task(**DRAIN), [A], drains=late())
    record = made.records["a"]
    assert (record.result, record.reason, record.message) == ("Retry", "DrainTimeout", "PDB web")
    assert (record.attempts, record.failing_since, record.seq) == (1, int(NOW), 0)
    assert not started(made)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"looked": NOW - 2, "next": NOW + 1}, id="before the last look"),
        pytest.param({"fault": "no answer", "next": NOW}, id="while the API server does not answer"),
        pytest.param({"empty": True, "looked": NOW - 40, "next": NOW}, id="once it was empty"),
    ],
)
def test_no_attempt_fails(changes: dict[str, Any]) -> None:
    made = planned(task(**DRAIN), [A], drains=late(**changes))
    assert not made.records
    assert acts(made)[1] == ["a"], "it is looked at, at its deadline at the latest"


def test_the_last_attempt_fails_the_node() -> None:
    made = planned(task(backoff_limit=0, **DRAIN), [A], drains=late())
    assert (made.records["a"].result, states(made)) == ("Failed", {"failed": 1})


def test_before_the_last_attempt_it_is_tried_again() -> None:
    assert planned(task(backoff_limit=1, **DRAIN), [A], drains=late()).records["a"].result == "Retry"


def test_a_new_leader_looks_before_it_gives_up() -> None:
    assert acts(planned(task(**DRAIN), [A])) == ([], ["a"], [], [])


def test_a_retry_and_a_re_run_have_their_own_time_and_forget_what_was_seen() -> None:
    before = entry(A, "Retry", attempts=1, pod_uid="", seq=0, finished_at=int(NOW - 20))
    made = planned(task(**DRAIN), [A], [], {"a": before}, drains=late())
    assert (acts(made), made.records) == (([], ["a"], [], []), {})
    asked = task(annotations={"caretaker.dev/rerun-nodes": '{"a": "1970-01-02T00:00:00Z"}'}, **DRAIN)
    made = planned(asked, [A], [], {"a": entry(A, "Failed")}, drains=late())
    assert (acts(made), made.records) == (([], ["a"], [], []), {})


def test_a_held_task_drains_nothing_counts_nothing_and_is_not_active() -> None:
    kept = entry(A, "Retry", attempts=1, failing_since=int(NOW - 99), finished_at=int(NOW - 99))
    made = planned(task(suspend=True, **DRAIN), [A], [], {"a": kept})
    assert (acts(made), states(made), made.drained) == (([], [], [], []), {"pending": 1}, ())
    made = planned(
        task(suspend=True, **DRAIN), [A], [], {"a": kept}, drains=view(next=NOW, run=run_of(seq=2, attempt=2))
    )
    assert made.nodes.holders[0].decision.reason == "Draining"
    assert (acts(made), made.drained) == (([], [], [], []), ())


def test_no_more_nodes_are_cordoned_while_one_stays_cordoned_after_its_failure() -> None:
    made = planned(task(**DRAIN), [A, B], [], {"a": entry(A, "Failed")})
    assert acts(made) == ([], [], [], [])
    assert made.launch.jammed


def test_a_node_that_has_succeeded_holds_its_slot_until_it_is_uncordoned() -> None:
    made = planned(task(**DRAIN), [A, B], entries={"a": entry(A)})
    assert acts(made) == ([], [], [], ["a"])


def test_a_mark_that_is_left_on_a_node_at_rest_is_removed() -> None:
    left = node("a", cordon=MARK)  # another client has uncordoned it
    assert acts(planned(task(**DRAIN), [left], entries={"a": entry(left)})) == ([], [], [], ["a"])


def test_a_re_run_of_a_node_that_stayed_cordoned_drains_it_again() -> None:
    asked = task(annotations={"caretaker.dev/rerun-nodes": '{"a": "1970-01-02T00:00:00Z"}'}, **DRAIN)
    assert acts(planned(asked, [A, B], [], {"a": entry(A, "Failed")})) == ([], ["a"], [], [])


@pytest.mark.parametrize(
    ("spec", "pods", "entries", "freed"),
    [
        pytest.param({}, [], {"a": entry(A)}, True, id="a success"),
        pytest.param({}, [succeeded(A)], {}, False, id="not before the success is on record"),
        pytest.param(
            {"min_success_seconds": 7200}, [], {"a": entry(A)}, False, id="nor before minSuccessSeconds"
        ),
        pytest.param({}, [pod(A)], {}, False, id="not while the run goes on"),
        pytest.param({"suspend": True}, [pod(A)], {}, False, id="nor of a suspended task"),
        pytest.param({"drain": None}, [pod(A)], {}, False, id="nor of one that dropped drain"),
        pytest.param({"drain": None}, [], {}, True, id="drain was dropped"),
        pytest.param({"suspend": True}, [], {}, True, id="suspended before the run"),
        pytest.param(GIVE_BACK, [], {"a": entry(A, "Failed")}, True, id="Uncordon"),
        pytest.param({}, [], {"a": entry(A, "Failed")}, False, id="KeepCordoned"),
        pytest.param({"suspend": True}, [], {"a": entry(A, "Failed")}, False, id="KeepCordoned, suspended"),
        pytest.param(
            {"suspend": True},
            [],
            {"a": entry(A, "Retry", attempts=1, failing_since=int(NOW - 9))},
            False,
            id="KeepCordoned between two attempts, suspended",
        ),
        pytest.param(
            GIVE_BACK,
            [],
            {"a": entry(A, "Retry", attempts=1, finished_at=int(NOW), failing_since=int(NOW))},
            False,
            id="not between two attempts",
        ),
        pytest.param({"template": ELSEWHERE}, [], {}, True, id="not selected"),
    ],
)
def test_the_end_of_a_cordon(spec: dict[str, Any], pods: list[Pod], entries: Any, freed: bool) -> None:
    made = planned(task(**{**DRAIN, **spec}), [A], pods, entries)
    assert bool(made.releases) is freed


def test_a_node_that_is_not_ready_for_long_is_given_back() -> None:
    gone = node("a", unschedulable=True, cordon=MARK, ready=False, ready_since=NOW - 1799)
    assert not planned(task(**DRAIN), [gone]).releases
    assert planned(task(**DRAIN), [gone], now=NOW + 2).releases


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(node("a", cordon=MARK), id="of a cordon that somebody has ended"),
        pytest.param(
            node("a", unschedulable=True, cordon="default/task/old/1970-01-12T13:45:40Z"),
            id="of an earlier task of the name",
        ),
    ],
)
def test_a_mark_goes_that_no_run_needs(of: Node) -> None:
    assert [one.name for one in planned(task(suspend=True, **DRAIN), [of]).releases] == ["a"]


@pytest.mark.parametrize("text", ["default/other/u/t", "x/task/u/t", "garbage", "/task/u/t", "a/b/c/d/e"])
def test_other_marks_are_left_alone(text: str) -> None:
    assert not planned(task(suspend=True, **DRAIN), [node("a", unschedulable=True, cordon=text)]).releases


def test_a_lost_ledger_changes_no_node() -> None:
    base = snapshot(task(**DRAIN), [A], [], {"a": entry(A)})
    lost = msgspec.structs.replace(base, ledger=msgspec.structs.replace(base.ledger, lost=1))
    assert plan(base).releases
    assert acts(plan(lost)) == ([], [], [], [])


def test_a_refused_uncordon_is_tried_later() -> None:
    refused = RefusedPods()
    refused.add(A.uid, "no", NOW)
    of: Any = {"unreleased": refused.by_node}
    assert not planned(task(**DRAIN), [A], [], {"a": entry(A)}, **of).releases
    assert planned(task(**DRAIN), [A], [], {"a": entry(A)}, now=NOW + 2, **of).releases


def test_at_most_once_an_intent_is_written_for_the_run_and_not_for_the_cordon() -> None:
    of = task(run_guarantee="AtMostOnce", backoff_limit=0, **DRAIN)
    assert not planned(of, [node("a")]).launch.intents
    assert not planned(of, [A]).launch.intents
    assert list(planned(of, [A], drains=view(empty=True)).launch.intents) == ["a"]


def test_at_most_once_a_drain_that_fails_has_run_nothing_and_fails_the_node() -> None:
    made = planned(task(run_guarantee="AtMostOnce", backoff_limit=6, **DRAIN), [A], drains=late())
    assert (made.records["a"].result, made.records["a"].intent) == ("Failed", "")


@pytest.mark.parametrize("views", [{}, view(next=NOW), view(empty=True)])
def test_a_node_that_has_not_begun_is_given_back_while_failures_elsewhere_hold_the_rollout(
    views: dict[str, DrainView],
) -> None:
    bad = node("b")
    of = task(drain=Drain(), parallelism=2, failure_policy=FailurePolicy(0, "Pause"))
    retrying = entry(bad, "Retry", attempts=1, failing_since=int(NOW), finished_at=int(NOW))
    made = planned(of, [A, bad], [], {"b": retrying}, drains=views)
    assert (acts(made), made.rollout.gated) == (([], [], [], ["a"]), True)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"template": {"spec": {"containers": [{"name": "m", "image": "new"}]}}}, id="an edit"),
        pytest.param({"annotations": {"caretaker.dev/rerun-at": "1970-01-12T13:46:00Z"}}, id="a re-run"),
    ],
)
@pytest.mark.parametrize("result", ["Failed", "Retry"])
def test_a_failed_node_stays_cordoned_though_the_held_task_wants_another_run(
    change: dict[str, Any], result: str
) -> None:
    before = entry(A, result, attempts=1, failing_since=int(NOW - 9))
    assert not planned(task(suspend=True, **change, **DRAIN), [A], [], {"a": before}).releases


def test_a_node_without_room_for_the_pod_has_failed_and_the_next_one_waits_for_that() -> None:
    given_up = {"unplaced": frozenset({A.uid}), "deprioritised": {A.uid: NOW - 1}}
    made = planned(task(**DRAIN), [A, B], **given_up)
    assert (made.records["a"].result, made.records["a"].reason) == ("Failed", "NotStarted")
    assert acts(made) == ([], [], [], [])
    earlier = {**given_up, "deprioritised": {A.uid: NOW - 61}}  # before it was cordoned
    assert acts(planned(task(**DRAIN), [A], **earlier)) == ([], ["a"], [], [])


def test_a_node_whose_kubelet_rejects_the_pod_for_long_has_failed() -> None:
    def made(since: float) -> Plan:
        rejected = entry(
            A, "Retry", rejections=9, reason="OutOfcpu", started_at=int(since), finished_at=int(since)
        )
        on = node("a", unschedulable=True, cordon=f"default/task/{UID}/1970-01-12T12:00:00Z")
        return planned(task(**DRAIN), [on, B], [], {"a": rejected})

    assert not made(NOW - 1799).records
    record = made(NOW - 1801).records["a"]
    assert (record.result, record.reason) == ("Failed", "NotStarted")
    assert "OutOfcpu" in record.message


def test_a_drained_node_whose_pod_is_refused_stays_and_no_other_is_cordoned() -> None:
    refused = RefusedPods()
    refused.add(A.uid, "exceeded quota", NOW - 86400)
    for at in (NOW - 86300, NOW):
        made = planned(task(**DRAIN), [A, B], now=at, refused=refused.by_node, drains=view(empty=True))
        assert (acts(made)[0], acts(made)[3], made.records) == ([], [], {})


def test_a_cordon_without_an_answer_holds_its_slot() -> None:
    of: Any = {"cordons": Cordons(unsure={"uid-b": ("b", 7)})}
    made = planned(task(**DRAIN), [node("a"), B, node("c")], **of)
    assert acts(made) == (["b"], [], [], []), "the request is made again, for no other node"
    assert acts(planned(task(**DRAIN), [node("a"), node("b", ready=False)], **of)) == ([], [], [], [])


def test_a_mark_that_no_task_wrote_is_a_cordon_of_somebody_else() -> None:
    odd = node("a", unschedulable=True, cordon=f"default/task/{UID}")
    made = planned(task(**DRAIN), [odd, B])
    assert (acts(made), made.nodes.blocked[0].decision.reason) == ((["b"], [], [], []), "Cordoned")


def test_the_cordon_of_an_earlier_task_stays_while_its_pod_lives() -> None:
    of = node("a", unschedulable=True, cordon="default/task/old/1970-01-12T13:45:40Z")
    old = pod(of, owner_uid="old")
    assert not planned(task(**DRAIN), [of], namesakes={of.uid: old}).releases


# ---------------------------------------------------------------- Pods


def test_the_pod_tolerates_the_cordon_and_the_revision_stays() -> None:
    of, plain = task(**DRAIN), task()
    start = Start("a", "uid-a", 1, 1, "key", "", "boot", "NewNode")
    mine = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert mine in build(of.metadata, of.spec, "r", start)["spec"]["tolerations"]
    assert mine not in build(plain.metadata, plain.spec, "r", start)["spec"]["tolerations"]
    assert revision_of(of.spec) == revision_of(plain.spec)


def there(
    name: str = "p", owner: str = "ReplicaSet", *, phase: str = "Running", uid: str = "o", **more: Any
) -> NodePod:
    owners = [{"kind": owner, "uid": uid, "controller": True}] if owner else []
    meta = {"name": name, "namespace": "n", "uid": f"uid-{name}", "ownerReferences": owners}
    body = {"metadata": {**meta, **more.pop("metadata", {})}, "spec": more, "status": {"phase": phase}}
    return msgspec.convert(body, NodePod)


EMPTY_DIR = {"volumes": [{"name": "v", "emptyDir": {}}]}


@pytest.mark.parametrize(
    ("found", "drain", "wanted"),
    [
        pytest.param(there(), Drain(), "evict", id="of a controller"),
        pytest.param(there(phase="Pending"), Drain(), "evict", id="that waits for its image"),
        pytest.param(there(owner="DaemonSet"), Drain(), "stays", id="of a DaemonSet"),
        pytest.param(there(owner="", phase="Succeeded"), Drain(), "stays", id="that has succeeded"),
        pytest.param(there(phase="Failed", **EMPTY_DIR), Drain(), "stays", id="that has failed"),
        pytest.param(there(owner="DaemonTask", uid=UID), Drain(), "stays", id="of the task itself"),
        pytest.param(there(owner="DaemonTask"), Drain(), "ending", id="of another task"),
        pytest.param(
            there(owner="Node", metadata={"annotations": {"kubernetes.io/config.mirror": "h"}}),
            Drain(),
            "stays",
            id="a mirror",
        ),
        pytest.param(
            there(owner="", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            Drain(),
            "ending",
            id="ending",
        ),
        pytest.param(there(owner=""), Drain(), "force", id="of no controller"),
        pytest.param(there(owner=""), Drain(force=True), "evict", id="of no controller, by force"),
        pytest.param(there(**EMPTY_DIR), Drain(), "deleteEmptyDirData", id="with an emptyDir"),
        pytest.param(
            there(**EMPTY_DIR), Drain(delete_empty_dir_data=True), "evict", id="with one that may go"
        ),
    ],
)
def test_a_pod(found: NodePod, drain: Drain, wanted: str) -> None:
    made = step([found], drain, UID)
    is_blocked = wanted in ("force", "deleteEmptyDirData")
    assert (bool(made.evict), bool(made.ending)) == (wanted == "evict", wanted == "ending")
    assert (wanted in made.blocked and "n/p" in made.blocked) is is_blocked
    assert made.empty is (wanted == "stays")


def test_a_pod_that_tolerates_the_cordon_goes_once() -> None:
    back = there("back", tolerations=[{"operator": "Exists"}])
    assert step([back], Drain(), UID).evict == (back,)
    assert step([back], Drain(), UID, known={"uid-back"}).evict == (back,)
    assert step([back], Drain(), UID, known=()).empty, "it came after the first look"
    assert step([there("web")], Drain(), UID, known=()).evict, "one that cannot come back is evicted whenever"


def test_the_operators_own_pods_stay() -> None:
    own = there("caretaker", metadata={"labels": {"app.kubernetes.io/name": "caretaker"}}, **EMPTY_DIR)
    assert step([own], Drain(), UID, operator="n").empty
    assert not step([own], Drain(), UID, operator="elsewhere").empty
    assert not step([there()], Drain(), UID, operator="n").empty


def test_one_that_may_not_go_keeps_the_others() -> None:
    made = step([there("a"), there("b", owner="")], Drain(), UID)
    assert (made.evict, made.empty) == ((), False)


def test_an_eviction_is_of_this_very_pod_with_its_own_grace_period_unless_asked() -> None:
    assert eviction(there(), Drain())["deleteOptions"] == {"preconditions": {"uid": "uid-p"}}
    options = eviction(there(), Drain(grace_period_seconds=5))["deleteOptions"]
    assert options == {"preconditions": {"uid": "uid-p"}, "gracePeriodSeconds": 5}


def test_the_selector_as_a_parameter() -> None:
    terms = (
        SelectorRequirement("a", "In", ("x", "y")),
        SelectorRequirement("b", "NotIn", ("z",)),
        SelectorRequirement("c", "Exists"),
        SelectorRequirement("d", "DoesNotExist"),
    )
    assert label_selector(PodSelector({"k": "v"}, terms)) == "k=v,a in (x,y),b notin (z),c,!d"
    assert label_selector(None) == label_selector(PodSelector()) == ""


def test_looks_become_rarer_while_nothing_moves() -> None:
    waits, of = list[float](), view()[A.uid]
    for _ in range(8):
        wait = next_wait(of, moved=False)
        of = msgspec.structs.replace(of, looked=of.next, next=of.next + wait)
        waits.append(wait)
    assert waits == sorted(waits)
    assert waits[-1] == 30.0
    assert next_wait(of, moved=True) == next_wait(None, moved=False) == 5.0


# ---------------------------------------------------------------- the mark


def test_the_patches() -> None:
    plain = node("a", taints=(taint("x"),))
    body = cordoning(plain, 7, task().metadata, NOW - 60)
    assert body["metadata"] == {
        "uid": "uid-a",
        "resourceVersion": "7",
        "annotations": {"caretaker.dev/cordoned-by": MARK},
    }
    assert body["spec"] == {"unschedulable": True}
    back = uncordoning(A, 8)
    assert (back["spec"], back["metadata"]["annotations"]) == (
        {"unschedulable": None},
        {"caretaker.dev/cordoned-by": None},
    )
    assert "spec" not in uncordoning(node("a", cordon=MARK), 8), "a cordon that has ended is not touched"


def test_a_mark_can_be_read_again() -> None:
    found = mark_of(A)
    assert found is not None
    assert (found.namespace, found.name, found.uid, found.time) == ("default", "task", UID, NOW - 60)
    assert is_cordoned_by(A, UID)
    assert not is_cordoned_by(A, "other")
    assert not is_cordoned_by(node("a", cordon=MARK), UID)


# ---------------------------------------------------------------- records and slots


def test_the_record_of_a_drain_that_failed_keeps_what_was_counted_before() -> None:
    before = entry(
        A,
        "Retry",
        seq=3,
        attempts=1,
        disruptions=2,
        finished_at=int(NOW - 900),
        failing_since=int(NOW - 950),
        reboot_runs=(7,),
    )
    views = late(run=run_of(seq=4, attempt=4))
    record = planned(task(**DRAIN), [A], [], {"a": before}, drains=views).records["a"]
    assert (record.seq, record.attempts, record.disruptions) == (3, 2, 2)
    assert (record.failing_since, record.reboot_runs) == (int(NOW - 950), (7,))


def test_the_record_is_of_the_re_run_that_was_asked_for() -> None:
    asked = task(annotations={"caretaker.dev/rerun-nodes": '{"a": "1970-01-02T00:00:00Z"}'}, **DRAIN)
    before = {"a": entry(A, "Failed", attempts=7)}
    (first,) = planned(asked, [A], [], before).drains
    nonce, views = first.decision.nonce, late(run=first.decision.drain)
    record = planned(asked, [A], [], before, drains=views).records["a"]
    assert (bool(nonce), record.nonce, record.attempts) == (True, nonce, 1)
    assert record.run_key == run_key(UID, REVISION, A.uid, nonce, "")


def test_the_cordon_stays_while_a_run_may_still_begin() -> None:
    spec = {**DRAIN, **GIVE_BACK, "run_guarantee": "AtMostOnce", "backoff_limit": 0}
    of = task(suspend=True, **spec)
    expected = entry(A, "Failed", intent="token", started_at=int(NOW - 1), finished_at=0)
    assert not planned(of, [A], [], {"a": expected}).releases


def test_a_node_that_waits_for_the_first_tick_is_given_back() -> None:
    assert planned(task(schedule="@yearly", **DRAIN), [A]).releases


def test_slots_that_a_refused_delete_keeps_are_not_cordoned() -> None:
    old = pod(B, deletion="", node_name="", revision="old")
    made = planned(task(**{**DRAIN, "parallelism": 2}), [node("a")])
    held = msgspec.structs.replace(made, freed_slots=(old,))
    assert made.launch.cordons
    assert not keep_slots(held, gone=()).launch.cordons


def test_cordoned_nodes_go_on_with_their_own_slots_where_a_budget_leaves_fewer() -> None:
    other = node("b", unschedulable=True, cordon=MARK)
    made = planned(task(**DRAIN), [A, other])
    assert len(acts(made)[1]) == 1, "of two that were cordoned one at a time goes on"


def test_what_a_run_on_a_cordoned_node_rests_on_is_read_again() -> None:
    base = snapshot(task(**DRAIN), [A], drains=view(empty=True))
    assert doubtful(base.task.spec, base.nodes, base.ledger, plan(base)) == {"a"}


def test_of_a_rollout_that_is_finished_a_cordoned_node_goes_first() -> None:
    ended = f"{REVISION}/-/-"
    bad, news = [node(name) for name in "bc"], [node(name) for name in "defghij"]
    of = task(
        drain=Drain(),
        parallelism=5,
        failure_policy=FailurePolicy(1, "Pause"),
        status=Status(finished_rollout=ended),
    )
    entries = {one.name: entry(one, "Failed", failing_since=int(NOW - 9)) for one in bad}
    made = planned(of, [*bad, *news, A], [], entries)
    assert made.rollout.probing
    assert acts(made) == ([], ["a"], [], [])


# ---------------------------------------------------------------- fewer slots


def cordoned(count: int) -> list[Node]:
    """The first was cordoned first."""
    times = [f"1970-01-12T13:{number:02}:40Z" for number in range(count)]
    names = "zyxwvu"[:count]
    return [
        node(name, unschedulable=True, cordon=f"default/task/{UID}/{time}")
        for name, time in zip(names, times, strict=True)
    ]


def views_of(nodes: list[Node]) -> dict[str, DrainView]:
    return {of.uid: view(of)[of.uid] for of in nodes}


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"parallelism": 1}, id="parallelism was lowered"),
        pytest.param({"parallelism": 4, "budgets": (Budget(nodes=1),)}, id="a budget allows fewer"),
    ],
)
@pytest.mark.parametrize("seen", [True, False])
def test_cordoned_nodes_beyond_the_slots_are_given_back_the_last_ones_first(
    limit: dict[str, Any], seen: bool
) -> None:
    nodes = cordoned(4)
    of = task(drain=Drain(), **limit)
    made = planned(of, nodes, drains=views_of(nodes) if seen else {}, now=NOW + 5)
    kept = {"z"} if seen else set(acts(made)[1])
    assert len(kept) == 1, "one goes on"
    assert set(acts(made)[1]) == kept
    assert set(acts(made)[3]) == {"z", "y", "x", "w"} - kept


def test_a_run_that_goes_on_keeps_its_node_and_no_other_is_drained_beside_it() -> None:
    nodes = cordoned(3)
    made = planned(task(**DRAIN), nodes, [pod(nodes[2])], drains=views_of(nodes[:2]), now=NOW + 5)
    assert (acts(made)[1], sorted(acts(made)[3])) == ([], ["y", "z"])


def test_nodes_that_have_failed_an_attempt_stay_cordoned_and_one_at_a_time_is_drained() -> None:
    nodes = cordoned(3)
    failed_once = {
        of.name: entry(of, "Retry", attempts=1, seq=0, failing_since=int(NOW - 99), finished_at=int(NOW - 99))
        for of in nodes
    }
    views = {of.uid: view(of, run=run_of(of, attempt=2))[of.uid] for of in nodes}
    made = planned(task(**DRAIN), nodes, [], failed_once, drains=views, now=NOW + 5)
    assert (len(acts(made)[1]), acts(made)[3]) == (1, [])
    assert len(made.drained) == 1, "the others begin anew when they have a slot"


@pytest.mark.parametrize(("ago", "given_back"), [(1799, []), (1801, ["a"])])
def test_a_node_with_a_taint_keeps_its_cordon_for_the_progress_deadline(
    ago: int, given_back: list[str]
) -> None:
    """Its run has failed. For longer it would keep the slot from the others."""
    tainted = msgspec.structs.replace(A, taints=(taint("example.com/broken"),))
    failed_once = {"a": entry(A, "Retry", attempts=1, finished_at=int(NOW - ago))}
    spec = {**DRAIN, "drain": Drain(on_failure="Uncordon")}
    made = planned(task(**spec), [tainted, node("b")], [], failed_once)
    assert [of.name for of in made.releases] == given_back


def test_a_node_that_broke_after_its_success_and_rebooted_stays_cordoned() -> None:
    """onFailure: KeepCordoned. Only a success shows that the node is whole."""
    broken = msgspec.structs.replace(A, ready=False, ready_since=NOW - 9000, boot_id="another")
    done = {"a": entry(A, finished_at=int(NOW - 9100), failing_since=int(NOW - 9000))}
    of = task(**DRAIN, rerun_on=("NodeReboot",), min_success_seconds=300)
    assert planned(of, [broken, node("b")], [], done).releases == ()


def test_a_node_that_its_run_has_halted_is_given_back_after_the_progress_deadline() -> None:
    """No attempt has failed there: the Pod was disrupted."""
    halted = msgspec.structs.replace(A, ready=False, ready_since=NOW - 1900)
    disrupted = {"a": entry(A, "Retry", disruptions=1, finished_at=int(NOW - 1950))}
    made = planned(task(**DRAIN), [halted, node("b")], [], disrupted)
    assert [of.name for of in made.releases] == ["a"]


# ---------------------------------------------------------------- the clock over ticks


def scheduled(schedule: str, last: float) -> Status:
    observed = ObservedSchedule(schedule, "Etc/UTC", "1970-01-12T00:00:00Z")
    return Status(last_schedule_time=format_time(last), observed_schedule=observed)


def test_a_drain_that_cannot_end_fails_though_each_tick_wants_another_run() -> None:
    """A tick each 5 min, 10 min for a drain, a PodDisruptionBudget that never gives."""
    views, entries, results = dict[str, DrainView](), {}, list[str]()
    for second in range(0, 2 * 3600, 10):
        now = NOW + second
        tick = int(now - now % 300)
        status = scheduled("*/5 * * * *", tick)
        of = task(schedule="*/5 * * * *", backoff_limit=2, status=status, **DRAIN)
        found = snapshot(of, [A], [], dict(entries), now=now, drains=dict(views))
        made = plan(found)
        kept = {report.node.uid for report in made.drained}
        views = {uid: seen for uid, seen in views.items() if uid in kept}
        for name, record in made.records.items():
            entries[name] = record
            results.append(f"{record.result} {record.reason}")
        for report in made.drains:
            before = continued(views, report, now)
            first = before.first if before is not None else now
            run = report.decision.drain
            views[A.uid] = DrainView(A.cordon, run, first, now, now + 30, message="PDB")
    assert results[:3] == ["Retry DrainTimeout", "Retry DrainTimeout", "Failed DrainTimeout"]


def test_a_drain_goes_on_over_another_run_and_not_over_a_break_or_an_end() -> None:
    (report,) = planned(task(**DRAIN), [A]).drains
    seen = view(run="of another tick")
    assert continued(seen, report, NOW) == seen[A.uid]
    assert continued(view(run="other", mark="other"), report, NOW) is None
    assert continued(view(run="other", empty=True), report, NOW) is None, "it was drained"
    assert continued(seen, report, NOW + 600) is None, "nobody looked for long"
    assert continued(seen, report, NOW - 600) is None, "the clock was set back"
    ended = msgspec.structs.replace(report, entry=entry(A, "Retry", attempts=1, finished_at=int(NOW)))
    assert continued(seen, ended, NOW) is None


def test_a_new_tick_keeps_what_was_seen() -> None:
    of = task(schedule="* * * * *", status=scheduled("* * * * *", NOW - 100), **DRAIN)
    made = planned(of, [A], drains=view())
    assert made.tick.taken
    assert [report.node.name for report in made.drained] == ["a"]


# ---------------------------------------------------------------- drained in vain


def in_vain(**changes: Any) -> Any:
    of = entry(B, "Failed", reason="NotStarted", attempts=1, finished_at=int(NOW - 60))
    return {"b": msgspec.structs.replace(of, **changes)}


@pytest.mark.parametrize(
    ("spec", "entries", "begins"),
    [
        pytest.param(GIVE_BACK, in_vain(), False, id="no further node"),
        pytest.param(GIVE_BACK, in_vain(revision="old"), True, id="until the template is edited"),
        pytest.param(GIVE_BACK, in_vain(node_uid="old"), True, id="or that node is replaced"),
        pytest.param(
            {**GIVE_BACK, "annotations": {"caretaker.dev/rerun-nodes": '{"b": "1970-01-12T13:46:35Z"}'}},
            in_vain(),
            True,
            id="or it is run again",
        ),
        pytest.param(
            {**GIVE_BACK, "annotations": {"caretaker.dev/rerun-nodes": '{"a": "1970-01-12T13:46:35Z"}'}},
            in_vain(),
            True,
            id="or this one is asked for since",
        ),
        pytest.param(
            {**GIVE_BACK, "annotations": {"caretaker.dev/rerun-nodes": '{"a": "1970-01-12T13:00:00Z"}'}},
            in_vain(),
            False,
            id="not if it was asked for before",
        ),
        pytest.param(
            {**GIVE_BACK, "annotations": {"caretaker.dev/resume-at": "1970-01-12T13:46:35Z"}},
            in_vain(),
            True,
            id="or the task is resumed",
        ),
        pytest.param({}, in_vain(), True, id="KeepCordoned: a person has uncordoned that node"),
        pytest.param(GIVE_BACK, in_vain(reason="DrainTimeout"), True, id="other failures"),
    ],
)
def test_after_a_node_was_drained_in_vain_no_further_one_is_cordoned(
    spec: dict[str, Any], entries: Any, begins: bool
) -> None:
    of = snapshot(task(**{**DRAIN, **spec}), [node("a"), B], [], entries)
    made = plan(of)
    assert bool(acts(made)[0]) is begins
    shown = {one.type: one for one in status_of(of, made, Outcome()).conditions}
    assert ("node b was drained in vain" in shown["Ready"].message) is not begins
    assert ("node b was drained in vain" in shown["Progressing"].message) is not begins
    assert ("Stalled" in shown) is not begins
    assert bool(forecast(of).turns) is begins


def test_a_node_that_is_cordoned_already_goes_on_after_another_was_drained_in_vain() -> None:
    made = planned(task(**{**DRAIN, **GIVE_BACK}), [A, B], [], in_vain())
    assert acts(made) == ([], ["a"], [], [])


# ---------------------------------------------------------------- rights, drain dropped, cordons of people


def test_nodes_are_given_back_where_a_right_to_drain_is_missing() -> None:
    denied: Any = {"cordons": Cordons(denied=True)}
    assert acts(planned(task(**DRAIN), [A], drains=view(fault="no right"), **denied))[3] == ["a"]
    kept = {"a": entry(A, "Failed")}
    assert acts(planned(task(**DRAIN), [A], [], kept, **denied))[3] == [], "KeepCordoned"


def test_a_task_that_drops_drain_uncordons_before_it_runs_whatever_it_tolerates() -> None:
    containers = [{"name": "m", "image": "b"}]
    template = {"spec": {"tolerations": [{"operator": "Exists"}], "containers": containers}}
    made = planned(task(template=template, parallelism=1), [A])
    assert acts(made) == ([], [], [], ["a"])
    assert started(planned(task(template=template, parallelism=1), [node("a")])) == ["a"]


def test_a_cordon_after_the_end_of_ours_is_a_persons() -> None:
    nodes = Store[Node]()
    handlers = WatchHandlers(nodes, Store[Pod](), lambda *_, **__: None)
    nodes.observe_write(A, 1)
    assert is_cordoned_by(handlers.nodes["a"], UID)
    nodes.observe_write(node("a", cordon=MARK), 2)  # kubectl uncordon; the mark cannot be removed
    nodes.observe_write(A, 3)  # kubectl cordon
    theirs = handlers.nodes["a"]
    assert not is_cordoned_by(theirs, UID)
    made = planned(task(**DRAIN), [theirs])
    assert (states(made), acts(made)[3]) == ({"blocked": 1}, ["a"]), "the mark alone is removed"
    again = node("a", unschedulable=True, cordon=f"default/task/{UID}/1970-01-12T13:46:00Z")
    nodes.observe_write(again, 4)
    assert is_cordoned_by(handlers.nodes["a"], UID), "another cordon of the task"
