"""A proposal and its forecast as text and as JSON: what `caretaker plan` prints. Pure but for the look at the
terminal."""

import sys
from collections import Counter
from typing import Any, Final

from caretaker.cli.daemontask.calendar_text import budget_json, calendar_lines, schedule_json
from caretaker.cli.propose import Proposal
from caretaker.cli.text import STATE_ORDER, STATE_WORDS, Colours, age, counts, cut, number, one_line, table
from caretaker.daemontask.decision_cache import NodeReport
from caretaker.daemontask.forecast import Forecast
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.resource import RawTask, read_task

_SHOWN: Final = 50  # nodes listed for each state, without -o wide
_GROUPS: Final = 20


TaskProposal = Proposal[RawTask]


def as_json(proposal: TaskProposal, made: Forecast | None) -> dict[str, Any]:
    """For programs; without a forecast where the server refuses the task itself."""
    meta = proposal.raw.metadata
    head: dict[str, Any] = {
        "namespace": meta.namespace,
        "name": meta.name,
        "exists": proposal.before is not None,
        "refusals": proposal.refusals,
        "notes": proposal.notes,
    }
    if made is None:
        return head
    return {
        **head,
        "revision": made.snapshot.revision,
        "templateChanges": _changes(proposal, made),
        "hold": made.plan.hold,
        "desired": made.plan.desired,
        "counts": made.plan.counts,
        "startAtOnce": made.at_once,
        "parallelism": made.room.beyond if made.snapshot.task.spec.parallelism is not None else None,
        "schedule": schedule_json(made),
        "budget": budget_json(made),
        "waves": made.waves,
        "podsToDelete": len(made.plan.deletes),
        "nodes": [_node_json(proposal, made, report) for report in made.reports.values()],
    }


def _node_json(proposal: TaskProposal, made: Forecast, report: NodeReport) -> dict[str, Any]:
    decision = report.decision
    return {
        "node": report.node.name,
        "state": decision.state,
        "reason": decision.reason,
        "message": decision.message,
        "trigger": decision.start or None,
        # The order among nodes follows from the task's UID, which only a task that exists has.
        "wave": made.turns.get(report.node.name) if proposal.before else None,
    }


def _changes(proposal: TaskProposal, made: Forecast) -> bool:
    if proposal.before is None:
        return False
    before, _ = read_task(proposal.before)
    return revision_of(before.spec, before.status) != made.snapshot.revision


def as_text(proposal: TaskProposal, made: Forecast | None, *, wide: bool) -> list[str]:
    """For people: the sum, the reasons with their counts, the nodes."""
    meta = proposal.raw.metadata
    head = f"DaemonTask {meta.namespace}/{meta.name}"
    notes = [f"  note: {note}" for note in proposal.notes]
    if made is None:
        return [f"{head}: refused", *notes]
    colours = Colours(sys.stdout)
    if made.plan.hold == "InvalidSpec" and not wide:
        return [f"{head}: refused, {number(made.plan.desired, 'node')} would not run it", *notes]
    return [
        f"{head}: {_kind_of_change(proposal, made)}",
        f"  {_summary(made)}",
        *(f"  {line}" for line in calendar_lines(made)),
        *notes,
        "",
        *colours.lines(_groups(made)),
        "",
        *colours.lines(_rows(proposal, made, wide=wide)),
    ]


def _kind_of_change(proposal: TaskProposal, made: Forecast) -> str:
    if proposal.before is None:
        return f"new, revision {made.snapshot.revision}"
    if _changes(proposal, made):
        old, _ = read_task(proposal.before)
        revision = revision_of(old.spec, old.status)
        return f"its template changes, revision {revision} -> {made.snapshot.revision}"
    return f"exists, its template does not change, revision {made.snapshot.revision}"


def _summary(made: Forecast) -> str:
    due, hold = len(made.turns), made.plan.hold
    everything = f"of {number(made.plan.desired, 'node')} it is for"
    if hold:
        waiting = made.plan.counts["pending"]
        meta = made.snapshot.task.metadata
        why = _HOLDS.get(hold, hold).format(name=f"{meta.name} -n {meta.namespace}")
        return f"nothing would be started: {why}; {waiting} {everything} wait"
    if made.plan.awaiting and not due:
        return f"{made.plan.awaiting} {everything} would run at its first tick"
    if not due:
        return f"nothing would be started: {counts(made.plan.counts) or 'there are no nodes'}"
    text = f"{due} {everything} would run"
    if made.at_once == due:
        return f"{text}, all at once"
    closed = made.room.budget is not None and not made.room.width
    at_once = (
        f"{made.at_once} at once"
        if made.at_once
        else f"none before a {'budget' if closed else 'slot'} is free"
    )
    waves = f"{made.waves} wave{'s' * (made.waves > 1)} of at most {made.room.width or made.room.beyond}"
    parallelism = made.snapshot.task.spec.parallelism
    limit = f"parallelism {parallelism}" if made.room.budget is None else "budgets"
    return f"{text}: {at_once}, {waves} in all ({limit})"


_HOLDS: Final = {
    "Suspended": "spec.suspend is true",
    "Paused": "failurePolicy has paused it (caretaker resume daemontask {name})",
    "InvalidSpec": "the API server refuses its pods",
    "NodesFailed": "it has failed; fix it, then caretaker rerun daemontask {name}",
    "LedgerLost": "its ledger is lost; decide by the annotation caretaker.dev/ledger",
}


def _what(made: Forecast, report: NodeReport) -> str:
    state = report.decision.state
    if state == "pending":
        return "would run" if report.node.name in made.turns else "pending"
    return STATE_WORDS.get(state, state)


def _why(report: NodeReport) -> tuple[str, str]:
    decision = report.decision
    return decision.start or decision.reason, one_line(decision.message)


def _groups(made: Forecast) -> list[str]:
    """How many nodes share a fate, the most first within each state."""
    found: Counter[tuple[int, str, str, str]] = Counter()
    for report in made.reports.values():
        place = STATE_ORDER.index(report.decision.state)
        found[place if report.decision.state != "pending" else -1, _what(made, report), *_why(report)] += 1
    groups = sorted(found.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    rows = [
        [what, str(number), reason, cut(message, 100)]
        for (_, what, reason, message), number in groups[:_GROUPS]
    ]
    if len(groups) > _GROUPS:
        left = sum(number for _, number in groups[_GROUPS:])
        rows.append(["...", str(left), f"{len(groups) - _GROUPS} more reasons", ""])
    return table([["WHAT", "NODES", "WHY", ""], *rows])


def _rows(proposal: TaskProposal, made: Forecast, *, wide: bool) -> list[str]:
    """A row a node, those that would run first."""
    # Who goes first follows from the task's UID: of a task that is new nobody can tell.
    known = proposal.before is not None
    last = made.waves + 1

    def place(report: NodeReport) -> tuple[int, str]:
        wave = made.turns.get(report.node.name, last)
        return (wave if known else int(wave == last)), report.node.name

    listed: Counter[str] = Counter()
    rows = []
    for report in sorted(made.reports.values(), key=place):
        what = _what(made, report)
        listed[what] += 1
        if listed[what] > _SHOWN and not wide:
            continue
        reason, message = _why(report)
        if report.decision.reason == "Backoff":
            message = f"again in {age(report.decision.wake - made.snapshot.now)}; {message}"
        wave = made.turns.get(report.node.name)
        what = f"{what}, wave {wave}" if known and wave and made.waves > 1 else what
        rows.append([report.node.name, what, reason, message])
    lines = table([["NODE", "WHAT", "WHY", ""], *rows])
    more = {what: count - _SHOWN for what, count in listed.items() if count > _SHOWN}
    if more and not wide:
        lines.append(f"and more: {', '.join(f'{n} {what}' for what, n in more.items())}; -o wide lists them")
    return lines
