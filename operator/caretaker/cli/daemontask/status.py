"""caretaker status of a DaemonTask: each node, as its ledger, its Pods and the planner have it.

The actions for its conditions are in docs/spec/daemontask.md, too.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, Reason
from caretaker.api.daemontask import DaemonTask, ResultStatus
from caretaker.api.times import format_time
from caretaker.cli import text
from caretaker.cli.common import Session, get
from caretaker.cli.daemontask import ecs_status
from caretaker.cli.daemontask.order import order_json, order_lines
from caretaker.cli.status import View, follow_to_the_end
from caretaker.cli.text import abnormal, age, ago, cell, counts, cut, number, one_line, problems, ready_line
from caretaker.daemontask.budgets import allowed_words
from caretaker.daemontask.decision import State
from caretaker.daemontask.exclusive import limit, waiting_words
from caretaker.daemontask.forecast import Forecast, NodeState, forecast
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.messages import lost_message
from caretaker.daemontask.resource import RawTask, has_ecs
from caretaker.daemontask.results import words
from caretaker.daemontask.slots import RUNNING, slot_of
from caretaker.daemontask.snapshot_reader import follow, observe
from caretaker.daemontask.status import gate_status
from caretaker.registry import DAEMON_TASK

_HOLDERS: Final = 5  # named in the line about slots
_NOTHING_LOST: Final = Ledger({})
_SHOWN: Final = 50  # nodes listed for each state, without -o wide

_POSITIVE: Final = frozenset({c.READY, c.SPEC_VALID, c.PROGRESSING})
# Reasons that need no action.
NORMAL: Final = frozenset(
    {
        *(Reason.ROLLING_OUT, Reason.ROLLOUT_COMPLETE, Reason.SUCCEEDED),
        *(Reason.RUNNING, Reason.AWAITING_SCHEDULE, Reason.ACCEPTED),
    }
)
# {name} is the task's, as commands take it.
ADVICE: Final = {
    Reason.NO_MATCHING_NODES: "caretaker status {name} -o wide shows for each node why it is left out",
    Reason.NODES_FAILED: "caretaker logs {name} --failed; fix it, then caretaker rerun {name} --failed",
    Reason.NODES_BLOCKED: "see the reasons below; the nodes run by themselves once that is over",
    Reason.PAUSED: "fix the template and apply it again, or go on as it is: caretaker resume {name}",
    Reason.LARGE_PODS: "wait, or make spec.template smaller: move large fields into a ConfigMap",
    Reason.AWAITING_DEPENDENCY: "see to the task that is named: caretaker status daemontask NAME",
    Reason.DEPENDENCY_CYCLE: "remove an entry of spec.dependsOn from one of the tasks that are named",
    Reason.DATA_UNAVAILABLE: "see to the object that is named; it is read again by itself within 30 s",
    Reason.HELD_BY_GROUP: "wait; if it lasts, look at the task that is named: caretaker status daemontask",
    Reason.HELD_BY_BUDGET: "wait until the time in the message; without one, edit spec.budgets",
    Reason.SUSPENDED: "set spec.suspend to false to go on",
    Reason.INVALID_SPEC: "correct the field that is named and apply again",
    Reason.NOT_CHECKED: "fix the other problems, or wait; if it lasts, look at the operator's logs",
    Reason.LEDGER_LOST: "annotate caretaker.dev/ledger=rerun, or ='assume-done: NODE,NODE' for some nodes",
    Reason.LEDGER_CORRUPT: "the nodes named run again by themselves; edit no ledger ConfigMap",
    Reason.NAME_CONFLICT: "delete the Pod that is named if it is not needed",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "see the waiting nodes below: image, room on the node, readiness",
    Reason.ROLLOUT_DEADLINE_EXCEEDED: "caretaker resume {name}, or raise spec.rolloutDeadlineSeconds",
    Reason.LEDGER_WRITE_REFUSED: "see to the quota, policy or ConfigMap that is named; it is tried again",
    Reason.POD_CREATION_REFUSED: "raise the quota or satisfy the policy; it is tried again by itself",
    Reason.POD_DELETION_REFUSED: "let the policy or webhook named let go of the Pod; it is tried again",
    Reason.GATE_REFUSED: "see to the right, policy or webhook that is named; it is tried again by itself",
    Reason.DRAIN_REFUSED: "see to the right, policy or webhook that is named; it is tried again by itself",
    Reason.PERMISSION_DENIED: "give the operator's role the verb that is named",
    Reason.INVALID_RESULTS: "fix the program or spec.results, then caretaker rerun {name}",
    Reason.INVALID_ANNOTATION: "correct or remove the annotation; it is ignored",
}
# Of a task with runGuarantee AtMostOnce, whose runs may have been cut off half-way.
_ONCE: Final = {
    Reason.NODES_FAILED: (
        "look at each failed node first, because its run may be half done; then caretaker rerun {name} "
        "--nodes NODE"
    ),
    Reason.LEDGER_CORRUPT: (
        "look at the nodes with OutcomeUnknown, which may have run; then caretaker rerun {name} --nodes "
        "NODE; edit no ledger ConfigMap"
    ),
}


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read; of a watch, 1 when the task ended with failures."""
    raw = await get(session, DAEMON_TASK, name, RawTask)
    if has_ecs(raw):
        return ecs_status.status(raw, output, watch=watch)
    if not watch:
        text.show(forecast(await observe(session.client, raw)), output, as_json, as_text)
        return 0
    async with follow(session.client, session.namespace, name) as follower:

        def read_state() -> Forecast | None:
            snapshot = follower.snapshot()
            return None if snapshot is None else forecast(snapshot)

        return await follow_to_the_end(follower.watches, read_state, VIEW, f"DaemonTask {name}", output)


def as_json(forecast: Forecast) -> dict[str, Any]:
    """For programs: every node, the excluded ones too."""
    task, plan = forecast.snapshot.task, forecast.plan
    return {
        **text.head_json(task.metadata, task.status.observed_generation),
        "revision": forecast.snapshot.revision,
        "desired": plan.nodes.desired,
        "counts": plan.nodes.counts,
        "hold": plan.hold,
        **calendar_json(forecast),
        "scheduleHistory": task.status.schedule_history,
        "slots": None if plan.width is None else {"width": plan.width, "held": len(plan.nodes.holders)},
        "exclusive": group_json(forecast),
        "nodeGate": gate_status(forecast.snapshot, plan),
        "drain": drain_json(forecast),
        "dependsOn": order_json(forecast),
        "conditions": task.status.conditions,
        "results": plan.results.results,
        "resultErrors": plan.results.errors,
        "nodes": [forecast.state_of(name) for name in forecast.reports],
    }


def calendar_json(forecast: Forecast) -> dict[str, Any]:
    """The schedule, None of a task without one, the budget that limits the task now, and the deadline of the
    rollout. Times are RFC 3339 or None."""
    spec, tick, budget = forecast.snapshot.task.spec, forecast.plan.tick, forecast.room.budget
    schedule = {
        "schedule": spec.schedule,
        "timeZone": spec.time_zone,
        "lastScheduleTime": _time(tick.last),
        "nextScheduleTime": _time(tick.next),
    }
    return {
        "schedule": None if spec.schedule is None else schedule,
        "budget": None if budget is None else {"nodes": budget.nodes, "until": _time(budget.until)},
        "rolloutDeadline": None if forecast.deadline is None else _time(forecast.deadline.at),
    }


def _time(moment: float) -> str | None:
    return format_time(moment) if moment else None


# -------------------------------------------------------------------- text


def as_text(forecast: Forecast, wide: bool) -> list[str]:
    """For people: the counts, the problems with actions, the nodes."""
    task, snapshot, plan = forecast.snapshot.task, forecast.snapshot, forecast.plan
    head = [f"{number(plan.nodes.desired, 'node')}: {counts(plan.nodes.counts) or 'none'}"]
    if sys.stdout.isatty() and (plan.nodes.counts["active"] or forecast.turns):
        head.append(text.bar(plan.nodes.counts))
    head += ready_line(task.status.conditions, snapshot.now)
    head += [*calendar_lines(forecast), *_slots(forecast), *group_lines(forecast)]
    head += [*gate_lines(forecast), *drain_lines(forecast), *order_lines(forecast)]
    head += diagnostics(task, snapshot.ledger, plan.requests.refused)
    states = sorted(
        (forecast.state_of(name) for name in forecast.reports),
        key=lambda one: (text.STATE_ORDER.index(one.state), one.node),
    )
    return [
        f"DaemonTask {task.metadata.namespace}/{task.metadata.name}, revision {snapshot.revision}",
        *(f"  {line}" for line in head),
        *results_table(plan.results.results),
        *_history(task),
        "",
        *text.coloured(_rows(forecast, states, wide=wide)),
    ]


def calendar_lines(forecast: Forecast) -> list[str]:
    """A line each about the schedule, the budget that limits the task now, the deadline of the rollout."""
    spec, tick, now = forecast.snapshot.task.spec, forecast.plan.tick, forecast.snapshot.now
    lines = []
    if spec.schedule is not None:
        last = f"last {format_time(tick.last)}, {age(now - tick.last)} ago" if tick.last else "never yet"
        then = f"next {format_time(tick.next)}, in {age(tick.next - now)}" if tick.next else "none to come"
        lines.append(f"schedule {spec.schedule} ({spec.time_zone}): {last}; {then}")
    if forecast.room.budget is not None:
        lines.append(allowed_words(forecast.room.budget))
    if (deadline := forecast.deadline) is not None:
        then = f"{age(now - deadline.at)} ago" if deadline.passed else f"in {age(deadline.at - now)}"
        lines.append(f"deadline of the rollout: {format_time(deadline.at)}, {then}")
    return lines


def _history(task: DaemonTask) -> list[str]:
    """The ticks before the last one, a line each."""
    rows = [
        [
            tick.schedule_time,
            str(tick.desired),
            str(tick.succeeded),
            str(tick.failed),
            cell(tick.completion_time or ""),
        ]
        for tick in task.status.schedule_history
    ]
    return text.section("EARLIER-TICK  NODES  SUCCEEDED  FAILED  LAST-SUCCESS", rows, indent="  ")


def _slots(forecast: Forecast) -> list[str]:
    """How many slots are held, and which nodes hold theirs without running."""
    if forecast.plan.width is None:
        return []
    held = sorted((slot_of(r) for r in forecast.plan.nodes.holders), key=lambda slot: slot.node_name)
    idle = [f"{s.node_name} {s.reason}" for s in held if s.reason != RUNNING]
    more = f", {len(idle) - _HOLDERS} more" if len(idle) > _HOLDERS else ""
    names = f": {', '.join(idle[:_HOLDERS])}{more} not running" if idle else ""
    return [f"slots: {len(held)} of {forecast.plan.width} held{names}"]


def group_json(forecast: Forecast) -> dict[str, Any] | None:
    """The exclusive group, how many nodes it may have, and the nodes that wait for others of its tasks."""
    exclusive, view, mine = (
        forecast.snapshot.task.spec.exclusive,
        forecast.snapshot.exclusion,
        forecast.plan.holding,
    )
    if exclusive is None:
        return None
    width = limit(view, mine) if view is not None and mine is not None else None
    waiting = sorted(report.node.name for report in forecast.plan.nodes.kept_out)
    return {"group": exclusive.group, "parallelism": width, "waiting": waiting}


def group_lines(forecast: Forecast) -> list[str]:
    """The nodes that wait for other tasks of the exclusive group."""
    plan = forecast.plan
    words = waiting_words(forecast.snapshot, plan.nodes, plan.holding, short=plan.launch.grouped)
    return [words] if words else []


def gate_lines(forecast: Forecast) -> list[str]:
    """A line about the taint that the task removes, and the nodes that carry it."""
    found = gate_status(forecast.snapshot, forecast.plan)
    if found is None:
        return []
    keep = (
        f", {found.excluded_nodes} of them not for this task (not selected, or another taint)"
        if found.excluded_nodes
        else ""
    )
    return [f"gate {found.taint}: {number(found.gated_nodes, 'node')} with this taint{keep}"]


def drain_json(forecast: Forecast) -> dict[str, Any] | None:
    """The nodes that the task has cordoned, and how many it may have at a time."""
    cordoned = sorted(r.node.name for r in forecast.plan.nodes.marked if r.decision.cordoned)
    drains = forecast.snapshot.task.spec.drain is not None
    if not (drains or cordoned):
        return None
    return {"cordoned": cordoned, "most": forecast.room.beyond if drains else None}


def drain_lines(forecast: Forecast) -> list[str]:
    """drain_json() in a line."""
    if (found := drain_json(forecast)) is None:
        return []
    most = f", {found['most']} at once at most" if found["most"] is not None else ""
    return [f"drain: {number(len(found['cordoned']), 'node')} cordoned by the task{most}"]


def diagnostics(task: DaemonTask, ledger: Ledger = _NOTHING_LOST, refused: str = "") -> list[str]:
    """Each problem with an action. `refused`: why a decision about a lost ledger is not carried out."""
    meta, found = task.metadata, abnormal_conditions(task.status.conditions)
    if ledger.lost and Reason.LEDGER_LOST not in found:
        # The operator sees it when it next looks, which may be at the resync.
        lost = [
            f"{Reason.LEDGER_LOST}: {lost_message(ledger, refused)}",
            f"  -> {ADVICE[Reason.LEDGER_LOST]}",
        ]
    else:
        lost = []
    actions = advice(f"daemontask {meta.name} -n {meta.namespace}", at_most_once=task.spec.at_most_once)
    return problems(meta, task.status.observed_generation, found, actions) + lost


def abnormal_conditions(conditions: Iterable[Condition]) -> dict[str, Condition]:
    """The conditions that report a problem or wait for a person, by reason."""
    conditions = list(conditions)
    found = abnormal(conditions, _POSITIVE, NORMAL)
    found |= {one.reason: one for one in conditions if one.reason == Reason.LARGE_PODS}
    if Reason.PAUSED in found:  # Stalled calls the same NodesFailed
        found.pop(Reason.NODES_FAILED, None)
    return found


def advice(name: str, *, at_most_once: bool = False) -> dict[str, str]:
    """The actions by reason. `name`: the task as commands take it."""
    actions = ADVICE | _ONCE if at_most_once else ADVICE
    return {reason: action.format(name=name) for reason, action in actions.items()}


def results_table(results: Sequence[ResultStatus]) -> list[str]:
    """The results of the runs, a line each; empty where none is declared."""
    rows = []
    for result in results:
        numbers = [_figure(value) for value in (result.min, result.median, result.p95, result.max)]
        rows.append([result.name, cell(result.unit), str(result.count), *numbers, _values(result)])
    head = "RESULT  UNIT  NODES  MIN  MEDIAN  P95  MAX  VALUES"
    if not any(result.values for result in results):
        head, rows = head.removesuffix("  VALUES"), [row[:-1] for row in rows]
    return text.section(head, rows, indent="  ")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _values(result: ResultStatus) -> str:
    parts = [f"{found.nodes} {cut(found.value, 40)}" for found in result.values]
    parts += [f"{result.values_omitted} more values"] if result.values_omitted else []
    return cell(", ".join(parts))


def _rows(forecast: Forecast, states: list[NodeState], *, wide: bool) -> list[str]:
    rows, listed = [], Counter[State]()
    for state in states:
        listed[state.state] += 1
        # `caretaker plan` shows left-out nodes; here they would hide the others.
        if wide or (state.state != "excluded" and listed[state.state] <= _SHOWN):
            rows.append(_row(forecast, state, wide=wide))
    head = ["NODE", "STATE", "REASON", "FAILURES", "LAST-RUN", "EXIT", "POD", *["RUN-KEY"] * wide, "MESSAGE"]
    lines = text.table([head, *rows]) if rows else []
    hidden = {s: n if s == "excluded" else n - _SHOWN for s, n in listed.items()}
    left = {s: n for s, n in hidden.items() if n > 0}
    return [*lines, f"not listed: {counts(left)}; -o wide lists them"] if left and not wide else lines


def _row(forecast: Forecast, state: NodeState, *, wide: bool) -> list[str]:
    return [
        state.node,
        text.STATE_WORDS.get(state.state, state.state),
        cell(state.reason),
        str(state.attempts),
        ago(state.last_finish_time, forecast.snapshot.now),
        cell(state.exit_code),
        cell(state.pod),
        *[cell(state.run_key)] * wide,
        cut(_message(forecast, state), 80, wide=wide),
    ]


def _message(forecast: Forecast, state: NodeState) -> str:
    report = forecast.reports[state.node]
    if report.decision.reason == "Backoff":
        return one_line(f"again in {age(report.decision.wake - forecast.snapshot.now)}; {state.message}")
    if state.state == "succeeded" and report.entry is not None and report.entry.fault is not None:
        return one_line(words(report.entry.fault))
    return one_line(state.message)


# ------------------------------------------------------------------- watch


def _line(forecast: Forecast) -> str:
    states = counts(forecast.plan.nodes.counts, skip=("excluded",)) or "none"
    return f"{number(forecast.plan.nodes.desired, 'node')}: {states}"


def _bar(forecast: Forecast) -> str:
    found = forecast.plan.nodes.counts
    return f"{text.bar(found)}  {counts(found, skip=('succeeded', 'excluded'))}"


def _news(before: Forecast, forecast: Forecast) -> Iterator[str]:
    """Nodes that have failed since."""
    failed = {report.node.name for report in before.plan.nodes.failed}
    for name in sorted({report.node.name for report in forecast.plan.nodes.failed} - failed):
        state = forecast.state_of(name)
        yield from text.coloured([f"{name} failed {state.reason}: {one_line(state.message)}"])


def ended(forecast: Forecast) -> int | None:
    """The exit code once no further progress is possible without a user; None before.

    The planner and the operator's status must agree.
    """
    task, numbers = forecast.snapshot.task, forecast.plan.nodes.counts
    conditions = task.status.conditions
    if task.status.observed_generation < task.metadata.generation or numbers["active"]:
        return None
    waiting = forecast.plan.nodes.awaiting  # for the first tick, which may be far away
    if numbers["pending"] > waiting and not forecast.plan.hold:
        return None
    if task.status.active or (task.status.pending > waiting and not forecast.plan.hold):
        return None
    if c.find(conditions, c.STALLED) is not None:
        return 1
    ready = c.find(conditions, c.READY)
    return 0 if ready is not None and ready.status == "True" else None


VIEW: Final = View(_line, _bar, _news, as_json, as_text, ended)
