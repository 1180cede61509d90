"""The forecast of mode Enforce as text. Pure."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from caretaker.api import durations
from caretaker.api.imds import CanaryStatus, Safety
from caretaker.cli.imds.tables import changes, group_name, some_of
from caretaker.cli.text import age, number
from caretaker.imds.enforce import Enforced
from caretaker.imds.safety_checks import Blocked
from caretaker.imds.soak import floor

_NAMES: Final = 5


def enforce_lines(enforced: Enforced, safety: Safety, *, enforces: bool) -> list[str]:
    """Lines for people; `enforces`: whether the policy is to."""
    head = "Enforce would" if enforces else "spec.mode is Audit: nothing is changed. Enforce would"
    if enforced.hold:
        return [f"{head} change nothing: {enforced.phase}: {enforced.message}", *_blocked_lines(enforced)]
    if not enforced.left:
        return [f"{head} change no instance", *_blocked_lines(enforced)]
    seconds = enforced.left * 60 / safety.max_changes_per_minute
    count = number(enforced.left, "instance")
    lines = [f"{head} change {count} in about {age(seconds)}, plus the time of the canaries"]
    if enforced.canary is not None and enforced.canary.groups:
        lines += _canary_lines(enforced.canary, safety)
    elif safety.canary.instances and not enforced.writes:
        lines.append("  there is no canary yet: no instance is running on a Ready Node")
    return [*lines, *_blocked_lines(enforced)]


def _canary_lines(canary: CanaryStatus, safety: Safety) -> Iterator[str]:
    """The canary of each group."""
    for one in canary.groups[:_NAMES]:
        soak = age(max(durations.seconds(safety.canary.soak), floor(one.changes)))
        who = f"{group_name(one)}: {some_of(one.instances)}"
        rest = f"the remaining instances {soak} after it is applied"
        yield f"  canary of {who}: {changes(one.changes)}; {rest}"
    if len(canary.groups) > _NAMES:
        yield f"  and canaries of {len(canary.groups) - _NAMES} more groups"


def _blocked_lines(enforced: Enforced) -> list[str]:
    """The changes that are blocked, by option."""
    count: Counter[tuple[str, str]] = Counter()
    why: dict[tuple[str, str], Blocked] = {}
    for _, one in enforced.blocked:
        count[one.change.field, one.reason] += 1
        why[one.change.field, one.reason] = one
    return [
        f"  not changed: {field} of {number(times, 'instance')}: {reason}: {why[field, reason].message}"
        for (field, reason), times in sorted(count.items())
    ]
