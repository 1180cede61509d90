"""Freshness under load: the longest time for which a folder is stale, at a busy gateway."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from caretaker.s3refresh.folders import Scope
from caretaker.s3refresh.options import DebounceOptions
from simulation.s3refresh.load import Load, every
from testing.examples import examples

pytestmark = [pytest.mark.random, pytest.mark.slow]

HOURS = examples(200) / 100  # two in full: twelve maximum delays, eight assumed ends
RATE = max(examples(1000), 200)  # folders a minute, a thousand in full
MINUTE, HOUR = 60.0, 3600.0
TRACKED = DebounceOptions(tracked=True, assume_after=900.0)
Shape = Callable[[int], str]


def flat(n: int) -> str:
    return f"dev/{n % 1000:05}/{n}"


def days(n: int) -> str:
    return f"logs/2026/11/{n % 30}/{n % 1000:05}/{n}"


def top(n: int) -> str:
    return f"{n % 1000:05}/{n}"


def deep(n: int) -> str:
    return f"{n % 50}/" + "d/" * (n % 400) + f"{n % 1000}/{n}"


def promised(options: DebounceOptions, takes: float) -> float:
    """maxDelay, minInterval, two refreshes, and a second for the requests."""
    return max(options.max_delay, options.min_interval) + options.min_interval + 2 * takes + 1


def loaded(load: Load, share: str, shape: Shape, per_minute: int, until: float) -> None:
    """Every minute this many folders of the share change; one more changes once."""
    load.at(10.0, load.put, share, ["other/new/x"])
    step = 15.0
    each = max(int(per_minute * step / MINUTE), 1)
    every(load, step, share, lambda turn: [shape(turn * each + n) for n in range(each)], until)


@pytest.mark.parametrize(
    ("shape", "options", "takes"),
    [
        pytest.param(flat, DebounceOptions(), 50.0, id="ends are assumed"),
        pytest.param(days, TRACKED, 5.0, id="ends are told"),
        pytest.param(flat, TRACKED, 600.0, id="a slow gateway"),
        pytest.param(
            days, DebounceOptions(quiet_period=30, max_delay=30, tracked=True), 5.0, id="a short window"
        ),
        pytest.param(deep, DebounceOptions(), 50.0, id="deep folders"),
        pytest.param(top, DebounceOptions(max_folders=5), 50.0, id="folders at the top, and five in a call"),
    ],
)
def test_one_share_with_a_thousand_folders_a_minute(
    shape: Shape, options: DebounceOptions, takes: float
) -> None:
    load = Load(1, options, lambda _: takes)
    load.at(0.0, load.put, "s0", [""])  # the duration of a refresh of everything is known from here on
    loaded(load, "s0", shape, RATE, HOURS * HOUR)
    load.run(HOURS * HOUR)
    assert load.oldest() <= promised(options, takes if options.tracked else options.assume_after)
    assert load.gateway.refused == 0


@pytest.mark.parametrize(
    ("options", "takes", "busy", "together"),
    [
        pytest.param(DebounceOptions(), 50.0, 1, False, id="one under load, and one resource for each"),
        pytest.param(DebounceOptions(), 50.0, 12, True, id="all under load"),
        pytest.param(TRACKED, 20.0, 1, True, id="one under load, ends are told"),
        pytest.param(TRACKED, 20.0, 12, False, id="all under load, ends are told, one resource for each"),
    ],
)
def test_twelve_shares_at_one_gateway(
    options: DebounceOptions, takes: float, busy: int, together: bool
) -> None:
    load, until = Load(12, options, lambda _: takes, together=together), HOURS * HOUR
    for n in range(12):
        if n < busy:
            loaded(load, f"s{n}", flat, RATE // busy, until)
        else:
            every(load, 600.0, f"s{n}", lambda _: ["light/x"], until, begin=100.0 + 37.0 * n)
    load.run(until)
    assert load.oldest() <= promised(options, takes if options.tracked else options.assume_after)


def test_everything_is_not_refreshed_where_that_takes_longer_than_a_second_call() -> None:
    """Otherwise one refresh of everything, which takes an hour, would block the turns of all others."""

    def takes(scope: Scope) -> float:
        return HOUR if scope.all else 20.0

    load = Load(3, TRACKED, takes)
    for n in range(3):
        loaded(load, f"s{n}", flat, 100, HOUR)
    load.run(HOUR)
    assert not any(scope.all for site in load.sites for _, scope in site.calls)
    assert load.oldest() <= promised(TRACKED, 20.0)


def test_quiet_counts_again_once_a_storm_is_over() -> None:
    load = Load(1, DebounceOptions(), lambda _: 50.0)
    loaded(load, "s0", flat, 200, 1500.0)
    load.run(3000.0)
    calls = len(load.sites[0].calls)
    for at in (3000.0, 3020.0, 3040.0):
        load.at(at, load.put, "s0", ["a/x"])
    load.run(4000.0)
    (one,) = load.sites[0].calls[calls:]
    assert 3070.0 <= one[0] <= 3071.0


@pytest.mark.parametrize("together", [True, False], ids=["one resource", "two resources"])
def test_a_share_under_load_holds_another_up_by_one_refresh(together: bool) -> None:
    load = Load(2, DebounceOptions(), lambda _: 50.0, together=together)
    loaded(load, "s0", flat, 60, 2 * HOUR)
    every(load, 600.0, "s1", lambda _: ["light/x"], 2 * HOUR, begin=100.0)
    load.run(2 * HOUR)
    light = load.sites[1]
    assert len(light.calls) == 11
    assert light.worst <= 30 + 60 + 2 * 60


@pytest.mark.parametrize("bad", ["a/b/gone", "gone"])
def test_a_folder_that_is_refused_keeps_no_other_from_being_refreshed(bad: str) -> None:
    good = [f"a/{n}/x" for n in range(20)]
    load = Load(1, DebounceOptions(), lambda _: 50.0, refuses=[bad])
    load.at(10.0, load.put, "s0", [*good, f"{bad}/x"])
    load.run(HOUR)
    assert load.oldest() <= promised(load.options, 60.0)
    assert load.gateway.refused <= 8
    load.run(24 * HOUR)
    assert load.gateway.refused <= 8, "the refused folder is not retried for ever"


@settings(max_examples=examples(40), deadline=None)
@given(
    shares=st.lists(st.sampled_from([0, 1, 5, 60, 300]), min_size=1, max_size=8),
    shape=st.sampled_from([flat, days, top, deep]),
    max_delay=st.sampled_from([30.0, 120.0, 600.0, 1200.0]),
    most=st.sampled_from([5, 50]),
    takes=st.sampled_from([1.0, 20.0, 60.0]),
    tracked=st.booleans(),
    together=st.booleans(),
)
def test_whatever_goes_on_each_is_refreshed_in_its_time(
    shares: list[int], shape: Shape, max_delay: float, most: int, takes: float, tracked: bool, together: bool
) -> None:
    """`shares`: for each the number of folders that change in a minute. If the turns of the others take
    longer than maxDelay, they are added to the bound."""
    options = DebounceOptions(
        quiet_period=30, max_delay=max_delay, max_folders=most, tracked=tracked, assume_after=60.0
    )
    load, until = Load(len(shares), options, lambda _: takes, together=together), 0.5 * HOUR
    for n, rate in enumerate(shares):
        load.at(0.0, load.put, f"s{n}", [""])
        if rate:
            loaded(load, f"s{n}", shape, rate, until)
    load.run(until)
    turn = (takes if tracked else options.assume_after) + 1
    line = max(len(shares) * turn, options.min_interval)
    assert load.oldest() <= promised(options, turn) + max(line + turn - max_delay, 0.0)
    assert load.gateway.refused == 0
