"""The steps of one target, each rule that closes an interleaving, and when a call may start."""

import msgspec
import pytest

from caretaker.s3refresh import debounce, record
from caretaker.s3refresh.debounce import Claim, Dirty, Failure, InFlight, Last, Pace, Target
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope

NOW = 1_800_000_000.0
PACE = Pace()
A = Scope(folders=frozenset({"/", "a"}))
B = Scope(folders=frozenset({"/", "b"}))
CALL = Request(("a", "/"), recursive=False)
CLAIM = Claim("c1", "me", NOW - 5, CALL, NOW - 40)
CLAIMED = Target("t", claim=CLAIM, last=Last(requested_at=NOW - 5))
FLYING = Target("t", in_flight=InFlight("n1", NOW - 30, CALL), last=Last(NOW - 31, NOW - 30))


def dirty(scope: Scope = A, since: float = NOW - 10) -> Target:
    return Target("t", dirty=Dirty(since, scope))


class TestMark:
    def test_an_event_dirties_a_clean_target(self) -> None:
        assert debounce.mark(Target("t"), A, NOW).dirty == Dirty(NOW, A)

    def test_what_waits_already_is_not_written_again(self) -> None:
        before = dirty()
        assert debounce.mark(before, A, NOW) is before

    def test_the_first_event_is_what_counts(self) -> None:
        after = debounce.mark(dirty(), B, NOW)
        assert after.dirty == Dirty(NOW - 10, Scope(folders=frozenset({"/", "a", "b"})))

    def test_a_since_in_the_future_is_now(self) -> None:
        after = debounce.mark(dirty(since=NOW + 9_000), B, NOW)
        assert after.dirty is not None
        assert after.dirty.since == NOW

    @pytest.mark.parametrize("busy", [CLAIMED, FLYING], ids=["claimed", "in flight"])
    def test_a_call_under_way_covers_no_event(self, busy: Target) -> None:
        """It may have listed that folder already."""
        assert debounce.mark(busy, A, NOW).dirty == Dirty(NOW, A)


class TestClaim:
    def test_the_record_is_the_call(self) -> None:
        after = debounce.claim(dirty(), "c1", "me", PACE, NOW)
        assert after.claim == Claim("c1", "me", NOW, CALL, NOW - 10)
        assert (after.dirty, after.last.requested_at) == (None, NOW)

    def test_what_does_not_fit_waits_on(self) -> None:
        after = debounce.claim(dirty(), "c1", "me", Pace(max_folders=1), NOW)
        assert after.claim is not None
        assert after.claim.request.folders == ("a",)
        assert after.dirty == Dirty(NOW - 10, Scope(folders=frozenset({"/"})))

    @pytest.mark.parametrize("busy", [CLAIMED, FLYING], ids=["claimed", "in flight"])
    def test_one_call_at_a_time(self, busy: Target) -> None:
        before = debounce.mark(busy, B, NOW)
        assert debounce.claim(before, "c2", "me", PACE, NOW) is before


class TestAnswers:
    def test_accepted(self) -> None:
        after = debounce.accepted(CLAIMED, "c1", "n1", NOW)
        assert (after.claim, after.in_flight) == (None, InFlight("n1", NOW, CALL))
        assert after.last == Last(requested_at=NOW - 5, accepted_at=NOW, folders=2)

    def test_accepted_without_an_id_it_is_in_flight_all_the_same(self) -> None:
        after = debounce.accepted(CLAIMED, "c1", "", NOW, unnamed=True)
        assert (after.claim, after.in_flight) == (None, InFlight("", NOW, CALL))

    def test_accepted_and_done_at_once(self) -> None:
        after = debounce.accepted(CLAIMED, "c1", "", NOW)
        assert (after.in_flight, after.last.result) == (None, "Succeeded")

    def test_failed_waits_again_as_old_as_it_was(self) -> None:
        after = debounce.failed(debounce.mark(CLAIMED, B, NOW - 1), "c1", "E", "no", PACE, NOW, 1.0)
        assert after.dirty == Dirty(NOW - 40, Scope(folders=frozenset({"/", "a", "b"})))
        assert after.failure == Failure(1, "E", "no", NOW + 60)
        assert after.claim is None

    def test_backoff_doubles_to_its_end(self) -> None:
        waits = []
        target = CLAIMED
        for _ in range(8):
            target = debounce.failed(target, "c1", "E", "no", PACE, NOW, 1.0)
            assert target.failure is not None
            waits.append(target.failure.next_attempt_at - NOW)
            target = msgspec.structs.replace(target, claim=CLAIM)
        assert waits == [60, 60, 120, 240, 480, 900, 900, 900]

    def test_an_unknown_outcome_waits_until_it_can_no_longer_be_accepted(self) -> None:
        after = debounce.failed(CLAIMED, "c1", debounce.UNKNOWN, "?", PACE, NOW, 0.0)
        assert after.failure is not None
        assert after.failure.next_attempt_at == NOW + PACE.min_interval + debounce.CALL_SECONDS

    def test_an_answer_to_a_claim_that_was_merged_back_and_made_anew_counts_for_nothing(self) -> None:
        anew = msgspec.structs.replace(CLAIMED, claim=msgspec.structs.replace(CLAIM, id="c2"))
        assert debounce.accepted(anew, "c1", "n1", NOW) is anew
        assert debounce.failed(anew, "c1", "E", "no", PACE, NOW, 1.0) is anew

    def test_an_answer_to_no_claim_counts_for_nothing(self) -> None:
        target = dirty()
        assert debounce.accepted(target, "c1", "n1", NOW) is target
        assert debounce.failed(target, "c1", "E", "no", PACE, NOW, 1.0) is target

    def test_success_ends_a_row_of_failures(self) -> None:
        failing = msgspec.structs.replace(CLAIMED, failure=Failure(3, "E", "no", NOW - 1))
        assert debounce.accepted(failing, "c1", "n1", NOW).failure is None


class TestEnds:
    def test_completed(self) -> None:
        after = debounce.completed(FLYING, "n1", NOW)
        assert (after.in_flight, after.last.completed_at, after.last.result) == (None, NOW, "Succeeded")

    def test_another_refresh_completed(self) -> None:
        assert debounce.completed(FLYING, "n2", NOW) is FLYING

    def test_untracked_it_is_assumed_after_a_while(self) -> None:
        assert debounce.overdue(FLYING, PACE, NOW + 29) is FLYING
        after = debounce.overdue(FLYING, PACE, NOW + 30)
        assert (after.in_flight, after.dirty, after.last.result) == (None, None, "Assumed")

    def test_a_lost_completion_refreshes_again_once_and_is_then_given_up(self) -> None:
        pace = Pace(tracked=True, completion_timeout=100)
        again = debounce.overdue(FLYING, pace, NOW + 70)
        assert (again.in_flight, again.dirty) == (None, Dirty(NOW + 70, A))
        claimed = debounce.claim(again, "c2", "me", pace, NOW + 80)
        flying = debounce.accepted(claimed, "c2", "n2", NOW + 81)
        given_up = debounce.overdue(flying, pace, NOW + 181)
        assert (given_up.in_flight, given_up.dirty, given_up.last.result) == (None, None, "Lost")

    def test_what_waits_behind_a_refresh_waits_for_minutes_and_no_longer(self) -> None:
        pace = Pace(tracked=True, assume_after=900)
        waits = debounce.mark(FLYING, B, NOW)
        accepted = NOW - 30
        assert debounce.completion_due(FLYING, pace, NOW) == accepted + 6 * 3600, "nothing waits"
        assert debounce.completion_due(waits, pace, NOW) == accepted + 900
        assert debounce.overdue(waits, pace, accepted + 899) is waits
        freed = debounce.overdue(waits, pace, accepted + 900)
        assert (freed.in_flight, freed.last.result) == (None, "Lost")
        assert freed.dirty == Dirty(NOW, Scope(folders=frozenset({"/", "a", "b"}))), "its own folders, too"
        claimed = debounce.claim(freed, "c2", "me", pace, NOW + 900)
        flying = debounce.mark(debounce.accepted(claimed, "c2", "n2", NOW + 901), B, NOW + 902)
        given_up = debounce.overdue(flying, pace, NOW + 901 + 900)
        assert (given_up.in_flight, given_up.dirty) == (None, Dirty(NOW + 902, B)), "not again and again"

    def test_the_wait_behind_a_refresh_is_no_shorter_than_min_interval_and_no_longer_than_the_timeout(
        self,
    ) -> None:
        waits = debounce.mark(FLYING, B, NOW)
        short = Pace(tracked=True, assume_after=0, completion_timeout=100)
        assert debounce.completion_due(waits, short, NOW) == NOW - 30 + 60
        long = Pace(tracked=True, assume_after=900, completion_timeout=100)
        assert debounce.completion_due(waits, long, NOW) == NOW - 30 + 100
        assert debounce.completion_due(waits, Pace(assume_after=10), NOW) == NOW - 30 + 10, "not told"

    def test_or_is_assumed_if_asked(self) -> None:
        pace = Pace(tracked=True, completion_timeout=100, on_timeout="Assume")
        after = debounce.overdue(FLYING, pace, NOW + 70)
        assert (after.dirty, after.last.result) == (None, "Assumed")


@pytest.mark.parametrize(
    ("target", "last_event", "dirty_for", "called_for", "start"),
    [
        pytest.param(dirty(), NOW, 10, 0, NOW + 30, id="quiet for a while"),
        pytest.param(dirty(since=NOW - 590), NOW, 590, 0, NOW + 10, id="maxDelay, under a steady stream"),
        pytest.param(
            dirty(since=NOW + 9_000), NOW, 590, 0, NOW + 10, id="maxDelay, when the clock was set back"
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), last=Last(NOW - 20, NOW - 19)),
            NOW - 40,
            10,
            19,
            NOW + 41,
            id="minInterval",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), last=Last(NOW - 70, NOW - 70)),
            NOW - 40,
            10,
            5,
            NOW + 55,
            id="minInterval on this clock, when another's may differ",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), last=Last(NOW - 3_600, NOW - 3_599)),
            NOW - 40,
            10,
            0,
            NOW - 10,
            id="long ago",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), failure=Failure(2, "E", "no", NOW + 50)),
            NOW - 40,
            10,
            0,
            NOW + 50,
            id="backoff",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), failure=Failure(2, "E", "no", NOW + 10**6)),
            NOW - 40,
            10,
            0,
            NOW + 900,
            id="backoff, when the clock was set back",
        ),
    ],
)
def test_when_a_call_may_start(
    target: Target, last_event: float, dirty_for: float, called_for: float, start: float
) -> None:
    assert debounce.start_at(target, PACE, last_event, dirty_for, called_for, NOW) == start


def test_a_clean_target_never_starts() -> None:
    assert debounce.start_at(Target("t"), PACE, NOW, 0, 0, NOW) is None


@pytest.mark.parametrize(
    "target",
    [
        Target("t"),
        dirty(),
        dirty(EVERYTHING),
        dirty(Scope(trees=frozenset({"a/b"}))),
        CLAIMED,
        debounce.resume(CLAIMED, "you"),
        FLYING,
        debounce.broken(FLYING, "n1", "E", "no", PACE, NOW, 1.0),
        msgspec.structs.replace(dirty(), failure=Failure(2, "E", "no", NOW + 0.25)),
        debounce.completed(FLYING, "n1", NOW),
        debounce.located(FLYING, "bucket/team/", NOW),
    ],
    ids=[
        "clean",
        "dirty",
        "all",
        "trees",
        "claimed",
        "resumed",
        "in flight",
        "broken",
        "failed",
        "done",
        "located",
    ],
)
def test_what_is_recorded_reads_as_it_was(target: Target) -> None:
    written = msgspec.json.encode(record.write(target, "Clean"))
    assert record.read(msgspec.json.decode(written, type=type(record.write(target, "Clean"))), NOW) == target
