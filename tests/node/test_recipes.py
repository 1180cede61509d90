"""Recipes of examples/ as pods of a real kubelet: what they do is done on the node."""

import copy
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from awsdoubles.gateway.server import StorageGateway
from awsdoubles.s3copies import S3Copies
from hoplab.options import MetadataOptions
from realnode import images
from realnode.kind import KindNode
from realnode.metadata import MetadataService
from realnode.registry import Registry
from testbed.admin import Admin, Json, path
from testing.aws import Aws
from testing.customresource import Resource, stands
from testing.recipes import HUB, document
from testing.refreshing import Refreshing
from testing.release import NAMESPACE, Release

INSTANCE: Final = "i-0123456789abcdef0"
FOLDERS: Final = "/var/lib/recipes"  # in a file system of the node's own
SOMAXCONN: Final = "/proc/sys/net/core/somaxconn"
# Recipe -> what its namespace enforces.
LEVELS: Final = {
    "prepull-image": "restricted",
    "network-baseline": "restricted",
    "imds-reachability": "restricted",
    "patch-sysctl": "privileged",
    "nightly-cleanup": "privileged",
}


@pytest.fixture
async def namespaces(admin: Admin) -> AsyncIterator[dict[str, str]]:
    """Pod Security level -> a namespace that enforces it."""
    made = {level: f"recipes-{level}" for level in ("restricted", "privileged")}
    for level, name in made.items():
        labels = {"pod-security.kubernetes.io/enforce": level}
        await admin.create(path("namespaces"), {"metadata": {"name": name, "labels": labels}})
        await admin.wait_for(path("serviceaccounts", name, "default"), lambda _: True)
    yield made
    for name in made.values():
        await admin.delete(path("namespaces", name=name))


def harmless(task: Json) -> Json:
    """Without settings and folders that are the whole machine's, not the node's alone; and at once."""
    made = copy.deepcopy(task)
    for field in ("schedule", "startingDeadlineSeconds"):
        made["spec"].pop(field, None)
    made["spec"].pop("budgets", None)
    made["spec"]["template"]["spec"].pop("tolerations", None)  # in kind the control plane has a node, too
    for volume in made["spec"]["template"]["spec"].get("volumes", ()):
        volume["hostPath"] = {"path": f"{FOLDERS}/{volume['name']}", "type": "DirectoryOrCreate"}
    container: dict[str, Any] = made["spec"]["template"]["spec"]["containers"][0]
    container["command"] = [word for word in container.get("command", ()) if not word.startswith("vm.")]
    if not container["command"]:
        del container["command"]
    return made


def figures(task: Json) -> dict[str, Json]:
    return {result["name"]: result for result in task["status"]["results"]}


async def test_recipes_do_their_work_on_the_node(
    release: Release,
    node: KindNode,
    admin: Admin,
    registry: Registry,
    namespaces: dict[str, str],
) -> None:
    node.place.run(["sh", "-c", f"echo 128 > {SOMAXCONN}"])
    old = [f"{FOLDERS}/{name}/old" for name in ("tmp", "coredump", "tmp/mounted")]
    node.place.run(["mkdir", "-p", f"{FOLDERS}/tmp/mounted", f"{FOLDERS}/coredump"])
    node.place.run(["mount", "-t", "tmpfs", "tmpfs", f"{FOLDERS}/tmp/mounted"])
    node.place.run(["touch", "-d", "10 days ago", *old])
    node.place.run(["touch", f"{FOLDERS}/tmp/new"])
    with MetadataService(node.place, lambda: MetadataOptions(1, "required", "enabled"), INSTANCE):
        done: dict[str, Json] = {}
        for name, level in LEVELS.items():
            task = harmless(document(name, "DaemonTask"))
            await admin.create(path("daemontasks", namespaces[level]), task)
        for name, level in LEVELS.items():
            resource = Resource(admin, path("daemontasks", namespaces[level], name))
            done[name] = await resource.when(lambda body: stands(body, "Ready"), 60)
    assert [task["status"]["succeeded"] for task in done.values()] == [1] * len(LEVELS)
    # The node's own network, whose setting outlives the pod.
    assert node.place.run(["cat", SOMAXCONN]).strip() == "4096"
    seen = figures(done["network-baseline"])
    assert {figure["count"] for figure in seen.values()} == {1}
    assert seen["failedPercent"]["max"] == 0
    assert 0 < seen["connectMs"]["median"] <= seen["slowestMs"]["max"]
    assert 1_000 < seen["segmentBytes"]["min"] < 65_536
    seen = figures(done["imds-reachability"])
    assert seen["verdict"]["values"] == [{"value": "HopLimited", "nodes": 1}]
    assert (seen["neededHops"]["max"], seen["imdsv1"]["values"][0]["value"]) == (2, "Closed")
    assert [task["status"]["resultErrors"] for task in done.values()] == [[]] * len(LEVELS)
    assert figures(done["nightly-cleanup"])["freePercent"]["count"] == 1
    assert figures(done["nightly-cleanup"])["removedFiles"]["max"] == 2
    left = node.place.run(["find", FOLDERS, "-type", "f"]).split()
    assert sorted(left) == [f"{FOLDERS}/tmp/mounted/old", f"{FOLDERS}/tmp/new"], "other file systems stay"
    assert node.has_image(f"{HUB}/library/nginx:1.29")
    assert any(name.startswith("library/nginx:") for name in registry.pulled)


async def test_a_job_mends_the_objects_of_a_bucket(
    release: Release, node: KindNode, admin: Admin, aws: Aws, storage_gateway: StorageGateway
) -> None:
    """In the operator's own namespace, which admits restricted pods alone and is granted its queue."""
    source = aws.source()
    s3 = S3Copies(aws.url)
    s3.host = node.place.outside
    for body in (
        {"kind": "ServiceAccount", "metadata": {"name": "assets-repair"}},
        document("s3-metadata-repair", "ConfigMap"),
    ):
        await admin.create(path(f"{body['kind'].lower()}s", NAMESPACE), body)
    spec = copy.deepcopy(document("s3-metadata-repair", "S3AggregatedRefresh")["spec"])
    (container,) = spec["target"]["job"]["template"]["spec"]["containers"]
    container["image"] = images.reference("operator", images.version())
    with s3:
        doubles = {**aws.environment(aws.url), "AWS_ENDPOINT_URL_S3": s3.url, "DRY_RUN": "false"}
        own = [one for one in container["env"] if one["name"] not in doubles]
        container["env"] = [*own, *({"name": name, "value": value} for name, value in doubles.items())]
        place = Refreshing(admin, NAMESPACE, aws, storage_gateway.control, scale=1.0)
        for key in ("a/1.html", "2.html"):
            aws.s3.put_object(Bucket=source.bucket, Key=key, Body=b"<p>", ContentEncoding="gzip")
        resource = await place.create(
            source.queue,
            "content-encoding",
            filter={**spec["filter"], "buckets": [source.bucket]},
            debounce={"quietPeriod": "1s", "maxDelay": "60s", "minInterval": "0s"},
            resync=spec["resync"],
            target=spec["target"],
        )
        await resource.caught_up()
        await place.clear()
    assert sorted(made.key for made in s3.copies) == ["2.html", "a/1.html"]
    for key in ("a/1.html", "2.html"):
        assert "ContentEncoding" not in aws.s3.head_object(Bucket=source.bucket, Key=key)
