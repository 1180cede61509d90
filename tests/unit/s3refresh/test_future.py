"""Times in the record that lie ahead: another operator's clock was wrong, or the status was edited."""

from typing import Any

import pytest

from caretaker.api.s3refresh import Filter
from caretaker.s3refresh import concurrency, debounce
from caretaker.s3refresh.debounce import (
    CALL_SECONDS,
    CLOCK_SKEW_SECONDS,
    DirtyScope,
    Failure,
    InFlight,
    LastCall,
    TargetState,
)
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.snapshot import Discovery, Plan, PlanInput
from caretaker.s3refresh.timing import TargetTimes

NOW = 1_800_000_000.0
YEARS = NOW + 1e9
SHARE = Share(id="share", arn="arn:share", bucket="bucket", group="gateway")
CALL = Request(("a", "/"), recursive=False)
DIRTY = DirtyScope(NOW - 900, Scope(folders=frozenset({"/", "a"})))
OPTIONS = DebounceOptions(tracked=True)


def planned(target: TargetState, now: float = NOW, **more: Any) -> Plan:
    given: dict[str, Any] = {
        "targets": (target,),
        "first": False,
        "discovery": Discovery(complete=True, shares=(SHARE,)),
        "filter": Filter(),
        "options": OPTIONS,
        "owner": "me",
        "pass_id": "p",
        "now": now,
        **more,
    }
    return plan(PlanInput(**given))


def later(made: Plan, seconds: float, **more: Any) -> Plan:
    (target,) = made.targets
    return planned(target, NOW + seconds, **more)


def busy(made: Plan, now: float) -> dict[str, int]:
    return concurrency.busy_of(made.targets, {"share": SHARE}, OPTIONS.assume_after, now)


def test_a_refresh_in_flight_from_the_future_frees_its_target_and_its_gateway() -> None:
    first = planned(TargetState("share", dirty=DIRTY, in_flight=InFlight("n", YEARS, CALL)))
    then = later(first, OPTIONS.assume_after, free={"gateway": 0})
    assert busy(then, NOW + OPTIONS.assume_after) == {}, "other shares of the gateway have their turns"
    assert then.targets[0].in_flight is None


def test_a_backoff_until_the_far_future_ends() -> None:
    first = planned(TargetState("share", dirty=DIRTY, failure=Failure(1, "Busy", "no", YEARS)))
    assert not first.calls
    then = later(first, OPTIONS.retry_max, times={"share": TargetTimes(dirty_for=OPTIONS.retry_max)})
    assert len(then.calls) == 1


def test_a_last_call_from_the_future_takes_no_place_in_the_line() -> None:
    """It would be behind all others of its gateway until then."""
    first = planned(TargetState("share", dirty=DIRTY, last=LastCall(YEARS, YEARS)), free={"gateway": 0})
    then = later(first, 600.0, free={"gateway": 0})
    assert concurrency.waiting_of(then, {"share": SHARE}, NOW + 600) == {"gateway": NOW}


def test_changes_from_the_future_keep_their_place_in_the_line() -> None:
    """Else they would become younger with every look, and all others of the gateway would go first."""
    ahead = DirtyScope(
        YEARS, DIRTY.scope, closed=True, later=DirtyScope(YEARS, Scope(folders=frozenset({"b"})))
    )
    first = planned(TargetState("share", dirty=ahead), free={"gateway": 0})
    then = later(first, 600.0, free={"gateway": 0})
    assert concurrency.waiting_of(then, {"share": SHARE}, NOW + 600) == {"gateway": NOW}
    (target,) = then.targets
    assert target.dirty is not None
    assert target.dirty.later is not None
    assert target.dirty.later.since == NOW


def test_a_last_refresh_from_the_future_did_not_take_until_then() -> None:
    """The time that a refresh takes decides how many calls the next changes get."""
    an_hour = NOW + 3600
    (target,) = planned(TargetState("share", last=LastCall(an_hour, an_hour, an_hour + 20))).targets
    assert debounce.durations(target.last, OPTIONS)[0] <= 20


@pytest.mark.parametrize(
    "options", [DebounceOptions(retry_max=900.0), DebounceOptions(retry_max=5.0, min_interval=60.0)]
)
def test_the_longest_backoff_stays_and_a_longer_one_is_cut(options: DebounceOptions) -> None:
    longest = max(options.retry_max, options.min_interval + CALL_SECONDS)
    legal = NOW + CLOCK_SKEW_SECONDS + longest
    for told, kept in ((legal, legal), (legal + 1, NOW + longest)):
        target = TargetState("share", dirty=DIRTY, failure=Failure(1, "Busy", "no", told))
        assert [one.failure for one in planned(target, options=options).targets] == [
            Failure(1, "Busy", "no", kept)
        ]


def test_a_refresh_of_everything_in_the_future_does_not_put_off_the_next() -> None:
    options = DebounceOptions(resync=3600.0)
    first = planned(TargetState("share", last=LastCall(full_at=YEARS)), options=options)
    (then,) = later(first, 3600.0, options=options).targets
    assert then.dirty is not None or then.claim is not None


@pytest.mark.parametrize("ahead", [0.0, CLOCK_SKEW_SECONDS])
def test_what_is_ahead_by_an_ordinary_skew_stays(ahead: float) -> None:
    at = NOW + ahead
    dirty = DirtyScope(at, DIRTY.scope, closed=True, later=DirtyScope(at, Scope(folders=frozenset({"b"}))))
    target = TargetState(
        *(
            "share",
            dirty,
            None,
            InFlight("n", at, CALL),
            LastCall(at, at, at, full_at=at),
            None,
            SHARE.location,
        )
    )
    assert planned(target).targets == (target,)
