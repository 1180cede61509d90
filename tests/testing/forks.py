"""Operators forked from processes that have imported what an operator imports.

To import it takes an operator 0.5 to 1.4 s of CPU, as the machine is, the rest of its start less, and the
suite starts hundreds: a fifth of all that the integration tests compute. What is forked is a process like any
other, with its own environment, session and output; it runs `caretaker`'s main with its words, and ends as
an interpreter ends. Forks of one process have the same hashes of strings, and so orders of sets: two
processes take turns, so that the next life, or the other replica, has other ones. Benchmarks, the demo, and
whoever gives a command of their own start a new interpreter.

    with forks.serving():
        process = forks.start(["run", "--metrics-port", "0"], env)

The kernel (Linux) kills the forked ones when their server ends; servers end with who started them.
"""

import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

# What `caretaker run` imports in its first seconds, some of it only then.
IMPORTED: Final = (
    "caretaker.app",
    "caretaker.cli.run",
    "kubernetes.config.incluster_config",
    "kubernetes.config.kube_config",
)
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


# ---------------------------------------------------------------- those who start operators


class Forked:
    """A process that the server forked, with what is used of subprocess.Popen."""

    def __init__(self, pid: int, stdout: IO[str], told: socket.socket) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._told = told
        self._looking = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, minus the signal if one ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Block until it has ended; subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None and not self._ended(timeout):
            raise subprocess.TimeoutExpired(f"operator {self.pid}", timeout or 0)
        with self._looking:
            if self.returncode is None:
                # A server that was killed tells nothing: the kernel kills its operators.
                self.returncode = int(_line(self._told) or -signal.SIGKILL)
            return self.returncode

    def _ended(self, timeout: float | None) -> bool:
        look = select.poll()  # unlike select, of any number of open files
        try:
            look.register(self._told, select.POLLIN)
        except ValueError:  # closed meanwhile, by another thread that has waited for the end
            return True
        return bool(look.poll(None if timeout is None else timeout * 1000))

    def close(self) -> None:
        """Close its output and the socket; of one that runs only after wait."""
        self.stdout.close()
        self._told.close()

    def kill(self) -> None:
        """SIGKILL; nothing if it has ended."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM; nothing if it has ended."""
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        """Any signal; nothing if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Server:
    """The process that forks, from its first operator on."""

    def __init__(self) -> None:
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._asking = threading.Lock()

    def fork(self, argv: Sequence[str], env: Mapping[str, str], scale: float) -> Forked:
        reader, writer = os.pipe()
        stdout = open(reader, encoding="utf-8", errors="replace")  # noqa: SIM115 - Forked closes it
        told, tell = socket.socketpair()
        forked = Forked(0, stdout, told)
        try:
            # One after the other, to the answer: what is sent in parts must not mix.
            with self._asking:
                with os.fdopen(writer, "wb", 0), tell:
                    link = self._link or self._start(env["PYTHONPATH"])
                    request = {"argv": list(argv), "env": dict(env), "cwd": os.getcwd(), "scale": scale}
                    socket.send_fds(link, [json.dumps(request).encode() + b"\n"], [writer, tell.fileno()])
                forked.pid = int(_line(told))  # of a server that has ended: nothing, which is no number
        except (OSError, ValueError) as error:
            forked.close()
            raise RuntimeError("the server of operators has ended; its output tells why") from error
        except BaseException:  # Ctrl-C, or a time-out of the test
            forked.close()
            raise
        return forked

    def _start(self, sources: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            # -P: this folder has modules that are named like those of the standard library.
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": sources, "PYTHONUNBUFFERED": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._link = ours
        return ours

    def stop(self) -> None:
        if self._link is not None and self._process is not None:
            self._link.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise


_serving: list[Iterator[_Server]] = []


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """Operators are forked meanwhile; all that are left end with it."""
    servers = _Server(), _Server()
    turns = itertools.cycle(servers)
    _serving.append(turns)
    try:
        yield
    finally:
        _serving.remove(turns)
        for server in servers:
            server.stop()


def start(argv: Sequence[str], env: Mapping[str, str], scale: float = 1.0) -> Forked | None:
    """`caretaker ARGV` with that environment at that pace; None when nobody serves."""
    return next(_serving[-1]).fork(argv, env, scale) if _serving else None


# ---------------------------------------------------------------- the server, a program of its own


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork as asked until the link is closed: None then. Of a forked one: what was asked."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    with link, woken, wake, selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    _tell_ended(running)
                    continue
                data, fds, _, _ = socket.recv_fds(link, 1 << 16, 2)
                if not data:
                    return None
                while not data.endswith(b"\n"):
                    if not (more := link.recv(1 << 16)):
                        return None
                    data += more
                out, tell = fds[0], socket.socket(fileno=fds[1])
                server = os.getpid()
                pid = os.fork()
                if pid == 0:
                    for other in (*running.values(), tell):
                        other.close()
                    return _become(json.loads(data), out, server)
                os.close(out)
                running[pid] = tell
                try:
                    tell.send(b"%d\n" % pid)
                except OSError:  # who asked for it waits no more
                    os.kill(pid, signal.SIGKILL)


def _tell_ended(running: dict[int, socket.socket]) -> None:
    """The end of each that has ended, by its own socket, before its pid is free for another process."""
    for pid in list(running):
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            continue
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with running.pop(pid) as tell, contextlib.suppress(OSError):
            tell.send(b"%d\n" % code)
        os.waitpid(pid, 0)


def _become(request: dict[str, Any], out: int, server: int) -> dict[str, Any]:
    """A forked one gets what a new process would have got; returns the request."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # Ctrl-C goes to the tests, which end it in order
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = ["caretaker", *request["argv"]]
    return request


def _line(told: socket.socket) -> bytes:
    """A line without its end; empty when there is none any more."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := told.recv(1)):
            return b""
        line += byte
    return line[:-1]


def _main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or the first collection of every fork would copy every page
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        argv, scale = request["argv"], request["scale"]
        if scale != 1.0:
            sys.path.append(str(Path(__file__).parents[1]))
            importlib.import_module("testing.waits").shorten(scale, lease="--no-leader-elect" not in argv)
        raise SystemExit(importlib.import_module("caretaker.cli").main(argv))


if __name__ == "__main__":
    _main()
