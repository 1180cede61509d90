"""Run a command for as long as the process that asked for it lives: `guard.py PARENT COMMAND...`.

A parent that is killed cannot stop what it started. Standard library only: this runs as a file of its
own, beside programs that know nothing of us. It must not outlive its child.
"""

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

POLL_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> int:
    """Exit as the command does, or with 1 once the parent is gone."""
    child = subprocess.Popen(command, preexec_fn=_end_with_guard)  # noqa: PLW1509  no thread runs here

    def end(_number: int, _frame: FrameType | None) -> None:
        child.kill()

    signal.signal(signal.SIGTERM, end)
    while True:
        try:
            return child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                child.kill()
                child.wait()
                return 1


def _end_with_guard() -> None:
    """On Linux the child goes even when the guard itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
