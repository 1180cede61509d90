"""Queries EC2 for the instances of a policy, with the user's credentials, and plans for them.

Inputs: the policy, the other policies, the nodes. It only reads; the error of a failed call becomes part of
the status and is not raised.
"""

from collections.abc import Sequence

import msgspec

from caretaker.api.imds import Status
from caretaker.api.objects import Node
from caretaker.api.times import format_time
from caretaker.aws.calls import Aws
from caretaker.aws.session import Options
from caretaker.imds.enforce import Enforced
from caretaker.imds.enforce_input import BATCH, EnforceInput
from caretaker.imds.gather import gather
from caretaker.imds.instance_ref import instance_ref_of
from caretaker.imds.inventory import Inventory
from caretaker.imds.launch_templates import LaunchTemplateProvider
from caretaker.imds.plan import Plan, PlanInput, plan
from caretaker.imds.resource import Read
from caretaker.imds.status import status_of
from caretaker.kube.client import KubeClient


async def observe(
    client: KubeClient, mine: Read, others: Sequence[Read], nodes: Sequence[Node], now: float
) -> tuple[Status, Plan, Enforced]:
    """(the status that the operator would write of an audit, with every command however long it is; its plan;
    the changes that Enforce would make). `client` lists EC2NodeClasses."""
    policies = [policy for one in (mine, *others) if (policy := one.policy()) is not None]
    async with Aws(Options(instance_identity=True)) as aws:
        provider = LaunchTemplateProvider(aws.ec2, aws.autoscaling, client)
        node_refs = [(node, instance_ref_of(node)) for node in nodes]
        found = await gather(Inventory(aws.ec2), provider, mine, policies, node_refs, operator=False)
    made = plan(found.plan_input)
    status = msgspec.structs.replace(
        status_of(found.status_input, made, format_time(now)), groups=made.groups
    )
    return status, made, _enforced(mine, found.plan_input, now)


def _enforced(mine: Read, snapshot: PlanInput, now: float) -> Enforced:
    """The plan of a new process without a dry run, with the passed changes of status."""
    assert mine.spec is not None  # noqa: S101 - the caller has checked
    safety = mine.spec.safety
    regions = {one.ref.region for one in snapshot.members}
    inputs = EnforceInput(
        me=mine.meta.name,
        generation=mine.meta.generation,
        now=0.0,
        wall=now,
        loosening=safety.allow_loosening,
        tightening=safety.allow_tightening,
        canary_instances=safety.canary.instances,
        canary_soak=mine.soak,
        max_drift_percent=safety.max_drift_percent,
        pending_timeout=mine.pending,
        canary=mine.status.canary,
        free=dict.fromkeys(regions, BATCH),
    )
    policies = [
        msgspec.structs.replace(one, enforces=True) if one.name == mine.meta.name else one
        for one in snapshot.policies
    ]
    made = plan(msgspec.structs.replace(snapshot, enforce_input=inputs, policies=policies)).enforced
    assert made is not None  # noqa: S101 - it has an input of Enforce
    return made
