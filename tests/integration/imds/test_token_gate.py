"""spec.tokenGate: the use of IMDSv1 by CloudWatch decides in which groups tokens are required."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from awsdoubles.clients import KEY
from awsdoubles.cloudwatch.server import CloudWatch
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.cli import Cli
from testing.imds import Fleet, Policy
from testing.operator import OperatorProcess

HOUR, DAY = 3600.0, 86400.0
OPEN = {"HttpPutResponseHopLimit": 2, "HttpTokens": "optional", "HttpEndpoint": "enabled"}
SAFETY: dict[str, Any] = {"allowTightening": ["Tokens"], "canary": {"instances": 0}}
GATED: dict[str, Any] = {
    "mode": "Enforce",
    "options": {"httpTokens": "required"},
    "safety": SAFETY,
    "tokenGate": {"days": 2},
}
READ = "GetMetricData"


def observed(cloudwatch: CloudWatch, instances: Iterable[str], *, used: Iterable[str] = ()) -> None:
    """Two days and more of zeros for these, and one use of IMDSv1 yesterday by some."""
    hour = time.time() // HOUR * HOUR
    for one in instances:
        yesterday = 2.0 if one in used else 0.0
        points = [(hour - n * HOUR, yesterday if n == 24 else 0.0) for n in range(60)]
        cloudwatch.control.put("AWS/EC2", "MetadataNoToken", {"InstanceId": one}, points)


async def group(fleet: Fleet, name: str) -> list[str]:
    """One instance that is old, and one that was launched within the window."""
    labels = {"eks.amazonaws.com/nodegroup": name}
    made = [
        *(await fleet.add(1, labels=labels, options=OPEN, age=5 * DAY)),
        *(await fleet.add(1, labels=labels, options=OPEN, age=DAY)),
    ]
    return [instance for _, instance in made]


async def create(fleet: Fleet, cloudwatch: CloudWatch, **spec: Any) -> Policy:
    urls = {"ec2": fleet.url, "autoscaling": fleet.url, "cloudwatch": cloudwatch.url}
    return await fleet.create(**{**GATED, "aws": {"endpointURLs": urls}, **spec})


def states(found: Any) -> dict[str, str]:
    return {one["name"]: one["state"] for one in found["status"]["tokenGate"]["groups"]}


async def test_a_group_that_uses_imdsv1_is_held_back_and_the_other_is_changed(
    fleet: Fleet, cloudwatch: CloudWatch, operator: OperatorProcess, cluster: Cluster, namespace: str
) -> None:
    quiet, uses = await group(fleet, "quiet"), await group(fleet, "uses")
    observed(cloudwatch, [*quiet, *uses], used=uses[:1])
    policy = await create(fleet, cloudwatch)
    ready = await policy.condition("Ready", "False", "IMDSv1InUse")
    assert "EKSManagedNodegroup/uses: 1 of 2 instances used IMDSv1 in the last 2 days" in ready["message"]
    found = await policy.summary(nodes=4, compliant=2, drifted=2)
    assert states(found) == {"quiet": "Quiet", "uses": "InUse"}
    assert sorted(call["InstanceId"] for call in fleet.modified()) == sorted(quiet)
    (call,) = cloudwatch.control.calls(READ)
    assert len(call["input"]["MetricDataQueries"]) == found["status"]["tokenGate"]["metrics"] == 4
    assert operator.metric("caretaker_imds_token_gate_metrics_total") >= 4
    said = await Cli(cluster.kubeconfig, namespace)("status", "imdsp", policy.name)
    assert any(line.startswith("EKSManagedNodegroup/uses   InUse   1 of 2") for line in said.lines)
    await policy.edit(tokenGate=None)
    await policy.condition("Ready", "True", "Enforced")
    assert (await policy.get())["status"].get("tokenGate") is None
    assert len(cloudwatch.control.calls(READ)) == 1


async def test_no_data_are_no_zeros_and_an_instance_that_joins_waits(
    fleet: Fleet, cloudwatch: CloudWatch
) -> None:
    known, unknown = await group(fleet, "known"), await group(fleet, "unknown")
    observed(cloudwatch, [*known, unknown[0]])
    policy = await create(fleet, cloudwatch)
    found = await policy.summary(nodes=4, compliant=2, drifted=2)
    assert states(found) == {"known": "Quiet", "unknown": "Unknown"}
    labels = {"eks.amazonaws.com/nodegroup": "known"}
    ((_, joined),) = await fleet.add(1, labels=labels, options=OPEN)
    await policy.summary(nodes=5, compliant=2, drifted=3)
    assert joined not in [call["InstanceId"] for call in fleet.modified()]
    assert len(cloudwatch.control.calls(READ)) == 1


async def test_without_the_permission_the_gate_stays_shut_until_it_is_there(
    fleet: Fleet, cloudwatch: CloudWatch
) -> None:
    quiet = await group(fleet, "quiet")
    observed(cloudwatch, quiet)
    cloudwatch.control.deny()
    policy = await create(fleet, cloudwatch)
    for kind in ("Ready", "PermissionOK"):
        found = await policy.condition(kind, "False", "AccessDenied")
        assert "cloudwatch:GetMetricData" in found["message"]
    assert not fleet.modified()
    cloudwatch.control.allow()
    await policy.condition("Ready", "True", "Enforced")
    assert sorted(call["InstanceId"] for call in fleet.modified()) == sorted(quiet)
    await policy.condition("PermissionOK", "True", "Permitted")


async def test_throttling_and_an_answer_that_is_not_whole_are_waited_out(
    fleet: Fleet, cloudwatch: CloudWatch
) -> None:
    observed(cloudwatch, await group(fleet, "quiet"))
    cloudwatch.control.throttle(count=2)
    cloudwatch.control.fault("withhold", code="InternalError", count=1)
    policy = await create(fleet, cloudwatch)
    await policy.condition("Ready", "True", "Enforced")
    assert [call["code"] for call in cloudwatch.control.calls(READ)] == ["Throttling", "Throttling", "", ""]


async def test_a_call_that_is_rejected_on_a_canary_opens_the_breaker(
    fleet: Fleet, cloudwatch: CloudWatch
) -> None:
    quiet = await group(fleet, "quiet")
    observed(cloudwatch, quiet)
    policy = await create(fleet, cloudwatch, safety={"allowTightening": ["Tokens"]})
    found = await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    (first,) = found["status"]["canary"]["instances"]
    point = (time.time(), 3.0)
    cloudwatch.control.put("AWS/EC2", "MetadataNoTokenRejected", {"InstanceId": first}, [point])
    ready = await policy.condition("Ready", "False", "BreakerOpen")
    assert ready["message"].startswith(f"CanaryRejectedIMDSv1: instance {first} ")
    assert "EC2 rejected IMDSv1 3 times" in ready["message"]
    assert [call["InstanceId"] for call in fleet.modified()] == [first]


async def test_plan_reads_once_and_tells_what_is_held_back(
    fleet: Fleet,
    cloudwatch: CloudWatch,
    cluster: Cluster,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, KEY)
    uses = await group(fleet, "uses")
    observed(cloudwatch, uses, used=uses)
    urls = {"ec2": fleet.url, "autoscaling": fleet.url, "cloudwatch": cloudwatch.url}
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(fleet.body("planned", **{**GATED, "aws": {"endpointURLs": urls}})))
    said = await Cli(cluster.kubeconfig, namespace)("plan", "-f", str(file))
    assert (said.code, said.err) == (0, "")
    assert any("InUse   2 of 2 instances used IMDSv1" in line for line in said.lines)
    assert any("not changed: httpTokens of 2 instances: IMDSv1InUse" in line for line in said.lines)
    assert len(cloudwatch.control.calls(READ)) == 1


async def test_the_example_is_accepted_and_waits_for_its_week(fleet: Fleet, cloudwatch: CloudWatch) -> None:
    spec = yaml.safe_load((CHECKOUT / "examples" / "imds-policy-token-gate.yaml").read_text())["spec"]
    await group(fleet, "young")
    policy = await create(fleet, cloudwatch, **spec)
    ready = await policy.condition("Ready", "False", "IMDSv1Waiting")
    assert "no instance has run for 7 days yet" in ready["message"]
    assert not cloudwatch.control.calls(READ)
