"""caretaker plan of an IMDSPolicy: which nodes it would mean, and how they differ from it.

The policy is submitted as a dry run, EC2 is queried with the user's credentials, and the operator's planner
makes the forecast. No instance is changed. The error of a failed call becomes part of the status and is not
raised.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api import conditions as c
from caretaker.api import durations
from caretaker.api.conditions import PolicyReason
from caretaker.api.imds import CanaryStatus, Safety, Spec, Status
from caretaker.api.objects import WireNode
from caretaker.api.times import format_time
from caretaker.aws.calls import Aws
from caretaker.aws.session import Options
from caretaker.cli.common import Session
from caretaker.cli.imds import status as view
from caretaker.cli.manifest import Document
from caretaker.cli.plan import ASKED_AS_YOU, Planned, PlanOptions, noted, propose, refused
from caretaker.cli.text import age, number, one_line, section
from caretaker.imds.enforce import Enforced
from caretaker.imds.enforce_input import BATCH, EnforceInput
from caretaker.imds.gather import PolicyReader
from caretaker.imds.instance_ref import instance_ref_of
from caretaker.imds.inventory import Inventory
from caretaker.imds.launch_templates import LaunchTemplateProvider
from caretaker.imds.plan import Member, Plan, PlanInput, desired
from caretaker.imds.plan import plan as planner
from caretaker.imds.resource import ParsedPolicy, RawPolicy, read
from caretaker.imds.safety_checks import Blocked
from caretaker.imds.soak import floor
from caretaker.imds.status import status_of
from caretaker.imds.token_gate import shut_input
from caretaker.imds.token_metrics import GateResult, TokenGates, gate_input, gated
from caretaker.kube.client import KubeClient
from caretaker.registry import IMDS_POLICY

_NAMES: Final = 5  # canaries that are shown


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The forecast for each node."""
    proposal = await propose(session, document, RawPolicy)
    policy = read(proposal.raw)
    refusals = list(proposal.refusals)
    if not refusals and policy.spec is None:
        refusals.append(f"{document.place('spec')}: {one_line(policy.invalid)}")
    if refusals or policy.spec is None:
        return refused(f"IMDSPolicy {document.name}", {"name": document.name}, refusals, proposal.notes)
    status, made, enforced = await _observe(session.client, policy, policy.spec, time.time())
    faults, permitted = faults_of(document, status), c.find(status.conditions, c.PERMISSION_OK)
    enforce = enforce_lines(enforced, policy.spec.safety, enforces=policy.enforces)
    denied = status.summary.unknown or (permitted is not None and permitted.status == "False")
    notes = [*proposal.notes, *([ASKED_AS_YOU.format("EC2")] if denied else [])]
    meta = replace(policy.meta, generation=status.observed_generation)
    problems = view.diagnostics(meta, status, view.advice(policy.enforces, plan=True))
    text = [
        f"IMDSPolicy {document.name} ({proposal.exists}): {view.summary(status.summary)}",
        *noted(notes),
        *(f"  {line}" for line in problems),
        *view.groups(status.groups, status.groups_omitted),
        *view.token_gate(status.token_gate),
        *view.exceptions(status.exceptions, status.exceptions_omitted, wide=options.wide),
        *_differences(made.differences),
        *view.sources(status.groups),
        "",
        *enforce,
    ]
    json = {
        "name": document.name,
        "exists": proposal.before is not None,
        "faults": faults,
        "notes": notes,
        "enforce": enforce,
        **msgspec.to_builtins(status),
    }
    return Planned(text, json, faults)


async def _observe(
    client: KubeClient, policy: ParsedPolicy, spec: Spec, now: float
) -> tuple[Status, Plan, Enforced]:
    """(the status that the operator would write of an audit, with every command however long it is; its plan;
    the changes that Enforce would make)."""
    nodes, _ = await client.list("/api/v1/nodes", WireNode)
    listed, _ = await client.list(IMDS_POLICY.path(), RawPolicy)
    # Planned like an audit: no watch, no change. Only the operator may assume the role of the spec.
    aws_of_user = replace(spec.aws, role_arn="", external_id="")
    audit = replace(spec, aws=aws_of_user, mode="Audit")
    mine = replace(policy, spec=audit, status=Status(canary=policy.status.canary))
    every = (mine, *(read(one) for one in listed if one.metadata.name != policy.meta.name))
    policies = [valid for one in every if (valid := one.policy()) is not None]
    node_refs = [(node, instance_ref_of(node)) for node in (wire.record() for wire in nodes)]
    async with Aws(Options(instance_identity=True)) as aws:
        provider = LaunchTemplateProvider(aws.ec2, aws.autoscaling, client)
        reader = PolicyReader(Inventory(aws.ec2), provider, operator=False)
        found = await reader.gather(mine, policies, node_refs)
        plan_input = replace(found.plan_input, desired=list(desired(found.plan_input)))
        gate = None
        if spec.token_gate is not None:
            gate = await TokenGates(aws.cloudwatch, operator=False).read(mine, gate_input(plan_input, now))
        others = [one.status.token_gate for one in every if one.meta.name != mine.meta.name]
        plan_input = shut_input(plan_input, [*others, gate.status if gate is not None else None])
    made = planner(plan_input)
    status = status_of(gated(found.status_input, gate, operator=False), made, format_time(now))
    return replace(status, groups=made.groups), made, _enforced(mine, found.plan_input, now, gate)


def _enforced(mine: ParsedPolicy, snapshot: PlanInput, now: float, gate: GateResult | None) -> Enforced:
    """The plan of a new process without a dry run, with the passed changes of status."""
    regions = {one.ref.region for one in snapshot.members}
    policies = [
        replace(one, enforces=True) if one.name == mine.meta.name else one for one in snapshot.policies
    ]
    members = [_confirmed(one) for one in snapshot.members]
    inputs = enforce_input(mine, regions, now)
    if gate is not None:
        inputs = replace(inputs, tokens_held=gate.held, rejected=gate.rejected)
    made = planner(replace(snapshot, enforce_input=inputs, policies=policies, members=members)).enforced
    assert made is not None  # noqa: S101 - it has an input of Enforce
    return made


def _confirmed(one: Member) -> Member:
    """As if a later reading had confirmed that it has no group."""
    if one.observed is None or not one.observed.ungrouped_at:
        return one
    return replace(one, observed=replace(one.observed, ungrouped_at=0.0))


def enforce_input(mine: ParsedPolicy, regions: set[str], now: float) -> EnforceInput:
    """As of a process that has just started."""
    assert mine.spec is not None  # noqa: S101 - the caller has checked
    safety = mine.spec.safety
    return EnforceInput(
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
        expect=mine.spec.verification.expect,
        free=dict.fromkeys(regions, BATCH),
    )


def faults_of(document: Document, status: Status) -> list[str]:
    """The faults that keep the policy from being Ready with any credentials, each at its line."""
    conflicts = [one for one in status.conditions if one.reason == PolicyReason.CONFLICT]
    return [f"{document.place('spec.options')}: {one_line(one.message)}" for one in conflicts[:1]]


def _differences(found: Mapping[tuple[str, str], Mapping[tuple[str, str, str], int]]) -> list[str]:
    """A row for each option that differs in a node group."""
    rows = [
        (f"{kind}/{name}", field, now, then, str(count))
        for (kind, name), counts in sorted(found.items())
        for (field, now, then), count in sorted(counts.items())
    ]
    return section("GROUP  OPTION  IS  SHOULD BE  NODES", rows)


def enforce_lines(enforced: Enforced, safety: Safety, *, enforces: bool) -> list[str]:
    """Lines for people; `enforces`: whether the policy is to."""
    head = "Enforce would" if enforces else "spec.mode is Audit: nothing is changed. Enforce would"
    if enforced.hold:
        return [f"{head} change nothing: {enforced.phase}: {enforced.message}", *_blocked_lines(enforced)]
    if not enforced.left:
        return [f"{head} change no instance", *_blocked_lines(enforced)]
    seconds = enforced.left * 60 / safety.max_changes_per_minute
    count = number(enforced.left, "instance")
    lines = [f"{head} change {count} in about {age(seconds)}, plus the time of the canaries"]
    if enforced.canary is not None and enforced.canary.groups:
        lines += _canary_lines(enforced.canary, safety)
    elif safety.canary.instances and not enforced.writes:
        lines.append("  there is no canary yet: no instance is running on a Ready Node")
    return [*lines, *_blocked_lines(enforced)]


def _canary_lines(canary: CanaryStatus, safety: Safety) -> Iterator[str]:
    """The canary of each group."""
    for one in canary.groups[:_NAMES]:
        soak = age(max(durations.seconds(safety.canary.soak), floor(one.changes)))
        who = f"{view.group_name(one)}: {view.some_of(one.instances)}"
        rest = f"the remaining instances {soak} after it is applied"
        yield f"  canary of {who}: {view.changes(one.changes)}; {rest}"
    if len(canary.groups) > _NAMES:
        yield f"  and canaries of {len(canary.groups) - _NAMES} more groups"


def _blocked_lines(enforced: Enforced) -> list[str]:
    """The changes that are blocked, by option."""
    count: Counter[tuple[str, str]] = Counter()
    why: dict[tuple[str, str], Blocked] = {}
    for _, one in enforced.blocked:
        count[one.change.field, one.reason] += 1
        why[one.change.field, one.reason] = one
    return [
        f"  not changed: {field} of {number(times, 'instance')}: {reason}: {why[field, reason].message}"
        for (field, reason), times in sorted(count.items())
    ]
