"""Metrics as Prometheus scrapes them, and the loop's lag on a stepped clock."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from caretaker.api.conditions import Condition
from caretaker.imds.metrics import STATES
from caretaker.obs.looplag import LoopLag
from caretaker.obs.metrics import Metrics, create_metrics, process_registry
from testing.allmetrics import AllMetrics
from testing.operator import Samples, parse_metrics

EXPECTED = {
    "caretaker_daemontask_nodes": ("gauge", "namespace,name,state"),
    "caretaker_daemontask_gated_nodes": ("gauge", "namespace,name,state"),
    "caretaker_daemontask_cordoned_nodes": ("gauge", "namespace,name,state"),
    "caretaker_daemontask_evictions_total": ("counter", "result"),
    "caretaker_daemontask_result": ("gauge", "namespace,name,result,unit,statistic"),
    "caretaker_daemontask_run_duration_seconds": ("histogram", ""),
    "caretaker_daemontask_runs_total": ("counter", "result"),
    "caretaker_daemontask_ecs_messages_total": ("counter", "result"),
    "caretaker_daemontask_ecs_events_total": ("counter", "result"),
    "caretaker_daemontask_ecs_looks_total": ("counter", "result"),
    "caretaker_daemontask_ecs_lag_seconds": ("histogram", ""),
    "caretaker_s3refresh_events_total": ("counter", "result"),
    "caretaker_s3refresh_malformed_messages_total": ("counter", ""),
    "caretaker_s3refresh_refreshes_total": ("counter", "result"),
    "caretaker_ready": ("gauge", "kind,namespace,name"),
    "caretaker_condition": ("gauge", "kind,namespace,name,type,reason"),
    "caretaker_s3refresh_due_timestamp_seconds": ("gauge", "namespace,name"),
    "caretaker_s3refresh_queue_messages": ("gauge", "namespace,name,state"),
    "caretaker_s3refresh_estimated_refresh_cost": ("gauge", "namespace,name"),
    "caretaker_s3refresh_min_interval_seconds": ("gauge", "namespace,name"),
    "caretaker_s3refresh_events_per_refresh": ("histogram", ""),
    "caretaker_s3refresh_folders_refreshed_total": ("counter", ""),
    "caretaker_s3refresh_refresh_duration_seconds": ("histogram", ""),
    "caretaker_s3refresh_lag_seconds": ("histogram", ""),
    "caretaker_s3refresh_dirty_targets": ("gauge", "namespace,name"),
    "caretaker_api_requests_total": ("counter", "verb,resource,code"),
    "caretaker_aws_requests_total": ("counter", "service,operation,code"),
    "caretaker_aws_request_seconds": ("histogram", "service,operation"),
    "caretaker_imds_nodes": ("gauge", "name,state"),
    "caretaker_imds_changes_total": ("counter", "result"),
    "caretaker_imds_token_gate_metrics_total": ("counter", ""),
    "caretaker_aws_connections_opened_total": ("counter", "service"),
    "caretaker_aws_long_polls": ("gauge", ""),
    "caretaker_api_request_seconds": ("histogram", "verb,resource"),
    "caretaker_reconcile_errors_total": ("counter", "kind,reason"),
    "caretaker_queue_depth": ("gauge", ""),
    "caretaker_paused_resources": ("gauge", "kind"),
    "caretaker_reconcile_seconds": ("histogram", "kind"),
    "caretaker_plan_cpu_seconds": ("histogram", "kind"),
    "caretaker_pass_cpu_seconds": ("histogram", "kind"),
    "caretaker_long_steps_total": ("counter", "kind"),
    "caretaker_queue_wait_seconds": ("histogram", ""),
    "caretaker_loop_lag_seconds": ("histogram", ""),
    "caretaker_loop_lag_max_seconds": ("gauge", ""),
    "caretaker_reflector_events_total": ("counter", "resource"),
    "caretaker_reflector_relists_total": ("counter", "resource,reason"),
    "caretaker_reflector_age_seconds": ("gauge", "resource"),
    "caretaker_leader": ("gauge", ""),
    "caretaker_missing_permission": ("gauge", "verb,resource"),
    "caretaker_build_info": ("gauge", "version"),
}


def scrape(metrics: Metrics) -> Samples:
    return parse_metrics(generate_latest(metrics.registry).decode())


@pytest.fixture
def metrics() -> AllMetrics:
    return AllMetrics("1.2.3", process_registry())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_series_has_its_type_labels_and_a_sentence_of_help(metrics: AllMetrics, name: str) -> None:
    kind, labels = EXPECTED[name]
    (described,) = (
        f for f in metrics.registry.collect() if f.name == name.removesuffix("_total") and f.type == kind
    )
    assert described.documentation.endswith(".")
    assert len(described.documentation) > 30
    collectors = metrics.registry._names_to_collectors
    assert ",".join(getattr(collectors[name], "_labelnames", ())) == labels


def test_results_that_are_told_no_more_have_no_series(metrics: AllMetrics) -> None:
    task = metrics.daemontask

    def shown() -> dict[str, float]:
        return {k: v for k, v in scrape(metrics).items() if k.startswith("caretaker_daemontask_result{")}

    task.set_results("ns", "t", {("a", "ms", "max"): 3.0, ("b", "", "count"): 1.0})
    task.set_results("ns", "u", {("a", "ms", "max"): 4.0})
    assert len(shown()) == 3
    task.set_results("ns", "t", {("a", "s", "max"): 0.003})
    assert sorted(shown().values()) == [0.003, 4.0]
    task.set_nodes("ns", "t", {})
    task.forget("ns", "t")
    assert list(shown().values()) == [4.0]


def test_there_is_no_other_series_of_ours(metrics: AllMetrics) -> None:
    ours = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in metrics.registry.collect()
        if family.name.startswith("caretaker_")
    }
    assert ours == set(EXPECTED), "in EXPECTED, at the top of this file"


def test_the_process_and_platform_are_told(metrics: AllMetrics) -> None:
    samples = scrape(metrics)
    resident = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[21])
    assert (samples["process_resident_memory_bytes"] > 0) == (resident > 0), "QEMU's emulation tells none"
    assert any(name.startswith("python_info{") for name in samples)
    assert samples['caretaker_build_info{version="1.2.3"}'] == 1


def test_two_of_them_do_not_meet() -> None:
    first, second = create_metrics("1"), create_metrics("1")
    first.leader.set(1)
    assert (scrape(first)["caretaker_leader"], scrape(second)["caretaker_leader"]) == (1, 0)


def test_a_deleted_task_leaves_no_series(metrics: AllMetrics) -> None:
    metrics.daemontask.set_nodes("ns", "gone", {"desired": 3, "active": 3})
    metrics.daemontask.set_nodes("ns", "kept", {"desired": 1})
    metrics.daemontask.forget("ns", "gone")
    metrics.daemontask.forget("ns", "never-was")
    nodes = {k: v for k, v in scrape(metrics).items() if k.startswith("caretaker_daemontask_nodes")}
    assert len(nodes) == 6
    assert all('name="kept"' in series for series in nodes)


def test_gated_nodes_are_shown_by_state_and_go_with_the_task(metrics: AllMetrics) -> None:
    def shown() -> dict[str, float]:
        return {k: v for k, v in scrape(metrics).items() if k.startswith("caretaker_daemontask_gated_nodes{")}

    metrics.daemontask.set_gated("ns", "t", {"active": 2, "excluded": 1})
    metrics.daemontask.set_gated("ns", "u", {"failed": 1})
    metrics.daemontask.set_gated("ns", "t", {"active": 1})
    assert sorted(shown().values()) == [1, 1]
    metrics.daemontask.forget("ns", "t")
    assert list(shown()) == ['caretaker_daemontask_gated_nodes{name="u",namespace="ns",state="failed"}']
    metrics.daemontask.clear()
    assert not shown()


def test_cordoned_nodes_are_shown_by_state_and_go_with_the_task(metrics: AllMetrics) -> None:
    def shown() -> list[str]:
        return [k for k in scrape(metrics) if k.startswith("caretaker_daemontask_cordoned_nodes{")]

    metrics.daemontask.set_cordoned("ns", "t", {"active": 2, "failed": 1})
    metrics.daemontask.set_cordoned("ns", "t", {"active": 1})
    assert shown() == ['caretaker_daemontask_cordoned_nodes{name="t",namespace="ns",state="active"}']
    metrics.daemontask.forget("ns", "t")
    assert not shown()


def test_a_deleted_refresh_leaves_no_series(metrics: AllMetrics) -> None:
    for name, dirty, due in (("gone", 2, 1000.0), ("kept", 1, 2000.0)):
        metrics.s3refresh.show(("ns", name), dirty, due)
        metrics.s3refresh.messages(("ns", name), 3, 2, 1)
    metrics.s3refresh.forget("ns", "gone")
    metrics.s3refresh.forget("ns", "never-was")
    assert {k: v for k, v in scrape(metrics).items() if "name=" in k} == {
        'caretaker_s3refresh_dirty_targets{name="kept",namespace="ns"}': 1,
        'caretaker_s3refresh_due_timestamp_seconds{name="kept",namespace="ns"}': 2000,
        'caretaker_s3refresh_queue_messages{name="kept",namespace="ns",state="visible"}': 3,
        'caretaker_s3refresh_queue_messages{name="kept",namespace="ns",state="in_flight"}': 2,
        'caretaker_s3refresh_queue_messages{name="kept",namespace="ns",state="dead"}': 1,
    }


def test_conditions_that_stand_no_more_have_no_series(metrics: AllMetrics) -> None:
    key = ("DaemonTask", "ns", "t")
    labels = 'kind="DaemonTask",name="t",namespace="ns"'

    def shown() -> Samples:
        return {k: v for k, v in scrape(metrics).items() if "name=" in k}

    metrics.resources.show(
        key, [Condition("Ready", "False", "Paused"), Condition("Stalled", "True", "Paused")]
    )
    assert shown() == {
        f"caretaker_ready{{{labels}}}": 0,
        f'caretaker_condition{{{labels},reason="Paused",type="Ready"}}': 0,
        f'caretaker_condition{{{labels},reason="Paused",type="Stalled"}}': 1,
    }
    metrics.resources.show(key, [Condition("Ready", "True", "Succeeded"), Condition("X", "Unknown", "Y")])
    assert shown() == {
        f"caretaker_ready{{{labels}}}": 1,
        f'caretaker_condition{{{labels},reason="Succeeded",type="Ready"}}': 1,
        f'caretaker_condition{{{labels},reason="Y",type="X"}}': -1,
    }
    metrics.resources.forget(("DaemonTask", "ns", "other"))
    metrics.resources.forget(key)
    assert shown() == {}


def test_whoever_does_not_lead_tells_of_no_resource(metrics: AllMetrics) -> None:
    metrics.resources.show(("IMDSPolicy", "", "p"), [Condition("Ready", "True", "Audited")])
    metrics.daemontask.set_nodes("ns", "t", {"desired": 1})
    metrics.daemontask.set_results("ns", "t", {("a", "ms", "max"): 3.0})
    metrics.s3refresh.show(("ns", "r"), 1, 1000.0)
    metrics.s3refresh.messages(("ns", "r"), 3, 2, 1)
    metrics.imds.found("p", dict.fromkeys(STATES, 1))
    metrics.resources.clear()
    for kind in (metrics.daemontask, metrics.s3refresh, metrics.imds):  # each kind's stop(): test_contract.py
        kind.clear()
    assert [series for series in scrape(metrics) if "name=" in series] == []
    metrics.daemontask.set_results("ns", "t", {("b", "ms", "max"): 3.0})
    metrics.daemontask.forget("ns", "t")
    assert [series for series in scrape(metrics) if "name=" in series] == []


def test_a_state_that_is_not_told_is_zero(metrics: AllMetrics) -> None:
    metrics.daemontask.set_nodes("ns", "t", {"failed": 2})
    metrics.daemontask.set_nodes("ns", "t", {"succeeded": 2})
    samples = scrape(metrics)
    assert samples['caretaker_daemontask_nodes{name="t",namespace="ns",state="failed"}'] == 0
    assert samples['caretaker_daemontask_nodes{name="t",namespace="ns",state="succeeded"}'] == 2


@pytest.mark.parametrize(
    ("verb", "code", "label", "timed"),
    [
        pytest.param("create", 201, "201", 1, id="an answered request is counted and timed"),
        pytest.param("create", 0, "<error>", 1, id="an unanswered request has no status"),
        pytest.param("watch", 200, "200", 0, id="a watch is counted, its hour is not a latency"),
    ],
)
def test_a_request_is_counted(metrics: AllMetrics, verb: str, code: int, label: str, timed: int) -> None:
    metrics.api.request(verb, "pods", code, 0.02)
    samples = scrape(metrics)
    labels = f'code="{label}",resource="pods",verb="{verb}"'
    assert samples[f"caretaker_api_requests_total{{{labels}}}"] == 1
    count = samples.get(f'caretaker_api_request_seconds_count{{resource="pods",verb="{verb}"}}', 0)
    assert count == timed


def test_a_missing_permission_shows_until_it_is_granted(metrics: AllMetrics) -> None:
    series = 'caretaker_missing_permission{resource="pods",verb="create"}'
    metrics.api.permission("create", "pods", missing=True)
    assert scrape(metrics)[series] == 1
    metrics.api.permission("create", "pods", missing=False)
    assert scrape(metrics)[series] == 0


def test_a_reflectors_age_is_read_at_the_scrape(metrics: AllMetrics) -> None:
    ages = iter((1.0, 2.0))
    metrics.watches.age.labels("nodes").set_function(lambda: next(ages))
    series = 'caretaker_reflector_age_seconds{resource="nodes"}'
    assert [scrape(metrics)[series] for _ in range(2)] == [1.0, 2.0]


def test_codes_of_aws_are_bounded_whatever_answers_at_an_endpoint(metrics: AllMetrics) -> None:
    for number in range(500):
        metrics.aws.request("sqs", "ReceiveMessage", f"Code{number}", None)
    for code in ("", "OK\n", "x" * 100):
        metrics.aws.request("sqs", "ReceiveMessage", code, 0.1)
    samples = scrape(metrics)
    series = {k: v for k, v in samples.items() if k.startswith("caretaker_aws_requests_total")}
    assert len(series) == 102
    labels = 'operation="ReceiveMessage",service="sqs"'
    assert series[f'caretaker_aws_requests_total{{code="other",{labels}}}'] == 402
    assert series[f'caretaker_aws_requests_total{{code="<error>",{labels}}}'] == 1
    assert samples[f"caretaker_aws_request_seconds_count{{{labels}}}"] == 3


class Steps:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_largest_lag_is_the_last_minutes(metrics: AllMetrics) -> None:
    clock = Steps()
    lag = LoopLag(metrics, clock)
    for at, value in ((0.0, 0.5), (10.0, 0.2), (30.0, 0.3), (31.0, 0.1), (32.0, -0.001)):
        clock.now = 1000.0 + at
        lag.record(value)
    shown = []
    for at in (32.0, 60.5, 90.5, 91.5, 92.5):
        clock.now = 1000.0 + at
        shown.append(scrape(metrics)["caretaker_loop_lag_max_seconds"])
    assert shown == [0.5, 0.3, 0.1, 0.0, 0.0]


@pytest.mark.parametrize(
    ("lag", "later", "fails"),
    [
        pytest.param(9.9, 0.0, False, id="a lag within the limit is healthy"),
        pytest.param(10.1, 0.0, True, id="a stall beyond the limit is told"),
        pytest.param(10.1, 5.5, False, id="a stall that is over is forgiven"),
    ],
)
def test_the_loops_health(metrics: AllMetrics, lag: float, later: float, fails: bool) -> None:
    clock = Steps()
    monitor = LoopLag(metrics, clock)
    monitor.record(lag)
    clock.now += later
    reason = monitor.check()
    assert (reason is not None) == fails
    assert reason is None or "10.1 s" in reason
