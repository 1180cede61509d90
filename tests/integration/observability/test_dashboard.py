"""The dashboard's expressions, read by Prometheus' own tool."""

import subprocess
from pathlib import Path

import yaml

import gotools
from observability.panel import plain
from observability.panels import ROWS


def test_every_expression_is_promql(tmp_path: Path) -> None:
    asked = [plain(query) for panels in ROWS.values() for panel in panels for query, _ in panel.queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(asked)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = [gotools.path("promtool"), "check", "rules", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert f"{len(asked)} rules found" in done.stdout
