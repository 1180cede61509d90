"""The chart's alerts, judged by Prometheus' own tool: each fires when it should, and does not when not."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import gotools
from caretaker.api.conditions import Condition
from caretaker.imds.metrics import STATES
from testing.alertcases import CASES, FILES, RULES
from testing.alertcases.notation import OPERATOR, Case, series
from testing.allmetrics import AllMetrics


@pytest.fixture(scope="session")
def promtool() -> Path:
    return gotools.path("promtool")


def run(promtool: Path, *arguments: str | Path) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def check(promtool: Path, folder: Path, *tests: dict[str, Any]) -> None:
    file = folder / "test.yaml"
    content = {"rule_files": [str(file) for file in FILES], "evaluation_interval": "1m", "tests": list(tests)}
    file.write_text(yaml.safe_dump(content))
    run(promtool, "test", "rules", file)


def firing(alert: str, case: Case) -> list[dict[str, Any]]:
    """What Prometheus' own series of alerts should have."""
    assert case.fires is not None
    severity = RULES[alert]["labels"]["severity"]
    labels = {"alertname": alert, "alertstate": "firing", "severity": severity, **case.fires}
    return [{"labels": series("ALERTS", labels), "value": 1}]


def as_promtool(alert: str, what: str, case: Case) -> dict[str, Any]:
    asked = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    if case.fires is None:
        never = f"last_over_time({asked}[{case.at}])"
        expected: list[dict[str, Any]] = [{"expr": never, "eval_time": case.at, "exp_samples": []}]
    else:
        before = f"{int(case.at.removesuffix('m')) - 2}m"
        expected = [
            {"expr": asked, "eval_time": before, "exp_samples": []},
            {"expr": asked, "eval_time": case.at, "exp_samples": firing(alert, case)},
        ]
    return {
        "name": f"{alert}: {what}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": expected,
    }


def healthy() -> dict[str, str]:
    """What an operator with a standby and one resource of each kind shows for three hours of health."""
    metrics = AllMetrics()
    metrics.leader.set(1)
    metrics.loop_lag_max.set(0.05)
    metrics.watches.age.labels("pods").set_function(lambda: 60.0)
    metrics.api.permission("create", "pods", missing=False)
    for kind, reason in (("DaemonTask", "RolloutComplete"), ("S3AggregatedRefresh", "Consuming")):
        metrics.resources.show((kind, "ns", "r"), [Condition("Ready", "True", reason)])
    enforcing = [
        Condition(name, "True", "Enforced") for name in ("Ready", "Enforcing", "Compliant", "Verified")
    ]
    metrics.resources.show(("IMDSPolicy", "", "r"), enforcing)
    metrics.daemontask.set_nodes("ns", "r", {"desired": 20, "succeeded": 20})
    metrics.s3refresh.show(("ns", "r"), 0, 0.0)
    metrics.s3refresh.messages(("ns", "r"), 3, 2, 0)
    metrics.imds.found("r", {**dict.fromkeys(STATES, 0), "compliant": 20})
    metrics.imds.changed("Changed")
    metrics.api.request("list", "nodes", 200, 0.1)
    metrics.aws.request("ec2", "DescribeInstances", "OK", 0.1)
    metrics.aws.request("ec2", "ModifyInstanceMetadataOptions", "DryRunOperation", 0.1)
    own = ("job", "pod")
    standby = {series("caretaker_leader", {"job": OPERATOR["job"], "pod": "standby"}): "0x180"}
    return standby | {
        series(sample.name, {**{name: OPERATOR[name] for name in own}, **sample.labels}): (
            "0+5x180" if family.type in ("counter", "histogram") else f"{sample.value:g}x180"
        )
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def test_a_healthy_operator_wakes_nobody(promtool: Path, tmp_path: Path) -> None:
    asked = [
        {"expr": 'ALERTS{alertstate="firing"}', "eval_time": at, "exp_samples": []}
        for at in ("10m", "45m", "100m", "179m")
    ]
    names = [{"series": name, "values": values} for name, values in healthy().items()]
    assert len(names) > 100
    check(promtool, tmp_path, {"interval": "1m", "input_series": names, "promql_expr_test": asked})


def test_the_files_are_valid(promtool: Path) -> None:
    told = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *FILES)
    assert sum(map(int, re.findall(r"(\d+) rules found", told))) == len(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_when_it_should_and_not_when_not(promtool: Path, tmp_path: Path, alert: str) -> None:
    check(promtool, tmp_path, *(as_promtool(alert, what, case) for what, case in CASES[alert].items()))
