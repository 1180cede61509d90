"""What Enforce would do of a policy, in words. Pure."""

from collections import Counter
from typing import Final

from caretaker.api.imds import Safety
from caretaker.cli.text import age, number
from caretaker.imds.enforce import Enforced
from caretaker.imds.guard import Held

_NAMES: Final = 5


def would(enforced: Enforced, safety: Safety, *, enforces: bool) -> list[str]:
    """Lines for people; `enforces`: whether the policy is to."""
    head = "Enforce would" if enforces else "spec.mode is Audit: nothing is changed. Enforce would"
    if enforced.hold:
        return [f"{head} change nothing: {enforced.phase}: {enforced.message}", *_held(enforced)]
    if not enforced.left:
        return [f"{head} change nothing", *_held(enforced)]
    seconds = enforced.left * 60 / safety.max_changes_per_minute
    lines = [
        f"{head} change {number(enforced.left, 'instance')}, in about {age(seconds)}, the canary's time apart"
    ]
    if enforced.canary is not None:
        chosen = enforced.canary.instances
        more = f" and {len(chosen) - _NAMES} more" if len(chosen) > _NAMES else ""
        rest = f"the others {safety.canary.soak} after it is applied"
        lines.append(f"  first: {', '.join(chosen[:_NAMES])}{more}; {rest}")
    elif safety.canary.instances:
        lines.append("  no instance is fit to be the canary yet: running, on a node that is Ready")
    return [*lines, *_held(enforced)]


def _held(enforced: Enforced) -> list[str]:
    """What stays as it is, by option."""
    count: Counter[str] = Counter()
    why: dict[str, Held] = {}
    for _, one in enforced.held:
        count[one.change.field] += 1
        why[one.change.field] = one
    return [
        f"  not {field} of {number(times, 'instance')}: {why[field].reason}: {why[field].message}"
        for field, times in sorted(count.items())
    ]
