"""Writes the Grafana dashboard: `python -m observability.dashboard > helm/caretaker/files/dashboard.json`.

Input: panels.py. A test keeps the file as this prints it. Grafana 11 and newer read it; its variables choose
the data source, the operators (job) and the namespaces of resources.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from observability.panel import Panel
from observability.panels import ROWS

COLUMNS: Final = 3
WIDTH: Final = 24 // COLUMNS  # of Grafana's 24
HEIGHT: Final = 7
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    return {
        "uid": "caretaker",
        "title": "caretaker",
        "tags": ["caretaker", "kubernetes"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "graphTooltip": 1,
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def text() -> str:
    """As the file holds it."""
    return json.dumps(dashboard(), indent=1) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    for name, label, query in (
        ("job", "Operator", "label_values(caretaker_build_info, job)"),
        ("namespace", "Namespace", "label_values(caretaker_ready, namespace)"),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _panels() -> Iterator[dict[str, Any]]:
    line, number = 0, 0
    for title, panels in ROWS.items():
        number += 1
        at = {"x": 0, "y": line, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}
        line += 1
        for place, panel in enumerate(panels):
            number += 1
            x, y = place % COLUMNS * WIDTH, line + place // COLUMNS * HEIGHT
            yield {"id": number, "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}, **_graph(panel)}
        line += -(-len(panels) // COLUMNS) * HEIGHT


def _graph(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 5,
        "showPoints": "never",
    }
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom},
            "overrides": [_coloured(name, colour) for name, colour in panel.colours.items()],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _coloured(name: str, colour: str) -> dict[str, Any]:
    """Whatever else the graph shows."""
    fixed = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
    return {"matcher": {"id": "byName", "options": name}, "properties": [fixed]}


if __name__ == "__main__":
    sys.stdout.write(text())
