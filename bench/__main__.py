"""`python -m bench [NAME ...]`: measures, prints tables, writes .dev/bench/NAME.json.

Exits 1 when a target is missed, after all benches have run; 2 for an unknown name; 130 when interrupted.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from bench import attacks, aws, daemontask, ecs, figures, gate, imds, many, radius, s3refresh, schedule
from testbed import ending

BENCHES: Final[dict[str, Callable[[], Coroutine[Any, Any, list[figures.Figure]]]]] = {
    "daemontask": daemontask.thousand,
    "daemontask-5000": daemontask.five_thousand,
    "daemontask-schedule": schedule.tick,
    "daemontask-many": many.many,
    "daemontask-radius": radius.radius,
    "daemontask-gate": gate.gate,
    "aws": aws.run,
    "s3refresh": s3refresh.run,
    "imds": imds.run,
    "ecs": ecs.run,
    "attacks": attacks.run,
}


def main(arguments: list[str]) -> int:
    """Run the named benches, all without names."""
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, epilog=f"there are: {', '.join(BENCHES)}"
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench named {', '.join(unknown)}; there are: {', '.join(BENCHES)}")
    missed: list[str] = []
    for name in names or BENCHES:
        print(f"== {name}: {figures.machine()}", flush=True)
        found = asyncio.run(BENCHES[name]())
        path = figures.write(name, found)
        print(f"\n{figures.table(found)}\n\nwritten to {path}", flush=True)
        missed += [f"{name}: {line}" for line in figures.missed(found)]
    if missed:
        print("\ntargets missed:", *missed, sep="\n  ", file=sys.stderr)
    return 1 if missed else 0


def run(arguments: list[str]) -> int:
    """main(), which leaves nothing running when it is interrupted."""
    return ending.run(lambda: main(arguments))


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
