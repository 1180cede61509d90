"""An IMDSPolicy's findings as tables; both `status` and `plan` show them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from caretaker.api.imds import (
    CanaryStatus,
    ChangedGroup,
    ChangedInstance,
    ExceptionStatus,
    FieldChange,
    GroupStatus,
    Summary,
)
from caretaker.cli.text import cut, number, table

_STATES: Final = ("compliant", "drifted", "pending", "failed", "unknown", "gone", "skipped", "overridden")
_SHOWN: Final = 3
_WHY: Final = 90  # characters, without -o wide


def summary(found: Summary) -> str:
    """`20 nodes, 17 compliant, 3 drifted`."""
    parts = [f"{count} {state}" for state in _STATES if (count := getattr(found, state))]
    return ", ".join([number(found.nodes, "node"), *parts])


def canaries(found: CanaryStatus | None) -> list[str]:
    """A row for each canary that has not passed."""
    if found is None or not found.groups:
        return []
    rows = [("CANARY OF", "CHANGE", "PHASE", "SINCE", "INSTANCES")]
    rows += [
        (group_name(one), changes(one.changes), one.phase, one.since, some_of(one.instances))
        for one in found.groups
    ]
    return ["", *table(rows)]


def group_name(one: ChangedGroup) -> str:
    """`EKSManagedNodegroup/apps`."""
    return f"{one.kind}/{one.name}" if one.name else "nodes without a group"


def changes(found: Sequence[FieldChange]) -> str:
    """`httpTokens optional -> required`."""
    return ", ".join(f"{one.field} {one.before} -> {one.after}" for one in found)


def some_of(found: Sequence[ChangedInstance]) -> str:
    """Instances with their nodes, not all of many."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(f"{one.instance} ({one.node})" for one in found[:_SHOWN]) + more


def groups(found: Sequence[GroupStatus], omitted: int) -> list[str]:
    """A row for each node group."""
    if not found:
        return []
    rows = [("GROUP", "NODES", "COMPLIANT", "DRIFTED")]
    rows += [(f"{g.kind}/{g.name}", str(g.nodes), str(g.compliant), str(g.drifted)) for g in found]
    return ["", *table(rows), *_more(omitted, "group")]


def differences(found: Mapping[tuple[str, str], Mapping[tuple[str, str, str], int]]) -> list[str]:
    """A row for each option that differs in a node group."""
    rows = [
        (f"{kind}/{name}", field, now, then, str(count))
        for (kind, name), counts in sorted(found.items())
        for (field, now, then), count in sorted(counts.items())
    ]
    return ["", *table([("GROUP", "OPTION", "IS", "SHOULD BE", "NODES"), *rows])] if rows else []


def exceptions(found: Sequence[ExceptionStatus], omitted: int, *, wide: bool) -> list[str]:
    """A row for each field that differs, and for each node that is not looked at."""
    if not found:
        return []
    rows = [("NODE", "INSTANCE", "REASON", "WHAT")]
    for one in found:
        what = f"{one.field}: {one.current}, should be {one.desired}" if one.field else one.message
        rows.append((one.node, one.instance or "-", one.reason, what if wide else cut(what, _WHY)))
    return ["", *table(rows), *_more(omitted, "entry", "entries")]


def _more(omitted: int, noun: str, plural: str = "") -> list[str]:
    if not omitted:
        return []
    return [f"and {omitted} {plural} more" if plural and omitted > 1 else f"and {number(omitted, noun)} more"]
