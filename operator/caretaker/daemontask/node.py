"""The decision about one node of a DaemonTask.

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

from msgspec.structs import replace

from caretaker.api.conditions import Reason
from caretaker.api.objects import Node, Pod
from caretaker.api.times import past
from caretaker.daemontask import intents
from caretaker.daemontask.cordon import is_cordoned_by
from caretaker.daemontask.decision import (
    BACKOFF,
    BACKOFF_BASE,
    BACKOFF_MAX,
    POD_REFUSED,
    PREDECESSOR_TERMINATING,
    QUEUED,
    Decision,
    DecisionInput,
)
from caretaker.daemontask.drain import drained_first
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.live import decide_live, is_lost, lost_at, terminating
from caretaker.daemontask.node_eligibility import TAINT, Eligibility
from caretaker.daemontask.node_health import UNWELL
from caretaker.daemontask.pod_failure_policy import (
    NODE_REBOOT,
    REBOOT_LOOP,
    absorb_own_reboot,
    dated,
    entry_for,
    reboot_loop,
    used_up,
    was_used_up,
)
from caretaker.daemontask.refused_pods import RefusedPod
from caretaker.daemontask.resting import rebooted, resting, watched
from caretaker.daemontask.rollout_deadline import cut_off, is_cut_off
from caretaker.daemontask.run_triggers import (
    RETRY,
    in_place,
    is_broken,
    is_retry,
    key_of,
    nonce_of,
    trigger_of,
)


def decide(
    inputs: DecisionInput, node: Node, eligibility: Eligibility, pods: Mapping[str, Pod], entry: Entry | None
) -> Decision:
    """The state of one node, and its needs."""
    if entry is not None and entry.node_uid != node.uid:
        entry = None  # the node was replaced: it has not run
    live, unrecorded = _split(pods, entry)
    settled: Entry | None
    if entry is None and is_broken(inputs, node):
        settled = in_place(inputs, node, eligibility, pods)
    elif unrecorded is not None:
        settled = entry_for(inputs, unrecorded, node, entry)
    else:
        settled = _unended(inputs, node, live, entry)
    settled = watched(inputs, node, dated(settled, inputs.now)) if settled is not None else None
    if unrecorded is not None and node.uid in inputs.unplaced:
        inputs = replace(inputs, unplaced=inputs.unplaced - {node.uid})  # that Pod was placed
    decision = (
        _worn_out(inputs, node, live, entry)
        or decide_live(inputs, node, eligibility, live)
        or _excluded(inputs, node, eligibility, settled)
        or _expected(inputs, settled)
        or _recorded(inputs, node, settled)
        or _waiting(inputs, node, eligibility, settled)
    )
    if decision.state == "excluded" and eligibility.reason == TAINT and _run_failed(inputs, node, settled):
        decision = replace(decision, state="blocked")  # a Pod of the retry that no node has yet is deleted
    if settled is not None and settled is not entry:  # the record comes first: the next name follows from it
        decision = replace(decision, record=settled, start="", wake=decision.wake or inputs.now)
    if settled is not None and decision.state not in ("excluded", "succeeded", "failed"):
        decision = replace(decision, failing=decision.failing or _failing_since(inputs, node, settled))
        decision = rebooted(inputs, node, settled, decision)
    if node.cordon and is_cordoned_by(node, inputs.task_uid):
        decision = replace(decision, cordoned=True)
    if node.uid in inputs.unsure:
        decision = replace(decision, slot=True)
    return _with_slot_of_predecessor(inputs, node, decision) if inputs.namesakes else decision


def _failing_since(inputs: DecisionInput, node: Node, entry: Entry) -> float:
    """When an attempt at the run that is wanted first failed; 0 where none did. A run that a reboot asks for
    after a failure is another attempt."""
    tried = entry.result == "Failed" or (entry.result == RETRY and entry.attempts)
    if not tried or entry.revision != inputs.revision:
        return 0.0
    if trigger_of(inputs, node, entry) not in ("", RETRY, NODE_REBOOT):
        return 0.0
    return float(entry.failing_since or entry.finished_at)


def _with_slot_of_predecessor(inputs: DecisionInput, node: Node, decision: Decision) -> Decision:
    """A Pod of this task on the node of that name that this one replaced may run on the same machine."""
    pod = inputs.namesakes.get(node.uid)
    if pod is None or pod.owner_uid != inputs.task_uid:
        return decision
    if not decision.slot and not is_lost(inputs, node, pod):
        held_for, since = PREDECESSOR_TERMINATING, pod.deletion_asked
        decision = replace(decision, slot=True, slot_until=0.0, slot_for=held_for, slot_since=since)
    late = pod.deletion_asked + inputs.spec.progress_deadline_seconds
    moments = (decision.wake, late, lost_at(inputs, node, pod))
    return replace(decision, wake=min((at for at in moments if at > inputs.now), default=0.0))


def _split(pods: Mapping[str, Pod], entry: Entry | None) -> tuple[list[Pod], Pod | None]:
    """(Pods that are not terminal, the first terminal Pod that the ledger does not have).

    A live Pod that the ledger has already is a view of the past, since only ended Pods are recorded: it
    counts only where no later one is known, lest the later Pod be taken for a surplus one and be deleted. A
    Pod that ended before an older one did was a surplus one, and waits: the ledger goes by seq.
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


def _unended(inputs: DecisionInput, node: Node, live: list[Pod], entry: Entry | None) -> Entry | None:
    """The entry of a node without an unrecorded ended Pod."""
    if len(live) == 1 and used_up(inputs.spec, live[0]) and not (entry and was_used_up(entry, live[0])):
        return entry_for(inputs, live[0], node, entry)
    if live:
        settled = intents.covered(inputs.spec, live, entry)
    elif entry is None:
        return None
    elif entry.intent:
        token = inputs.unstarted.get(node.uid, "")
        settled = intents.concluded(inputs.spec, entry, token, inputs.now)
    else:
        settled = intents.kept_from_repeating(inputs.spec, entry)
    if settled is not entry or (entry is not None and intents.is_open(entry)):
        return settled
    return _settle(inputs, node, entry)


def _excluded(
    inputs: DecisionInput, node: Node, eligibility: Eligibility, entry: Entry | None
) -> Decision | None:
    """A node that the task is not for. A taint takes no failure out of the rollout: the run may be its
    cause."""
    if eligibility.kind != "excluded" or (eligibility.reason == TAINT and _run_failed(inputs, node, entry)):
        return None
    return Decision("excluded", eligibility.reason, eligibility.message)


def _run_failed(inputs: DecisionInput, node: Node, entry: Entry | None) -> bool:
    """Whether the run that is wanted has failed there, or has broken the node after its success."""
    if entry is None:
        return False
    if entry.result == "Succeeded":
        return bool(entry.failing_since) and trigger_of(inputs, node, entry) in ("", NODE_REBOOT)
    return _failing_since(inputs, node, entry) > 0


def _expected(inputs: DecisionInput, entry: Entry | None) -> Decision | None:
    """A run whose Pod is still to be seen: another pass, or another operator, may be creating it."""
    if entry is None or not intents.is_expected(entry, inputs.now):
        return None
    wake = intents.expected_until(entry)
    return Decision("active", "Starting", since=float(entry.started_at), slot=True, wake=wake)


def _settle(inputs: DecisionInput, node: Node, entry: Entry | None) -> Entry | None:
    """The entry after a reboot was looked at: absorbed as the run's own, refused as a loop, or as it was."""
    if entry is None or NODE_REBOOT not in inputs.spec.rerun_on:
        return entry
    if trigger_of(inputs, node, entry) != NODE_REBOOT:
        return entry
    settled = absorb_own_reboot(inputs, entry, node)
    if settled is entry and reboot_loop(entry, inputs.now):
        return replace(
            entry,
            result="Failed",
            reason=REBOOT_LOOP,
            message="reboots started 3 runs within 6 h; fix the node, then rerun it",
            run_key=key_of(inputs, node, entry.nonce),
            boot_id=node.boot_id,
            results=None,  # not needed of a failed node, and there is no room for both
            fault=None,
        )
    return settled


def _worn_out(inputs: DecisionInput, node: Node, live: list[Pod], entry: Entry | None) -> Decision | None:
    """A node whose run has failed by backoffLimit though its Pod lives on: it is deleted, and holds its slot
    until it has gone."""
    if entry is None:
        return None
    pod = next((pod for pod in live if was_used_up(entry, pod)), None)
    if pod is None:
        return None
    going = terminating(inputs, node, [pod])
    decision = _recorded(inputs, node, entry) or going
    if not pod.deletion:
        return replace(decision, slot=True, delete=(pod,))
    return replace(
        decision,
        slot=going.slot,
        slot_until=going.slot_until,
        slot_for=PREDECESSOR_TERMINATING,
        slot_since=going.since,
        wake=going.wake,
    )


def _recorded(inputs: DecisionInput, node: Node, entry: Entry | None) -> Decision | None:
    """A node whose last run is still good."""
    if entry is None or trigger_of(inputs, node, entry):
        return None
    if entry.result == "Failed":
        return Decision("failed", entry.reason, entry.message, since=float(entry.finished_at))
    if inputs.min_success_seconds:
        return resting(inputs, node, entry)
    return Decision("succeeded", since=float(entry.finished_at))


def _waiting(inputs: DecisionInput, node: Node, eligibility: Eligibility, entry: Entry | None) -> Decision:
    """A node that needs a run and has no live Pod. A Pod beyond the entry's seq is recorded before anything
    starts, so the next seq follows from the entry alone."""
    if eligibility.kind == "held" and not _run_failed(inputs, node, entry):
        return Decision("excluded", eligibility.reason, eligibility.message)
    trigger, nonce = trigger_of(inputs, node, entry), nonce_of(inputs, node, entry)
    again = entry if entry is not None and is_retry(inputs, entry, trigger) else None
    if eligibility.kind != "fits":
        blocked = _blocked(inputs, eligibility, again)
        return replace(blocked, overdue=True) if is_cut_off(inputs, node, entry, trigger) else blocked
    if (before := inputs.namesakes.get(node.uid)) is not None:
        what = "node" if before.owner_uid == inputs.task_uid else "task"
        message = f"waiting for Pod {before.name} of an earlier {what} of this name to go"
        return Decision("blocked", PREDECESSOR_TERMINATING, message, since=before.deletion_asked)
    if (kept := _outside(inputs, node, entry, trigger)) is not None:
        return kept
    refusal = inputs.refused.get(node.uid)
    not_before = _not_before(inputs, node, entry, trigger)
    if refusal is not None:
        not_before = max(not_before, refusal.until)
    waits = inputs.now < not_before
    decision = _wanting(inputs, again, refusal, BACKOFF if waits else QUEUED)
    # One that got no Pod, or no room for one, when it was last tried holds no slot: others go first.
    slot = decision.slot and node.uid not in inputs.unplaced and node.uid not in inputs.deprioritised
    if waits:
        wake = min(not_before, decision.wake or not_before)
        until = (decision.slot_until or not_before) if slot else 0.0
        return replace(decision, slot=slot, slot_until=until, wake=wake)
    retry = entry if entry is not None and trigger == RETRY else None
    ready = replace(
        decision,
        slot=slot,
        start=trigger,
        seq=1 + (entry.seq if entry else 0) + inputs.seq_skips.get(node.uid, 0),
        attempt=1 + (retry.attempts + retry.disruptions if retry else 0),
        nonce=nonce,
    )
    if node.uid in inputs.held:
        ready = _kept_out(inputs, node, rebooted(inputs, node, entry, ready) if entry else ready)
    return drained_first(inputs, node, ready, entry) if node.cordon and ready.start else ready


def _kept_out(inputs: DecisionInput, node: Node, ready: Decision) -> Decision:
    """A node that another task of the exclusive group holds waits, and takes no slot that it has not."""
    hold, ours = inputs.held[node.uid], ready.slot or is_cordoned_by(node, inputs.task_uid)
    if ours and not hold.always:
        return ready
    reason, words = Reason.HELD_BY_GROUP, f"waiting for DaemonTask {hold.task}"
    return replace(ready, state="pending", reason=reason, message=words, since=0.0, slot=ours, start="")


def _outside(inputs: DecisionInput, node: Node, entry: Entry | None, trigger: str) -> Decision | None:
    """A node whose first rollout has not begun, or whose rollout is over."""
    if inputs.awaited and entry is None and not nonce_of(inputs, node, entry):
        return Decision("pending", Reason.AWAITING_SCHEDULE)
    if inputs.deadline is None:
        return None
    return cut_off(entry) if is_cut_off(inputs, node, entry, trigger) else None


def _blocked(inputs: DecisionInput, eligibility: Eligibility, again: Entry | None) -> Decision:
    """A node on which nothing may start now."""
    since = max(eligibility.since, inputs.waiting_since)
    late = since + inputs.spec.progress_deadline_seconds if eligibility.since else 0.0
    kept, lost_since = _held(inputs, eligibility, again) if again is not None else (0.0, 0.0)
    wake = min((at for at in (late, kept) if at > inputs.now), default=0.0)
    return Decision(
        "blocked",
        eligibility.reason,
        eligibility.message,
        since=eligibility.since,
        slot=inputs.now < kept,
        slot_until=kept if inputs.now < kept else 0.0,
        failing=lost_since if kept <= inputs.now else 0.0,
        wake=wake,
    )


def _held(inputs: DecisionInput, eligibility: Eligibility, again: Entry) -> tuple[float, float]:
    """(until when a blocked node keeps its slot, since when it counts as failing after that); 0 for never.

    A node whose run has failed keeps its slot until the progress deadline: the run may be the reason why the
    node is blocked. So does a node whose run was disrupted, if it is NotReady, unhealthy or rejected its
    Pods: a run that reboots or halts its node ends like this. After the deadline it counts as failing, like a
    node with a Pod. If its Pods were rejected before it was blocked, the deadline counts from the rejection.
    """
    down = again.disruptions and (eligibility.reason in UNWELL or again.rejections)
    if not (again.attempts or down):
        return 0.0, 0.0
    since = float(again.started_at if again.rejections else again.finished_at)
    kept = since + inputs.spec.progress_deadline_seconds
    if not again.rejections:
        since = max(past(eligibility.since, inputs.now), since)
    return kept, since if down and since <= kept else 0.0


def _wanting(inputs: DecisionInput, again: Entry | None, refusal: RefusedPod | None, reason: str) -> Decision:
    """A node that may start: now, or when its backoff is over.

    A node on which a run has ended without success keeps its slot, else each one that waits for its retry
    would let the run that fails on it begin on another node. One that no Pod has reached keeps none.
    """
    if refusal is not None:
        return Decision("blocked", POD_REFUSED, refusal.message, since=refusal.since)
    if again is None:
        return Decision("pending", reason)
    if again.rejections:
        return _rejected(inputs, again)
    since = float(again.finished_at)
    last = f"{again.reason}: {again.message}" if reason == BACKOFF and again.reason else ""
    return Decision("pending", reason, last, since=since, slot=bool(again.attempts or again.disruptions))


def _rejected(inputs: DecisionInput, again: Entry) -> Decision:
    """A node whose kubelet rejects the Pods. An earlier run that failed or was disrupted there may be the
    reason (it fills the disk, and is evicted): the slot is kept until the progress deadline. After a
    disruption the node then counts as failing."""
    since = float(again.started_at)
    kept = since + inputs.spec.progress_deadline_seconds
    held = bool(again.attempts or again.disruptions) and inputs.now < kept
    return Decision(
        "blocked",
        again.reason,
        again.message,
        since=since,
        slot=held,
        slot_until=kept if held else 0.0,
        failing=since if again.disruptions and kept <= inputs.now else 0.0,
        wake=kept if held else 0.0,
    )


def _not_before(inputs: DecisionInput, node: Node, entry: Entry | None, trigger: str) -> float:
    """When the next attempt may start: 10 s doubling to 10 min after the last one ended (batch/v1 Job)."""
    vanished = inputs.vanished.get(node.uid, 0.0)
    if entry is not None and intents.was_unreadable(entry):
        return max(vanished, intents.quiet_from(entry))
    if entry is None or trigger != "Retry":
        return vanished
    tries = entry.rejections or entry.attempts + entry.disruptions
    wait = min(BACKOFF_BASE * 2.0 ** min(max(tries - 1, 0), 16), BACKOFF_MAX)
    return max(vanished, entry.finished_at + wait)
