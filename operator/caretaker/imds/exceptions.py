"""The nodes that status lists as exceptions: their options differ, or are not held yet. Pure."""

import heapq
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from caretaker.api.imds import MAX_EXCEPTIONS, ExceptionStatus
from caretaker.imds.drift import OptionChange, text
from caretaker.imds.enforce import Enforced
from caretaker.imds.enforce_input import CheckedInstance
from caretaker.imds.safety_checks import Blocked

# In this order exceptions are listed where there are too many.
_ORDER: Final = ("failed", "drifted", "unknown", "pending", "gone", "skipped")


def exceptions_of(
    checked: Iterable[CheckedInstance], enforced: Enforced | None
) -> tuple[tuple[ExceptionStatus, ...], int]:
    """(at most MAX_EXCEPTIONS of these nodes, how many there are beyond)."""
    reported = [one for one in checked if one.result.reason]
    count = sum(len(one.result.changes) or 1 for one in reported)
    # Each has one entry or more.
    listed = heapq.nsmallest(
        MAX_EXCEPTIONS, reported, key=lambda one: (_ORDER.index(one.result.state), one.node)
    )
    instances = {one.instance for one in listed}
    every = enforced.blocked if enforced is not None else ()
    blocked = {(instance, why.change.field): why for instance, why in every if instance in instances}
    entries = tuple(islice((entry for one in listed for entry in _entries(one, blocked)), MAX_EXCEPTIONS))
    return entries, count - len(entries)


def _entries(one: CheckedInstance, blocked: Mapping[tuple[str, str], Blocked]) -> list[ExceptionStatus]:
    result = one.result
    if not result.changes:
        return [ExceptionStatus(one.node, result.reason, one.instance, message=result.message[:1024])]
    return [_entry(one, change, blocked.get((one.instance, change.field))) for change in result.changes]


def _entry(one: CheckedInstance, change: OptionChange, blocked: Blocked | None) -> ExceptionStatus:
    return ExceptionStatus(
        one.node,
        blocked.reason if blocked is not None else one.result.reason,
        one.instance,
        change.field,
        text(change.current),
        str(change.desired),
        (blocked.message if blocked is not None else one.result.message)[:1024],
    )
