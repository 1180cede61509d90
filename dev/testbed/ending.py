"""How programs of this folder end: with their errors in a line, and in order when they are interrupted."""

import signal
import sys
from collections.abc import Callable
from types import FrameType


def run(work: Callable[[], int | None], *errors: type[Exception], quiet: bool = False) -> int:
    """The exit code of `work`, 0 for None: 1 with a line on stderr for one of `errors`, 130 when interrupted,
    which is told unless `quiet`.

    `work` has unwound then, so that nothing it started is left. make sends SIGTERM to its children when it is
    ended itself.
    """
    signal.signal(signal.SIGTERM, _terminate)
    # A shell that starts a program in the background has it ignore SIGINT, and all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return work() or 0
    except errors as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if not quiet:
            print("interrupted: nothing is left running", file=sys.stderr)
        return 130


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
