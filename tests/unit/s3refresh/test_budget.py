"""Days of a target with a budget: the calls that are made, and which of them wait for it."""

from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise

import pytest
from msgspec.structs import replace

from caretaker.api.s3refresh import BucketStatus, CostSpec, CostStatus
from caretaker.s3refresh import costs, debounce, folders, timing
from caretaker.s3refresh.costs import DAY
from caretaker.s3refresh.debounce import UNKNOWN, Backoff, CallError, NewCall, TargetState
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope
from caretaker.s3refresh.options import DebounceOptions, at_once
from caretaker.s3refresh.plan import refused
from caretaker.s3refresh.timing import TargetTimes

NOW = 1_800_000_000.0
MINUTE = 60.0
SPEC = CostSpec(max_estimated_cost_per_day="0.41")  # one refresh of a million objects a day
MILLION = CostStatus((BucketStatus("media", "eu-west-1", 1, 1_000_000),))
PLAIN = DebounceOptions()
ONE_A_DAY = costs.widened(PLAIN, SPEC, MILLION)
MANY = Scope(folders=frozenset(f"p{n}/q{n}" for n in range(120)))

Answer = Callable[[Request], str]  # the code of a failure, "" = accepted
Call = tuple[float, Request]


def days(
    target: TargetState,
    options: DebounceOptions,
    number: float = 1.0,
    events: Scope | None = None,
    answer: Answer = lambda _: "",
) -> tuple[TargetState, list[Call]]:
    """(the target, its calls with their seconds) after so many days in which `events` come each minute."""
    calls: list[Call] = []
    for minute in range(int(number * DAY / MINUTE)):
        now = NOW + minute * MINUTE
        if events is not None:
            target = debounce.mark(target, events, now)
        times = TargetTimes(called_for=now - debounce.called_at(target))
        start = timing.start_at(target, options, times, now)
        if start is None or start > now:
            continue
        target = debounce.claim(target, NewCall(f"call-{minute}", "me"), options, now)
        assert target.claim is not None
        calls.append((now - NOW, target.claim.request))
        backoff = Backoff(options, now, 0.0)
        if not (code := answer(target.claim.request)):
            target = debounce.accepted(target, target.claim.id, "", now)
        elif code == UNKNOWN:
            target = debounce.failed(target, target.claim.id, CallError(code, ""), backoff)
        else:
            target = refused(target, target.claim.id, CallError(code, ""), backoff)
    return target, calls


def dirty(scope: Scope) -> TargetState:
    return debounce.mark(TargetState("share-1"), scope, NOW - 3600)


@pytest.mark.parametrize("amount", ["0.41", "0.75", "0.81", "0.82", "1.20", "2", "2.5"])
def test_a_day_costs_at_most_the_budget(amount: str) -> None:
    options = costs.widened(PLAIN, replace(SPEC, max_estimated_cost_per_day=amount), MILLION)
    _, calls = days(dirty(EVERYTHING), options, 3, EVERYTHING)
    starts = [at for at, _ in calls]
    most = max(sum(first <= at < first + DAY for at in starts) for first in starts)
    cost = costs.cost_of(1_000_000, SPEC)
    assert most * cost <= Decimal(amount)
    assert (most + 1) * costs.cost_of(1_000_000, SPEC, folders.MAX_FOLDERS) > Decimal(amount)


def test_a_budget_makes_no_call_larger_and_the_calls_for_one_scope_are_one_refresh() -> None:
    _, without = days(dirty(MANY), PLAIN, 0.1)
    after, calls = days(dirty(MANY), ONE_A_DAY, 0.1)
    assert [request for _, request in calls] == [request for _, request in without]
    assert sum(len(request.folders) for _, request in calls) == 120
    assert calls[-1][0] < 10 * MINUTE
    again = debounce.mark(after, Scope(folders=frozenset(("r",))), NOW)
    assert (timing.start_at(again, ONE_A_DAY, TargetTimes(), NOW) or 0) >= NOW + DAY


def test_changes_meanwhile_wait_for_the_budget() -> None:
    _, calls = days(dirty(MANY), ONE_A_DAY, 1, Scope(folders=frozenset(("r",))))
    assert sum("r" in request.folders for _, request in calls) == 1, "with the first ones"
    assert calls[-1][0] < 10 * MINUTE


def test_a_call_that_failed_is_tried_again_as_without_a_budget() -> None:
    _, without = days(dirty(EVERYTHING), PLAIN, answer=lambda _: "ThrottlingException")
    _, calls = days(dirty(EVERYTHING), ONE_A_DAY, answer=lambda _: "ThrottlingException")
    assert calls == without
    assert len(calls) > 500


def test_a_call_whose_outcome_is_unknown_counts() -> None:
    _, calls = days(dirty(EVERYTHING), ONE_A_DAY, 3, answer=lambda _: UNKNOWN)
    assert [at // DAY for at, _ in calls] == [0, 1, 2]
    assert all(later - at > DAY for (at, _), (later, _) in pairwise(calls))


def test_a_part_whose_outcome_is_unknown_counts() -> None:
    """Its folders may be listed again, besides all others."""
    first = min(MANY.folders)
    _, calls = days(dirty(MANY), ONE_A_DAY, 1, answer=lambda r: UNKNOWN if first in r.folders else "")
    assert len([1 for _, request in calls if first in request.folders]) == 1


def test_a_part_whose_end_was_lost_keeps_the_others_from_no_refresh() -> None:
    """Its folders are listed once more, with the others."""
    lost = replace(ONE_A_DAY, tracked=True, assume_after=15 * MINUTE)
    target = debounce.claim(dirty(MANY), NewCall("call-0", "me"), lost, NOW)
    assert target.claim is not None
    first = target.claim.request.scope
    target = debounce.accepted(target, "call-0", "n-0", NOW)
    target = debounce.overdue(target, lost, NOW + 15 * MINUTE)
    _, calls = days(target, lost, 0.1)
    called = [folder for _, request in calls for folder in request.scope.folders]
    assert first.folders <= set(called)
    assert len(calls) == 3, "120 folders, in calls of 50"
    assert calls[-1][0] < 30 * MINUTE


def test_a_bad_folder_keeps_the_others_from_no_refresh() -> None:
    bad, some = "p7/q7", Scope(folders=frozenset(f"p{n}/q{n}" for n in range(50)))
    refuse: Answer = lambda r: "InvalidGatewayRequestException" if bad in r.folders else ""  # noqa: E731
    _, calls = days(dirty(some), ONE_A_DAY, 3, answer=refuse)
    good = [(at, r) for at, r in calls if bad not in r.folders]
    assert good[0][0] < 15 * MINUTE
    assert {f for _, r in good for f in r.folders} == (some.folders - {bad}) | {"p7"}
    # The tree in place of the bad folder may hold refreshed folders: it waits, and two more with it.
    (tree,) = [at for at, r in good if r.recursive]
    assert len({f for at, r in good if at < 30 * MINUTE for f in r.folders}) == 47
    assert all(at < 30 * MINUTE or tree <= at < tree + 10 * MINUTE for at, _ in good)
    assert DAY < tree <= DAY + 30 * MINUTE


def test_everything_does_not_follow_a_refused_part() -> None:
    """The parts before it were refreshed."""
    parts: list[Request] = []

    def answer(request: Request) -> str:
        parts.append(request)
        return "" if len(parts) == 1 else "ThrottlingException"

    target, calls = days(dirty(MANY), ONE_A_DAY, 0.01, answer=answer)
    assert len(calls) > 3
    target = debounce.mark(target, EVERYTHING, NOW + 900)
    assert (timing.start_at(target, ONE_A_DAY, TargetTimes(), NOW + 900) or 0) >= NOW + DAY


def test_a_person_waits_for_the_interval_of_the_spec_alone() -> None:
    target, _ = days(dirty(EVERYTHING), ONE_A_DAY, 0.01)
    asked = debounce.mark(target, EVERYTHING, NOW + 60)
    assert asked.dirty is not None
    asked = replace(asked, dirty=replace(asked.dirty, requested=True))
    called = debounce.called_at(target)
    times = TargetTimes(called_for=60)
    assert timing.start_at(asked, ONE_A_DAY, times, called + 60) == called + 60


def test_a_deletion_does_not_wait_for_a_budget() -> None:
    target, calls = days(dirty(EVERYTHING), at_once(ONE_A_DAY), 0.1, EVERYTHING)
    assert len(calls) == 144
    assert target.dirty is None
