"""The demo's step for IMDSPolicy: hop limits from audit to applied, as a pod sees them; one canary is lost.

Inputs: a Stage, and the EC2 double. Nodes get the instances of the double; the latency is that of a real
boto3 in network namespaces behind a true IP TTL (dev/hoplab), of one instance with its options in force. On
a machine without such namespaces the demo says so and shows the rest.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import yaml

from awsdoubles.ec2.control import Control
from hoplab.clients import Client, boto3
from hoplab.lab import HopLab
from hoplab.needs import HopLabError
from hoplab.network import POD
from hoplab.options import MetadataOptions
from testbed.admin import Json, path
from testbed.demo_steps import STEP_SECONDS, Stage, StepError
from testbed.paths import CHECKOUT

PLURAL: Final = "imdspolicies"
NODEGROUP: Final = "eks.amazonaws.com/nodegroup"
APPS, BUILDERS = "apps", "builders"
BUILDER_NODES: Final = 3
SLOW: Final = {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional", "HttpEndpoint": "enabled"}
SOAK: Final = "4s"
# Without httpTokens: closing IMDSv1 would soak for 15 minutes.
LOOSEN: Final = {
    "mode": "Enforce",
    "options": {"httpTokens": None},
    "safety": {
        "allowLoosening": ["HopLimit"],
        "canary": {"instances": 1, "soak": SOAK},
        "maxChangesPerMinute": 600,
    },
}


async def hop_limits(stage: Stage) -> str:
    """examples/imds-policy.yaml."""
    control = Control(stage.doubles["AWS_ENDPOINT_URL_EC2"])
    instances = await _instances(stage, control)
    async with _pod(stage, control, next(iter(instances.values()))) as pod:
        before = await pod.feel()
        workers, builders = await _audit(stage, len(instances))
        if pod.here:
            stage.say(
                f"a pod's boto3 has its credentials after {before}: IMDSv2's answer never comes, then IMDSv1"
            )
        await _enforce(stage, control, workers, builders, instances)
        after = await pod.feel()
        if pod.here:
            stage.say(f"the same boto3 has them after {after}, by IMDSv2")
    calls = [call for call in control.calls("ModifyInstanceMetadataOptions") if call["status"] == 200]
    if len(calls) != len(instances) + 1:  # the lost canary had been changed as well
        raise StepError(f"{len(calls)} changes of {len(instances)} instances")
    felt = f", {before} -> {after} in a pod" if pod.here else ""
    return f"{len(instances)} instances changed by {len(calls)} calls{felt}"


async def _instances(stage: Stage, control: Control) -> dict[str, str]:
    """Node -> instance: every node is one of the double's, in one of two groups."""
    nodes = sorted(node["metadata"]["name"] for node in await stage.admin.list(path("nodes")))
    nodes = [name for name in nodes if name.startswith("node-")]
    made = await asyncio.to_thread(
        control.add_nodes, len(nodes), tags={"kubernetes.io/cluster/demo": "owned"}, options=SLOW
    )
    of = {name: str(one["id"]) for name, one in zip(nodes, made, strict=True)}
    for number, (name, instance) in enumerate(of.items()):
        group = BUILDERS if number >= len(of) - BUILDER_NODES else APPS
        patch = {
            "metadata": {"labels": {NODEGROUP: group}},
            "spec": {"providerID": f"aws:///eu-west-1a/{instance}"},
        }
        await stage.admin.patch(path("nodes", name=name), patch)
    return of


async def _audit(stage: Stage, count: int) -> tuple[str, str]:
    """The two policies of the example, as they are: the URLs of both."""
    bodies = [
        body for body in yaml.safe_load_all((CHECKOUT / "examples" / "imds-policy.yaml").read_text()) if body
    ]
    for body in bodies:
        groups = body["spec"].get("selector", {}).get("groups", [])
        for term in groups:
            term["names"] = [name.removesuffix("-*") for name in term["names"]]
        await stage.admin.apply(path(PLURAL, name=body["metadata"]["name"]), body)
    workers, builders = (path(PLURAL, name=body["metadata"]["name"]) for body in bodies)
    found = await stage.admin.wait_for(workers, lambda p: _summary(p).get("drifted") == count, STEP_SECONDS)
    compliant = next(c for c in found["status"]["conditions"] if c["type"] == "Compliant")
    stage.say(f"mode Audit, nothing is changed: {compliant['message']}")
    said = await stage.operator.command("status", "imdspolicy", bodies[0]["metadata"]["name"])
    for line in said.splitlines():
        if line.startswith(("GROUP", "EKSManagedNodegroup")):
            stage.say(line)
    return workers, builders


async def _enforce(
    stage: Stage, control: Control, workers: str, builders: str, instances: dict[str, str]
) -> None:
    """Both policies enforce: 3 hops by that of higher priority, 2 by the other. The first canary is lost."""
    await stage.admin.patch(builders, {"spec": LOOSEN})
    first = await _canary(stage, builders)
    stage.say(
        f"mode Enforce: canary {first} is changed, EC2 has applied the change, and the soak of {SOAK} begins"
    )
    node = next(name for name, instance in instances.items() if instance == first)
    del instances[node]
    await asyncio.to_thread(control.remove, [first])
    await stage.admin.delete(path("nodes", name=node))
    stopped = await stage.admin.wait_for(builders, lambda p: _reason(p) == "BreakerOpen", STEP_SECONDS)
    stage.say(
        f"the instance is terminated and its Node deleted. Ready=False BreakerOpen: {_message(stopped)}"
    )
    for line in (await stage.operator.command("status", "imdspolicy", "builders")).splitlines():
        if line.startswith(("IMDSPolicy", "CANARY OF")) or "  Failed  " in line:
            stage.say(line)
    stage.say("caretaker resume imdspolicy builders")
    for line in (await stage.operator.command("resume", "imdspolicy", "builders")).splitlines():
        stage.say(line)
    stage.say(f"the next canary is another instance: {await _canary(stage, builders)}")
    found = await stage.admin.patch(workers, {"spec": LOOSEN})
    stage.say(
        f"canary {await _canary(stage, workers)} of {APPS} soaks, then the remaining instances are changed"
    )

    def done(policy: Json) -> bool:
        summary = _summary(policy)
        stage.screen.progress(
            summary.get("compliant", 0), summary.get("nodes", 0), "instances as they should be"
        )
        return _ready(policy) and bool(policy["metadata"]["generation"] >= found["metadata"]["generation"])

    for url in (builders, workers):
        await stage.admin.wait_for(url, done, STEP_SECONDS)
    hops = [one["inForce"]["HttpPutResponseHopLimit"] for one in control.instances(list(instances.values()))]
    builders_left = BUILDER_NODES - 1
    if sorted(hops) != [2] * (len(hops) - builders_left) + [3] * builders_left:
        raise StepError(f"hop limits in force: {hops}")
    stage.say(
        f"{hops.count(2)} instances of {APPS} have hop limit 2, {hops.count(3)} of {BUILDERS} have 3 by the "
        "policy with the higher priority; live, without a reboot"
    )


def _summary(policy: Json) -> dict[str, int]:
    return dict(policy.get("status", {}).get("summary", {}))


async def _canary(stage: Stage, policy: str) -> str:
    """The instance that soaks."""
    found = await stage.admin.wait_for(policy, _soaking, STEP_SECONDS)
    (instance,) = found["status"]["canary"]["instances"]
    return str(instance)


def _soaking(policy: Json) -> bool:
    return ((policy.get("status") or {}).get("canary") or {}).get("phase") == "Soaking"


def _reason(policy: Json) -> str:
    return str(_of_ready(policy).get("reason", ""))


def _message(policy: Json) -> str:
    return str(_of_ready(policy).get("message", ""))


def _of_ready(policy: Json) -> Json:
    conditions = (policy.get("status") or {}).get("conditions", [])
    return next((dict(one) for one in conditions if one["type"] == "Ready"), {})


def _ready(policy: Json) -> bool:
    conditions = policy.get("status", {}).get("conditions", [])
    current = policy["status"].get("observedGeneration") == policy["metadata"]["generation"]
    return current and any(
        (c["type"], c["status"], c["reason"]) == ("Ready", "True", "Enforced") for c in conditions
    )


class _Pod:
    """boto3 in a pod of the lab; `here` says whether there is one."""

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self.here = client is not None

    async def feel(self) -> str:
        """How long it takes to have credentials, for a person."""
        if self._client is None:
            return ""
        found = await asyncio.to_thread(self._client.resolve)
        return found.error or (
            f"{found.seconds:.1f} s" if found.seconds >= 1 else f"{found.seconds * 1000:.0f} ms"
        )


@asynccontextmanager
async def _pod(stage: Stage, control: Control, instance: str) -> AsyncIterator[_Pod]:
    """A pod on that instance, whose IMDS has the options that EC2 has in force."""

    def source() -> MetadataOptions:
        found: dict[str, Any] = control.instance(instance)["inForce"]
        return MetadataOptions(found["HttpPutResponseHopLimit"], found["HttpTokens"], found["HttpEndpoint"])

    lab = HopLab(source, instance_id=instance)
    try:
        await asyncio.to_thread(lab.__enter__)
    except HopLabError as error:
        stage.say(
            f"no latency is measured, since this machine cannot have the lab's network namespaces: {error}"
        )
        yield _Pod(None)
        return
    try:
        pod = _Pod(Client(lab, POD, boto3()))
        await pod.feel()  # imports, once
        yield pod
    finally:
        await asyncio.to_thread(lab.__exit__, None, None, None)
