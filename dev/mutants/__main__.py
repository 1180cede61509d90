"""`python -m mutants KIND [MODULE ...]` mutates modules of a kind, all that are pure without any, and prints
the score of each. What an earlier run has found is not tried again, but for the mutants that survived.

Exit 0 when each score reaches the target; 1 when one does not.
"""

import argparse
from typing import Final

from mutants.score import FILE, KILLED, TARGET, Change, Score, change, equivalents, obsolete, scored, table
from mutants.workplace import MutantsError, Workplace, modules
from testbed import ending

KINDS: Final = ("daemontask", "s3refresh", "imds", "aws", "api")


def main() -> int:
    """Run them, one after the other."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as plan, or ecs.plan")
    parser.add_argument("--fresh", action="store_true", help="try again what tests have killed, too")
    options = parser.parse_args()
    known = modules(options.kind)
    wanted = [f"{options.kind}.{name}" for name in options.modules] or known
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    return ending.run(lambda: _run(wanted, fresh=options.fresh), MutantsError)


def _run(wanted: list[str], *, fresh: bool) -> int:
    listed = equivalents(FILE.read_text())
    scores = [_one(module, listed, fresh=fresh) for module in wanted]
    print(f"\n{table(scores)}")
    return int(any(score.percent < TARGET for score in scores))


def _one(module: str, listed: dict[Change, str], *, fresh: bool) -> Score:
    print(f"== {module}", flush=True)
    place = Workplace(module)
    place.make(fresh=fresh)
    place.run()
    statuses = place.statuses()
    diffs = place.diffs([name for name, status in statuses.items() if status not in KILLED])
    changes = {name: change(name, diff) for name, diff in diffs.items()}
    score = scored(module, statuses, changes, listed)
    for name in score.survivors:
        print(f"# {name}: {statuses[name]}\n{diffs[name]}")
    for one in obsolete(module, changes.values(), listed):
        print(f"{FILE.name} lists what no longer survives: {one.place}: {one.before} -> {one.after}")
    print(table([score]), flush=True)
    return score


if __name__ == "__main__":
    raise SystemExit(main())
