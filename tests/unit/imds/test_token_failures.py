"""Readings of CloudWatch that fail, whole or in part, and those of canaries."""

from collections import Counter

import msgspec
import pytest

from caretaker.api.imds import BreakerStatus, Status
from caretaker.api.times import format_time
from caretaker.imds.token_gate import DAY, HOUR, READ_SECONDS
from unit.imds.enforcing import CLOSE, canaries, canary, passed
from unit.imds.gating import DENIED, NOW, OTHER, THROTTLED, Place, one, states


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


async def test_a_denial_keeps_the_gate_shut_and_names_the_permission(place: Place) -> None:
    place.cloudwatch.errors = [DENIED] * 20
    found = await place.passes()
    assert found.problem is DENIED
    assert {reason for reason, _ in found.held.values()} == {"AccessDenied"}
    assert "allow cloudwatch:GetMetricData to the identity" in found.held["i-1"][1]
    assert (found.wake, place.charged) == (15.0, 0)
    await place.passes(14.0)
    assert len(place.cloudwatch.calls) == 1
    await place.passes(2.0)
    assert len(place.cloudwatch.calls) == 2
    place.cloudwatch.errors = []
    assert not (await place.passes(60.0)).held


async def test_a_denial_after_a_good_reading_shuts_it_again(place: Place) -> None:
    assert not (await place.passes()).held
    place.cloudwatch.errors = [DENIED]
    assert (await place.passes(READ_SECONDS)).held.keys() == {"i-1", "i-2"}


async def test_throttling_backs_off_and_goes_on_where_it_stopped(place: Place) -> None:
    place.ones = [one(number, 8 * DAY + number * HOUR) for number in range(300)] + [one(300, DAY)]
    place.cloudwatch.errors = [None, THROTTLED]
    found = await place.passes()
    assert {reason for reason, _ in found.held.values()} == {"IMDSv1UseUnknown"}
    assert "Rate exceeded" in found.held["i-1"][1]
    first, second = place.cloudwatch.calls
    found = await place.passes(15.0)
    assert (found.held, place.cloudwatch.calls[2]) == ({}, second), "the first call is not repeated"
    read = [name for call in place.cloudwatch.calls if call is not second for name in call]
    assert sorted(read) == sorted(each.instance for each in place.ones)
    assert place.charged == 301
    assert len(first) * 168 <= 40_000 < (len(first) + 1) * 168


async def test_a_series_that_is_never_whole_holds_its_own_group_and_is_asked_for_five_times(
    place: Place,
) -> None:
    place.ones += [one(number, 8 * DAY) for number in range(10, 60)] + [one(3, 8 * DAY, group=OTHER)]
    place.ones += [one(4, DAY, group=OTHER)]
    place.cloudwatch.codes = {"i-3": "InternalError"}
    found = await place.passes()
    assert (found.held.keys(), states(found)) == ({"i-3", "i-4"}, {"a": "Quiet", "b": "Unknown"})
    assert "i-3 are not complete" in found.held["i-4"][1]
    await place.day()
    read = Counter(name for call in place.cloudwatch.calls for name in call)
    assert set(read.values()) == {7, 6 * 5 + 1}, "each 4 hours"
    assert read["i-3"] == 6 * 5 + 1
    place.cloudwatch.codes = {}
    assert not (await place.passes(READ_SECONDS)).held


async def test_a_window_that_grows_while_it_is_read_is_read_anew(place: Place) -> None:
    """The youngest, whose boot it has, leaves; then the boot of another one has to be in it."""
    place.ones = [one(1, 30 * DAY), one(2, 20 * DAY), one(3, 10 * DAY)]
    place.cloudwatch.used, place.cloudwatch.codes = {"i-2": 15 * 24.0}, {"i-1": "InternalError"}
    await place.passes()
    place.ones, place.cloudwatch.codes = place.ones[:2], {}
    assert states(await place.passes(15.0)) == {"a": "InUse"}


async def test_a_series_that_is_absent_from_the_answer_is_not_whole(place: Place) -> None:
    place.ones, place.cloudwatch.absent = [one(1, 30 * DAY), one(2, 2 * DAY)], {"i-2"}
    assert (await place.passes()).held.keys() == {"i-1", "i-2"}
    place.cloudwatch.absent = set()
    assert not (await place.passes(15.0)).held


async def test_a_use_in_a_series_that_is_not_whole_is_a_use(place: Place) -> None:
    place.cloudwatch.codes, place.cloudwatch.used = {"i-2": "PartialData"}, {"i-2": 5.0}
    for after in (0.0, 15.0, 30.0, 60.0, 300.0):
        found = await place.passes(after)
    assert states(found) == {"a": "InUse"}


async def test_a_region_that_is_denied_holds_its_own_groups_alone(place: Place) -> None:
    place.ones += [one(3, 8 * DAY, "us-east-1", OTHER), one(4, DAY, "us-east-1", OTHER)]
    place.cloudwatch.denied = {"i-3"}
    found = await place.passes()
    assert (found.held.keys(), states(found)) == ({"i-3", "i-4"}, {"a": "Quiet", "b": "Unknown"})
    assert (found.problem, found.wake) == (DENIED, 15.0)
    found = await place.day()
    assert (found.held.keys(), found.problem) == ({"i-3", "i-4"}, DENIED)
    assert place.charged == 2 * 7, "the other region is read each 4 hours all the same"
    place.cloudwatch.denied = set()
    assert not (await place.passes(300.0)).held


async def test_a_process_that_is_killed_in_a_reading_does_not_pay_for_it_at_once(place: Place) -> None:
    place.cloudwatch.codes = {"i-2": "InternalError"}
    await place.passes()
    place.restart()
    assert (await place.passes(60.0)).held.keys() == {"i-1", "i-2"}
    assert len(place.cloudwatch.calls) == 1


async def test_a_larger_number_of_days_starts_anew(place: Place) -> None:
    place.ones = [one(1, 3 * DAY), one(2, 12 * HOUR)]
    assert not (await place.passes(days=2)).held
    assert not (await place.passes(60.0, days=1)).held, "fewer days need no other reading"
    for restart in (False, True):
        if restart:
            place.restart()
        for after in (60.0, READ_SECONDS):
            found = await place.passes(after, days=5)
            assert (found.held.keys(), states(found)) == ({"i-1", "i-2"}, {"a": "Waiting"})
    assert len(place.cloudwatch.calls) == 1
    assert "has run for 5 days yet" in found.held["i-1"][1]


async def test_fewer_days_for_a_while_are_no_record_of_all_days(place: Place) -> None:
    place.ones = [one(1, 30 * DAY), one(2, 2 * DAY)]
    place.cloudwatch.used = {"i-1": 5 * 24.0}
    assert states(await place.passes(days=3)) == {"a": "Quiet"}
    found = await place.passes(60.0, days=7)
    assert (found.held.keys(), states(found)) == ({"i-1", "i-2"}, {"a": "InUse"})


async def test_a_policy_of_the_same_name_has_no_part_in_the_record(place: Place) -> None:
    assert not (await place.passes(uid="a")).held
    place.status, place.cloudwatch.errors = Status(), [DENIED]
    assert (await place.passes(uid="b")).held.keys() == {"i-1", "i-2"}


async def test_one_that_joins_a_quiet_group_without_data_is_held_alone(place: Place) -> None:
    await place.passes()
    place.ones.append(one(5, 0.0))
    place.cloudwatch.lost = {"i-5"}
    found = await place.passes(READ_SECONDS)
    assert (found.held.keys(), states(found)) == ({"i-5"}, {"a": "Quiet"})
    assert found.status is not None
    assert "hours of 1 of 3 instances in the last 7 days: i-5" in found.status.groups[0].message
    place.ones, place.cloudwatch.lost = [one(5, 0.0)], set()
    assert not (await place.passes(READ_SECONDS)).held, "the group is quiet without a node of seven days"


async def test_between_two_attempts_status_stays_as_it_is_and_has_the_refusal(place: Place) -> None:
    place.cloudwatch.errors = [DENIED] * 20
    first = (await place.passes()).status
    assert first is not None
    assert [each.state for each in first.groups] == ["Unknown"]
    assert "allow cloudwatch:GetMetricData" in first.groups[0].message
    for after in (3.0, 3.0, 15.0, 60.0):
        assert (await place.passes(after)).status == first


async def test_behind_an_open_breaker_status_stays_as_it_is(place: Place) -> None:
    place.status = msgspec.structs.replace(place.status, breaker=BreakerStatus(1, 0, format_time(NOW)))
    first = await place.passes()
    assert first.status is not None
    assert "once the breaker is closed" in first.status.groups[0].message
    again = await place.passes(60.0)
    assert (again.status, again.wake) == (first.status, None)


async def test_pages_are_put_together(place: Place) -> None:
    place.cloudwatch.page = 100
    assert not (await place.passes()).held
    assert place.charged == 2 * len(place.cloudwatch.calls) > 4, "each page is counted"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("PartialData", "IMDSv1UseUnknown"),
        ("InternalError", "IMDSv1UseUnknown"),
        ("Forbidden", "AccessDenied"),
    ],
)
async def test_a_series_that_is_not_whole_is_no_reading(place: Place, code: str, reason: str) -> None:
    place.cloudwatch.codes = {"i-2": code}
    found = await place.passes()
    assert {why for why, _ in found.held.values()} == {reason}
    assert states(found) == {"a": "Unknown"}


def soaking(place: Place) -> None:
    """Its canary, i-1, was changed ten minutes ago."""
    place.ones = place.ones[1:]
    given = canaries(canary("Soaking", 1, since=NOW - 600.0, changes=(CLOSE,)))
    place.status = msgspec.structs.replace(place.status, canary=given)


async def test_rejected_calls_of_a_canary_are_read_every_five_minutes(place: Place) -> None:
    soaking(place)
    place.cloudwatch.used = {"i-1": 0.1}
    found = await place.passes()
    assert found.rejected == {"i-1": (NOW, 1.0)}
    count = len(place.cloudwatch.calls)
    await place.passes(299.0)
    assert len(place.cloudwatch.calls) == count
    assert (await place.passes(1.0)).rejected["i-1"][0] == NOW + 300.0
    place.status = msgspec.structs.replace(place.status, canary=canaries(stood=(passed(CLOSE),)))
    assert (await place.passes()).rejected == {}


async def test_a_node_that_is_not_ready_for_a_moment_hides_no_rejected_call(place: Place) -> None:
    soaking(place)
    (group,) = place.status.canary.groups if place.status.canary is not None else ()
    later = msgspec.structs.replace(group.instances[0], at=format_time(NOW - 60.0))
    again = msgspec.structs.replace(group, instances=(later,), since=format_time(NOW - 60.0))
    place.status = msgspec.structs.replace(place.status, canary=canaries(again))
    place.cloudwatch.used = {"i-1": 0.1}
    assert (await place.passes()).rejected == {"i-1": (NOW, 1.0)}


async def test_a_canary_in_a_region_that_is_denied_holds_up_no_other_region(place: Place) -> None:
    soaking(place)
    place.ones = [one(3, 8 * DAY, "a-denied-1", OTHER)]
    given = canary("Soaking", 1, 3, since=NOW - 600.0, changes=(CLOSE,))
    place.status = msgspec.structs.replace(place.status, canary=canaries(given))
    place.cloudwatch.denied = {"i-3"}
    found = await place.passes()
    assert (found.rejected, found.problem, found.wake) == ({"i-1": (NOW, 0.0)}, DENIED, 15.0)


async def test_rejected_calls_of_a_series_that_is_not_whole_are_read_after_five_minutes(place: Place) -> None:
    soaking(place)
    place.ones, place.cloudwatch.codes = [], {"i-1": "InternalError"}
    assert (await place.passes()).rejected == {}
    for after in (100.0, 100.0):
        found = await place.passes(after)
        assert (found.rejected, len(place.cloudwatch.calls)) == ({}, 1)
        assert found.wake is not None
        assert found.wake > 0
    place.cloudwatch.codes = {}
    assert (await place.passes(100.0)).rejected.keys() == {"i-1"}


async def test_rejected_calls_before_the_change_and_missing_data_do_not_count(place: Place) -> None:
    soaking(place)
    place.cloudwatch.used = {"i-1": 0.5}
    assert (await place.passes()).rejected == {"i-1": (NOW, 0.0)}
    place.restart()
    place.cloudwatch.lost = {"i-1"}
    assert (await place.passes()).rejected == {"i-1": (NOW, 0.0)}, "the metric appears with a rejected call"


async def test_a_canary_that_cannot_be_read_has_not_been(place: Place) -> None:
    soaking(place)
    place.ones = []
    place.cloudwatch.errors = [DENIED]
    found = await place.passes()
    assert (found.rejected, found.problem) == ({}, DENIED)
