"""What a process remembers of each instance that it changed, or tried to, and how that goes on. Pure.

Nothing that correctness needs: what was sent is to be seen in EC2 itself, pending or applied. Times are
seconds of a clock that never goes back.

    sent -> pending -> applied ("landed") -> drifted again ("reversed": another client reverts it)
         -> pending too long: sent once more -> NotApplied, a failure
         -> refused, a failure: the next try after 30 s, doubling to 30 min
         -> no answer ("unsure"): the instance is read again before anything else

What is remembered is about one call (`options`): where the policies have come to want something else, it is
no reversal that the instance differs, and the next try need not wait.
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


class Hand(msgspec.Struct, frozen=True):
    """One instance.

    options  what was sent last, by EC2's names; empty: nothing by this process
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
        """Whether somebody else keeps setting it back."""
        return len(self.reversals) >= REVERSALS


def refused(hand: Hand) -> bool:
    """Whether EC2 definitely rejected the change, as far as this process has seen."""
    told = hand.trouble[0] not in ("", NO_ANSWER, Reason.NOT_APPLIED)
    return told and hand.sent_at is None and not hand.unsure and not hand.taken


def sent(hand: Hand, now: float, options: Mapping[str, Any]) -> Hand:
    """EC2 has taken a change."""
    return Hand(sent_at=now, resent=_again(hand), reversals=hand.reversals, options=options)


def failed(hand: Hand, now: float, reason: str, message: str, wait: float = 0.0) -> Hand:
    """EC2 has refused, or not done what it took. `wait`: at least so long."""
    wait = max(wait, min(BACKOFF_SECONDS * 2.0 ** min(hand.failures, 10), BACKOFF_MAX_SECONDS))
    return msgspec.structs.replace(
        hand,
        sent_at=None,
        resent=False,
        unsure=False,
        failures=hand.failures + 1,
        taken=hand.taken or _again(hand),
        not_before=now + wait,
        trouble=(reason, message),
    )


def unanswered(hand: Hand, now: float, options: Mapping[str, Any]) -> Hand:
    """The change may have been made: `sent_at` is when it may have been."""
    return msgspec.structs.replace(
        hand, sent_at=now, resent=_again(hand), landed=False, unsure=True, options=options
    )


def _again(hand: Hand) -> bool:
    """Whether EC2 has it already."""
    return hand.sent_at is not None and not hand.landed


def advance(
    hand: Hand,
    state: State,
    now: float,
    timeout: float,
    options: Mapping[str, Any] | None = None,
    differs: Collection[str] = (),
    *,
    others: bool = False,
) -> Hand:
    """The same hand after the instance was looked at: drifted where the policy may change something. One that
    is unsure has just been read again.

    options  what would be sent now, and `differs` which of it the instance has not
    others   another policy's change is not applied yet: that one follows it
    """
    if state == "compliant":
        return _landed(hand, now)
    if state == "pending":
        return _pending(hand, now, timeout, others=others)
    if state == "gone":
        return Hand()
    return _drifted(hand, now, options or {}, differs) if state == "drifted" else hand


def _landed(hand: Hand, now: float) -> Hand:
    rest = _rest(hand, now)
    if hand.sent_at is None:
        return rest
    return msgspec.structs.replace(rest, sent_at=hand.sent_at, landed=True, options=hand.options)


def _pending(hand: Hand, now: float, timeout: float, *, others: bool) -> Hand:
    if hand.trouble[0] == Reason.NOT_APPLIED:
        return hand
    if others and not hand.waits and not hand.landed:
        return msgspec.structs.replace(hand, sent_at=None)
    if hand.sent_at is None:  # another process has sent it, or another hand
        return msgspec.structs.replace(hand, sent_at=now)
    if hand.unsure:
        return msgspec.structs.replace(hand, unsure=False)
    if hand.resent and overdue(hand, now, timeout):
        return not_applied(hand, now, timeout)
    return hand


def not_applied(hand: Hand, now: float, timeout: float) -> Hand:
    """EC2 had it for too long."""
    said = f"EC2 accepted the change and did not apply it within {timeout:g} s"
    return failed(hand, now, Reason.NOT_APPLIED, said)


def overdue(hand: Hand, now: float, timeout: float) -> bool:
    """Whether EC2 has had it for too long."""
    return hand.sent_at is not None and not hand.landed and now - hand.sent_at >= timeout


def _drifted(hand: Hand, now: float, options: Mapping[str, Any], differs: Collection[str]) -> Hand:
    if hand.unsure:
        return failed(hand, now, NO_ANSWER, "EC2 did not answer, and did not make the change")
    if hand.sent_at is not None:
        same = any(hand.options.get(name) == options[name] for name in differs)
        return _reversed(hand, now) if same else _rest(hand, now)
    rest = _rest(hand, now)
    if not hand.failures or (hand.options and hand.options != options):
        return rest
    return msgspec.structs.replace(hand, reversals=rest.reversals)


def _reversed(hand: Hand, now: float) -> Hand:
    rest = _rest(hand, now)
    later = Hand(reversals=(*rest.reversals, now))
    if not later.fighting:
        return later
    return msgspec.structs.replace(later, not_before=now + REVERSAL_SECONDS)


def _rest(hand: Hand, now: float) -> Hand:
    """What outlasts all else: the reversals of the last hour, or the hour for which it is left alone."""
    if hand.fighting and now < hand.not_before:
        return Hand(reversals=hand.reversals, not_before=hand.not_before)
    return Hand(reversals=tuple(at for at in hand.reversals if now - at < REVERSAL_SECONDS))
