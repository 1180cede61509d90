"""Whose turn it is at a gateway."""

import math
from typing import Any

import msgspec
import pytest

from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.concurrency import (
    PATIENCE_SECONDS,
    ConcurrencyLimiter,
    Demand,
    busy_of,
    calls_of,
    waiting_of,
)
from caretaker.s3refresh.debounce import Claim, DirtyScope, InFlight, LastCall, TargetState
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.snapshot import Plan

A, B, C = (Key("S3AggregatedRefresh", "ns", name) for name in "abc")
G = "gateway-1"
NOW = 1_800_000_000.0
CALL = Request(("/",), recursive=False)


class Line:
    """Resources at one gateway, and who was told that there is room."""

    def __init__(self) -> None:
        self.limiter = ConcurrencyLimiter()
        self.told: list[Key] = []

    def note(self, key: Key, busy: int = 0, since: float | None = None, clock: float = 0.0) -> None:
        waiting = {} if since is None else {G: since}
        demand = Demand({G: [math.inf] * busy} if busy else {}, waiting, {G: len(waiting)})
        self.limiter.note(key, demand, clock, lambda: self.told.append(key))

    def free(self, key: Key, busy: int = 0, limit: int = 1, clock: float = 0.0) -> int:
        return self.limiter.free(key, {G: limit - busy}, clock)[G]


def test_calls_of_all_resources_count() -> None:
    line = Line()
    assert line.free(A) == 1
    line.note(B, busy=1)
    assert (line.free(A), line.free(A, limit=2), line.free(A, busy=1, limit=2)) == (0, 1, 0)
    line.note(A, busy=1)
    assert line.free(A, busy=1, limit=3) == 1, "its own count once"


def test_who_waits_longest_goes_first() -> None:
    line = Line()
    line.note(A, since=20)
    line.note(B, since=10)
    assert (line.free(A), line.free(B)) == (0, 1)
    assert line.free(C) == 0, "who has just come stands behind both"


def test_who_waits_for_one_of_several_leaves_the_others() -> None:
    line = Line()
    line.note(A, since=10)
    assert line.free(B, limit=2) == 1


def test_who_waits_no_more_makes_room() -> None:
    line = Line()
    line.note(A, since=10)
    line.note(B, since=20)
    line.note(A)
    assert line.told == [B]


def test_who_makes_room_and_who_goes_on_tells_nobody() -> None:
    line = Line()
    line.note(A, busy=2, since=10)
    line.note(A, busy=1, since=10)
    assert line.told == [], "it knows itself"
    line.note(B, since=20)
    line.note(A, busy=1, since=10)
    assert line.told == []
    line.limiter.forget(C)
    assert line.told == []


def test_who_waits_is_told_when_there_is_room_and_nobody_else() -> None:
    line = Line()
    line.note(A, busy=1)
    line.note(B, since=10)
    line.note(C)
    assert line.told == []
    line.note(A)
    assert line.told == [B]
    line.limiter.forget(A)
    assert line.told == [B]


def test_a_resource_that_goes_makes_room() -> None:
    line = Line()
    line.note(A, busy=1)
    line.note(B, since=10)
    line.limiter.forget(A)
    assert line.told == [B]
    assert line.free(B) == 1


def test_a_resource_whose_passes_fail_does_not_hold_up_the_line_for_ever() -> None:
    line = Line()
    line.note(A, since=10, clock=50)
    line.limiter.recorded(A)
    line.note(B, since=20, clock=49 + PATIENCE_SECONDS)
    assert line.free(B, clock=49 + PATIENCE_SECONDS) == 0
    assert line.free(B, clock=50 + PATIENCE_SECONDS) == 1
    line.note(C, since=15, clock=50 + PATIENCE_SECONDS)
    assert line.free(B, clock=50 + PATIENCE_SECONDS) == 0, "others do"


def test_a_plan_that_is_never_written_holds_up_nobody_for_long() -> None:
    line = Line()
    late = 50 + PATIENCE_SECONDS
    for clock in (50, 70, late):
        line.note(A, busy=1, since=10, clock=clock)
        assert line.free(B, clock=clock) == (1 if clock == late else 0)
    line.limiter.recorded(A)
    assert line.free(B, clock=late) == 0


def test_calls_on_record_count_however_often_the_next_plan_is_not_written() -> None:
    line = Line()
    line.note(A, busy=1, clock=0)
    line.limiter.recorded(A)
    line.note(A, clock=10)
    assert line.free(B, clock=10) == 1
    assert line.free(B, clock=10 + PATIENCE_SECONDS) == 0, "the plan without the call was never recorded"


def test_claims_count_and_refreshes_in_flight_until_they_are_taken_to_have_ended() -> None:
    shares = {f"s{n}": Share(id=f"s{n}", arn="", bucket="b", group=G) for n in range(5)}
    targets = [
        TargetState("s3"),
        TargetState("gone", claim=Claim("c", "me", 0.0, CALL, 0.0)),
        TargetState("s4", claim=Claim("c", "me", 0.0, CALL, 0.0), last=LastCall(endpoint="https://else")),
        TargetState("s0", claim=Claim("c", "me", 0.0, CALL, 0.0)),
        TargetState("s1", in_flight=InFlight("n", 100.0, CALL)),
        TargetState("s2", in_flight=InFlight("n", 60.0, CALL)),
    ]
    assert busy_of(targets, shares, assume_after=60, now=120.0) == {G: 2}
    assert calls_of(targets, shares, assume_after=60, now=120.0, clock=30.0) == {G: [math.inf, 10.0]}


def test_calls_of_others_count_for_a_bounded_time() -> None:
    """Another resource may assume that its refreshes take a day."""
    limiter, day = ConcurrencyLimiter(), 24 * 3600.0
    target, share = TargetState("s1", in_flight=InFlight("", NOW, CALL)), SHARES[0]
    busy = calls_of([target], {"s1": share}, assume_after=day, now=NOW + 5 * 3600, clock=5 * 3600.0)
    limiter.note(A, Demand(busy), 5 * 3600.0, lambda: None)
    limiter.recorded(A)
    free = [limiter.free(B, {G: 1}, at, assume_after=60.0)[G] for at in (59.0, 60.0, 5 * 3600.0)]
    assert free == [0, 1, 1]
    assert limiter.free(B, {G: 1}, 5 * 3600.0, assume_after=day) == {G: 0}


def share_of(name: str) -> Share:
    return Share(id=name, arn=f"arn:{name}", bucket="b", group=G)


SHARES = [share_of("s1"), share_of("s2")]


def test_names_of_another_endpoint_are_other_shares() -> None:
    limiter, evil = ConcurrencyLimiter(), "https://evil.example"
    theirs = [msgspec.structs.replace(share, endpoint=evil) for share in SHARES]
    limiter.called(theirs[0], 100.0)
    last = LastCall(NOW, NOW, endpoint=evil)
    limiter.recall([TargetState("s2", last=last, location="b/")], 60.0, NOW, 100.0)
    assert limiter.held(SHARES, 60.0, clock=110.0) == {}
    assert limiter.held(theirs, 60.0, clock=110.0) == {"s1": 50.0, "s2": 50.0}


def test_calls_that_no_share_waits_for_any_more_are_forgotten() -> None:
    limiter = ConcurrencyLimiter()
    for number in range(1000):
        limiter.called(share_of(f"s{number}"), clock=float(number))
        limiter.called(share_of("s0"), clock=float(number))
    assert limiter.held(SHARES, 60.0, clock=999.0) == {}
    assert len(limiter._called) == 61


def test_a_share_waits_for_the_interval_after_anybodys_call() -> None:
    limiter = ConcurrencyLimiter()
    limiter.called(SHARES[0], clock=100.0)
    assert limiter.held(SHARES, 60.0, clock=110.0) == {"s1": 50.0}
    assert limiter.held(SHARES, 60.0, clock=160.0) == {}
    limiter.called(SHARES[0], clock=130.0)
    limiter.called(SHARES[0], clock=120.0)
    assert limiter.held(SHARES, 60.0, clock=160.0) == {"s1": 30.0}, "the latest counts"
    limiter.called(SHARES[1], clock=125.0)
    assert limiter.held(SHARES, 60.0, clock=185.0) == {"s1": 5.0}, "no more once it has passed"


def test_a_bucket_is_nobody_elses() -> None:
    limiter, bucket = ConcurrencyLimiter(), Share(id="s1", arn="", bucket="s1", group="s1")
    limiter.called(bucket, clock=100.0)
    limiter.recall([TargetState("s1", last=LastCall(NOW, NOW))], 60.0, NOW, clock=100.0)
    assert limiter.held(SHARES, 60.0, clock=110.0) == {}, "named as a share is"
    limiter.called(SHARES[0], clock=100.0)
    assert limiter.held([bucket], 60.0, clock=110.0) == {}


@pytest.mark.parametrize(
    ("target", "held"),
    [
        pytest.param(TargetState("s1"), {}, id="never called"),
        pytest.param(
            TargetState("s1", last=LastCall(NOW - 20, NOW - 19)), {"s1": 60.0}, id="called by who led before"
        ),
        pytest.param(TargetState("s1", last=LastCall(NOW - 20)), {"s1": 60.0}, id="called, and refused"),
        pytest.param(
            TargetState("s1", last=LastCall(NOW - 359, NOW - 359)), {"s1": 60.0}, id="by another's clock"
        ),
        pytest.param(TargetState("s1", last=LastCall(NOW - 360, NOW - 360)), {}, id="long ago by any clock"),
        pytest.param(
            TargetState("s1", last=LastCall(NOW + 90, NOW + 91)), {"s1": 60.0}, id="by a clock that was ahead"
        ),
        pytest.param(
            TargetState("s1", claim=Claim("c", "dead", NOW - 20, CALL, NOW - 50), last=LastCall(NOW - 20)),
            {"s1": 70.0},
            id="under way when its process ended: it may be accepted yet",
        ),
    ],
)
def test_a_new_process_knows_from_the_record_when_a_call_may_have_been_made(
    target: TargetState, held: dict[str, float]
) -> None:
    limiter = ConcurrencyLimiter()
    found = [target, TargetState("s9", last=LastCall(NOW, NOW))]
    limiter.recall([msgspec.structs.replace(one, location="b/") for one in found], 60.0, NOW, clock=5.0)
    assert limiter.held(SHARES, 60.0, clock=5.0) == held


def test_how_many_of_the_others_want_a_turn_now_or_later() -> None:
    limiter = ConcurrencyLimiter()
    for key, wanting in ((A, {G: 2}), (B, {G: 3, "gateway-2": 9}), (C, {})):
        limiter.note(key, Demand(wanting=wanting), 0.0, lambda: None)
    assert (limiter.rivals(A, [G]), limiter.rivals(C, [G, "none"])) == ({G: 3}, {G: 5, "none": 0})
    limiter.forget(B)
    assert limiter.rivals(A, [G]) == {G: 0}


def test_who_had_a_turn_stands_behind_those_who_became_dirty_before_it() -> None:
    shares = {name: Share(id=name, arn="", bucket="b", group=G) for name in ("heavy", "light")}
    some = Scope(folders=frozenset({"a"}))
    heavy = TargetState("heavy", dirty=DirtyScope(10.0, some, closed=True), last=LastCall(requested_at=70.0))
    light = TargetState("light", dirty=DirtyScope(40.0, some))
    starts = {"heavy": 90.0, "light": 70.0}
    assert waiting_of(Plan((heavy,), starts=starts), shares, 100.0) == {G: 70.0}
    assert waiting_of(Plan((heavy, light), starts=starts), shares, 100.0) == {G: 40.0}
    assert waiting_of(Plan((light, heavy), starts=starts), shares, 100.0) == {G: 40.0}
    assert waiting_of(Plan((heavy, light), starts=starts), shares, 70.0) == {G: 40.0}
    assert waiting_of(Plan((heavy, light), starts=starts), shares, 60.0) == {}


@pytest.mark.parametrize(
    "busy",
    [{"claim": Claim("c", "me", 0.0, CALL, 0.0)}, {"in_flight": InFlight("n", 0.0, CALL)}],
    ids=["claimed", "in flight"],
)
def test_who_has_a_turn_does_not_wait_for_one(busy: dict[str, Any]) -> None:
    share = Share(id="s", arn="", bucket="b", group=G)
    target = TargetState("s", dirty=DirtyScope(10.0, Scope(all=True)), **busy)
    assert waiting_of(Plan((target,), starts={"s": 20.0}), {"s": share}, 100.0) == {}
