"""caretaker plan of a DaemonTask: which nodes would run it, and why the others would not.

The task and its Pod are submitted as dry runs; the planner that the operator runs does the rest.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from caretaker.cli.common import Session, explain
from caretaker.cli.daemontask.order import order_json, order_lines
from caretaker.cli.daemontask.status import (
    calendar_json,
    calendar_lines,
    drain_json,
    drain_lines,
    gate_lines,
    group_json,
    group_lines,
)
from caretaker.cli.manifest import Document
from caretaker.cli.plan import Planned, PlanOptions, Proposal, noted, propose
from caretaker.cli.text import STATE_ORDER, STATE_WORDS, age, coloured, counts, cut, number, one_line, table
from caretaker.daemontask.decision import NodeReport
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.referenced_data import data_part, template_part, with_data
from caretaker.daemontask.resource import RawTask, has_ecs, read_task, refusals_of
from caretaker.daemontask.snapshot_reader import observe
from caretaker.daemontask.status import gate_status
from caretaker.kube.errors import ApiError

_SHOWN: Final = 50  # nodes listed for each state, without -o wide
_GROUPS: Final = 20

TaskProposal = Proposal[RawTask]


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The proposal, and the forecast unless the server refuses the task itself."""
    proposal = await propose(session, document, RawTask)
    if has_ecs(proposal.raw):
        from caretaker.cli.daemontask import ecs_plan  # noqa: PLC0415 - it imports boto3

        return await ecs_plan.plan(document, proposal)
    result = None
    if not proposal.refusals:
        former = read_task(proposal.before)[0].spec.data_refs if proposal.before is not None else ()
        snapshot = await observe(session.client, proposal.raw, former)
        if snapshot.data.unread:
            proposal.notes.append(
                f"{snapshot.data.unread}: you may not get it; whether its data changed is unknown"
            )
        invalid = read_task(proposal.raw)[1]
        if invalid:
            proposal.refusals.append(f"{document.place(invalid.partition(':')[0])}: {one_line(invalid)}")
        else:
            invalid = await _check_pods(session, document, proposal)
        result = forecast(replace(snapshot, invalid=invalid))
    text = as_text(proposal, result, wide=options.wide)
    return Planned(text, as_json(proposal, result), proposal.refusals)


async def _check_pods(session: Session, document: Document, proposal: TaskProposal) -> str:
    """Why the task's Pods are invalid, or empty; an error that prevents the check becomes a note."""
    task, _ = read_task(proposal.raw)
    if not task.metadata.uid:
        return ""  # a Pod names its owner by UID; the notes have the reason why the task was not checked
    try:
        refusals = await refusals_of(session.client, task, revision_of(task.spec, task.status))
    except ApiError as error:
        if error.status and not error.transient:
            proposal.notes.append(f"its pods: {explain(error, session.client.host)}")
            return ""
        raise
    for refusal in refusals:
        proposal.refusals.append(f"{document.place(refusal.partition(':')[0])}: {one_line(refusal)}")
    return "; ".join(refusals)


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
        "templateChanges": _old_revision(proposal) not in ("", template_part(forecast.snapshot.revision)),
        "dataRefs": _data_json(proposal, forecast),
        "hold": forecast.plan.hold,
        "desired": forecast.plan.nodes.desired,
        "counts": forecast.plan.nodes.counts,
        "startAtOnce": forecast.at_once,
        "parallelism": forecast.room.beyond if forecast.snapshot.task.spec.parallelism is not None else None,
        **calendar_json(forecast),
        "waves": forecast.waves,
        "exclusive": group_json(forecast),
        "nodeGate": gate_status(forecast.snapshot, forecast.plan),
        "drain": drain_json(forecast),
        "dependsOn": order_json(forecast),
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


def _old_revision(proposal: TaskProposal) -> str:
    """Of the task that exists; empty for a new one."""
    if proposal.before is None:
        return ""
    before, _ = read_task(proposal.before)
    return revision_of(before.spec, before.status)


def _data_json(proposal: TaskProposal, forecast: Forecast) -> dict[str, Any] | None:
    """Whether the data of spec.dataRefs is new to the operator, None where this user may not get it; None
    without the field."""
    data = forecast.snapshot.data
    if not data.refs:
        return None
    return {"changed": None if data.unread else data.part != _old_data(proposal), "fault": data.fault}


def _old_data(proposal: TaskProposal) -> str:
    if proposal.before is None:
        return ""
    return data_part(read_task(proposal.before)[0].status.current_revision)


# -------------------------------------------------------------------- text


def as_text(proposal: TaskProposal, forecast: Forecast | None, *, wide: bool) -> list[str]:
    """For people: the sum, the reasons with their counts, the nodes."""
    head = f"DaemonTask {proposal.raw.metadata.namespace}/{proposal.raw.metadata.name}"
    notes = noted(proposal.notes)
    if forecast is None:
        return [f"{head}: refused", *notes]
    if forecast.plan.hold == "InvalidSpec" and not wide:
        return [f"{head}: refused, {number(forecast.plan.nodes.desired, 'node')} would not run it", *notes]
    return [
        f"{head}: {_kind_of_change(proposal, forecast)}",
        f"  {_summary(forecast)}",
        *(f"  {line}" for line in _more_lines(forecast)),
        *notes,
        "",
        *coloured(_groups(forecast)),
        "",
        *coloured(_rows(proposal, forecast, wide=wide)),
    ]


def _more_lines(forecast: Forecast) -> list[str]:
    lines = [*calendar_lines(forecast), *group_lines(forecast)]
    return [*lines, *gate_lines(forecast), *drain_lines(forecast), *order_lines(forecast)]


def _kind_of_change(proposal: TaskProposal, forecast: Forecast) -> str:
    revision = forecast.snapshot.revision
    old, former = _old_revision(proposal), _old_data(proposal)
    if not old:
        return f"new, revision {revision}"
    data, refers = forecast.snapshot.data, bool(forecast.snapshot.data.refs)
    parts = {
        "template": old != template_part(revision),
        "referenced data": refers and not data.unread and former != data_part(revision),
    }
    if changed := " and ".join(part for part, changes in parts.items() if changes):
        verb = "change" if all(parts.values()) else "changes"
        return f"its {changed} {verb}, revision {with_data(old, former)} -> {revision}"
    read = refers and not data.unread
    same = "neither its template nor its data changes" if read else "its template does not change"
    return f"exists, {same}, revision {with_data(old, former if refers else '')}"


def _summary(forecast: Forecast) -> str:
    due, hold, room, nodes = len(forecast.turns), forecast.plan.hold, forecast.room, forecast.plan.nodes
    task = forecast.snapshot.task
    everything = f"of {number(nodes.desired, 'node')} it is for"
    if hold:
        name, data = f"{task.metadata.name} -n {task.metadata.namespace}", forecast.snapshot.data.fault
        why = _HOLDS.get(hold, hold).format(name=name, data=data)
        return f"nothing would be started: {why}; {nodes.counts['pending']} {everything} wait"
    if nodes.awaiting and not due:
        return f"{nodes.awaiting} {everything} would run at its first tick"
    if not due:
        return f"nothing would be started: {counts(nodes.counts) or 'there are no nodes'}"
    text = f"{due} {everything} would run"
    if forecast.at_once == due:
        return f"{text}, all at once"
    closed = room.budget is not None and not room.width
    canary, none = forecast.plan.rollout.canary, f"none before a {'budget' if closed else 'slot'} is free"
    if canary is not None and not (canary.over or canary.room):
        none = f"none before {'another canary' if canary.failed else 'the canary'} has passed"
    at_once = f"{forecast.at_once} at once" if forecast.at_once else none
    waves = f"{forecast.waves} wave{'s' * (forecast.waves > 1)} of at most {room.width or room.beyond}"
    return f"{text}: {at_once}, {waves} in all ({', '.join(_limits(forecast))})"


def _limits(forecast: Forecast) -> Iterator[str]:
    """The limits for which nodes do not start all at once."""
    spec, rollout = forecast.snapshot.task.spec, forecast.plan.rollout
    if spec.canary is not None and rollout.canary is not None and not rollout.canary.over:
        yield f"canary {spec.canary.nodes}, soak {spec.canary.soak_seconds}s"
    if spec.topology_key is not None and not rollout.finished:
        yield f"one {spec.topology_key} after the other"
    if forecast.room.budget is not None:
        yield "budgets"
    elif spec.parallelism is not None:
        yield f"parallelism {spec.parallelism}"


_HOLDS: Final[Mapping[str, str]] = {
    "Suspended": "spec.suspend is true",
    "Paused": "failurePolicy has paused it (caretaker resume daemontask {name})",
    "InvalidSpec": "the API server refuses its pods",
    "NodesFailed": "it has failed; fix it, then caretaker rerun daemontask {name}",
    "DependencyCycle": "tasks depend on each other",
    "ReferencedDataUnavailable": "{data}",
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
        state = report.decision.state
        place = STATE_ORDER.index(state) if state != "pending" else -1
        found[place, _state_text(forecast, report), *_reason(report)] += 1
    groups = sorted(found.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    rows = [[what, str(count), why, cut(message, 100)] for (_, what, why, message), count in groups[:_GROUPS]]
    if len(groups) > _GROUPS:
        left = sum(count for _, count in groups[_GROUPS:])
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
    more = [f"{count - _SHOWN} {what}" for what, count in listed.items() if count > _SHOWN]
    return lines if wide or not more else [*lines, f"and more: {', '.join(more)}; -o wide lists them"]
