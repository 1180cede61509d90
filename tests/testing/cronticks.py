"""What robfig/cron, the library of CronJob, answers: dev/gotools/cronticks. Questions of all forms of fields.

`python -m testing.cronticks` prints the table of tests/unit/daemontask/cronticks.json, from a fixed seed.
"""

import json
import random
import subprocess
from collections.abc import Sequence
from typing import Any, Final

import gotools
from caretaker.daemontask.cron_calendar import FIELDS

Json = dict[str, Any]

# Zones whose clocks change by whole hours, and never at midnight; in the others robfig/cron errs.
ZONES: Final = (
    *("Etc/UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Los_Angeles"),
    *("Australia/Sydney", "Asia/Kolkata"),
)
ROWS: Final = 400
_NAMES: Final = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "day of the week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_STEPS: Final = (1, 1, 2, 3, 5, 7, 10, 31, 60, 99)
_FIRST, _LAST = 1262304000, 4070908800  # 2010 to 2099


def ask(questions: Sequence[Json]) -> list[Json]:
    """The answer to each {"expression", "zone", "after", "count"}: {"ticks"}, and perhaps {"error"}."""
    asked = "\n".join(json.dumps(question) for question in questions)
    made = subprocess.run(
        [gotools.path("cronticks")], input=asked, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in made.stdout.splitlines()]


def questions(seed: int, count: int) -> list[Json]:
    """Random ones. Of their ranges some have no first value at the beginning, and are refused."""
    chance = random.Random(seed)
    return [
        {
            "expression": " ".join(_field(chance, place) for place in range(len(FIELDS))),
            "zone": chance.choice(ZONES),
            "after": chance.randint(_FIRST, _LAST),
            "count": 4,
        }
        for _ in range(count)
    ]


def _field(chance: random.Random, place: int) -> str:
    if chance.random() < 0.3:
        return "*"
    return ",".join(_item(chance, place) for _ in range(chance.choice((1, 1, 1, 2, 3))))


def _item(chance: random.Random, place: int) -> str:
    field = FIELDS[place]
    step = "" if chance.random() < 0.5 else f"/{chance.choice(_STEPS)}"
    kind = chance.random()
    if kind < 0.25:
        return chance.choice("*?") + step
    low = chance.randint(field.first, field.last)
    if kind < 0.6:
        return _value(chance, place, low) + step
    high = chance.randint(low if kind < 0.98 else field.first, field.last)
    return f"{_value(chance, place, low)}-{_value(chance, place, high)}{step}"


def _value(chance: random.Random, place: int, value: int) -> str:
    field = FIELDS[place]
    if field.name in _NAMES and chance.random() < 0.4:
        name = _NAMES[field.name][value - field.first]
        return chance.choice((name, name.upper(), name.title()))
    return str(value) if chance.random() < 0.8 else f"{value:02}"


def table() -> list[Json]:
    """Rows with their answers, for those who have no Go."""
    asked = questions(0, ROWS)
    return [question | answer for question, answer in zip(asked, ask(asked), strict=True)]


if __name__ == "__main__":
    print("[\n" + ",\n".join(json.dumps(row) for row in table()) + "\n]")
