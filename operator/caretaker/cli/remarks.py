"""What is wrong with a resource, by its conditions, and what to do about it: a line each. Pure.

Which conditions are good, which reasons ask nothing of anybody, and the advice are each kind's own.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from caretaker.api.conditions import READY, Condition, find
from caretaker.api.objects import WireMeta
from caretaker.api.times import parse_time
from caretaker.cli.text import age, one_line

# Of plan, which asks AWS as whoever runs it.
CREDENTIALS: Final = "give yourself AWS credentials, as by AWS_PROFILE=...; the operator has its own"


def standing(conditions: Iterable[Condition], now: float) -> list[str]:
    """Ready in a line; none before the operator has looked. The age is that of its status: a condition does
    not tell since when its reason is the one it has now."""
    ready = find(conditions, READY)
    if ready is None:
        return []
    since = parse_time(ready.last_transition_time)
    passed = f" for {age(now - since)}" if since else ""
    return [f"Ready={ready.status}{passed}: {ready.reason}"]


def worth_telling(
    conditions: Iterable[Condition], good: Collection[str], calm: Collection[str]
) -> dict[str, Condition]:
    """The conditions that say that something is wrong or waits for somebody, by reason, the first of each.

    good  types that are meant to be True; all others are meant to be absent or False
    calm  reasons that ask nothing of anybody
    """
    found: dict[str, Condition] = {}
    for condition in conditions:
        wrong = condition.status != "True" if condition.type in good else condition.status == "True"
        if wrong and condition.reason not in calm:
            found.setdefault(condition.reason, condition)
    return found


def remarks(
    meta: WireMeta, observed: int, told: Sequence[Condition], advice: Callable[[str], str]
) -> list[str]:
    """What is wrong, each with what to do about it. `observed`: the generation that status is about."""
    lines = []
    if observed < meta.generation:
        lines.append(
            "the operator has not looked at this yet; if that lasts: does it run, and in this namespace?"
        )
    for condition in told:
        lines.append(f"{condition.type}: {condition.reason}: {one_line(condition.message)}")
        if todo := advice(condition.reason):
            lines.append(f"  -> {todo}")
    return lines
