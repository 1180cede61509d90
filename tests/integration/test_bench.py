"""The benches start from a checkout alone."""

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_a_bench_that_does_not_exist_is_named_beside_those_that_do() -> None:
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
    assert "daemontask-5000" in said.stderr
