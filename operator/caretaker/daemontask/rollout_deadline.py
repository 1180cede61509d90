"""The deadline of a rollout, spec.rolloutDeadlineSeconds: its clock, and the starts that it cuts off.

Pure. After the deadline no node begins the run and none retries it, until the next rollout (a revision, a
tick, a re-run of all nodes), a resume or an edit of the deadline. These are no part of the rollout: nodes
that have joined since it began, reboots, re-runs of single nodes, and all that follows once every node has
ended.
"""

import math

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask
from caretaker.api.objects import Node
from caretaker.api.times import parse_time
from caretaker.daemontask import ticks
from caretaker.daemontask.annotation_requests import AnnotationRequests
from caretaker.daemontask.decision import Deadline, Decision, DecisionInput
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.pod_failure_policy import NODE_REBOOT
from caretaker.daemontask.rollout import covers, name_of
from caretaker.daemontask.run_triggers import RETRY


def began_at(
    task: DaemonTask, revision: str, now: float, requests: AnnotationRequests, tick: int, *, lost: bool
) -> float:
    """When the clock of the rollout of this tick began: with the tick, or when the revision, the re-run, the
    resume or the decision about a lost ledger was first seen, in whole seconds. status.rollout.startTime has
    it from the next write on."""
    now = float(math.floor(now))
    was, stored = task.status.rollout, ticks.stored(task)
    resumed = c.find(task.status.conditions, c.SUSPENDED) is not None and not task.spec.suspend
    anew = lost and bool(requests.ledger)
    if was is None or task.status.current_revision != revision or resumed or anew:
        return now
    asked = requests.rerun_at > (was.rerun_at or "")
    if asked or math.floor(requests.resume_at) > (parse_time(was.resume_at) or 0.0):
        return now
    if tick != stored:
        return min(float(tick), now)
    known = parse_time(was.start_time)
    if known is None:  # the deadline was given later: the rollout began with its first Pod, tick or re-run
        times = (parse_time(task.status.start_time), float(stored), parse_time(was.rerun_at))
        known = max([at for at in times if at], default=now)
    return min(known, now)


def deadline_of(
    task: DaemonTask, requests: AnnotationRequests, inputs: DecisionInput, *, lost: bool
) -> Deadline | None:
    """The deadline that counts now. There is none before the first tick, while the task is suspended, and
    after every node has ended."""
    seconds = task.spec.rollout_deadline_seconds
    if seconds is None or task.spec.suspend or inputs.awaited:
        return None
    if covers(task.status.finished_rollout, name_of(inputs, inputs.tick), inputs.now):
        return None
    began = began_at(task, inputs.revision, inputs.now, requests, inputs.tick, lost=lost)
    return Deadline(began, began + seconds, inputs.now >= began + seconds)


def binds(inputs: DecisionInput, node: Node, answered: str) -> bool:
    """Whether the deadline has passed for the node. `answered`: the re-run that its last run was for."""
    deadline = inputs.deadline
    if deadline is None or not deadline.passed or node.created > deadline.began:
        return False
    return inputs.rerun_nodes.get(node.name, "") <= max(inputs.rerun_at, answered)


def is_cut_off(inputs: DecisionInput, node: Node, entry: Entry | None, trigger: str) -> bool:
    """Whether the deadline keeps the node from the run that it needs. An attempt that began after the
    deadline, or at a re-run of this node that was asked for since the clock began, was no part of the
    rollout, and so its retries are none."""
    if not binds(inputs, node, entry.nonce if entry is not None else ""):
        return False
    if trigger == RETRY and entry is not None and inputs.deadline is not None:
        return entry.started_at < inputs.deadline.at and not _is_own(inputs, node, entry)
    return trigger != NODE_REBOOT


def _is_own(inputs: DecisionInput, node: Node, entry: Entry) -> bool:
    """Whether the entry is of a re-run of this node alone."""
    deadline, asked = inputs.deadline, inputs.rerun_nodes.get(node.name, "")
    if deadline is None or not asked or asked != entry.nonce or asked <= inputs.rerun_at:
        return False
    return (parse_time(asked) or 0.0) >= deadline.began


def cut_off(entry: Entry | None) -> Decision:
    """The decision about a node that the deadline keeps from its run. It holds no slot: its run is over."""
    last = f"{entry.reason}: {entry.message}" if entry is not None and entry.result == RETRY else ""
    return Decision("pending", Reason.ROLLOUT_DEADLINE_EXCEEDED, last, overdue=True)
