"""A failure in a fork of `--fork` fails the run, and is printed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIRST = "def test_first(): pass\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "fails", "printed"),
    [
        ("def test_second(): pass\n", False, "test_b.py::test_second PASSED"),
        ("def test_second(): assert not 'so'\n", True, "FAILED test_b.py::test_second"),
        ("import os\ndef test_second(): os._exit(9)\n", True, "test_b.py::test_second"),
    ],
    ids=["it passes", "it fails", "it ends the process"],
)
def test_the_run_of_the_forks_is_that_of_all(tmp_path: Path, second: str, fails: bool, printed: str) -> None:
    """Of two files each runs in a process of its own where there are two processors."""
    (tmp_path / "test_a.py").write_text(FIRST)
    (tmp_path / "test_b.py").write_text(second)
    command = [sys.executable, "-m", "pytest", "-v", "--fork", "-p", "testing.sharing", "--rootdir", "."]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert bool(ran.returncode) == fails, ran.stdout + ran.stderr
    assert "test_a.py::test_first PASSED" in ran.stdout
    assert printed in ran.stdout
