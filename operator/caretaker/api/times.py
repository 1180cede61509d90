"""RFC 3339 times, as the Kubernetes API writes them.

Inside caretaker a time is a float: seconds since 1970-01-01 UTC. Text exists only at the edge.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

_FIRST: Final = -62135596800.0  # 0001-01-01T00:00:00Z
_LAST: Final = 253402300799.0  # 9999-12-31T23:59:59Z


def parse_time(text: str | None) -> float | None:
    """Seconds since the epoch; None for None, an empty string, or anything that is not RFC 3339."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    seconds = moment.timestamp()
    # An offset can carry a valid date out of the years that datetime can print.
    return seconds if _FIRST <= seconds <= _LAST else None


def format_time(seconds: float) -> str:
    """The metav1.Time form: whole seconds, UTC, `Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).replace(tzinfo=None).isoformat() + "Z"


def past(moment: float, now: float) -> float:
    """The moment, or 0 for one that lies ahead: it comes from a wrong clock."""
    return moment if moment <= now else 0.0


def normalise_time(text: str | None) -> str:
    """The same moment in UTC with microseconds, so that text order is time order; empty if not RFC 3339."""
    seconds = parse_time(text)
    if seconds is None:
        return ""
    return format_micros(seconds)


def format_micros(seconds: float) -> str:
    """The form of normalise_time: UTC with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def stamp_after(now: float, earlier: Iterable[str]) -> str:
    """A mark for something asked now: `now` with microseconds, or just after the latest of `earlier`.

    `earlier` are marks of this form or empty; one may lie ahead, set by a machine whose clock is ahead.
    """
    latest = parse_time(max(earlier, default=""))
    return format_micros(now if latest is None or latest < now else latest + 1e-5)
