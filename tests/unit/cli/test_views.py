"""What plan, status, rerun and logs say of a task, from the forecast alone."""

from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.conditions import Condition, ConditionStatus, Reason
from caretaker.api.daemontask import Budget, DaemonTask, EndedTick, FailurePolicy, Result, Status
from caretaker.api.objects import Node
from caretaker.api.times import format_micros, format_time
from caretaker.cli import logs, rerun
from caretaker.cli.daemontask import plan, status
from caretaker.cli.plan import Proposal
from caretaker.daemontask.dependencies import Dependencies, Dependency
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry, Fault, Ledger
from caretaker.daemontask.resource import RawTask
from unit.daemontask.build import (
    NOW,
    REVISION,
    entry,
    failed,
    node,
    pod,
    progress,
    snapshot,
    succeeded,
    taint,
    task,
)

A, B, C = (node(name) for name in "abc")
TAINTED = node("t", taints=(taint("gpu", value="yes"),))
CORDONED = node("u", unschedulable=True)


def made(nodes: list[Node], pods: Any = (), entries: Any = None, **spec: Any) -> Forecast:
    return forecast(snapshot(task(**spec), nodes, list(pods), entries))


def raw(of: DaemonTask) -> RawTask:
    return RawTask(of.metadata, msgspec.Raw(msgspec.json.encode(of.spec)))


def proposal(of: Forecast, *, exists: bool, **more: Any) -> Proposal[RawTask]:
    now = raw(of.snapshot.task)
    return Proposal(now, now if exists else None, **more)


def planned(of: Forecast, *, exists: bool = True, wide: bool = False, **more: Any) -> str:
    return "\n".join(plan.as_text(proposal(of, exists=exists, **more), of, wide=wide))


class TestPlan:
    @pytest.mark.parametrize(
        ("of", "words"),
        [
            pytest.param(made([A, B, C]), "3 of 3 nodes it is for would run, all at once", id="no limit"),
            pytest.param(
                made([A, B, C], parallelism="50%"),
                "3 of 3 nodes it is for would run: 2 at once, 2 waves of at most 2 in all (parallelism 50%)",
                id="in waves",
            ),
            pytest.param(
                made([A, B], [pod(A)], parallelism=1),
                "1 of 2 nodes it is for would run: none before a slot is free, 1 wave of at most 1",
                id="behind a running pod",
            ),
            pytest.param(
                made([A, B], [], {"a": entry(A), "b": entry(B)}),
                "nothing would be started: 2 succeeded",
                id="all done",
            ),
            pytest.param(made([TAINTED]), "nothing would be started: 1 left out", id="no node matches"),
            pytest.param(made([]), "nothing would be started: there are no nodes", id="no nodes at all"),
            pytest.param(
                made([A, B], suspend=True),
                "nothing would be started: spec.suspend is true; 2 of 2 nodes",
                id="suspended",
            ),
            pytest.param(
                made([A, B], schedule="0 3 * * *"),
                "2 of 2 nodes it is for would run at its first tick",
                id="before the first tick",
            ),
            pytest.param(
                made([A, B, C], parallelism=3, budgets=(Budget(2),)),
                "3 of 3 nodes it is for would run: 2 at once, 2 waves of at most 2 in all (budgets)",
                id="limited by a budget",
            ),
            pytest.param(
                made([A, B, C], parallelism=2, budgets=(Budget(0, "0 13 * * *", "1h"),)),
                "3 of 3 nodes it is for would run: none before a budget is free, 2 waves of at most 2",
                id="held by a budget",
            ),
        ],
    )
    def test_the_sum_comes_first(self, of: Forecast, words: str) -> None:
        assert words in planned(of).splitlines()[1]

    def test_what_lets_a_paused_task_go_on_names_its_namespace(self) -> None:
        pause = FailurePolicy(action="Pause")
        of = made([A, B], [], {"a": entry(A, "Failed")}, failure_policy=pause)
        assert "(caretaker resume daemontask task -n default)" in planned(of).splitlines()[1]

    def test_the_calendar_is_told(self) -> None:
        of = made([A], schedule="0 3 * * *", budgets=(Budget(0, "0 13 * * *", "1h"),))
        assert planned(of).splitlines()[2:4] == [
            "  schedule 0 3 * * * (Etc/UTC): never yet; next 1970-01-13T03:00:00Z, in 13h",
            "  a budget lets no node run until 1970-01-12T14:00:00Z",
        ]
        told = plan.as_json(proposal(of, exists=True), of)
        assert told["schedule"] == {
            "schedule": "0 3 * * *",
            "timeZone": "Etc/UTC",
            "lastScheduleTime": None,
            "nextScheduleTime": "1970-01-13T03:00:00Z",
        }
        assert told["budget"] == {"nodes": 0, "until": "1970-01-12T14:00:00Z"}

    def test_the_tasks_that_are_waited_for_have_a_line_each(self) -> None:
        each = (
            Dependency("first", progress(waiting=[A], failed=[B], done=[C])),
            Dependency("second", missing=True),
            Dependency("third", progress(done=[A, B, C])),
        )
        of = forecast(snapshot(task(), [A, B, C], dependencies=Dependencies(each)))
        lines = [
            "  after DaemonTask first: 2 nodes waiting, 1 of them because it failed there",
            "  after DaemonTask second, which is not in this namespace: 3 nodes waiting",
            "  after DaemonTask third: 0 nodes waiting",
        ]
        assert planned(of).splitlines()[1:5] == ["  nothing would be started: 3 pending", *lines]
        assert [line for line in status.as_text(of, False) if "after" in line] == lines
        expected = [
            {"name": "first", "problem": None, "waiting": 2, "failed": 1},
            {"name": "second", "problem": "NotFound", "waiting": 3, "failed": 0},
            {"name": "third", "problem": None, "waiting": 0, "failed": 0},
        ]
        assert plan.as_json(proposal(of, exists=True), of)["dependsOn"] == expected
        assert status.as_json(of)["dependsOn"] == expected
        assert status.as_json(made([A]))["dependsOn"] == []

    def test_a_circle_holds_the_task(self) -> None:
        circle = Dependencies((Dependency("first", progress(waiting=[A])),), ("task", "first", "task"))
        of = forecast(snapshot(task(), [A], dependencies=circle))
        lines = planned(of).splitlines()
        assert lines[1:3] == [
            "  nothing would be started: tasks depend on each other; 1 of 1 node it is for wait",
            "  circle task -> first -> task: nothing is started",
        ]

    def test_the_header_tells_what_kind_of_change_it_is(self) -> None:
        of = made([A])
        assert planned(of, exists=False).startswith(f"DaemonTask default/task: new, revision {REVISION}\n")
        assert planned(of).startswith(
            "DaemonTask default/task: exists, its template does not change, revision"
        )
        other = raw(task(template={"spec": {"containers": []}}))
        text = "\n".join(plan.as_text(Proposal(raw(of.snapshot.task), other), of, wide=False))
        assert "its template changes, revision" in text
        assert f"-> {REVISION}" in text

    def test_reasons_are_counted_before_nodes_are_listed(self) -> None:
        text = planned(made([A, B, TAINTED, CORDONED]))
        groups, rows = (part.splitlines() for part in text.split("\n\n")[1:3])
        assert [line.split()[:3] for line in groups[1:]] == [
            ["would", "run", "2"],
            ["blocked", "1", "Cordoned"],
            ["left", "out", "1"],
        ]
        assert [line.split()[0] for line in rows] == ["NODE", "a", "b", "t", "u"]
        assert "untolerated taint gpu=yes:NoSchedule" in rows[3]

    def test_waves_are_told_for_a_task_that_exists_only(self) -> None:
        of = made([A, B], parallelism=1)
        assert "would run, wave 2" in planned(of)
        assert "wave 2" not in planned(of, exists=False).split("\n\n")[2]
        nodes = plan.as_json(proposal(of, exists=False), of)["nodes"]
        assert {row["wave"] for row in nodes} == {None}
        nodes = plan.as_json(proposal(of, exists=True), of)["nodes"]
        assert {row["wave"] for row in nodes} == {1, 2}

    def test_long_lists_are_cut_unless_they_are_asked_for(self) -> None:
        of = made([node(f"n{number:03d}") for number in range(120)])
        text = planned(of)
        assert text.count("\nn") == 50
        assert text.endswith("and more: 70 would run; -o wide lists them")
        assert planned(of, wide=True).count("\nn") == 120

    def test_a_retry_tells_when(self) -> None:
        of = made([A], [failed(A)])
        assert "pending" in planned(of)
        assert "again in 5s; Error: container main exited 1" in planned(of)

    def test_a_refused_task_has_no_nodes(self) -> None:
        refused = Proposal(raw(task()), None, refusals=["t.yaml:1: no"], notes=["so it is"])
        assert plan.as_text(refused, None, wide=False) == [
            "DaemonTask default/task: refused",
            "  note: so it is",
        ]
        assert plan.as_json(refused, None)["refusals"] == ["t.yaml:1: no"]
        assert "nodes" not in plan.as_json(refused, None)

    def test_a_refused_template_lists_no_nodes_but_the_sum(self) -> None:
        said = "spec.template.spec.containers[0].image: Required value"
        of = forecast(snapshot(task(), [A, B], invalid=said))
        assert planned(of) == "DaemonTask default/task: refused, 2 nodes would not run it"
        assert "nothing would be started: the API server refuses its pods" in planned(of, wide=True)

    def test_json_counts_and_names(self) -> None:
        of = made([A, B, TAINTED], parallelism=1)
        told = plan.as_json(proposal(of, exists=False), of)
        assert {k: told[k] for k in ("exists", "desired", "startAtOnce", "parallelism", "waves", "hold")} == {
            "exists": False,
            "desired": 2,
            "startAtOnce": 1,
            "parallelism": 1,
            "waves": 2,
            "hold": "",
        }
        assert told["nodes"][2]["reason"] == "Taint"


def conditions(*parts: tuple[str, ConditionStatus, str], **counts: int) -> Status:
    told = tuple(Condition(*part, message="why") for part in parts)
    return Status(observed_generation=1, conditions=told, **counts)  # type: ignore[arg-type]


class TestStatus:
    def test_nodes_that_need_a_person_come_first_and_left_out_ones_are_counted(self) -> None:
        of = made(
            [A, B, C, TAINTED],
            [pod(C)],
            {"a": entry(A), "b": entry(B, "Failed", reason="OOMKilled", exit_code=137)},
        )
        rows = "\n".join(status.as_text(of, False)).split("\n\n")[1].splitlines()
        assert [row.split()[:3] for row in rows[1:4]] == [
            ["b", "failed", "OOMKilled"],
            ["c", "active", "Running"],
            ["a", "succeeded", "-"],
        ]
        assert rows[4] == "not listed: 1 left out; -o wide lists them"
        wide = "\n".join(status.as_text(of, True))
        assert "untolerated taint gpu=yes:NoSchedule" in wide
        assert "not listed" not in wide

    def test_earlier_ticks_have_a_table(self) -> None:
        history = (
            EndedTick("1970-01-11T03:00:00Z", 3, 2, 1, "1970-01-11T03:02:00Z"),
            EndedTick("1970-01-10T03:00:00Z", 3, 0, 3),
        )
        of = forecast(snapshot(task(schedule="0 3 * * *", status=Status(schedule_history=history)), [A], []))
        table = "\n".join(status.as_text(of, False)).split("\n\n")[1].splitlines()
        assert [row.split() for row in table] == [
            ["EARLIER-TICK", "NODES", "SUCCEEDED", "FAILED", "LAST-SUCCESS"],
            ["1970-01-11T03:00:00Z", "3", "2", "1", "1970-01-11T03:02:00Z"],
            ["1970-01-10T03:00:00Z", "3", "0", "3", "-"],
        ]
        assert status.as_json(of)["scheduleHistory"] == history

    def test_a_pods_message_cannot_paint_the_terminal(self) -> None:
        of = made([A], [], {"a": entry(A, "Failed", reason="Error", message="one\n\x1b[2Jtwo")})
        assert "\x1b" not in "\n".join(status.as_text(of, True))

    def test_a_lost_ledger_is_told_before_a_pass_has_seen_it_and_once(self) -> None:
        calm = conditions((c.READY, "True", Reason.SUCCEEDED))
        of = forecast(snapshot(task(status=calm), [A], [], ledger=Ledger({}, lost=2)))
        told = status.as_text(of, False)
        assert told[2] == "  Ready=True: Succeeded"
        assert told[3].startswith("  LedgerLost: 2 ledger shard(s) are gone, so what has run is not known")
        assert told[4].startswith("    -> annotate caretaker.dev/ledger=rerun")
        seen = conditions((c.READY, "False", Reason.LEDGER_LOST), (c.STALLED, "True", Reason.LEDGER_LOST))
        of = forecast(snapshot(task(status=seen), [A], [], ledger=Ledger({}, lost=2)))
        assert sum("LedgerLost:" in line for line in status.as_text(of, False)) == 1

    def test_the_age_of_a_status_is_not_told_of_its_reason(self) -> None:
        ready = Condition(c.READY, "False", Reason.NODES_BLOCKED, last_transition_time=format_time(NOW - 130))
        of = forecast(snapshot(task(status=Status(conditions=(ready,))), [A]))
        assert status.as_text(of, False)[2] == "  Ready=False for 2m: NodesBlocked"

    def test_json_holds_every_node(self) -> None:
        of = made([A, TAINTED], [succeeded(A)], {"a": entry(A)})
        told = msgspec.json.decode(msgspec.json.encode(status.as_json(of)))
        assert [row["node"] for row in told["nodes"]] == ["a", "t"]
        assert told["counts"]["succeeded"] == 1

    def test_results_have_a_table_and_a_fault_stands_at_its_node(self) -> None:
        runs = {
            "a": entry(A, results={"ms": 3, "os": "one"}),
            "b": entry(B, results={"os": "two"}, fault=Fault("ms", "NotANumber", '"3"')),
            "c": entry(C, results={"ms": 1234567.5, "os": "one"}),
        }
        of = made([A, B, C], [], runs, results=(Result("ms", unit="ms"), Result("os", "Text")))
        lines = status.as_text(of, False)
        assert lines[lines.index("") + 1 :][:3] == [
            "  RESULT  UNIT  NODES  MIN  MEDIAN  P95          MAX          VALUES",
            "  ms      ms    2      3    3       1.23457e+06  1.23457e+06  -",
            "  os      -     3      -    -       -            -            2 one, 1 two",
        ]
        assert 'ms: it is "3", not a number' in next(line for line in lines if line.startswith("b "))
        told = msgspec.json.decode(msgspec.json.encode(status.as_json(of)))
        assert [row["results"] for row in told["nodes"]] == [e.results for e in runs.values()]
        assert told["resultErrors"][0]["nodeName"] == "b"

    def test_numbers_alone_have_no_column_of_texts(self) -> None:
        of = made([A], [], {"a": entry(A, results={"ms": 3})}, results=(Result("ms"),))
        assert "  RESULT  UNIT  NODES  MIN  MEDIAN  P95  MAX" in status.as_text(of, False)


@pytest.mark.parametrize(
    ("seen", "pods", "entries", "spec", "code"),
    [
        pytest.param(
            conditions((c.READY, "True", Reason.SUCCEEDED)),
            [],
            {"a": entry(A)},
            {},
            0,
            id="all succeeded: well",
        ),
        pytest.param(
            Status(), [], {"a": entry(A)}, {}, None, id="an older generation was looked at: not yet"
        ),
        pytest.param(
            conditions((c.READY, "True", Reason.SUCCEEDED)), [pod(A)], {}, {}, None, id="a pod runs: not yet"
        ),
        pytest.param(
            conditions((c.READY, "True", Reason.SUCCEEDED)), [], {}, {}, None, id="a node is due: not yet"
        ),
        pytest.param(
            conditions((c.READY, "False", Reason.ROLLING_OUT)),
            [],
            {"a": entry(A)},
            {},
            None,
            id="status lags: not yet",
        ),
        pytest.param(
            msgspec.structs.replace(conditions((c.READY, "True", Reason.RUNNING)), active=1),
            [],
            {"a": entry(A)},
            {},
            None,
            id="status has not seen the last run end: not yet",
        ),
        pytest.param(
            conditions((c.READY, "False", Reason.NODES_FAILED), (c.STALLED, "True", Reason.NODES_FAILED)),
            [],
            {"a": entry(A, "Failed")},
            {},
            1,
            id="stalled: with failures",
        ),
        pytest.param(
            conditions((c.READY, "False", Reason.NODES_FAILED), (c.STALLED, "True", Reason.NODES_FAILED)),
            [],
            {},
            {},
            None,
            id="stalled, but a re-run was asked for meanwhile: not yet",
        ),
        pytest.param(
            conditions((c.READY, "False", Reason.PAUSED), (c.STALLED, "True", Reason.NODES_FAILED)),
            [],
            {"b": entry(B, "Failed")},
            {"failure_policy": FailurePolicy(0, "Pause")},
            1,
            id="paused with nodes that wait: with failures",
        ),
        pytest.param(
            conditions((c.READY, "True", Reason.SUSPENDED)),
            [],
            {},
            {"suspend": True},
            0,
            id="suspended: well",
        ),
        pytest.param(
            conditions((c.READY, "True", Reason.AWAITING_SCHEDULE), pending=1),
            [],
            {},
            {"schedule": "0 3 * * *"},
            0,
            id="it waits for the first tick: well",
        ),
        pytest.param(
            conditions((c.READY, "False", Reason.ROLLING_OUT), pending=1),
            [],
            {},
            {"budgets": (Budget(0),)},
            None,
            id="a budget holds it back: not yet",
        ),
        pytest.param(
            conditions((c.READY, "False", Reason.NODES_BLOCKED)),
            [],
            {"a": entry(A)},
            {},
            None,
            id="blocked: not yet",
        ),
    ],
)
def test_when_a_watch_ends(seen: Status, pods: Any, entries: Any, spec: Any, code: int | None) -> None:
    nodes = [A, B] if "b" in entries else [A]
    assert status.ended(forecast(snapshot(task(status=seen, **spec), nodes, pods, entries))) == code


DAY = 86400.0


@pytest.mark.parametrize(
    ("standing", "entries", "kept"),
    [
        pytest.param({}, {}, {}, id="nothing stands"),
        pytest.param({"b": NOW - 60}, {}, {"b"}, id="what is not a day old stays"),
        pytest.param(
            {"b": NOW - 2 * DAY},
            {"b": format_micros(NOW - 2 * DAY)},
            set(),
            id="an answered one that is old goes",
        ),
        pytest.param({"b": NOW - 2 * DAY}, {"b": ""}, {"b"}, id="an old one that is not answered yet stays"),
        pytest.param({"gone": NOW - 2 * DAY}, {}, set(), id="that of a node that is gone goes"),
        pytest.param({"a": NOW - 60}, {}, set(), id="one for the same node is replaced"),
    ],
)
def test_requests_are_merged(standing: dict[str, float], entries: dict[str, str], kept: set[str]) -> None:
    text = msgspec.json.encode({name: format_micros(at) for name, at in standing.items()}).decode()
    ledger = {name: entry(node(name), nonce=nonce) for name, nonce in entries.items()}
    stamp = format_micros(NOW)
    value = msgspec.json.decode(rerun.merged(text, ["a"], stamp, snapshot(task(), [A, B], [], ledger)))
    assert value["a"] == stamp
    assert set(value) - {"a"} == set(kept)


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"b": 3}', '{"b": "yesterday"}'])
def test_what_cannot_be_read_is_replaced(text: str) -> None:
    assert set(msgspec.json.decode(rerun.merged(text, ["a"], format_micros(NOW), snapshot(task(), [A])))) == {
        "a"
    }


def test_a_rerun_tells_what_will_run_and_what_waits() -> None:
    marks = {names.RERUN_AT: format_micros(NOW)}
    nodes = [A, B, C, TAINTED, CORDONED]
    entries = {"a": entry(A), "b": entry(B), "u": entry(CORDONED)}
    of = forecast(snapshot(task(annotations=marks, parallelism=1), nodes, [pod(C)], entries))
    assert rerun.describe(of, None) == [
        "DaemonTask default/task: 2 nodes will run again, at most 1 at a time",
        "  c  runs now    and again once that run has ended",
        "  u  is blocked  Cordoned the node is cordoned and the template does not tolerate that",
    ]
    assert rerun.describe(of, ["a", "t"])[1:] == [
        "  a  will run",
        "  t  is left out  Taint untolerated taint gpu=yes:NoSchedule",
    ]


def test_what_has_never_run_does_not_run_again() -> None:
    of = forecast(
        snapshot(task(annotations={names.RERUN_AT: format_micros(NOW)}), [A, B], [], {"a": entry(A)})
    )
    assert rerun.describe(of, ["b"])[0] == "DaemonTask default/task: 1 node will run"
    assert rerun.describe(of, ["a"])[0] == "DaemonTask default/task: 1 node will run again"


def test_a_rerun_of_what_is_held_tells_so() -> None:
    marks = {names.RERUN_AT: format_micros(NOW)}
    of = forecast(snapshot(task(annotations=marks, suspend=True), [A], [], {"a": entry(A)}))
    assert rerun.describe(of, None)[0].endswith("asked for, but nothing is started now: Suspended")


def test_a_rerun_under_a_closed_budget_says_what_keeps_it() -> None:
    marks = {names.RERUN_AT: format_micros(NOW)}
    nodes, entries = [A, B], {"a": entry(A), "b": entry(B)}
    window = (Budget(0, "0 13 * * *", "1h"),)
    of = forecast(snapshot(task(annotations=marks, budgets=window, parallelism=1), nodes, [], entries))
    closed = "a budget lets no node run until 1970-01-12T14:00:00Z"
    head = f"DaemonTask default/task: asked for, but nothing is started now: {closed}"
    assert rerun.describe(of, None) == [f"{head}; 2 nodes wait for it"]
    assert rerun.describe(of, ["a"]) == [f"{head}; 1 node waits for it", "  a  waits  for the budget"]


def test_logs_are_of_the_pod_that_the_record_is_about() -> None:
    entries = {
        "a": entry(A, "Failed", pod_uid="pod-a-2", seq=2),
        "b": entry(B, "Failed", pod_uid="pod-b-1"),
        "c": entry(C),
    }
    of = forecast(snapshot(task(), [A, B, C], [failed(A, 1), failed(A, 2), succeeded(C)], entries))
    assert list(logs.failed_pods(of)) == [("a", failed(A, 2)), ("b", None)]
    assert logs.newest(of, "c") == succeeded(C)
    assert logs.newest(of, "b") is None


@pytest.mark.parametrize(
    ("last", "words"),
    [
        pytest.param(entry(A, "Failed"), f"its pod {pod(A).name} is gone", id="deleted"),
        pytest.param(
            entry(A, "Failed", seq=900, pod_seq=1),
            f"its pod {pod(A).name} is gone",
            id="deleted, and recorded where the entry before was broken",
        ),
        pytest.param(
            entry(A, "Failed", pod_uid="", seq=900, reason=OUTCOME_UNKNOWN),
            "which pod it was is not known",
            id="of an entry that could not be read",
        ),
        pytest.param(entry(A, pod_uid="", seq=0), "which pod it was is not known", id="assumed to have run"),
    ],
)
def test_logs_name_the_pod_that_is_gone_where_it_is_known(last: Entry, words: str) -> None:
    of = forecast(snapshot(task(), [A], [], {"a": last}))
    assert words in logs.gone(of, "a")
