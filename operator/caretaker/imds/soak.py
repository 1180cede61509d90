"""How long canaries soak, and how long changed instances are watched. Pure.

Times in status are rounded down to a second, so one is added.
"""

from collections.abc import Iterable
from typing import Final

from caretaker.api.imds import ChangedInstance, FieldChange, GroupCanary
from caretaker.api.times import parse_time
from caretaker.imds.change_attempts import ChangeAttempt
from caretaker.imds.drift import HOP_LIMIT, closes, value
from caretaker.imds.enforce_input import EnforceInput

# Minimum soak of a closing change, in seconds: kubelet and SDKs cache credentials (docs/spec/imdspolicy.md,
# "Soak of closing changes").
FLOORS: Final = {"httpTokens": 900.0, HOP_LIMIT: 900.0, "httpEndpoint": 1800.0}
FLOOR: Final = 300.0
# The longest watch of an instance after its change.
WINDOW_SECONDS: Final = 300.0


def floor(changes: Iterable[FieldChange]) -> float:
    """Minimum soak of these changes, in seconds."""
    closing = [one for one in changes if closes(value(one, one.before), value(one, one.after))]
    return max((FLOORS.get(one.field, FLOOR) for one in closing), default=0.0)


def soak(changes: Iterable[FieldChange], inputs: EnforceInput) -> float:
    """Soak of these changes, in seconds of the wall clock."""
    return max(inputs.canary_soak, floor(changes) * inputs.tick)


def soaked_at(canary: GroupCanary, inputs: EnforceInput) -> float:
    """End of the soak, in Unix seconds."""
    end = (parse_time(canary.since) or 0.0) + 1.0 + soak(canary.changes, inputs)
    since, began = inputs.soaks.get((canary.kind, canary.name), ("", 0.0))
    if since != canary.since:
        return end  # it begins now
    # The wall clock may have been set since, or be another one.
    return max(end, inputs.wall + soak(canary.changes, inputs) - (inputs.now - began) * inputs.tick)


def watched_until(one: ChangedInstance, changes: Iterable[FieldChange], inputs: EnforceInput) -> float:
    """End of the watch of an instance, in Unix seconds."""
    seconds = min(soak(changes, inputs), WINDOW_SECONDS * inputs.tick) + 1.0
    end = (parse_time(one.at) or 0.0) + seconds
    sent_at = inputs.attempts.get(one.instance, ChangeAttempt()).sent_at
    if sent_at is None:
        return end
    # The wall clock may have been set since.
    return max(end, inputs.wall + seconds - (inputs.now - sent_at) * inputs.tick)
