"""`python -m gotools [NAME ...]` prints the path of each tool, a line each; it builds what the cache lacks.

Without a name: all that tests need. Progress goes to stderr, so that `$(python -m gotools helm)` is the path.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence

import gotools
from testbed import ending
from testbed.compiling import BuildError


def main(arguments: list[str] | None = None) -> int:
    """0 when every tool is there, 1 with a line on stderr when not."""
    parser = argparse.ArgumentParser(prog="gotools", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(gotools.known())}")
    names = parser.parse_args(arguments).names or gotools.usual()
    return ending.run(lambda: _print(names), BuildError)


def _print(names: Sequence[str]) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        found = gotools.paths(names)
    print(*found, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
