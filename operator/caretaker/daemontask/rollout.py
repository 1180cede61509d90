"""How far a rollout reaches: which failures count for failurePolicy, and what they stop.

Pure. A rollout is one template revision, one tick of the schedule, one re-run of all nodes. A failure counts
from its first attempt on: while more nodes have failed or are failing than maxFailedNodes, no further node
begins the run; retries go on, and show whether the run or a node is at fault. Once every node has ended the
rollout is finished. Later failures, of nodes that join or reboot, pause nothing: while more than
maxFailedNodes have come since the last success, nodes begin one at a time, and the next success ends that.
"""

from collections.abc import Sequence

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import resolve
from caretaker.api.times import format_time
from caretaker.daemontask.orders import Orders
from caretaker.daemontask.recall import NodeReport
from caretaker.daemontask.slots import turn
from caretaker.daemontask.snapshot import Snapshot


class Rollout(msgspec.Struct, frozen=True):
    """What failurePolicy makes of the failures so far.

    name      of the rollout, as status.finishedRollout has it
    allowed   maxFailedNodes, as a number of nodes
    failing   nodes that have failed an attempt and may still succeed, and that count
    beyond    more nodes have failed than allowed, in this rollout or after it
    paused    failurePolicy Pause holds the rollout
    failed    the task has failed: by a FailJob rule, or by failurePolicy Fail
    gated     no node begins the run; retries go on
    probing   the rollout is finished, and nodes begin the run one at a time
    """

    name: str = ""
    allowed: int = 0
    failing: int = 0
    beyond: bool = False
    paused: bool = False
    failed: bool = False
    gated: bool = False
    probing: bool = False

    @property
    def hold(self) -> str:
        """Why nothing is started, as far as failures are the reason."""
        return Reason.NODES_FAILED if self.failed else Reason.PAUSED if self.paused else ""


def name_of(snapshot: Snapshot, orders: Orders, tick: int) -> str:
    """The rollout that is wanted now."""
    parts = (snapshot.revision, format_time(tick) if tick else "", orders.rerun_at)
    return "/".join(part for part in parts if part)


def judge(
    snapshot: Snapshot,
    orders: Orders,
    name: str,
    desired: int,
    failed: Sequence[NodeReport],
    failing: Sequence[NodeReport],
    last_success: float,
) -> Rollout:
    """By the nodes that have failed and those that are failing; `last_success`: when a run last succeeded."""
    policy = snapshot.task.spec.failure_policy
    allowed = resolve(policy.max_failed_nodes, desired, up=False)
    finished = snapshot.task.status.finished_rollout == name
    stops = policy.action != "Continue" and not finished
    since = orders.resume_at if policy.action == "Pause" else 0.0
    if finished:
        since = max(since, last_success)
    ended = [report for report in failed if _is_current(snapshot, report)]
    fresh = sum(1 for report in ended if _failed_at(snapshot, report) > since)
    still = sum(1 for report in failing if _failed_at(snapshot, report) > since)
    by_rule = any(report.entry is not None and report.entry.fail_task for report in failed)
    return Rollout(
        name=name,
        allowed=allowed,
        failing=still,
        beyond=len(failed) > allowed,
        paused=stops and policy.action == "Pause" and fresh > allowed,
        failed=by_rule or (stops and policy.action == "Fail" and fresh > allowed),
        gated=stops and fresh + still > allowed,
        probing=finished and policy.action != "Continue" and fresh + still > allowed,
    )


def may_begin(
    snapshot: Snapshot, rollout: Rollout, holders: Sequence[NodeReport], wanting: Sequence[NodeReport]
) -> list[NodeReport]:
    """Of the nodes that want to start, those that may while failures hold others up: retries; where the
    rollout is probing one other node, once no node is in the middle of its run."""
    retries = [report for report in wanting if report.decision.failing]
    busy = any(report.decision.state == "active" or report.decision.failing for report in holders)
    if rollout.gated or busy:
        return retries
    firsts = [report for report in wanting if not report.decision.failing]
    return retries + sorted(firsts, key=lambda report: turn(snapshot, report))[:1]


def _is_current(snapshot: Snapshot, report: NodeReport) -> bool:
    """Whether the failure is of this revision; with rerunOn: [] one of an earlier one stands."""
    return report.entry is None or report.entry.revision == snapshot.revision


def _failed_at(snapshot: Snapshot, report: NodeReport) -> float:
    """When the node last failed; of one that is lost during its run or after it, since when."""
    entry = report.entry
    if entry is not None and entry.result != "Succeeded" and entry.revision == snapshot.revision:
        return float(entry.finished_at)
    return report.decision.since
