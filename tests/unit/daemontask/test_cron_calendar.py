"""When a schedule comes round: fields, days on which clocks change, leap days, what is no schedule."""

import time
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.api.times import format_time, parse_time
from caretaker.daemontask import cron_calendar
from testbed.paths import CHECKOUT
from testing import manifests
from testing.examples import examples

BERLIN, NEW_YORK, UTC_NAME = "Europe/Berlin", "America/New_York", "Etc/UTC"


def moment(text: str) -> float:
    found = parse_time(text)
    assert found is not None
    return found


# All rows as robfig/cron v3.0.1, which CronJob uses, answers them, but for one that says so.
ROWS = [
    pytest.param("0 3 * * *", UTC_NAME, "2026-11-22T10:00:00Z", ["2026-11-23T03:00:00Z"], id="every night"),
    pytest.param(
        "0 3 * * *",
        UTC_NAME,
        "2026-11-22T03:00:00Z",
        ["2026-11-23T03:00:00Z"],
        id="a tick is not its own next",
    ),
    pytest.param(
        "0 3 * * *", UTC_NAME, "2026-11-22T02:59:59.9Z", ["2026-11-22T03:00:00Z"], id="just before a tick"
    ),
    pytest.param(
        "0 3 * * *", BERLIN, "2026-11-22T10:00:00Z", ["2026-11-23T02:00:00Z"], id="local time in winter"
    ),
    pytest.param(
        "0 3 * * *", BERLIN, "2026-07-22T10:00:00Z", ["2026-07-23T01:00:00Z"], id="local time in summer"
    ),
    pytest.param(
        "30 2 * * *",
        BERLIN,
        "2026-03-28T00:00:00Z",
        ["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"],
        id="a time that the spring leaves out is left out",
    ),
    pytest.param(
        "30 1 * * *",
        NEW_YORK,
        "2026-11-01T04:00:00Z",
        ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"],
        id="a time that comes twice in autumn comes twice",
    ),
    pytest.param(
        "*/30 * * * *",
        NEW_YORK,
        "2026-03-08T06:15:00Z",
        ["2026-03-08T06:30:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"],
        id="every half hour goes on evenly when clocks go forward",
    ),
    pytest.param(
        "0 * * * *",
        NEW_YORK,
        "2026-11-01T04:30:00Z",
        ["2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"],
        id="every hour goes on evenly when clocks go back",
    ),
    pytest.param(
        "0 0 * * *",
        "America/Santiago",
        "2026-09-05T12:00:00Z",
        ["2026-09-07T03:00:00Z"],
        id="a day without a midnight is left out",
    ),
    pytest.param(
        "0 0 29 2 *",
        UTC_NAME,
        "2026-01-01T00:00:00Z",
        ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"],
        id="leap days",
    ),
    pytest.param(
        "0 0 31 * *",
        UTC_NAME,
        "2026-01-31T00:00:00Z",
        ["2026-03-31T00:00:00Z"],
        id="months without a 31st are left out",
    ),
    pytest.param(
        "0 0 1 1 *",
        BERLIN,
        "2026-01-01T12:00:00Z",
        ["2026-12-31T23:00:00Z"],
        id="a year on, over two changes",
    ),
    pytest.param(
        "30 2 25 10 *",
        BERLIN,
        "2026-01-01T00:00:00Z",
        ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2027-10-25T00:30:00Z"],
        id="the first of two half a year on, from winter",
    ),
    pytest.param(
        "30 2 25 10 *",
        BERLIN,
        "2026-07-01T00:00:00Z",
        ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"],
        id="and from summer",
    ),
    pytest.param(
        "0 3 29 3 *",
        BERLIN,
        "2026-01-01T00:00:00Z",
        ["2026-03-29T01:00:00Z", "2027-03-29T01:00:00Z"],
        id="a tick in the very second in which clocks go forward",
    ),
    pytest.param(
        "0 12 13 * FRI",
        UTC_NAME,
        "2026-11-01T00:00:00Z",
        ["2026-11-06T12:00:00Z", "2026-11-13T12:00:00Z"],
        id="both days named: either will do",
    ),
    pytest.param(
        "0 12 */2 * MON",
        UTC_NAME,
        "2026-11-01T00:00:00Z",
        ["2026-11-01T12:00:00Z", "2026-11-02T12:00:00Z", "2026-11-03T12:00:00Z"],
        id="a step names days, too",
    ),
    pytest.param(
        "0 12 ? * mon-fri",
        UTC_NAME,
        "2026-11-21T00:00:00Z",
        ["2026-11-23T12:00:00Z"],
        id="a question mark is a star",
    ),
    pytest.param(
        "0 12 * * 3/2",
        UTC_NAME,
        "2026-11-22T00:00:00Z",
        ["2026-11-25T12:00:00Z", "2026-11-27T12:00:00Z", "2026-12-02T12:00:00Z"],
        id="steps from a day on end with Saturday",
    ),
    pytest.param(
        "05 4-8/2 1,15 jan,Jul *",
        UTC_NAME,
        "2026-07-01T05:00:00Z",
        ["2026-07-01T06:05:00Z", "2026-07-01T08:05:00Z", "2026-07-15T04:05:00Z"],
        id="lists, ranges, steps, names, leading zeros",
    ),
    pytest.param(
        "0 12 9-9/3 * *",
        UTC_NAME,
        "2026-11-01T00:00:00Z",
        ["2026-11-09T12:00:00Z", "2026-12-09T12:00:00Z"],
        id="a step within one day",
    ),
    pytest.param(
        "0 3 * * 6/1",
        UTC_NAME,
        "2026-11-22T10:00:00Z",
        ["2026-11-28T03:00:00Z", "2026-12-05T03:00:00Z"],
        id="a step from Saturday on is Saturday alone",
    ),
    pytest.param(
        "0 0 1 03-MAR/1 *",
        UTC_NAME,
        "2026-11-22T10:00:00Z",
        ["2027-03-01T00:00:00Z", "2028-03-01T00:00:00Z"],
        id="a step within one month that is spelt in two ways",
    ),
    pytest.param(
        "0 0 29 2 *",
        UTC_NAME,
        "2096-03-01T00:00:00Z",
        ["2104-02-29T00:00:00Z"],
        id="the leap day that 2100 does not have, which CronJob gives up on",
    ),
    pytest.param("@weekly", UTC_NAME, "2026-11-22T00:00:00Z", ["2026-11-29T00:00:00Z"], id="a macro"),
    pytest.param(
        " 0  3 * * * ",
        UTC_NAME,
        "2026-11-22T10:00:00Z",
        ["2026-11-23T03:00:00Z"],
        id="more room between fields",
    ),
]


@pytest.mark.parametrize(("expression", "zone", "begin", "wanted"), ROWS)
def test_ticks_forth_and_back(expression: str, zone: str, begin: str, wanted: list[str]) -> None:
    ticks, at, found = cron_calendar.read(expression, zone), moment(begin), []
    for _ in wanted:
        at = ticks.after(at)
        found.append(format_time(at))
    assert found == wanted
    for text in reversed(wanted):
        assert ticks.last(at) == moment(text)
        assert ticks.last(at + 0.5) == moment(text)
        at = ticks.last(at - 1)
    assert at <= moment(begin)


@pytest.mark.parametrize("days", range(1, 14))
def test_from_any_day_before_a_change_of_clocks_the_tick_in_its_second_is_found(days: int) -> None:
    ticks, tick = cron_calendar.read("0 3 * * *", BERLIN), moment("2026-03-29T01:00:00Z")
    assert ticks.after(tick - 3600 * days - 59) == tick
    yearly = cron_calendar.read("0 3 29 3 *", BERLIN)
    assert yearly.after(tick - 86400.0 * days + days) == tick
    assert yearly.last(tick + 86400.0 * days + days) == tick


@pytest.mark.parametrize("here", ["Europe/Berlin", "America/New_York"])
def test_the_machines_own_zone_does_not_matter(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", here)
        time.tzset()
        try:
            ticks = cron_calendar.read("30 2 * * *", UTC_NAME)
            for day in ("2026-03-29T02:30:00Z", "2026-03-08T02:30:00Z", "2026-10-25T02:30:00Z"):
                assert ticks.after(moment(day) - 1) == ticks.last(moment(day) + 1) == moment(day)
        finally:
            patch.undo()
            time.tzset()


def test_what_robfig_cron_answers() -> None:
    """A table of random expressions, printed by testing/cronticks.py."""
    rows = msgspec.json.decode((Path(__file__).parent / "cronticks.json").read_bytes())
    compared = 0
    for row in rows:
        if not row["ticks"]:  # refused, or it never comes within five years
            continue
        ticks, at = cron_calendar.read(row["expression"], row["zone"]), row["after"]
        for wanted in row["ticks"]:
            at = ticks.after(at)
            assert at == wanted, row
        assert ticks.last(at) == at, row
        compared += 1
    assert compared > 300


FIELD = st.sampled_from
HOURS = st.sets(st.integers(0, 23), min_size=1, max_size=24)
MINUTES = st.sets(st.integers(0, 59), min_size=1, max_size=4)
ZONES = (
    BERLIN,
    NEW_YORK,
    UTC_NAME,
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "America/Santiago",
    "Asia/Kolkata",
    "America/Havana",
    "America/Asuncion",
    "Asia/Beirut",
    "Africa/Cairo",
)
# Around changes of some of these zones.
BEGINS = (
    "2026-02-14",
    "2026-03-07",
    "2026-03-28",
    "2026-04-04",
    "2026-09-05",
    "2026-10-03",
    "2026-10-24",
    "2026-10-31",
    "2022-10-01",
    "2023-03-24",
    "2024-04-25",
    "2024-10-30",
)


@settings(max_examples=examples(40), deadline=None)
@given(MINUTES, HOURS, FIELD(ZONES), FIELD(BEGINS), st.integers(0, 86400))
def test_a_tick_is_every_minute_at_which_the_clock_on_the_wall_says_so(
    minutes: set[int], hours: set[int], zone: str, begin: str, into: int
) -> None:
    expression = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    ticks, start = cron_calendar.read(expression, zone), int(moment(f"{begin}T00:00:00Z")) + into
    end, known = start + 2 * 86400, ZoneInfo(zone)
    shown = (datetime.fromtimestamp(at, known) for at in range(start - start % 60 + 60, end + 1, 60))
    wanted = [at.timestamp() for at in shown if at.minute in minutes and at.hour in hours]
    found, at = [], float(start)
    while (at := ticks.after(at)) <= end:
        found.append(at)
    assert found == wanted
    back, at = [], ticks.last(end)
    while at > start:
        back.append(at)
        at = ticks.last(at - 1)
    assert back == wanted[::-1]


NO_SCHEDULE = [
    pytest.param("", "neither five fields", id="nothing"),
    pytest.param("0 3 * *", "neither five fields", id="four fields"),
    pytest.param("0 0 3 * * *", "neither five fields", id="seconds"),
    pytest.param("60 3 * * *", "'60' is no minute", id="minute 60"),
    pytest.param("0 24 * * *", "'24' is no hour", id="hour 24"),
    pytest.param("0 3 0 * *", "'0' is no day of the month", id="day 0"),
    pytest.param("0 3 * 13 *", "'13' is no month", id="month 13"),
    pytest.param("0 3 * * 7", "'7' is no day of the week", id="day of the week 7, which CronJob refuses"),
    pytest.param("0 3 L * *", "'L' is no day of the month", id="the last day, which CronJob refuses"),
    pytest.param("0 3 * * MON#2", "is no day of the week", id="the second Monday, which CronJob refuses"),
    pytest.param("*/0 3 * * *", "is no minute", id="a step of nothing"),
    pytest.param("@every 1h", "neither five fields", id="an interval"),
    pytest.param("@Daily", "neither five fields", id="a macro in capitals, which CronJob refuses"),
    pytest.param("TZ=Europe/Berlin 0 3 * * *", "neither five fields", id="a zone inside"),
]


@pytest.mark.parametrize(("expression", "why"), NO_SCHEDULE)
def test_what_is_no_schedule_is_told(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        cron_calendar.read(expression, UTC_NAME)


@pytest.mark.parametrize(
    ("expression", "why"),
    [("0 0 30 2 *", "never comes: bad day-of-month"), ("0 5-3 * * *", "never comes: bad hour")],
)
def test_what_never_comes_is_told(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        cron_calendar.read(expression, UTC_NAME)


@pytest.mark.parametrize(
    "zone", ["", "Mars/Phobos", "Europe", "../etc/passwd", "/etc/localtime", "europe/\0"]
)
def test_what_is_no_zone_is_told(zone: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone"):
        cron_calendar.read("0 3 * * *", zone)


def test_zones_are_there_without_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the image, which has none."""
    import zoneinfo  # noqa: PLC0415 - its search path is set for this test alone

    zoneinfo.reset_tzpath(())
    ZoneInfo.clear_cache()
    try:
        assert (
            cron_calendar.read_zone.__wrapped__(BERLIN).utcoffset(datetime(2026, 7, 1, tzinfo=UTC))
            is not None
        )
    finally:
        zoneinfo.reset_tzpath()
        ZoneInfo.clear_cache()


def test_the_crd_has_the_patterns_of_the_code() -> None:
    schema = manifests.load((CHECKOUT / "crds" / "daemontasks.yaml").read_text())["spec"]["versions"][0][
        "schema"
    ]
    fields = schema["openAPIV3Schema"]["properties"]["spec"]["properties"]
    of_schedule = [rule["rule"] for rule in fields["schedule"]["x-kubernetes-validations"]]
    of_budgets = fields["budgets"]["items"]["properties"]["schedule"]["x-kubernetes-validations"]
    assert of_schedule == [rule["rule"] for rule in of_budgets]
    assert [
        field.name for field in cron_calendar.FIELDS if not any(field.pattern in rule for rule in of_schedule)
    ] == []
    macros = next(rule for rule in of_schedule if "weekly" in rule)
    assert all(macro.lstrip("@") in macros for macro in cron_calendar.MACROS)
