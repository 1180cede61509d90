"""The Grafana dashboard: as its panels say, and asking for nothing that is not there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from caretaker.registry import KINDS
from observability.catalogue import METRICS
from observability.dashboard import text
from observability.expressions import faults

FILE = Path(__file__).resolve().parents[3] / "helm" / "caretaker" / "files" / "dashboard.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
GREEN, RED = "#73bf69", "#f2495c"
GRAPHS = {panel["id"]: panel for panel in BOARD["panels"] if panel["type"] != "row"}


def test_the_file_is_what_the_panels_say() -> None:
    assert FILE.read_text() == text(), (
        "PYTHONPATH=dev .venv/bin/python -m observability.dashboard > helm/caretaker/files/dashboard.json"
    )


def test_the_operator_and_each_kind_have_a_row() -> None:
    rows = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Operator", *(info.kind for info in KINDS)]


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=lambda graph: f"{graph['id']} {graph['title']}")
def test_a_panel_asks_for_what_is_there(graph: dict[str, Any]) -> None:
    for target in graph["targets"]:
        assert list(faults(target["expr"])) == []
        # What the legend names is what is left after grouping.
        left = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", target["expr"]))))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left
    assert graph["description"].endswith(".")


def colours(graph: dict[str, Any]) -> dict[str, str]:
    """Fixed ones, by legend."""
    return {
        override["matcher"]["options"]: rule["value"]["fixedColor"]
        for override in graph["fieldConfig"]["overrides"]
        for rule in override["properties"]
        if rule["id"] == "color" and rule["value"]["mode"] == "fixed"
    }


def legends(graph: dict[str, Any], label: str) -> set[str]:
    """What the legends that show a label, and the others, may be."""
    shown = set()
    for target in graph["targets"]:
        metric = re.search(r"caretaker_\w+", target["expr"])
        assert metric is not None
        values = METRICS[metric[0]].labels.get(label)
        left_out = re.findall(rf'{label}!="(\w+)"', target["expr"])
        for value in set(values.values if values else ("",)) - set(left_out):
            shown.add(target["legendFormat"].replace(f"{{{{{label}}}}}", value))
    return shown


@pytest.mark.parametrize(
    ("title", "label", "good", "bad"),
    [
        ("Nodes by state", "state", "succeeded", "failed"),
        ("Nodes by state", "state", "compliant", "failed"),
        ("Runs that ended", "result", "Succeeded", "Failed"),
        ("Refreshes", "result", "Accepted", "Failed"),
        ("Targets that wait, and messages", "state", None, "messages dead"),
    ],
)
def test_what_is_good_is_green_and_what_is_bad_red(
    title: str, label: str, good: str | None, bad: str
) -> None:
    (graph,) = [
        graph
        for graph in GRAPHS.values()
        if graph["title"] == title and (good is None or good in legends(graph, label))
    ]
    fixed = colours(graph)
    assert set(fixed) == legends(graph, label)
    assert len(set(fixed.values())) == len(fixed)
    assert [name for name, colour in fixed.items() if colour == GREEN] == ([good] if good else [])
    assert [name for name, colour in fixed.items() if colour == RED] == [bad]


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    cells = [
        (x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_variables_that_are_used_are_declared() -> None:
    declared = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))) - {"__rate_interval"}
    assert used == declared
