"""Fixtures of all tests of DaemonTask that need no server."""

import pytest

from caretaker.daemontask import cron_calendar


@pytest.fixture(scope="session", autouse=True)
def fresh_schedules() -> None:
    """Collection, too, reads some: tests must not be answered from what was read then, by other code perhaps
    (`make mutants` forks)."""
    cron_calendar.read.cache_clear()
    cron_calendar.read_zone.cache_clear()
