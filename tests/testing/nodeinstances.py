"""A real node that is an instance of the EC2 double, as IMDSPolicies look for one by its providerID."""

from typing import Final

from awsdoubles.ec2.control import Control
from testbed.admin import Admin, path
from testbed.nodes import is_ready

GROUP: Final = {"eks.amazonaws.com/nodegroup": "apps"}


async def become(admin: Admin, name: str, provider: str) -> None:
    """Make the node that instance. A providerID is set once: one that has another, as in kind, is made
    anew."""
    url = path("nodes", name=name)
    body = await admin.get(url)
    if "providerID" not in body["spec"]:
        await admin.patch(url, {"metadata": {"labels": GROUP}, "spec": {"providerID": provider}})
        return
    await admin.delete(url)
    known = {key: body["metadata"][key] for key in ("name", "annotations")}
    spec = {**body["spec"], "providerID": provider}
    labels = {**body["metadata"]["labels"], **GROUP}
    await admin.create(path("nodes"), {"metadata": {**known, "labels": labels}, "spec": spec})
    await admin.wait_for(url, is_ready, 60)


async def instance_of(admin: Admin, name: str, control: Control) -> str:
    """The ID of the node's instance: the one that it is already, or else a new one."""
    provider = (await admin.get(path("nodes", name=name)))["spec"].get("providerID")
    for one in control.instances():
        if one["providerID"] == provider:
            return str(one["id"])
    (made,) = control.add_nodes()
    await become(admin, name, made["providerID"])
    return str(made["id"])
