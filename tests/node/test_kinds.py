"""Each kind handles one real object, under the role and the security context that users get."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from awsdoubles.ec2.server import Ec2
from awsdoubles.gateway.server import StorageGateway
from caretaker.api.names import LABEL_TASK
from hoplab.options import MetadataOptions
from realnode.kind import KindNode
from realnode.metadata import MetadataService
from testbed.admin import Admin, Json, path
from testbed.recorder import is_running
from testing.aws import Aws
from testing.cli import Cli
from testing.customresource import Resource, stands
from testing.imds import SLOW, TAGS
from testing.nodeinstances import become
from testing.nodetasks import task
from testing.refreshing import Refreshing
from testing.release import NAMESPACE, Release

WAIT: Final = "import time; time.sleep(600)"


async def test_the_pod_of_a_task_runs_and_its_log_can_be_read(
    release: Release, node: KindNode, admin: Admin
) -> None:
    results = [{"name": "uid", "type": "Number"}]
    await admin.create(path("daemontasks", "default"), task("hello", results=results))
    done = await Resource(admin, path("daemontasks", "default", "hello")).when(lambda b: stands(b, "Ready"))
    assert done["status"]["succeeded"] == 1
    cli = Cli(node.kubeconfig, "default")
    assert f"hello from {node.name}" in (await cli("logs", "daemontask", "hello", "--nodes", node.name)).out
    rows = (await cli("status", "daemontask", "hello", "-o", "json")).json["nodes"]
    (row,) = (row for row in rows if row["node"] == node.name)
    assert (row["state"], row["results"]) == ("succeeded", {"uid": 65532})


async def test_a_pod_that_the_node_has_no_room_for_is_rejected_and_the_node_runs_later(
    release: Release, node: KindNode, admin: Admin
) -> None:
    """A scheduler that overlooks another pod binds the run; the kubelet knows better."""
    half = int((await admin.get(path("nodes", name=node.name)))["status"]["allocatable"]["cpu"]) / 2
    template = task("busy", WAIT, pod={"nodeName": node.name})["spec"]["template"]["spec"]
    template["containers"][0]["resources"] = {"requests": {"cpu": str(half)}}
    busy = path("pods", "default", "busy")
    crowded = Resource(admin, path("daemontasks", "default", "crowded"))
    try:
        await admin.create(path("pods", "default"), {"metadata": {"name": "busy"}, "spec": template})
        await admin.wait_for(busy, is_running)

        body = task("crowded", pod={"schedulerName": "overlooks"}, backoffLimit=0)
        body["spec"]["template"]["spec"]["containers"][0]["resources"] = template["containers"][0][
            "resources"
        ]
        await admin.create(path("daemontasks", "default"), body)
        await bind(admin, "crowded", node.name)
        held = await crowded.when(lambda found: bool(found["status"].get("blockedNodes")))
        (blocked,) = held["status"]["blockedNodes"]
        assert (blocked["nodeName"], blocked["reason"], held["status"]["failed"]) == (
            node.name,
            "OutOfcpu",
            0,
        )

        await admin.delete(busy, grace=1)
        await admin.wait_gone(busy)
        await bind(admin, "crowded", node.name)
        done = await crowded.when(lambda found: stands(found, "Ready"))
        assert (done["status"]["succeeded"], done["status"]["failed"]) == (1, 0)
    finally:
        await admin.delete(busy, grace=1)
        await crowded.delete()
        await admin.wait_gone(busy)
        await admin.wait_gone(crowded.url)


async def bind(admin: Admin, name: str, node: str) -> None:
    """The part of a scheduler: the task's next pod, bound to the node."""

    def waiting(pods: list[Json]) -> bool:
        return any("nodeName" not in pod["spec"] for pod in pods)

    pods = await admin.wait_for_all(path("pods", "default"), waiting, labels=f"{LABEL_TASK}={name}")
    (pod,) = (pod for pod in pods if "nodeName" not in pod["spec"])
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    bound = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod["metadata"]["name"]},
        "target": target,
    }
    await admin.create(f"{path('pods', 'default', pod['metadata']['name'])}/binding", bound)


async def test_an_object_in_a_bucket_becomes_a_refresh(
    release: Release, admin: Admin, aws: Aws, storage_gateway: StorageGateway
) -> None:
    place = Refreshing(admin, NAMESPACE, aws, storage_gateway.control, scale=1.0)
    source = aws.source()
    share = place.share(source.bucket)
    resource = await place.create(source.queue)
    await resource.condition("Ready")
    await asyncio.to_thread(aws.put, source.bucket, "in/a.csv")
    await resource.when(lambda body: "inFlight" in body["status"]["targets"][0])
    await asyncio.to_thread(place.control.wait_fresh, share)
    (refresh,) = place.control.refreshes(share)
    assert "in" in refresh["folders"]
    await resource.delete()
    await resource.gone()


@pytest.fixture
async def instance(node: KindNode, admin: Admin, ec2: Ec2) -> AsyncIterator[str]:
    """The node's EC2 instance, with IMDSv1 open and a hop limit that ends at the node, and its metadata
    service."""
    (made,) = ec2.control.add_nodes(tags=TAGS, options=SLOW)
    identifier: str = made["id"]

    def in_force() -> MetadataOptions:
        found: dict[str, Any] = ec2.control.instance(identifier)["inForce"]
        return MetadataOptions(found["HttpPutResponseHopLimit"], found["HttpTokens"], found["HttpEndpoint"])

    await become(admin, node.name, made["providerID"])
    with MetadataService(node.place, in_force, identifier):
        yield identifier


async def test_a_policy_mends_the_hop_limit_and_a_pod_proves_it(
    release: Release, admin: Admin, ec2: Ec2, instance: str
) -> None:
    """The probe runs in a real pod, which a hop limit of 1 would keep from the token."""
    body = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "IMDSPolicy",
        "metadata": {"name": "workers"},
        "spec": {
            "mode": "Audit",
            "options": {"httpPutResponseHopLimit": 1, "httpTokens": "optional"},
            "verification": {"probe": True},
        },
    }
    await admin.create(path("imdspolicies"), body)
    policy = Resource(admin, path("imdspolicies", name="workers"))
    await policy.when(lambda found: stands(found, "Verified", "False", "SetButUnreachable"), 90)
    raised = {
        "mode": "Enforce",
        "options": {"httpPutResponseHopLimit": 2, "httpTokens": "required"},
        "safety": {"allowLoosening": ["HopLimit"], "allowTightening": ["Tokens"], "canary": {"instances": 0}},
    }
    await admin.patch(policy.url, {"spec": raised})
    proved = await policy.when(lambda found: stands(found, "Verified", "True", "Proved"), 120)
    assert ec2.control.instance(instance)["inForce"]["HttpPutResponseHopLimit"] == 2
    (group,) = proved["status"]["groups"]
    assert (group["requiredHopLimit"], group["probe"]["probed"], group["probe"]["reachable"]) == (2, 1, 1)
    await policy.delete()
    await admin.wait_gone(policy.url)
