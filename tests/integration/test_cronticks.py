"""Schedules against the library of CronJob itself, robfig/cron."""

import json
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from caretaker.daemontask import cron_calendar
from testbed.paths import CHECKOUT
from testing import cronticks
from testing.examples import SEED


def ours(question: dict[str, Any], count: int) -> list[int] | None:
    """Our ticks; None for what is no schedule."""
    try:
        ticks = cron_calendar.read(question["expression"], question["zone"])
    except ValueError:
        return None
    found, at = [], float(question["after"])
    for _ in range(count):
        at = ticks.after(at)
        found.append(int(at))
    return found


def test_random_schedules_of_all_forms_are_cronjobs() -> None:
    asked = cronticks.questions(SEED, 2000)
    wrong = []
    for question, answer in zip(asked, cronticks.ask(asked), strict=True):
        refused = "error" in answer or not answer["ticks"]  # what never comes is refused here
        found = ours(question, len(answer["ticks"]))
        if found is not None if refused and found != [] else found != answer["ticks"]:
            wrong.append((question, found, answer))
    assert wrong == []


def test_the_table_of_the_unit_tests_is_robfig_crons() -> None:
    text = (CHECKOUT / "tests" / "unit" / "daemontask" / "cronticks.json").read_text()
    assert json.loads(text) == cronticks.table()


# docs/spec/daemontask.md has them: an expression, a zone, a day, when it comes here, and to CronJob.
DIFFERENCES = [
    ("0 12 * * *", "Australia/Lord_Howe", "2023-10-01", "12:00", ""),
    ("30 1 * * *", "Australia/Lord_Howe", "2023-10-01", "01:30", "01:30 02:30"),
    ("0 3 * * 0", "Asia/Beirut", "2023-03-26", "03:00", ""),
    ("0 9 31 * *", "Asia/Beirut", "2024-03-31", "09:00", ""),
    ("0 9 * * 5", "Africa/Cairo", "2024-04-26", "09:00", ""),
    ("0 9 1 11 *", "America/Asuncion", "2023-11-01", "09:00", ""),
    ("0 9 1 * *", "America/Asuncion", "2022-10-02", "", "09:00"),
    ("0 9 * * 5", "Asia/Gaza", "2021-03-27", "", "09:00"),
]


@pytest.mark.parametrize(("expression", "zone", "day", "here", "there"), DIFFERENCES)
def test_where_cronjob_errs(expression: str, zone: str, day: str, here: str, there: str) -> None:
    known = ZoneInfo(zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=known)
    # From 300 days before: the library's error may begin in another month.
    question = {"expression": expression, "zone": zone, "after": int(begin.timestamp()) - 300 * 86400}
    (answer,) = cronticks.ask([{**question, "count": 310}])
    for found, wanted in ((ours(question, 310), here), (answer["ticks"], there)):
        shown = [datetime.fromtimestamp(at, known) for at in found or ()]
        assert " ".join(f"{at:%H:%M}" for at in shown if f"{at:%Y-%m-%d}" == day) == wanted
