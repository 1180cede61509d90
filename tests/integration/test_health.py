"""What makes a kubelet restart the operator, and what does not."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.customresource import TIMEOUT
from testing.faults import Hang, Match
from testing.operator import OperatorProcess

SCALE = 0.02  # a watch that does not go on is stuck after 3.6 s
AGE = "caretaker_reflector_age_seconds"


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not wanted():
        assert time.monotonic() < deadline, f"not within {TIMEOUT:g} s"
        time.sleep(0.1)


def operator(proxy: ApiProxy, folder: Path) -> OperatorProcess:
    kubeconfig = proxy.write_kubeconfig(folder / "kubeconfig")
    return OperatorProcess(kubeconfig, namespace="default", leader_elect=False, time_scale=SCALE)


@pytest.mark.slow
def test_an_api_server_that_is_away_is_no_reason_to_restart(cluster: Cluster, tmp_path: Path) -> None:
    """In a long outage both replicas would end up in CrashLoopBackOff, and come back late."""
    with ApiProxy(cluster.kubeconfig, "health") as proxy, operator(proxy, tmp_path) as process:
        until(lambda: process.readyz()[0] == 200)
        with proxy.partition():
            until(lambda: process.metric(AGE, resource="nodes") > 3 * 180 * SCALE)
            assert process.metric(AGE, resource="pods") > 2 * 180 * SCALE
            assert process.healthz() == (200, "ok\n")
        until(lambda: process.metric(AGE, resource="nodes") < 2)
        assert process.healthz() == (200, "ok\n")


def test_a_watch_that_neither_goes_on_nor_fails_is_one(cluster: Cluster, tmp_path: Path) -> None:
    """Here a list whose answer never comes; its own timeout, 30 s, is not scaled."""
    with ApiProxy(cluster.kubeconfig, "health") as proxy:
        stuck = proxy.add(Match(verb="list", resource="nodes"), Hang())
        with operator(proxy, tmp_path) as process:
            assert process.healthz() == (200, "ok\n")
            until(lambda: process.healthz()[0] == 503)
            assert process.healthz()[1].startswith("watch-nodes: it has been stuck for ")
            stuck.remove()
            until(lambda: process.healthz() == (200, "ok\n"))


@pytest.mark.parametrize(
    ("kind", "watched"),
    [("daemontasks", {"nodes", "pods"}), ("s3aggregatedrefreshes", set()), ("imdspolicies", {"nodes"})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_kind_watches_its_own_resources_alone_and_ends_on_sigterm(
    cluster: Cluster, namespace: str, kind: str, watched: set[str]
) -> None:
    args = ("--kinds", kind, "--operator-namespace", namespace)
    with OperatorProcess(cluster.kubeconfig, args=args, time_scale=0.1) as process:
        until(lambda: process.readyz()[0] == 200 and process.metric("caretaker_leader") == 1)
        series = process.metrics()
        assert {name for name in series if name.startswith(AGE)} == {
            f'{AGE}{{resource="{w}"}}' for w in watched
        }
        assert sum(name.startswith("caretaker_paused_resources{") for name in series) == 1
        process.terminate()
