"""The testbed's processes: what starts, what survives, and that nothing is left running."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from testbed import build, steer
from testbed.admin import Json, path
from testbed.cluster import KWOK, Cluster, ClusterError
from testbed.paths import CHECKOUT

COMPONENTS = 5
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(CHECKOUT / "dev")}


def processes_in(folder: Path) -> list[psutil.Process]:
    """The live processes that work in the folder, as every component does."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a cluster of the test's own, which is stopped whatever happens."""
    yield tmp_path
    Cluster(tmp_path / "cluster").stop()


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "testbed", "--folder", str(folder), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def runs_to_completion(pod: Json) -> bool:
    return bool(pod["status"]["phase"] == "Succeeded")


def is_bound(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName"))


async def test_two_clusters_at_once_and_a_killed_api_server(folder: Path, cluster: Cluster) -> None:
    own = Cluster(folder / "cluster", nodes=2)
    await asyncio.to_thread(own.start)
    assert own.url != cluster.url
    async with own.admin() as admin:
        before = await admin.list(path("nodes"))
        await steer.steer_node(admin, before[0]["metadata"]["name"], steer.behaviour("succeed"))
        await asyncio.to_thread(own.restart_apiserver, hard=True)
        # The policies that steer nodes may have no parameters yet, and refuse nothing that is not theirs.
        await admin.create(path("configmaps", "default"), {"metadata": {"name": "at-once"}})
        after = await admin.list(path("nodes"))
        assert [node["metadata"]["uid"] for node in after] == [node["metadata"]["uid"] for node in before]
        container = {"name": "main", "image": "example.invalid/task:1"}
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [container], "restartPolicy": "Never"}}
        await admin.create(path("pods", "default"), pod)
        await admin.wait_for(path("pods", "default", "p"), runs_to_completion)
    await asyncio.to_thread(own.stop)
    assert processes_in(own.folder) == []
    assert cluster.running()


async def test_pods_that_are_bound_while_kwok_starts_anew_are_played(folder: Path) -> None:
    own = Cluster(folder / "cluster", nodes=2)
    await asyncio.to_thread(own.start)
    async with own.admin() as admin:
        next(process for process in processes_in(own.folder) if process.name() == KWOK).suspend()
        spec = {"containers": [{"name": "main", "image": "example.invalid/task:1"}], "restartPolicy": "Never"}
        for number in range(20):
            await admin.create(path("pods", "default"), {"metadata": {"name": f"p-{number}"}, "spec": spec})
        await admin.wait_for_all(path("pods", "default"), lambda pods: all(map(is_bound, pods)))
        await asyncio.to_thread(own.restart_apiserver, hard=True)
        await admin.wait_for_all(path("pods", "default"), lambda pods: all(map(runs_to_completion, pods)))
    await asyncio.to_thread(own.stop)


def test_a_component_that_dies_at_start_shows_its_log_and_leaves_nothing(folder: Path) -> None:
    # Nothing waits for the scheduler itself: its end is noticed once the nodes are Ready.
    own = Cluster(folder / "cluster", nodes=50, scheduler_qps=-1)
    with pytest.raises(ClusterError, match=r"kube-scheduler ended with code 1(?s:.)*burst: Invalid value"):
        own.start()
    assert processes_in(own.folder) == []


def test_a_full_disk_is_named_before_anything_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    own = Cluster(folder / "cluster")
    with pytest.raises(ClusterError, match=r"/cluster has 3 MiB left.* takes 200: free some, or set TMPDIR"):
        own.start()
    assert processes_in(own.folder) == []


def test_the_background_cluster_is_told_of_and_stopped(folder: Path) -> None:
    first = cli(folder, "up", "--nodes", "2")
    assert first.returncode == 0, first.stderr
    assert "2 nodes" in first.stdout
    assert (folder / "kubeconfig").exists()
    assert len(processes_in(folder / "cluster")) == COMPONENTS

    second = cli(folder, "up", "--nodes", "5")
    assert second.returncode == 0
    assert "running already" in second.stdout
    assert "kubeconfig" in second.stdout
    assert len(processes_in(folder / "cluster")) == COMPONENTS

    assert "is stopped" in cli(folder, "down").stdout
    assert processes_in(folder / "cluster") == []
    assert not (folder / "kubeconfig").exists()
    assert "no cluster was running" in cli(folder, "down").stdout


def test_a_half_dead_cluster_is_replaced(folder: Path) -> None:
    cli(folder, "up", "--nodes", "1")
    old = processes_in(folder / "cluster")
    next(process for process in old if process.name() == "kwok").kill()
    again = cli(folder, "up", "--nodes", "1")
    assert again.returncode == 0, again.stderr
    assert "ready in" in again.stdout
    assert len(processes_in(folder / "cluster")) == COMPONENTS
    assert not any(process.is_running() for process in old)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_start_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "testbed", "--folder", str(folder), "up"]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as starting:
        try:
            wait_for_log(folder / "cluster" / "logs" / "kube-apiserver.log", starting)
            starting.send_signal(number)
            _, errors = starting.communicate(timeout=30)
        finally:
            starting.kill()
    assert starting.returncode == 130
    assert "nothing is left running" in errors
    assert processes_in(folder / "cluster") == []


def test_a_killed_parent_takes_its_cluster_along(folder: Path) -> None:
    watched = not build.ends_with_parent(build.ensure())  # CONTROLPLANE names programs of others
    code = (
        "import sys, time; from pathlib import Path; from testbed.cluster import Cluster\n"
        "Cluster(Path(sys.argv[1])).start(); print('up', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(folder / "cluster")]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "up\n"
            started = processes_in(folder / "cluster")
            assert len(started) == COMPONENTS + watched
        finally:
            parent.kill()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_a_killed_parent_takes_along_programs_of_others_that_do_not_know_of_it(folder: Path) -> None:
    """CONTROLPLANE names them. Nothing is compiled: nothing is in the cache, and there is no `go`."""
    given = folder / "given"
    given.mkdir()
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "kubectl"):
        program = build.ensure() / name
        (given / name).write_text(f'#!/bin/sh\nunset CONTROLPLANE_PARENT\nexec {program} "$@"\n')
        (given / name).chmod(0o755)
    own = {"CONTROLPLANE": str(given), "XDG_CACHE_HOME": str(folder / "cache"), "PATH": os.defpath}
    code = (
        "import sys, time; from pathlib import Path; from testbed.cluster import Cluster\n"
        "Cluster(Path(sys.argv[1]), nodes=2).start(); print('up', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(folder / "cluster")]
    with subprocess.Popen(command, env=ENVIRONMENT | own, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            said = [parent.stdout.readline(), parent.stdout.readline()]
            assert said == [
                f"taking Kubernetes {build.version()[1:]} from CONTROLPLANE={given}, not compiled\n",
                "up\n",
            ]
            started = processes_in(folder / "cluster")
            assert len(started) == COMPONENTS + 1  # what watches
        finally:
            parent.kill()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def wait_for_log(log: Path, process: subprocess.Popen[str]) -> None:
    """Return once the component has written something; fail when the starting process ends before."""
    while not (log.exists() and log.stat().st_size):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
