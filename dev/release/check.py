"""`python -m release.check` (`make release-check`) says in a line why a dist/ cannot be checked, before
anything is started; and has in the cache what tests/node/release needs, which checks the rest.
"""

import argparse
import sys
from pathlib import Path

import gotools
from realnode import kind
from realnode.errors import NodeError
from release import dist
from release.checks import ReleaseError
from release.publish import TOOLS
from testbed import ending
from testbed.compiling import BuildError


def main(arguments: list[str] | None = None) -> int:
    """0 when it can be checked, 1 with a line on stderr when not."""
    parser = argparse.ArgumentParser(prog="release.check", description=__doc__)
    parser.add_argument("dist", type=Path, help="what `make release` wrote")
    parser.add_argument("--previous", default="", help="the dist/ of the release before")
    options = parser.parse_args(arguments)
    errors = (ReleaseError, NodeError, BuildError, OSError)
    return ending.run(lambda: _check(options.dist, options.previous), *errors)


def _check(folder: Path, previous: str) -> None:
    found = dist.read(folder)
    print(f"{folder} is whole: caretaker {found.version}, its images and chart for {found.registry}")
    if previous:
        before = dist.read(Path(previous))
        if before.version == found.version:
            raise ReleaseError(
                f"PREVIOUS={previous} is {before.version}, too: give the dist/ of an older one"
            )
        print(f"{previous} is whole: caretaker {before.version}, from which it is upgraded")
    kind.check()
    gotools.paths([*TOOLS, "registry"])
    kind.prepare(ours=False)


if __name__ == "__main__":
    sys.exit(main())
