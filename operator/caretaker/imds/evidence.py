"""Unexpected results of the probe, kept in status: they count until the node has a newer result, though the
task was deleted with its ledger, the policy was suspended, or the Node was registered again. Pure.
"""

from collections.abc import Iterable, Sequence

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import MAX_UNEXPECTED, UnexpectedResult
from caretaker.api.times import format_time, parse_time
from caretaker.imds.probe import Finding, ProbeState
from caretaker.imds.verify import Candidate, Probing, Verified, lasts, unsaid, verify


class Evidence(msgspec.Struct, frozen=True):
    """The verdict of the probe: `unexpected` is for status."""

    probe_state: ProbeState
    verified: Verified | None = None
    unexpected: tuple[UnexpectedResult, ...] = ()


def evidence(
    probing: Probing | None,
    candidates: Sequence[Candidate],
    probe_state: ProbeState,
    stored: Sequence[UnexpectedResult],
    now: float,
) -> Evidence:
    """See Evidence. Nothing is verified if nothing is probed."""
    if probing is None:
        return Evidence(probe_state)
    nodes = {one.node for one in stored}
    by_node = {one.node: one for one in candidates if one.node in nodes} if stored else {}
    # The stored results that no newer one replaces.
    kept = [one for one in stored if not _replaced(probing, by_node.get(one.node), one, probe_state)]
    known = _remembering(probe_state, [one for one in kept if one.node in by_node])
    verified = verify(probing, candidates, known, now)
    kept = [one for one in kept if lasts(probing, _finding(one), now)]
    return Evidence(known, verified, _to_store(kept, verified))


def _remembering(probe_state: ProbeState, kept: Sequence[UnexpectedResult]) -> ProbeState:
    """With these stored results, and requests for them."""
    if not kept:
        return probe_state
    marks = {**probe_state.marks}
    for one in kept:
        marks[one.node] = max(marks.get(one.node, ""), one.mark)
    return msgspec.structs.replace(probe_state, marks=marks, before={one.node: _finding(one) for one in kept})


def _to_store(kept: Iterable[UnexpectedResult], verified: Verified) -> tuple[UnexpectedResult, ...]:
    """Unexpected results that count, and the earlier ones `kept`: their Nodes may come back."""
    found = {one.node: _stored(one, finding) for one, finding in verified.unexpected}
    for one in kept:
        found.setdefault(one.node, one)
    return tuple(found[node] for node in sorted(found))[:MAX_UNEXPECTED]


def unproved(probe_state: ProbeState, verified: Verified) -> tuple[str, str]:
    """Why the probe allows no change. One without a result yet stops nothing: the first canary needs none."""
    if probe_state.problem:
        return Reason.PROBE_UNAVAILABLE, (
            f"the DaemonTask of the probe: {probe_state.problem}. No instance is changed until the probe can "
            "be used, or spec.verification.probe is false"
        )
    return (verified.reason, verified.message) if verified.proved is False else ("", "")


def _replaced(
    probing: Probing, candidate: Candidate | None, one: UnexpectedResult, probe_state: ProbeState
) -> bool:
    """Whether a later probe said something, or another instance has the name of the Node."""
    if candidate is None:
        return False
    newer = probe_state.findings.get(one.node)
    says = newer is not None and newer.mark >= one.mark and not unsaid(probing, candidate, newer)
    return says or candidate.instance != one.instance


def _finding(one: UnexpectedResult) -> Finding:
    at = parse_time(one.at) or 0.0
    return Finding(one.verdict, at, one.mark, one.latency_milliseconds, one.needed_hops, one.imdsv1)


def _stored(candidate: Candidate, finding: Finding) -> UnexpectedResult:
    measured = finding.latency_ms, finding.needed_hops, finding.imdsv1
    at = format_time(finding.at)
    return UnexpectedResult(candidate.node, candidate.instance, finding.verdict, at, finding.mark, *measured)
