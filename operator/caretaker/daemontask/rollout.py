"""The reach of a rollout: the failures that count for failurePolicy, and their effect.

Pure. A rollout is one template revision, one tick of the schedule, one re-run of all nodes. A failure counts
from its first attempt on: while more nodes have failed or are failing than maxFailedNodes, no further node
begins the run; retries go on, and show whether the run or a node is at fault. Once every node has ended the
rollout is finished. Later failures, of nodes that join or reboot, pause nothing: while more than
maxFailedNodes have come since the last success, nodes begin one at a time, and the next success ends that.

The beginning of a rollout has no field of its own: a first pass over a revision knows it, later ones go by
the status that it wrote.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask, resolve
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask.decision import POD_REFUSED, DecisionInput, NodeReport
from caretaker.daemontask.node_summary import NodeSummary
from caretaker.daemontask.slots import turn
from caretaker.daemontask.stages import Canary, canary_of

_AHEAD: Final = 86400.0  # seconds that a clock may be ahead of this one


class Rollout(msgspec.Struct, frozen=True):
    """The result of failurePolicy for the failures so far.

    name      of the rollout, as status.finishedRollout has it
    finished  status.finishedRollout is of this rollout, or of a later re-run or tick of its revision
    allowed   maxFailedNodes, as a number of nodes
    failing   nodes that have failed an attempt and may still succeed, and that count
    lost      nodes that count as failed: NotReady, unhealthy, cordoned, refused or rejected since, and past
              their time; or past the rollout's deadline
    beyond    more nodes have failed than allowed, in this rollout or after it
    paused    failurePolicy Pause holds the rollout
    failed    the task has failed: by a FailJob rule, or by failurePolicy Fail
    gated     no node begins the run; retries go on
    probing   the rollout is finished, and nodes begin the run one at a time
    canary    of spec.canary, in a rollout of which it had not passed before; None: there is none
    """

    name: str = ""
    finished: bool = False
    allowed: int = 0
    failing: tuple[NodeReport, ...] = ()
    lost: tuple[NodeReport, ...] = ()
    beyond: bool = False
    paused: bool = False
    failed: bool = False
    gated: bool = False
    probing: bool = False
    canary: Canary | None = None

    @property
    def hold(self) -> str:
        """Why nothing is started, as far as failures are the reason."""
        return Reason.NODES_FAILED if self.failed else Reason.PAUSED if self.paused else ""


_NONE: Final = "-"


def name_of(inputs: DecisionInput, tick: int) -> str:
    """The rollout that is wanted now: revision, tick, rerun-at."""
    return "/".join((inputs.revision, format_time(tick) if tick else _NONE, inputs.rerun_at or _NONE))


def covers(finished: str, wanted: str, now: float) -> bool:
    """Whether the rollout that is finished answers for the one that is wanted. Neither an annotation that is
    removed nor a schedule that is taken away begins another one: no node runs again for it."""
    if finished.count("/") != wanted.count("/"):
        return False
    (revision, tick, rerun), (of, due, asked) = finished.split("/"), wanted.split("/")
    if (parse_time(tick) or 0.0) > now + _AHEAD:
        return False  # of a clock that was wrong
    return revision == of and tick >= due and rerun >= asked


def evaluate(
    inputs: DecisionInput,
    nodes: NodeSummary,
    tick: int,
    *,
    finished_rollout: str,
    passed_canary: str = "",
    resumed: float,
) -> Rollout:
    """The state of the rollout of this tick, from the nodes that have failed and those that are failing.

    tick              the one that counts from this pass on; `inputs` has the stored one
    finished_rollout  the one of status
    passed_canary     likewise
    resumed           when a person last had the task go on
    """
    name, failed = name_of(inputs, tick), nodes.failed
    policy = inputs.spec.failure_policy
    allowed = resolve(policy.max_failed_nodes, nodes.desired, up=False)
    finished = covers(finished_rollout, name, inputs.now)
    stops = policy.action != "Continue"
    since = resumed if policy.action == "Pause" else 0.0
    if finished:
        since = max(since, nodes.last_completion)
    fresh = [report for report in nodes.failing if report.decision.failing > since]
    lost = tuple(report for report in fresh if _is_lost(inputs, report))
    ended = len(lost) + sum(1 for report in failed if _counts(inputs, report, since))
    still = tuple(report for report in fresh if not _is_lost(inputs, report))
    by_rule = any(report.entry is not None and report.entry.fail_task for report in failed)
    beyond = stops and ended > allowed
    passed = finished or covers(passed_canary, name, inputs.now)
    return Rollout(
        name=name,
        finished=finished,
        allowed=allowed,
        failing=still,
        lost=lost,
        beyond=len(failed) > allowed,
        paused=beyond and not finished and policy.action == "Pause",
        failed=by_rule or (beyond and not finished and policy.action == "Fail"),
        gated=stops and not finished and ended + len(still) > allowed,
        probing=stops and finished and ended + len(still) > allowed,
        canary=None if passed else canary_of(inputs, nodes, _failed_since(inputs, failed, resumed), resumed),
    )


def soak_of(task: DaemonTask, inputs: DecisionInput) -> int:
    """The soak of the canary in the rollout of the stored tick; 0 where there is none, or it has passed."""
    canary, name = task.spec.canary, name_of(inputs, inputs.tick)
    past = (task.status.finished_rollout, task.status.passed_canary)
    if canary is None or any(covers(of, name, inputs.now) for of in past):
        return 0
    return canary.soak_seconds


def _failed_since(
    inputs: DecisionInput, failed: Sequence[NodeReport], since: float
) -> tuple[NodeReport, ...]:
    return tuple(report for report in failed if _counts(inputs, report, since))


def may_begin(
    inputs: DecisionInput, rollout: Rollout, holders: Sequence[NodeReport], wanting: Sequence[NodeReport]
) -> list[NodeReport]:
    """The waiting nodes that may start while failures hold others up: retries; where the rollout is probing,
    one other node, once no node is in the middle of its run."""
    retries = [report for report in wanting if report.decision.failing]
    drained = [report for report in wanting if report.decision.cordoned and not report.decision.failing]
    busy = any(report.decision.state == "active" or report.decision.failing for report in holders)
    if rollout.gated or busy:
        return retries
    if drained:  # they have begun
        return retries + drained
    firsts = [report for report in wanting if not report.decision.failing]
    return retries + sorted(firsts, key=lambda report: turn(inputs, report))[:1]


def _counts(inputs: DecisionInput, report: NodeReport, since: float) -> bool:
    """Whether the node failed in this rollout: with rerunOn: [] a failure of an earlier revision stands."""
    entry = report.entry  # by which alone a node has failed
    return (
        entry is not None
        and entry.revision == inputs.revision
        and (entry.failing_since or entry.finished_at) > since
    )


def _is_lost(inputs: DecisionInput, report: NodeReport) -> bool:
    """Whether the node counts as failed though it may still succeed: nothing has moved there for so long that
    the others need not wait for it, nor be let go because of it."""
    decision, entry = report.decision, report.entry
    if decision.overdue and decision.state == "pending":
        return True  # the deadline has ended its run
    if decision.slot or decision.delete or decision.state not in ("blocked", "succeeded"):
        return False
    if decision.reason != POD_REFUSED and (entry is None or not entry.rejections):
        return True
    return inputs.now >= decision.since + inputs.spec.progress_deadline_seconds


def waiting_since(task: DaemonTask, revision: str, now: float) -> float:
    """When the rollout of this revision began, as far as that is known: never before the task was created. No
    node is late before. In whole seconds, as status has them, so that the next pass finds the same."""
    beginnings = (parse_time(text) or 0.0 for text in _beginnings(task, revision))
    # A time ahead is of a wrong clock; the API server's may be ahead of ours by little.
    past = [at for at in beginnings if at <= now]
    return max([*past, math.floor(now)] if _begins(task, revision) else past, default=0.0)


def _begins(task: DaemonTask, revision: str) -> bool:
    """Whether no status of this rollout has been written, or none since it went on."""
    ready = c.find(task.status.conditions, c.READY)
    resumed = ready is not None and ready.reason == Reason.SUSPENDED and not task.spec.suspend
    return task.status.current_revision != revision or resumed


def _beginnings(task: DaemonTask, revision: str) -> Iterator[str | None]:
    yield task.metadata.creation_timestamp
    status = task.status
    if status.current_revision != revision:
        return
    ready, moving = c.find(status.conditions, c.READY), c.find(status.conditions, c.PROGRESSING)
    if ready is not None and ready.status == "False":
        yield ready.last_transition_time  # of a rollout that an edit of a complete task began
    if moving is None or moving.reason == Reason.PROGRESS_DEADLINE_EXCEEDED:
        return  # a start that was reported late stays late
    yield status.start_time
    if moving.status == "True":
        yield moving.last_transition_time  # of one that an edit of a task which was held or late began
