"""Counts of nodes by group, field and difference. Pure."""

from collections import Counter
from collections.abc import Iterable

from caretaker.api.imds import GroupStatus
from caretaker.imds.checks import CheckResult
from caretaker.imds.drift import text
from caretaker.imds.enforce_input import Group
from caretaker.imds.verify import Verified

# (groups, result, how many nodes have both)
Alike = tuple[tuple[Group, ...], CheckResult, int]


def by_group(alike: Iterable[Alike], verified: Verified | None) -> tuple[GroupStatus, ...]:
    """status.groups, without sources."""
    counts: dict[Group, Counter[str]] = {}
    measured = verified.groups if verified is not None else {}
    for groups, result, nodes in alike:
        for group in groups:
            count = counts.setdefault(group, Counter())
            count["nodes"] += nodes
            count[result.state] += nodes
    return tuple(
        GroupStatus(
            kind=kind,  # type: ignore[arg-type]
            name=name,
            nodes=count["nodes"],
            compliant=count["compliant"],
            drifted=count["drifted"] + count["failed"],
            required_hop_limit=measured.get((kind, name), (None, None))[0],
            probe=measured.get((kind, name), (None, None))[1],
        )
        for (kind, name), count in sorted(counts.items())
    )


def drift(alike: Iterable[Alike]) -> Counter[str]:
    """Nodes that differ, by field."""
    counts = Counter[str]()
    for _, result, nodes in alike:
        for change in result.changes:
            counts[change.field] += nodes
    return counts


def differences(alike: Iterable[Alike]) -> dict[Group, Counter[tuple[str, str, str]]]:
    """Group -> (field, current, desired) -> number of nodes."""
    counts: dict[Group, Counter[tuple[str, str, str]]] = {}
    for groups, result, nodes in alike:
        for change in result.changes:
            difference = (change.field, text(change.current), str(change.desired))
            for group in groups:
                counts.setdefault(group, Counter())[difference] += nodes
    return counts
