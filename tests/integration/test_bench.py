"""The benches start from a checkout alone."""

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_a_bench_that_does_not_exist_is_named_beside_those_that_do_and_have_a_section_each() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(
        [sys.executable, "-m", "bench", "nothing"],
        cwd=CHECKOUT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert "no bench named nothing; there are: " in said.stderr
    there = said.stderr.partition("there are: ")[2].strip().split(", ")
    assert {"daemontask-5000", "daemontask-schedule", "daemontask-many"} <= set(there)
    page = (CHECKOUT / "docs" / "benchmarks.md").read_text()
    untold = [name for name in there if f"<!-- begin {name} -->" not in page or f"\n## {name}:" not in page]
    assert untold == []
