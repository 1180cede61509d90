"""Table cells for targets of an S3AggregatedRefresh: waiting folders, calls, results, next call. Pure."""

from datetime import UTC, datetime
from typing import Any, Final

from caretaker.api.times import format_time
from caretaker.cli.text import age, cut, number, one_line
from caretaker.s3refresh import folders
from caretaker.s3refresh.debounce import LastCall, TargetState
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.forecast import Next

_SHOWN: Final = 3  # folders in a cell, without -o wide
_NAME: Final = 32  # characters of one of them
_LATE_SECONDS: Final = 60.0  # a call that is due for longer points to an operator that does not run

PHASE_COLOURS: Final = {
    "Backoff": "31",
    "Due": "33",
    "Claimed": "36",
    "InFlight": "36",
    "Debouncing": "",
    "Clean": "32",
}


def names_in(scope: Scope) -> list[str]:
    """Its folders, the deepest first as calls name them; a tree ends in /..."""
    if scope.all:
        return ["everything"]
    every = [(name, name) for name in scope.folders] + [(name, f"{name}/...") for name in scope.trees]
    return [shown for _, shown in sorted(every, key=lambda pair: (-_depth(pair[0]), pair))]


def _depth(folder: str) -> int:
    return 0 if folder == folders.ROOT else folder.count("/") + 1


def listed(names: list[str], *, wide: bool) -> str:
    """`3: 2026/11, 2026, /`; of more than a few the first."""
    if names == ["everything"] or not names:
        return names[0] if names else "-"
    shown = names if wide else [cut(one_line(name), _NAME) for name in names[:_SHOWN]]
    more = ", ..." if len(shown) < len(names) else ""
    return f"{len(names)}: {', '.join(shown)}{more}"


def dirty(target: TargetState, *, wide: bool) -> str:
    """The buckets and folders that wait."""
    return "-" if target.dirty is None else listed(names_in(target.dirty.waiting), wide=wide)


def under_way(target: TargetState, now: float) -> str:
    """The call that is being made, or the refresh that was accepted."""
    if target.claim is not None:
        return f"calling for {age(now - target.claim.started_at)}"
    if target.in_flight is not None:
        return f"for {age(now - target.in_flight.accepted_at)}"
    return "-"


def last(of: LastCall, now: float) -> str:
    """When the last refresh was accepted, how much it was of, how it ended."""
    if not of.accepted_at:
        return f"asked for {age(now - of.requested_at)} ago" if of.requested_at else "-"
    what = "everything" if of.full_at == of.accepted_at else number(of.folders, "folder")
    return f"{age(now - of.accepted_at)} ago, {what}{_end(of)}"


def _end(of: LastCall) -> str:
    if of.completed_at < of.accepted_at:
        return ""
    if of.result == "Succeeded":
        return f", took {age(of.completed_at - of.accepted_at)}"
    return {"Assumed": ", end assumed", "Lost": ", end not heard of"}.get(
        of.result, f", {of.result}".rstrip(", ")
    )


def failure(target: TargetState, *, wide: bool) -> str:
    """How many calls failed in a row, and why the last one did."""
    if target.failure is None:
        return "-"
    of = target.failure
    return f"{of.count} {of.code}: {of.message}" if wide else str(of.count)


def when(upcoming: Next, now: float) -> str:
    """The time of the next call."""
    if upcoming.at is None:
        return "-"
    if upcoming.why in ("Turn", "Due"):
        return f"due for {age(now - upcoming.at)}"
    if upcoming.latest and upcoming.not_before is not None and upcoming.not_before > now:
        return f"in {age(upcoming.not_before - now)}, {clock(upcoming)}"
    ahead = f"in {age(upcoming.at - now)}" if upcoming.at > now else "now"
    return f"{clock(upcoming)}, {ahead}" if upcoming.latest else ahead


def clock(upcoming: Next) -> str:
    """The time of a next call that has one, to the second, UTC."""
    shown = datetime.fromtimestamp(upcoming.at or 0.0, UTC).strftime("%H:%M:%SZ")
    return f"at the latest at {shown}" if upcoming.latest else f"at {shown}"


def why(upcoming: Next, now: float) -> str:
    """Why not before."""
    late = upcoming.why == "Due" and upcoming.at is not None and now - upcoming.at > _LATE_SECONDS
    return f"{upcoming.message}: does it run?" if late else upcoming.message


def next_json(upcoming: Next) -> dict[str, Any]:
    """For programs."""
    return {
        "why": upcoming.why,
        "message": upcoming.message,
        "at": _time(upcoming.at),
        "latest": upcoming.latest,
        "notBefore": _time(upcoming.not_before),
        **request_json(upcoming.request),
    }


def request_json(request: Request | None) -> dict[str, Any]:
    """One call: its folders, and whether it includes their subfolders."""
    if request is None:
        return {"folders": [], "recursive": False}
    return {"folders": list(request.folders), "recursive": request.recursive}


def _time(moment: float | None) -> str | None:
    return None if moment is None else format_time(moment)
