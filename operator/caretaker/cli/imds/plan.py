"""caretaker plan of an IMDSPolicy: which nodes it would mean, and how they differ from it.

The policy is submitted as a dry run, EC2 is queried with the user's credentials, and the operator's planner
makes the forecast. No instance is changed.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import PolicyReason
from caretaker.api.imds import Aws as AwsOfPolicy
from caretaker.api.imds import Status
from caretaker.api.objects import WireNode
from caretaker.cli.common import Session
from caretaker.cli.diagnostics import diagnostics
from caretaker.cli.imds.advice import abnormal_conditions, advice_of_plan
from caretaker.cli.imds.enforce_text import enforce_lines
from caretaker.cli.imds.sources import sources
from caretaker.cli.imds.tables import differences, exceptions, groups, summary
from caretaker.cli.manifest import Document
from caretaker.cli.options import PlanOptions
from caretaker.cli.propose import Planned, Proposal, propose
from caretaker.cli.text import one_line
from caretaker.imds.resource import RawPolicy, Read, policy_path, read

_CREDENTIALS_NOTE = (
    "EC2 was asked as you, with credentials of the standard chain (AWS_PROFILE, ...), and not as the "
    "operator: what is refused to you may be allowed to it"
)


class _Forecast(NamedTuple):
    """Lines: the differences by group, and the changes that Enforce would make."""

    differences: list[str]
    enforce: list[str]


def check(options: PlanOptions, documents: Sequence[Document]) -> None:
    """Every option will do."""


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The forecast for each node."""
    proposal = await propose(session, document, RawPolicy)
    policy = read(proposal.raw)
    refusals = list(proposal.refusals)
    if not refusals and policy.spec is None:
        refusals.append(f"{document.place('spec')}: {one_line(policy.invalid)}")
    if refusals or policy.spec is None:
        text = [f"IMDSPolicy {document.name}: refused", *(f"  note: {note}" for note in proposal.notes)]
        return Planned(text, {"name": document.name, "faults": refusals, "notes": proposal.notes}, refusals)
    # boto3 takes half a second to import: only the plan of a policy imports it.
    from caretaker.cli.imds.aws_query import observe  # noqa: PLC0415

    nodes, _ = await session.client.list("/api/v1/nodes", WireNode)
    listed, _ = await session.client.list(policy_path(), RawPolicy)
    others = [read(one) for one in listed if one.metadata.name != document.name]
    # Planned like an audit: no watch, no change.
    spec = msgspec.structs.replace(policy.spec, aws=_without_role(policy.spec.aws), mode="Audit")
    own = msgspec.structs.replace(policy, spec=spec, status=Status(canary=policy.status.canary))
    records = [node.record() for node in nodes]
    status, made, enforced = await observe(session.client, own, others, records, time.time())
    forecast = _Forecast(
        differences(made.differences), enforce_lines(enforced, policy.spec.safety, enforces=policy.enforces)
    )
    faults = faults_of(document, status)
    return _planned(proposal, policy, status, forecast, faults, wide=options.wide)


def _without_role(aws: AwsOfPolicy) -> AwsOfPolicy:
    """Without the role of the spec, which only the operator may assume."""
    return msgspec.structs.replace(aws, role_arn="", external_id="")


def faults_of(document: Document, status: Status) -> list[str]:
    """The faults that keep the policy from being Ready with any credentials, each at its line."""
    conflicts = [one for one in status.conditions if one.reason == PolicyReason.CONFLICT]
    return [f"{document.place('spec.options')}: {one_line(one.message)}" for one in conflicts[:1]]


def _planned(
    proposal: Proposal[RawPolicy],
    policy: Read,
    status: Status,
    forecast: _Forecast,
    faults: list[str],
    *,
    wide: bool,
) -> Planned:
    abnormal = abnormal_conditions(status.conditions)
    permitted = c.find(status.conditions, c.PERMISSION_OK)
    denied = permitted is not None and permitted.status == "False"
    notes = [*proposal.notes, *([_CREDENTIALS_NOTE] if status.summary.unknown or denied else [])]
    meta = msgspec.structs.replace(policy.meta, generation=status.observed_generation)
    exists = "exists" if proposal.before is not None else "new"
    advise = partial(advice_of_plan, enforces=policy.enforces)
    text = [
        f"IMDSPolicy {policy.meta.name} ({exists}): {summary(status.summary)}",
        *(f"  note: {note}" for note in notes),
        *(f"  {line}" for line in diagnostics(meta, status.observed_generation, abnormal, advise)),
        *groups(status.groups, status.groups_omitted),
        *exceptions(status.exceptions, status.exceptions_omitted, wide=wide),
        *forecast.differences,
        *sources(status.groups),
        "",
        *forecast.enforce,
    ]
    json = {
        "name": policy.meta.name,
        "exists": proposal.before is not None,
        "faults": faults,
        "notes": notes,
        "enforce": forecast.enforce,
        **msgspec.to_builtins(status),
    }
    return Planned(text, json, faults)
