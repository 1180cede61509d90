"""EC2 instances of the double for the fake nodes of `make cluster`: what an IMDSPolicy needs, by hand.

Inputs: a cluster and a double that run. Each fake node without an instance gets one with hop limit 1 and
optional tokens, in one of three groups, whose names the examples' patterns match. A node's providerID can be
set once: where it names an instance of a double that was stopped since, only a new cluster helps.
"""

import asyncio
from typing import Any, Final

from awsdoubles.cached import DoubleError
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.state import GROUP_TAG
from testbed.admin import Admin, Json, path
from testbed.nodes import FAKE

CLUSTER_TAG: Final = {"kubernetes.io/cluster/testbed": "owned"}
NODEGROUP: Final = "eks.amazonaws.com/nodegroup"
OPTIONS: Final = {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional", "HttpEndpoint": "enabled"}
APPS, BUILDERS, SPOT = "apps-a", "builders-a", "spot"
# Of five nodes in the order of their names three are of the first.
TURNS: Final = (APPS, APPS, APPS, BUILDERS, SPOT)
GROUPS: Final = {
    APPS: "EKSManagedNodegroup",
    BUILDERS: "EKSManagedNodegroup",
    SPOT: "AutoScalingGroup with the launch template spot",
}


async def give_instances(admin: Admin, control: Control) -> dict[str, list[str]]:
    """Group -> the nodes that have got an instance there now. DoubleError where nodes have lost theirs."""
    fake = [node for node in await admin.list(path("nodes")) if _fake(node)]
    known = {one["providerID"] for one in await asyncio.to_thread(control.instances)}
    if lost := [_name(node) for node in fake if _provider(node) not in {"", *known}]:
        raise DoubleError(
            f"{', '.join(sorted(lost))}: of doubles that were stopped since, and a node cannot have another "
            "instance: make cluster-down cluster"
        )
    places = zip(sorted(fake, key=_name), _turns(len(fake)), strict=True)
    given: dict[str, list[str]] = {group: [] for group in GROUPS}
    for node, group in places:
        if not _provider(node):
            given[group].append(_name(node))
    for group, names in given.items():
        made = await asyncio.to_thread(_launch, control, group, len(names))
        pairs = zip(names, made, strict=True)
        await asyncio.gather(
            *(admin.patch(path("nodes", name=n), _as_instance(group, one)) for n, one in pairs)
        )
    return given


def _turns(count: int) -> list[str]:
    return [TURNS[number % len(TURNS)] for number in range(count)]


def _launch(control: Control, group: str, count: int) -> list[Json]:
    if not count:
        return []
    if group != SPOT:
        return control.add_nodes(count, tags=CLUSTER_TAG, options=OPTIONS)
    # Once: put again, the template would have a version more.
    if not any(one["tags"].get(GROUP_TAG) == SPOT for one in control.instances()):
        control.put_template(SPOT, [{"MetadataOptions": OPTIONS}])
        control.put_group(SPOT, LaunchTemplate={"LaunchTemplateName": SPOT, "Version": "$Default"})
    return control.add_nodes(count, tags=CLUSTER_TAG, group=SPOT)


def _as_instance(group: str, instance: Json) -> dict[str, Any]:
    """What EKS' cloud controller and bootstrap set on a Node."""
    labels = {} if group == SPOT else {NODEGROUP: group}
    return {"metadata": {"labels": labels}, "spec": {"providerID": instance["providerID"]}}


def _fake(node: Json) -> bool:
    return FAKE.items() <= (node["metadata"].get("annotations") or {}).items()


def _name(node: Json) -> str:
    return str(node["metadata"]["name"])


def _provider(node: Json) -> str:
    return str(node["spec"].get("providerID", ""))
