"""What passes add to the metrics."""

import math

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import CostStatus, Filter, Status
from caretaker.s3refresh.costs import CostView
from caretaker.s3refresh.debounce import UNKNOWN, Claim, DirtyScope, InFlight, LastCall, TargetState
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.metrics import STATES, S3RefreshMetrics, count, show
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.resource import ParsedRefresh
from caretaker.s3refresh.snapshot import Discovery, End, Message, PlanInput, Result, Snapshot

NOW = 1_800_000_000.0
NOT_CHECKED = QueueView()
CALL = Request(("/", "a"), recursive=False)
CLAIM = Claim("c", "me", NOW - 9, CALL, NOW - 40)
CLAIMED = TargetState("one", claim=CLAIM)
DIRTY = TargetState("one", dirty=DirtyScope(NOW - 40, Scope(all=True)))
IN_FLIGHT = TargetState("one", in_flight=InFlight("n", NOW - 9, CALL))
CASES = {
    "a call that was accepted": (CLAIMED, [Result("one", "c", "n")], [], {"Accepted": 1.0}),
    "one that was refused": (CLAIMED, [Result("one", "c", code="AccessDenied")], [], {"Failed": 1.0}),
    "one of a service that is busy": (
        CLAIMED,
        [Result("one", "c", code="TooManyInvalidationsInProgress")],
        [],
        {},
    ),
    "one whose answer was lost": (CLAIMED, [Result("one", "c", code=UNKNOWN)], [], {"Unknown": 1.0}),
    "a Job that fails after it was accepted": (IN_FLIGHT, [], [End("n", "JobFailed")], {"Failed": 1.0}),
    "a Job that succeeds was counted when it was accepted": (IN_FLIGHT, [], [End("n")], {}),
}


def counted(
    target: TargetState, queue: QueueView = NOT_CHECKED, **came: object
) -> tuple[CollectorRegistry, int]:
    """One pass over one bucket's Job, with 7 matched events before it."""
    registry = CollectorRegistry()
    given: dict[str, object] = {
        "options": DebounceOptions(tracked=True, assume_after=math.inf, completion_timeout=math.inf),
        **came,
    }
    inputs = PlanInput(
        targets=(target,),
        first=False,
        discovery=Discovery(True, (Share(id="one", arn="", bucket="b", group=""),)),
        filter=Filter(suffixes=(".csv",)),
        owner="me",
        pass_id="p",
        now=NOW,
        idempotent=True,
        running=frozenset({"c"}),
        **given,  # type: ignore[arg-type]
    )
    metrics, made = S3RefreshMetrics(registry), plan(inputs)
    read = ParsedRefresh(WireMeta(name="r", namespace="ns"), Status(), None)
    show(metrics, Snapshot(read, inputs, queue=queue), made)
    return registry, count(metrics, inputs, made, 7)


@pytest.mark.parametrize(("target", "results", "ends", "expected"), CASES.values(), ids=CASES.keys())
def test_how_calls_and_jobs_end(
    target: TargetState, results: list[Result], ends: list[End], expected: dict[str, float]
) -> None:
    registry, _ = counted(target, results=tuple(results), ends=tuple(ends))
    found = {
        result: registry.get_sample_value("caretaker_s3refresh_refreshes_total", {"result": result})
        for result in ("Accepted", "Failed", "Unknown")
    }
    assert {result: value for result, value in found.items() if value} == expected


def test_events_are_counted_by_what_becomes_of_them_until_a_refresh_is_accepted() -> None:
    keys = [("b", "x/1.csv"), ("b", "x/2.txt"), ("elsewhere", "3.csv")]
    events = tuple(ObjectEvent("ObjectCreated", bucket, key) for bucket, key in keys)
    registry, since = counted(TargetState("one"), messages=(Message(1, events), Message(2, malformed=True)))

    def value(series: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"caretaker_s3refresh_{series}", labels)

    for result in ("Matched", "Filtered", "Unmatched"):
        assert value("events_total", result=result) == 1, result
    assert value("malformed_messages_total") == 1
    assert value("dirty_targets", namespace="ns", name="r") == 1
    assert since == 8
    registry, since = counted(CLAIMED, results=(Result("one", "c", "n"),))
    assert since == 0
    assert value("events_per_refresh_sum") == 7
    assert value("folders_refreshed_total") == 2
    assert value("lag_seconds_sum") == 40


@pytest.mark.parametrize(
    ("target", "changed", "expected"),
    [
        pytest.param(TargetState("one"), {}, 0, id="nothing waits"),
        pytest.param(
            DIRTY, {"options": DebounceOptions(max_delay=600)}, NOW - 40 + 600, id="a change that came"
        ),
        pytest.param(
            CLAIMED,
            {"options": DebounceOptions(max_delay=600)},
            NOW - 40 + 600,
            id="one whose call is under way",
        ),
        pytest.param(
            DIRTY,
            {"options": DebounceOptions(max_delay=60, min_interval=3600)},
            NOW - 40 + 3600,
            id="one that may not be refreshed before",
        ),
        pytest.param(DIRTY, {"suspended": True}, 0, id="one that is held on purpose"),
        pytest.param(IN_FLIGHT, {}, 0, id="one that was refreshed"),
    ],
)
def test_until_when_the_oldest_change_should_be_refreshed(
    target: TargetState, changed: dict[str, object], expected: float
) -> None:
    registry, _ = counted(target, **changed)
    labels = {"namespace": "ns", "name": "r"}
    assert registry.get_sample_value("caretaker_s3refresh_due_timestamp_seconds", labels) == expected


def told(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value(f"caretaker_s3refresh_{name}")


@pytest.mark.parametrize(("checked", "expected"), [(True, [7, 3, 0]), (False, [None] * 3)])
def test_messages_of_a_queue_that_was_looked_at(checked: bool, expected: list[float | None]) -> None:
    registry, _ = counted(DIRTY, QueueView(checked=checked, visible=7, in_flight=3))
    found = [
        registry.get_sample_value(
            "caretaker_s3refresh_queue_messages", {"namespace": "ns", "name": "r", "state": state}
        )
        for state in STATES
    ]
    assert found == expected


@pytest.mark.parametrize("seconds", [0.5, 9.0])
def test_how_long_a_refresh_took(seconds: float) -> None:
    in_flight = TargetState(
        "one", in_flight=InFlight("n", NOW - seconds, CALL), last=LastCall(accepted_at=NOW - seconds)
    )
    registry, _ = counted(in_flight, ends=(End("n"),))
    assert told(registry, "refresh_duration_seconds_sum") == seconds
    assert told(registry, "refresh_duration_seconds_count") == 1


@pytest.mark.parametrize(
    ("target", "ends"),
    [
        pytest.param(IN_FLIGHT, (End("n", "JobFailed"),), id="one that failed"),
        pytest.param(
            TargetState("one", last=LastCall(accepted_at=NOW - 9, completed_at=NOW - 2, result="Succeeded")),
            (),
            id="one that ended before",
        ),
    ],
)
def test_what_took_no_time_now(target: TargetState, ends: tuple[End, ...]) -> None:
    registry, _ = counted(target, ends=ends)
    assert told(registry, "refresh_duration_seconds_count") == 0


def test_a_call_that_was_refused_is_no_refresh() -> None:
    registry, since = counted(CLAIMED, results=(Result("one", "c", code="AccessDenied"),))
    assert (told(registry, "folders_refreshed_total"), told(registry, "lag_seconds_count")) == (0, 0)
    assert since == 7


def test_a_lag_of_less_than_a_second() -> None:
    claim = Claim("c", "me", NOW - 0.25, CALL, NOW - 0.5)
    registry, _ = counted(TargetState("one", claim=claim), results=(Result("one", "c", "n"),))
    assert told(registry, "lag_seconds_sum") == 0.5


def test_hours_and_many_events_are_told_apart() -> None:
    two_hours = NOW - 7200
    claimed = TargetState("one", claim=Claim("c", "me", NOW - 9, CALL, two_hours))
    accepted, _ = counted(claimed, results=(Result("one", "c", "n"),))
    in_flight = InFlight("n", two_hours, CALL)
    ended, _ = counted(
        TargetState("one", in_flight=in_flight, last=LastCall(accepted_at=two_hours)), ends=(End("n"),)
    )
    for registry, name, below, above in (
        (accepted, "lag_seconds", "3600.0", "14400.0"),
        (ended, "refresh_duration_seconds", "3600.0", "14400.0"),
        (accepted, "events_per_refresh", "1.0", "100.0"),
    ):
        buckets = [
            registry.get_sample_value(f"caretaker_s3refresh_{name}_bucket", {"le": le})
            for le in (below, above)
        ]
        assert buckets == [0, 1], name


def test_a_deleted_resource_leaves_no_series_and_others_keep_theirs() -> None:
    registry = CollectorRegistry()
    metrics = S3RefreshMetrics(registry)
    for name in ("r", "other"):
        metrics.show(("ns", name), 1, NOW)
        metrics.messages(("ns", name), 3, 2, 1)
    for _ in range(2):
        metrics.forget("ns", "r")
        series = [one.labels for family in registry.collect() for one in family.samples]
        left = [labels["name"] for labels in series if "name" in labels]
        assert left == ["other"] * (2 + len(STATES))


def test_the_cost_and_the_interval_show_while_they_are_estimated() -> None:
    registry = CollectorRegistry()
    metrics = S3RefreshMetrics(registry)
    read = ParsedRefresh(WireMeta(name="r", namespace="ns"), Status(), None)
    inputs = PlanInput(
        (), False, Discovery(), Filter(), DebounceOptions(budget_interval=17520), "me", "p", NOW
    )
    snapshot = Snapshot(read, inputs, cost=CostView(CostStatus(refresh_cost="0.4050")))
    labels = {"namespace": "ns", "name": "r"}

    def shown() -> tuple[float | None, float | None]:
        names = ("caretaker_s3refresh_estimated_refresh_cost", "caretaker_s3refresh_min_interval_seconds")
        return registry.get_sample_value(names[0], labels), registry.get_sample_value(names[1], labels)

    show(metrics, snapshot, plan(inputs))
    assert shown() == (0.405, 17520)
    show(metrics, replace(snapshot, cost=CostView(CostStatus())), plan(inputs))
    assert shown() == (None, 17520)
    show(metrics, replace(snapshot, cost=CostView()), plan(inputs))
    assert shown() == (None, None)
    for forget in (lambda: metrics.forget("ns", "r"), metrics.clear):
        show(metrics, snapshot, plan(inputs))
        assert shown() == (0.405, 17520)
        forget()
        assert shown() == (None, None)
