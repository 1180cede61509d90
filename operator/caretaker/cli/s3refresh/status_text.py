"""An S3AggregatedRefresh's state as text and as JSON; `caretaker status` prints it. Pure but for the look at
the terminal."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.s3refresh import QueueStatus
from caretaker.api.times import parse_time
from caretaker.cli.diagnostics import diagnostics, ready_line
from caretaker.cli.s3refresh import cells
from caretaker.cli.s3refresh.advice import abnormal_conditions, advice
from caretaker.cli.text import Colours, age, cut, json_text, number, one_line, table
from caretaker.s3refresh.debounce import Phase
from caretaker.s3refresh.forecast import Outlook, outlooks
from caretaker.s3refresh.resource import RawRefresh, Read, read
from caretaker.s3refresh.targets import registry

_WHY: Final = 90  # characters, without -o wide
_PHASES: Final[tuple[Phase, ...]] = ("Backoff", "Due", "Claimed", "InFlight", "Debouncing", "Clean")


class RefreshState(msgspec.Struct, frozen=True):
    """The resource at one time."""

    read: Read
    outlooks: Sequence[Outlook]
    now: float

    @classmethod
    def at(cls, raw: RawRefresh, now: float) -> "RefreshState":
        """The validated resource of the API server."""
        found = read(raw, registry().spec)
        return cls(found, outlooks(found, now), now)


def show(state: RefreshState, output: str | None) -> None:
    """Print the whole of it to stdout."""
    if output == "json":
        print(json_text(as_json(state)))
    else:
        print("\n".join(as_text(state, wide=output == "wide")))


def as_json(state: RefreshState) -> dict[str, Any]:
    """For programs: the record, and the next call of each target."""
    meta, status = state.read.meta, state.read.status
    record = {target.id: msgspec.to_builtins(target) for target in status.targets}
    empty = dict.fromkeys(("dirty", "claim", "inFlight", "last", "failure"))
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "generation": meta.generation,
        "observedGeneration": status.observed_generation,
        "conditions": status.conditions,
        "queue": status.queue,
        "targets": [
            {**empty, **record[one.target.id], "phase": one.phase, "next": cells.next_json(one.next)}
            for one in state.outlooks
        ],
    }


def as_text(state: RefreshState, *, wide: bool) -> list[str]:
    """For people: the sum, the problems with actions, the targets."""
    meta, status = state.read.meta, state.read.status
    lines = [f"S3AggregatedRefresh {meta.namespace}/{meta.name}: {summary(state)}"]
    lines += [f"  {line}" for line in ready_line(status.conditions, state.now)]
    lines.append(f"  queue: {_queue(status.queue, state.now)}")
    abnormal = abnormal_conditions(status.conditions)
    lines += [f"  {line}" for line in diagnostics(meta, status.observed_generation, abnormal, advice)]
    if state.outlooks:
        lines += ["", *Colours(sys.stdout, cells.PHASE_COLOURS).lines(_rows(state, wide=wide))]
    return lines


def summary(state: RefreshState) -> str:
    """`2 targets, 1 InFlight, 1 Clean`."""
    found = Counter(one.phase for one in state.outlooks)
    phases = [f"{found[phase]} {phase}" for phase in _PHASES if found[phase]]
    return ", ".join([number(len(state.outlooks), "target"), *phases])


def waiting(state: RefreshState) -> str:
    """`3 folders wait`, or nothing."""
    scopes = [one.target.dirty.waiting for one in state.outlooks if one.target.dirty is not None]
    count = sum(len(scope.folders) + len(scope.trees) for scope in scopes)
    parts = [f"everything of {number(whole, 'target')}"] if (whole := sum(s.all for s in scopes)) else []
    if count:
        parts.append(number(count, "folder"))
    return f"; waiting: {' and '.join(parts)}" if parts else ""


def news(before: RefreshState, now: RefreshState) -> Iterator[str]:
    """Calls that were accepted or failed between two looks."""
    old = {one.target.id: one.target for one in before.outlooks}
    for one in now.outlooks:
        was, target = old.get(one.target.id), one.target
        if target.last.accepted_at > (was.last.accepted_at if was is not None else 0.0):
            yield f"{target.id}: accepted, {_what(one)}"
        failure, earlier = target.failure, was.failure if was is not None else None
        if failure is not None and failure.count > (earlier.count if earlier is not None else 0):
            yield one_line(f"{target.id}: failed, {failure.code}: {failure.message}")


def _what(one: Outlook) -> str:
    of = one.target.last
    return "everything" if of.full_at == of.accepted_at else number(of.folders, "folder")


def _queue(queue: QueueStatus, now: float) -> str:
    checked = parse_time(queue.checked_at)
    if checked is None:
        return "not looked at yet"
    return (
        f"{queue.visible} visible, {queue.in_flight} in flight, {queue.dlq_visible} in the dead-letter "
        f"queue, {age(now - checked)} ago"
    )


def _rows(state: RefreshState, *, wide: bool) -> list[str]:
    head = ["TARGET", "PHASE", "DIRTY", "IN-FLIGHT", "LAST", "FAILURES", "NEXT", "WHY"]
    return table([head, *(_row(one, state.now, wide=wide) for one in state.outlooks)])


def _row(one: Outlook, now: float, *, wide: bool) -> list[str]:
    why = cells.why(one.next, now)
    return [
        one.target.id,
        one.phase,
        cells.dirty(one.target, wide=wide),
        cells.under_way(one.target, now),
        cells.last(one.target.last, now),
        cells.failure(one.target, wide=wide),
        cells.when(one.next, now),
        why if wide else cut(one_line(why), _WHY),
    ]
