"""What one node of a DaemonTask needs now.

Pure: (task, node, its Pods, its ledger entry, now) -> Decision. The planner asks every node and then
shares out the slots. States and how a node moves between them:

     new, changed, re-run, tick, rebooted         a slot is free
    ----------------------------------> pending ------------------> active
                                          ^  |                        |
                      backoff over, retry |  | NotReady, cordoned     | Pod terminal
                                          |  v                        v
                                        blocked               recorded in the ledger
                                                                      |
                                                succeeded <-----------+-----------> failed
Every check returns a Decision or None; the first that answers wins.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.names import LABEL_REVISION, POD_NONCE
from caretaker.api.objects import CRASH_LOOP, Node, Pod
from caretaker.daemontask import intents
from caretaker.daemontask.due import RETRY, View, in_place, is_broken, is_retry, key_of, nonce_of, trigger_of
from caretaker.daemontask.fit import Verdict
from caretaker.daemontask.judge import (
    NODE_REBOOT,
    absorb_own_reboot,
    dated,
    entry_for,
    past,
    reboot_loop,
    used_up,
    was_used_up,
)
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.pods import tick_of
from caretaker.daemontask.refusals import Refusal

State = Literal["excluded", "succeeded", "failed", "active", "pending", "blocked"]

BACKOFF_BASE: Final = 10.0
BACKOFF_MAX: Final = 600.0
BACKOFF: Final = "Backoff"
QUEUED: Final = "Queued"
POD_REFUSED: Final = "PodRefused"
PREDECESSOR_TERMINATING: Final = "PredecessorTerminating"
# What a container waits for in the ordinary course of its start.
STARTING: Final = ("", "ContainerCreating", "PodInitializing")


class Decision(msgspec.Struct, gc=False):
    """One node's state and what it asks for."""

    state: State
    reason: str = ""
    message: str = ""
    since: float = 0.0
    slot: bool = False  # holds one of the slots that parallelism and budgets give
    slot_until: float = 0.0  # when what holds the slot ends by itself; 0 = by an event
    failing: float = 0.0  # since when its run has failed and may still succeed, or is lost with its node
    start: str = ""  # trigger of the run it wants to start; empty = none
    seq: int = 0  # with start: the Pod's sequence number
    attempt: int = 1
    nonce: str = ""
    record: Entry | None = None  # the entry to write before anything else happens to this node
    delete: tuple[Pod, ...] = ()
    replace: Pod | None = None  # makes way for a newer run as soon as runs may start
    duplicates: bool = False  # more than one live Pod was found
    wake: float = 0.0  # when this node must be looked at again; 0 = on an event only


def decide(
    view: View, node: Node, verdict: Verdict, pods: Mapping[str, Pod], entry: Entry | None
) -> Decision:
    """The state of one node, and what has to happen to it."""
    if entry is not None and entry.node_uid != node.uid:
        entry = None  # the node was replaced: it has not run
    live, unrecorded = _split(pods, entry)
    settled: Entry | None
    if entry is None and is_broken(view, node):
        settled = in_place(view, node, verdict, pods)
    elif unrecorded is not None:
        settled = entry_for(view.task_uid, view.spec, unrecorded, node, entry, view.now)
    else:
        settled = _unended(view, node, live, entry)
    settled = dated(settled, view.now) if settled is not None else None
    decision = (
        _worn_out(view, node, live, entry)
        or (_live(view, node, verdict, live) if live else None)
        or (None if verdict.kind != "excluded" else Decision("excluded", verdict.reason, verdict.message))
        or _expected(view, settled)
        or _recorded(view, node, settled)
        or _waiting(view, node, verdict, settled, pods)
    )
    if settled is not None and settled is not entry:
        decision.record = settled
        decision.start = ""  # the record comes first: the next name follows from it
        decision.wake = decision.wake or view.now
    if settled is not None and settled.attempts and decision.state not in ("excluded", "succeeded", "failed"):
        decision.failing = decision.failing or _failing_since(view, node, settled)
    if view.namesakes:
        _keep_slot_of_predecessor(view, node, decision)
    return decision


def _failing_since(view: View, node: Node, entry: Entry) -> float:
    """When an attempt at the run that is wanted first failed; 0 where none did. A run that a reboot asks for
    after a failure is another attempt."""
    if entry.result == "Succeeded" or entry.revision != view.revision:
        return 0.0
    if trigger_of(view, node, entry) not in ("", RETRY, NODE_REBOOT):
        return 0.0
    return float(entry.failing_since or entry.finished_at)


def _keep_slot_of_predecessor(view: View, node: Node, decision: Decision) -> None:
    """A Pod of this task on the node of that name that this one replaced may run on the same machine."""
    pod = view.namesakes.get(node.uid)
    if pod is None or pod.owner_uid != view.task_uid:
        return
    decision.slot = decision.slot or not _is_lost(view, node, pod)
    late = pod.deletion_asked + view.spec.progress_deadline_seconds if pod.deletion else 0.0
    moments = (decision.wake, late, _lost_at(view, node, pod))
    decision.wake = min((at for at in moments if at > view.now), default=0.0)


def _is_lost(view: View, node: Node, pod: Pod) -> bool:
    """Whether the node has been NotReady for so long that its Pod is waited for no longer."""
    return not node.ready and view.now >= _lost_at(view, node, pod)


def _split(pods: Mapping[str, Pod], entry: Entry | None) -> tuple[list[Pod], Pod | None]:
    """(Pods that are not terminal, the first terminal Pod that the ledger does not have).

    A live Pod that the ledger has already is a view of the past, since only what ended is recorded: it counts
    only where no later one is known, lest that one be taken for one too many and be deleted. One that ended
    before an older one did was one too many, and waits: the ledger goes by seq.
    """
    if not pods:
        return [], None
    recorded = entry.ended if entry is not None else 0
    if len(pods) == 1:  # most nodes at most times: a fifth of a plan's time is saved
        (pod,) = pods.values()
        if not pod.terminal:
            return [pod], None
        return [], pod if pod.seq > recorded else None
    live = [pod for pod in pods.values() if not pod.terminal]
    live = [pod for pod in live if pod.seq > recorded] or live
    ended = (pod for pod in pods.values() if pod.terminal and pod.seq > recorded)
    first = min(ended, key=lambda pod: pod.seq, default=None)
    if first is not None and any(pod.seq < first.seq for pod in live):
        first = None
    return live, first


def _unended(view: View, node: Node, live: list[Pod], entry: Entry | None) -> Entry | None:
    """The entry of a node none of whose Pods has ended unrecorded."""
    if len(live) == 1 and used_up(view.spec, live[0]) and not (entry and was_used_up(entry, live[0])):
        return entry_for(view.task_uid, view.spec, live[0], node, entry, view.now)
    if live:
        settled = intents.covered(view.spec, live, entry)
    elif entry is None:
        return None
    elif entry.intent:
        known = view.unstarted.get(node.uid, "")
        settled = intents.concluded(view.spec, entry, known, view.now, view.backoff_scale)
    else:
        settled = intents.kept_from_repeating(view.spec, entry)
    if settled is not entry or (entry is not None and intents.is_open(entry)):
        return settled
    return _settle(view, node, entry)


def _expected(view: View, entry: Entry | None) -> Decision | None:
    """A run whose Pod is still to be seen: another pass, or another operator, may be creating it."""
    if entry is None or not intents.is_expected(entry, view.now, view.backoff_scale):
        return None
    wake = intents.expected_until(entry, view.backoff_scale)
    return Decision("active", "Starting", since=float(entry.started_at), slot=True, wake=wake)


def _settle(view: View, node: Node, entry: Entry | None) -> Entry | None:
    """The entry after a reboot was looked at: absorbed as the run's own, refused as a loop, or as it was."""
    if entry is None or NODE_REBOOT not in view.spec.rerun_on:
        return entry
    if trigger_of(view, node, entry) != NODE_REBOOT:
        return entry
    settled = absorb_own_reboot(view.task_uid, view.spec, entry, node, view.now)
    if settled is entry and reboot_loop(entry, view.now):
        return msgspec.structs.replace(
            entry,
            result="Failed",
            reason="RebootLoop",
            message="reboots started 3 runs within 6 h; fix the node, then rerun it",
            run_key=key_of(view, node, entry.nonce),
            boot_id=node.boot_id,
            results=None,  # of a failed node nobody asks, and there is no room for both
            fault=None,
        )
    return settled


def _live(view: View, node: Node, verdict: Verdict, live: list[Pod]) -> Decision:
    """A node that has a Pod which is not terminal."""
    bound = sorted((p for p in live if p.node_name), key=lambda p: (p.created, p.seq))
    staying = [p for p in bound if not p.deletion] or [p for p in live if not p.deletion]
    if not staying:
        return _terminating(view, node, live)
    keep = staying[0]
    extra = tuple(p for p in live if p is not keep and not p.deletion)
    decision = (
        _outdated(view, keep)
        or (_pending_pod(view, verdict, keep) if not keep.node_name else None)
        or _bound_pod(view, node, keep)
    )
    if view.spec.concurrency_policy == "Replace" and verdict.kind == "fits" and not decision.delete:
        decision.replace = keep if _is_superseded(view, node, keep) else None
    decision.delete = (*decision.delete, *extra)
    decision.duplicates = bool(extra)
    return decision


def _worn_out(view: View, node: Node, live: list[Pod], entry: Entry | None) -> Decision | None:
    """A node whose run has failed by backoffLimit though its Pod lives on: it is deleted, and holds its slot
    until it has gone."""
    pod = next((pod for pod in live if entry is not None and was_used_up(entry, pod)), None)
    if pod is None:
        return None
    going = _terminating(view, node, [pod])
    decision = _recorded(view, node, entry) or going
    if pod.deletion:
        decision.slot, decision.slot_until, decision.wake = going.slot, going.slot_until, going.wake
    else:
        decision.slot, decision.delete = True, (pod,)
    return decision


def _is_superseded(view: View, node: Node, pod: Pod) -> bool:
    """Whether a run that would start now is for something else. A reboot ends its Pod by itself."""
    return (
        ("TemplateChange" in view.spec.rerun_on and pod.labels.get(LABEL_REVISION) != view.revision)
        or nonce_of(view, node, None) > pod.annotations.get(POD_NONCE, "")
        or (view.tick > tick_of(pod))
    )


def _terminating(view: View, node: Node, live: list[Pod]) -> Decision:
    """Its containers may run until the Pod is gone, whatever its grace period was."""
    pod = max(live, key=lambda p: p.deletion)
    message = f"waiting for Pod {pod.name} to go"
    lost = _is_lost(view, node, pod)
    late = pod.deletion_asked + view.spec.progress_deadline_seconds
    return Decision(
        "blocked",
        PREDECESSOR_TERMINATING,
        message,
        since=pod.deletion_asked,
        slot=not lost,
        slot_until=0.0 if lost else _lost_at(view, node, pod),
        failing=past(node.ready_since, view.now) if lost and _is_current(view, node, pod) else 0.0,
        wake=min((at for at in (late, _lost_at(view, node, pod)) if at > view.now), default=0.0),
    )


def _is_current(view: View, node: Node, pod: Pod) -> bool:
    """Whether the Pod is of the run that is wanted now."""
    return pod.labels.get(LABEL_REVISION) == view.revision and not _is_superseded(view, node, pod)


def _lost_at(view: View, node: Node, pod: Pod) -> float:
    """When a Pod on a NotReady node counts as lost; 0 while the node is Ready."""
    if node.ready:
        return 0.0
    return max(pod.created, past(node.ready_since, view.now)) + view.spec.progress_deadline_seconds


def _outdated(view: View, pod: Pod) -> Decision | None:
    """A Pod that cannot start or end, of a template that was changed since: waiting for its end would mean to
    wait for ever, and a mended image or request would mend nothing."""
    stuck = pod.unschedulable if not pod.node_name else pod.waiting not in STARTING
    if pod.phase != "Pending":
        stuck = pod.waiting == CRASH_LOOP
    if pod.labels.get(LABEL_REVISION) == view.revision or not stuck:
        return None
    message = f"Pod {pod.name} cannot start or end and makes way for the changed template"
    return Decision("pending", "TemplateChanged", message, slot=bool(pod.node_name), delete=(pod,))


def _pending_pod(view: View, verdict: Verdict, pod: Pod) -> Decision:
    """Not bound yet: the scheduler has not placed it, or cannot."""
    if verdict.kind == "excluded" or (verdict.kind == "blocked" and verdict.reason == "Cordoned"):
        state: State = "excluded" if verdict.kind == "excluded" else "blocked"
        return Decision(state, verdict.reason, verdict.message, since=verdict.since, delete=(pod,))
    deadline = pod.created + view.spec.progress_deadline_seconds
    if view.now >= deadline:
        return Decision(
            "blocked", "Unschedulable", pod.unschedulable or "not scheduled", since=pod.created, delete=(pod,)
        )
    if pod.unschedulable:
        reason = "TooManyPods" if "Too many pods" in pod.unschedulable else "Unschedulable"
        since = past(pod.unschedulable_since, view.now) or pod.created
        words = pod.unschedulable
        return Decision("blocked", reason, words, since=since, slot=True, slot_until=deadline, wake=deadline)
    return Decision("active", "Scheduling", since=pod.created, slot=True, wake=deadline)


def _bound_pod(view: View, node: Node, pod: Pod) -> Decision:
    since = past(node.ready_since, view.now)
    if _is_lost(view, node, pod):
        message = f"Pod {pod.name} may still run there"
        failing = since if _is_current(view, node, pod) else 0.0
        return Decision("blocked", "NodeNotReady", message, since=since, failing=failing)
    if not node.ready:
        at = _lost_at(view, node, pod)
        return Decision("active", "NodeNotReady", since=since, slot=True, slot_until=at, wake=at)
    if pod.phase == "Pending":
        stuck = pod.created + view.spec.progress_deadline_seconds
        wake = stuck if stuck > view.now else 0.0
        return Decision("active", pod.waiting or "Starting", since=pod.created, slot=True, wake=wake)
    return Decision("active", "Running", since=pod.created, slot=True)


def _recorded(view: View, node: Node, entry: Entry | None) -> Decision | None:
    """A node whose last run is still good."""
    if entry is None or trigger_of(view, node, entry):
        return None
    if entry.result == "Failed":
        return Decision("failed", entry.reason, entry.message, since=float(entry.finished_at))
    decision = Decision("succeeded", since=float(entry.finished_at))
    if view.spec.min_success_seconds:
        _hold_slot(view, node, entry, decision)
    return decision


def _hold_slot(view: View, node: Node, entry: Entry, decision: Decision) -> None:
    """minSuccessSeconds: the slot is freed once the node has stayed Ready that long after its success.

    Bounded by the progress deadline: a node that goes NotReady for good must not hold a slot for ever. One
    that went NotReady within that time and still is counts as failing: its run may be why.
    """
    ended, since = float(entry.finished_at), past(node.ready_since, view.now)
    watched = ended + view.spec.min_success_seconds
    if not node.ready and since <= watched:
        decision.failing = max(ended, since)
    until = max(ended, since) + view.spec.min_success_seconds
    bound = watched + view.spec.progress_deadline_seconds
    if view.now < bound and (not node.ready or view.now < until):
        decision.slot = True
        decision.reason = "MinSuccessSeconds"
        decision.wake = decision.slot_until = min(until if node.ready else bound, bound)


def _waiting(
    view: View, node: Node, verdict: Verdict, entry: Entry | None, pods: Mapping[str, Pod]
) -> Decision:
    """A node that needs a run and has no live Pod."""
    if verdict.kind == "held":
        return Decision("excluded", verdict.reason, verdict.message)
    again = entry if is_retry(view, node, entry) else None
    if verdict.kind == "blocked":
        return _blocked(view, verdict, again)
    if (before := view.namesakes.get(node.uid)) is not None:
        what = "node" if before.owner_uid == view.task_uid else "task"
        message = f"waiting for Pod {before.name} of an earlier {what} of this name to go"
        return Decision("blocked", PREDECESSOR_TERMINATING, message, since=before.deletion_asked)
    trigger, nonce = trigger_of(view, node, entry), nonce_of(view, node, entry)
    if view.awaited and entry is None and not nonce:
        return Decision("pending", Reason.AWAITING_SCHEDULE)
    refusal = view.refused.get(node.uid)
    not_before = _not_before(view, node, entry, trigger)
    if refusal is not None:
        not_before = max(not_before, refusal.until)
    waits = view.now < not_before
    decision = _wanting(again, refusal, BACKOFF if waits else QUEUED)
    if node.uid in view.unplaced:
        decision.slot = False  # its last Pod was given up without a node: others go first
    if waits:
        decision.wake = not_before
        decision.slot_until = not_before if decision.slot else 0.0
        return decision
    retry = entry if entry is not None and trigger == RETRY else None
    seq = 1 + (entry.seq if entry else 0)
    if pods:
        seq = max(seq, 1 + max(pod.seq for pod in pods.values()))
    decision.start, decision.nonce = trigger, nonce
    decision.seq = seq + view.seq_skips.get(node.uid, 0)
    decision.attempt = 1 + (retry.attempts + retry.disruptions if retry else 0)
    return decision


def _blocked(view: View, verdict: Verdict, again: Entry | None) -> Decision:
    """A node on which nothing may start now. One whose run has failed keeps its slot until the progress
    deadline: the run may be why it is blocked."""
    since = max(verdict.since, view.waiting_since)
    late = since + view.spec.progress_deadline_seconds if verdict.since else 0.0
    kept = again.finished_at + view.spec.progress_deadline_seconds if again and again.attempts else 0.0
    wake = min((at for at in (late, kept) if at > view.now), default=0.0)
    return Decision(
        "blocked",
        verdict.reason,
        verdict.message,
        since=verdict.since,
        slot=view.now < kept,
        slot_until=kept if view.now < kept else 0.0,
        wake=wake,
    )


def _wanting(again: Entry | None, refusal: Refusal | None, reason: str) -> Decision:
    """A node that may start: now, or when its backoff is over.

    A node on which a run has ended without success keeps its slot, else each one that waits for its retry
    would let the run that fails on it begin on another node. One that no Pod has reached keeps none.
    """
    if refusal is not None:
        return Decision("blocked", POD_REFUSED, refusal.message, since=refusal.since)
    if again is None:
        return Decision("pending", reason)
    if again.rejections:
        return Decision("blocked", again.reason, again.message, since=float(again.started_at))
    since = float(again.finished_at)
    last = f"{again.reason}: {again.message}" if reason == BACKOFF and again.reason else ""
    return Decision("pending", reason, last, since=since, slot=bool(again.attempts or again.disruptions))


def _not_before(view: View, node: Node, entry: Entry | None, trigger: str) -> float:
    """When the next attempt may start: 10 s doubling to 10 min after the last one ended (batch/v1 Job)."""
    vanished = view.vanished.get(node.uid, 0.0)
    if entry is not None and intents.was_unreadable(entry):
        return max(vanished, intents.quiet_from(entry, view.backoff_scale))
    if entry is None or trigger != "Retry":
        return vanished
    tries = entry.rejections or entry.attempts + entry.disruptions
    wait = min(BACKOFF_BASE * 2.0 ** min(max(tries - 1, 0), 16), BACKOFF_MAX) * view.backoff_scale
    return max(vanished, entry.finished_at + wait)
