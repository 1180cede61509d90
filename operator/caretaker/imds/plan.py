"""The plan of an IMDSPolicy: a check result for every node that it selects, counted.

Pure: PlanInput -> Plan. The input has all policies, since they decide together on the options of a node.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import (
    MAX_GROUPS,
    ExceptionStatus,
    FieldChange,
    GroupStatus,
    Options,
    Selector,
    Summary,
    UnexpectedResult,
)
from caretaker.api.objects import Node
from caretaker.api.times import parse_time
from caretaker.imds import counts
from caretaker.imds.cases import with_failure
from caretaker.imds.checks import CheckInput, CheckResult, ObservedInstance, check, fits, slow_and_open
from caretaker.imds.enforce import Enforced, enforce
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput, Group, recorded
from caretaker.imds.evidence import evidence, unproved
from caretaker.imds.exceptions import exceptions_of
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.launching import LaunchSnapshot
from caretaker.imds.merge import DesiredOption, PolicyOptions, merge
from caretaker.imds.node_sources import NodeSources
from caretaker.imds.probe import ProbeState
from caretaker.imds.selection import names, selects
from caretaker.imds.source_checks import Findings, audit
from caretaker.imds.verify import (
    Candidate,
    Probing,
    Verified,
    asked_ahead,
    passed_probe,
    required,
    unprovable,
)

# (when its soak began, 0 = it does not soak; when it was chosen; its changes). Times are Unix seconds.
_Canary = tuple[float, float, tuple[FieldChange, ...]]
OTHER_REGION: Final = "OtherRegion"


class Policy(msgspec.Struct, frozen=True):
    """The part of a policy that matters to all policies."""

    name: str
    priority: int
    options: Options
    selector: Selector
    enforces: bool = False
    region: str = ""  # only nodes of this one; "" = of all


class Member(msgspec.Struct, frozen=True, gc=False):
    """A node and where it is. `groups` with the Auto Scaling group, if that is known."""

    node: Node
    ref: InstanceRef
    observed: ObservedInstance | None
    groups: tuple[tuple[str, str], ...]


# Whether a policy means a node, and field -> the option that wins it there.
Desired = tuple[bool, Mapping[str, DesiredOption]]


class PlanInput(msgspec.Struct, frozen=True):
    """Everything that is read. `unasked` maps a region to why it could not be described."""

    me: str
    policies: Sequence[Policy]
    members: Sequence[Member]
    unasked: Mapping[str, str] = {}
    region: str = ""  # only nodes of this one; "" = of all
    enforce_input: EnforceInput | None = None  # None: Audit
    probing: Probing | None = None  # None: nothing is probed
    probe_state: ProbeState = ProbeState()  # by the probe
    stored: Sequence[UnexpectedResult] = ()  # in status
    now: float = 0.0  # Unix seconds
    launching: LaunchSnapshot = LaunchSnapshot()  # the sources of future nodes
    desired: Sequence[Desired] = ()  # of each member, in order; () = not computed yet


class Plan(msgspec.Struct, frozen=True):
    """The result of a pass. `exceptions` without their times."""

    summary: Summary = Summary()
    groups: tuple[GroupStatus, ...] = ()
    groups_omitted: int = 0
    exceptions: tuple[ExceptionStatus, ...] = ()
    exceptions_omitted: int = 0
    conflicts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (field, policies that want different values)
    slow_and_open: int = 0
    drift: Counter[str] = Counter()  # by field
    # (kind, name) of a group -> (field, current, desired) -> how many nodes
    differences: Mapping[Group, Counter[tuple[str, str, str]]] = {}
    enforced: Enforced | None = None
    verified: Verified | None = None
    unexpected: tuple[UnexpectedResult, ...] = ()  # results of the probe
    sources: Findings = Findings()  # those of `groups`, and the others

    @property
    def rests(self) -> bool:
        """Whether Enforce has nothing under way."""
        return self.enforced is not None and not (self.enforced.left or self.enforced.pending)


def plan(plan_input: PlanInput) -> Plan:
    """See Plan."""
    me = _me(plan_input)
    cache = _CheckCache(plan_input, me)
    own = cache.own
    checked: list[tuple[Member, CheckedInstance]] = []
    node_sources, others = NodeSources(), list[tuple[Member, Mapping[str, DesiredOption]]]()
    overridden = slow = 0
    conflicts: dict[str, tuple[str, ...]] = {}
    for member, (mine, fields) in zip(
        plan_input.members, plan_input.desired or desired(plan_input), strict=True
    ):
        if not mine:
            others.append((member, fields))
            continue
        result = cache.of(member, fields)
        checked.append((member, _checked(member, result, fields, probed=plan_input.probing is not None)))
        if result.state != "skipped":
            node_sources.add(member.groups, member.ref, member.observed, fields)
        overridden += any(me.name in one.losers for one in fields.values())
        slow += result.state in ("compliant", "drifted", "pending") and slow_and_open(member.observed)
        conflicts |= {field: one.rivals for field, one in fields.items() if me.name in one.rivals}
    candidates = _candidates(plan_input, checked)
    # Evaluated before all decisions: an unexpected result stops all changes.
    known = plan_input.probe_state, plan_input.stored, plan_input.now
    found = evidence(plan_input.probing, candidates, *known)
    enforced, verified = None, found.verified
    plan_input = msgspec.structs.replace(plan_input, probe_state=found.probe_state)
    inputs = _enforce_input(plan_input, me, checked, verified, candidates)
    if inputs is not None:
        enforced, checked = _enforced(checked, inputs, _elsewhere(others, inputs, cache))
    states = Counter[str](one.result.state for _, one in checked)
    alike = _alike(checked)
    sources = audit(node_sources, lambda: _node_sources(others), plan_input.launching, me.name, own)
    groups = sources.on(counts.by_group(alike, verified))
    exceptions, omitted = exceptions_of((one for _, one in checked), enforced)
    return Plan(
        summary=Summary(nodes=len(checked), overridden=overridden, **states),
        groups=groups[:MAX_GROUPS],
        groups_omitted=max(len(groups) - MAX_GROUPS, 0),
        exceptions=exceptions,
        exceptions_omitted=omitted,
        conflicts=tuple(sorted(conflicts.items())),
        slow_and_open=slow,
        drift=counts.drift(alike),
        differences=counts.differences(alike),
        enforced=enforced,
        verified=verified,
        unexpected=found.unexpected,
        sources=sources,
    )


def desired(plan_input: PlanInput) -> Iterator[Desired]:
    """The desired options of each member. With many selectors of many terms it takes long, so the event loop
    iterates over it in pieces."""
    me = _me(plan_input)
    # A policy that only audits takes no part in the changes.
    rivals = [policy for policy in plan_input.policies if policy.enforces or not me.enforces]
    merged = _Merged(rivals, me)
    return map(merged.of, plan_input.members)


def _me(plan_input: PlanInput) -> Policy:
    return next(policy for policy in plan_input.policies if policy.name == plan_input.me)


def _enforce_input(
    plan_input: PlanInput,
    me: Policy,
    checked: Sequence[tuple[Member, CheckedInstance]],
    verified: Verified | None,
    candidates: Sequence[Candidate],
) -> EnforceInput | None:
    """With the options of the policy, and the results of its probes."""
    if (inputs := plan_input.enforce_input) is None:
        return None
    terms = (term for policy in plan_input.policies for term in policy.selector.groups)
    by_tag = any(term.kind == "AutoScalingGroup" for term in terms)
    options, enforced = dict(me.options.given()), plan_input.launching.refusals
    inputs = msgspec.structs.replace(inputs, options=options, by_tag=by_tag, enforced=enforced)
    if plan_input.probing is None or verified is None:
        return inputs
    probing, findings, now = plan_input.probing, plan_input.probe_state.findings, plan_input.now
    marks, changed = plan_input.probe_state.marks, recorded(inputs.canary, ())
    canaries = [(one, its) for (_, one), its in zip(checked, candidates, strict=True) if its.needed]
    counting = plan_input.probe_state.counting
    needed = required(probing, candidates, counting, now) if probing.expect == "PodReachable" else {}
    return msgspec.structs.replace(
        inputs,
        expect=probing.expect,
        proved=frozenset(
            one.instance for one, its in canaries if passed_probe(probing, its, findings.get(one.node), now)
        ),
        faulty={one.instance: why for one, _ in canaries if (why := verified.faults.get(one.node))},
        unprobed={one.instance: its.unprobed for one, its in canaries if its.unprobed},
        asked_ahead={
            one.instance: at
            for _, one in checked
            if one.instance in changed and (at := asked_ahead(one.node, findings, marks, now))
        },
        unproved=unproved(plan_input.probe_state, verified),
        needed=needed,
    )


def _canaries(inputs: EnforceInput | None) -> dict[str, _Canary]:
    """Those of instances that have their change. Plus one, since times are rounded down to a second."""
    canaries = inputs.canary.groups if inputs is not None and inputs.canary is not None else ()
    return {
        one.instance: (
            (parse_time(canary.since) or 0.0) + 1.0 if canary.phase == "Soaking" else 0.0,
            (parse_time(canary.started_at) or 0.0) + 1.0,
            canary.changes,
        )
        for canary in canaries
        for one in canary.instances
        if canary.phase == "Soaking" or (canary.phase == "Changing" and one.applied)
    }


def _candidates(
    plan_input: PlanInput, checked: Sequence[tuple[Member, CheckedInstance]]
) -> Sequence[Candidate]:
    """A Candidate for each instance, in order, if nodes are probed."""
    if plan_input.probing is None:
        return ()
    canaries = _canaries(plan_input.enforce_input)
    changed = plan_input.enforce_input.changed if plan_input.enforce_input is not None else {}
    me = _me(plan_input)
    fields = frozenset(field for field, _ in me.options.given())
    candidates = []
    for member, one in checked:
        case = CheckInput(member.ref, one.observed, one.desired, me.name, fields)
        at, canary = changed.get(one.instance, 0.0), canaries.get(one.instance, (0.0, 0.0, ()))
        candidates.append(_candidate(member, one, at, canary, fits(case, one.result)))
    return candidates


def _candidate(
    member: Member, one: CheckedInstance, changed: float, canary: _Canary, fitted: bool
) -> Candidate:
    unprobed, (soaks, began, changes) = member.ref.unprobed, canary
    options = one.observed.options if one.observed is not None else Options()
    if changes:  # another policy may have disabled its endpoint since it was chosen
        unprobed = unprovable(unprobed, one.observed, changes)
    endpoint = one.desired.get("httpEndpoint")
    disabled = options.http_endpoint == "disabled"
    shut = disabled and endpoint is not None and endpoint.value == "disabled" and not endpoint.rivals
    if disabled and not shut:
        unprobed = unprobed or "its metadata endpoint is disabled, although no policy disables it"
    return Candidate(
        node=one.node,
        groups=member.groups,
        # A soaking canary has its changes; any other difference is not for this policy to change.
        fit=one.ready and (soaks > 0 or one.result.state == "compliant"),
        counts=fitted,
        hop_limit=options.http_put_response_hop_limit,
        changed=soaks or changed,
        needed=soaks > 0,
        began=began,
        shut=shut,
        ipv6=not disabled and options.http_protocol_ipv6 == "enabled",
        unprobed=unprobed,
        instance=one.instance,
    )


def _checked(
    member: Member, result: CheckResult, desired: Mapping[str, DesiredOption], *, probed: bool = False
) -> CheckedInstance:
    node, ref, why = member.node, member.ref, ""
    if probed and result.state == "drifted":
        why = unprovable(ref.unprobed, member.observed, result.changes)
    if why:
        message = f"not eligible as a canary, because a probe cannot verify its change: {why}"
        result = msgspec.structs.replace(result, reason=Reason.NOT_PROBEABLE, message=message)
    return CheckedInstance(
        *(node.name, ref.instance, ref.region, node.ready, member.observed, result, desired),
        group=member.groups[0] if member.groups else ("", ""),
        ready_since=node.ready_since,
        provable=not why,
        cordoned=node.unschedulable,
    )


def _elsewhere(
    others: Iterable[tuple[Member, Mapping[str, DesiredOption]]], inputs: EnforceInput, cache: "_CheckCache"
) -> list[CheckedInstance]:
    """Changed instances that the policy no longer selects."""
    changed = recorded(inputs.canary, inputs.watched)
    return [
        _checked(member, cache.of(member, fields), fields)
        for member, fields in others
        if member.ref.instance in changed
    ]


def _enforced(
    checked: Sequence[tuple[Member, CheckedInstance]],
    inputs: EnforceInput,
    elsewhere: Sequence[CheckedInstance],
) -> tuple[Enforced, list[tuple[Member, CheckedInstance]]]:
    """The decisions of Enforce, and the checked instances with the failures of their last attempts."""
    made = enforce([one for _, one in checked], inputs, elsewhere)
    attempts = {**inputs.attempts, **made.attempts}
    if not attempts:
        return made, list(checked)
    return made, [(member, with_failure(one, attempts.get(one.instance))) for member, one in checked]


class _Merged:
    """The desired options of a node, and whether `me` selects it, computed once for all nodes that the
    selectors cannot tell apart: there are thousands of nodes and a few kinds of them."""

    def __init__(self, policies: Sequence[Policy], me: Policy) -> None:
        self._policies = policies
        self._me = me
        self._labels = sorted({key for one in (*policies, me) for key in names(one.selector)})
        self._known: dict[tuple[object, ...], Desired] = {}

    def of(self, member: Member) -> Desired:
        """See Desired."""
        labels = member.node.labels
        alike = (member.groups, member.ref.region, *map(labels.get, self._labels))
        if alike not in self._known:
            self._known[alike] = selects(self._me.selector, labels, member.groups), self._merged(member)
        return self._known[alike]

    def _merged(self, member: Member) -> Mapping[str, DesiredOption]:
        # A policy that skips a region leaves its nodes to the others.
        here = [policy for policy in self._policies if policy.region in ("", member.ref.region)]
        meant = [policy for policy in here if selects(policy.selector, member.node.labels, member.groups)]
        return merge(PolicyOptions(policy.name, policy.priority, policy.options) for policy in meant)


class _CheckCache:
    """The check result of a node, computed once for all nodes with the same input."""

    def __init__(self, plan_input: PlanInput, me: Policy) -> None:
        self._plan_input = plan_input
        self._me = me
        self.own = frozenset(field for field, _ in me.options.given())
        self._known: dict[tuple[object, ...], CheckResult] = {}

    def of(self, member: Member, fields: Mapping[str, DesiredOption]) -> CheckResult:
        """`fields` as _Merged has them: one mapping for all that are alike."""
        observed, ref = member.observed, member.ref
        compared = None
        if observed is not None:
            more = observed.managed, observed.tagged, observed.lost
            compared = (observed.options, observed.state, observed.under_way, *more)
        alike = (id(fields), ref.region, ref.skipped, compared)
        if alike not in self._known:
            unasked = self._plan_input.unasked.get(ref.region, "")
            here = _here(member, self._plan_input.region)
            self._known[alike] = check(CheckInput(here, observed, fields, self._me.name, self.own, unasked))
        return self._known[alike]


def _node_sources(members: Iterable[tuple[Member, Mapping[str, DesiredOption]]]) -> NodeSources:
    node_sources = NodeSources()
    for member, fields in members:
        node_sources.add(member.groups, member.ref, member.observed, fields)
    return node_sources


def _here(member: Member, region: str) -> InstanceRef:
    elsewhere = region and member.ref.region and member.ref.region != region
    return msgspec.structs.replace(member.ref, skipped=OTHER_REGION) if elsewhere else member.ref


def _alike(checked: Sequence[tuple[Member, CheckedInstance]]) -> list[counts.Alike]:
    """Counts the nodes of the same groups with the same CheckResult of _CheckCache, once for all uses."""
    results = {id(one.result): one.result for _, one in checked}
    counts = Counter((member.groups, id(one.result)) for member, one in checked)
    return [(groups, results[result], count) for (groups, result), count in counts.items()]
