"""A proposal and its forecast as text and as JSON, for `caretaker plan`. Pure except for the check of the
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


def as_json(proposal: TaskProposal, forecast: Forecast | None) -> dict[str, Any]:
    """For programs; without a forecast where the server refuses the task itself."""
    meta = proposal.raw.metadata
    head: dict[str, Any] = {
        "namespace": meta.namespace,
        "name": meta.name,
        "exists": proposal.before is not None,
        "refusals": proposal.refusals,
        "notes": proposal.notes,
    }
    if forecast is None:
        return head
    return {
        **head,
        "revision": forecast.snapshot.revision,
        "templateChanges": _changes(proposal, forecast),
        "hold": forecast.plan.hold,
        "desired": forecast.plan.nodes.desired,
        "counts": forecast.plan.nodes.counts,
        "startAtOnce": forecast.at_once,
        "parallelism": forecast.room.beyond if forecast.snapshot.task.spec.parallelism is not None else None,
        "schedule": schedule_json(forecast),
        "budget": budget_json(forecast),
        "waves": forecast.waves,
        "podsToDelete": len(forecast.plan.deletes),
        "nodes": [_node_json(proposal, forecast, report) for report in forecast.reports.values()],
    }


def _node_json(proposal: TaskProposal, forecast: Forecast, report: NodeReport) -> dict[str, Any]:
    decision = report.decision
    return {
        "node": report.node.name,
        "state": decision.state,
        "reason": decision.reason,
        "message": decision.message,
        "trigger": decision.start or None,
        # The order among nodes follows from the task's UID, which only a task that exists has.
        "wave": forecast.turns.get(report.node.name) if proposal.before else None,
    }


def _changes(proposal: TaskProposal, forecast: Forecast) -> bool:
    if proposal.before is None:
        return False
    before, _ = read_task(proposal.before)
    return revision_of(before.spec, before.status) != forecast.snapshot.revision


def as_text(proposal: TaskProposal, forecast: Forecast | None, *, wide: bool) -> list[str]:
    """For people: the sum, the reasons with their counts, the nodes."""
    meta = proposal.raw.metadata
    head = f"DaemonTask {meta.namespace}/{meta.name}"
    notes = [f"  note: {note}" for note in proposal.notes]
    if forecast is None:
        return [f"{head}: refused", *notes]
    colours = Colours(sys.stdout)
    if forecast.plan.hold == "InvalidSpec" and not wide:
        return [f"{head}: refused, {number(forecast.plan.nodes.desired, 'node')} would not run it", *notes]
    return [
        f"{head}: {_kind_of_change(proposal, forecast)}",
        f"  {_summary(forecast)}",
        *(f"  {line}" for line in calendar_lines(forecast)),
        *notes,
        "",
        *colours.lines(_groups(forecast)),
        "",
        *colours.lines(_rows(proposal, forecast, wide=wide)),
    ]


def _kind_of_change(proposal: TaskProposal, forecast: Forecast) -> str:
    if proposal.before is None:
        return f"new, revision {forecast.snapshot.revision}"
    if _changes(proposal, forecast):
        old, _ = read_task(proposal.before)
        revision = revision_of(old.spec, old.status)
        return f"its template changes, revision {revision} -> {forecast.snapshot.revision}"
    return f"exists, its template does not change, revision {forecast.snapshot.revision}"


def _summary(forecast: Forecast) -> str:
    due, hold = len(forecast.turns), forecast.plan.hold
    everything = f"of {number(forecast.plan.nodes.desired, 'node')} it is for"
    if hold:
        waiting = forecast.plan.nodes.counts["pending"]
        meta = forecast.snapshot.task.metadata
        why = _HOLDS.get(hold, hold).format(name=f"{meta.name} -n {meta.namespace}")
        return f"nothing would be started: {why}; {waiting} {everything} wait"
    if forecast.plan.nodes.awaiting and not due:
        return f"{forecast.plan.nodes.awaiting} {everything} would run at its first tick"
    if not due:
        return f"nothing would be started: {counts(forecast.plan.nodes.counts) or 'there are no nodes'}"
    text = f"{due} {everything} would run"
    if forecast.at_once == due:
        return f"{text}, all at once"
    closed = forecast.room.budget is not None and not forecast.room.width
    at_once = (
        f"{forecast.at_once} at once"
        if forecast.at_once
        else f"none before a {'budget' if closed else 'slot'} is free"
    )
    width = forecast.room.width or forecast.room.beyond
    waves = f"{forecast.waves} wave{'s' * (forecast.waves > 1)} of at most {width}"
    parallelism = forecast.snapshot.task.spec.parallelism
    limit = f"parallelism {parallelism}" if forecast.room.budget is None else "budgets"
    return f"{text}: {at_once}, {waves} in all ({limit})"


_HOLDS: Final = {
    "Suspended": "spec.suspend is true",
    "Paused": "failurePolicy has paused it (caretaker resume daemontask {name})",
    "InvalidSpec": "the API server refuses its pods",
    "NodesFailed": "it has failed; fix it, then caretaker rerun daemontask {name}",
    "LedgerLost": "its ledger is lost; decide by the annotation caretaker.dev/ledger",
}


def _state_text(forecast: Forecast, report: NodeReport) -> str:
    state = report.decision.state
    if state == "pending":
        return "would run" if report.node.name in forecast.turns else "pending"
    return STATE_WORDS.get(state, state)


def _reason(report: NodeReport) -> tuple[str, str]:
    decision = report.decision
    return decision.start or decision.reason, one_line(decision.message)


def _groups(forecast: Forecast) -> list[str]:
    """The number of nodes for each state and reason, the largest first within each state."""
    found: Counter[tuple[int, str, str, str]] = Counter()
    for report in forecast.reports.values():
        place = STATE_ORDER.index(report.decision.state)
        found[
            place if report.decision.state != "pending" else -1,
            _state_text(forecast, report),
            *_reason(report),
        ] += 1
    groups = sorted(found.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    rows = [
        [what, str(number), reason, cut(message, 100)]
        for (_, what, reason, message), number in groups[:_GROUPS]
    ]
    if len(groups) > _GROUPS:
        left = sum(number for _, number in groups[_GROUPS:])
        rows.append(["...", str(left), f"{len(groups) - _GROUPS} more reasons", ""])
    return table([["WHAT", "NODES", "WHY", ""], *rows])


def _rows(proposal: TaskProposal, forecast: Forecast, *, wide: bool) -> list[str]:
    """A row a node, those that would run first."""
    # The order follows from the task's UID, which a new task does not have yet.
    known = proposal.before is not None
    last = forecast.waves + 1

    def place(report: NodeReport) -> tuple[int, str]:
        wave = forecast.turns.get(report.node.name, last)
        return (wave if known else int(wave == last)), report.node.name

    listed: Counter[str] = Counter()
    rows = []
    for report in sorted(forecast.reports.values(), key=place):
        what = _state_text(forecast, report)
        listed[what] += 1
        if listed[what] > _SHOWN and not wide:
            continue
        reason, message = _reason(report)
        if report.decision.reason == "Backoff":
            message = f"again in {age(report.decision.wake - forecast.snapshot.now)}; {message}"
        wave = forecast.turns.get(report.node.name)
        what = f"{what}, wave {wave}" if known and wave and forecast.waves > 1 else what
        rows.append([report.node.name, what, reason, message])
    lines = table([["NODE", "WHAT", "WHY", ""], *rows])
    more = {what: count - _SHOWN for what, count in listed.items() if count > _SHOWN}
    if more and not wide:
        lines.append(f"and more: {', '.join(f'{n} {what}' for what, n in more.items())}; -o wide lists them")
    return lines
