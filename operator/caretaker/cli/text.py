"""Text for people: tables, ages, a progress bar, problems with actions, colours where they are wanted. And
the first fields of `status -o json`.

Pure except for the look at stdout. Every output can be understood without colour. Problems are found from
conditions; each kind gives its positive conditions, normal reasons and actions.
"""

import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from caretaker.api.conditions import READY, Condition, find
from caretaker.api.objects import WireMeta
from caretaker.api.times import parse_time
from caretaker.daemontask.decision import State
from caretaker.settings import colour_wanted

# For commands that call AWS with the user's credentials.
CREDENTIALS_ADVICE: Final = "give yourself AWS credentials, as by AWS_PROFILE=...; the operator has its own"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
BAR: Final = 24
Numbers = Mapping[State, int]  # nodes in each state
S = TypeVar("S")

STATE_ORDER: Final[tuple[State, ...]] = ("failed", "blocked", "active", "pending", "succeeded", "excluded")
_COUNT_ORDER: Final[tuple[State, ...]] = ("succeeded", "failed", "active", "pending", "blocked", "excluded")
STATE_WORDS: Final[Mapping[State, str]] = {"excluded": "left out"}
# Word -> SGR code, of states of nodes.
_STATE_COLOURS: Final = {
    "failed": "31",
    "blocked": "33",
    "active": "36",
    "succeeded": "32",
    "pending": "",
    "excluded": "2",
    "left out": "2",
}


def one_line(text: str) -> str:
    """Without line breaks and control characters: a Pod's message must not paint the terminal."""
    return _CONTROL.sub(" ", text).strip()


def json_text(value: Any) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def show(
    state: S, output: str | None, as_json: Callable[[S], Any], as_text: Callable[[S, bool], list[str]]
) -> None:
    """Print the state as JSON or as text; `as_text` takes whether nothing is cut."""
    print(json_text(as_json(state)) if output == "json" else "\n".join(as_text(state, output == "wide")))


def number(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cut(text: str, width: int, *, wide: bool = False) -> str:
    """At most `width` characters, unless all are wanted."""
    return text if wide or len(text) <= width else text[: width - 1] + "…"


def cell(value: object) -> str:
    """The value, or `-` where there is none."""
    return "-" if value is None or value == "" else str(value)


def age(seconds: float) -> str:
    """As kubectl shows it, in one unit: 45s, 12m, 3h, 9d."""
    seconds = max(int(seconds), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def ago(stamp: str | None, now: float) -> str:
    """`3m ago`, or `-` without a time."""
    at = parse_time(stamp)
    return f"{age(now - at)} ago" if at else "-"


def table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Columns two spaces apart, the last one as long as it is."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]) - 1)] if cells else []
    return [
        (indent + "  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]])).rstrip()
        for row in cells
    ]


def section(head: str, rows: Iterable[Sequence[str]], more: str = "", indent: str = "") -> list[str]:
    """An empty line, the table, `more`; nothing without rows. `head`: its columns, by two spaces."""
    rows = list(rows)
    return ["", *table([head.split("  "), *rows], indent), *([more] if more else [])] if rows else []


def counts(numbers: Numbers, skip: Sequence[str] = ()) -> str:
    """`12 succeeded, 3 active, 2 left out`: the states that any node is in."""
    states = [state for state in _COUNT_ORDER if numbers.get(state) and state not in skip]
    return ", ".join(f"{numbers[state]} {STATE_WORDS.get(state, state)}" for state in states)


def bar(numbers: Numbers) -> str:
    """`[######!---]  7/11`: succeeded, failed, remaining."""
    total = sum(count for state, count in numbers.items() if state != "excluded")
    succeeded = numbers.get("succeeded", 0)
    done = BAR * succeeded // max(total, 1)
    # Failures are visible even if they are less than a cell.
    failed = min(-(-BAR * numbers.get("failed", 0) // max(total, 1)), BAR - done)
    return f"[{'#' * done}{'!' * failed}{'-' * (BAR - done - failed)}]  {succeeded}/{total}"


def terminal_width() -> int:
    """Columns that a line may have without wrapping."""
    return shutil.get_terminal_size().columns - 1


def coloured(lines: Iterable[str], colours: Mapping[str, str] = _STATE_COLOURS) -> list[str]:
    """The first known word of each line in its colour, if stdout is a terminal that shows colours."""
    if not colour_wanted(tty=sys.stdout.isatty()):
        return list(lines)

    def paint(word: re.Match[str]) -> str:
        code = colours[word[0]]
        return f"\x1b[{code}m{word[0]}\x1b[0m" if code else word[0]

    return [re.sub(rf"(?<!\S)({'|'.join(colours)})(?!\S)", paint, line, count=1) for line in lines]


def head_json(meta: WireMeta, observed: int) -> dict[str, Any]:
    """The first fields of `status -o json`. `observed`: the generation of the status."""
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "generation": meta.generation,
        "observedGeneration": observed,
    }


def ready_line(conditions: Iterable[Condition], now: float) -> list[str]:
    """The Ready condition in a line; none before the first reconcile. The age is that of its status: a
    condition does not record the time of its reason's last change."""
    ready = find(conditions, READY)
    if ready is None:
        return []
    since = parse_time(ready.last_transition_time)
    passed = f" for {age(now - since)}" if since else ""
    return [f"Ready={ready.status}{passed}: {ready.reason}"]


def abnormal(
    conditions: Iterable[Condition], positive: Collection[str], normal: Collection[str]
) -> dict[str, Condition]:
    """The conditions that report a problem or wait for a person, by reason, the first of each.

    positive  types that are True in the normal case; all others are absent or False then
    normal    reasons that need no action
    """
    found: dict[str, Condition] = {}
    for condition in conditions:
        is_abnormal = condition.status != "True" if condition.type in positive else condition.status == "True"
        if is_abnormal and condition.reason not in normal:
            found.setdefault(condition.reason, condition)
    return found


def problems(
    meta: WireMeta, observed: int, found: Mapping[str, Condition], actions: Mapping[str, str]
) -> list[str]:
    """Each condition of `found` with its action. `observed`: the generation of the status."""
    lines = []
    if observed < meta.generation:
        lines.append(
            "the operator has not looked at this yet; if that lasts: does it run, and in this namespace?"
        )
    for reason, condition in found.items():
        lines.append(f"{condition.type}: {reason}: {one_line(condition.message)}")
        if action := actions.get(reason):
            lines.append(f"  -> {action}")
    return lines
