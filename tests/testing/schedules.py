"""A schedule that has missed its ticks for years, so that one is due at once and the next is far away."""

from datetime import UTC, datetime
from typing import Final

from testbed.admin import Admin, path

YEARLY: Final = "0 0 1 1 *"
AT: Final = "caretaker.dev/scheduled-at"


def this_year() -> str:
    """The last tick of YEARLY."""
    return f"{datetime.now(UTC).year}-01-01T00:00:00Z"


def next_year() -> str:
    """The next tick of YEARLY."""
    return f"{datetime.now(UTC).year + 1}-01-01T00:00:00Z"


async def last_seen_years_ago(admin: Admin, namespace: str, name: str) -> None:
    """Status of a DaemonTask with the schedule YEARLY as if no operator had run since 2020."""
    seen = {"schedule": YEARLY, "timeZone": "Etc/UTC", "since": "2019-06-01T00:00:00Z"}
    stored = {"lastScheduleTime": "2020-01-01T00:00:00Z", "observedSchedule": seen}
    await admin.patch(path("daemontasks", namespace, name, "status"), {"status": stored})
