"""caretaker status of an IMDSPolicy: the operator's findings, each with an action. Most of it is also part of
`plan`. Pure but for status()."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api import imds as api
from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.objects import WireMeta
from caretaker.cli.common import Session, UsageError, get
from caretaker.cli.text import (
    CREDENTIALS_ADVICE,
    abnormal,
    cell,
    cut,
    number,
    one_line,
    problems,
    ready_line,
    section,
    show,
)
from caretaker.imds.resource import ParsedPolicy, RawPolicy, read
from caretaker.registry import IMDS_POLICY

_STATES: Final = ("compliant", "drifted", "pending", "failed", "unknown", "gone", "skipped", "overridden")
_SHOWN: Final = 3  # instances of a canary
_WHY: Final = 90  # characters, without -o wide

_POSITIVE: Final = frozenset(
    {c.READY, c.PERMISSION_OK, c.COMPLIANT, c.ENFORCING, c.VERIFIED, c.SOURCES_COMPLIANT},
)
NORMAL: Final = frozenset(
    {
        *(Reason.AUDITED, Reason.PERMITTED, Reason.COMPLIANT, Reason.ENFORCED),
        *(Reason.PROVED, Reason.PROBING, Reason.SOURCES_COMPLIANT),
    }
)

ADVICE: Final = {
    Reason.SUSPENDED: "set spec.suspend to false to have it look again",
    Reason.INVALID_SPEC: "correct the field that is named and apply again",
    Reason.NOT_GRANTED: (
        "grant it to the operator's namespace in the Helm value aws.identities, or in the file of "
        "--aws-identities and restart the operator"
    ),
    Reason.CONFLICT: "give one of the policies another spec.priority, or take the option out of it",
    Reason.ACCESS_DENIED: "allow the action to the identity that is named; it is tried again by itself",
    Reason.NO_IDENTITY: "give the operator credentials that do not come from IMDS, or set spec.aws.roleARN",
    Reason.NOT_ASKED: "see that the operator reaches EC2; it is tried again by itself",
    Reason.NO_MATCHING_NODES: (
        "see below why nodes are skipped; if none is listed, correct spec.selector, unless such nodes are to "
        "come"
    ),
    Reason.UNKNOWN: "see PermissionOK and Ready",
    Reason.DRIFTED: "change the instances and what launches them; each is listed below",
    Reason.PENDING: "wait: EC2 applies it",
    Reason.HOP_LIMIT_ONE: "raise the hop limit to 2 where pods use IMDS, or set httpTokens to required",
    Reason.LOOSENING_NOT_ALLOWED: "add it to spec.safety.allowLoosening, or remove the option",
    Reason.TIGHTENING_NOT_ALLOWED: "add it to spec.safety.allowTightening, or remove the option",
    Reason.HOP_LIMIT_TOO_LOW: "raise the hop limit to the value in the message, or exclude the group",
    Reason.IMDSV1_IN_USE: (
        "update the programs that use IMDSv1; without spec.tokenGate tokens are required all the same"
    ),
    Reason.IMDSV1_WAITING: "wait: CloudWatch is read again by itself; caretaker plan -f reads it at once",
    Reason.IMDSV1_USE_UNKNOWN: (
        "see that CloudWatch has data of the instances in the message; without spec.tokenGate tokens are "
        "required all the same"
    ),
    Reason.NODE_NOT_READY: (
        "find out why the Node is not Ready; changes go on when it is Ready, and the breaker opens if it is "
        "deleted"
    ),
    Reason.TAG_KEYS_UNFIT: "remove instanceMetadataTags from spec.options",
    Reason.DRIFT_TOO_WIDE: "check spec.selector and spec.options, then raise spec.safety.maxDriftPercent",
    Reason.BREAKER_OPEN: "find the cause and fix it, then run caretaker resume imdspolicy NAME",
    Reason.INSTANCES_FAILING: "see the exceptions below; the changes are retried automatically",
    Reason.BLOCKED_BY_ACCOUNT_POLICY: "change the rule of the account, or remove the option",
    Reason.FIGHTING: "find the other client: CloudTrail records ModifyInstanceMetadataOptions",
    Reason.NOT_PROBEABLE: "use a policy without spec.verification.probe for the group in the message",
    Reason.WOULD_CUT_CREDENTIALS: "give the operator IRSA or Pod Identity, not --aws-instance-identity",
    Reason.SET_BUT_UNREACHABLE: "see docs/imds-probe.md for the verdict; it names the hop limit it needs",
    Reason.STILL_REACHABLE: "lower the hop limit to 1, or block 169.254.169.254 by a network policy",
    Reason.SLOW: "look for a proxy between pods and IMDS, and at the node's load",
    Reason.NOT_PROVED: "caretaker status daemontask caretaker-imds-probe in the operator's namespace",
    Reason.PROBE_UNAVAILABLE: "install DaemonTask, or give the operator's role its verbs",
    Reason.THROTTLED: "wait: it recovers by itself",
    Reason.SOURCES_DRIFTED: "run the commands that are listed below, or change what owns the sources",
    Reason.LAUNCHES_FAIL: (
        "require tokens in the sources below and in spec.options, or have the account's HttpTokensEnforced "
        "disabled"
    ),
    Reason.SOURCES_UNKNOWN: "see PermissionOK, and the sources below",
    Reason.PERMISSION_DENIED: "give the operator's role the verb that is named",
}

# For a policy that changes instances itself: a change by hand would bypass its safety checks.
_OF_ENFORCE: Final = {
    Reason.DRIFTED: "Enforce changes the instances; Ready shows the reason for a wait",
    Reason.HOP_LIMIT_ONE: (
        "set httpPutResponseHopLimit: 2 if pods use IMDS, or httpTokens: required, in spec.options; then "
        "Enforce changes the instances"
    ),
}

# For plan: AWS refused the user, and not the operator.
_OF_PLAN: Final = {
    Reason.ACCESS_DENIED: "have the action allowed to you, or ask with another identity: AWS_PROFILE=...",
    Reason.NO_IDENTITY: CREDENTIALS_ADVICE,
    Reason.NOT_ASKED: "see that you reach EC2 from here",
    Reason.PERMISSION_DENIED: "have the verb that is named granted to you in the cluster",
}


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read."""
    if watch:
        raise UsageError(
            f"a policy has no end to watch for; kubectl get imdspolicy {name} --watch follows it"
        )
    policy = read(await get(session, IMDS_POLICY, name, RawPolicy))
    show(policy, output, as_json, partial(as_text, now=time.time()))
    return 0


def as_json(policy: ParsedPolicy) -> dict[str, Any]:
    """For programs."""
    meta, status = policy.meta, msgspec.to_builtins(policy.status)
    return {"name": meta.name, "generation": meta.generation, **status}


def as_text(policy: ParsedPolicy, wide: bool, now: float) -> list[str]:
    """Text output: summary, problems with their fixes, canaries, groups, exceptions."""
    status = policy.status
    head = [*ready_line(status.conditions, now), *diagnostics(policy.meta, status, advice(policy.enforces))]
    return [
        f"IMDSPolicy {policy.meta.name}: {summary(status.summary)}",
        *(f"  {line}" for line in head),
        *canaries(status.canary),
        *groups(status.groups, status.groups_omitted),
        *token_gate(status.token_gate),
        *exceptions(status.exceptions, status.exceptions_omitted, wide=wide),
        *sources(status.groups),
    ]


def advice(enforces: bool, plan: bool = False) -> dict[str, str]:
    """The actions by reason. `plan`: EC2 was called with the credentials of the user."""
    return ADVICE | (_OF_ENFORCE if enforces else {}) | (_OF_PLAN if plan else {})


def diagnostics(meta: WireMeta, status: api.Status, actions: Mapping[str, str]) -> list[str]:
    """Each problem with an action."""
    found = abnormal(status.conditions, _POSITIVE, NORMAL)
    return problems(meta, status.observed_generation, found, actions)


def summary(found: api.Summary) -> str:
    """`20 nodes, 17 compliant, 3 drifted`."""
    parts = [f"{count} {state}" for state in _STATES if (count := getattr(found, state))]
    return ", ".join([number(found.nodes, "node"), *parts])


def canaries(found: api.CanaryStatus | None) -> list[str]:
    """A row for each canary that has not passed."""
    rows = [
        (group_name(one), changes(one.changes), one.phase, one.since, some_of(one.instances))
        for one in (found.groups if found is not None else ())
    ]
    return section("CANARY OF  CHANGE  PHASE  SINCE  INSTANCES", rows)


def group_name(one: api.ChangedGroup) -> str:
    """`EKSManagedNodegroup/apps`."""
    return f"{one.kind}/{one.name}" if one.name else "nodes without a group"


def changes(found: Sequence[api.FieldChange]) -> str:
    """`httpTokens optional -> required`."""
    return ", ".join(f"{one.field} {one.before} -> {one.after}" for one in found)


def some_of(found: Sequence[api.ChangedInstance]) -> str:
    """Instances with their nodes, not all of many."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(f"{one.instance} ({one.node})" for one in found[:_SHOWN]) + more


def groups(found: Iterable[api.GroupStatus], omitted: int) -> list[str]:
    """A row for each node group."""
    rows = [(f"{g.kind}/{g.name}", str(g.nodes), str(g.compliant), str(g.drifted)) for g in found]
    return section(
        "GROUP  NODES  COMPLIANT  DRIFTED", rows, f"and {number(omitted, 'group')} more" if omitted else ""
    )


def token_gate(found: api.TokenGateStatus | None) -> list[str]:
    """A row for each node group with instances whose tokens are to be required."""
    rows = [
        (f"{one.kind}/{one.name}" if one.name else "nodes without a group", one.state, one_line(one.message))
        for one in (found.groups if found is not None else ())
    ]
    return section("GROUP  IMDSV1  FINDING", rows)


def exceptions(found: Iterable[api.ExceptionStatus], omitted: int, *, wide: bool) -> list[str]:
    """A row for each field that differs, and for each node that is not looked at."""
    rows = []
    for one in found:
        what = f"{one.field}: {one.current}, should be {one.desired}" if one.field else one.message
        rows.append((one.node, cell(one.instance), one.reason, cut(what, _WHY, wide=wide)))
    more = f"and {omitted} {'entry' if omitted == 1 else 'entries'} more" if omitted else ""
    return section("NODE  INSTANCE  REASON  WHAT", rows, more)


def sources(groups: Iterable[api.GroupStatus]) -> list[str]:
    """A row for each group whose source of future nodes is known, then the problems, with commands where
    there are any."""
    known = [(f"{one.kind}/{one.name}", one.source) for one in groups if one.source is not None]
    lines = section(
        "GROUP  SOURCE OF FUTURE NODES  STATE", [(name, _source(one), one.state) for name, one in known]
    )
    # Groups with the same problem and fix are one.
    found: dict[tuple[str, str], list[str]] = {}
    for name, source in known:
        if source.message:
            found.setdefault((source.message, source.mend), []).append(name)
    for (message, fix), names in found.items():
        # The command is alone on its line and complete, so that it can be copied.
        lines += ["", f"{', '.join(names)}: {one_line(message)}", *([f"  {fix}"] if fix else [])]
    return lines


def _source(source: api.SourceStatus) -> str:
    if source.node_class:
        return f"EC2NodeClass/{source.node_class}"
    if source.launch_template:
        return f"{source.launch_template} {source.version}".strip()
    return cell(source.auto_scaling_group)
