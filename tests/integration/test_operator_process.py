"""OperatorProcess and the HTTP servers, with a small program in the operator's place: it is started,
heard, ended and never left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.faults import Match, Run
from testing.operator import NEW_INTERPRETER, SOURCES, OperatorError, OperatorProcess

# A process with the parts of the operator that OperatorProcess looks at.
PROGRAM = """
    import asyncio, logging, os, signal, sys
    from caretaker.obs import log
    from caretaker.obs.server import ObsServer
    from caretaker.daemontask.metrics import DaemonTaskMetrics
    from caretaker.obs.metrics import create_metrics

    async def main():
        log.setup("json")
        done = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
        metrics = create_metrics("1.2.3")
        DaemonTaskMetrics(metrics.registry).set_nodes("ns", "t", {"active": 2, "failed": 1})
        server = ObsServer(metrics.registry)
        ports = await server.start("127.0.0.1", 0, 0)
        logging.info("ready", extra=ports._asdict())
        if "--fail" in sys.argv:
            logging.error("broken", exc_info=ValueError("a fault"))
            try:
                raise ValueError("a fault")
            except ValueError:
                logging.exception("broken")
        await done.wait()
        if "--stubborn" in sys.argv:
            await asyncio.sleep(3600)
        await server.stop()

    asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that are behind (`make stress`) are never forked."""
    monkeypatch.delenv("OPERATOR_LAG", raising=False)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    made: list[OperatorProcess] = []

    def build(**options: Any) -> OperatorProcess:
        made.append(OperatorProcess("none", command=(sys.executable, str(program)), **options))
        return made[-1]

    yield build
    for process in made:
        process.kill9()


def test_it_is_ready_when_its_servers_answer(make: Any) -> None:
    with make() as process:
        assert process.healthz() == (200, "ok\n")
        assert process.readyz() == (200, "ok\n")
        assert process.metrics()['caretaker_build_info{version="1.2.3"}'] == 1
        assert process.metric("caretaker_daemontask_nodes", namespace="ns", state="active") == 2
        assert process.metric("caretaker_daemontask_nodes", name="t") == 3


def test_it_ends_on_sigterm_and_starts_again(make: Any) -> None:
    process = make()
    process.start()
    first = process.pid
    process.restart()
    assert process.pid != first
    process.terminate()
    assert not process.running
    assert len([e for e in process.logs if e["msg"] == "ready"]) == 2


def test_what_it_logged_is_shown_with_a_test_that_fails(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError), make(name="operator-a"):
        _ = 1 / 0
    assert "operator-a ran while the test failed; its last lines:" in (shown := capsys.readouterr().err)
    assert '"msg":"ready"' in shown


def test_a_killed_one_is_gone_and_can_be_started_again(make: Any) -> None:
    process = make().start()
    pid = process.pid
    process.kill9()
    assert not psutil.pid_exists(pid)
    process.kill9()
    assert process.start().healthz()[0] == 200


def test_a_paused_one_does_not_answer_until_it_is_resumed(make: Any) -> None:
    process = make().start()
    process.pause()
    with pytest.raises(TimeoutError):
        process.healthz(timeout=0.3)
    process.resume()
    assert process.healthz()[0] == 200


def test_one_that_ignores_sigterm_is_killed_and_told(make: Any) -> None:
    process = make(args=("--stubborn",), exit_seconds=0.3).start()
    with pytest.raises(OperatorError, match="did not exit within"):
        process.terminate()
    assert not process.running


def test_a_traceback_fails_the_test_unless_it_is_allowed(make: Any) -> None:
    with pytest.raises(OperatorError, match="ValueError: a fault"), make(args=("--fail",)) as process:
        process.wait_log(lambda entry: entry["msg"] == "broken" and "Traceback" in entry["exc"])
    with make(args=("--fail",), allowed=("ValueError: a fault",)) as process:
        process.wait_log(lambda entry: entry["msg"] == "broken" and "Traceback" in entry["exc"])


def test_one_that_dies_at_once_is_told_with_its_output(tmp_path: Path) -> None:
    dying = OperatorProcess("none", command=(sys.executable, "-c", "import sys; sys.exit('no such thing')"))
    began = time.monotonic()
    with pytest.raises(OperatorError, match="no such thing"):
        dying.start(timeout=20)
    assert time.monotonic() - began < 10
    assert not dying.running


def dies_with_its_parent(started: str, *, forked: bool) -> None:
    """`started` is an expression for an operator, in a process of its own."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from testing import forks\n"
            "from testing.operator import OperatorProcess\n"
            "with forks.serving():\n"
            f"    p = {started}.start()\n"
            "    print(p.pid, flush=True)\n"
            "    time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                str(SOURCES.parent / name) for name in ("dev", "operator", "tests")
            ),
        },
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = psutil.Process(int(parent.stdout.readline()))
    server = child.parent()
    assert child.is_running()
    assert server is not None
    assert (server.pid != parent.pid) == forked
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    child.wait(5)
    if forked:
        server.wait(5)


def test_it_dies_with_the_process_that_started_it(make: Any, tmp_path: Path) -> None:
    program = str(tmp_path / "program.py")
    dies_with_its_parent(f"OperatorProcess('none', command=(sys.executable, {program!r}))", forked=False)


def test_a_forked_one_dies_with_the_process_that_started_its_server(cluster: Cluster) -> None:
    config = str(cluster.kubeconfig)
    started = f"OperatorProcess({config!r}, namespace='default', leader_elect=False)"
    dies_with_its_parent(started, forked=True)


@pytest.mark.parametrize("command", [None, NEW_INTERPRETER], ids=["forked", "new"])
def test_it_lives_in_a_session_of_its_own_and_ends_when_told(
    cluster: Cluster, namespace: str, command: tuple[str, ...] | None
) -> None:
    process = OperatorProcess(cluster.kubeconfig, namespace=namespace, leader_elect=False, command=command)
    with process:
        assert os.getsid(process.pid) == process.pid
        forked = "testing/forks.py" in " ".join(psutil.Process(process.pid).cmdline())
        assert forked == (command is None)
        first = process.pid
        process.restart(kill=True)
        assert not psutil.pid_exists(first)
        process.terminate()
    assert [entry["msg"] for entry in process.logs].count("ready") == 2
    assert len(process.logs) == len(process.lines), "a line that is no JSON"


@pytest.mark.parametrize("command", [None, NEW_INTERPRETER], ids=["forked", "new"])
def test_a_crash_fails_the_test(cluster: Cluster, namespace: str, command: tuple[str, ...] | None) -> None:
    process = OperatorProcess(cluster.kubeconfig, namespace=namespace, leader_elect=False, command=command)
    process.start().signal(signal.SIGSEGV)
    assert process.wait_exit() == -signal.SIGSEGV
    with pytest.raises(OperatorError, match="Segmentation fault"):
        process.assert_clean_logs()


@pytest.mark.parametrize(
    ("scale", "seconds", "how"),
    [(0.6, 9, {}), (0.2, 6, {}), (0.6, 9, {"command": NEW_INTERPRETER}), (0.6, 9, {"skew": 5000.0})],
    ids=["forked", "no shorter Lease", "new", "skewed"],
)
async def test_it_runs_at_the_pace_and_by_the_clock_that_are_asked_for(
    cluster: Cluster, admin: Admin, namespace: str, scale: float, seconds: int, how: dict[str, Any]
) -> None:
    env = {"POD_NAMESPACE": namespace}
    process = OperatorProcess(cluster.kubeconfig, namespace=namespace, time_scale=scale, env=env, **how)
    before = datetime.now(UTC)
    with process:
        lease = await admin.wait_for(path("leases", namespace, "caretaker"), lambda _: True)
        logged = process.wait_log(lambda entry: entry["msg"] == "leading")["ts"]
    assert lease["spec"]["leaseDurationSeconds"] == seconds
    ahead = (datetime.fromisoformat(logged) - before).total_seconds()
    assert abs(ahead - how.get("skew", 0.0)) < 100


async def test_the_operator_killed_between_a_write_and_its_reply_comes_back(
    cluster: Cluster, admin: Admin, namespace: str, tmp_path: Path
) -> None:
    with ApiProxy(cluster.kubeconfig, "operator-a") as proxy:
        operator = OperatorProcess(
            proxy.write_kubeconfig(tmp_path / "kubeconfig"),
            "operator-a",
            namespace=namespace,
            time_scale=0.1,
            env={"POD_NAMESPACE": namespace},
        )
        lease_written = Match(verb="create", resource="leases")
        rule = proxy.add(lease_written, Run(run_after=lambda _: operator.kill9()))
        await asyncio.to_thread(operator.start, wait=False)
        answered = lambda c: c in rule.hits and c.seconds > 0  # noqa: E731
        await asyncio.to_thread(proxy.ledger.wait, answered, timeout=30)
        assert [c.verb for c in rule.hits] == ["create"]
        assert not operator.running
        assert await admin.find(path("leases", namespace, "caretaker")) is not None
        with operator:  # started again: its Lease is in its way until it runs out, or is its own
            await asyncio.to_thread(operator.wait_log, lambda entry: entry["msg"] == "leading", 30)
            assert operator.metric("caretaker_leader") == 1
            await asyncio.to_thread(operator.terminate)
        assert proxy.ledger.writes() == []


def test_its_threads_share_one_arena_of_malloc(cluster: Cluster, namespace: str) -> None:
    """glibc reserves 64 MiB for each further one, at a multiple of that: what is in use, then what is not."""
    size = 64 << 20
    with OperatorProcess(
        cluster.kubeconfig, namespace=namespace, leader_elect=False, command=NEW_INTERPRETER
    ) as process:
        process.metrics()  # which a thread writes
        assert psutil.Process(process.pid).num_threads() > 1
        lines = [line.split() for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines()]
    ranges = [(*(int(at, 16) for at in line[0].split("-")), line[1]) for line in lines]
    for (start, end, _), (rest, last, access) in pairwise(ranges):
        assert (start % size, end, access) != (0, rest, "---p") or last - start < size


def test_a_port_that_is_taken_is_told_in_one_line(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = OperatorProcess(
            cluster.kubeconfig, "second", leader_elect=False, args=("--metrics-port", port)
        )
        process.start(wait=False)
        assert process.wait_exit(30) == 1
    (line,) = [line for line in process.lines if "cannot listen" in line]
    assert line.startswith("caretaker: ")
    assert "--metrics-port" in line
    assert not any("Unclosed" in line or "Traceback" in line for line in process.lines)
