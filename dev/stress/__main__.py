"""`python -m stress TEST [--times 50] [--load 2] [--lag 0.7]` repeats tests until one fails, beside `load`
processes that each burn a CPU. TEST: a file or folder, a test's ID, or an expression as `pytest -k` has it.
With `lag`, operators are behind: their writes of status and the events of their own watches come so many
seconds late (tests/testing/pace.py).

Each run has a seed of its own for what is random. Of the run that failed it prints the seed, what pytest
printed, with a timeline of the test that failed (tests/testing/timeline.py), and the end of each log that its
processes wrote; the folder with the logs stays.

Exit 0 when no run failed; 1 when one did; 2 when pytest found no test, or TEST is none.
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from testbed import ending
from testbed.paths import CHECKOUT, STATE

FOLDER: Final = STATE / "stress" / str(os.getpid())  # two may run at once
LINES: Final = 200  # of each log
SOURCES: Final = [str(CHECKOUT / folder) for folder in ("operator", "dev", "tests")]  # as pytest has them
# Ends with its parent, however that ends.
BURN: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
NO_TESTS: Final = (2, 3, 4, 5)  # pytest: interrupted, its own error, a wrong command line, no test collected


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="stress", description=__doc__)
    parser.add_argument("test", metavar="TEST")
    parser.add_argument("--times", type=int, default=50, help="runs; 50 by default")
    parser.add_argument("--load", type=int, default=2, help="processes that burn a CPU; 2 by default")
    parser.add_argument(
        "--lag", type=float, default=0.0, help="seconds that operators are behind; 0 by default"
    )
    options = parser.parse_args()
    return ending.run(lambda: _stress(options))


def _stress(options: argparse.Namespace) -> int:
    with _burning(options.load):
        for number in range(1, options.times + 1):
            if code := _run(options.test, number, options.times, options.lag):
                return code
    shutil.rmtree(FOLDER, ignore_errors=True)
    return 0


def _run(test: str, number: int, times: int, lag: float) -> int:
    seed, began = random.randrange(2**32), time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    file = (CHECKOUT / test.partition("::")[0]).exists()
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-p", "testing.timeline", f"--basetemp={FOLDER / 'tmp'}"]
    command += [test] if file else ["tests", "-k", test]
    env = {**os.environ, "MODEL_SEED": str(seed), "PYTHONPATH": os.pathsep.join(SOURCES)}
    env["OPERATOR_LAG"] = str(lag)
    found = subprocess.run(command, cwd=CHECKOUT, env=env, stdout=-1, stderr=-2, text=True, check=False)
    took = time.monotonic() - began
    if not found.returncode:
        print(f"{number}/{times}: passed in {took:.0f} s", flush=True)
        return 0
    print(found.stdout)
    for log in sorted(FOLDER.rglob("*.log")):
        print(f"== {log.relative_to(CHECKOUT)}")
        print("\n".join(log.read_text(errors="replace").splitlines()[-LINES:]))
    print(f"{number}/{times}: failed in {took:.0f} s with MODEL_SEED={seed}; its files: {_shown(FOLDER)}")
    return 2 if found.returncode in NO_TESTS else 1


def _shown(folder: Path) -> str:
    return str(folder.relative_to(CHECKOUT))


@contextlib.contextmanager
def _burning(load: int) -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(load)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


if __name__ == "__main__":
    raise SystemExit(main())
