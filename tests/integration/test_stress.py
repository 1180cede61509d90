"""`make stress` as a process."""

import subprocess
import sys
from pathlib import Path

from testbed.paths import CHECKOUT

TEST = """
import os, pathlib

def test_now_and_then(tmp_path):
    (tmp_path / "operator.log").write_text("what the operator wrote")
    with open({runs!r}, "a") as runs:
        runs.write(os.environ["MODEL_SEED"] + "\\n")
    assert len(pathlib.Path({runs!r}).read_text().splitlines()) < 3, "the third time"
"""


def stressed(test: str, *more: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "stress", test, "--load", "1", *more]
    env = {"PYTHONPATH": "operator:dev", "PATH": "/usr/bin:/bin"}
    found = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False)
    return found.returncode, found.stdout + found.stderr


def test_it_ends_with_the_run_that_fails_and_shows_its_seed_and_logs(tmp_path: Path) -> None:
    test, runs = tmp_path / "test_flaky.py", tmp_path / "runs"
    test.write_text(TEST.format(runs=str(runs)))
    code, told = stressed(str(test), "--times", "2")
    assert (code, told.count("passed in")) == (0, 2), told
    code, told = stressed(str(test), "--times", "5")
    assert code == 1, told
    seeds = runs.read_text().split()
    assert len(set(seeds)) == 3
    assert "the third time" in told
    assert "what the operator wrote" in told
    assert f"MODEL_SEED={seeds[2]};" in told


def test_a_test_that_does_not_exist_is_told() -> None:
    code, told = stressed("tests/unit/test_settings.py::test_nothing")
    assert code == 2
    assert "not found" in told
