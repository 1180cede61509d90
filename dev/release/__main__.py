"""`python -m release VERSION` (`make release`) writes dist/, or says in a line why there is no release."""

import argparse
import sys
from typing import Any

from chart import ChartError
from realnode.errors import NodeError
from release.checks import ReleaseError
from release.documents import SUMS
from release.images import CHOICES
from release.make import DIST, Asked, make
from testbed import ending
from testbed.compiling import BuildError
from testbed.paths import CHECKOUT


def main(arguments: list[str] | None = None) -> int:
    """0 when dist/ is written, 1 with a line on stderr when it is as it was."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("version", metavar="VERSION", nargs="?", default="")
    parser.add_argument("--repository", required=True, help="the address of the project's repository")
    parser.add_argument("--registry", required=True, help="where its images will be: ghcr.io/owner/name")
    parser.add_argument("--images", default="published", help=f"what they are built on: {', '.join(CHOICES)}")
    parser.add_argument("--builder", default="", help="builder.id of the provenance")
    options: dict[str, Any] = vars(parser.parse_args(arguments))
    errors = (ReleaseError, NodeError, ChartError, BuildError, OSError, ValueError)
    return ending.run(lambda: _told(Asked(**options)), *errors)


def _told(asked: Asked) -> None:
    made = make(asked)
    print(f"{DIST.relative_to(CHECKOUT)}/ has caretaker {made.version} of commit {made.commit[:12]}")
    for line in (DIST / SUMS).read_text().splitlines():
        print(f"  {line.split(maxsplit=1)[1]}")


if __name__ == "__main__":
    sys.exit(main())
