"""A task's state as text and as JSON. Pure except for the check of the terminal; `caretaker status` prints
it."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask, ResultStatus
from caretaker.api.times import parse_time
from caretaker.cli.daemontask.advice import abnormal_conditions, advice
from caretaker.cli.daemontask.calendar_text import budget_json, calendar_lines, schedule_json
from caretaker.cli.diagnostics import diagnostics as diagnostics_of
from caretaker.cli.diagnostics import ready_line
from caretaker.cli.text import (
    STATE_ORDER,
    STATE_WORDS,
    Colours,
    age,
    bar,
    counts,
    cut,
    json_text,
    number,
    one_line,
    table,
)
from caretaker.daemontask.decision import State
from caretaker.daemontask.forecast import Forecast, NodeState
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.messages import lost_message
from caretaker.daemontask.results import words
from caretaker.daemontask.slots import RUNNING, slot_of

_HOLDERS: Final = 5  # named in the line about slots
_NOTHING_LOST: Final = Ledger({})
_SHOWN: Final = 50  # nodes listed for each state, without -o wide


def show(forecast: Forecast, output: str | None) -> None:
    """Print the whole of it to stdout."""
    if output == "json":
        print(json_text(as_json(forecast)))
    else:
        print("\n".join(as_text(forecast, wide=output == "wide")))


def as_json(forecast: Forecast) -> dict[str, Any]:
    """For programs: every node, the excluded ones too."""
    task = forecast.snapshot.task
    return {
        "namespace": task.metadata.namespace,
        "name": task.metadata.name,
        "generation": task.metadata.generation,
        "observedGeneration": task.status.observed_generation,
        "revision": forecast.snapshot.revision,
        "desired": forecast.plan.nodes.desired,
        "counts": forecast.plan.nodes.counts,
        "hold": forecast.plan.hold,
        "schedule": schedule_json(forecast),
        "budget": budget_json(forecast),
        "slots": {"width": forecast.plan.width, "held": len(forecast.plan.nodes.holders)}
        if forecast.plan.width is not None
        else None,
        "conditions": task.status.conditions,
        "results": forecast.plan.results.results,
        "resultErrors": forecast.plan.results.errors,
        "nodes": [forecast.state_of(name) for name in forecast.reports],
    }


def as_text(forecast: Forecast, *, wide: bool) -> list[str]:
    """For people: the counts, the problems with actions, the nodes."""
    task = forecast.snapshot.task
    meta = task.metadata
    tty = sys.stdout.isatty()
    numbers = forecast.plan.nodes.counts
    lines = [f"DaemonTask {meta.namespace}/{meta.name}, revision {forecast.snapshot.revision}"]
    lines.append(f"  {number(forecast.plan.nodes.desired, 'node')}: {counts(numbers) or 'none'}")
    if tty and (numbers["active"] or forecast.turns):
        lines.append(f"  {bar(numbers)}")
    lines += [f"  {line}" for line in ready_line(task.status.conditions, forecast.snapshot.now)]
    problems = diagnostics(task, forecast.snapshot.ledger, forecast.plan.requests.refused)
    lines += [f"  {line}" for line in (*calendar_lines(forecast), *_slots(forecast), *problems)]
    lines += results_table(forecast.plan.results.results)
    states = sorted((forecast.state_of(name) for name in forecast.reports), key=_order)
    return [*lines, "", *Colours(sys.stdout).lines(_rows(forecast, states, wide=wide))]


def _slots(forecast: Forecast) -> list[str]:
    """How many slots are held, and which nodes hold theirs without running."""
    if forecast.plan.width is None:
        return []
    held = sorted((slot_of(r) for r in forecast.plan.nodes.holders), key=lambda slot: slot.node_name)
    idle = [f"{s.node_name} {s.reason}" for s in held if s.reason != RUNNING]
    more = f", {len(idle) - _HOLDERS} more" if len(idle) > _HOLDERS else ""
    names = f": {', '.join(idle[:_HOLDERS])}{more} not running" if idle else ""
    return [f"slots: {len(held)} of {forecast.plan.width} held{names}"]


def diagnostics(task: DaemonTask, ledger: Ledger = _NOTHING_LOST, refused: str = "") -> list[str]:
    """Each problem with an action. `refused`: why a decision about a lost ledger is not carried out."""
    meta, status = task.metadata, task.status
    name = f"daemontask {meta.name} -n {meta.namespace}"
    abnormal = abnormal_conditions(status.conditions)
    once = task.spec.at_most_once
    lines = diagnostics_of(
        meta, status.observed_generation, abnormal, lambda reason: advice(reason, name, at_most_once=once)
    )
    if ledger.lost and all(condition.reason != Reason.LEDGER_LOST for condition in abnormal):
        # The operator sees it when it next looks, which may be at the resync.
        lines.append(f"{Reason.LEDGER_LOST}: {lost_message(ledger, refused)}")
        lines.append(f"  -> {advice(Reason.LEDGER_LOST, name)}")
    return lines


def results_table(results: Sequence[ResultStatus]) -> list[str]:
    """The results of the runs, a line each; empty where none is declared."""
    if not results:
        return []
    rows = [["RESULT", "UNIT", "NODES", "MIN", "MEDIAN", "P95", "MAX", "VALUES"]]
    for result in results:
        numbers = [_figure(value) for value in (result.min, result.median, result.p95, result.max)]
        rows.append([result.name, result.unit or "-", str(result.count), *numbers, _values(result)])
    if not any(result.values for result in results):
        rows = [row[:-1] for row in rows]
    return ["", *table(rows, indent="  ")]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _values(result: ResultStatus) -> str:
    parts = [f"{found.nodes} {cut(found.value, 40)}" for found in result.values]
    parts += [f"{result.values_omitted} more values"] if result.values_omitted else []
    return ", ".join(parts) or "-"


def _order(state: NodeState) -> tuple[int, str]:
    return STATE_ORDER.index(state.state), state.node


def _rows(forecast: Forecast, states: list[NodeState], *, wide: bool) -> list[str]:
    head = ["NODE", "STATE", "REASON", "FAILURES", "LAST-RUN", "EXIT", "POD"]
    rows, listed = [], Counter[State]()
    for state in states:
        listed[state.state] += 1
        # `caretaker plan` shows left-out nodes; here they would hide the others.
        if wide or (state.state != "excluded" and listed[state.state] <= _SHOWN):
            rows.append(_row(forecast, state, wide=wide))
    if wide:
        head += ["RUN-KEY", "MESSAGE"]
    else:
        head += ["MESSAGE"]
    lines = table([head, *rows]) if rows else []
    hidden = {
        s: n if s == "excluded" else n - _SHOWN for s, n in listed.items() if s == "excluded" or n > _SHOWN
    }
    if hidden and not wide:
        lines.append(f"not listed: {counts(hidden)}; -o wide lists them")
    return lines


def _row(forecast: Forecast, state: NodeState, *, wide: bool) -> list[str]:
    finished = parse_time(state.last_finish_time)
    row = [
        state.node,
        STATE_WORDS.get(state.state, state.state),
        state.reason or "-",
        str(state.attempts),
        f"{age(forecast.snapshot.now - finished)} ago" if finished else "-",
        "-" if state.exit_code is None else str(state.exit_code),
        state.pod or "-",
    ]
    message = _message(forecast, state)
    return [*row, state.run_key or "-", message] if wide else [*row, cut(message, 80)]


def _message(forecast: Forecast, state: NodeState) -> str:
    decision = forecast.reports[state.node].decision
    if decision.reason == "Backoff":
        return one_line(f"again in {age(decision.wake - forecast.snapshot.now)}; {state.message}")
    entry = forecast.reports[state.node].entry
    if state.state == "succeeded" and entry is not None and entry.fault is not None:
        return one_line(words(entry.fault))
    return one_line(state.message)
