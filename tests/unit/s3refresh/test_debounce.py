"""The steps of one target, each rule that closes an interleaving, and when a call may start."""

from typing import Any

import msgspec
import pytest

from caretaker.api.s3refresh import (
    ClaimStatus,
    FailureStatus,
    InFlightStatus,
    LastStatus,
    LaterStatus,
    ScopeStatus,
    TargetStatus,
)
from caretaker.s3refresh import debounce, match, plan, record_bounds, resource, timing
from caretaker.s3refresh.debounce import (
    Backoff,
    CallError,
    Claim,
    DirtyScope,
    Failure,
    InFlight,
    LastCall,
    NewCall,
    TargetState,
)
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import UNCONTENDED, Contention, DebounceOptions, allowance, at_once
from caretaker.s3refresh.timing import TargetTimes

NOW = 1_800_000_000.0
OPTIONS = DebounceOptions()
A = Scope(folders=frozenset({"/", "a"}))
B = Scope(folders=frozenset({"/", "b"}))
CALL = Request(("a", "/"), recursive=False)
CLAIM = Claim("c1", "me", NOW - 5, CALL, NOW - 40)
CLAIMED = TargetState("t", claim=CLAIM, last=LastCall(requested_at=NOW - 5))
IN_FLIGHT = TargetState("t", in_flight=InFlight("n1", NOW - 30, CALL), last=LastCall(NOW - 31, NOW - 30))


def dirty(scope: Scope = A, since: float = NOW - 10) -> TargetState:
    return TargetState("t", dirty=DirtyScope(since, scope))


def times(last_event: float, dirty_for: float, called_for: float) -> TargetTimes:
    """The last event at this time of the wall clock."""
    return TargetTimes(NOW - last_event, dirty_for, called_for=called_for)


class TestMark:
    def test_an_event_dirties_a_clean_target(self) -> None:
        assert debounce.mark(TargetState("t"), A, NOW).dirty == DirtyScope(NOW, A)

    def test_what_waits_already_is_not_written_again(self) -> None:
        before = dirty()
        assert debounce.mark(before, A, NOW) is before

    def test_the_first_event_is_what_counts(self) -> None:
        after = debounce.mark(dirty(), B, NOW)
        assert after.dirty == DirtyScope(NOW - 10, Scope(folders=frozenset({"/", "a", "b"})))

    def test_a_since_in_the_future_is_now(self) -> None:
        after = debounce.mark(dirty(since=NOW + 9_000), B, NOW)
        assert after.dirty is not None
        assert after.dirty.since == NOW

    def test_what_comes_after_it_was_closed_waits_behind_it(self) -> None:
        closed = TargetState("t", dirty=DirtyScope(NOW - 10, A, closed=True, most=3))
        after = debounce.mark(closed, B, NOW)
        only_b = Scope(folders=frozenset({"b"}))
        assert after.dirty == DirtyScope(NOW - 10, A, closed=True, most=3, later=DirtyScope(NOW, only_b))
        assert debounce.mark(after, B, NOW + 1) is after
        both = Scope(folders=frozenset({"b", "c"}))
        again = debounce.mark(after, Scope(folders=frozenset({"c"})), NOW + 2).dirty
        assert again == DirtyScope(NOW - 10, A, closed=True, most=3, later=DirtyScope(NOW, both))

    def test_everything_leaves_nothing_for_later(self) -> None:
        closed = TargetState("t", dirty=DirtyScope(NOW - 10, A, closed=True, later=DirtyScope(NOW - 5, B)))
        assert debounce.mark(closed, EVERYTHING, NOW).dirty == DirtyScope(NOW - 10, EVERYTHING)

    @pytest.mark.parametrize("busy", [CLAIMED, IN_FLIGHT], ids=["claimed", "in flight"])
    def test_a_call_under_way_covers_no_event(self, busy: TargetState) -> None:
        """It may have listed that folder already."""
        assert debounce.mark(busy, A, NOW).dirty == DirtyScope(NOW, A)


class TestClaim:
    def test_the_record_is_the_call(self) -> None:
        after = debounce.claim(dirty(), NewCall("c1", "me"), OPTIONS, NOW)
        assert after.claim == Claim("c1", "me", NOW, CALL, NOW - 10)
        assert (after.dirty, after.last.requested_at) == (None, NOW)

    def test_what_does_not_fit_waits_on(self) -> None:
        after = debounce.claim(dirty(), NewCall("c1", "me"), DebounceOptions(max_folders=1), NOW)
        assert after.claim is not None
        assert after.claim.request.folders == ("a",)
        assert after.dirty == DirtyScope(NOW - 10, Scope(folders=frozenset({"/"})), closed=True)

    def test_the_next_call_is_of_what_was_left_and_then_of_what_came_later(self) -> None:
        options = DebounceOptions(max_folders=1)
        first = debounce.claim(dirty(), NewCall("c1", "me"), options, NOW)
        later = debounce.mark(first, Scope(folders=frozenset({"/", "z"})), NOW + 5)
        idle = debounce.accepted(later, "c1", "", NOW + 6)
        second = debounce.claim(idle, NewCall("c2", "me"), options, NOW + 60)
        assert second.claim is not None
        assert (second.claim.request.folders, second.claim.since) == (("/",), NOW - 10)
        assert second.dirty == DirtyScope(NOW + 5, Scope(folders=frozenset({"z"})))

    @pytest.mark.parametrize("busy", [CLAIMED, IN_FLIGHT], ids=["claimed", "in flight"])
    def test_one_call_at_a_time(self, busy: TargetState) -> None:
        before = debounce.mark(busy, B, NOW)
        assert debounce.claim(before, NewCall("c2", "me"), OPTIONS, NOW) is before


MANY = Scope(folders=frozenset({"/", "d", *(f"d/{n:03}" for n in range(180))}))
CALLED = LastCall(NOW - 121, NOW - 120, NOW - 60)


@pytest.mark.parametrize(
    ("age", "took", "whole", "contention", "expected"),
    [
        pytest.param(0, 0, 0, UNCONTENDED, (4, 1), id="there is time for all that are preferred"),
        pytest.param(0, 200, 300, UNCONTENDED, (4, 2), id="each takes 200 s"),
        pytest.param(0, 250, 1500, UNCONTENDED, (3, 6), id="slow ones"),
        pytest.param(600, 10, 100, UNCONTENDED, (2, 3), id="old ones"),
        pytest.param(610, 10, 100, UNCONTENDED, (2, 3), id="the last call begins in time for the oldest"),
        pytest.param(611, 10, 100, UNCONTENDED, (1, 3), id="and the one after it does not"),
        pytest.param(670, 10, 100, UNCONTENDED, (1, 3), id="just in time"),
        pytest.param(671, 10, 100, UNCONTENDED, (2, 3), id="too late: the time again"),
        pytest.param(0, 100, 900, Contention(waited=300.0), (1, 3), id="waited for its turn"),
        pytest.param(0, 100, 900, Contention(others=1.0), (2, 4), id="another's turn, and one more"),
        pytest.param(0, 100, 900, Contention(waited=150.0, others=1.0), (2, 4), id="the longer of both"),
    ],
)
def test_how_many_calls_leave_time_for_the_next(
    age: float, took: float, whole: float, contention: Contention, expected: tuple[int, int]
) -> None:
    assert allowance(age, (took, whole), DebounceOptions(), contention) == expected


def test_where_nothing_keeps_calls_apart_a_second_does() -> None:
    assert allowance(0.0, (0.0, 5.0), DebounceOptions(min_interval=0.0), UNCONTENDED) == (4, 6)


def test_what_is_left_of_a_since_in_the_future_is_dirty_since_now() -> None:
    left = debounce.claim(dirty(MANY, NOW + 50), NewCall("c", "me"), OPTIONS, NOW).dirty
    assert left is not None
    assert (left.since, left.closed) == (NOW, True)


@pytest.mark.parametrize(
    ("target", "options", "contention", "calls"),
    [
        pytest.param(
            dirty(MANY), OPTIONS, UNCONTENDED, [False] * 4, id="as single folders, while there is time"
        ),
        pytest.param(
            dirty(MANY, NOW - 540),
            OPTIONS,
            UNCONTENDED,
            [False] * 4,
            id="the last of four begins after 720 s",
        ),
        pytest.param(
            dirty(MANY, NOW - 600), OPTIONS, UNCONTENDED, [True, False], id="as trees when there is less"
        ),
        pytest.param(dirty(MANY, NOW - 661), OPTIONS, UNCONTENDED, [True], id="at once when there is none"),
        pytest.param(
            dirty(MANY, NOW - 9_000), OPTIONS, UNCONTENDED, [True, False], id="which is no help if it is late"
        ),
        pytest.param(
            msgspec.structs.replace(dirty(MANY, NOW - 661), failure=Failure(9, "E", "no", NOW)),
            OPTIONS,
            UNCONTENDED,
            [True, False],
            id="what failed for long has time again",
        ),
        pytest.param(
            dirty(MANY), OPTIONS, Contention(waited=400.0), [True], id="of a target that waits for its turns"
        ),
        pytest.param(dirty(MANY), OPTIONS, Contention(others=6.0), [True], id="or is going to"),
        pytest.param(
            msgspec.structs.replace(dirty(MANY), last=msgspec.structs.replace(CALLED, full_seconds=900.0)),
            OPTIONS,
            Contention(others=6.0),
            [True, False],
            id="unless everything takes longer than another call",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(MANY), last=msgspec.structs.replace(CALLED, full_seconds=400.0)),
            OPTIONS,
            Contention(others=6.0),
            [True],
            id="or not so long",
        ),
        pytest.param(
            dirty(MANY),
            DebounceOptions(tracked=True),
            Contention(others=6.0),
            [True, False],
            id="or perhaps, if nobody knows",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(MANY), last=LastCall(NOW - 700, NOW - 700, NOW - 100, 0, 600.0)),
            DebounceOptions(tracked=True),
            UNCONTENDED,
            [True, False],
            id="a slow refresh has the more time",
        ),
        pytest.param(
            dirty(MANY),
            DebounceOptions(quiet_period=30, max_delay=30, tracked=True),
            UNCONTENDED,
            [True, False],
            id="maxDelay below minInterval leaves time for two",
        ),
    ],
)
def test_in_how_many_calls_what_waits_is_refreshed(
    target: TargetState, options: DebounceOptions, contention: Contention, calls: list[bool]
) -> None:
    made = []
    while target.dirty is not None:
        target = debounce.claim(target, NewCall("c", "me"), options, NOW, contention)
        assert target.claim is not None
        made.append(target.claim.request.recursive)
        target = msgspec.structs.replace(target, claim=None)
    assert made == calls


def test_what_waits_behind_takes_room_on_record_too() -> None:
    behind = TargetState("t", dirty=DirtyScope(NOW, A, closed=True, later=DirtyScope(NOW, B)))
    assert record_bounds.size(behind) == record_bounds.size(dirty(A)) + record_bounds.size(dirty(B))
    assert record_bounds.widened(behind).dirty == DirtyScope(NOW, EVERYTHING)


class TestRefused:
    """A call that was refused, perhaps because of one of its folders."""

    NAMES = tuple("abcdefgh")

    def refused(self, target: TargetState, at: float = NOW, retry_after: float = 0.0) -> TargetState:
        claim = target.claim
        assert claim is not None
        return plan.refused(target, claim.id, CallError("Bad", "no", retry_after), Backoff(OPTIONS, at, 1.0))

    def claimed(self, *names: str, **more: Any) -> TargetState:
        call = Request(names, recursive=False)
        return msgspec.structs.replace(CLAIMED, claim=msgspec.structs.replace(CLAIM, request=call), **more)

    def test_once_it_is_made_again(self) -> None:
        after = self.refused(self.claimed(*self.NAMES))
        assert after.dirty == DirtyScope(NOW - 40, Scope(folders=frozenset(self.NAMES)))

    def test_once_it_is_not_apart_from_what_came_meanwhile(self) -> None:
        after = self.refused(self.claimed("a", "c", dirty=DirtyScope(NOW - 3, B)))
        assert after.dirty == DirtyScope(NOW - 40, Scope(folders=frozenset({"/", "a", "b", "c"})))

    @pytest.mark.parametrize("failure", [None, Failure(1, "Bad", "no", NOW - 5)])
    def test_it_is_never_made_before_the_service_says(self, failure: Failure | None) -> None:
        after = self.refused(self.claimed(*self.NAMES, failure=failure), retry_after=300.0)
        assert after.failure is not None
        assert after.failure.next_attempt_at == NOW + 300

    def test_an_answer_to_another_call_changes_nothing(self) -> None:
        failure = Failure(1, "Bad", "no", NOW - 5)
        for target in (TargetState("t", failure=failure), self.claimed(*self.NAMES, failure=failure)):
            after = plan.refused(target, "c0", CallError("Bad", "no", 0.0), Backoff(OPTIONS, NOW, 1.0))
            assert after is target

    def test_the_first_event_of_both_counts(self) -> None:
        left = DirtyScope(NOW - 90, A, closed=True, most=2)
        after = self.refused(self.claimed("c", "d", dirty=left)).dirty
        assert after is not None
        assert after.since == NOW - 90
        ahead = self.claimed("c", "d", dirty=msgspec.structs.replace(left, since=NOW + 50))
        assert ahead.claim is not None
        claim = msgspec.structs.replace(ahead.claim, since=NOW + 60)
        after = self.refused(msgspec.structs.replace(ahead, claim=claim)).dirty
        assert after is not None
        assert after.since == NOW, "a since in the future is now"

    def test_twice_it_is_made_with_half_as_many(self) -> None:
        failure = Failure(1, "Bad", "no", NOW - 5)
        after = self.refused(self.claimed(*self.NAMES, failure=failure, dirty=DirtyScope(NOW - 3, B)))
        scope = Scope(folders=frozenset(self.NAMES))
        assert after.dirty == DirtyScope(NOW - 40, scope, closed=True, later=DirtyScope(NOW - 3, B), most=4)
        assert after.failure == Failure(2, "Bad", "no", NOW + OPTIONS.min_interval)

    def test_which_needs_no_backoff(self) -> None:
        after = self.refused(self.claimed(*self.NAMES, failure=Failure(4, "Bad", "no", NOW - 5)))
        assert after.failure == Failure(5, "Bad", "no", NOW + OPTIONS.min_interval)

    def test_another_failure_in_between_counts(self) -> None:
        failure = Failure(1, "Busy", "no", NOW - 5)
        after = self.refused(self.claimed(*self.NAMES, failure=failure)).dirty
        assert after == DirtyScope(NOW - 40, Scope(folders=frozenset(self.NAMES)))

    def test_what_is_accepted_meanwhile_does_not_begin_anew(self) -> None:
        left = DirtyScope(NOW - 40, A, closed=True, later=DirtyScope(NOW - 3, B), most=2)
        after = self.refused(self.claimed("c", "d", dirty=left)).dirty
        both = Scope(folders=frozenset({"/", "a", "c", "d"}))
        assert after == DirtyScope(NOW - 40, both, closed=True, later=DirtyScope(NOW - 3, B), most=1)

    def test_one_alone_gives_way_to_the_tree_above_it_and_the_others_go_on_together(self) -> None:
        left = DirtyScope(NOW - 40, A, closed=True, most=1)
        after = self.refused(self.claimed("x/y/z", dirty=left)).dirty
        wider = Scope(folders=A.folders, trees=frozenset({"x/y"}))
        assert after == DirtyScope(NOW - 40, wider, closed=True)

    def test_at_the_top_that_is_everything_which_no_folder_can_spoil(self) -> None:
        left = DirtyScope(NOW - 40, A, closed=True, later=DirtyScope(NOW - 3, B), most=1)
        after = self.refused(self.claimed("x", dirty=left))
        assert after.dirty == DirtyScope(NOW - 40, EVERYTHING)
        whole = debounce.claim(after, NewCall("c2", "me"), OPTIONS, NOW)
        again = self.refused(whole, NOW)
        assert again.dirty == DirtyScope(NOW - 40, EVERYTHING)
        assert again.failure == Failure(2, "Bad", "no", NOW + 60)

    def test_all_others_are_refreshed_in_a_few_calls(self) -> None:
        bad, good = "d/1/gone", {f"d/{n}" for n in range(47)}
        target = TargetState("t", dirty=DirtyScope(NOW - 40, Scope(folders=frozenset({"/", bad, *good}))))
        refreshed: set[str] = set()
        calls = 0
        while target.dirty is not None:
            calls += 1
            target = debounce.claim(target, NewCall(f"c{calls}", "me"), OPTIONS, NOW)
            assert target.claim is not None
            request = target.claim.request
            if bad in request.folders:
                target = self.refused(target)
            else:
                refreshed |= {*request.folders}
                target = debounce.accepted(target, target.claim.id, "", NOW)
        assert refreshed == {"/", *good}
        assert calls <= 16


class TestAnswers:
    def test_accepted(self) -> None:
        after = debounce.accepted(CLAIMED, "c1", "n1", NOW)
        assert (after.claim, after.in_flight) == (None, InFlight("n1", NOW, CALL))
        assert after.last == LastCall(requested_at=NOW - 5, accepted_at=NOW, folders=2)

    def test_accepted_without_an_id_it_is_in_flight_all_the_same(self) -> None:
        after = debounce.accepted(CLAIMED, "c1", None, NOW)
        assert (after.claim, after.in_flight) == (None, InFlight("", NOW, CALL))

    def test_accepted_and_done_at_once(self) -> None:
        after = debounce.accepted(CLAIMED, "c1", "", NOW)
        assert (after.in_flight, after.last.result) == (None, "Succeeded")

    def test_failed_waits_again_as_old_as_it_was(self) -> None:
        after = debounce.failed(
            debounce.mark(CLAIMED, B, NOW - 1), "c1", CallError("E", "no"), Backoff(OPTIONS, NOW, 1.0)
        )
        assert after.dirty == DirtyScope(NOW - 40, Scope(folders=frozenset({"/", "a", "b"})))
        assert after.failure == Failure(1, "E", "no", NOW + 60)
        assert after.claim is None

    def test_failed_waits_with_what_was_closed(self) -> None:
        left = DirtyScope(NOW - 9, B, closed=True, later=DirtyScope(NOW - 1, A), most=3)
        after = debounce.failed(
            msgspec.structs.replace(CLAIMED, dirty=left),
            "c1",
            CallError("E", "no"),
            Backoff(OPTIONS, NOW, 1.0),
        )
        both = Scope(folders=frozenset({"/", "a", "b"}))
        assert after.dirty == DirtyScope(NOW - 40, both, closed=True, later=DirtyScope(NOW - 1, A), most=3)

    def test_no_more_is_waited_for_than_the_spec_and_the_service_ask_for(self) -> None:
        options = DebounceOptions(retry_initial=0.0, min_interval=0.0)
        for after in (
            debounce.failed(CLAIMED, "c1", CallError("E", "no"), Backoff(options, NOW, 1.0)),
            debounce.broken(IN_FLIGHT, "n1", CallError("E", "no"), Backoff(options, NOW, 1.0)),
        ):
            assert after.failure == Failure(1, "E", "no", NOW)

    def test_backoff_doubles_to_its_end(self) -> None:
        waits = []
        target = CLAIMED
        for _ in range(8):
            target = debounce.failed(target, "c1", CallError("E", "no"), Backoff(OPTIONS, NOW, 1.0))
            assert target.failure is not None
            waits.append(target.failure.next_attempt_at - NOW)
            target = msgspec.structs.replace(target, claim=CLAIM)
        assert waits == [60, 60, 120, 240, 480, 900, 900, 900]

    def test_an_unknown_outcome_waits_until_it_can_no_longer_be_accepted(self) -> None:
        after = debounce.failed(CLAIMED, "c1", CallError(debounce.UNKNOWN, "?"), Backoff(OPTIONS, NOW, 0.0))
        assert after.failure is not None
        assert after.failure.next_attempt_at == NOW + OPTIONS.min_interval + debounce.CALL_SECONDS

    def test_an_answer_to_a_claim_that_was_merged_back_and_made_anew_counts_for_nothing(self) -> None:
        anew = msgspec.structs.replace(CLAIMED, claim=msgspec.structs.replace(CLAIM, id="c2"))
        assert debounce.accepted(anew, "c1", "n1", NOW) is anew
        assert debounce.failed(anew, "c1", CallError("E", "no"), Backoff(OPTIONS, NOW, 1.0)) is anew

    def test_an_answer_to_no_claim_counts_for_nothing(self) -> None:
        target = dirty()
        assert debounce.accepted(target, "c1", "n1", NOW) is target
        assert debounce.failed(target, "c1", CallError("E", "no"), Backoff(OPTIONS, NOW, 1.0)) is target

    def test_success_ends_a_row_of_failures(self) -> None:
        failing = msgspec.structs.replace(CLAIMED, failure=Failure(3, "E", "no", NOW - 1))
        assert debounce.accepted(failing, "c1", "n1", NOW).failure is None


class TestEnds:
    def test_completed(self) -> None:
        after = debounce.completed(IN_FLIGHT, "n1", NOW)
        assert (after.in_flight, after.last.completed_at, after.last.result) == (None, NOW, "Succeeded")

    def test_another_refresh_completed(self) -> None:
        assert debounce.completed(IN_FLIGHT, "n2", NOW) is IN_FLIGHT

    def test_untracked_it_is_assumed_after_a_while(self) -> None:
        assert debounce.overdue(IN_FLIGHT, OPTIONS, NOW + 29) is IN_FLIGHT
        after = debounce.overdue(IN_FLIGHT, OPTIONS, NOW + 30)
        assert (after.in_flight, after.dirty, after.last.result) == (None, None, "Assumed")

    def test_how_long_everything_took_is_assumed_as_well(self) -> None:
        whole = Request(("/",), recursive=True)
        in_flight = msgspec.structs.replace(IN_FLIGHT, in_flight=InFlight("n1", NOW - 30, whole))
        after = debounce.overdue(in_flight, OPTIONS, NOW + 30).last
        assert (after.completed_at, after.full_seconds, after.result) == (NOW + 30, 60.0, "Assumed")

    def test_a_lost_completion_refreshes_again_once_and_is_then_given_up(self) -> None:
        options = DebounceOptions(tracked=True, completion_timeout=100)
        again = debounce.overdue(IN_FLIGHT, options, NOW + 70)
        assert (again.in_flight, again.dirty) == (None, DirtyScope(NOW + 70, A))
        claimed = debounce.claim(again, NewCall("c2", "me"), options, NOW + 80)
        in_flight = debounce.accepted(claimed, "c2", "n2", NOW + 81)
        given_up = debounce.overdue(in_flight, options, NOW + 181)
        assert (given_up.in_flight, given_up.dirty, given_up.last.result) == (None, None, "Lost")

    def test_what_waits_behind_a_refresh_waits_for_minutes_and_no_longer(self) -> None:
        options = DebounceOptions(tracked=True, assume_after=900)
        waits = debounce.mark(IN_FLIGHT, B, NOW)
        accepted = NOW - 30
        assert debounce.completion_due(IN_FLIGHT, options, NOW) == accepted + 6 * 3600, "nothing waits"
        assert debounce.completion_due(waits, options, NOW) == accepted + 900
        assert debounce.overdue(waits, options, accepted + 899) is waits
        freed = debounce.overdue(waits, options, accepted + 900)
        assert (freed.in_flight, freed.last.result) == (None, "Lost")
        assert freed.dirty == DirtyScope(NOW, Scope(folders=frozenset({"/", "a", "b"}))), (
            "its own folders, too"
        )
        claimed = debounce.claim(freed, NewCall("c2", "me"), options, NOW + 900)
        in_flight = debounce.mark(debounce.accepted(claimed, "c2", "n2", NOW + 901), B, NOW + 902)
        given_up = debounce.overdue(in_flight, options, NOW + 901 + 900)
        assert (given_up.in_flight, given_up.dirty) == (None, DirtyScope(NOW + 902, B)), "not again and again"

    def test_the_wait_behind_a_refresh_is_no_shorter_than_min_interval_and_no_longer_than_the_timeout(
        self,
    ) -> None:
        waits = debounce.mark(IN_FLIGHT, B, NOW)
        short = DebounceOptions(tracked=True, assume_after=0, completion_timeout=100)
        assert debounce.completion_due(waits, short, NOW) == NOW - 30 + 60
        long = DebounceOptions(tracked=True, assume_after=900, completion_timeout=100)
        assert debounce.completion_due(waits, long, NOW) == NOW - 30 + 100
        assert debounce.completion_due(waits, DebounceOptions(assume_after=10), NOW) == NOW - 30 + 10, (
            "not reported"
        )

    def test_or_is_assumed_if_asked(self) -> None:
        options = DebounceOptions(tracked=True, completion_timeout=100, on_timeout="Assume")
        after = debounce.overdue(IN_FLIGHT, options, NOW + 70)
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
            msgspec.structs.replace(dirty(), last=LastCall(NOW - 20, NOW - 19)),
            NOW - 40,
            10,
            19,
            NOW + 41,
            id="minInterval",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), last=LastCall(NOW - 70, NOW - 70)),
            NOW - 40,
            10,
            5,
            NOW + 55,
            id="minInterval on this clock, when another's may differ",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), last=LastCall(NOW - 3_600, NOW - 3_599)),
            NOW - 40,
            10,
            0,
            NOW - 10,
            id="long ago",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(), last=LastCall(NOW - 360)),
            NOW - 40,
            10,
            0,
            NOW - 10,
            id="just so long ago",
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
    target: TargetState, last_event: float, dirty_for: float, called_for: float, start: float
) -> None:
    assert timing.start_at(target, OPTIONS, times(last_event, dirty_for, called_for), NOW) == start


def test_what_was_closed_goes_on_without_a_quiet_period() -> None:
    closed = TargetState("t", dirty=DirtyScope(NOW - 40, A, closed=True), last=LastCall(NOW - 30, NOW - 29))
    assert timing.start_at(closed, OPTIONS, times(NOW + 10_000, 40, 29), NOW) == NOW + 31


@pytest.mark.parametrize(
    ("others", "start"), [(0, NOW + 590), (2, NOW + 470), (9.5, NOW + 20), (20, NOW + 20)]
)
def test_the_turns_of_others_have_to_fit_into_max_delay(others: float, start: float) -> None:
    assert timing.start_at(dirty(), OPTIONS, times(NOW + 10_000, 10, 0), NOW, others) == start
    assert (
        timing.start_at(dirty(), DebounceOptions(tracked=True), times(NOW + 10_000, 10, 0), NOW, others)
        == start
    )


def test_no_backoff_is_longer_than_retry_max_or_what_a_late_call_needs() -> None:
    failing = msgspec.structs.replace(dirty(), failure=Failure(2, "E", "no", NOW + 10**6))
    assert (
        timing.start_at(failing, DebounceOptions(min_interval=900.0), times(NOW - 40, 10, 0), NOW)
        == NOW + 910
    )


@pytest.mark.parametrize(
    ("busy", "stale"),
    [({}, True), ({"claim": CLAIM}, False), ({"in_flight": IN_FLIGHT.in_flight}, False)],
    ids=["idle", "claimed", "in flight"],
)
def test_everything_is_refreshed_again_once_nothing_is_under_way(busy: dict[str, Any], stale: bool) -> None:
    target = TargetState("t", last=LastCall(full_at=NOW - 3600), **busy)
    after = timing.resynced(target, DebounceOptions(resync=3600.0), NOW)
    assert after.dirty == (DirtyScope(NOW, EVERYTHING) if stale else None)


@pytest.mark.parametrize(
    ("target", "since"),
    [
        pytest.param(dirty(since=NOW - 90), NOW - 90, id="since it is dirty"),
        pytest.param(
            msgspec.structs.replace(dirty(since=NOW - 90), last=LastCall(NOW - 60)),
            NOW - 60,
            id="since its last turn",
        ),
        pytest.param(
            msgspec.structs.replace(dirty(since=NOW - 90), last=LastCall(NOW - 99)),
            NOW - 90,
            id="whichever is later",
        ),
        pytest.param(dirty(since=NOW + 90), NOW, id="since now at the latest"),
        pytest.param(TargetState("t"), NOW, id="clean: since now"),
    ],
)
def test_since_when_it_stands_in_line(target: TargetState, since: float) -> None:
    assert timing.in_line_since(target, NOW) == since


@pytest.mark.parametrize(("took", "known"), [(30.2, 30.0), (0.1, 1.0)])
def test_how_long_everything_takes_is_remembered(took: float, known: float) -> None:
    whole = Request(("/",), recursive=True)
    in_flight = TargetState(
        "t", in_flight=InFlight("n1", NOW - took, whole), last=LastCall(NOW - took, NOW - took)
    )
    after = debounce.completed(in_flight, "n1", NOW)
    assert after.last.full_seconds == known
    some = msgspec.structs.replace(after, in_flight=InFlight("n2", NOW, CALL))
    assert debounce.completed(some, "n2", NOW + 99).last.full_seconds == known
    at_once = msgspec.structs.replace(CLAIMED, claim=msgspec.structs.replace(CLAIM, request=whole))
    assert debounce.accepted(at_once, "c1", "", NOW).last.full_seconds == 1.0


@pytest.mark.parametrize(
    ("last", "options", "expected"),
    [
        (LastCall(), OPTIONS, (60.0, 60.0)),
        (LastCall(), DebounceOptions(tracked=True, assume_after=7.0), (60.0, 900.0)),
        (LastCall(0.0, NOW, NOW), OPTIONS, (0.0, 60.0)),
        (LastCall(0.0, NOW, NOW + 5, full_seconds=80.0), OPTIONS, (5.0, 80.0)),
        (LastCall(0.0, NOW, NOW - 5), OPTIONS, (60.0, 60.0)),
        (LastCall(0.0, 0.0, NOW), OPTIONS, (60.0, 60.0)),
    ],
)
def test_how_long_refreshes_take(
    last: LastCall, options: DebounceOptions, expected: tuple[float, float]
) -> None:
    assert debounce.durations(last, options) == expected


@pytest.mark.parametrize(
    ("target", "start", "phase"),
    [
        (TargetState("t"), None, "Clean"),
        (dirty(), None, "Debouncing"),
        (dirty(), NOW + 1, "Debouncing"),
        (dirty(), NOW, "Due"),
        (CLAIMED, NOW, "Claimed"),
        (IN_FLIGHT, None, "InFlight"),
        (msgspec.structs.replace(IN_FLIGHT, dirty=DirtyScope(NOW, A)), NOW, "InFlight"),
        (msgspec.structs.replace(dirty(), failure=Failure(1, "E", "no", NOW)), NOW, "Backoff"),
    ],
)
def test_the_phase_of_a_target(target: TargetState, start: float | None, phase: str) -> None:
    assert timing.phase_of(target, start, NOW) == phase


def test_who_wants_a_turn() -> None:
    shares = {
        name: Share(name, f"arn:{name}", "b", group=group, ready=ready)
        for name, group, ready in (("a", "g", True), ("b", "g", True), ("c", "h", True), ("d", "h", False))
    }
    some = DirtyScope(NOW, A)
    targets = [*(TargetState(name, dirty=some) for name in "abcde"), TargetState("f")]
    assert timing.wanting_of(targets, shares) == {"g": 2, "h": 1}
    assert timing.wanting_of([TargetState("a"), TargetState("b", dirty=some)], shares) == {"g": 1}
    assert timing.others(targets, shares.values(), {"g": 3}, 2) == {"a": 2.0, "b": 2.0, "c": 0.0}
    assert timing.others(targets, shares.values(), {}, 0) == {"a": 1.0, "b": 1.0, "c": 0.0}


def test_a_resource_on_its_way_out_waits_for_nothing_more() -> None:
    going = at_once(OPTIONS)
    assert going == msgspec.structs.replace(OPTIONS, quiet_period=0.0, max_delay=0.0)
    assert timing.start_at(dirty(since=NOW), going, times(NOW, 0, 0), NOW) == NOW


def test_a_clean_target_never_starts() -> None:
    assert timing.start_at(TargetState("t"), OPTIONS, times(NOW, 0, 0), NOW) is None


@pytest.mark.parametrize(
    "target",
    [
        TargetState("t"),
        dirty(),
        dirty(EVERYTHING),
        dirty(Scope(trees=frozenset({"a/b"}))),
        TargetState(
            "t", dirty=DirtyScope(NOW - 9, A, closed=True, later=DirtyScope(NOW - 1, EVERYTHING), most=25)
        ),
        TargetState("t", dirty=DirtyScope(NOW - 9, A, closed=True, later=DirtyScope(NOW - 1, B))),
        TargetState("t", last=LastCall(NOW - 9, NOW - 8, NOW - 1, NOW - 8, 7.0)),
        TargetState("t", last=LastCall(full_at=NOW - 8, folders=3)),
        TargetState("t", claim=Claim("c1", "me", NOW, Request(("a",), recursive=True), NOW)),
        CLAIMED,
        debounce.resume(CLAIMED, "you"),
        IN_FLIGHT,
        debounce.broken(IN_FLIGHT, "n1", CallError("E", "no"), Backoff(OPTIONS, NOW, 1.0)),
        msgspec.structs.replace(dirty(), failure=Failure(2, "E", "no", NOW + 0.25)),
        debounce.completed(IN_FLIGHT, "n1", NOW),
        match.located(IN_FLIGHT, "bucket/team/", NOW),
    ],
    ids=[
        *(
            "clean",
            "dirty",
            "all",
            "trees",
            "closed",
            "later",
            "full",
            "called",
            "trees claimed",
            "claimed",
            "resumed",
            "in flight",
        ),
        *("broken", "failed", "done", "located"),
    ],
)
def test_what_is_recorded_reads_as_it_was(target: TargetState) -> None:
    status = resource.encode_target(target, "Clean")
    written = msgspec.json.encode(status)
    assert resource.decode_target(msgspec.json.decode(written, type=type(status)), NOW) == target


def test_how_a_target_is_recorded() -> None:
    target = TargetState(
        "t",
        dirty=DirtyScope(
            NOW - 9,
            Scope(folders=frozenset({"b", "a"}), trees=frozenset({"d", "c"})),
            closed=True,
            later=DirtyScope(NOW - 1.5, EVERYTHING),
            most=25,
        ),
        claim=Claim("c1", "me", NOW - 5, Request(("a", "/"), recursive=True), NOW - 40, 3),
        in_flight=InFlight("n1", NOW - 30, Request(("a",), recursive=True)),
        last=LastCall(NOW - 31, NOW - 30, NOW - 23.6, NOW - 29, 7.4, 2, "Succeeded"),
        failure=Failure(2, "E", "n" * 1025, NOW + 60),
        location="bucket/team/",
    )
    assert msgspec.to_builtins(resource.encode_target(target, "Claimed")) == {
        "id": "t",
        "phase": "Claimed",
        "location": "bucket/team/",
        "dirty": {
            "since": "2027-01-15T07:59:51.000000+00:00",
            "folders": ("a", "b"),
            "trees": ("c", "d"),
            "closed": True,
            "later": {"since": "2027-01-15T07:59:58.500000+00:00", "all": True},
            "maxFolders": 25,
        },
        "claim": {
            "id": "c1",
            "owner": "me",
            "startedAt": "2027-01-15T07:59:55.000000+00:00",
            "since": "2027-01-15T07:59:20.000000+00:00",
            "folders": ("a", "/"),
            "recursive": True,
            "attempt": 3,
        },
        "inFlight": {
            "notificationID": "n1",
            "acceptedAt": "2027-01-15T07:59:30.000000+00:00",
            "folders": ("a",),
            "recursive": True,
        },
        "last": {
            "requestedAt": "2027-01-15T07:59:29.000000+00:00",
            "acceptedAt": "2027-01-15T07:59:30.000000+00:00",
            "completedAt": "2027-01-15T07:59:36.400000+00:00",
            "fullAt": "2027-01-15T07:59:31.000000+00:00",
            "fullSeconds": 7,
            "durationSeconds": 6,
            "folders": 2,
            "result": "Succeeded",
        },
        "failure": {
            "count": 2,
            "code": "E",
            "message": "n" * 1024,
            "nextAttemptAt": "2027-01-15T08:01:00.000000+00:00",
        },
    }


@pytest.mark.parametrize(
    ("last", "reported"),
    [
        pytest.param(LastCall(), None, id="never called"),
        pytest.param(LastCall(NOW - 9), {"requestedAt": "2027-01-15T07:59:51.000000+00:00"}, id="called"),
        pytest.param(LastCall(full_seconds=0.4, folders=1), {"folders": 1}, id="less than a second"),
        pytest.param(
            LastCall(0.0, NOW, NOW - 1, result="Succeeded"),
            {
                "acceptedAt": "2027-01-15T08:00:00.000000+00:00",
                "completedAt": "2027-01-15T07:59:59.000000+00:00",
                "result": "Succeeded",
            },
            id="by a clock that was set back",
        ),
        pytest.param(
            LastCall(0.0, NOW, NOW, result="Succeeded"),
            {
                "acceptedAt": "2027-01-15T08:00:00.000000+00:00",
                "completedAt": "2027-01-15T08:00:00.000000+00:00",
                "durationSeconds": 0,
                "result": "Succeeded",
            },
            id="at once",
        ),
        pytest.param(
            LastCall(0.0, 0.0, NOW, result="Succeeded"),
            {"completedAt": "2027-01-15T08:00:00.000000+00:00", "result": "Succeeded"},
            id="nobody knows since when",
        ),
        pytest.param(
            LastCall(0.0, NOW - 9, NOW, result="Assumed"),
            {
                "acceptedAt": "2027-01-15T07:59:51.000000+00:00",
                "completedAt": "2027-01-15T08:00:00.000000+00:00",
                "result": "Assumed",
            },
            id="whose end was not heard of",
        ),
    ],
)
def test_how_the_last_call_is_recorded(last: LastCall, reported: dict[str, object] | None) -> None:
    assert msgspec.to_builtins(resource.encode_target(TargetState("t", last=last), "Clean").last) == reported


def test_what_cannot_be_read_back_is_now_or_everything() -> None:
    found = resource.decode_target(
        TargetStatus(
            "t",
            dirty=ScopeStatus("x", folders=("a",), later=LaterStatus("y", trees=("b",))),
            claim=ClaimStatus("c", "me", "x", "y", ()),
            in_flight=InFlightStatus("n", "x", ()),
            last=LastStatus(requested_at="x", accepted_at="y", completed_at="z", full_at="x"),
            failure=FailureStatus(1),
        ),
        NOW,
    )
    whole = Request(("/",), recursive=True)
    later = DirtyScope(NOW, Scope(trees=frozenset({"b"})))
    assert found == TargetState(
        "t",
        dirty=DirtyScope(NOW, Scope(folders=frozenset({"a"})), later=later),
        claim=Claim("c", "me", NOW, whole, NOW),
        in_flight=InFlight("n", NOW, whole),
        failure=Failure(1, "", "", NOW),
    )
