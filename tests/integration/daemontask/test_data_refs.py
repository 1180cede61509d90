"""spec.dataRefs on a real API server: changes of ConfigMaps and Secrets, their absence, and kills."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from testbed.admin import Json, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing import manifests
from testing.apicalls import Call
from testing.apiproxy import ApiProxy
from testing.cli import Cli
from testing.customresource import condition, stands
from testing.kubelet import SUCCEED, fail
from testing.operator import OperatorProcess
from testing.world import World, holds_for

PERIOD: Final = 3.0  # seconds between two reads, with the operator's time scale
TRIGGER: Final = "caretaker.dev/trigger"
SECRET_TEXT: Final = "hunter2-hunter2"
REFS: Final = [{"kind": "ConfigMap", "name": "sysctl"}, {"kind": "Secret", "name": "token"}]
ON_DATA: Final[dict[str, Any]] = {"rerunOn": ["TemplateChange", "ReferencedDataChange"], "dataRefs": REFS}


async def put(world: World, plural: str, name: str, **body: Any) -> None:
    """Create the object, or replace it."""
    url = path(plural, world.namespace)
    if await world.admin.find(f"{url}/{name}") is not None:
        await world.admin.delete(f"{url}/{name}")
        await world.admin.wait_gone(f"{url}/{name}")
    await world.admin.create(url, {"metadata": {"name": name}, **body})


async def both(world: World) -> None:
    await put(world, "configmaps", "sysctl", data={"vm.swappiness": "10"})
    await put(world, "secrets", "token", stringData={"token": SECRET_TEXT})


async def edit(world: World, name: str, body: Json, plural: str = "configmaps") -> None:
    await world.admin.patch(path(plural, world.namespace, name), body)


def runs(world: World) -> int:
    return len(world.kubelet.ran)


async def test_changed_data_rolls_out_as_a_changed_template_does(
    world: World, operator: OperatorProcess, cluster: Cluster
) -> None:
    await world.join(3)
    await both(world)
    task = await world.task(**ON_DATA, canary={})
    first = await task.done(3)
    revision = first["status"]["currentRevision"]
    await edit(world, "sysctl", {"metadata": {"labels": {"a": "b"}}})
    await holds_for(2.5 * PERIOD, lambda: runs(world) == 3)
    await edit(world, "sysctl", {"data": {"vm.swappiness": "20"}})
    await task.when(lambda t: t["status"]["currentRevision"] != revision)
    found = await task.done(3)
    assert runs(world) == 6
    pods = await task.pods()
    assert {pod["metadata"]["annotations"][TRIGGER] for pod in pods} >= {"ReferencedDataChange"}
    template, _, data = revision.partition("-")
    assert found["status"]["currentRevision"].startswith(f"{template}-")
    assert found["status"]["currentRevision"] != f"{template}-{data}"
    await edit(world, "token", {"stringData": {"token": f"{SECRET_TEXT}-2"}}, "secrets")
    await task.when(lambda t: t["status"]["currentRevision"] != found["status"]["currentRevision"])
    await task.done(3)
    assert runs(world) == 9
    seen = await Cli(Path(cluster.kubeconfig), world.namespace)("status", "daemontask", "t")
    assert f"revision {(await task.get())['status']['currentRevision']}" in seen.lines[0]
    assert not [line for line in operator.lines if SECRET_TEXT in line]


async def test_bad_data_reaches_the_canary_alone_and_the_former_data_ends_it(world: World) -> None:
    await world.join(5)
    await both(world)
    task = await world.task(**ON_DATA, canary={}, backoffLimit=0)
    await task.done(5)
    world.kubelet.default = fail()
    await edit(world, "sysctl", {"data": {"vm.swappiness": "nonsense"}})
    await task.when(lambda t: stands(t, "Stalled", "True", "NodesFailed"))
    await holds_for(2, lambda: runs(world) == 6)
    world.kubelet.default = SUCCEED
    await edit(world, "sysctl", {"data": {"vm.swappiness": "10"}})
    await task.done(5)
    assert runs(world) == 7, "of the five nodes the one that failed"


async def test_nothing_starts_without_the_objects_and_their_absence_runs_nothing_again(world: World) -> None:
    await world.join(2)
    task = await world.task(**ON_DATA)
    await task.condition("Ready", "False", "ReferencedDataUnavailable")
    found = await task.counts(pending=2)  # the operator may hear of the nodes one by one
    assert condition(found, "Ready")["message"] == (
        f"spec.dataRefs[0]: ConfigMap sysctl does not exist in namespace {world.namespace}; create it; "
        "nothing is started before; 0 of 2 nodes succeeded, 2 pending"
    )
    assert not condition(found, "Stalled")
    await both(world)
    await task.done(2)
    await world.admin.delete(path("configmaps", world.namespace, "sysctl"))
    await task.when(lambda t: stands(t, "Ready", "False", "ReferencedDataUnavailable"))
    (name,) = await world.join()
    await task.counts(succeeded=2, pending=1)
    await put(world, "configmaps", "sysctl", data={"vm.swappiness": "10"})
    await task.done(3)
    assert runs(world) == 3, "the data is the same as before"
    assert name in {pod["spec"]["nodeName"] for pod in await task.pods()}


async def test_a_task_without_the_field_waits_for_no_data(world: World, proxy: ApiProxy) -> None:
    await world.join()
    task = await world.task(**ON_DATA)
    await task.when(lambda t: stands(t, "Ready", "False", "ReferencedDataUnavailable"))
    await task.edit(dataRefs=None, rerunOn=None)
    await task.done(1)
    await asyncio.sleep(PERIOD)
    since = time.time()
    await asyncio.sleep(PERIOD)
    ours = proxy.ledger.calls(lambda c: c.namespace == world.namespace and c.resource == "daemontasks")
    assert len([call for call in ours if call.time >= since]) <= 5, "no pass follows the other at once"


async def test_a_change_while_no_operator_runs_is_not_missed_and_no_run_is_repeated(
    world: World, operator: OperatorProcess
) -> None:
    await world.join(2)
    await both(world)
    task = await world.task(**ON_DATA)
    before = await task.done(2)
    operator.kill9()
    await asyncio.to_thread(operator.start)
    await task.touch()
    await holds_for(2, lambda: runs(world) == 2)
    operator.kill9()
    await edit(world, "sysctl", {"data": {"vm.swappiness": "30"}})
    await asyncio.to_thread(operator.start)
    await task.when(lambda t: t["status"]["currentRevision"] != before["status"]["currentRevision"])
    await task.done(2)
    assert runs(world) == 4


async def test_at_rest_each_object_is_read_once_a_period_and_nothing_is_written(
    world: World, proxy: ApiProxy
) -> None:
    await world.join()
    await both(world)
    task = await world.task(**ON_DATA)
    await task.done(1)

    def of_ours(call: Call) -> bool:
        return call.namespace == world.namespace

    await world.until(lambda: not any(map(of_ours, proxy.ledger.writes(since=time.time() - 2))))
    since = time.time()
    await holds_for(3 * PERIOD, lambda: not any(map(of_ours, proxy.ledger.writes(since=since))))
    reads = proxy.ledger.calls(lambda c: of_ours(c) and c.resource in ("configmaps", "secrets"))
    at_rest = Counter((c.resource, c.name) for c in reads if c.time >= since)
    most = (time.time() - since) / PERIOD + 1
    assert at_rest.keys() == {("configmaps", "sysctl"), ("secrets", "token")}
    assert all(1 <= count <= most for count in at_rest.values()), at_rest


async def test_the_example_runs_again_when_its_config_map_is_edited(world: World) -> None:
    text = (CHECKOUT / "examples" / "sysctl-profile.yaml").read_text()
    profile, body = (manifests.load(part) for part in text.split("\n---\n"))
    await world.join(3)
    await world.admin.create(path("configmaps", world.namespace), profile)
    spec = {**body["spec"], "canary": {}, "minSuccessSeconds": 0}
    spec["template"]["spec"]["nodeSelector"] = world.selector
    task = await world.task("sysctl-profile", **spec)
    before = await task.done(3)
    await edit(world, "sysctl-profile", {"data": {"profile.conf": "vm.max_map_count = 524288\n"}})
    await task.when(lambda t: t["status"]["currentRevision"] != before["status"]["currentRevision"])
    await task.done(3)
    assert runs(world) == 6
