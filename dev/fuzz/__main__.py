"""`python -m fuzz MINUTES [SUBJECT ...]` tries inputs on each subject: each place of its samples as large as
it may be, and then at random for a share of the time. It prints the longest call of each, and of a failure
the recipe, made as short as hypothesis finds it.

Exit 0 when nothing failed; 1 when something did. `.dev/fuzz` remembers what failed, and tries it first.
"""

import argparse
import sys
import time
import traceback
from typing import Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from caretaker.kube.metadata import RECURSION_LIMIT
from fuzz.cost import judge
from fuzz.inputs import RECIPES, Recipe, sweep
from fuzz.making import Subject
from fuzz.subjects import SUBJECTS
from testbed.paths import CHECKOUT

ROUND: Final = 50  # examples at a time


def main() -> int:
    """Fuzz them one after the other."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(SUBJECTS))
    options = parser.parse_args()
    wanted = options.subjects or list(SUBJECTS)
    if unknown := [name for name in wanted if name not in SUBJECTS]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(SUBJECTS)}")
    seconds = options.minutes * 60 / len(wanted)
    failed = [name for name in wanted if not fuzz(name, SUBJECTS[name], seconds)]
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return int(bool(failed))


def fuzz(name: str, subject: Subject, seconds: float) -> bool:
    """Whether nothing failed."""
    run, until = _Run(subject), time.monotonic() + seconds

    @settings(
        max_examples=ROUND,
        deadline=None,
        database=DirectoryBasedExampleDatabase(CHECKOUT / ".dev" / "fuzz"),
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(RECIPES)
    def attempt(recipe: Recipe) -> None:
        run.tried(recipe)

    try:
        for recipe in sweep(subject.inputs.places):
            run.tried(recipe)
        while time.monotonic() < until:
            attempt()
    except Exception as error:  # noqa: BLE001 - of any kind
        print(f"{name:20} FAILED: {_told(error)}\n    {run.last}", flush=True)
        return False
    print(f"{name:20} {run.count:7,} inputs, longest {run.longest * 1000:6.1f} ms: {run.slowest}", flush=True)
    return True


class _Run:
    """The inputs that were tried on one subject."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.count, self.longest = 0, 0.0
        self.last: Recipe = ()
        self.slowest: Recipe = ()

    def tried(self, recipe: Recipe) -> None:
        """Raise the fault, if there is one."""
        self.last = recipe
        call, size = self._subject.inputs.make(recipe)
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(RECURSION_LIMIT)  # as `caretaker run`; hypothesis has another
        try:
            took = judge(call, self._subject.typed, self._subject.seconds, size, self._subject.base)
        finally:
            sys.setrecursionlimit(usual)
        self.count += 1
        if took > self.longest:
            self.longest, self.slowest = took, recipe


def _told(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):  # of several failures, or of one that does not come again
        return "; ".join(map(_told, error.exceptions))
    frames = traceback.extract_tb(error.__traceback__)
    ours = next((f for f in reversed(frames) if "/caretaker/" in f.filename), frames[-1])
    place = f"{ours.filename.rpartition('/caretaker/')[2]}:{ours.lineno}"
    return f"{type(error).__name__}: {str(error)[:200]} ({place})"


if __name__ == "__main__":
    raise SystemExit(main())
