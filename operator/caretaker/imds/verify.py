"""Which nodes are probed from inside a pod, and what that proves of a policy. Pure.

A probe costs packets to a service that takes 1,024 a second from an instance (Amazon EC2 user guide, "Query
throttling"), so it runs only on some nodes of each group: once, after a change, and each interval. Times are
Unix seconds; marks are RFC 3339, as DaemonTask's re-runs take them.

Whether a finding is newer than a change is told by the mark that it answers, which is our own stamp, and
never by the clock of the node. A finding proves something only if it is that, and fits the hop limit that is
set.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import Expectation, ProbeStatus
from caretaker.api.times import format_micros, normalise_time, parse_time, stamp_after
from caretaker.imds.drift import Change
from caretaker.imds.judge import Seen
from caretaker.imds.probe import EMULATED, UNKNOWN, Finding, answered

# Verdicts of the probe (docs/imds-probe.md).
REACHABLE: Final = "Reachable"
HOP_LIMITED: Final = "HopLimited"
# Nothing is given, with or without a token.
_SHUT: Final = frozenset(("Blocked", "EndpointDisabled", "Refused"))
_NOTHING: Final = frozenset((UNKNOWN, EMULATED))

Group = tuple[str, str]  # kind and name; ("", "") = of no group


class Probing(msgspec.Struct, frozen=True):
    """What a policy asks for. `interval` in seconds; `retry`, too: after so long a doubtful finding is made
    again, the shortest interval that a policy may ask for."""

    per_group: int = 3
    expect: Expectation = "PodReachable"
    max_latency_ms: float = 200.0
    interval: float = 86400.0
    retry: float = 600.0


class Place(msgspec.Struct, frozen=True, gc=False):
    """A node that may be probed. `fit`: its Node is Ready, and its instance as it should be and applied.
    `changed`: when its options were last seen applied after a change, as far as is known; 0 = never."""

    node: str
    groups: tuple[Group, ...]
    fit: bool
    hop_limit: int | None = None
    changed: float = 0.0
    needed: bool = False  # a canary
    shut: bool = False  # HttpEndpoint is disabled, as it should be
    unprobed: str = ""  # why the probe cannot run there


class Verified(msgspec.Struct, frozen=True):
    """`marks`: node -> the re-run that is asked of it; `first`: of these the canaries, who come first;
    `groups`: what was found; (reason, message, whether it is proved: None = not known yet); `wake`: seconds
    until one is to be made again, None = none was made; `faults`: node -> what is not as expected there."""

    marks: Mapping[str, str]
    groups: Mapping[Group, tuple[int | None, ProbeStatus]]
    reason: str
    message: str
    proved: bool | None
    waiting: bool = False  # for a probe
    wake: float | None = None
    first: frozenset[str] = frozenset()
    faults: Mapping[str, str] = {}


def verify(
    probing: Probing,
    places: Sequence[Place],
    found: Mapping[str, Finding],
    marks: Mapping[str, str],
    now: float,
) -> Verified:
    """`found` and `marks` by node, as they stand."""
    chosen = _chosen(probing, places, found)
    asked = {place.node: _mark(probing, place, found.get(place.node), marks, now) for place in chosen}
    known = {
        place.node: finding
        for place in chosen
        if (finding := found.get(place.node)) is not None
        and _since(place, finding, now)
        and (answered(finding, asked[place.node]) or _lasts(probing, finding, now))
    }
    reason, message, proved = _judged(probing, chosen, known)
    waiting = not all(answered(found.get(node), mark) for node, mark in asked.items())
    made = [(place, found[place.node]) for place in chosen if place.node in found]
    wake = min((_wake(probing, place, one, now) for place, one in made), default=None)
    return Verified(
        asked,
        _groups(chosen, known),
        reason,
        message + _left_out(places),
        proved,
        waiting,
        wake,
        frozenset(place.node for place in chosen if place.needed),
        {place.node: why for place in chosen if (why := _wrong(probing, place, known.get(place.node)))},
    )


def stands(probing: Probing, place: Place, finding: Finding | None, now: float) -> bool:
    """Whether a node's probe, asked for after `place.changed`, found what is expected."""
    if finding is None or not _since(place, finding, now):
        return False
    return not _fault(probing, place, finding) and not _outdated(place, finding)


def required(
    probing: Probing, places: Iterable[Place], found: Mapping[str, Finding], now: float
) -> dict[Group, int]:
    """The hop limit that a pod of each group needs, as far as it was measured. No option has a part in that,
    so findings of before a change count as well."""
    most: dict[Group, int] = {}
    for place in places:
        finding = found.get(place.node)
        if finding is None or finding.needed_hops is None or not _lasts(probing, finding, now):
            continue
        for group in place.groups or (("", ""),):
            most[group] = max(most.get(group, 0), finding.needed_hops)
    return most


def unprovable(unprobed: str, seen: Seen | None, changes: Iterable[Change]) -> str:
    """Why a probe could not prove these changes of an instance; "" = it could. `unprobed` as of its place."""
    if unprobed:
        return unprobed
    shut = seen is not None and seen.options.http_endpoint == "disabled"
    if shut and all(change.field != "httpEndpoint" for change in changes):
        return "its metadata endpoint is disabled, so a probe finds the same before and after"
    return ""


def _chosen(probing: Probing, places: Sequence[Place], found: Mapping[str, Finding]) -> list[Place]:
    """Of each group as many as are asked for, those that were probed before first, and of these those that
    are not as expected: what stops all changes is made again; and the canaries."""

    def order(place: Place) -> tuple[bool, bool, bool, str]:
        finding = found.get(place.node)
        return not place.needed, finding is None, not _wrong(probing, place, finding), place.node

    count: dict[Group, int] = {}
    chosen = []
    for place in sorted(places, key=order):
        groups = place.groups or (("", ""),)
        wanted = any(count.get(group, 0) < probing.per_group for group in groups)
        if place.unprobed or not place.fit or not (wanted or place.needed):
            continue
        chosen.append(place)
        for group in groups:
            count[group] = count.get(group, 0) + 1
    return chosen


def _mark(
    probing: Probing, place: Place, finding: Finding | None, marks: Mapping[str, str], now: float
) -> str:
    """When it was last asked for; now, if what is known is too old. What was asked for by a clock that is
    ahead is waited for, and not asked for again."""
    asked = max(normalise_time(marks.get(place.node)), finding.mark if finding is not None else "")
    old = bool(place.changed) and asked < format_micros(place.changed)
    if finding is not None and answered(finding, asked):
        old = old or _age(finding, now) >= _due(probing, place, finding)
    return stamp_after(max(now, place.changed), [asked]) if old else asked


def _since(place: Place, finding: Finding, now: float) -> bool:
    """Whether it was asked for after the last change that is known of, by a clock that is not ahead."""
    if not place.changed:
        return True
    return format_micros(place.changed) <= finding.mark <= format_micros(now)


def _age(finding: Finding, now: float) -> float:
    """By the node's clock, within what ours knows: it was made after it was asked for, and is not ahead."""
    asked = parse_time(finding.mark) or 0.0
    made = finding.at if finding.at <= now else asked or now
    return now - max(made, min(asked, now))


def _due(probing: Probing, place: Place, finding: Finding) -> float:
    """Age in seconds at which it is to be made again: soon where it tells nothing, is older than it seems, or
    holds up a canary."""
    doubtful = finding.verdict == UNKNOWN or _outdated(place, finding)
    doubtful = doubtful or (place.needed and bool(_fault(probing, place, finding)))
    return min(probing.retry, probing.interval) if doubtful else probing.interval


def _wake(probing: Probing, place: Place, finding: Finding, now: float) -> float:
    """Seconds until it is to be made again, or begins to count."""
    ahead = (parse_time(finding.mark) or 0.0) - now if place.changed else 0.0
    return ahead if ahead > 0 else _due(probing, place, finding) - _age(finding, now)


def _outdated(place: Place, finding: Finding) -> bool:
    """Whether it cannot be of the hop limit that is set now: somebody else has changed that since, or a
    process that remembers it no more."""
    limit, needed = place.hop_limit, finding.needed_hops
    if limit is None or needed is None:
        return False
    return (
        needed <= limit if finding.verdict == HOP_LIMITED else finding.verdict == REACHABLE and needed > limit
    )


def _lasts(probing: Probing, finding: Finding, now: float) -> bool:
    """Whether it counts until the next one is there."""
    return _age(finding, now) < probing.interval + probing.retry


def _fault(probing: Probing, place: Place, finding: Finding) -> str:
    """What is not as expected; "" = nothing."""
    if finding.verdict in _NOTHING:
        return f"{finding.verdict}: {finding.detail}"
    if probing.expect == "Any":
        return ""
    if _blocked(probing, place):
        return _open(finding)
    if finding.verdict != REACHABLE:
        needs = f", and needs hop limit {finding.needed_hops}" if finding.needed_hops else ""
        return f"a pod does not reach IMDS ({finding.verdict}{needs})"
    if finding.latency_ms is not None and finding.latency_ms > probing.max_latency_ms:
        return f"a pod waits {finding.latency_ms:.0f} ms for IMDS"
    return ""


def _wrong(probing: Probing, place: Place, finding: Finding | None) -> str:
    """What is not as expected; a probe that failed tells nothing of that."""
    return "" if finding is None or finding.verdict in _NOTHING else _fault(probing, place, finding)


def _blocked(probing: Probing, place: Place) -> bool:
    """Whether a pod there should get nothing."""
    return probing.expect == "PodBlocked" or place.shut


def _open(finding: Finding) -> str:
    """How a pod gets at metadata. The hop limit holds up the answer with the token alone, never IMDSv1's."""
    if finding.verdict in _SHUT or (finding.verdict == HOP_LIMITED and finding.imdsv1 == "Closed"):
        return ""
    if finding.imdsv1 == "Open":
        return f"a pod reaches IMDSv1, without a token ({finding.verdict})"
    if finding.verdict == HOP_LIMITED:
        return f"it is unknown whether a pod reaches IMDSv1 ({finding.verdict})"
    return f"a pod reaches IMDS ({finding.verdict})"


def _doubt(place: Place, finding: Finding) -> str:
    """Why it proves nothing though it is as expected; "" = it does."""
    if not _outdated(place, finding):
        return ""
    return (
        f"{finding.verdict} with {finding.needed_hops} needed hops contradicts the hop limit "
        f"{place.hop_limit} that is set; the node is probed again"
    )


def _judged(
    probing: Probing, chosen: Sequence[Place], known: Mapping[str, Finding]
) -> tuple[str, str, bool | None]:
    told = [(place, known[place.node]) for place in chosen if place.node in known]
    wrong = [(place, finding, why) for place, finding in told if (why := _fault(probing, place, finding))]
    if wrong:
        place, finding, why = wrong[0]
        said = f"{len(wrong)} of {len(told)} probed node(s) have an unexpected result; {place.node}: {why}"
        return _failed(probing, place, finding, said)
    doubts = [f"{place.node}: {why}" for place, finding in told if (why := _doubt(place, finding))]
    if doubts:
        return (
            Reason.NOT_PROVED,
            f"{len(doubts)} of {len(told)} probed node(s) have no valid result; {doubts[0]}",
            None,
        )
    if len(told) < len(chosen):
        return Reason.PROBING, f"{len(told)} of {len(chosen)} node(s) have been probed", None
    if not told:
        return Reason.PROBING, "there is no node to probe", None
    return Reason.PROVED, f"{len(told)} node(s) were probed from inside a pod", True


def _failed(probing: Probing, place: Place, finding: Finding, said: str) -> tuple[str, str, bool | None]:
    if finding.verdict in _NOTHING:
        return Reason.NOT_PROVED, said, None
    if _blocked(probing, place):
        unknown = finding.verdict == HOP_LIMITED and finding.imdsv1 is None
        return (Reason.NOT_PROVED, said, None) if unknown else (Reason.STILL_REACHABLE, said, False)
    if finding.verdict == REACHABLE:
        return Reason.SLOW, said, False
    limit = f"; the hop limit is set to {place.hop_limit}" if place.hop_limit is not None else ""
    return Reason.SET_BUT_UNREACHABLE, said + limit, False


def _left_out(places: Iterable[Place]) -> str:
    """Nodes that no probe proves anything of."""
    left = [(place.node, place.unprobed) for place in places if place.unprobed]
    if not left:
        return ""
    node, why = min(left)
    return f"; {len(left)} node(s) cannot be probed, {node}: {why}"


def _groups(
    chosen: Sequence[Place], known: Mapping[str, Finding]
) -> dict[Group, tuple[int | None, ProbeStatus]]:
    """The hop limit that each group needs, and what was measured in it."""
    of: dict[Group, list[Finding]] = {}
    for place in chosen:
        if place.node in known:
            for group in place.groups:
                of.setdefault(group, []).append(known[place.node])
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
