"""Admission policies of one namespace, as a cluster's administrators set them.

Inputs: a client with all rights and the namespace. A policy acts some moments after it was made; entering
returns once it does.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from testbed.admin import Admin, ApiError, Json, path
from testing.customresource import TIMEOUT

NODE_NAME = "caretaker.dev/node-name"


@asynccontextmanager
async def denied(
    admin: Admin, namespace: str, operation: str, message: str, nodes: Sequence[str] = ()
) -> AsyncIterator[str]:
    """CREATE or DELETE of Pods is refused with `message`; with `nodes` that of a task's Pods for these nodes
    alone. Yields the path of the binding: who deletes that ends the refusals."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"]}
    name = f"{namespace}-{operation.lower()}"
    policy = {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": _unless_for(nodes), "message": message}],
        },
    }
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": where},
    }
    # On no node, so that neither a kubelet nor kwok has it end, nor a count of slots or Pods meets it there.
    nowhere = {"nodeSelector": {"testbed.caretaker.dev/none": "such"}}
    containers = [{"name": "main", "image": "test:1"}]
    marks = {NODE_NAME: nodes[0]} if nodes else {}
    probe = {
        "metadata": {"name": "probe", "annotations": marks},
        "spec": {**nowhere, "containers": containers},
    }
    if operation == "DELETE":
        await admin.create(path("pods", namespace), probe)
    await admin.create(path("validatingadmissionpolicies"), policy)
    await admin.create(path("validatingadmissionpolicybindings"), binding)
    url = path("validatingadmissionpolicybindings", name=name)
    try:
        async with asyncio.timeout(TIMEOUT):
            while not await _refused(admin, namespace, operation, probe, message):  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # nothing tells when a policy begins to act
        yield url
    finally:
        await admin.delete(url)
        await admin.delete(path("validatingadmissionpolicies", name=name))


def _unless_for(nodes: Sequence[str]) -> str:
    """True for what may pass."""
    if not nodes:
        return "false"
    marks, listed = "object.metadata.annotations", ", ".join(f"'{name}'" for name in nodes)
    return f"!has({marks}) || !('{NODE_NAME}' in {marks}) || !({marks}['{NODE_NAME}'] in [{listed}])"


async def _refused(admin: Admin, namespace: str, operation: str, probe: Json, message: str) -> bool:
    try:
        if operation == "CREATE":
            await admin.request("POST", path("pods", namespace), probe, params={"dryRun": "All"})
        else:
            await admin.request("DELETE", path("pods", namespace, "probe"), params={"dryRun": "All"})
    except ApiError as error:
        return message in error.message
    return False
