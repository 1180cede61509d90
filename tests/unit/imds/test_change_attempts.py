"""The attempt of an instance, arrow by arrow of the diagram in change_attempts.py."""

import msgspec
import pytest

from caretaker.imds import change_attempts
from caretaker.imds.change_attempts import (
    BACKOFF_MAX_SECONDS,
    NO_ANSWER,
    REVERSAL_SECONDS,
    REVERSALS,
    ChangeAttempt,
    advance,
    failed,
    overdue,
    refused,
    sent,
    unanswered,
)
from caretaker.imds.checks import State

HOP = {"HttpPutResponseHopLimit": 2}
BOTH = {**HOP, "HttpTokens": "required"}
TIMEOUT = 120.0
NEW = ChangeAttempt()
SENT = sent(NEW, 100.0, HOP)
LANDED = advance(SENT, "compliant", 110.0, TIMEOUT)


def drifted(attempt: ChangeAttempt, now: float, options: dict[str, object] = HOP) -> ChangeAttempt:
    return change_attempts.drifted(attempt, now, options, list(options))


def test_what_is_sent_waits_until_it_is_seen_applied() -> None:
    pending = advance(SENT, "pending", 105.0, TIMEOUT)
    assert (pending.waits, pending.landed, pending.sent_at) == (True, False, 100.0)
    landed = advance(pending, "compliant", 110.0, TIMEOUT)
    assert (landed.waits, landed.landed) == (False, True)
    assert advance(landed, "compliant", 9_999.0, TIMEOUT) == landed


@pytest.mark.parametrize(("now", "late"), [(219.9, False), (220.0, True)])
def test_what_is_pending_is_overdue_after_the_timeout(now: float, late: bool) -> None:
    assert overdue(advance(SENT, "pending", now, TIMEOUT), now, TIMEOUT) is late
    assert not overdue(LANDED, now, TIMEOUT)
    assert not overdue(NEW, now, TIMEOUT)


def test_what_is_sent_once_more_and_not_applied_is_told_once() -> None:
    again = sent(advance(SENT, "pending", 220.0, TIMEOUT), 220.0, HOP)
    assert again.resent
    assert advance(again, "pending", 339.9, TIMEOUT) == again
    told = advance(again, "pending", 340.0, TIMEOUT)
    assert (told.trouble[0], told.failures, told.waits) == ("NotApplied", 1, True)
    assert advance(told, "pending", 99_999.0, TIMEOUT) == told, "not counted again and again"
    assert not overdue(told, 99_999.0, TIMEOUT)
    assert advance(told, "compliant", 99_999.0, TIMEOUT) == NEW


def test_what_another_process_has_sent_is_followed_from_when_it_is_seen() -> None:
    seen = advance(NEW, "pending", 50.0, TIMEOUT)
    assert (seen.sent_at, seen.waits) == (50.0, False)
    assert not overdue(seen, 169.0, TIMEOUT)
    assert overdue(seen, 170.0, TIMEOUT)
    back = drifted(seen, 180.0)
    assert back == NEW, "who has not sent it does not know that it was set back"


def test_what_another_policy_has_sent_is_that_ones_to_send_again() -> None:
    assert advance(NEW, "pending", 50.0, TIMEOUT, others=True) == NEW
    followed = advance(NEW, "pending", 50.0, TIMEOUT)
    assert advance(followed, "pending", 110.0, TIMEOUT, others=True) == NEW, "it was quicker to send it again"
    assert advance(SENT, "pending", 110.0, TIMEOUT, others=True) == SENT


def test_backoff_doubles_from_30_seconds_to_30_minutes() -> None:
    attempt, waits = NEW, []
    for _ in range(9):
        attempt = failed(attempt, 1_000.0, "InternalError", "x")
        waits.append(attempt.not_before - 1_000.0)
    assert waits == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]
    assert max(waits) == BACKOFF_MAX_SECONDS
    assert failed(NEW, 0.0, "x", "x", wait=900.0).not_before == 900.0
    assert drifted(attempt, 1_001.0) == attempt, "to be looked at is no further failure"
    assert sent(attempt, 5_000.0, HOP).failures == 0


def test_without_an_answer_the_next_look_says_what_became_of_it() -> None:
    unsure = unanswered(NEW, 100.0, HOP)
    assert unsure.unsure
    assert advance(unsure, "unknown", 101.0, TIMEOUT) == unsure
    assert advance(unsure, "compliant", 101.0, TIMEOUT).landed
    pending = advance(unsure, "pending", 101.0, TIMEOUT)
    assert (pending.unsure, pending.sent_at) == (False, 100.0)
    not_made = drifted(unsure, 101.0)
    assert (not_made.trouble[0], not_made.failures, not_made.unsure) == (NO_ANSWER, 1, False)


def test_the_second_try_without_an_answer_is_still_the_last() -> None:
    late = advance(SENT, "pending", 220.0, TIMEOUT)
    pending = advance(unanswered(late, 220.0, HOP), "pending", 230.0, TIMEOUT)
    assert pending.resent
    assert advance(pending, "pending", 340.0, TIMEOUT).trouble[0] == "NotApplied"


def set_back(times: int, every: float) -> tuple[ChangeAttempt, float]:
    attempt, now = NEW, 0.0
    for _ in range(times):
        attempt = advance(sent(attempt, now, HOP), "compliant", now, TIMEOUT)
        now += every
        attempt = drifted(attempt, now)
    return attempt, now


def test_the_third_reversal_within_an_hour_leaves_it_alone_for_an_hour() -> None:
    twice, _ = set_back(REVERSALS - 1, 1_500.0)
    assert (twice.fighting, twice.not_before) == (False, 0.0)
    attempt, now = set_back(REVERSALS, 1_500.0)
    assert (attempt.fighting, attempt.not_before) == (True, now + REVERSAL_SECONDS)
    just_before = drifted(attempt, now + REVERSAL_SECONDS - 1)
    assert just_before.fighting, "the first reversal is more than an hour ago by now"
    assert advance(attempt, "compliant", now + 1, TIMEOUT).not_before == attempt.not_before
    after = drifted(attempt, now + REVERSAL_SECONDS)
    assert (after.fighting, after.not_before, after.reversals) == (False, 0.0, ())


def test_reversals_that_are_an_hour_apart_are_no_fight() -> None:
    attempt, _ = set_back(20, REVERSAL_SECONDS)
    assert not attempt.fighting
    assert len(attempt.reversals) <= 1


def test_nothing_is_remembered_of_what_is_long_over() -> None:
    attempt, now = set_back(1, 10.0)
    blocked = failed(attempt, now, "BlockedByAccountPolicy", "no", wait=900.0)
    fixed = advance(blocked, "compliant", now + 5, TIMEOUT)
    assert (fixed.trouble, fixed.not_before, fixed.failures) == (("", ""), 0.0, 0)
    assert advance(fixed, "compliant", now + REVERSAL_SECONDS, TIMEOUT) == NEW
    assert advance(blocked, "gone", now, TIMEOUT) == NEW


def test_a_spec_that_wants_something_else_is_no_reversal() -> None:
    three = {"HttpPutResponseHopLimit": 3}
    assert drifted(LANDED, 200.0).reversals == (200.0,)
    assert drifted(LANDED, 200.0, three) == NEW
    assert drifted(SENT, 200.0, three) == NEW, "nor while it is pending"
    more = change_attempts.drifted(LANDED, 200.0, BOTH, ["HttpTokens"])
    assert more == NEW, "a further option"
    assert change_attempts.drifted(LANDED, 200.0, BOTH, list(BOTH)).reversals == (200.0,)


def test_only_what_was_sent_can_be_set_back() -> None:
    """A field that was as it should be, and so was not sent, is corrected for the first time."""
    assert change_attempts.drifted(LANDED, 200.0, {"HttpTokens": "required"}, ["HttpTokens"]) == NEW
    tokens = sent(NEW, 200.0, {"HttpTokens": "required"})
    landed = advance(tokens, "compliant", 205.0, TIMEOUT)
    again = change_attempts.drifted(landed, 300.0, {"HttpTokens": "required"}, ["HttpTokens"])
    assert again.reversals == (300.0,)


def test_what_was_refused_does_not_hold_up_what_is_wanted_now() -> None:
    refused = failed(ChangeAttempt(options=BOTH), 100.0, "BlockedByAccountPolicy", "no", wait=86_400.0)
    assert drifted(refused, 200.0, BOTH) == refused
    assert drifted(refused, 200.0, HOP) == NEW


@pytest.mark.parametrize("state", ["unknown", "skipped"])
def test_what_is_not_known_changes_nothing(state: State) -> None:
    for attempt in (NEW, SENT, LANDED, failed(NEW, 1.0, "x", "x")):
        assert advance(attempt, state, 1_000.0, TIMEOUT) == attempt


def test_only_a_definite_answer_of_ec2_says_that_nothing_was_taken() -> None:
    told = failed(NEW, 100.0, "InvalidParameterValue", "no")
    assert refused(told)
    again = unanswered(told, 140.0, HOP)
    assert [refused(one) for one in (again, advance(again, "pending", 150.0, TIMEOUT))] == [False, False]
    unknown = [failed(NEW, 100.0, reason, "x") for reason in (NO_ANSWER, "NotApplied")]
    assert [refused(one) for one in (NEW, SENT, LANDED, *unknown)] == [False] * 5


def test_a_second_call_that_is_refused_takes_nothing_back() -> None:
    """The first one may still be applied."""
    again = failed(SENT, 240.0, "UnauthorizedOperation", "no")
    assert not refused(again)
    assert not refused(failed(again, 300.0, "UnauthorizedOperation", "no"))
    assert refused(failed(drifted(again, 400.0, BOTH), 400.0, "UnauthorizedOperation", "no"))


def test_what_is_remembered_after_a_failure_and_without_an_answer() -> None:
    again = sent(advance(SENT, "pending", 220.0, TIMEOUT), 220.0, HOP)
    assert failed(again, 240.0, "UnauthorizedOperation", "no") == ChangeAttempt(
        failures=1, not_before=270.0, taken=True, trouble=("UnauthorizedOperation", "no"), options=HOP
    )
    assert unanswered(LANDED, 200.0, BOTH) == ChangeAttempt(sent_at=200.0, unsure=True, options=BOTH)


def test_what_is_told_of_a_failure() -> None:
    again = sent(advance(SENT, "pending", 220.0, TIMEOUT), 220.0, HOP)
    late = advance(again, "pending", 340.0, TIMEOUT)
    assert late.trouble == ("NotApplied", "EC2 accepted the change and did not apply it within 120 s")
    silent = drifted(unanswered(NEW, 100.0, HOP), 101.0)
    assert silent.trouble == (NO_ANSWER, "EC2 did not answer, and did not make the change")


def test_reversals_of_one_that_fails_are_forgotten_after_an_hour() -> None:
    attempt = failed(ChangeAttempt(options=HOP, reversals=(0.0, 3_000.0)), 3_500.0, "InternalError", "no")
    assert drifted(attempt, 3_599.0).reversals == (0.0, 3_000.0)
    assert drifted(attempt, 3_600.0) == msgspec.structs.replace(attempt, reversals=(3_000.0,))
