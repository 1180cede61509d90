"""What a process remembers of a target, from pass to pass."""

from caretaker.s3refresh import record
from caretaker.s3refresh.debounce import Dirty, Last, Target
from caretaker.s3refresh.folders import Scope
from caretaker.s3refresh.memory import TargetMemory

FINER = 1795289935.8123457  # than the record's microseconds, as time.time() is


def test_a_call_read_back_from_the_record_is_the_call_that_was_written() -> None:
    """Else minInterval would begin anew with the next pass."""
    written = Target("share-1", last=Last(requested_at=FINER, accepted_at=FINER))
    found = record.read(record.write(written, "Clean"), FINER)
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
    assert dirty_for(40.0, 70.0) == 70.0, "what failed waits again"
    assert dirty_for(150.0, 80.0) == 0.0
    assert dirty_for(150.0, 90.0) == 10.0
