"""The release's own life: tested, upgraded while work goes on, uninstalled while resources are left."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from awsdoubles.ec2.server import Ec2
from awsdoubles.gateway.server import StorageGateway
from caretaker.api.names import LABEL_TASK
from realnode.kind import KindNode
from testbed.admin import Admin, Json, path
from testbed.paths import CHECKOUT
from testbed.recorder import PodRecorder
from testbed.steer import behaviour
from testing.aws import Aws
from testing.cluster import Nodes
from testing.customresource import Resource, stands
from testing.nodeinstances import instance_of
from testing.nodetasks import task
from testing.refreshing import Refreshing
from testing.release import DEPLOYMENT, NAMESPACE, PODS, Release, complete

FAKE: Final = 15
AT_ONCE: Final = 3
RUN_SECONDS: Final = 2.0
HOP_LIMIT: Final = 2
# Nothing of the release may be put on them: their kubelets are fakes.
TAINTS: Final = [{"key": "fake", "effect": "NoSchedule"}]


@pytest.fixture
async def compliant(node: KindNode, admin: Admin, ec2: Ec2) -> None:
    """The node is an EC2 instance with the hop limit that a policy of these tests asks for."""
    instance = await instance_of(admin, node.name, ec2.control)
    ec2.control.put_options([instance], HttpPutResponseHopLimit=HOP_LIMIT)


@pytest.fixture
async def fakes(admin: Admin) -> AsyncIterator[Nodes]:
    """Fake nodes beside the real one, for a rollout that takes a while."""
    made = Nodes(admin, "rollout")
    await made.add(FAKE, taints=TAINTS)
    yield made
    await made.delete(*made.names)


async def replicas(admin: Admin) -> set[str]:
    """The names of the operator's pods."""
    return {pod["metadata"]["name"] for pod in await admin.list(path("pods", NAMESPACE), labels=PODS)}


async def test_helm_test_runs_a_task_on_the_node(release: Release) -> None:
    assert "every node has run it" in await asyncio.to_thread(release.test)


async def test_an_upgrade_in_the_middle_of_a_rollout_loses_nothing(
    release: Release, admin: Admin, fakes: Nodes, aws: Aws, storage_gateway: StorageGateway
) -> None:
    """Each node runs once and never more than may at once; an event that comes meanwhile is refreshed."""
    place = Refreshing(admin, NAMESPACE, aws, storage_gateway.control, scale=1.0)
    source = aws.source()
    share = place.share(source.bucket)
    refresh = await place.create(source.queue, name="upgraded")
    await refresh.condition("Ready")
    body = task(
        "rollout",
        parallelism=AT_ONCE,
        pod={"nodeSelector": fakes.selector, "tolerations": [{"operator": "Exists"}]},
    )
    body["spec"]["template"]["metadata"] = {"annotations": behaviour(run_seconds=RUN_SECONDS)}
    rollout = Resource(admin, path("daemontasks", "default", "rollout"))
    before = await replicas(admin)
    async with PodRecorder(admin, "default", labels=f"{LABEL_TASK}=rollout") as record:
        await admin.create(path("daemontasks", "default"), body)
        await rollout.when(lambda found: found["status"].get("succeeded", 0) >= AT_ONCE)
        upgrade = asyncio.create_task(
            asyncio.to_thread(release.upgrade, "--set", "podAnnotations.upgraded=yes")
        )
        await asyncio.to_thread(aws.put, source.bucket, "in/meanwhile.csv")
        await upgrade
        done = await rollout.when(lambda found: stands(found, "Ready"), 90)
        assert done["status"]["succeeded"] == FAKE
        await record.settle()
        assert record.runs_per_node() == dict.fromkeys(fakes.names, 1)
        assert record.max_active() <= AT_ONCE
    await complete(admin)
    assert not before & await replicas(admin)
    await asyncio.to_thread(place.control.wait_fresh, share)
    await refresh.delete()
    await refresh.gone()


def command_of_the_guide() -> str:
    """The loop of the guide that removes finalizers from resources that wait for an operator."""
    page = (CHECKOUT / "docs" / "uninstall.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if '"finalizers":null' in block]
    loops = re.findall(r"^kubectl get \S+ -A -o jsonpath.*?^  done$", found, re.MULTILINE | re.DOTALL)
    return str(loops[0])


@pytest.mark.usefixtures("compliant")
async def test_an_uninstall_with_resources_left_behind_strands_nothing(
    release: Release, admin: Admin, aws: Aws, storage_gateway: StorageGateway
) -> None:
    """Without an operator everything can be deleted, but what asked for work on its deletion."""
    place = Refreshing(admin, NAMESPACE, aws, storage_gateway.control, scale=1.0)
    plain, flushed = aws.source(), aws.source()
    for source in (plain, flushed):
        place.share(source.bucket)
    refresh = await place.create(plain.queue, name="plain")
    waiting = await place.create(flushed.queue, name="flushed", onDelete="Flush")
    for one in (refresh, waiting):
        await one.condition("Ready")
    await admin.create(path("daemontasks", "default"), task("left"))
    left = Resource(admin, path("daemontasks", "default", "left"))
    await left.when(lambda found: stands(found, "Ready"))
    policy = Resource(admin, path("imdspolicies", name="left"))
    await admin.create(path("imdspolicies"), _policy("left"))
    await policy.when(lambda found: stands(found, "Ready"))

    await asyncio.to_thread(release.uninstall)
    await admin.wait_gone(DEPLOYMENT)
    for one in (left, policy, refresh):
        await one.delete()
        await admin.wait_gone(one.url)
    await waiting.delete()
    held = await waiting.get()
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["finalizers"]
    await asyncio.to_thread(release.shell, command_of_the_guide())
    await admin.wait_gone(waiting.url)
    await admin.delete(path("namespaces", name=NAMESPACE))
    await admin.wait_gone(path("namespaces", name=NAMESPACE), 60)


def _policy(name: str) -> Json:
    options: dict[str, Any] = {"httpPutResponseHopLimit": HOP_LIMIT}
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "IMDSPolicy",
        "metadata": {"name": name},
        "spec": {"options": options},
    }
