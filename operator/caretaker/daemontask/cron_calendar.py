"""When a cron expression comes round, by the rules of CronJob.

Pure: (expression, time zone, moment) -> moment. A tick is every instant at which the zone's wall clock
matches the expression. So an hour that is left out takes its ticks along, and one that comes twice has them
twice, as robfig/cron, CronJob's library, has it. cronsim knows fields and calendar; it is given the wall
clock as if that were UTC: in a zone it follows Debian's cron, which moves some of those ticks and drops some.
"""

import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_WEEK: Final = 7 * 86400
MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class _Field(NamedTuple):
    name: str
    value: str  # regular expression of one value
    first: int
    last: int

    @property
    def pattern(self) -> str:
        """The pattern of the whole field: values, ranges, steps. crds/daemontasks.yaml has it in a rule."""
        item = rf"([*?]|({self.value})(-({self.value}))?)(/0*[1-9][0-9]?)?"
        return f"{item}(,{item})*"

    def number(self, value: str) -> int:
        """The number of one value, which may be a name."""
        names = [name for name in self.value.split("|") if name.isalpha()]
        return names.index(value.lower()) + self.first if value.isalpha() else int(value)


FIELDS: Final = (
    _Field("minute", "[0-5]?[0-9]", 0, 59),
    _Field("hour", "[01]?[0-9]|2[0-3]", 0, 23),
    _Field("day of the month", "0?[1-9]|[12][0-9]|3[01]", 1, 31),
    _Field("month", "0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec", 1, 12),
    _Field("day of the week", "0?[0-6]|sun|mon|tue|wed|thu|fri|sat", 0, 6),
)


class Calendar:
    """The ticks of one expression in one zone. Moments are seconds since the epoch. Made by read()."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        self._expression = expression
        self._zone = zone
        self._steady = zone.key in ("UTC", "Etc/UTC")

    def after(self, moment: float) -> float:
        """The first tick later than this."""
        at = math.floor(moment)
        while True:
            offset = self._offset(at + 1)
            found = self._nearest(at + offset, reverse=False) - offset
            change = self._change(at + 1, found, offset)
            if change is None:
                return float(found)
            at = change - 1

    def last(self, moment: float) -> float:
        """The last tick that is not later than this."""
        at = math.floor(moment)
        while True:
            offset = self._offset(at)
            found = self._nearest(at + offset + 1, reverse=True) - offset
            change = self._change(at, found, offset)
            if change is None:
                return float(found)
            at = change

    def _nearest(self, clock: int, *, reverse: bool) -> int:
        """The next wall clock that the expression names, not this one itself. In seconds, as if in UTC."""
        return int(next(CronSim(self._expression, datetime.fromtimestamp(clock, UTC), reverse)).timestamp())

    def _offset(self, at: int) -> int:
        """By how many seconds the wall clock is ahead of UTC then."""
        offset = datetime.fromtimestamp(at, self._zone).utcoffset()
        return 0 if offset is None else int(offset.total_seconds())

    def _change(self, at: int, to: int, offset: int) -> int | None:
        """The instant nearest to `at`, on the way to `to`, with another offset; None if there is none.

        Looked for once a week: no zone changes its offset twice within one.
        """
        step = _WEEK if to > at else -_WEEK
        while not self._steady and at != to:
            then = min(at + step, to) if step > 0 else max(at + step, to)
            if self._offset(then) != offset:
                while abs(then - at) > 1:
                    middle = (at + then) // 2
                    at, then = (middle, then) if self._offset(middle) == offset else (at, middle)
                return then
            at = then
        return None


@lru_cache(maxsize=1024)
def read(expression: str, zone: str) -> Calendar:
    """Raises ValueError, with the reason in words, without a valid schedule and time zone."""
    time_zone = read_zone(zone)
    fields = MACROS.get(expression.strip(), expression).split()
    if len(fields) != len(FIELDS):
        raise ValueError(
            f"{expression!r} is neither five fields, such as '0 3 * * 1-5', nor one of {', '.join(MACROS)}"
        )
    for text, field in zip(fields, FIELDS, strict=True):
        if not re.fullmatch(field.pattern, text, re.IGNORECASE):
            raise ValueError(f"{expression!r}: {text!r} is no {field.name}")
    try:
        plain = " ".join(_plain(text, field) for text, field in zip(fields, FIELDS, strict=True))
        CronSim(plain, datetime.fromtimestamp(0, UTC))
    except (CronSimError, ValueError) as error:
        raise ValueError(f"{expression!r} never comes: {str(error).lower()}") from error
    return Calendar(plain, time_zone)


@lru_cache(maxsize=256)
def read_zone(name: str) -> ZoneInfo:
    """Raises ValueError, with the reason in words, when there is no such time zone."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # OSError: a folder of zones, such as Europe
        raise ValueError(
            f"{name!r} is not a time zone of the IANA database, such as Europe/Berlin"
        ) from error


def _plain(text: str, field: _Field) -> str:
    """The field's values one by one, which cronsim cannot take for others than robfig/cron does; only a bare
    `*` leaves the choice of days to the other of the two fields about days."""
    values: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        low, dash, high = span.partition("-")
        if low in ("*", "?"):
            if int(step or 1) == 1:
                return "*"
            first, last = field.first, field.last
        else:
            first = last = field.number(low)
            if dash:
                last = field.number(high)
            elif step:
                last = field.last
        if first > last:
            raise ValueError(f"bad {field.name}")
        values.update(range(first, last + 1, int(step or 1)))
    return ",".join(str(value) for value in sorted(values))
