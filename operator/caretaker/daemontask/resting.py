"""minSuccessSeconds: the time for which a node is watched after its success, and the mark of one that broke.

Pure: (task, node, the entry of its success, now) -> the entry with or without its mark, Decision. The mark is
Entry.failing_since. With it neither a condition that comes and goes, nor the first look of another operator
at a condition whose clock is wrong, makes a node that broke look like one that held.
"""

import math

from msgspec.structs import replace

from caretaker.api.objects import Node
from caretaker.daemontask.decision import CANARY_SOAKING, Decision, DecisionInput
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_health import NodeHealth, health_of
from caretaker.daemontask.pod_failure_policy import NODE_REBOOT
from caretaker.daemontask.run_triggers import trigger_of


def watched(inputs: DecisionInput, node: Node, entry: Entry) -> Entry:
    """The entry, marked where the node broke while it was watched, until it has been healthy for
    minSuccessSeconds in a row: at most two writes for a run."""
    least = inputs.min_success_seconds
    if not least or entry.result != "Succeeded" or trigger_of(inputs, node, entry) not in ("", NODE_REBOOT):
        return entry
    health, ended = health_of(node, inputs.spec.health_conditions, inputs.now), float(entry.finished_at)
    if entry.failing_since:
        held = health.healthy and inputs.now >= max(ended, health.since) + least
        return replace(entry, failing_since=0) if held else entry
    broke = health.since <= ended + least and (not health.healthy or health.since > ended)
    over = health.healthy and inputs.now >= health.since + least
    return replace(entry, failing_since=math.ceil(max(ended, health.since))) if broke and not over else entry


def resting(inputs: DecisionInput, node: Node, entry: Entry) -> Decision:
    """The slot is freed once the node has stayed Ready for minSuccessSeconds after its success, with every
    condition of spec.healthGate healthy. A node of the canary that has done so for the task's own
    minSuccessSeconds soaks on.

    Bounded by the progress deadline: a node that breaks for good must not hold a slot for ever. One that
    broke within that time and is not repaired counts as failing: its run may be why. After the bound so does
    one that has not been healthy for minSuccessSeconds since.
    """
    least, ended = inputs.min_success_seconds, float(entry.finished_at)
    health = health_of(node, inputs.spec.health_conditions, inputs.now)
    until = max(ended, health.since) + least
    bound = ended + least + inputs.spec.progress_deadline_seconds
    failing = _failing(health, entry, over=inputs.now >= bound)
    if health.healthy and inputs.now >= until:
        return Decision("succeeded", since=ended)
    if inputs.now >= bound:
        wake = until if failing and health.healthy else 0.0
        return Decision("succeeded", message=health.message, since=ended, failing=failing, wake=wake)
    end = min(until if health.healthy else bound, bound)
    own = max(ended, health.since) + inputs.spec.min_success_seconds
    soaks = own < until and (not inputs.spec.min_success_seconds or (health.healthy and inputs.now >= own))
    return Decision(
        "succeeded",
        CANARY_SOAKING if soaks else "MinSuccessSeconds",
        health.message,
        since=ended,
        slot=True,
        slot_until=end,
        failing=failing,
        wake=min(own, end) if health.healthy and inputs.now < own else end,
    )


def rebooted(inputs: DecisionInput, node: Node, entry: Entry, decision: Decision) -> Decision:
    """The decision, with the slot and the failure of a node that rebooted while it was watched: the run may
    be the reason, and the run that the reboot asks for takes the same slot."""
    if decision.state == "active" or not was_watched(inputs, node, entry):
        return decision
    kept = resting(inputs, node, entry)
    moments = [at for at in (decision.wake, kept.wake) if at]
    return replace(
        decision,
        slot=decision.slot or kept.slot,
        slot_until=decision.slot_until or kept.slot_until,
        failing=decision.failing or kept.failing,
        wake=min(moments, default=0.0),
    )


def was_watched(inputs: DecisionInput, node: Node, entry: Entry) -> bool:
    """Whether a reboot asks for another run while the success of this revision is watched."""
    if entry.result != "Succeeded" or entry.revision != inputs.revision:
        return False
    if not entry.failing_since and inputs.now >= entry.finished_at + inputs.min_success_seconds:
        return False
    return trigger_of(inputs, node, entry) == NODE_REBOOT


def _failing(health: NodeHealth, entry: Entry, *, over: bool) -> float:
    """Since when the node counts as failing; 0 while a healthy one holds its slot."""
    return float(entry.failing_since) if over or not health.healthy else 0.0
