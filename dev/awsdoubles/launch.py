"""Start, await and stop the server process of a double.

Inputs: a folder for its logs, state and record of processes. A server listens on a free loopback port, or,
where `host` is set before the start, on one of that address. It must leave no process behind: not on failure,
not on Ctrl-C, and, unless detached, not when the process that started it is killed.
"""

import os
import random
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from awsdoubles.cached import DoubleError
from awsdoubles.loopback import DIRECT, LOOPBACK
from testbed.cluster import PORT_RANGE
from testbed.processes import Processes, signals_later

START_TIMEOUT: Final = 240.0
START_ATTEMPTS: Final = 3
LOG_LINES: Final = 15
GUARD: Final = Path(__file__).with_name("guard.py")


class Server(ABC):
    """One server process; subclasses say how it is called and where it answers once it is ready."""

    name: ClassVar[str]
    host: str = LOOPBACK

    def __init__(self, folder: Path, *, detached: bool = False) -> None:
        self.folder = folder.resolve()
        self.port = 0
        self._detached = detached
        self._processes = Processes(self.folder, end_with_parent=not detached)

    @abstractmethod
    def prepare(self) -> None:
        """Fetch what the server needs; safe to call twice."""

    @abstractmethod
    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command and the variables to set; called once for each attempt to start."""

    @property
    def ready_path(self) -> str:
        """Answers 200 once the server is ready."""
        return "/"

    @property
    def url(self) -> str:
        """http://HOST:PORT"""
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Fetch and start; returns once the server answers."""
        self.prepare()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for attempt in range(1, START_ATTEMPTS + 1):
                self.stop()
                self.port = free_port(self.host)
                if self._came_up(last=attempt == START_ATTEMPTS):
                    break
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the process, whoever started it in this folder."""
        self._processes.stop([self.name], hard=self._detached)

    def alive(self) -> bool:
        """Whether the recorded process runs."""
        return self.name in self._processes.running()

    def _came_up(self, *, last: bool) -> bool:
        command, variables = self.command(self.port)
        if not self._detached:
            command = [sys.executable, str(GUARD), str(os.getpid()), *command]
        self._processes.log(self.name).unlink(missing_ok=True)
        self._processes.start(self.name, command, variables)
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with signals_later():
                answers = self._answers()
            if answers:
                return True
            if self.name in self._processes.dead():
                if "in use" in self._log().lower() and not last:
                    return False
                raise DoubleError(f"{self.name} ended at its start; its log:\n{self._log()}")
            if time.monotonic() > deadline:
                raise DoubleError(
                    f"{self.name}: no answer within {START_TIMEOUT:.0f} s; its log:\n{self._log()}"
                )
            time.sleep(0.05)

    def _log(self) -> str:
        """Both ends: Java says at the top what is wrong, Python at the bottom."""
        lines = self._processes.log(self.name).read_text(errors="replace").splitlines()
        if len(lines) <= 2 * LOG_LINES:
            return "\n".join(lines)
        return "\n".join([*lines[:LOG_LINES], "...", *lines[-LOG_LINES:]])

    def _answers(self) -> bool:
        try:
            with DIRECT.open(self.url + self.ready_path, timeout=2) as response:
                return bool(response.status == 200)
        except OSError:  # urllib's own errors, HTTP statuses from 400 on included, are OSErrors
            return False


def free_port(host: str = LOOPBACK) -> int:
    """A port that nobody listens on now, below those of outgoing connections."""
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(*PORT_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        return port
