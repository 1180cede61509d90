"""The command line as a person uses it: words in; exit code, stdout and stderr out.

`Cli` runs it in this process, in a thread, which is quick; `spawn` in a process of its own, on a terminal
where that matters. Both go through a proxy that counts what is asked of the API server.
"""

import asyncio
import contextlib
import io
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from caretaker.cli import main
from testing.operator import SOURCES


@dataclass(frozen=True)
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, decoded."""
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[str]:
        """stdout, by lines."""
        return self.out.splitlines()


class Cli:
    """Runs commands with one kubeconfig in one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    async def __call__(self, *argv: str, stdin: str = "", namespace: str | None = None) -> Said:
        """`caretaker ARGV`; always in the test's namespace unless another is given."""
        place = ("--kubeconfig", str(self.kubeconfig), "-n", namespace or self.namespace)
        return await asyncio.to_thread(_run, [argv[0], *place, *argv[1:]], stdin)


def _run(argv: list[str], stdin: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch("sys.stdin", io.StringIO(stdin)),
        ):
            code = main(argv)
    except SystemExit as end:  # argparse
        code = int(str(end.code))
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    return Said(code, out.getvalue(), err.getvalue())


def spawn(*argv: str, terminal: bool = False, **env: str) -> "tuple[subprocess.Popen[bytes], int]":
    """A command in a process, and a descriptor to read its stdout from: the terminal's, or a pipe's."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "caretaker", *argv],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            env=_environment(env),
        )
    finally:
        os.close(writer)
    return process, reader


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CARETAKER_", "NO_COLOR"))}
    return {**kept, "PYTHONPATH": str(SOURCES), "TERM": "xterm", "COLUMNS": "100", **more}
