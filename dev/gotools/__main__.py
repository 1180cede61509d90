"""`python -m gotools [NAME ...]` prints the path of each tool, a line each; it builds what the cache lacks.

Without a name: all that tests need. Progress goes to stderr, so that `$(python -m gotools helm)` is the path.
"""

import argparse
import contextlib
import signal
import sys
from types import FrameType

import gotools
from testbed.compiling import BuildError


def main(arguments: list[str] | None = None) -> int:
    """0 when every tool is there, 1 with a line on stderr when not."""
    parser = argparse.ArgumentParser(prog="gotools", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(gotools.known())}")
    names = parser.parse_args(arguments).names or gotools.usual()
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = gotools.paths(names)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing is left running", file=sys.stderr)
        return 130
    print(*found, sep="\n")
    return 0


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
