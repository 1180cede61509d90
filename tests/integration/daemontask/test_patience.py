"""What takes minutes and hours: an operator for which time runs five hundred times as fast."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from testbed.admin import Admin
from testbed.recorder import PodRecorder
from testing.apiproxy import ApiProxy
from testing.cluster import Nodes
from testing.customresource import condition
from testing.kubelet import EVICTED, Kubelet, rejected
from testing.operator import OperatorProcess
from testing.world import World, blocked

pytestmark = pytest.mark.slow

Recorders = Callable[[], PodRecorder]

TIME_SCALE = 0.002  # the longest backoff, 10 min, is 1.2 s


@pytest.fixture
async def world(
    operator: OperatorProcess, proxy: ApiProxy, admin: Admin, namespace: str, nodes: Nodes, tmp_path: Path
) -> AsyncIterator[World]:
    """The test's world, under a hasty operator; the shared one stands still meanwhile."""
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    operator.pause()
    try:
        hasty = OperatorProcess(
            kubeconfig, "hasty", namespace=namespace, leader_elect=False, time_scale=TIME_SCALE
        )
        with hasty:
            async with Kubelet(admin, namespace) as kubelet:
                yield World(admin, namespace, nodes, kubelet)
    finally:
        operator.resume()


async def test_more_than_ten_disruptions_of_a_run_fail_its_node(world: World, recorders: Recorders) -> None:
    """Fault 24 (k8s#65240, #130411): the number of Pods is bounded."""
    (node,) = await world.join()
    world.kubelet.default = EVICTED
    async with recorders() as record:
        task = await world.task(backoffLimit=0)
        found = await task.counts(failed=1)
        await record.settle()
    (failed,) = found["status"]["failedNodes"]
    assert failed["reason"] == "TooManyDisruptions"
    assert "Evicted" in failed["message"]
    assert failed.get("attempts", 0) == 0
    assert record.runs_per_node() == {node: 11}
    assert condition(found, "Stalled")["reason"] == "NodesFailed"


async def test_no_number_of_rejections_fails_a_node_or_holds_up_another(world: World) -> None:
    """A disk that is full is mended some day: the node is named meanwhile, and has no slot."""
    full, *others = await world.join(3)
    world.kubelet.script(full, *[rejected("Evicted")] * 14)
    task = await world.task(backoffLimit=0, parallelism=1)
    found = await task.when(lambda t: t["status"]["succeeded"] == 2 and full in blocked(t))
    (one,) = found["status"]["blockedNodes"]
    assert (one["reason"], "rejected" in one["message"]) == ("Evicted", True)
    await task.ledger_when(lambda entries: entries[full].get("rejections") == 14)
    await task.done(3)
    assert [on for on, _ in world.kubelet.ran].count(full) == 15
    assert {[on for on, _ in world.kubelet.ran].count(node) for node in others} == {1}


async def test_the_entry_of_a_node_that_left_goes_with_a_later_resync(world: World) -> None:
    stays, leaves = await world.join(2)
    task = await world.task()
    await task.done(2)
    await world.nodes.delete(leaves)
    await task.counts(desired=1)
    pokes = 0

    async def gone() -> bool:
        nonlocal pokes
        pokes += 1
        # Nothing else happens here that would make a pass before the resync after ten minutes.
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=pokes)
        await task.annotate(resume_at=at.isoformat())
        return list(await task.ledger()) == [stays]

    await world.until(gone)
    assert [node for node, _ in world.kubelet.ran].count(stays) == 1
