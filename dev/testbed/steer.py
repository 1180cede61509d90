"""Make fake nodes and their pods misbehave, as machines and kubelets do.

Inputs: an administrator's client and the names of nodes or pods. What stages.yaml can do by itself is
asked of it through annotations; what a kubelet would not do (an eviction, a disruption) is done here.
Each function returns when the API server shows the effect, so tests need not wait again.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import yaml

from testbed.admin import Admin, ApiError, Json, path
from testbed.nodes import PREFIX, READY

Outcome = Literal["succeed", "fail", "oom", "run-on", "image-pull-failure", "reject"]

BOOT_ID: Final = f"{PREFIX}/boot-id"
FROZEN: Final = f"{PREFIX}/frozen"
STUCK: Final = f"{PREFIX}/stuck"
NUDGED: Final = f"{PREFIX}/nudged"
_POLICIES: Final = Path(__file__).with_name("steering.yaml")
_PLURALS: Final = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}
_NAMESPACE: Final = "testbed-steering"
_TIMEOUT: Final = 30.0
_NUDGE_SECONDS: Final = 5.0
_EFFECT_TIMEOUT: Final = 60.0  # it takes about 2 s, on a machine that is not starved


def behaviour(
    outcome: Outcome = "succeed",
    *,
    run_seconds: float | None = None,
    start_seconds: float | None = None,
    stop_seconds: float | None = None,
    exit_code: int | None = None,
    reason: str | None = None,
    message: str | None = None,
    stuck: bool = False,
) -> dict[str, str]:
    """Annotations for a pod template, or for `steer_node`. Unset seconds: run 1, start and stop 0."""
    values = {
        "outcome": outcome,
        "run-seconds": run_seconds,
        "start-seconds": start_seconds,
        "stop-seconds": stop_seconds,
        "exit-code": exit_code,
        "reason": reason,
        "message": message,
        "stuck": "true" if stuck else None,
    }
    return {f"{PREFIX}/{key}": str(value) for key, value in values.items() if value is not None}


async def steer_pod(admin: Admin, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
    """Set annotations of one pod, or remove those that are None; what it does changes from then on."""
    await admin.patch(path("pods", namespace, name), {"metadata": {"annotations": dict(annotations)}})


async def finish(admin: Admin, namespace: str, name: str, exit_code: int = 0) -> Json:
    """End a running pod, one that runs on included, and return it in its terminal phase."""
    end = behaviour("fail" if exit_code else "succeed", run_seconds=0, exit_code=exit_code)
    await steer_pod(admin, namespace, name, end)
    phase = "Failed" if exit_code else "Succeeded"
    return await admin.wait_for(
        path("pods", namespace, name), lambda pod: bool(pod["status"]["phase"] == phase), _TIMEOUT
    )


async def evict(admin: Admin, namespace: str, name: str) -> None:
    """Evict through the API, as a drain does: condition DisruptionTarget, then deletion."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    await admin.create(path("pods", namespace, name, "eviction"), body)


async def disrupt(
    admin: Admin, namespace: str, name: str, reason: str = "TerminationByKubelet", *, exit_code: int = 137
) -> None:
    """Fail a pod as its kubelet does under pressure or at shutdown: Failed, with DisruptionTarget."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": _now()}
    await _fail(admin, namespace, name, exit_code, [condition], "Terminated")


async def kill(admin: Admin, namespace: str, name: str, *, exit_code: int = 255) -> None:
    """Fail a pod as a kubelet does that finds its containers gone after a reboot."""
    await _fail(admin, namespace, name, exit_code, [], None)


async def pods_on(admin: Admin, node: str) -> list[Json]:
    """The pods bound to a node, in all namespaces."""
    return await admin.list(path("pods"), fields=f"spec.nodeName={node}")


async def make_not_ready(
    admin: Admin, node: str, status: Literal["False", "Unknown"] = "Unknown", *, freeze: bool = True
) -> None:
    """Lose a node: Ready becomes `status`. With `freeze` its pods stop where they are: they neither end
    nor go away when deleted, and pods that are bound to it later never start."""
    if freeze:
        await steer_node(admin, node, {FROZEN: "true"})
        await _annotate_pods(admin, node, {FROZEN: "true"})
    await admin.patch(path("nodes", name=node), {"metadata": {"annotations": {READY: status}}})
    await _becomes(admin, node, lambda body: ready_status(body) == status)


async def make_ready(admin: Admin, node: str) -> None:
    """The node is back: Ready, and its pods go on. Its lifecycle taints go some moments later."""
    await release_node(admin, node)
    await thaw(admin, node)
    await admin.patch(path("nodes", name=node), {"metadata": {"annotations": {READY: None}}})
    await _becomes(admin, node, lambda body: ready_status(body) == "True")


async def thaw(admin: Admin, node: str) -> None:
    """Pods of a node that was lost end and go again; those of a deleted node do so with its namesake."""
    await _annotate_pods(admin, node, {FROZEN: None})


async def reboot(
    admin: Admin,
    node: str,
    *,
    through_not_ready: bool = False,
    pods: Literal["keep", "kill", "disrupt"] = "keep",
) -> str:
    """Give a node a new bootID and return it. The running pods go on, or end as `kill` or `disrupt` do."""
    boot_id = str(uuid.uuid4())
    if through_not_ready:
        await make_not_ready(admin, node)
    if pods != "keep":
        end = kill if pods == "kill" else disrupt
        running = [
            pod["metadata"] for pod in await pods_on(admin, node) if pod["status"]["phase"] == "Running"
        ]
        await asyncio.gather(*(end(admin, meta["namespace"], meta["name"]) for meta in running))
    await admin.patch(path("nodes", name=node), {"metadata": {"annotations": {BOOT_ID: boot_id}}})
    await _becomes(admin, node, lambda body: bool(body["status"]["nodeInfo"]["bootID"] == boot_id))
    if through_not_ready:
        await make_ready(admin, node)
    return boot_id


async def _becomes(admin: Admin, node: str, condition: Callable[[Json], bool]) -> None:
    """Return once kwok has done to the node what an annotation asks for.

    When it comes to hold a node's Lease it looks at an older copy of the node, now and then after a newer
    one: what that asked for is forgotten until the node changes again, which is seen to here.
    """
    url, deadline = path("nodes", name=node), time.monotonic() + _TIMEOUT
    while True:
        try:
            await admin.wait_for(url, condition, _NUDGE_SECONDS)
        except TimeoutError:
            if time.monotonic() > deadline:
                raise
            await admin.patch(url, {"metadata": {"annotations": {NUDGED: str(uuid.uuid4())}}})
        else:
            return


async def cordon(admin: Admin, node: str, *, unschedulable: bool = True) -> None:
    """Cordon a node, or uncordon it."""
    await admin.patch(path("nodes", name=node), {"spec": {"unschedulable": unschedulable or None}})


async def steer_node(admin: Admin, node: str, annotations: Mapping[str, str]) -> None:
    """Every pod that is bound to the node from now on gets these annotations (see `behaviour`)."""
    await _install(admin)
    meta = {"name": node, "labels": {f"{PREFIX}/steering": "true"}, "annotations": dict(annotations)}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    await admin.apply(path("configmaps", _NAMESPACE, node), body)
    await _in_effect(admin, node, dict(annotations))


async def release_node(admin: Admin, node: str) -> None:
    """Pods that are bound to the node from now on behave as their templates say."""
    await _install(admin)
    await admin.delete(path("configmaps", _NAMESPACE, node))
    await _in_effect(admin, node, {})


def ready_status(node: Json) -> str:
    """The status of the Ready condition, or the empty string."""
    conditions = node.get("status", {}).get("conditions") or []
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")


async def _annotate_pods(admin: Admin, node: str, annotations: Mapping[str, str | None]) -> None:
    pods = [pod["metadata"] for pod in await pods_on(admin, node)]
    await asyncio.gather(
        *(_if_there(steer_pod(admin, meta["namespace"], meta["name"], annotations)) for meta in pods)
    )


async def _fail(
    admin: Admin, namespace: str, name: str, exit_code: int, conditions: list[Json], reason: str | None
) -> None:
    """Unless it has ended already: a kubelet never takes a terminal phase back."""
    url = path("pods", namespace, name)
    while True:
        pod = await admin.find(url)
        if pod is None or pod["status"]["phase"] in {"Succeeded", "Failed"}:
            return
        body = {
            "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]},
            "status": _failed(pod, exit_code, conditions, reason),
        }
        try:
            await admin.patch(f"{url}/status", body, "strategic")
        except ApiError as error:
            if error.status not in {404, 409}:
                raise
        else:
            return


def _failed(pod: Json, exit_code: int, conditions: list[Json], reason: str | None) -> Json:
    now = _now()
    ended = {"exitCode": exit_code, "reason": "Error", "startedAt": None, "finishedAt": now}
    statuses = [
        {**status, "ready": False, "started": False, "state": {"terminated": ended}}
        for status in pod["status"].get("containerStatuses", [])
    ]
    down = [
        {"type": kind, "status": "False", "reason": "PodFailed", "lastTransitionTime": now}
        for kind in ("Ready", "ContainersReady")
    ]
    status: Json = {"phase": "Failed", "reason": reason, "conditions": [*conditions, *down]}
    if statuses:
        status["containerStatuses"] = statuses
    return status


async def _install(admin: Admin) -> None:
    namespace, *policies = yaml.safe_load_all(_POLICIES.read_text())
    urls = [await _at_version(admin, _PLURALS[body["kind"]], body) for body in policies]
    if await admin.find(urls[-1]):
        return
    await admin.apply(path("namespaces", name=_NAMESPACE), namespace)
    for url, body in zip(urls, policies, strict=True):
        await admin.apply(url, body)


async def _at_version(admin: Admin, plural: str, body: Json) -> str:
    """Where this object is served; it is changed to that version. Before Kubernetes 1.36 it is a beta one."""
    url = path(plural, name=body["metadata"]["name"])
    collection, _, name = url.rpartition("/")
    served = await admin.find(collection.rpartition("/")[0])
    if served is not None and plural in {resource["name"] for resource in served["resources"]}:
        return url
    body["apiVersion"] = body["apiVersion"].replace("/v1", "/v1beta1")
    return f"{collection.replace('/v1/', '/v1beta1/')}/{name}"


async def _in_effect(admin: Admin, node: str, annotations: dict[str, str]) -> None:
    """Nothing announces that a policy took effect, so ask until the probe says so."""
    probe = {"metadata": {"name": node, "labels": {f"{PREFIX}/probe": "true"}}}
    url = path("configmaps", "default") + "?dryRun=All"
    async with asyncio.timeout(_EFFECT_TIMEOUT):
        while True:
            if await _annotations_of(admin, url, probe) == annotations:
                return
            await asyncio.sleep(0.05)


async def _annotations_of(admin: Admin, url: str, probe: Json) -> Json | None:
    """What the probe came back with; None while the policy refuses it: after its installation, and after a
    start of the API server, its parameters are not synced yet."""
    try:
        answer = await admin.create(url, probe)
    except ApiError as error:
        unready = ("not yet synced", "failed to configure policy")
        if error.status == 403 and any(words in error.message for words in unready):
            return None
        raise
    found: Json = answer["metadata"].get("annotations", {})
    return found


async def _if_there(request: Awaitable[None]) -> None:
    try:
        await request
    except ApiError as error:
        if error.status != 404:
            raise


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
