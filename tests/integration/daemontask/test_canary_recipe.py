"""examples/rotate-certificate.yaml on fake nodes: canaries first; a bad certificate reaches one node."""

import copy
from typing import Any, Final

import pytest

from testing.customresource import stands
from testing.kubelet import HOLD, fail, measured
from testing.recipes import document
from testing.world import World, holds_for

CANARY: Final = "rotate-certificate-canary"
FLEET: Final = "rotate-certificate"
LABEL: Final = {"example.com/canary": "true"}
GOOD: Final = measured('{"daysLeft": 89.5}')
BAD: Final = fail(1, "the previous certificate was put back: 127.0.0.1:9443 serves another certificate")


def body(world: World, name: str, serial: str) -> dict[str, Any]:
    """As the file has it, for this test's nodes, with a soak that a test can wait for, at any hour."""
    task = copy.deepcopy(document("rotate-certificate", "DaemonTask", name))
    spec = task["spec"]["template"]["spec"]
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **world.selector}
    spec["volumes"][1]["secret"]["secretName"] = f"node-agent-{serial}"
    task["spec"]["minSuccessSeconds"] = 2
    task["spec"].pop("budgets", None)
    return task


async def apply(world: World, serial: str = "2026-11") -> None:
    """As `kubectl apply -f` does, the first time and each time after."""
    for name in (CANARY, FLEET):
        task = body(world, name, serial)
        url = world.handle(name).url
        if await world.admin.find(url) is None:
            await world.create(name, task["spec"])
        else:
            await world.admin.patch(url, {"spec": task["spec"]})


def ran(world: World, name: str) -> list[str]:
    """The nodes on which pods of a task were begun, oldest first; by now the first ones may be gone."""
    return [node for node, pod in world.kubelet.ran if pod.rsplit("-", 2)[0] == name]


async def fleet(world: World, others: int = 6, canaries: int = 2) -> tuple[list[str], list[str]]:
    return await world.join(others), await world.join(canaries, labels=LABEL)


async def test_a_bad_certificate_reaches_one_canary_and_nobody_else(world: World) -> None:
    await fleet(world)
    world.kubelet.default = BAD
    await apply(world)
    canary = world.handle(CANARY)
    found = await canary.when(lambda t: stands(t, "Ready", "False", "Paused"))
    assert stands(found, "Stalled", reason="NodesFailed"), (
        "kubectl wait does not come back, GitOps says Failed"
    )
    assert found["status"]["failedNodes"][0]["message"] == BAD.message
    rest = await world.handle(FLEET).when(lambda t: stands(t, "Suspended"))
    assert (rest["status"]["desired"], rest["status"]["succeeded"]) == (6, 0)
    assert len(world.kubelet.ran) == 1
    # A certificate that is good: the same file with the Secret's new name.
    world.kubelet.default = GOOD
    await apply(world, "2026-11b")
    await canary.done(2)
    assert len(world.kubelet.ran) == 3


@pytest.mark.slow
async def test_the_fleet_waits_for_the_canaries_and_leaves_them_alone(world: World) -> None:
    others, canaries = await fleet(world)
    world.kubelet.default = GOOD
    await apply(world)
    await world.handle(CANARY).done(2)
    assert sorted(node for node, _ in world.kubelet.ran) == sorted(canaries)
    assert not await world.handle(FLEET).pods()
    await world.handle(FLEET).edit(suspend=False)
    await world.handle(FLEET).done(6)
    assert sorted(ran(world, FLEET)) == sorted(others)
    # One that joins later has it from the first day.
    (late,) = await world.join()
    await world.handle(FLEET).done(7)
    assert ran(world, FLEET)[-1] == late
    # The next certificate begins with the canaries again: the file suspends the fleet, whatever was patched.
    await apply(world, "2027-02")
    await world.handle(CANARY).when(lambda t: t["status"].get("completedRevision") and stands(t, "Ready"))
    await world.handle(FLEET).when(lambda t: stands(t, "Suspended"))
    assert len(ran(world, CANARY)) == 4
    assert len(ran(world, FLEET)) == 7


async def test_a_canary_that_is_not_ready_after_its_run_holds_the_next(world: World) -> None:
    _, (first, second) = await fleet(world, others=1)
    world.kubelet.default = HOLD
    await apply(world)
    await world.handle(CANARY).running()
    ((begun, _),) = world.kubelet.ran
    # By the time it ends, since its soak may be over a second later: ends are told in whole seconds.
    await world.kubelet.ready(begun, "False")
    await world.kubelet.finish(begun, outcome=GOOD)
    found = await world.handle(CANARY).counts(succeeded=1, pending=1)
    assert not stands(found, "Ready")
    # Longer than its soak, which begins anew when the node is Ready again.
    await holds_for(3.0, lambda: [node for node, _ in world.kubelet.ran] == [begun])
    await world.kubelet.ready(begun)
    await world.handle(CANARY).running(1)
    assert {node for node, _ in world.kubelet.ran} == {first, second}


async def test_a_failure_in_the_fleet_stops_it_within_a_tenth(world: World) -> None:
    await fleet(world, others=12, canaries=1)
    world.kubelet.default = GOOD
    await apply(world)
    await world.handle(CANARY).done(1)
    world.kubelet.default = BAD
    await world.handle(FLEET).edit(suspend=False)
    found = await world.handle(FLEET).when(
        lambda t: stands(t, "Ready", "False", "Paused") and not t["status"]["active"]
    )
    assert found["status"]["failed"] <= 2
    assert found["status"]["pending"] >= 10
    assert len(ran(world, FLEET)) == found["status"]["failed"]
