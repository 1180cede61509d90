"""caretaker run: the operator."""

import argparse
import asyncio
import ctypes
import faulthandler
from typing import Any, Final

from caretaker.cli.common import command
from caretaker.obs import log
from caretaker.settings import add_run_arguments, load

M_ARENA_MAX: Final = -8  # of glibc's malloc.h


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = command(
        commands,
        "run",
        "run the operator",
        example="caretaker run --metrics-port 0 --health-port 0 --log-format text",
    )
    add_run_arguments(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT."""
    # kopf takes a second to import: only this command imports it.
    from caretaker import app  # noqa: PLC0415
    from caretaker.obs.looplag import new_loop  # noqa: PLC0415

    settings = load(args)
    log.setup(settings.log_format, settings.log_level)
    _one_arena()
    faulthandler.enable()  # a crash in a C extension logs where each thread was
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(app.serve(settings))
    return 0


def _one_arena() -> None:
    """glibc keeps free memory for each of a few dozen threads: of large answers 5 MiB each. C libraries
    without arenas have no mallopt()."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
