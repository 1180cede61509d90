"""`make demo`, as somebody sees it who runs it, interrupts it or keeps it."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testbed.processes import Processes

SECONDS = 900  # an idle machine needs 60


class Demo:
    """The demo in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(
        self,
        *arguments: str,
        out: int | None = None,
        env: Mapping[str, str] | None = None,
        by: Sequence[str] = (),
    ) -> "Started":
        command = [*by, sys.executable, "-m", "testbed.demo", "--folder", str(self.folder), *arguments]
        kept = {k: v for k, v in os.environ.items() if k not in ("KEEP", "CLUSTER", "KUBECONFIG")}
        started = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**kept, "PYTHONPATH": "dev", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if out is None else out,
            stderr=subprocess.STDOUT,
        )
        return Started(started)

    def nothing_is_left(self) -> bool:
        """At once, but for a component that was being forked: it sees within a second that we are gone."""
        deadline = time.monotonic() + 10
        while self.left_running() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.left_running()

    def left_running(self) -> list[str]:
        """Command lines of processes that have anything to do with the folder."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                where = process.environ().get("KUBECONFIG", "")
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
            if str(self.folder) in line + where:
                found.append(line)
        return found


class Started:
    """A demo process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.text = ""

    def end(self, seconds: float = SECONDS) -> tuple[int, str]:
        """Exit code and all that was printed."""
        rest, _ = self.process.communicate(timeout=seconds)
        self.text += rest.decode()
        return self.process.returncode, self.text

    def read_until(self, text: str) -> None:
        """Block until the demo has printed it; its end comes first if it never does."""
        assert self.process.stdout is not None
        while text not in self.text:
            chunk = os.read(self.process.stdout.fileno(), 4096)
            assert chunk, f"the demo ended before it printed {text!r}:\n{self.text}"
            self.text += chunk.decode()


@contextmanager
def demo_in(folder: Path) -> Iterator[Demo]:
    made = Demo(folder)
    yield made
    if made.left_running():  # the test has failed
        made.start("down").end()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with demo_in(tmp_path / "demo") as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Demo, Started]]:
    """One from beginning to end, left up."""
    with demo_in(tmp_path_factory.mktemp("whole") / "demo") as made:
        started = made.start(env={"KEEP": "1"})
        yield made, started
        if started.process.poll() is None:  # its test was not reached
            started.process.send_signal(signal.SIGINT)
            started.end()


@pytest.fixture(autouse=True)
def _whole_begins(request: pytest.FixtureRequest) -> None:
    """The whole one takes half a minute, so it begins with the first test, if its own is to run at all."""
    if any("whole" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("whole")


def script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(body)}")
    path.chmod(0o755)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminated by make"])
def test_interrupted_while_the_control_plane_starts_it_leaves_nothing(
    demo: Demo, number: signal.Signals
) -> None:
    started = demo.start()
    started.read_until("control plane")
    deadline = time.monotonic() + 60
    while not any("etcd" in line for line in demo.left_running()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started.process.send_signal(number)
    code, text = started.end()
    assert code == 130
    assert "nothing is left running" in text
    assert demo.nothing_is_left(), demo.left_running()


def test_on_a_terminal_it_shows_a_bar_and_ctrl_c_in_a_step_leaves_nothing(demo: Demo) -> None:
    ours, theirs = pty.openpty()
    started = demo.start(out=theirs)
    os.close(theirs)
    text = ""
    while "of 20 nodes" not in text:
        text += os.read(ours, 4096).decode()
    started.process.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(ours, 4096):
            text += chunk.decode()
    except OSError:  # Linux: EIO once the other end is closed
        pass
    os.close(ours)
    assert started.process.wait(SECONDS) == 130
    assert "[##############################] 20/20" in text
    assert "nothing is left running" in text
    assert demo.nothing_is_left(), demo.left_running()


def test_kind_with_neither_an_engine_nor_root_says_so_in_one_line(demo: Demo, tmp_path: Path) -> None:
    script(tmp_path / "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    unable = () if os.geteuid() else (str(shutil.which("setpriv")), "--bounding-set=-all", "--inh-caps=-all")
    code, text = demo.start(env={"CLUSTER": "kind", "PATH": str(tmp_path)}, by=unable).end()
    assert code == 1
    (line,) = (line for line in text.splitlines() if line.startswith("DEMO FAILED: "))
    assert "(docker: Cannot connect to the Docker daemon; podman is not installed; " in line
    assert " or root on Linux" in line
    assert line.endswith("run it without CLUSTER=kind, which takes no engine")
    assert demo.nothing_is_left(), demo.left_running()


def in_kind(demo: Demo, tmp_path: Path, cluster: Cluster) -> tuple[Path, dict[str, str]]:
    """Stand-ins for an engine and for kind, which hands out a control plane of the testbed: no engine answers
    on CI machines. A file that gets a line for each call, and the variables of a demo with them."""
    calls = tmp_path / "calls"
    script(tmp_path / "docker", "exit 0")
    script(
        tmp_path / "kind",
        f"""
        echo "$KIND_EXPERIMENTAL_PROVIDER $*" >> {calls}
        test "$1" = delete || cp {cluster.kubeconfig} "$(echo "$*" | sed 's/.*--kubeconfig //; s/ .*//')"
        """,
    )
    return calls, {"CLUSTER": "kind", "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_in_kind_it_brings_its_own_nodes_and_deletes_the_cluster(demo: Demo, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "behind-kind")
    calls, variables = in_kind(demo, tmp_path, cluster)
    with cluster:
        Processes(cluster.folder, end_with_parent=True).stop(["kwok"])  # the demo brings its own
        started = demo.start(env=variables)
        started.read_until("one pod on each of 20 nodes")
        second = Demo(tmp_path / "second")
        (second.folder / "kind").mkdir(parents=True)
        (second.folder / "kind" / "engine.name").write_text("docker")  # of a run that was killed
        code, text = second.start(env=variables).end()
        assert code == 1
        assert " is in use by another run: wait for it" in text
        started.process.send_signal(signal.SIGINT)
        assert started.end()[0] == 130
    lines = calls.read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["docker", word] for word in ("delete", "create", "delete")
    ]
    (name,) = {re.search(r"--name (\S+)", line)[1] for line in lines}  # type: ignore[index]
    assert re.fullmatch("caretaker-demo-[0-9a-f]{6}", name), "a name of this checkout's own"
    assert demo.nothing_is_left(), demo.left_running()


def test_an_unknown_cluster_is_refused(demo: Demo) -> None:
    code, text = demo.start(env={"CLUSTER": "minikube"}).end()
    assert (code, text) == (
        1,
        "DEMO FAILED: CLUSTER=minikube: there are `embedded` (the default) and `kind`\n",
    )


def test_it_shows_every_step_and_stays_up_when_asked(whole: tuple[Demo, Started]) -> None:
    demo, started = whole
    code, text = started.end()
    assert code == 0, text
    assert text.rstrip().endswith("DEMO OK")
    assert "\033" not in text, "no terminal, no control codes"
    assert "20 of 20 nodes succeeded" in text
    assert re.search(r"failedNodes: node-07, 2 attempts, exit code 1: / is 97% full", text)
    assert re.search(r"node-20 joined: its pod was there (\d+|less than 5) ms after it was Ready", text)
    assert "it ran again (2 runs), the other 20 nodes did not" in text
    assert "emptied, run and uncordoned; at least 2 replicas of web ran throughout" in text
    assert "a refresh of everything would cost about $0.0013 (spec.cost, caretaker status)" in text
    assert re.search(r"mode Audit, nothing is changed: 21 of 21 node\(s\) differ", text)
    assert re.search(r"18 instances of apps have hop limit 2, 2 of builders have 3", text)
    slow, quick = re.search(r"changed by 21 calls, (\d.*) s -> (\d+) ms in a pod", text).groups()  # type: ignore[union-attr]
    assert float(slow) >= 0.9
    assert int(quick) < 900
    rows = [
        line
        for line in text.splitlines()
        if re.match(r"(every node|failing node|late node|reboot|drain) ", line)
    ]
    assert len(rows) == 5

    commands = re.findall(r"^  (\S*caretaker (?:status|rerun) .*)$", text, re.MULTILINE)
    kubeconfig = re.findall(r"export (KUBECONFIG=\S+)", text)
    assert len(commands) == 2
    for command in commands:
        asked = subprocess.run(
            ["env", *kubeconfig, *command.split()], cwd=CHECKOUT, capture_output=True, text=True, check=False
        )
        assert asked.returncode == 0, asked.stderr

    code, text = demo.start().end()
    assert code == 1
    assert "make demo-down" in text
    assert demo.left_running(), "a refused demo must not end the one that is up"

    code, text = demo.start("down").end()
    assert (code, text) == (0, "the demo is stopped\n")
    assert demo.nothing_is_left(), demo.left_running()
