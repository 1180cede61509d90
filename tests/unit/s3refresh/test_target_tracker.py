"""What a process remembers of a target, from pass to pass."""

from typing import Any

import msgspec

from caretaker.s3refresh import resource
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, LastCall, TargetState
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.timing import ROUNDED, TargetTimes, TargetTracker

FINER = 1795289935.8123457  # than the record's microseconds, as time.time() is


def observed(tracker: TargetTracker, targets: list[TargetState], clock: float) -> dict[str, TargetTimes]:
    """The times of a pass, which stores them."""
    times = tracker.times(targets, clock)
    tracker.update(targets, clock)
    return times


def test_a_look_at_the_times_stores_nothing() -> None:
    tracker, dirty = TargetTracker(), TargetState("t", dirty=DirtyScope(100.0, Scope(all=True)))
    assert tracker.times([dirty], 0.0)["t"] == TargetTimes(last_event=0.0)
    assert tracker.times([dirty], 10.0)["t"] == TargetTimes(last_event=0.0)
    tracker.update([dirty], 10.0)
    assert tracker.times([dirty], 15.0)["t"] == TargetTimes(5.0, dirty_for=5.0, called_for=5.0)


def test_a_call_read_back_from_the_record_is_the_call_that_was_written() -> None:
    """Else minInterval would begin anew with the next pass."""
    written = TargetState("share-1", last=LastCall(requested_at=FINER, accepted_at=FINER))
    found = resource.decode_target(resource.encode_target(written, "Clean"), FINER)
    tracker = TargetTracker()
    tracker.update([written], 0.0)
    assert observed(tracker, [found], 60.0)["share-1"].called_for == 60.0


def test_another_call_begins_the_interval_anew() -> None:
    tracker = TargetTracker()
    tracker.update([TargetState("share-1", last=LastCall(requested_at=FINER))], 0.0)
    later = TargetState("share-1", last=LastCall(requested_at=FINER, accepted_at=FINER + 0.01))
    assert observed(tracker, [later], 60.0)["share-1"].called_for == 0.0


def test_what_is_dirty_after_what_was_dirty_counts_anew() -> None:
    """Otherwise a target that is never clean would seem to wait since its first event."""
    tracker, some = TargetTracker(), Scope(folders=frozenset({"a"}))

    def dirty_for(since: float, clock: float) -> float:
        return observed(tracker, [TargetState("t", dirty=DirtyScope(since, some))], clock)["t"].dirty_for

    assert dirty_for(100.0, 0.0) == 0.0
    assert dirty_for(100.0, 50.0) == 50.0
    assert dirty_for(100.0000005, 60.0) == 60.0, "the same, read back"
    assert dirty_for(100.0000005 + ROUNDED, 60.0) == 60.0, "and rounded"
    assert dirty_for(40.0, 70.0) == 70.0, "what failed waits again"
    assert dirty_for(150.0, 80.0) == 0.0
    assert dirty_for(150.0, 90.0) == 10.0


def test_what_was_clean_in_between_counts_anew() -> None:
    tracker, dirty = TargetTracker(), TargetState("t", dirty=DirtyScope(100.0, Scope(all=True)))
    for clock, target in ((0.0, dirty), (10.0, TargetState("t"))):
        tracker.update([target], clock)
    assert tracker.times([TargetState("t")], 12.0)["t"].dirty_for == 0.0
    assert observed(tracker, [dirty], 20.0)["t"].dirty_for == 0.0


def test_the_events_of_another_life_count_from_the_first_look() -> None:
    tracker, dirty = TargetTracker(), TargetState("t", dirty=DirtyScope(100.0, Scope(all=True)))
    assert observed(tracker, [TargetState("t")], 0.0)["t"].last_event is None
    tracker.update([dirty], 5.0)
    assert observed(tracker, [dirty], 25.0)["t"].last_event == 20.0
    tracker.record_events(["t"], 30.0)
    assert observed(tracker, [dirty], 32.0)["t"].last_event == 2.0


def test_a_claim_ages_until_another_process_or_attempt_has_it() -> None:
    tracker = TargetTracker()
    claim = Claim("c", "me", 100.0, Request(("/",), recursive=False), 90.0)

    def age(clock: float, **changed: Any) -> float:
        held = msgspec.structs.replace(claim, **changed)
        return observed(tracker, [TargetState("t", claim=held)], clock)["t"].claim_age

    assert [age(0.0), age(7.0)] == [0.0, 7.0]
    assert [age(8.0, owner="other"), age(9.0, owner="other")] == [0.0, 1.0]
    assert age(10.0, owner="other", attempt=2) == 0.0
    assert age(11.0, id="d") == 0.0
    for clock in (20.0, 20.5):
        assert observed(tracker, [TargetState("t")], clock)["t"].claim_age == 0.0
    assert age(21.0, id="d") == 0.0


def test_a_failure_begins_the_interval_anew() -> None:
    tracker = TargetTracker()
    tracker.update([TargetState("t")], 0.0)
    failed = TargetState("t", failure=Failure(1, "X", "", 0.0))
    assert observed(tracker, [failed], 60.0)["t"].called_for == 0.0
    assert observed(tracker, [failed], 70.0)["t"].called_for == 10.0


def test_nothing_is_kept_of_a_target_that_is_gone() -> None:
    tracker, claim = TargetTracker(), Claim("c", "me", 100.0, Request(("/",), recursive=False), 90.0)
    both = [TargetState(name, dirty=DirtyScope(100.0, Scope(all=True)), claim=claim) for name in "tu"]
    tracker.update(both, 0.0)
    tracker.update(both[:1], 10.0)
    found = observed(tracker, both, 20.0)
    assert found["t"] == TargetTimes(last_event=20.0, dirty_for=20.0, claim_age=20.0, called_for=20.0)
    assert found["u"] == TargetTimes(last_event=0.0, dirty_for=0.0, claim_age=0.0, called_for=0.0)
