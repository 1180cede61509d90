"""The whole way: a policy is applied, EC2 takes the change and applies it, and a real boto3 in a pod feels
it.

The hop limit is true: network namespaces, and an IMDS whose answers leave with the IP TTL that the EC2 double
has in force (dev/hoplab).
"""

import asyncio
from typing import Any

from hoplab.clients import Client, Resolved, boto3
from hoplab.lab import HopLab
from hoplab.network import NODE, POD
from hoplab.options import MetadataOptions, Source
from testing.imds import SLOW, Fleet

HOP = "httpPutResponseHopLimit"
TRIES = 5


async def feels(client: Client) -> Resolved:
    """Resolve credentials afresh, beside the loop."""
    return await asyncio.to_thread(client.resolve)


async def quickest(client: Client, seconds: float) -> Resolved:
    """The first of some that takes less, or else the last: a busy machine may hold one up, and what waits for
    IMDSv2 waits every time."""
    for _ in range(TRIES):
        found = await feels(client)
        if found.error or found.seconds < seconds:
            break
    return found


def in_force(fleet: Fleet, instance: str) -> Source:
    """What EC2 has applied to the instance, asked at every request."""

    def read() -> MetadataOptions:
        found: dict[str, Any] = fleet.control.instance(instance)["inForce"]
        return MetadataOptions(found["HttpPutResponseHopLimit"], found["HttpTokens"], found["HttpEndpoint"])

    return read


async def test_a_policy_mends_what_pods_wait_for_and_shuts_what_they_should_not_reach(fleet: Fleet) -> None:
    fleet.control.settings(apply_seconds=3600)
    ((_, instance),) = await fleet.add(1, options=SLOW)
    with HopLab(in_force(fleet, instance), instance_id=instance) as lab:
        pod, node = Client(lab, POD, boto3()), Client(lab, NODE, boto3())
        await feels(pod)  # imports, once
        before = await feels(pod)
        assert (before.error, before.seconds > 0.9) == ("", True), "IMDSv1, after a second's wait for IMDSv2"

        safety = {
            "allowLoosening": ["HopLimit"],
            "allowTightening": ["HopLimit", "Tokens"],
            "canary": {"instances": 0},
        }
        policy = await fleet.create(mode="Enforce", safety=safety, pendingTimeout="1h")
        await policy.summary(nodes=1, pending=1)
        assert (await feels(pod)).seconds > 0.9, "what is pending is not in force"
        await asyncio.to_thread(fleet.control.apply)
        await policy.condition("Ready", "True", "Enforced")
        fixed = await quickest(pod, before.seconds / 2)
        assert (fixed.error, fixed.seconds < before.seconds / 2) == ("", True)

        await policy.edit(options={HOP: 1})
        await policy.summary(nodes=1, pending=1)
        await asyncio.to_thread(fleet.control.apply)
        await policy.condition("Ready", "True", "Enforced")
        assert (await feels(pod)).error == "no credentials"
        assert (await feels(node)).error == ""
