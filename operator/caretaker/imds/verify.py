"""Chooses the nodes to probe, and evaluates the results for a policy. Pure.

A probe costs packets to a service that takes 1,024 a second from an instance (Amazon EC2 user guide, "Query
throttling"), so it runs only on some nodes of each group: once, after a change, and each interval. Times are
Unix seconds; marks are RFC 3339, as DaemonTask's re-runs take them.

A finding verifies a change only if it answers a mark that was set after the change, and fits the hop limit
that is set. Marks have the operator's clock; the clock of the node does not count.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import Expectation, FieldChange, ProbeStatus
from caretaker.api.times import format_micros, normalise_time, parse_time, stamp_after
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.drift import OptionChange
from caretaker.imds.probe import EMULATED, UNKNOWN, Finding, ProbeState, answered

# Verdicts of the probe (docs/imds-probe.md).
REACHABLE: Final = "Reachable"
HOP_LIMITED: Final = "HopLimited"
# No metadata, with or without a token.
_SHUT: Final = frozenset(("Blocked", "EndpointDisabled", "Refused"))
# Metadata without a token may come all the same.
_PARTLY: Final = frozenset((HOP_LIMITED, "Forbidden"))
_NOTHING: Final = frozenset((UNKNOWN, EMULATED))

Group = tuple[str, str]  # kind and name; ("", "") = no group


class Probing(msgspec.Struct, frozen=True):
    """The settings of a policy. `interval` and `retry` in seconds; `retry`: for doubtful findings, the
    shortest interval that a policy may set."""

    per_group: int = 3
    expect: Expectation = "PodReachable"
    max_latency_ms: float = 200.0
    interval: float = 86400.0
    retry: float = 600.0


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A node that may be probed. `fit`: the Node is Ready, and the instance compliant. `counts`: it is not
    known to differ: an unexpected result counts also while it is not `fit`. `changed`: when its last change
    was seen applied, if known; 0 = never. `began`: when it became a canary; 0 = it is none."""

    node: str
    groups: tuple[Group, ...]
    fit: bool
    counts: bool = False
    hop_limit: int | None = None
    changed: float = 0.0
    needed: bool = False  # a canary
    began: float = 0.0
    shut: bool = False  # HttpEndpoint is disabled by a policy
    ipv6: bool = False  # the endpoint answers over IPv6 as well, which no probe tries
    unprobed: str = ""  # why the probe cannot run there
    instance: str = ""


class Verified(msgspec.Struct, frozen=True):
    """`marks`: node -> mark of the re-run; `first`: canaries among them, which are probed first; `groups`:
    results; `proved`: None = not known yet; `wake`: seconds until the next re-run, None = there is none;
    `faults`: node -> unexpected result; `unexpected`: those that count, to be stored."""

    marks: Mapping[str, str]
    groups: Mapping[Group, tuple[int | None, ProbeStatus]]
    reason: str
    message: str
    proved: bool | None
    waiting: bool = False  # for a probe
    wake: float | None = None
    first: frozenset[str] = frozenset()
    faults: Mapping[str, str] = {}
    unexpected: tuple[tuple[Candidate, Finding], ...] = ()


def verify(
    probing: Probing, candidates: Sequence[Candidate], probe_state: ProbeState, now: float
) -> Verified:
    """Choose the nodes to probe, and evaluate the results that count."""
    found, counting = probe_state.findings, probe_state.counting
    chosen = _chosen(probing, candidates, counting)
    asked = {one.node: _mark(probing, one, found.get(one.node), probe_state.marks, now) for one in chosen}
    unfit = [one for one in candidates if one.counts and not one.fit and not one.unprobed]
    findings = {
        candidate.node: finding
        for candidate in (*chosen, *unfit)
        if (finding := counting.get(candidate.node)) is not None
        and (_since(candidate, finding, now) or _still_wrong(probing, candidate, finding))
        and lasts(probing, finding, now)
    }
    wrong = [candidate for candidate in unfit if _wrong(probing, candidate, findings.get(candidate.node))]
    reason, message, proved = _evaluated(probing, [*chosen, *wrong], findings)
    unexpected = tuple(
        (candidate, findings[candidate.node])
        for candidate in (*chosen, *wrong)
        if _wrong(probing, candidate, findings.get(candidate.node))
    )
    if any(candidate.node in probe_state.before for candidate, _ in unexpected):
        message += "; the last result counts until the node is probed again"
    waiting = not all(answered(found.get(node), mark) for node, mark in asked.items())
    made = [(candidate, found[candidate.node]) for candidate in chosen if candidate.node in found]
    wake = min((_wake(probing, candidate, one, now) for candidate, one in made), default=None)
    return Verified(
        asked,
        _groups(chosen, findings),
        reason,
        message + _left_out(candidates),
        proved,
        waiting,
        wake,
        frozenset(candidate.node for candidate in chosen if candidate.needed),
        {
            candidate.node: why
            for candidate in chosen
            if (why := _wrong(probing, candidate, findings.get(candidate.node)))
        },
        unexpected,
    )


def passed_probe(probing: Probing, candidate: Candidate, finding: Finding | None, now: float) -> bool:
    """Whether the node passed a probe that was requested after `candidate.changed`."""
    if finding is None or candidate.unprobed or not _since(candidate, finding, now):
        return False
    return not _fault(probing, candidate, finding) and not _outdated(candidate, finding)


def required(
    probing: Probing, candidates: Iterable[Candidate], found: Mapping[str, Finding], now: float
) -> dict[Group, int]:
    """The measured hop limit that a pod of each group needs. It does not depend on the options, so findings
    from before a change count as well."""
    most: dict[Group, int] = {}
    for candidate in candidates:
        finding = found.get(candidate.node)
        if finding is None or finding.needed_hops is None or not lasts(probing, finding, now):
            continue
        for group in candidate.groups or (("", ""),):
            most[group] = max(most.get(group, 0), finding.needed_hops)
    return most


def asked_ahead(node: str, found: Mapping[str, Finding], marks: Mapping[str, str], now: float) -> float:
    """The time of the last request, if that is in the future, by a clock that was ahead; 0 = it is not."""
    asked = parse_time(_asked(node, found.get(node), marks)) or 0.0
    return asked if asked > now else 0.0


def unprovable(
    unprobed: str, observed: ObservedInstance | None, changes: Iterable[OptionChange | FieldChange]
) -> str:
    """Why a probe cannot verify these changes of an instance; "" = it can. `unprobed`: of its Candidate."""
    if unprobed:
        return unprobed
    shut = observed is not None and observed.options.http_endpoint == "disabled"
    if shut and all(change.field != "httpEndpoint" for change in changes):
        return "its metadata endpoint is disabled, so a probe finds the same before and after"
    return ""


def _chosen(
    probing: Probing, candidates: Sequence[Candidate], found: Mapping[str, Finding]
) -> list[Candidate]:
    """The canaries, and the number of nodes of each group that the policy sets: first those that were probed
    before. Also beyond that number all with an unexpected result, since that stops all changes and has to
    be repeated."""

    wrong = {one.node for one in candidates if _wrong(probing, one, found.get(one.node))}

    def order(candidate: Candidate) -> tuple[bool, bool, bool, str]:
        return not candidate.needed, candidate.node not in found, candidate.node not in wrong, candidate.node

    count: dict[Group, int] = {}
    chosen = []
    for candidate in sorted(candidates, key=order):
        groups = candidate.groups or (("", ""),)
        wanted = candidate.needed or candidate.node in wrong
        wanted = wanted or any(count.get(group, 0) < probing.per_group for group in groups)
        if candidate.unprobed or not candidate.fit or not wanted:
            continue
        chosen.append(candidate)
        for group in groups:
            count[group] = count.get(group, 0) + 1
    return chosen


def _mark(
    probing: Probing, candidate: Candidate, finding: Finding | None, marks: Mapping[str, str], now: float
) -> str:
    """The mark of the last request; now, if the finding is too old. A request by a clock that is ahead is
    waited for, and not repeated."""
    asked = _asked(candidate.node, finding, marks)
    old = bool(candidate.changed) and asked < format_micros(candidate.changed)
    if finding is not None and answered(finding, asked):
        old = old or _age(finding, now) >= _due(probing, candidate, finding)
    return stamp_after(max(now, candidate.changed), [asked]) if old else asked


def _asked(node: str, finding: Finding | None, marks: Mapping[str, str]) -> str:
    """The mark of the last request."""
    return max(normalise_time(marks.get(node)), finding.mark if finding is not None else "")


def _since(candidate: Candidate, finding: Finding, now: float) -> bool:
    """Whether it was requested after the last known change, by a clock that is not ahead."""
    if not candidate.changed:
        return True
    return format_micros(candidate.changed) <= finding.mark <= format_micros(now)


def _still_wrong(probing: Probing, candidate: Candidate, finding: Finding) -> bool:
    """Whether it is an unexpected result of this canary, whose soak has begun anew since: it counts until the
    next one."""
    mine = bool(candidate.began) and format_micros(candidate.began) <= finding.mark
    return mine and bool(_wrong(probing, candidate, finding)) and not _outdated(candidate, finding)


def _age(finding: Finding, now: float) -> float:
    """By the node's clock, bounded by the operator's: after the request and not in the future."""
    asked = parse_time(finding.mark) or 0.0
    made = finding.at if finding.at <= now else asked or now
    return now - max(made, min(asked, now))


def _due(probing: Probing, candidate: Candidate, finding: Finding) -> float:
    """Age in seconds at which it is repeated: soon if it is unknown, outdated, or blocks a canary."""
    doubtful = finding.verdict == UNKNOWN or _outdated(candidate, finding)
    doubtful = doubtful or (candidate.needed and bool(_fault(probing, candidate, finding)))
    return min(probing.retry, probing.interval) if doubtful else probing.interval


def _wake(probing: Probing, candidate: Candidate, finding: Finding, now: float) -> float:
    """Seconds until it is repeated, or begins to count."""
    ahead = (parse_time(finding.mark) or 0.0) - now if candidate.changed else 0.0
    return ahead if ahead > 0 else _due(probing, candidate, finding) - _age(finding, now)


def _outdated(candidate: Candidate, finding: Finding) -> bool:
    """Whether it contradicts the current hop limit: another client changed that since, or a process that no
    longer remembers it."""
    limit, needed = candidate.hop_limit, finding.needed_hops
    if limit is None or needed is None:
        return False
    return (
        needed <= limit if finding.verdict == HOP_LIMITED else finding.verdict == REACHABLE and needed > limit
    )


def lasts(probing: Probing, finding: Finding, now: float) -> bool:
    """Whether it counts until the next one."""
    return _age(finding, now) < probing.interval + probing.retry


def _fault(probing: Probing, candidate: Candidate, finding: Finding) -> str:
    """The unexpected result; "" = as expected."""
    if finding.verdict in _NOTHING:
        return f"{finding.verdict}: {finding.detail}"
    if probing.expect == "Any":
        return ""
    if _pods_blocked(probing, candidate):
        return _open(candidate, finding)
    if finding.verdict != REACHABLE:
        needs = f", and needs hop limit {finding.needed_hops}" if finding.needed_hops else ""
        return f"a pod does not reach IMDS ({finding.verdict}{needs})"
    if finding.latency_ms is not None and finding.latency_ms > probing.max_latency_ms:
        return f"a pod waits {finding.latency_ms:.0f} ms for IMDS"
    return ""


def _wrong(probing: Probing, candidate: Candidate, finding: Finding | None) -> str:
    """The unexpected result; one that says nothing is none."""
    nothing = finding is None or unsaid(probing, candidate, finding)
    return "" if finding is None or nothing else _fault(probing, candidate, finding)


def unsaid(probing: Probing, candidate: Candidate, finding: Finding) -> bool:
    """Whether the probe failed, or did not learn whether IMDSv1, or IMDS over IPv6, is closed where that
    counts."""
    reached = finding.verdict == REACHABLE or finding.imdsv1 == "Open"
    doubtful = candidate.ipv6 or (finding.verdict in _PARTLY and finding.imdsv1 is None)
    return finding.verdict in _NOTHING or (doubtful and not reached and _pods_blocked(probing, candidate))


def _pods_blocked(probing: Probing, candidate: Candidate) -> bool:
    """Whether pods on the node should not reach IMDS."""
    return probing.expect == "PodBlocked" or candidate.shut


def _open(candidate: Candidate, finding: Finding) -> str:
    """How a pod reaches metadata. The hop limit blocks only the response with the token, never IMDSv1."""
    if finding.verdict in _SHUT or (finding.verdict == HOP_LIMITED and finding.imdsv1 == "Closed"):
        doubt = f"it is unknown whether a pod reaches IMDS over IPv6 ({finding.verdict})"
        return doubt if candidate.ipv6 else ""
    if finding.imdsv1 == "Open":
        return f"a pod reaches IMDSv1, without a token ({finding.verdict})"
    if finding.verdict in _PARTLY:
        return f"it is unknown whether a pod reaches IMDSv1 ({finding.verdict})"
    return f"a pod reaches IMDS ({finding.verdict})"


def _doubt(candidate: Candidate, finding: Finding) -> str:
    """Why an expected result does not count; "" = it counts."""
    if not _outdated(candidate, finding):
        return ""
    return (
        f"{finding.verdict} with {finding.needed_hops} needed hops contradicts the hop limit "
        f"{candidate.hop_limit} that is set; the node is probed again"
    )


def _evaluated(
    probing: Probing, chosen: Sequence[Candidate], findings: Mapping[str, Finding]
) -> tuple[str, str, bool | None]:
    probed = [(candidate, findings[candidate.node]) for candidate in chosen if candidate.node in findings]
    wrong = [
        (candidate, finding, why)
        for candidate, finding in probed
        if (why := _fault(probing, candidate, finding))
    ]
    if wrong:
        candidate, finding, why = wrong[0]
        message = (
            f"{len(wrong)} of {len(probed)} probed node(s) have an unexpected result; {candidate.node}: {why}"
        )
        return _failed(probing, candidate, finding, message)
    doubts = [
        f"{candidate.node}: {why}" for candidate, finding in probed if (why := _doubt(candidate, finding))
    ]
    if doubts:
        return (
            Reason.NOT_PROVED,
            f"{len(doubts)} of {len(probed)} probed node(s) have no valid result; {doubts[0]}",
            None,
        )
    if len(probed) < len(chosen):
        return Reason.PROBING, f"{len(probed)} of {len(chosen)} node(s) have been probed", None
    if not probed:
        return Reason.PROBING, "there is no node to probe", None
    return Reason.PROVED, f"{len(probed)} node(s) were probed from inside a pod", True


def _failed(
    probing: Probing, candidate: Candidate, finding: Finding, message: str
) -> tuple[str, str, bool | None]:
    if unsaid(probing, candidate, finding):
        return Reason.NOT_PROVED, message, None
    if _pods_blocked(probing, candidate):
        return Reason.STILL_REACHABLE, message, False
    if finding.verdict == REACHABLE:
        return Reason.SLOW, message, False
    limit = f"; the hop limit is set to {candidate.hop_limit}" if candidate.hop_limit is not None else ""
    return Reason.SET_BUT_UNREACHABLE, message + limit, False


def _left_out(candidates: Iterable[Candidate]) -> str:
    """Nodes that cannot be probed."""
    left = [(candidate.node, candidate.unprobed) for candidate in candidates if candidate.unprobed]
    if not left:
        return ""
    node, why = min(left)
    return f"; {len(left)} node(s) cannot be probed, {node}: {why}"


def _groups(
    chosen: Sequence[Candidate], findings: Mapping[str, Finding]
) -> dict[Group, tuple[int | None, ProbeStatus]]:
    """For each group the hop limit that pods need, and the measurements."""
    of: dict[Group, list[Finding]] = {}
    for candidate in chosen:
        if candidate.node in findings:
            for group in candidate.groups:
                of.setdefault(group, []).append(findings[candidate.node])
    return {group: (_needed(findings), _measured(findings)) for group, findings in of.items()}


def _needed(findings: Collection[Finding]) -> int | None:
    return max((one.needed_hops for one in findings if one.needed_hops is not None), default=None)


def _measured(findings: Collection[Finding]) -> ProbeStatus:
    times = sorted(one.latency_ms for one in findings if one.latency_ms is not None)
    p95 = times[math.ceil(0.95 * len(times)) - 1] if times else None
    return ProbeStatus(
        probed=len(findings),
        reachable=sum(one.verdict == REACHABLE for one in findings),
        p95_milliseconds=round(p95, 1) if p95 is not None else None,
    )
