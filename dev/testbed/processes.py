"""The processes of one cluster: started in sessions of their own, recorded, and always reaped.

Input: a folder, where the record (`processes.json`) and the logs are kept. It must never end a
process that it did not start: a record names the process by id *and* start time, since ids are reused.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

PARENT_VARIABLE: Final = "CONTROLPLANE_PARENT"  # read by dev/controlplane/main.go
# psutil derives the start time from the boot time, which moves when the clock is set.
START_TOLERANCE_SECONDS: Final = 2.0
LOG_TAIL_LINES: Final = 15
_WATCHER: Final = "watcher"
_LOOK_SECONDS: Final = 0.5


class Processes:
    """Start, watch and stop named processes whose record lives in `folder`."""

    def __init__(self, folder: Path, *, end_with_parent: bool) -> None:
        self._folder = folder
        self._record = folder / "processes.json"
        self._end_with_parent = end_with_parent
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> Path:
        """The file that takes a process's output."""
        return self._folder / "logs" / f"{name}.log"

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a process and return its id. Its session is its own, so that Ctrl-C reaches only us."""
        env = {**os.environ, **(environment or {})}
        env.pop(PARENT_VARIABLE, None)
        if self._end_with_parent:
            env[PARENT_VARIABLE] = str(os.getpid())
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        # An exception of Ctrl-C between the start and the record would lose the process.
        with self.log(name).open("ab") as log, signals_later():
            child = subprocess.Popen(
                command,
                env=env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._children[name] = child
            with contextlib.suppress(psutil.NoSuchProcess):
                self._write(self._read() | {name: (child.pid, psutil.Process(child.pid).create_time())})
        return child.pid

    def watch(self) -> None:
        """Have what is recorded here end with this process, for programs that do not know PARENT_VARIABLE."""
        if self._end_with_parent:
            command = [sys.executable, "-m", __name__, str(self._folder)]
            self.start(_WATCHER, command, {"PYTHONPATH": str(Path(__file__).parents[1])})

    def dead(self) -> dict[str, int]:
        """Exit codes, by name, of the children that ended without being stopped."""
        return {name: code for name, child in self._children.items() if (code := child.poll()) is not None}

    def running(self) -> dict[str, psutil.Process]:
        """The recorded processes that are alive, whoever started them."""
        found = {name: _same(pid, started) for name, (pid, started) in self._read().items()}
        return {name: process for name, process in found.items() if process is not None}

    def recorded(self) -> set[str]:
        """The names that were started and not stopped since."""
        return set(self._read())

    def stop(self, names: Iterable[str] | None = None, *, grace: float = 5.0, hard: bool = False) -> None:
        """End the named processes (all by default) and forget them; `grace` seconds, then SIGKILL."""
        wanted = set(names) if names is not None else self.recorded() | set(self._children)
        victims = [process for name, process in self.running().items() if name in wanted]
        for process in victims:
            _signal(process, signal.SIGKILL if hard else signal.SIGTERM)
        _, left = psutil.wait_procs(victims, timeout=grace)
        for process in left:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(left, timeout=grace)
        for name in wanted:
            if child := self._children.pop(name, None):
                child.wait()
        self._write({name: entry for name, entry in self._read().items() if name not in wanted})

    def log_tail(self, name: str) -> str:
        """The last lines of a process's log."""
        lines = self.log(name).read_text(errors="replace").splitlines() if self.log(name).exists() else []
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _read(self) -> dict[str, tuple[int, float]]:
        try:
            data = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {name: (pid, started) for name, (pid, started) in data.items()}

    def _write(self, entries: Mapping[str, tuple[int, float]]) -> None:
        if not entries:
            self._record.unlink(missing_ok=True)
            return
        fresh = self._record.with_suffix(".new")
        fresh.write_text(json.dumps(entries))
        fresh.replace(self._record)


def _same(pid: int, started: float) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        alive = process.status() != psutil.STATUS_ZOMBIE
        same = abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
    except psutil.NoSuchProcess:
        return None
    return process if alive and same else None


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM at the end of the block. They interrupt the main thread only.

    For what must not be torn apart, and for what leaves garbage behind that runs Python as it goes, as a
    response of urllib does: what is raised there is lost, of Ctrl-C in polls of an API server 3 in 100.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    own = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in own.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda late, _: caught.append(late))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for late in caught:
            signal.raise_signal(late)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _end_with(parent: int, folder: Path) -> None:
    """End what is recorded in the folder when our parent is gone, and this process last."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    kept = Processes(folder, end_with_parent=False)
    kept.stop(kept.recorded() - {_WATCHER}, hard=True)


if __name__ == "__main__":
    _end_with(int(os.environ[PARENT_VARIABLE]), Path(sys.argv[1]))
