"""`python -m hoplab` as a person runs it: what it prints, what it says is missing, that nothing stays."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hoplab.lab import HopLab
from hoplab.network import POD
from testbed.paths import CHECKOUT
from testing.hoplab import Connection, gone, handles, until

COMMAND = [sys.executable, "-m", "hoplab", "--clients", "boto3"]
NEEDED = ("ip", "unshare", "nsenter", "sh", "cat", "true")


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT / "dev"), **variables}


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, check=False, timeout=60
    )


def outside() -> tuple[list[str], list[str]]:
    """What a lab must leave alone: our links, and the namespaces that have names."""
    named = Path("/run/netns")
    return os.listdir("/sys/class/net"), os.listdir(named) if named.exists() else []


def path_with(folder: Path, *tools: str) -> str:
    """A PATH that holds these and nothing else."""
    for tool in tools:
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    return str(folder)


def our_sockets() -> set[str]:
    """Those of this process by inode: one that stays open keeps its namespace alive."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(os.readlink(link))
    return {name for name in found if name.startswith("socket:")}


@pytest.fixture
def started() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*COMMAND, "--hops", "1"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


def test_it_measures_and_ends(tmp_path: Path) -> None:
    # Credentials and proxies of ours must not reach the clients; Go and npm are not needed.
    done = run(
        *(
            *COMMAND[:-1],
            "boto3,aws-sdk-go-v2,aws-sdk-js-v3",
            "--json",
            "--hops",
            "2",
            "--tokens",
            "required",
        ),
        PATH=path_with(tmp_path, *NEEDED),
        AWS_ACCESS_KEY_ID="ours",
        AWS_SECRET_ACCESS_KEY="ours",
        HTTP_PROXY="http://127.0.0.1:9",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {n["place"]: n["ipv4"] for n in found["needed"]} == {"node": 1, "pod": 2, "dind": 3}
    assert [(m["place"], m["version"], m["error"]) for m in found["measurements"]] == [
        ("node", "IMDSv2", ""),
        ("pod", "IMDSv2", ""),
        ("dind", "", "no credentials"),
    ]
    assert [(m["client"], m["why"].split(":")[0]) for m in found["missing"]] == [
        ("aws-sdk-go-v2", "go is missing"),
        ("aws-sdk-js-v3", "node or npm is missing"),
    ]
    assert "hop limit 2, tokens required" in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "when"),
    [
        pytest.param(signal.SIGINT, 130, "hop limit 1", id="Ctrl-C while clients wait"),
        pytest.param(signal.SIGTERM, 130, "the network is up", id="make is ended before they start"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, "hop limit 1", id="killed while clients wait"),
    ],
)
def test_nothing_stays_when_it_is_ended_midway(
    started: subprocess.Popen[str], number: signal.Signals, code: int, when: str
) -> None:
    before = outside()
    ours = os.readlink("/proc/self/ns/net")
    assert started.stderr is not None
    while when not in (line := started.stderr.readline()):
        assert line, "it ended early"
    children = psutil.Process(started.pid).children(recursive=True)
    inside = {os.readlink(f"/proc/{child.pid}/ns/net") for child in children} - {ours}
    assert len(inside) == 4
    started.send_signal(number)
    assert started.wait(20) == code
    assert gone(inside)
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert outside() == before


def test_a_lab_leaves_nothing_behind() -> None:
    before, sockets = outside(), our_sockets()
    with HopLab() as lab:
        inside = {os.readlink(path) for path in lab.namespaces.values()}
        assert len(inside & handles()) == 4
        assert outside() == before
        # An answer under way, and a thread of the service that waits for what the client says next.
        connection = Connection(lab, POD)
        assert connection.silent()
        assert our_sockets() - sockets
        client = f"socket:[{os.fstat(connection.sock.fileno()).st_ino}]"
    assert gone(inside)
    # The client's is ours to close; those of tests before may go meanwhile.
    assert until(lambda: our_sockets() - sockets == {client})
    connection.close()


def test_what_fails_midway_leaves_nothing_behind() -> None:
    inside: set[str] = set()

    def work(lab: HopLab) -> None:
        inside.update(os.readlink(path) for path in lab.namespaces.values())
        raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"), HopLab() as lab:
        work(lab)
    assert len(inside) == 4
    assert gone(inside)


def test_without_ip_it_says_what_to_install(tmp_path: Path) -> None:
    done = run(*COMMAND, PATH=path_with(tmp_path, *(tool for tool in NEEDED if tool != "ip")))
    assert (done.returncode, done.stdout) == (1, "")
    assert "ip is missing: apt-get install iproute2" in done.stderr


def test_without_the_right_to_make_namespaces_it_says_what_to_do() -> None:
    done = run("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "--", *COMMAND)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the capabilities SYS_ADMIN and NET_ADMIN" in done.stderr


def test_options_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    done = run(*COMMAND, "--options-file", str(tmp_path / "absent.json"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "absent.json" in done.stderr
