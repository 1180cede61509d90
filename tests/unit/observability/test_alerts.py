"""What stands in the chart's alerts: labels, words, runbooks. When they fire is tested in integration."""

import re
from pathlib import Path

import pytest
import yaml

from caretaker.daemontask.ecs.snapshot import Snapshot
from observability.expressions import faults
from testing.alertcases import CASES, FILES, GROUPS, RULES
from unit.daemontask.ecs.states import CASES as ECS_CASES

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "operations.md"


def test_every_alert_has_cases_in_which_it_fires_and_in_which_not() -> None:
    assert set(CASES) == set(RULES)
    fires = {alert: {case.fires is not None for case in cases.values()} for alert, cases in CASES.items()}
    assert [alert for alert, both in fires.items() if both != {True, False}] == []


def test_what_alerts_ask_for_is_there() -> None:
    assert {alert: found for alert, rule in RULES.items() if (found := list(faults(rule["expr"])))} == {}


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_says_what_it_must(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{alert.lower()}"
    # A label that is not there shows as nothing.
    shown = {label for text in rule["annotations"].values() for label in re.findall(r"\$labels\.(\w+)", text)}
    assert [case for case in CASES[alert].values() if not shown <= set(case.fires or shown)] == []


def test_every_alert_has_its_entry_in_the_page_and_no_other() -> None:
    part = PAGE.read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^### (.+)$", part, re.MULTILINE)) == sorted(RULES)


@pytest.mark.parametrize(("given", "told"), ECS_CASES.values(), ids=ECS_CASES.keys())
def test_an_ecs_target_that_is_not_ready_has_an_alert_and_one_that_is_has_none(
    given: Snapshot, told: dict[str, str]
) -> None:
    """Of all its states, whatever reason is added: by Stalled, which has one of its own, or by Ready."""
    (named,) = re.findall(r'type="Ready",reason=~"([^"]+)"', RULES["DaemonTaskECSNotReady"]["expr"])
    wanted = told["Ready"].startswith("!") and "Stalled" not in told
    assert (told["Ready"].removeprefix("!") in named.split("|")) == wanted


def test_the_files_hold_nothing_but_groups_of_alerts() -> None:
    assert {key for file in FILES for key in yaml.safe_load(file.read_text())} == {"groups"}
    assert len(RULES) == sum(len(group["rules"]) for group in GROUPS)
    assert len({group["name"] for group in GROUPS}) == len(GROUPS)
    assert set(FILES) == set(FILES[0].parent.glob("*.yaml"))


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        pytest.param("sum(caretaker_nodes)", "no metric caretaker_nodes", id="a metric that is not there"),
        pytest.param('caretaker_ready{node="n"} == 0', "no label node", id="a label that is not there"),
        pytest.param('caretaker_ready{kind="Pod"} == 0', "kind is never Pod", id="a value that never is"),
        pytest.param('caretaker_ready{kind=~"Pod|Node"}', "never Pod|Node", id="a pattern that never fits"),
        pytest.param("max by (node) (caretaker_ready)", "has a label node", id="a grouping by nothing"),
        pytest.param("rate(caretaker_loop_lag_seconds[5m])", "is no series of", id="a histogram as a whole"),
        pytest.param("caretaker_leader_sum", "is no series of", id="a part of what is no histogram"),
    ],
)
def test_what_is_asked_for_in_vain_is_told(expression: str, told: str) -> None:
    (fault,) = faults(expression)
    assert told in fault


@pytest.mark.parametrize(
    "expression",
    [
        'sum by (name) (caretaker_ready{kind=~"DaemonTask|Pod",namespace="$namespace"})',
        "histogram_quantile(0.9, sum by (le) (rate(caretaker_loop_lag_seconds_bucket[5m])))",
        "max by (pod) (process_resident_memory_bytes)",
    ],
)
def test_what_is_there_may_be_asked_for(expression: str) -> None:
    assert list(faults(expression)) == []
