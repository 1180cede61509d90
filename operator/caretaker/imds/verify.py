"""Which nodes are probed from inside a pod, and what that proves of a policy. Pure.

A probe costs packets to a service that takes 1,024 a second from an instance (Amazon EC2 user guide, "Query
throttling"), so it runs only on some nodes of each group: once, after a change, and each interval. Times are
Unix seconds; marks are RFC 3339, as DaemonTask's re-runs take them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import Expectation, ProbeStatus
from caretaker.api.times import normalise_time, parse_time, stamp_after
from caretaker.imds.probe import EMULATED, UNKNOWN, Finding, answered

# Verdicts of the probe (docs/imds-probe.md).
REACHABLE: Final = "Reachable"
HOP_LIMITED: Final = "HopLimited"
_SHUT: Final = frozenset((HOP_LIMITED, "Blocked", "EndpointDisabled", "Refused"))
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
    `changed`: when its options were last changed, as far as is known."""

    node: str
    groups: tuple[Group, ...]
    fit: bool
    hop_limit: int | None = None
    changed: float = 0.0
    needed: bool = False  # a canary


class Verified(msgspec.Struct, frozen=True):
    """`marks`: node -> the re-run that is asked of it; `groups`: what was found; (reason, message, whether it
    is proved: None = not known yet); `wake`: seconds until one is to be made again, None = none was made."""

    marks: Mapping[str, str]
    groups: Mapping[Group, tuple[int | None, ProbeStatus]]
    reason: str
    message: str
    proved: bool | None
    waiting: bool = False  # for a probe
    wake: float | None = None
    faults: Mapping[str, str] = {}  # node -> what is not as expected


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
        and (answered(finding, asked[place.node]) or _lasts(probing, place, finding, now))
    }
    reason, message, proved = _judged(probing, chosen, known)
    waiting = not all(answered(found.get(node), mark) for node, mark in asked.items())
    ages = [(place, found[place.node]) for place in chosen if place.node in found]
    wake = min((one.at + _due(probing, place, one) - now for place, one in ages), default=None)
    faults = {node: why for node, one in known.items() if (why := _fault(probing, one))}
    return Verified(asked, _groups(chosen, known), reason, message, proved, waiting, wake, faults)


def stands(probing: Probing, finding: Finding | None, since: float) -> bool:
    """Whether a node's probe that was asked for after `since` found what is expected."""
    if finding is None or (parse_time(finding.mark) or 0.0) < since:
        return False
    return not _fault(probing, finding)


def _chosen(probing: Probing, places: Sequence[Place], found: Mapping[str, Finding]) -> list[Place]:
    """Of each group as many as are asked for, those that were probed before first; and the canaries."""
    count: dict[Group, int] = {}
    chosen = []
    for place in sorted(places, key=lambda one: (not one.needed, one.node not in found, one.node)):
        groups = place.groups or (("", ""),)
        wanted = any(count.get(group, 0) < probing.per_group for group in groups)
        if not place.fit or not (wanted or place.needed):
            continue
        chosen.append(place)
        for group in groups:
            count[group] = count.get(group, 0) + 1
    return chosen


def _mark(
    probing: Probing, place: Place, finding: Finding | None, marks: Mapping[str, str], now: float
) -> str:
    """When it was last asked for; now, if what is known is too old."""
    asked = marks.get(place.node, "")
    if place.needed and (parse_time(asked) or 0.0) < place.changed:
        return stamp_after(max(now, place.changed), [normalise_time(asked)])
    if finding is None or not answered(finding, asked):
        asked_at = parse_time(asked) or 0.0
        return asked if asked_at >= place.changed or finding is None else stamp_after(now, [asked])
    age = now - finding.at
    if finding.at < place.changed or age >= _due(probing, place, finding):
        return stamp_after(now, [normalise_time(asked), finding.mark])
    return asked


def _due(probing: Probing, place: Place, finding: Finding) -> float:
    """Age in seconds at which it is to be made again: soon where it tells nothing, is older than it seems, or
    holds up a canary."""
    doubtful = finding.verdict == UNKNOWN or _outdated(place, finding)
    doubtful = doubtful or (place.needed and bool(_fault(probing, finding)))
    return min(probing.retry, probing.interval) if doubtful else probing.interval


def _outdated(place: Place, finding: Finding) -> bool:
    """Whether it cannot be of the hop limit that is set now: somebody else has changed that since, or a
    process that remembers it no more."""
    limit, needed = place.hop_limit, finding.needed_hops
    if limit is None or needed is None:
        return False
    return (
        needed <= limit if finding.verdict == HOP_LIMITED else finding.verdict == REACHABLE and needed > limit
    )


def _lasts(probing: Probing, place: Place, finding: Finding, now: float) -> bool:
    """Whether it counts until the next one is there: nothing is known to have changed."""
    return finding.at >= place.changed and now < finding.at + probing.interval + probing.retry


def _fault(probing: Probing, finding: Finding) -> str:
    """What is not as expected; "" = nothing."""
    if finding.verdict in _NOTHING:
        return f"{finding.verdict}: {finding.detail}"
    if probing.expect == "PodBlocked":
        return "" if finding.verdict in _SHUT else f"a pod reaches IMDS ({finding.verdict})"
    if probing.expect == "Any":
        return ""
    if finding.verdict != REACHABLE:
        needs = f", and needs hop limit {finding.needed_hops}" if finding.needed_hops else ""
        return f"a pod does not reach IMDS ({finding.verdict}{needs})"
    if finding.latency_ms is not None and finding.latency_ms > probing.max_latency_ms:
        return f"a pod waits {finding.latency_ms:.0f} ms for IMDS"
    return ""


def _judged(
    probing: Probing, chosen: Sequence[Place], known: Mapping[str, Finding]
) -> tuple[str, str, bool | None]:
    told = [(place, known[place.node]) for place in chosen if place.node in known]
    faults = [(place, finding, why) for place, finding in told if (why := _fault(probing, finding))]
    if faults:
        place, finding, why = faults[0]
        said = f"{len(faults)} of {len(told)} probed node(s) are not as expected; {place.node}: {why}"
        return _failed(probing, place, finding, said)
    if len(told) < len(chosen):
        return Reason.PROBING, f"{len(told)} of {len(chosen)} node(s) are probed", None
    if not told:
        return Reason.PROBING, "no node is there to be probed", None
    return Reason.PROVED, f"{len(told)} node(s) were probed from inside a pod", True


def _failed(probing: Probing, place: Place, finding: Finding, said: str) -> tuple[str, str, bool | None]:
    if finding.verdict in _NOTHING:
        return Reason.NOT_PROVED, said, None
    if probing.expect == "PodBlocked":
        return Reason.STILL_REACHABLE, said, False
    if finding.verdict == REACHABLE:
        return Reason.SLOW, said, False
    limit = f"; the hop limit is set to {place.hop_limit}" if place.hop_limit is not None else ""
    return Reason.SET_BUT_UNREACHABLE, said + limit, False


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
