"""The operator as a process: watched by its logs and metrics, killed at will.

It is started as users start it, or forked where `testing.forks` serves, as it does for all of pytest.

Inputs: a kubeconfig (usually ApiProxy's). It must leave no process behind: the kernel kills the operator
when the tests' process dies.

    with OperatorProcess(kubeconfig, "operator-a", time_scale=0.1) as operator:
        operator.kill9()
        operator.start()
        assert operator.metric("caretaker_leader") == 1
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from observability.catalogue import unexpected
from testing import forks
from testing.forks import Forked
from testing.suiterole import as_operator

SOURCES: Final = Path(__file__).resolve().parents[2] / "operator"
PACE: Final = Path(__file__).with_name("pace.py")
EXIT_SECONDS: Final = 10.0  # what `caretaker run` promises after SIGTERM
LINES_SHOWN: Final = 40
FAULTS: Final = ("Traceback (most recent call last)", "Fatal Python error")  # the latter of a crash
# A `command`: as users start it, whoever serves.
NEW_INTERPRETER: Final = (sys.executable, "-m", "caretaker", "run")

# PR_SET_PDEATHSIG = 1 (linux/prctl.h). In a program of its own, not in preexec_fn: Python deprecates
# running code between fork and exec of a process with threads. exec keeps the setting.
_REAPED: Final = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
# The signal is sent when the *thread* that forked ends (prctl(2)), so one thread that never does forks all.
_spawner: Final = ThreadPoolExecutor(1, "operator-spawner")

Samples = dict[str, float]


class OperatorError(AssertionError):
    """The operator did not do as expected; the message ends with its last log lines."""


class OperatorProcess:
    """`caretaker run` in a process of its own.

    kubeconfig  in its place, if there is one, that of the suite's operators (suiterole)
    name        the identity among replicas, and the prefix of failure messages
    namespace   watch this one only; None = all
    time_scale  factor on backoffs, floors and, from 0.4 on, Lease times
    skew        seconds that its wall clock is ahead; not forked if any
    allowed     regular expressions of log lines that may hold a Traceback
    exit_seconds  how long it may take to exit after SIGTERM
    command     in place of `caretaker run` (its flags are appended): a new interpreter, never a fork. One
                that is not `python -m caretaker` has the pace that it gives itself
    """

    def __init__(
        self,
        kubeconfig: Path | str,
        name: str = "operator",
        *,
        namespace: str | None = None,
        leader_elect: bool = True,
        time_scale: float = 1.0,
        skew: float = 0.0,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        allowed: Sequence[str] = (),
        exit_seconds: float = EXIT_SECONDS,
        command: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.metrics_port = 0
        self.health_port = 0
        self.allowed = tuple(allowed)
        self._exit_seconds = exit_seconds
        self._words = [
            *("--metrics-port", "0", "--health-port", "0", "--bind-host", "127.0.0.1"),
            *("--log-format", "json", "--kubeconfig", str(as_operator(kubeconfig))),
            *(("--namespace", namespace) if namespace else ()),
            *(() if leader_elect else ("--no-leader-elect",)),
            *args,
        ]
        self.command = command
        self._env = _environment(name, env or {})
        self._pace = time_scale, skew
        self._process: subprocess.Popen[str] | Forked | None = None
        self._reader: threading.Thread | None = None
        self._reaping = threading.Lock()
        self._lines: list[str] = []
        self._ended = False  # nothing more will be logged in this life
        self._changed = threading.Condition()

    # ------------------------------------------------------------ life

    def start(self, *, wait: bool = True, timeout: float = 180.0) -> Self:
        """Start; with `wait`, return once the HTTP servers are up (the log line `ready`)."""
        if self.running:
            raise OperatorError(f"{self.name} runs already")
        if self._process is not None:  # it ended by itself, or is just being killed by another thread
            self._reap(self._process)
        since, self._ended = len(self._lines), False
        with self._reaping:  # a fault's callback may kill it at once
            self._process = process = _begin(self.command, self._words, self._env, *self._pace)
            self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
            self._reader.start()
        if wait:
            self.wait_ready(timeout, since)
        return self

    def wait_ready(self, timeout: float = 180.0, since: int = 0) -> None:
        """Block until the HTTP servers are up and their ports known."""
        try:
            line = self.wait_log(lambda entry: entry.get("msg") == "ready", timeout, since)
        except BaseException:
            self.kill9()
            raise
        self.metrics_port, self.health_port = int(line["metrics_port"]), int(line["health_port"])

    def kill9(self) -> None:
        """SIGKILL, and wait until it is gone. Harmless when it is gone already."""
        process = self._process
        if process is None:
            return
        process.kill()
        self._reap(process)

    def terminate(self) -> None:
        """SIGTERM; OperatorError unless it exits with 0 within `exit_seconds`."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(self._exit_seconds)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise self._error(f"did not exit within {self._exit_seconds:g} s of SIGTERM") from None
        self._reap(process)
        if process.returncode != 0:
            raise self._error(f"exited with {process.returncode} on SIGTERM")

    def restart(self, *, kill: bool = False) -> Self:
        """End it, with SIGTERM or `kill` -9, and start it again."""
        if kill:
            self.kill9()
        else:
            self.terminate()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: the process stands still as if the machine had frozen."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def wait_exit(self, timeout: float = EXIT_SECONDS) -> int:
        """Block until it exits by itself; its exit code."""
        if self._process is None:
            raise OperatorError(f"{self.name} was not started")
        process = self._process
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._error(f"still runs after {timeout:g} s") from None
        self._reap(process)
        return code

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        process = self._process
        return process is not None and process.poll() is None

    @property
    def pid(self) -> int:
        """Of the running process; OperatorError if there is none."""
        if self._process is None:
            raise OperatorError(f"{self.name} does not run")
        return self._process.pid

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self.running:
                self._look_at_metrics()
        finally:
            self.kill9()
        if error is None:
            self.assert_clean_logs()
        else:  # pytest shows it with the failure
            print(self._error("ran while the test failed"), file=sys.stderr)

    def signal(self, number: int) -> None:
        """Send it a signal; nothing if it has ended."""
        if self._process is None:
            raise OperatorError(f"{self.name} does not run")
        self._process.send_signal(number)

    def _reap(self, process: subprocess.Popen[str] | Forked) -> None:
        # A fault's callback may kill in the proxy's thread what the test is ending in its own.
        with self._reaping:
            reader = self._reader
            if process is not self._process or reader is None:
                return
            process.wait()
            reader.join()
            if isinstance(process, Forked):
                process.close()
            elif process.stdout is not None:
                process.stdout.close()
            self._process = self._reader = None

    # ------------------------------------------------------------ logs

    @property
    def lines(self) -> list[str]:
        """All output so far, of all its lives."""
        with self._changed:
            return list(self._lines)

    @property
    def logs(self) -> list[dict[str, Any]]:
        """All log records so far; output that is no JSON object is left out."""
        return [entry for entry in map(_parsed, self.lines) if entry]

    def wait_log(
        self, where: Callable[[dict[str, Any]], bool], timeout: float = 180.0, since: int = 0
    ) -> dict[str, Any]:
        """Block until a record fits, among the lines from number `since` on; the record."""
        deadline, looked = time.monotonic() + timeout, since
        with self._changed:
            while True:
                for line in self._lines[looked:]:
                    entry = _parsed(line)
                    if entry and where(entry):
                        return entry
                looked = len(self._lines)
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    break
                self._changed.wait(left)
        raise self._error("ended" if left > 0 else f"did not log what was awaited within {timeout:g} s")

    def assert_clean_logs(self) -> None:
        """OperatorError if a line holds a Traceback, or the process crashed, and `allowed` does not excuse
        it."""
        for number, line in enumerate(self.lines):
            excused = any(re.search(pattern, line) for pattern in self.allowed)
            fault = next((text for text in FAULTS if text in line), "")
            if fault and not excused:
                context = "\n".join(self.lines[number : number + LINES_SHOWN])
                raise OperatorError(f"{self.name} logged a {fault}:\n{context}")

    def _read(self, process: subprocess.Popen[str] | Forked) -> None:
        if process.stdout is None:
            return
        for line in process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _error(self, what: str) -> OperatorError:
        tail = "\n".join(self.lines[-LINES_SHOWN:])
        return OperatorError(f"{self.name} {what}; its last lines:\n{tail}")

    # ------------------------------------------------------------ metrics and health

    def metrics(self) -> Samples:
        """All series: `name{label="value",...}`, labels sorted, or the bare name. OperatorError if one has a
        label or a value that docs/metrics.md does not tell of."""
        _, text = _get(self.metrics_port, "/metrics")
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        wrong = [fault for sample in samples for fault in unexpected(sample.name, sample.labels)]
        if wrong:
            raise OperatorError(f"{self.name} shows series that are not documented: {'; '.join(wrong)}")
        return {_series(sample): sample.value for sample in samples}

    def _look_at_metrics(self) -> None:
        """All that the test had it show is as documented; one that does not answer any more is let go."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.metrics()

    def metric(self, name: str, /, **labels: str) -> float:
        """The sum of the series of that name that have these labels; 0 if there are none."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(
            value
            for series, value in self.metrics().items()
            if series.partition("{")[0] == name and wanted <= set(_labels(series))
        )

    def healthz(self, timeout: float = 5.0) -> tuple[int, str]:
        """Status and text of /healthz; TimeoutError without an answer."""
        return _get(self.health_port, "/healthz", timeout)

    def readyz(self, timeout: float = 5.0) -> tuple[int, str]:
        """Status and text of /readyz; TimeoutError without an answer."""
        return _get(self.health_port, "/readyz", timeout)


def _begin(
    command: Sequence[str] | None, words: Sequence[str], env: Mapping[str, str], scale: float, skew: float
) -> subprocess.Popen[str] | Forked:
    lag = os.environ.get("OPERATOR_LAG", "0")  # of `make stress`
    forked = None if command or skew or float(lag) else forks.start(["run", *words], env, scale)
    if forked is not None:
        return forked
    program = tuple(command or NEW_INTERPRETER)
    if (scale != 1.0 or skew or float(lag)) and program[:3] == NEW_INTERPRETER[:3]:
        program = (sys.executable, "-P", str(PACE), str(scale), str(skew), lag, *program[3:])
    return _spawner.submit(
        subprocess.Popen,
        [sys.executable, "-I", "-S", "-c", _REAPED, str(os.getpid()), *program, *words],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C goes to the tests, which end it in order
    ).result()


def _labels(series: str) -> list[str]:
    return re.findall(r'[{,](\w+="[^"]*")', series)


def parse_metrics(text: str) -> Samples:
    """Prometheus' text format as one dict."""
    families = text_string_to_metric_families(text)
    return {_series(sample): sample.value for family in families for sample in family.samples}


def _series(sample: Sample) -> str:
    labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}" if labels else sample.name


def _environment(name: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The tests' environment without what would change the operator's mind."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("CARETAKER_", "PYTEST_", "POD_")) and key != "KUBECONFIG"
    }
    return {
        **kept,
        "PYTHONPATH": str(SOURCES),
        "PYTHONUNBUFFERED": "1",
        "POD_NAME": name,
        **extra,
    }


def _parsed(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _get(port: int, path: str, timeout: float = 5.0) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()
