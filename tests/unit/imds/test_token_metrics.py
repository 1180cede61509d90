"""The readings of CloudWatch for the gate: their metrics and their times."""

import re

import msgspec
import pytest

from caretaker.api.imds import BreakerStatus, TokenGateStatus
from caretaker.api.times import format_time
from caretaker.imds.token_gate import DAY, HOUR, READ_SECONDS
from unit.imds.gating import HERE, NOW, OTHER, Place, one, states


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


async def test_a_quiet_group_is_let_through(place: Place) -> None:
    found = await place.passes()
    assert (found.held, states(found)) == ({}, {"a": "Quiet"})
    assert found.status is not None
    assert (found.status.read_at, found.status.metrics) == (format_time(NOW), 2)
    assert (found.wake, place.charged) == (READ_SECONDS, 2)
    assert [(one.region, one.service) for one in place.targets] == [(HERE, "cloudwatch")]


async def test_a_use_of_imdsv1_holds_its_group_back_and_no_other(place: Place) -> None:
    place.ones += [one(3, 30 * DAY, group=OTHER), one(4, DAY, group=OTHER)]
    place.cloudwatch.used = {"i-2": 5.0}
    found = await place.passes()
    assert states(found) == {"a": "InUse", "b": "Quiet"}
    assert found.held.keys() == {"i-1", "i-2"}
    reason, message = found.held["i-1"]
    assert reason == "IMDSv1InUse"
    assert re.fullmatch(r"EKSManagedNodegroup/a: 1 of 2 instances used .* 7 days: i-2; last at .*", message)


async def test_a_stop_and_a_start_hides_no_use_of_imdsv1(place: Place) -> None:
    place.ones = [one(1, 70 * DAY), one(2, 70 * DAY)]
    assert states(await place.passes()) == {"a": "Unknown"}, "no boot was observed"
    place.ones = [one(1, 70 * DAY), one(2, 2 * HOUR)]
    place.cloudwatch.used = {"i-2": 5.0}
    found = await place.passes()
    assert states(found) == {"a": "InUse"}
    assert found.held.keys() == {"i-1", "i-2"}


async def test_no_data_are_no_zeros(place: Place) -> None:
    place.cloudwatch.lost = {"i-2"}
    assert states(await place.passes()) == {"a": "Unknown"}


async def test_nothing_is_read_where_nothing_can_have_changed(place: Place) -> None:
    place.ones = [one(1, 2 * DAY)]
    assert states(await place.passes()) == {"a": "Waiting"}, "no instance has run for seven days"
    place.ones = []
    assert states(await place.passes()) == {}, "nothing is to be changed"
    assert place.cloudwatch.calls == []


async def test_it_is_read_once_in_four_hours(place: Place) -> None:
    place.cloudwatch.used = {"i-2": 5.0}
    await place.passes()
    for _ in range(15):
        found = await place.passes(READ_SECONDS / 16)
        assert found.held.keys() == {"i-1", "i-2"}
    assert len(place.cloudwatch.calls) == 1
    await place.passes(READ_SECONDS / 16)
    assert len(place.cloudwatch.calls) == 2


async def test_a_reading_counts_before_status_has_it(place: Place) -> None:
    """A pass may gather twice, and its status may not be written."""
    before = place.status
    await place.passes()
    place.status = before
    assert not (await place.passes()).held
    assert len(place.cloudwatch.calls) == 1


async def test_a_new_process_does_not_read_earlier_and_lets_nothing_through_meanwhile(place: Place) -> None:
    assert not (await place.passes()).held
    place.restart()
    found = await place.passes(60.0)
    assert ({reason for reason, _ in found.held.values()}, states(found)) == (
        {"IMDSv1Waiting"},
        {"a": "Quiet"},
    )
    assert len(place.cloudwatch.calls) == 1
    assert found.wake == READ_SECONDS - 60.0
    assert not (await place.passes(found.wake)).held
    assert len(place.cloudwatch.calls) == 2


async def test_an_instance_that_joins_is_judged_from_its_start_on(place: Place) -> None:
    assert not (await place.passes()).held
    place.ones = [one(7, -60.0)]
    found = await place.passes(3 * HOUR)
    assert found.held.keys() == {"i-7"}
    assert len(place.cloudwatch.calls) == 1
    assert not (await place.passes(HOUR)).held, "neither seven days nor another boot are needed again"
    place.ones, place.cloudwatch.used = [one(8, -4 * HOUR)], {"i-8": -4.0}
    found = await place.passes(READ_SECONDS)
    assert states(found) == {"a": "InUse"}, "it used IMDSv1 at its boot"


async def test_status_has_five_hundred_groups_and_the_others_count_all_the_same(place: Place) -> None:
    names = [("AutoScalingGroup", f"g{number:04}") for number in range(501)]
    place.ones = [
        one(2 * at + young, (2 if young else 30) * DAY, group=group)
        for at, group in enumerate(names)
        for young in (False, True)
    ]
    for after in (0.0, 60.0):
        found = await place.passes(after)
        assert found.status is not None
        assert (len(found.status.groups), found.held) == (500, {})


async def test_a_call_has_at_most_500_metrics(place: Place) -> None:
    place.ones = [one(number, 2 * DAY) for number in range(600)] + [one(600, 12 * HOUR)]
    assert not (await place.passes(days=1)).held
    assert [len(call) for call in place.cloudwatch.calls] == [500, 101]


async def test_another_leader_and_a_gate_that_is_removed_leave_nothing_let_through(place: Place) -> None:
    for forgets in (place.gates.clear, lambda: place.gates.forget("p")):
        assert not (await place.passes(READ_SECONDS)).held
        forgets()
        assert (await place.passes(60.0)).held.keys() == {"i-1", "i-2"}


async def test_regions_are_asked_one_by_one(place: Place) -> None:
    place.ones[0] = one(1, 30 * DAY, "us-east-1")
    assert not (await place.passes()).held
    assert [target.region for target in place.targets] == [HERE, "us-east-1"]


async def test_an_open_breaker_reads_nothing_and_the_next_pass_does(place: Place) -> None:
    await place.passes()
    place.status = msgspec.structs.replace(place.status, breaker=BreakerStatus(1, 0, format_time(NOW)))
    assert len((await place.passes(READ_SECONDS)).held) == 2, "it may close in this pass"
    assert len(place.cloudwatch.calls) == 1
    place.status = msgspec.structs.replace(place.status, breaker=None)
    assert not (await place.passes()).held


async def test_a_reading_of_a_clock_that_was_ahead_is_made_again(place: Place) -> None:
    ahead = TokenGateStatus(format_time(NOW + DAY), 2)
    place.status = msgspec.structs.replace(place.status, token_gate=ahead)
    assert not (await place.passes()).held
