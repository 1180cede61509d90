"""An operator of the test's own: killed, started again, and started with other settings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from awsdoubles.cloudwatch.server import CloudWatch
from awsdoubles.ec2.server import Ec2
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.cluster import Nodes
from testing.imds import MODIFY, NOWHERE, SLOW, Fleet
from testing.operator import NEW_INTERPRETER, OperatorProcess
from testing.refreshing import LOOPBACK, grants
from testing.rollouts import until

from .conftest import TIME_SCALE
from .test_token_gate import create, group, observed

Start = Callable[..., OperatorProcess]


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Start an operator with these flags."""
    made: list[OperatorProcess] = []

    def started(*args: str) -> OperatorProcess:
        # Each life has hashes of its own: what one wrote in an order of sets, the next would write anew.
        process = OperatorProcess(
            cluster.kubeconfig,
            "own",
            leader_elect=False,
            time_scale=TIME_SCALE,
            env=NOWHERE,
            args=(*grants(tmp_path), *LOOPBACK, *args),
            command=NEW_INTERPRETER,
        )
        made.append(process)
        return process.start()

    yield started
    for process in made:
        process.kill9()
        process.assert_clean_logs()


@pytest.fixture
async def fleet(admin: Admin, nodes: Nodes, ec2: Ec2) -> AsyncIterator[Fleet]:
    """Nodes of the test."""
    made = Fleet(admin, nodes, ec2.control, ec2.url)
    yield made
    await made.clear()


async def test_a_canary_survives_restarts_and_none_is_changed_twice(start: Start, fleet: Fleet) -> None:
    operator = start()
    await fleet.add(4, options=SLOW)
    safety = {"allowLoosening": ["HopLimit"], "canary": {"instances": 1, "soak": "2m"}}
    policy = await fleet.create(mode="Enforce", options={"httpPutResponseHopLimit": 2}, safety=safety)
    found = await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    canary = found["status"]["canary"]
    for _ in range(2):
        operator.kill9()
        operator.start()
    await policy.condition("Ready", "True", "Enforced")
    after = (await policy.get())["status"]["canary"]
    assert (after["instances"], after["startedAt"], after["phase"]) == (
        canary["instances"],
        canary["startedAt"],
        "Passed",
    )
    sent = [call for call in fleet.control.calls(MODIFY) if not call["params"].get("DryRun")]
    first, *others = [call["params"]["InstanceId"] for call in sent]
    assert [first] == canary["instances"]
    assert len({first, *others}) == len(sent) == 4
    # By EC2's times: two restarts may take as long as the soak.
    assert sent[1]["at"] - sent[0]["at"] >= 2 * 60 * TIME_SCALE


@pytest.mark.slow
async def test_a_canary_that_is_lost_while_nobody_looks_is_not_replaced_by_the_next_operator(
    start: Start, fleet: Fleet
) -> None:
    operator = start()
    made = {instance: name for name, instance in await fleet.add(4, options=SLOW)}
    safety = {"allowLoosening": ["HopLimit"], "canary": {"instances": 1, "soak": "1h"}}
    policy = await fleet.create(mode="Enforce", options={"httpPutResponseHopLimit": 2}, safety=safety)
    found = await policy.when(lambda f: (f["status"].get("canary") or {}).get("phase") == "Soaking")
    (first,) = found["status"]["canary"]["instances"]
    operator.kill9()
    fleet.control.remove([first])
    await fleet.delete(made[first])
    operator.start()
    told = await policy.condition("Ready", "False", "BreakerOpen")
    assert told["message"].startswith(f"CanaryLost: instance {first} ")
    operator.kill9()
    operator.start()
    await policy.edit(resyncInterval="20m", suspend=True)
    await policy.condition("Ready", "True", "Suspended")
    breaker = (await policy.get())["status"]["breaker"]
    assert (breaker["reason"], breaker["instance"], breaker["node"]) == ("CanaryLost", first, made[first])
    assert [call["InstanceId"] for call in fleet.modified()] == [first]


@pytest.mark.slow
async def test_an_open_breaker_survives_a_restart_and_another_generation_closes_it(
    start: Start, fleet: Fleet
) -> None:
    operator = start()
    await fleet.add(2, options=SLOW)
    fleet.control.fault("refuse", count=1, code="DryRunOperation", status=412)
    fleet.control.fault("refuse", count=None, code="InvalidParameterValue", message="no such luck")
    safety = {
        "allowLoosening": ["HopLimit"],
        "allowTightening": ["Tokens"],
        "stopAfterConsecutiveFailures": 1,
    }
    policy = await fleet.create(mode="Enforce", safety={**safety, "canary": {"instances": 0}})
    await policy.condition("Ready", "False", "BreakerOpen")
    sent = len(fleet.modified())
    operator.kill9()
    fleet.control.clear_faults()
    operator.start()
    marker = await fleet.create("marker")  # its pass shows that the other's has been
    await marker.condition("Ready", "True", "Audited")
    await policy.condition("Ready", "False", "BreakerOpen")
    assert len(fleet.modified()) == sent
    await policy.edit(safety={"maxChangesPerMinute": 600})
    await policy.condition("Ready", "True", "Enforced")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"httpPutResponseHopLimit": 1}, "httpPutResponseHopLimit"),
        ({"httpEndpoint": "disabled"}, "httpEndpoint"),
    ],
)
async def test_a_policy_that_would_cut_the_operators_own_credentials_changes_nothing(
    start: Start, fleet: Fleet, options: dict[str, object], field: str
) -> None:
    start("--aws-instance-identity")
    await fleet.add(1)
    policy = await fleet.create(mode="Enforce", options=options)
    told = await policy.condition("Ready", "False", "WouldCutOwnCredentials")
    assert f"spec.options.{field}" in told["message"]
    assert "IRSA" in told["message"]
    await policy.condition("Stalled", "True", "WouldCutOwnCredentials")
    assert not fleet.modified()


async def test_of_two_operators_one_reads_cloudwatch_and_the_next_leader_does_not_read_earlier(
    cluster: Cluster, fleet: Fleet, cloudwatch: CloudWatch, tmp_path: Path, namespace: str
) -> None:
    uses = await group(fleet, "uses")
    observed(cloudwatch, uses, used=uses)
    lease = ("--operator-namespace", namespace, "--lease-name", "gate")
    how: dict[str, Any] = {"args": (*grants(tmp_path), *LOOPBACK, *lease), "time_scale": 0.2}
    metric = "caretaker_imds_token_gate_metrics_total"
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(OperatorProcess(cluster.kubeconfig, f"own-{n}", env=NOWHERE, **how))
            for n in range(2)
        ]
        policy = await create(fleet, cloudwatch)
        await policy.condition("Ready", "False", "IMDSv1InUse")
        first = (await policy.get())["status"]["tokenGate"]
        (leader,) = [one for one in both if one.metric(metric)]
        (follower,) = [one for one in both if one is not leader]
        await asyncio.to_thread(leader.kill9)
        await until(lambda: follower.metric("caretaker_imds_nodes", name=policy.name, state="drifted") == 2)
        assert (await policy.get())["status"]["tokenGate"] == first
        calls = cloudwatch.control.calls("GetMetricData")
        assert len(calls) == 1
        assert not fleet.modified()
