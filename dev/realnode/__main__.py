"""Command line of the real nodes: `python -m realnode check | prepare`."""

import argparse
import os
import sys

from realnode import kind
from realnode.errors import NodeError
from testbed import ending
from testbed.compiling import BuildError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when what it promises holds, 1 with lines on stderr when not."""
    parser = argparse.ArgumentParser(prog="realnode", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="tell whether kind can run here, installing packages if root may")
    commands.add_parser("prepare", help="make what kind needs here unless the cache has it")
    options = parser.parse_args(arguments)
    return ending.run(_check if options.command == "check" else kind.prepare, BuildError, NodeError)


def _check() -> int:
    try:
        kind.check()
    except NodeError as error:
        frame = "!" * 78
        lines = [frame, "NOT TESTED ON A REAL NODE:", f"  {error}"]
        lines += ["In CI this is a failure." if os.environ.get("CI") else "", frame]
        print("\n".join(line for line in lines if line), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
