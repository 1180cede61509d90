"""spec.dependsOn: when a node waits for another task, and when the other task is done there."""

from typing import Any

import pytest
from msgspec.structs import replace

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import Budget, DependsOn, Drain, ObservedSchedule, Status
from caretaker.api.objects import Node, Pod
from caretaker.api.times import format_time
from caretaker.daemontask.decision import DrainView
from caretaker.daemontask.dependencies import (
    Dependencies,
    Dependency,
    Progress,
    circle_of,
    identity_of,
    names_of,
    on_ecs,
)
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.plan import Plan
from unit.daemontask.build import (
    NOW,
    TEMPLATE,
    UID,
    entry,
    failed,
    node,
    planned,
    pod,
    progress,
    snapshot,
    started,
    states,
    succeeded,
    taint,
    task,
)
from unit.daemontask.states import status

A, B, C = node("a"), node("b"), node("c")
SELECTS_NONE = EligibilityRules({"spec": {"nodeSelector": {"pool": "x"}}})
AGAIN: dict[str, Any] = {"attempts": 1, "finished_at": int(NOW - 3600)}
# A node that the task has cordoned.
MINE = node("a", cordon=f"default/task/{UID}/2000-01-01T00:00:00Z", unschedulable=True)
REBOOTED = node("a", boot_id="boot-2")


def waiting(
    of: Progress | None, *, name: str = "first", missing: bool = False, **more: Any
) -> dict[str, Any]:
    return {"dependencies": Dependencies((Dependency(name, of, missing),), **more)}


def why(made: Plan) -> dict[str, int]:
    return dict(made.nodes.ordered)


# ---------------------------------------------------------------- a node of the task that waits


@pytest.mark.parametrize(
    ("dependency", "words"),
    [
        pytest.param(Dependency("first", progress(done=[A])), "", id="it has succeeded"),
        pytest.param(Dependency("first", progress(waiting=[A])), "first", id="it is not done"),
        pytest.param(
            Dependency("first", progress(failed=[A])), "first, which failed there", id="it has failed there"
        ),
        pytest.param(Dependency("first", progress(rules=SELECTS_NONE)), "", id="it leaves the node out"),
        pytest.param(
            Dependency("first", progress(rules=SELECTS_NONE, waiting=[A])),
            "first",
            id="it leaves the node out now, and its last pass has not",
        ),
        pytest.param(
            Dependency("first", progress(rules=SELECTS_NONE, failed=[A])),
            "first, which failed there",
            id="it has a failure of the node on record",
        ),
        pytest.param(Dependency("first", progress()), "first", id="its pass has not seen the node"),
        pytest.param(
            Dependency("first", missing=True), "first, which is not in this namespace", id="it is missing"
        ),
        pytest.param(
            Dependency("first"), "first, which the operator has not read yet", id="no pass was made"
        ),
        pytest.param(
            Dependency("first", progress(done=[A], fault=Reason.INVALID_SPEC)),
            "first, whose spec is not valid",
            id="its spec is invalid",
        ),
        pytest.param(
            Dependency("first", progress(done=[A], fault=Reason.LEDGER_LOST)),
            "first, whose ledger has lost records",
            id="its ledger is lost",
        ),
        pytest.param(
            Dependency("first", on_ecs(task().metadata)),
            "first, which has spec.ecs and runs on no node",
            id="it has no nodes",
        ),
        pytest.param(
            Dependency("first", progress(done=[A], until=NOW)), "first", id="its next tick is due, not taken"
        ),
        pytest.param(
            Dependency("first", progress(done=[A], until=NOW + 1)), "", id="its next tick is still to come"
        ),
        pytest.param(
            Dependency("first", progress(done={}, until=NOW - 1, rules=SELECTS_NONE)),
            "first",
            id="a tick is due, which may be of other rules",
        ),
    ],
)
def test_a_node_waits_until_the_other_task_is_done_there(dependency: Dependency, words: str) -> None:
    made = planned(task(), [A], dependencies=Dependencies((dependency,)))
    assert started(made) == ([] if words else ["a"])
    assert why(made) == ({f"DaemonTask {words}": 1} if words else {})
    assert states(made) == {"pending": 1}
    assert made.launch.queued == 0


def test_a_success_of_an_earlier_boot_does_not_count_where_the_other_task_runs_after_each_boot() -> None:
    of = {**waiting(progress(done=[A])), "entries": {"a": entry(A)}}
    spec = {"rerun_on": ("TemplateChange", "NodeReboot")}
    assert started(planned(task(**spec), [REBOOTED], **of)) == ["a"]
    of |= waiting(replace(progress(), done={A.uid: A.boot_id}))
    assert started(planned(task(**spec), [REBOOTED], **of)) == []


def test_a_node_that_its_pass_has_not_seen_and_that_is_blocked_for_it_is_not_done() -> None:
    assert Dependency("first", progress()).at(node("a", unschedulable=True), NOW) == "waits"


def test_the_other_nodes_go_on() -> None:
    made = planned(task(parallelism=1), [A, B, C], **waiting(progress(waiting=[A, B], done=[C])))
    assert started(made) == ["c"]
    assert made.launch.budget is None


def test_every_dependency_counts_and_a_failure_is_named_first() -> None:
    each = (
        Dependency("one", progress(done=[A], waiting=[B, C])),
        Dependency("two", progress(done=[A, B], failed=[C])),
    )
    made = planned(task(), [A, B, C], dependencies=Dependencies(each))
    assert started(made) == ["a"]
    assert why(made) == {"DaemonTask one": 1, "DaemonTask two, which failed there": 1}


@pytest.mark.parametrize(
    ("seen", "spec", "pods", "entries", "starts"),
    [
        pytest.param(A, {}, [], {"a": entry(A, "Retry", **AGAIN)}, ["a"], id="a retry does not wait"),
        pytest.param(
            A,
            {},
            [],
            {"a": entry(A, "Retry", disruptions=1, finished_at=int(NOW - 3600))},
            ["a"],
            id="nor one after a disruption",
        ),
        pytest.param(
            A,
            {},
            [],
            {"a": entry(A, "Retry", rejections=1, finished_at=int(NOW - 3600))},
            [],
            id="a run that the kubelet has rejected has not begun",
        ),
        pytest.param(
            A,
            {},
            [],
            {"a": entry(A, "Retry", revision="old", **AGAIN)},
            [],
            id="a run of another template waits",
        ),
        pytest.param(
            A,
            {"rerun_on": ()},
            [],
            {"a": entry(A, "Retry", revision="old", **AGAIN)},
            [],
            id="a retry that is the first run of its template waits",
        ),
        pytest.param(
            REBOOTED,
            {"rerun_on": ("TemplateChange", "NodeReboot")},
            [],
            {"a": entry(A, "Retry", **AGAIN)},
            [],
            id="a run that a reboot asks for waits",
        ),
        pytest.param(A, {}, [], {"a": entry(A, revision="old")}, [], id="a new template waits"),
        pytest.param(A, {}, [], {"a": entry(A)}, [], id="a success stays one"),
        pytest.param(A, {}, [pod(A)], {}, [], id="a Pod that runs is left alone"),
    ],
)
def test_what_waits(
    seen: Node, spec: dict[str, Any], pods: list[Pod], entries: dict[str, Entry], starts: list[str]
) -> None:
    made = planned(task(**spec), [seen], pods, entries, **waiting(progress(waiting=[A])))
    assert started(made) == starts
    assert made.deletes == ()


def test_a_node_that_failed_and_waits_for_the_run_of_a_reboot_keeps_its_slot() -> None:
    spec: dict[str, Any] = {"rerun_on": ("TemplateChange", "NodeReboot"), "parallelism": 1}
    entries = {"a": entry(A, "Retry", **AGAIN)}
    made = planned(task(**spec), [REBOOTED, B], [], entries, **waiting(progress(waiting=[A], done=[B])))
    assert started(made) == []
    assert [report.node.name for report in made.nodes.holders] == ["a"]


@pytest.mark.parametrize(
    ("ago", "first", "mark", "stuck"),
    [
        pytest.param(1799, progress(failed=[A], done=[B]), "", False, id="not for long"),
        pytest.param(1800, progress(failed=[A], done=[B]), "", True, id="it failed there"),
        pytest.param(1800, progress(waiting=[A], done=[B]), "", False, id="it may be about to run there"),
        pytest.param(
            1800, progress(waiting=[A], done=[B]), MINE.cordon, True, id="a cordon keeps it from there"
        ),
    ],
)
def test_a_node_that_waits_with_the_only_slot_is_stuck_where_a_person_has_to_act(
    ago: int, first: Progress, mark: str, stuck: bool
) -> None:
    """Its wait begins with the reboot, which may be long after the end of its last run."""
    spec: dict[str, Any] = {"rerun_on": ("TemplateChange", "NodeReboot"), "parallelism": 1}
    drain = Drain(on_failure="KeepCordoned") if mark else None
    entries = {"a": entry(A, "Retry", attempts=1, finished_at=int(NOW - ago))}
    seen = [replace(REBOOTED, cordon=mark, unschedulable=bool(mark)), B]
    made = planned(task(**spec, drain=drain), seen, [], entries, **waiting(first))
    assert bool(made.launch.jammed) is stuck


def test_a_node_that_waits_with_its_slot_leaves_another_one_its_retry() -> None:
    spec: dict[str, Any] = {"rerun_on": ("TemplateChange", "NodeReboot"), "parallelism": 1}
    entries = {"a": entry(A, "Retry", **AGAIN), "b": entry(B, "Retry", **AGAIN)}
    made = planned(task(**spec), [REBOOTED, B], [], entries, **waiting(progress(waiting=[A], done=[B])))
    assert started(made) == ["b"]


def test_an_active_pod_makes_way_only_for_a_run_that_may_start() -> None:
    of = task(concurrency_policy="Replace")
    old = pod(A, revision="old")
    assert planned(of, [A], [old], **waiting(progress(waiting=[A]))).launch.replaced == ()
    assert planned(of, [A], [old], **waiting(progress(done=[A]))).launch.replaced == (old,)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"annotations": {names.RERUN_AT: "2026-01-01T00:00:00Z"}}, id="asked again"),
        pytest.param(
            {"schedule": "0 3 * * *", "status": Status(last_schedule_time=format_time(NOW - 60))}, id="a tick"
        ),
    ],
)
def test_another_attempt_makes_way_only_for_a_run_that_may_start(spec: dict[str, Any]) -> None:
    of, entries = task(concurrency_policy="Replace", **spec), {"a": entry(A, "Retry", **AGAIN)}
    again = pod(A, 2)
    assert planned(of, [A], [again], entries, **waiting(progress(waiting=[A]))).launch.replaced == ()
    assert planned(of, [A], [again], entries, **waiting(progress(done=[A]))).launch.replaced == (again,)


def test_no_node_is_cordoned_before_its_run_may_start() -> None:
    of = task(drain=Drain(), parallelism=1)
    assert planned(of, [A], **waiting(progress(waiting=[A]))).launch.cordons == ()
    assert len(planned(of, [A], **waiting(progress(done=[A]))).launch.cordons) == 1


def test_a_cordoned_node_is_given_back_where_its_run_has_to_wait() -> None:
    of = task(drain=Drain(), parallelism=1)
    assert planned(of, [MINE], **waiting(progress(done=[A]))).releases == ()
    made = planned(of, [MINE], **waiting(progress(waiting=[A])))
    assert made.releases == (MINE,)
    assert made.drains == ()
    # One whose run has begun is drained again for its retry.
    again = {"a": entry(A, "Retry", **AGAIN)}
    assert planned(of, [MINE], [], again, **waiting(progress(waiting=[A]))).releases == ()


def test_a_drain_under_way_ends_where_the_run_has_to_wait() -> None:
    of = task(drain=Drain(), parallelism=1)
    (report,) = planned(of, [MINE], **waiting(progress(done=[A]))).launch.drains
    view = DrainView(MINE.cordon, report.decision.drain, NOW - 9, NOW - 1, NOW + 5, message="Pod x stays")
    drains = {A.uid: view}
    assert states(planned(of, [MINE], drains=drains, **waiting(progress(done=[A])))) == {"active": 1}
    made = planned(of, [MINE], drains=drains, **waiting(progress(waiting=[A])))
    assert states(made) == {"pending": 1}
    assert made.releases == (MINE,)
    assert [one.decision.drain for one in made.nodes.marked] == [""]


def test_a_drain_for_another_run_than_the_one_that_failed_ends_where_it_has_to_wait() -> None:
    of = task(
        drain=Drain(on_failure="Uncordon"),
        parallelism=1,
        annotations={names.RERUN_AT: "2026-01-01T00:00:00Z"},
    )
    entries = {"a": entry(A, "Retry", **AGAIN)}
    (report,) = planned(of, [MINE], [], entries, **waiting(progress(done=[A]))).launch.drains
    view = DrainView(MINE.cordon, report.decision.drain, NOW - 9, NOW - 1, NOW + 5, message="Pod x stays")
    seen: dict[str, Any] = {"drains": {A.uid: view}, "entries": entries}
    assert planned(of, [MINE], **seen, **waiting(progress(done=[A]))).releases == ()
    assert planned(of, [MINE], **seen, **waiting(progress(waiting=[A]))).releases == (MINE,)


def test_a_node_that_has_to_stay_cordoned_stays_so() -> None:
    of, entries = task(drain=Drain(), parallelism=1), {"a": entry(A, "Failed", revision="old")}
    assert planned(of, [MINE], [], entries, **waiting(progress(waiting=[A]))).releases == ()


def test_a_waiting_node_is_not_held_by_a_budget() -> None:
    made = planned(task(budgets=(Budget(0),)), [A], **waiting(progress(waiting=[A])))
    assert made.launch.budget is None
    assert why(made) == {"DaemonTask first": 1}


def test_the_first_tick_comes_first() -> None:
    made = planned(task(schedule="0 3 * * *"), [A], **waiting(progress(waiting=[A])))
    assert made.nodes.awaiting == 1
    assert why(made) == {}


def test_a_circle_holds_all_but_the_end_of_runs() -> None:
    of = waiting(progress(done=[A, B]), circle=("task", "first", "task"))
    made = planned(task(), [A, B], [succeeded(B)], {}, **of)
    assert started(made) == []
    assert made.hold == "DependencyCycle"
    assert made.records.keys() == {"b"}


@pytest.mark.parametrize(
    ("dependency", "expected"),
    [
        (Dependency("first", progress(waiting=[A])), "True"),
        (Dependency("first"), "True"),
        (Dependency("first", missing=True), "False"),
        (Dependency("first", progress(failed=[A])), "False"),
        (Dependency("first", progress(fault=Reason.INVALID_SPEC)), "False"),
    ],
)
def test_progressing_is_false_where_a_person_has_to_act(dependency: Dependency, expected: str) -> None:
    found = status(snapshot(task(), [A], dependencies=Dependencies((dependency,))))
    moving = c.find(found.conditions, c.PROGRESSING)
    assert moving is not None
    assert (moving.status, moving.reason) == (expected, "AwaitingDependency")


def test_one_node_that_waits_for_a_task_that_goes_on_is_enough_to_progress() -> None:
    found = status(snapshot(task(), [A, B], **waiting(progress(waiting=[A], failed=[B]))))
    moving = c.find(found.conditions, c.PROGRESSING)
    assert moving is not None
    assert moving.status == "True"


def test_a_pod_that_cannot_start_is_reported_though_others_wait() -> None:
    stuck = pod(A, phase="Pending", waiting="ErrImagePull")
    of = snapshot(
        task(progress_deadline_seconds=30), [A, B], [stuck], **waiting(progress(done=[A], waiting=[B]))
    )
    found = c.find(status(of).conditions, c.READY)
    assert found is not None
    assert found.reason == "ProgressDeadlineExceeded"


def test_a_forecast_has_no_wave_for_a_node_that_waits() -> None:
    made = forecast(snapshot(task(), [A, B], **waiting(progress(waiting=[A], done=[B]))))
    assert made.turns == {"b": 1}
    assert made.state_of("a").reason == "AwaitingDependency"


# ---------------------------------------------------------------- the progress of a task


def progress_in(*seen: Any, fault: str = "", **more: Any) -> Progress:
    of = planned(*seen, awaited=True, **more).progress
    assert of is not None
    assert of.fault == fault
    return of


def test_nothing_is_added_up_where_no_task_depends_on_it() -> None:
    assert planned(task(), [A]).progress is None


def test_the_progress_is_by_the_tasks_own_decisions() -> None:
    out = node("out", labels={"kubernetes.io/os": "windows"})
    entries = {"a": entry(A), "b": entry(B, "Failed")}
    found = progress_in(task(), [A, B, C, out], [], entries)
    assert found.done == {A.uid: ""}
    assert found.failed == {B.uid}
    assert found.unfinished == {C.uid}
    assert found.until == 0


@pytest.mark.parametrize(
    ("spec", "pods", "entries"),
    [
        pytest.param({}, [succeeded(A)], {}, id="not on record"),
        pytest.param({}, [pod(A, 2)], {"a": entry(A)}, id="it runs again"),
        pytest.param({}, [], {"a": entry(A, revision="old")}, id="of an older template"),
        pytest.param(
            {"min_success_seconds": 7200}, [], {"a": entry(A)}, id="minSuccessSeconds have not passed"
        ),
        pytest.param({}, [], {"a": entry(A, "Retry")}, id="to be tried again"),
        pytest.param({}, [failed(A)], {}, id="failed, not on record"),
        pytest.param(
            {"annotations": {names.RERUN_AT: "2026-01-01T00:00:00Z"}}, [], {"a": entry(A)}, id="asked again"
        ),
        pytest.param({"schedule": "0 3 * * *"}, [], {}, id="before the first tick"),
        pytest.param({"suspend": True}, [], {}, id="suspended"),
    ],
)
def test_a_node_is_unfinished(spec: dict[str, Any], pods: list[Pod], entries: dict[str, Entry]) -> None:
    found = progress_in(task(**spec), [A], pods, entries)
    assert (dict(found.done), found.failed, found.unfinished) == ({}, frozenset(), {A.uid})


def test_a_node_is_done_at_its_boot_where_each_boot_counts() -> None:
    found = progress_in(task(rerun_on=("TemplateChange", "NodeReboot")), [A], [], {"a": entry(A)})
    assert found.done == {A.uid: A.boot_id}


def test_a_tick_that_is_taken_counts_before_it_is_stored() -> None:
    seen = ObservedSchedule("0 3 * * *", "Etc/UTC", format_time(NOW - 300_000))
    at = Status(last_schedule_time=format_time(NOW - 200_000), observed_generation=1, observed_schedule=seen)
    ticked = task(schedule="0 3 * * *", status=at)
    found = progress_in(ticked, [A], [], {"a": entry(A, tick=int(NOW - 200_000))})
    assert found.unfinished == {A.uid}
    assert found.until > NOW


@pytest.mark.parametrize(
    ("given", "since", "expected"),
    [
        pytest.param(300_000, 200_000, "waits", id="a tick is due"),
        pytest.param(300_000, 60, "done", id="none is due yet"),
        pytest.param(60, 200_000, "done", id="none is due since the schedule was changed"),
    ],
)
def test_a_suspended_task_is_not_done_once_a_tick_is_due(given: int, since: int, expected: str) -> None:
    """It takes the tick when it goes on."""
    seen = ObservedSchedule("0 3 * * *", "Etc/UTC", format_time(NOW - given))
    last = Status(last_schedule_time=format_time(NOW - since), observed_generation=1, observed_schedule=seen)
    of = task(schedule="0 3 * * *", suspend=True, status=last)
    found = progress_in(of, [A], [], {"a": entry(A, tick=int(NOW - since))})
    assert found.done.keys() == {A.uid}
    assert Dependency("first", found).at(A, NOW) == expected


def test_an_invalid_spec_and_a_lost_ledger_are_faults() -> None:
    seen = ObservedSchedule("0 3 * * *", "Etc/UTC", format_time(NOW - 300_000))
    of = task(schedule="0 3 * *", status=Status(observed_generation=1, observed_schedule=seen))
    assert progress_in(of, [A], invalid="spec.schedule: no", fault=Reason.INVALID_SPEC).until == 0
    lost = Ledger({"a": entry(A)}, lost=1, loss="x is gone")
    assert progress_in(task(), [A], ledger=lost, fault=Reason.LEDGER_LOST).fault


def test_what_makes_another_identity() -> None:
    meta = task(annotations={names.RERUN_AT: "x", "example.com/a": "b"}).metadata
    first = identity_of(meta)
    assert identity_of(task(annotations={names.RERUN_AT: "x"}).metadata) == first
    assert identity_of(task(annotations={names.RERUN_AT: "y"}).metadata) != first
    assert identity_of(task().metadata) != first
    meta.generation += 1
    assert identity_of(meta) != first
    other = task(annotations={names.RERUN_AT: "x"}).metadata
    other.uid = "new"
    assert identity_of(other) != first


# ---------------------------------------------------------------- circles


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ({"a": "b"}, ""),
        ({"a": "b", "b": "a"}, "a b a"),
        ({"a": "a"}, "a a"),
        ({"a": "b", "b": "c", "c": "a"}, "a b c a"),
        ({"a": "b", "b": "c", "c": "b"}, ""),  # a circle that the task is no part of
        ({"a": "bc", "b": "d", "c": "a", "d": "a"}, "a c a"),  # the shortest
        ({"a": "bc", "b": "d", "c": "d"}, ""),
    ],
)
def test_a_circle_is_found_from_each_task_of_it(edges: dict[str, str], expected: str) -> None:
    found = circle_of("a", edges["a"], lambda name: edges.get(name, ""))
    assert list(found) == expected.split()


def test_a_node_that_failed_and_has_a_taint_keeps_no_other_task_waiting() -> None:
    tainted = node("a", taints=(taint("gpu"),))
    of = planned(task(), [tainted], [], {"a": entry(tainted, "Retry", attempts=1)}, awaited=True).progress
    assert of is not None
    assert of.unfinished == frozenset()


def test_a_long_circle_is_cut() -> None:
    way = tuple("abcdefghijka")
    assert Dependencies(circle=(*way[:7], "a")).circle_words == "a -> b -> c -> d -> e -> f -> g -> a"
    assert Dependencies(circle=way).circle_words == "a -> b -> c -> d -> e -> f -> g -> ... -> a"


def test_the_names_of_a_spec() -> None:
    assert names_of(task(depends_on=(DependsOn("x"), DependsOn("y"))).spec) == ("x", "y")


def test_a_node_with_a_taint_that_the_other_task_does_not_tolerate_does_not_wait() -> None:
    for effect in ("NoSchedule", "NoExecute"):
        tainted = node("a", taints=(taint("gpu", effect),))
        template = {"spec": {**TEMPLATE["spec"], "tolerations": [{"operator": "Exists"}]}}
        assert started(planned(task(template=template), [tainted], **waiting(progress()))) == ["a"]
