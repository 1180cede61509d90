"""The score of a module: what its tests killed of the mutants that anybody could tell from the original.

Pure, but for reading equivalent.toml. There a mutant is known by its function and by the lines that it
changes, so that an entry holds until one of these is edited.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path(__file__).with_name("equivalent.toml")
TARGET: Final = 95.0
TIMEOUT: Final = "timeout"
# Of mutmut. A mutant that runs for ever or crashes the interpreter is noticed, too.
KILLED: Final = frozenset({"killed", TIMEOUT, "segfault"})


class Change(NamedTuple):
    """One mutant: `place` is module.function or module.Class.method, below `caretaker.`."""

    place: str
    before: str
    after: str


class Score(NamedTuple):
    """Counts of mutants, and those that survived without being listed, by mutmut's names. `timeouts`: of the
    killed; on a busy machine tests may only have been slow."""

    module: str
    killed: int
    timeouts: int
    equivalent: int
    survivors: tuple[str, ...]

    @property
    def percent(self) -> float:
        """Killed mutants of those that are not equivalent; 100 where there are none."""
        total = self.killed + len(self.survivors)
        return 100.0 * self.killed / total if total else 100.0


def place(name: str) -> str:
    """`caretaker.imds.canary.xǁRecordǁnext__mutmut_3` is a mutant in `imds.canary.Record.next`."""
    module, _, function = name.partition("__mutmut_")[0].removeprefix("caretaker.").rpartition(".")
    function = function[2:] if function.startswith("x_") else function[1:].strip("ǁ").replace("ǁ", ".")
    return f"{module}.{function}"


def change(name: str, diff: str) -> Change:
    """The mutant that `mutmut show` prints so."""
    body = [line for line in diff.splitlines() if not line.startswith(("--- ", "+++ "))]
    before, after = (
        " ".join(line[1:].strip() for line in body if line.startswith(sign)) for sign in ("-", "+")
    )
    return Change(place(name), before, after)


def equivalents(text: str) -> dict[Change, str]:
    """Why each of the listed mutants is equivalent."""
    found = {}
    for entry in tomllib.loads(text).get("equivalent", ()):
        for before, after in entry["changes"]:
            found[Change(entry["in"], before, after)] = entry["why"]
    return found


def scored(
    module: str, statuses: Mapping[str, str], changes: Mapping[str, Change], listed: Iterable[Change]
) -> Score:
    """`statuses`: mutmut's words by mutant. `changes`: the mutants that were not killed."""
    known = set(listed)
    alive = [name for name, status in statuses.items() if status not in KILLED]
    survivors = tuple(name for name in alive if changes[name] not in known)
    timeouts = sum(status == TIMEOUT for status in statuses.values())
    return Score(module, len(statuses) - len(alive), timeouts, len(alive) - len(survivors), survivors)


def obsolete(module: str, found: Iterable[Change], listed: Iterable[Change]) -> list[Change]:
    """Listed mutants of a module that no longer exist, or that a test kills."""
    alive = set(found)
    return [one for one in listed if one.place.startswith(f"{module}.") and one not in alive]


def table(scores: Iterable[Score]) -> str:
    """A line for each module."""
    lines = [
        f"{'module':<28} {'mutants':>7} {'killed':>7} {'timeout':>7} {'equivalent':>10} {'survived':>8} "
        f"{'score':>7}"
    ]
    for one in scores:
        total = one.killed + one.equivalent + len(one.survivors)
        lines.append(
            f"{one.module:<28} {total:>7} {one.killed:>7} {one.timeouts:>7} {one.equivalent:>10} "
            f"{len(one.survivors):>8} {one.percent:>6.1f}%"
        )
    return "\n".join(lines)
