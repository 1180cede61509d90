"""What a process remembers of a target, from pass to pass."""

from typing import Any

import msgspec

from caretaker.s3refresh import status_codec
from caretaker.s3refresh.debounce import Claim, Dirty, Failure, Last, Target
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.memory import ROUNDED, TargetMemory
from caretaker.s3refresh.plan import Seen

FINER = 1795289935.8123457  # than the record's microseconds, as time.time() is


def test_a_call_read_back_from_the_record_is_the_call_that_was_written() -> None:
    """Else minInterval would begin anew with the next pass."""
    written = Target("share-1", last=Last(requested_at=FINER, accepted_at=FINER))
    found = status_codec.decode(status_codec.encode(written, "Clean"), FINER)
    memory = TargetMemory()
    memory.look([written], 0.0)
    assert memory.look([found], 60.0)["share-1"].called_for == 60.0


def test_another_call_begins_the_interval_anew() -> None:
    memory = TargetMemory()
    memory.look([Target("share-1", last=Last(requested_at=FINER))], 0.0)
    later = Target("share-1", last=Last(requested_at=FINER, accepted_at=FINER + 0.01))
    assert memory.look([later], 60.0)["share-1"].called_for == 0.0


def test_what_is_dirty_after_what_was_dirty_counts_anew() -> None:
    """Otherwise a target that is never clean would seem to wait since its first event."""
    memory, some = TargetMemory(), Scope(folders=frozenset({"a"}))

    def dirty_for(since: float, clock: float) -> float:
        return memory.look([Target("t", dirty=Dirty(since, some))], clock)["t"].dirty_for

    assert dirty_for(100.0, 0.0) == 0.0
    assert dirty_for(100.0, 50.0) == 50.0
    assert dirty_for(100.0000005, 60.0) == 60.0, "the same, read back"
    assert dirty_for(100.0000005 + ROUNDED, 60.0) == 60.0, "and rounded"
    assert dirty_for(40.0, 70.0) == 70.0, "what failed waits again"
    assert dirty_for(150.0, 80.0) == 0.0
    assert dirty_for(150.0, 90.0) == 10.0


def test_what_was_clean_in_between_counts_anew() -> None:
    memory, dirty = TargetMemory(), Target("t", dirty=Dirty(100.0, Scope(all=True)))
    for clock, target in ((0.0, dirty), (10.0, Target("t"))):
        memory.look([target], clock)
    assert memory.look([dirty], 20.0)["t"].dirty_for == 0.0


def test_the_events_of_another_life_count_from_the_first_look() -> None:
    memory, dirty = TargetMemory(), Target("t", dirty=Dirty(100.0, Scope(all=True)))
    assert memory.look([Target("t")], 0.0)["t"].last_event is None
    memory.look([dirty], 5.0)
    assert memory.look([dirty], 25.0)["t"].last_event == 20.0
    memory.heard(["t"], 30.0)
    assert memory.look([dirty], 32.0)["t"].last_event == 2.0


def test_a_claim_ages_until_another_process_or_attempt_has_it() -> None:
    memory = TargetMemory()
    claim = Claim("c", "me", 100.0, Request(("/",), recursive=False), 90.0)

    def age(clock: float, **changed: Any) -> float:
        held = msgspec.structs.replace(claim, **changed)
        return memory.look([Target("t", claim=held)], clock)["t"].claim_age

    assert [age(0.0), age(7.0)] == [0.0, 7.0]
    assert [age(8.0, owner="other"), age(9.0, owner="other")] == [0.0, 1.0]
    assert age(10.0, owner="other", attempt=2) == 0.0
    assert age(11.0, id="d") == 0.0
    for clock in (20.0, 20.5):
        assert memory.look([Target("t")], clock)["t"].claim_age == 0.0
    assert age(21.0, id="d") == 0.0


def test_a_failure_begins_the_interval_anew() -> None:
    memory = TargetMemory()
    memory.look([Target("t")], 0.0)
    failed = Target("t", failure=Failure(1, "X", "", 0.0))
    assert memory.look([failed], 60.0)["t"].called_for == 0.0
    assert memory.look([failed], 70.0)["t"].called_for == 10.0


def test_nothing_is_kept_of_a_target_that_is_gone() -> None:
    memory, claim = TargetMemory(), Claim("c", "me", 100.0, Request(("/",), recursive=False), 90.0)
    both = [Target(name, dirty=Dirty(100.0, Scope(all=True)), claim=claim) for name in "tu"]
    memory.look(both, 0.0)
    memory.look(both[:1], 10.0)
    found = memory.look(both, 20.0)
    assert found["t"] == Seen(last_event=20.0, dirty_for=20.0, claim_age=20.0, called_for=20.0)
    assert found["u"] == Seen(last_event=0.0, dirty_for=0.0, claim_age=0.0, called_for=0.0)
