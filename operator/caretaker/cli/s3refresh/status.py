"""caretaker status of an S3AggregatedRefresh: each target, as the record in its status has it."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.s3refresh import CostStatus, QueueStatus, RequestsStatus
from caretaker.api.times import format_time, parse_time
from caretaker.cli.common import Session, get
from caretaker.cli.status import View, follow_to_the_end
from caretaker.cli.text import (
    abnormal,
    age,
    ago,
    cell,
    coloured,
    cut,
    head_json,
    number,
    one_line,
    problems,
    ready_line,
    section,
    show,
)
from caretaker.kube.watches import Watches, running
from caretaker.registry import S3_AGGREGATED_REFRESH as KIND
from caretaker.s3refresh.costs import summary
from caretaker.s3refresh.debounce import LastCall, TargetState
from caretaker.s3refresh.folders import ROOT, Scope
from caretaker.s3refresh.forecast import Next, Outlook, outlooks
from caretaker.s3refresh.resource import ParsedRefresh, RawRefresh, read
from caretaker.s3refresh.targets import registry

_WHY: Final = 90  # characters of a reason, without -o wide
_SHOWN: Final = 3  # folders in a cell, without -o wide
_NAME: Final = 32  # characters of one of them
_LATE_SECONDS: Final = 60.0  # a call that is due for longer points to an operator that does not run
# The phases, in order, with their colours.
_PHASES: Final = {
    "Backoff": "31",
    "Due": "33",
    "Claimed": "36",
    "InFlight": "36",
    "Debouncing": "",
    "Clean": "32",
}

_POSITIVE: Final = frozenset({c.READY, c.QUEUE_REACHABLE, c.TARGETS_RESOLVED, c.CAUGHT_UP, c.COST_ESTIMATED})
# Reasons that need no action.
NORMAL: Final = frozenset(
    {
        *(Reason.CONSUMING, Reason.REACHABLE, Reason.RESOLVED, Reason.WAITING),
        *(Reason.REFRESHING, Reason.BACKLOG, Reason.UP_TO_DATE),
        *(Reason.ESTIMATED, Reason.INTERVAL_WIDENED, Reason.OVER_BUDGET),
    }
)

ADVICE: Final = {
    Reason.STARTING: "wait; if it lasts, look at the operator's logs",
    Reason.FLUSHING: "wait; if it lasts, see Flushing in docs/operations.md",
    Reason.NOT_CHECKED: "fix the other problems, or wait; if it lasts, look at the operator's logs",
    Reason.SUSPENDED: "set spec.suspend to false to go on, before the queue drops its oldest events",
    Reason.INVALID_SPEC: "correct the field that is named and apply again",
    Reason.NOT_GRANTED: (
        "grant it to the namespace in the Helm value aws.identities, or in the file of --aws-identities "
        "and restart the operator"
    ),
    Reason.CREDENTIALS_UNAVAILABLE: "fix the Secret, or the Role that lets the operator read it",
    Reason.QUEUE_CONFLICT: "give each resource a queue of its own",
    Reason.QUEUE_UNREACHABLE: "see that the operator reaches SQS; it is tried again by itself",
    Reason.QUEUE_NOT_FOUND: "create the queue, or correct spec.source.sqs.queueURL",
    Reason.QUEUE_UNSUITABLE: "change the queue as it says; it is looked at again within the hour",
    Reason.ACCESS_DENIED: "allow the action to the identity that is named; it is tried again by itself",
    Reason.NO_IDENTITY: "give the operator credentials, or name some in spec.aws.credentialsSecretRef",
    Reason.NO_TARGETS: "caretaker plan -f FILE shows the targets found",
    Reason.TARGETS_UNRESOLVED: "fix the cause in the message; caretaker plan -f FILE shows the targets found",
    Reason.TARGET_GONE: "bring it back; gone for good, its record can be taken away: docs/operations.md",
    Reason.REFRESH_FAILING: "fix the cause in the message; it is tried again by itself",
    Reason.COMPLETION_LOST: "see that the gateway's events reach completion.queueURL",
    Reason.IN_FLIGHT_LIMIT: "find the consumer that receives from the queue without deleting",
    Reason.DEAD_LETTERS: "send them back to the queue: docs/operations.md",
    Reason.UNREADABLE: "read the dead-letter queue: something else sends to this queue",
    Reason.COST_UNKNOWN: "fix the cause in the message; refreshes go on meanwhile",
    Reason.INVALID_ANNOTATION: "correct or remove the annotation that is named; it asks for nothing",
    Reason.PERMISSION_DENIED: "give the operator's role the verb that is named",
}


class RefreshState(msgspec.Struct, frozen=True):
    """The resource at one time."""

    read: ParsedRefresh
    outlooks: Sequence[Outlook]
    now: float

    @classmethod
    def at(cls, raw: RawRefresh, now: float) -> "RefreshState":
        """The validated resource of the API server."""
        found = read(raw, registry().spec)
        return cls(found, outlooks(found, now), now)


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read; of a watch, 1 when no further progress is possible without a user."""
    raw = await get(session, KIND, name, RawRefresh)
    if not watch:
        show(RefreshState.at(raw, time.time()), output, as_json, as_text)
        return 0
    watches = Watches(session.client)
    store = watches.add(KIND.path(session.namespace), RawRefresh)

    def read_state() -> RefreshState | None:
        found = store.get(session.namespace, name)
        return None if found is None else RefreshState.at(found.wire, time.time())

    async with running(watches):
        return await follow_to_the_end(watches, read_state, VIEW, f"{KIND.kind} {name}", output)


def as_json(state: RefreshState) -> dict[str, Any]:
    """For programs: the record, and the next call of each target."""
    meta, status = state.read.meta, state.read.status
    record = {target.id: msgspec.to_builtins(target) for target in status.targets}
    empty = dict.fromkeys(("dirty", "claim", "inFlight", "last", "failure"))
    return {
        **head_json(meta, status.observed_generation),
        "conditions": status.conditions,
        "queue": status.queue,
        "requests": status.requests,
        "cost": status.cost,
        "targets": [
            {**empty, **record[one.target.id], "phase": one.phase, "next": next_json(one.next)}
            for one in state.outlooks
        ],
    }


def next_json(upcoming: Next) -> dict[str, Any]:
    """The next call, for programs: its folders, and whether it includes their subfolders."""
    request = upcoming.request
    return {
        "why": upcoming.why,
        "message": upcoming.message,
        "at": None if upcoming.at is None else format_time(upcoming.at),
        "latest": upcoming.latest,
        "notBefore": None if upcoming.not_before is None else format_time(upcoming.not_before),
        "folders": [] if request is None else list(request.folders),
        "recursive": request is not None and request.recursive,
    }


# -------------------------------------------------------------------- text


def as_text(state: RefreshState, wide: bool) -> list[str]:
    """For people: the sum, the problems with actions, the targets."""
    meta, status = state.read.meta, state.read.status
    found = abnormal(status.conditions, _POSITIVE, NORMAL)
    head = [
        *ready_line(status.conditions, state.now),
        f"queue: {_queue(status.queue, state.now)}",
        *_requests(status.requests, state.now),
        *cost_lines(status.cost),
        *problems(meta, status.observed_generation, found, ADVICE),
    ]
    where = "  LOCATION" * wide
    columns = f"TARGET{where}  PHASE  DIRTY  IN-FLIGHT  LAST  FAILURES  NEXT  WHY"
    rows = section(columns, [_row(one, state.now, wide=wide) for one in state.outlooks])
    return [
        f"S3AggregatedRefresh {meta.namespace}/{meta.name}: {_summary(state)}",
        *(f"  {line}" for line in head),
        *coloured(rows, _PHASES),
    ]


def _summary(state: RefreshState) -> str:
    """`2 targets, 1 InFlight, 1 Clean`."""
    found: Counter[str] = Counter(one.phase for one in state.outlooks)
    phases = [f"{found[phase]} {phase}" for phase in _PHASES if found[phase]]
    return ", ".join([number(len(state.outlooks), "target"), *phases])


def _queue(queue: QueueStatus, now: float) -> str:
    checked = parse_time(queue.checked_at)
    if checked is None:
        return "not looked at yet"
    return (
        f"{queue.visible} visible, {queue.in_flight} in flight, {queue.dlq_visible} in the dead-letter "
        f"queue, {age(now - checked)} ago"
    )


def _requests(found: RequestsStatus | None, now: float) -> list[str]:
    """The last request by annotation: when it was made, and whether it is done."""
    if found is None:
        return []
    asked = ago(max(found.refresh_at or "", found.folders_at or ""), now)
    done = f"done {ago(found.done_at, now)}" if found.done_at else "not done yet"
    return [f"refresh: asked for {asked}, {done}"]


def cost_lines(cost: CostStatus | None) -> list[str]:
    """The cost of a refresh, and the interval that the budget allows."""
    if cost is None:
        return []
    widened = f"; the budget makes minInterval {cost.min_interval}" if cost.min_interval else ""
    return [one_line(f"cost: {summary(cost)}{widened}")]


def _row(one: Outlook, now: float, *, wide: bool) -> list[str]:
    target, failure = one.target, one.target.failure
    return [
        target.id,
        *([cell(target.location)] if wide else []),
        one.phase,
        "-" if target.dirty is None else listed(names_in(target.dirty.waiting), wide=wide),
        _under_way(target, now),
        _last(target.last, now),
        "-" if failure is None else str(failure.count) + f" {failure.code}: {failure.message}" * wide,
        when(one.next, now),
        why(one.next, now, wide=wide),
    ]


def names_in(scope: Scope) -> list[str]:
    """Its folders, the deepest first as calls name them; a tree ends in /..."""
    if scope.all:
        return ["everything"]
    every = [(name, name) for name in scope.folders] + [(name, f"{name}/...") for name in scope.trees]
    every.sort(key=lambda pair: (pair[0] == ROOT, -pair[0].count("/"), pair))
    return [shown for _, shown in every]


def listed(names: list[str], *, wide: bool) -> str:
    """`3: 2026/11, 2026, /`; of more than a few the first."""
    if names == ["everything"] or not names:
        return names[0] if names else "-"
    shown = names if wide else [cut(one_line(name), _NAME) for name in names[:_SHOWN]]
    more = ", ..." if len(shown) < len(names) else ""
    return f"{len(names)}: {', '.join(shown)}{more}"


def _under_way(target: TargetState, now: float) -> str:
    """The call that is being made, or the refresh that was accepted."""
    if target.claim is not None:
        return f"calling for {age(now - target.claim.started_at)}"
    return "-" if target.in_flight is None else f"for {age(now - target.in_flight.accepted_at)}"


def _last(of: LastCall, now: float) -> str:
    """When the last refresh was accepted, how much it was of, how it ended."""
    if not of.accepted_at:
        return f"asked for {age(now - of.requested_at)} ago" if of.requested_at else "-"
    ends = {"Succeeded": f"took {age(of.completed_at - of.accepted_at)}"}
    ends |= {"Assumed": "end assumed", "Lost": "end not heard of"}
    end = "" if of.completed_at < of.accepted_at else ends.get(of.result, of.result)
    return f"{age(now - of.accepted_at)} ago, {_amount(of)}{f', {end}' if end else ''}"


def _amount(of: LastCall) -> str:
    return "everything" if of.full_at == of.accepted_at else number(of.folders, "folder")


def when(upcoming: Next, now: float) -> str:
    """The time of the next call."""
    if upcoming.at is None:
        return "-"
    if upcoming.why in ("Turn", "Due"):
        return f"due for {age(now - upcoming.at)}"
    if upcoming.latest and upcoming.not_before is not None and upcoming.not_before > now:
        return f"in {age(upcoming.not_before - now)}, {_clock(upcoming)}"
    ahead = f"in {age(upcoming.at - now)}" if upcoming.at > now else "now"
    return f"{_clock(upcoming)}, {ahead}" if upcoming.latest else ahead


def _clock(upcoming: Next) -> str:
    """The time of a next call that has one, to the second, UTC."""
    shown = datetime.fromtimestamp(upcoming.at or 0.0, UTC).strftime("%H:%M:%SZ")
    return f"at the latest at {shown}" if upcoming.latest else f"at {shown}"


def why(upcoming: Next, now: float, *, wide: bool) -> str:
    """Why not before."""
    late = upcoming.why == "Due" and upcoming.at is not None and now - upcoming.at > _LATE_SECONDS
    return cut(one_line(upcoming.message + ": does it run?" * late), _WHY, wide=wide)


# ------------------------------------------------------------------- watch


def _line(state: RefreshState) -> str:
    """The phases, and how much waits."""
    scopes = [one.target.dirty.waiting for one in state.outlooks if one.target.dirty is not None]
    whole = sum(scope.all for scope in scopes)
    count = sum(len(scope.folders) + len(scope.trees) for scope in scopes)
    parts = [f"everything of {number(whole, 'target')}"] if whole else []
    parts += [number(count, "folder")] if count else []
    return _summary(state) + (f"; waiting: {' and '.join(parts)}" if parts else "")


def _bar(state: RefreshState) -> str:
    """The same, and the next call's time."""
    coming = [one.next for one in state.outlooks if one.next.request is not None and one.next.at is not None]
    first = min(coming, key=lambda upcoming: upcoming.at or 0.0, default=None)
    return _line(state) + (f"; next call {_clock(first)}" if first is not None else "")


def _news(before: RefreshState, now: RefreshState) -> Iterator[str]:
    """Calls that were accepted or failed since."""
    old = {one.target.id: one.target for one in before.outlooks}
    for target in (one.target for one in now.outlooks):
        was = old.get(target.id)
        if target.last.accepted_at > (was.last.accepted_at if was is not None else 0.0):
            yield f"{target.id}: accepted, {_amount(target.last)}"
        failure, earlier = target.failure, was.failure if was is not None else None
        if failure is not None and failure.count > (earlier.count if earlier is not None else 0):
            yield one_line(f"{target.id}: failed, {failure.code}: {failure.message}")


def ended(state: RefreshState) -> int | None:
    """The exit code once every received event has been followed by a refresh (0), or no further progress is
    possible without a user (1, when suspended 0); None before."""
    meta, status = state.read.meta, state.read.status
    if status.observed_generation < meta.generation:
        return None
    if c.find(status.conditions, c.STALLED) is not None:
        return 1
    if c.find(status.conditions, c.SUSPENDED) is not None:
        return 0
    fine = [c.find(status.conditions, kind) for kind in (c.READY, c.CAUGHT_UP)]
    return 0 if all(found is not None and found.status == "True" for found in fine) else None


VIEW: Final = View(_line, _bar, _news, as_json, as_text, ended)
