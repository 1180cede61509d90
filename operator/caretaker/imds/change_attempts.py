"""The memory of a process of its change of each instance, and the transitions. Pure.

Correctness does not need it: EC2 itself shows a sent change as pending or applied. Times are seconds of a
monotonic clock.

    sent -> pending -> applied ("landed") -> drifted again ("reversed": another client reverts it)
         -> pending too long: sent once more -> NotApplied, a failure
         -> refused, a failure: the next try after 30 s, doubling to 30 min
         -> no answer ("unsure"): the instance is read again before anything else

An attempt belongs to one call (`options`). If the policies want other values now, a difference is no
reversal, and the next try does not wait.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.imds.checks import State

BACKOFF_SECONDS: Final = 30.0
BACKOFF_MAX_SECONDS: Final = 1800.0
# Set back so many times within the hour, it is left alone for the next one.
REVERSALS: Final = 3
REVERSAL_SECONDS: Final = 3600.0
NO_ANSWER: Final = "NoAnswer"


class ChangeAttempt(msgspec.Struct, frozen=True):
    """One instance.

    options  the last ones sent, by EC2's names; empty: this process sent none
    taken    EC2 has taken a change, and refused to take it once more
    trouble  (reason, message) of the last failure, "" = none
    """

    sent_at: float | None = None
    resent: bool = False
    landed: bool = False
    unsure: bool = False
    reversals: tuple[float, ...] = ()
    failures: int = 0
    not_before: float = 0.0
    taken: bool = False
    trouble: tuple[str, str] = ("", "")
    options: Mapping[str, Any] = {}

    @property
    def waits(self) -> bool:
        """Whether EC2 has taken a change of this process that was not seen applied."""
        taken = self.sent_at is not None or self.trouble[0] == Reason.NOT_APPLIED
        return taken and bool(self.options) and not self.landed

    @property
    def fighting(self) -> bool:
        """Whether another client keeps reverting it."""
        return len(self.reversals) >= REVERSALS


NEW: Final = ChangeAttempt()


def refused(attempt: ChangeAttempt) -> bool:
    """Whether EC2 definitely rejected the change, as far as this process has seen."""
    rejected = attempt.trouble[0] not in ("", NO_ANSWER, Reason.NOT_APPLIED)
    return rejected and attempt.sent_at is None and not attempt.unsure and not attempt.taken


def sent(attempt: ChangeAttempt, now: float, options: Mapping[str, Any]) -> ChangeAttempt:
    """EC2 has taken a change."""
    return ChangeAttempt(sent_at=now, resent=_again(attempt), reversals=attempt.reversals, options=options)


def failed(attempt: ChangeAttempt, now: float, reason: str, message: str, wait: float = 0.0) -> ChangeAttempt:
    """EC2 has refused the change, or accepted and not applied it. `wait`: seconds, at least."""
    wait = max(wait, min(BACKOFF_SECONDS * 2.0 ** min(attempt.failures, 10), BACKOFF_MAX_SECONDS))
    return msgspec.structs.replace(
        attempt,
        sent_at=None,
        resent=False,
        unsure=False,
        failures=attempt.failures + 1,
        taken=attempt.taken or _again(attempt),
        not_before=now + wait,
        trouble=(reason, message),
    )


def unanswered(attempt: ChangeAttempt, now: float, options: Mapping[str, Any]) -> ChangeAttempt:
    """The change may have been made: `sent_at` is when it may have been."""
    return msgspec.structs.replace(
        attempt, sent_at=now, resent=_again(attempt), landed=False, unsure=True, options=options
    )


def _again(attempt: ChangeAttempt) -> bool:
    """Whether EC2 has it already."""
    return attempt.sent_at is not None and not attempt.landed


def advance(
    attempt: ChangeAttempt, state: State, now: float, timeout: float, *, others: bool = False
) -> ChangeAttempt:
    """The same attempt after the instance was read, and the policy may change nothing of it: see drifted().

    others   another policy's change is not applied yet: that one follows it
    """
    if state == "compliant":
        return landed(attempt, now)
    if state == "pending":
        return _pending(attempt, now, timeout, others=others)
    return ChangeAttempt() if state == "gone" else attempt


def landed(attempt: ChangeAttempt, now: float) -> ChangeAttempt:
    """The same attempt after the instance was read as compliant."""
    rest = _rest(attempt, now)
    if attempt.sent_at is None:
        return rest
    return msgspec.structs.replace(rest, sent_at=attempt.sent_at, landed=True, options=attempt.options)


def _pending(attempt: ChangeAttempt, now: float, timeout: float, *, others: bool) -> ChangeAttempt:
    if attempt.trouble[0] == Reason.NOT_APPLIED:
        return attempt
    if others and not attempt.waits and not attempt.landed:
        return msgspec.structs.replace(attempt, sent_at=None)
    if attempt.sent_at is None:  # another process has sent it, or another client
        return msgspec.structs.replace(attempt, sent_at=now)
    if attempt.unsure:
        return msgspec.structs.replace(attempt, unsure=False)
    if attempt.resent and overdue(attempt, now, timeout):
        return not_applied(attempt, now, timeout)
    return attempt


def not_applied(attempt: ChangeAttempt, now: float, timeout: float) -> ChangeAttempt:
    """EC2 had it for too long."""
    message = f"EC2 accepted the change and did not apply it within {timeout:g} s"
    return failed(attempt, now, Reason.NOT_APPLIED, message)


def overdue(attempt: ChangeAttempt, now: float, timeout: float) -> bool:
    """Whether EC2 has had it for too long."""
    return attempt.sent_at is not None and not attempt.landed and now - attempt.sent_at >= timeout


def drifted(
    attempt: ChangeAttempt, now: float, options: Mapping[str, Any], differs: Collection[str]
) -> ChangeAttempt:
    """The same attempt after the instance was read, and the policy may change something of it. One that is
    unsure has just been read again. `options`: those that would be sent now; `differs`: those of them that
    the instance does not have."""
    if attempt.unsure:
        return failed(attempt, now, NO_ANSWER, "EC2 did not answer, and did not make the change")
    if attempt.sent_at is not None:
        same = any(attempt.options.get(name) == options[name] for name in differs)
        return _reversed(attempt, now) if same else _rest(attempt, now)
    rest = _rest(attempt, now)
    if not attempt.failures or (attempt.options and attempt.options != options):
        return rest
    return msgspec.structs.replace(attempt, reversals=rest.reversals)


def _reversed(attempt: ChangeAttempt, now: float) -> ChangeAttempt:
    rest = _rest(attempt, now)
    later = ChangeAttempt(reversals=(*rest.reversals, now))
    if not later.fighting:
        return later
    return msgspec.structs.replace(later, not_before=now + REVERSAL_SECONDS)


def _rest(attempt: ChangeAttempt, now: float) -> ChangeAttempt:
    """The part that is kept longest: the reversals of the last hour, or the hour without changes."""
    if not attempt.reversals:
        return NEW
    if attempt.fighting and now < attempt.not_before:
        return ChangeAttempt(reversals=attempt.reversals, not_before=attempt.not_before)
    return ChangeAttempt(reversals=tuple(at for at in attempt.reversals if now - at < REVERSAL_SECONDS))
