"""An engine's namespaces leave nothing behind, however their maker ends; a machine that cannot run one is
told why."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

from realnode import needs
from realnode.errors import NodeError
from realnode.place import Place, claim
from testbed.paths import CHECKOUT, cache
from testing.hoplab import until

# Makes a place, starts something in it, tells both ids and the link's name, and waits to be ended.
MAKER: Final = """
import subprocess, sys, threading
from pathlib import Path
from realnode.place import Place, claim
from testbed.paths import cache
number, lock = claim(cache().with_name("node-places"))
place = Place(number, Path(sys.argv[1]))
place.open()
subprocess.Popen(place.enter(["sleep", "1000"]))
print(place.pid, place.link, place.cgroup, flush=True)
threading.Event().wait()
"""
UNABLE: Final = (str(shutil.which("setpriv")), "--bounding-set=-all", "--inh-caps=-all")


def in_namespaces_of(pid: int) -> list[int]:
    """The processes in the PID namespace of this one, as seen from here."""
    wanted = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/ns/pid") == wanted:
                found.append(process.pid)
        except OSError:
            continue
    return found


def groups(name: str) -> list[Path]:
    return [*Path("/sys/fs/cgroup").glob(f"*/{name}"), *Path("/sys/fs/cgroup").glob(name)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_ends_with_the_process_that_made_it(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "dev")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as maker:
        try:
            assert maker.stdout is not None
            pid, link, cgroup = maker.stdout.readline().split()
            assert until(lambda: len(in_namespaces_of(int(pid))) >= 2)
            inside = in_namespaces_of(int(pid))
            assert Path(f"/sys/class/net/{link}").exists()
            assert groups(cgroup)
        finally:
            maker.send_signal(how)
        maker.wait(10)
        assert until(lambda: not any(psutil.pid_exists(one) for one in inside))
        assert until(lambda: not Path(f"/sys/class/net/{link}").exists())
    # An empty cgroup is all that is left, and the next node takes it along.
    number, lock = claim(cache().with_name("node-places"))
    with lock:
        place = Place(number, tmp_path / "next")
        (tmp_path / "next").mkdir()
        place.open()
        place.close()
        assert not groups(place.cgroup)
        assert not Path(f"/sys/class/net/{place.link}").exists()


def test_the_machines_links_routes_and_mounts_stay_as_they_are(tmp_path: Path) -> None:
    def outside() -> tuple[str, list[str], str]:
        firewall = shutil.which("iptables-save") or "true"  # without it nothing is there to compare
        rules = subprocess.run([firewall], capture_output=True, text=True, check=False).stdout
        counted = [line for line in rules.splitlines() if not line.startswith(("#", ":"))]
        routes = [line for line in Path("/proc/net/route").read_text().splitlines() if "ctnode" not in line]
        return Path("/proc/self/mountinfo").read_text(), counted, "\n".join(routes)

    before = outside()
    number, lock = claim(cache().with_name("node-places"))
    with lock:
        place = Place(number, tmp_path)
        place.open()
        try:
            assert outside() == before
            assert "tmpfs" in place.run(["findmnt", "-n", "-o", "FSTYPE", "/var/lib"])
        finally:
            place.close()
    assert outside() == before


def test_what_is_missing_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "SEARCH", "/nonexistent")
    with pytest.raises(NodeError, match="apt-get install -y --no-install-recommends buildah"):
        needs.program("buildah")
    (line,) = needs.missing()
    assert {"containerd", "buildah", "mmdebstrap"} <= set(line.split())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert any(line.startswith("root: ") for line in needs.missing())


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_machine_that_cannot_is_told_so_and_only_ci_fails(ci: str, code: int, tmp_path: Path) -> None:
    """The target `node` of the Makefile, for a root without rights and without an engine."""
    recipe = (CHECKOUT / "Makefile").read_text().partition("\nnode: ")[2].splitlines()[1]
    script = recipe.strip().removeprefix("@").replace("$$", "$")
    script = script.replace("$(PYTHON)", sys.executable)
    done = subprocess.run(
        [*UNABLE, str(shutil.which("bash")), "-euo", "pipefail", "-c", script],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(CHECKOUT / "dev"), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
    )
    assert "NOT TESTED ON A REAL NODE" in done.stderr
    assert "CAP_NET_ADMIN and CAP_SYS_ADMIN" in done.stderr
    assert done.returncode == code


def test_what_images_of_tests_take_is_asked_for_beside_an_engine_that_answers(tmp_path: Path) -> None:
    """Here without apt-get, which else would install it."""
    (tmp_path / "docker").write_text("#!/bin/true")
    (tmp_path / "docker").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "realnode", "check"],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(CHECKOUT / "dev")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "mmdebstrap is missing: apt-get install" in done.stderr


def test_kind_with_neither_an_engine_nor_root_is_told_so_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*UNABLE, sys.executable, "-m", "realnode", "prepare"],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(CHECKOUT / "dev")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "docker is not installed; podman is not installed" in line
    assert " or root on Linux" in line
    assert line.endswith("start one, or become root")
