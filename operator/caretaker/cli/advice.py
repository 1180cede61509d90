"""The problems of a resource, from its conditions, each with an action: a line each. Pure.

Each kind has its own positive conditions, normal reasons and actions.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from caretaker.api.conditions import READY, Condition, find
from caretaker.api.objects import WireMeta
from caretaker.api.times import parse_time
from caretaker.cli.text import age, one_line

# For plan, which calls AWS with the user's credentials.
CREDENTIALS_ADVICE: Final = "give yourself AWS credentials, as by AWS_PROFILE=...; the operator has its own"
ASKED_AS_YOU: Final = (
    "{} was asked as you, with credentials of the standard chain (AWS_PROFILE, ...), and not as the "
    "operator: AWS may allow the operator calls that it refuses you"
)


def ready_line(conditions: Iterable[Condition], now: float) -> list[str]:
    """The Ready condition in a line; none before the first reconcile. The age is that of its status: a
    condition does not record the time of its reason's last change."""
    ready = find(conditions, READY)
    if ready is None:
        return []
    since = parse_time(ready.last_transition_time)
    passed = f" for {age(now - since)}" if since else ""
    return [f"Ready={ready.status}{passed}: {ready.reason}"]


def abnormal(
    conditions: Iterable[Condition], positive: Collection[str], normal: Collection[str]
) -> dict[str, Condition]:
    """The conditions that report a problem or wait for a person, by reason, the first of each.

    positive  types that are True in the normal case; all others are absent or False then
    normal    reasons that need no action
    """
    found: dict[str, Condition] = {}
    for condition in conditions:
        is_abnormal = condition.status != "True" if condition.type in positive else condition.status == "True"
        if is_abnormal and condition.reason not in normal:
            found.setdefault(condition.reason, condition)
    return found


def problems(
    meta: WireMeta, observed: int, found: Mapping[str, Condition], actions: Mapping[str, str]
) -> list[str]:
    """Each condition of `found` with its action. `observed`: the generation of the status."""
    lines = []
    if observed < meta.generation:
        lines.append(
            "the operator has not looked at this yet; if that lasts: does it run, and in this namespace?"
        )
    for reason, condition in found.items():
        lines.append(f"{condition.type}: {reason}: {one_line(condition.message)}")
        if action := actions.get(reason):
            lines.append(f"  -> {action}")
    return lines
