"""The soak of canaries, signs of harm meanwhile, and the watch of changed instances. Pure.

Times in status are rounded down to a second, so one is added.
"""

from collections.abc import Iterable
from typing import Final

from caretaker.api.conditions import BreakerReason
from caretaker.api.imds import ChangedInstance, FieldChange, GroupCanary
from caretaker.api.times import parse_time
from caretaker.imds.change_attempts import ChangeAttempt
from caretaker.imds.drift import HOP_LIMIT, closes, requires_tokens, value
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput

# Minimum soak of a closing change, in minutes: kubelet and SDKs cache credentials (docs/spec/imdspolicy.md,
# "Soak of closing changes").
FLOORS: Final = {"httpTokens": 15, HOP_LIMIT: 15, "httpEndpoint": 30}
FLOOR: Final = 5
MINUTE: Final = 60.0
REJECTED: Final = "MetadataNoTokenRejected"  # a metric of AWS/EC2
# The longest watch of an instance after its change.
WINDOW_SECONDS: Final = 300.0
# A Node may join so long after the start of its instance.
JOINING_SECONDS: Final = 900.0


def floor_minutes(changes: Iterable[FieldChange]) -> int:
    """Minimum soak of these changes, in minutes."""
    closing = [one for one in changes if closes(value(one, one.before), value(one, one.after))]
    return max((FLOORS.get(one.field, FLOOR) for one in closing), default=0)


def floor(changes: Iterable[FieldChange]) -> float:
    """The same in seconds."""
    return floor_minutes(changes) * MINUTE


def soak(changes: Iterable[FieldChange], inputs: EnforceInput) -> float:
    """Soak of these changes, in seconds."""
    return max(inputs.canary_soak, floor(changes))


def soaked_at(canary: GroupCanary, inputs: EnforceInput) -> float:
    """End of the soak, in Unix seconds."""
    end = (parse_time(canary.since) or 0.0) + 1.0 + soak(canary.changes, inputs)
    since, began = inputs.soaks.get((canary.kind, canary.name), ("", 0.0))
    if since != canary.since:
        return end  # it begins now
    # The wall clock may have been set since, or be another one.
    return max(end, inputs.wall + soak(canary.changes, inputs) - (inputs.now - began))


def watched_until(one: ChangedInstance, changes: Iterable[FieldChange], inputs: EnforceInput) -> float:
    """End of the watch of an instance, in Unix seconds. A Node that joins may take a while to be Ready."""
    seconds = (min(soak(changes, inputs), WINDOW_SECONDS) if one.ready_since else WINDOW_SECONDS) + 1.0
    end = (parse_time(one.at) or 0.0) + seconds
    sent_at = inputs.attempts.get(one.instance, ChangeAttempt()).sent_at
    if sent_at is None:
        return end
    # The wall clock may have been set since.
    return max(end, inputs.wall + seconds - (inputs.now - sent_at))


def is_late(
    one: ChangedInstance, checked: CheckedInstance, changes: Iterable[FieldChange], inputs: EnforceInput
) -> bool:
    """Whether its Node joined, and has not been Ready until the end of the watch. About a Node that was
    NotReady long before the change this says nothing."""
    launched = checked.observed.launched if checked.observed is not None else 0.0
    joined = not launched or (parse_time(one.at) or 0.0) - launched < JOINING_SECONDS
    return not one.ready_since and joined and inputs.wall >= watched_until(one, changes, inputs)


def heard(canary: GroupCanary, inputs: EnforceInput) -> bool:
    """Whether CloudWatch has been read since the end of the soak, if spec.tokenGate asks for that."""
    if inputs.rejected is None or not requires_tokens(canary.changes):
        return True
    end, read = soaked_at(canary, inputs), inputs.rejected
    return all(one.instance in read and read[one.instance][0] >= end for one in canary.instances)


def harm(one: ChangedInstance, inputs: EnforceInput, *, unready: bool) -> tuple[str, str]:
    """(reason, message) of the harm of a change to a canary's instance; ("", "") = none is known.
    `unready`: its Node has not been Ready for pendingTimeout."""
    _, count = (inputs.rejected or {}).get(one.instance, (0.0, 0.0))
    if count:
        message = f"has the change, and since then EC2 rejected IMDSv1 {count:.0f} times ({REJECTED})"
        return BreakerReason.CANARY_REJECTED, message
    if inputs.on_failure == "Restore" and unready:
        message = "has the change, and its Node has not been Ready for spec.pendingTimeout"
        return BreakerReason.CANARY_NOT_READY, message
    if inputs.on_failure == "Restore" and one.instance in inputs.faulty:
        message = f"has the change, and failed the probe: {inputs.faulty[one.instance]}"
        return BreakerReason.CANARY_UNREACHABLE, message
    return "", ""


def awaits(canary: GroupCanary, inputs: EnforceInput) -> str:
    """The thing for which a canary waits after its soak."""
    if not heard(canary, inputs):
        return f"a new reading of CloudWatch ({REJECTED})"
    return "a new reading of EC2" if inputs.proved is None else "its probe (condition Verified)"
