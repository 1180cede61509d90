"""The catalogue of metrics, its page, and that no label takes values without bound."""

from pathlib import Path

import pytest

from caretaker.api.conditions import Condition
from caretaker.imds.metrics import STATES
from caretaker.obs.metrics import Metrics
from observability import catalogue
from observability.page import described, page
from testing.allmetrics import AllMetrics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
NODE = "ip-10-0-12-34.eu-west-1.compute.internal"
INSTANCE = "i-0123456789abcdef0"
FOLDER = "/media/2026/11/report.csv"


def test_the_page_is_what_the_code_says() -> None:
    written = page()
    assert PAGE.read_text() == written, (
        "PYTHONPATH=dev .venv/bin/python -m observability.page > docs/metrics.md"
    )


def test_every_metric_is_in_the_catalogue_with_all_of_its_labels() -> None:
    listed = {name: set(metric.labels) for name, metric in catalogue.METRICS.items()}
    made = {name: set(one.labels) for name, one in described().items()}
    assert listed == made, "in dev/observability: kinds/ or catalogue.py"


def series(metrics: Metrics) -> list[tuple[str, dict[str, str]]]:
    return [(s.name, s.labels) for family in metrics.registry.collect() for s in family.samples]


def wrong(metrics: Metrics) -> list[str]:
    return [fault for name, labels in series(metrics) for fault in catalogue.unexpected(name, labels)]


def work(metrics: AllMetrics, objects: int) -> None:
    """What an operator sees of so many objects of each kind, with answers that are different each time."""
    for number in range(objects):
        name = f"object-{number}"
        ready = [Condition("Ready", "False", "Paused", f"{NODE}: {number}")]
        for kind, namespace in (("DaemonTask", "ns"), ("S3AggregatedRefresh", "ns"), ("IMDSPolicy", "")):
            metrics.resources.show((kind, namespace, name), ready)
            metrics.passes.error(kind, f"Reason{number}")
        metrics.daemontask.set_nodes("ns", name, {"desired": number})
        metrics.daemontask.set_results("ns", name, {("freePercent", "%", "min"): number})
        metrics.daemontask.runs.labels("Succeeded").inc()
        metrics.s3refresh.show(("ns", name), 1, 1000.0)
        metrics.s3refresh.messages(("ns", name), number, 0, 0)
        metrics.imds.found(name, dict.fromkeys(STATES, number))
        metrics.imds.changed(f"Code{number}")
        metrics.api.permission(f"verb{number}", f"resources{number}", missing=True)
        metrics.api.request("create", "pods", 201, 0.01)
        metrics.aws.request("ec2", "DescribeInstances", f"Code{number}", 0.1)
        metrics.aws.request("sqs", "ReceiveMessage", f"no word: {number}", 0.1)


def test_many_objects_have_no_other_labels_than_few() -> None:
    metrics = AllMetrics()
    work(metrics, 110)
    assert wrong(metrics) == []


def test_only_what_names_a_resource_grows_with_their_number() -> None:
    few, many = AllMetrics(), AllMetrics()
    work(few, 110)
    work(many, 330)

    def bounded(metrics: Metrics) -> int:
        return sum("name" not in labels for _, labels in series(metrics))

    assert bounded(many) == bounded(few) < 2000
    assert len(series(many)) > 2 * len(series(few))


@pytest.mark.parametrize(
    ("name", "labels", "told"),
    [
        pytest.param(
            "caretaker_api_requests_total",
            {"verb": "get", "resource": "pods", "code": "200", "node": NODE},
            "has a label node",
            id="a label that nobody documented",
        ),
        pytest.param(
            "caretaker_daemontask_nodes",
            {"namespace": "ns", "name": "t", "state": NODE},
            f"state='{NODE}'",
            id="a node's name where a state belongs",
        ),
        pytest.param(
            "caretaker_imds_changes_total",
            {"result": f"{INSTANCE}: cannot be changed"},
            "result=",
            id="a message where a code belongs",
        ),
        pytest.param(
            "caretaker_s3refresh_dirty_targets",
            {"namespace": "ns", "name": FOLDER},
            "name=",
            id="a folder where a resource's name belongs",
        ),
        pytest.param(
            "caretaker_reconcile_errors_total",
            {"kind": "Pod", "reason": "Retry"},
            "kind='Pod'",
            id="another kind",
        ),
        pytest.param("caretaker_new", {}, "caretaker_new is not in", id="a metric that nobody documented"),
        pytest.param(
            "caretaker_loop_lag_seconds_count", {"le": "1"}, "a label le", id="a bucket's label elsewhere"
        ),
    ],
)
def test_what_is_not_allowed_is_told(name: str, labels: dict[str, str], told: str) -> None:
    (fault,) = catalogue.unexpected(name, labels)
    assert told in fault


def test_other_collectors_metrics_are_not_looked_at() -> None:
    assert list(catalogue.unexpected("python_info", {"version": "3.11"})) == []
