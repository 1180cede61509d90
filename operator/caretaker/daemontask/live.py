"""The decision about a node with a live Pod.

Pure: (task, node, its live Pods, now) -> Decision.
"""

from msgspec.structs import replace

from caretaker.api.names import LABEL_REVISION, POD_NONCE
from caretaker.api.objects import CRASH_LOOP, Node, Pod
from caretaker.api.times import past
from caretaker.daemontask.decision import PREDECESSOR_TERMINATING, STARTING, Decision, DecisionInput, State
from caretaker.daemontask.node_eligibility import Eligibility
from caretaker.daemontask.node_health import NODE_NOT_READY
from caretaker.daemontask.pods import tick_of
from caretaker.daemontask.referenced_data import change_of, template_part
from caretaker.daemontask.rollout_deadline import binds
from caretaker.daemontask.run_triggers import nonce_of


def decide_live(
    inputs: DecisionInput, node: Node, eligibility: Eligibility, live: list[Pod]
) -> Decision | None:
    """A node that has a Pod which is not terminal."""
    if not live:
        return None
    bound = sorted((p for p in live if p.node_name), key=lambda p: (p.created, p.seq))
    staying = [p for p in bound if not p.deletion] or [p for p in live if not p.deletion]
    if not staying:
        return terminating(inputs, node, live)
    keep = staying[0]
    extra = tuple(p for p in live if p is not keep and not p.deletion)
    decision = (
        _outdated(inputs, keep)
        or (_pending_pod(inputs, eligibility, keep) if not keep.node_name else None)
        or _bound_pod(inputs, node, keep)
    )
    if not _is_current(inputs, node, keep):
        decision = replace(decision, outdated=True)
    if inputs.spec.concurrency_policy == "Replace" and eligibility.kind == "fits" and not decision.delete:
        decision = replace(decision, replace=keep if _makes_way(inputs, node, keep) else None)
    return replace(decision, delete=(*decision.delete, *extra), duplicates=True) if extra else decision


def _makes_way(inputs: DecisionInput, node: Node, pod: Pod) -> bool:
    """Whether a newer run is due that may start."""
    return _is_superseded(inputs, node, pod) and not binds(inputs, node, pod.annotations.get(POD_NONCE, ""))


def _is_superseded(inputs: DecisionInput, node: Node, pod: Pod) -> bool:
    """Whether a run that would start now is for something else. A reboot ends its Pod by itself."""
    return (
        bool(change_of(inputs.spec.rerun_on, pod.labels.get(LABEL_REVISION, ""), inputs.revision))
        or nonce_of(inputs, node, None) > pod.annotations.get(POD_NONCE, "")
        or (inputs.tick > tick_of(pod))
    )


def _is_current(inputs: DecisionInput, node: Node, pod: Pod) -> bool:
    """Whether the Pod is of the run that is wanted now."""
    return pod.labels.get(LABEL_REVISION) == inputs.revision and not _is_superseded(inputs, node, pod)


def terminating(inputs: DecisionInput, node: Node, live: list[Pod]) -> Decision:
    """Its containers may run until the Pod is gone, however short its grace period was."""
    pod = max(live, key=lambda p: p.deletion)
    message = f"waiting for Pod {pod.name} to go"
    lost, current = is_lost(inputs, node, pod), _is_current(inputs, node, pod)
    late = pod.deletion_asked + inputs.spec.progress_deadline_seconds
    return Decision(
        "blocked",
        PREDECESSOR_TERMINATING,
        message,
        since=pod.deletion_asked,
        slot=not lost,
        slot_until=0.0 if lost else lost_at(inputs, node, pod),
        failing=past(node.ready_since, inputs.now) if lost and current else 0.0,
        outdated=not current,
        wake=min((at for at in (late, lost_at(inputs, node, pod)) if at > inputs.now), default=0.0),
    )


def is_lost(inputs: DecisionInput, node: Node, pod: Pod) -> bool:
    """Whether the node has been NotReady for so long that its Pod is waited for no longer."""
    return not node.ready and inputs.now >= lost_at(inputs, node, pod)


def lost_at(inputs: DecisionInput, node: Node, pod: Pod) -> float:
    """When a Pod on a NotReady node counts as lost; 0 while the node is Ready."""
    if node.ready:
        return 0.0
    return max(pod.created, past(node.ready_since, inputs.now)) + inputs.spec.progress_deadline_seconds


def _outdated(inputs: DecisionInput, pod: Pod) -> Decision | None:
    """A Pod that cannot start or end, of a template or data that has changed since: its end would never
    come, and a corrected image or request would have no effect."""
    stuck = pod.unschedulable if not pod.node_name else pod.waiting not in STARTING
    if pod.phase != "Pending":
        stuck = pod.waiting == CRASH_LOOP
    revision = pod.labels.get(LABEL_REVISION, "")
    if revision == inputs.revision or not stuck:
        return None
    same = template_part(revision) == template_part(inputs.revision)
    message = (
        f"Pod {pod.name} cannot start or end and makes way for the changed {'data' if same else 'template'}"
    )
    return Decision("pending", "TemplateChanged", message, slot=bool(pod.node_name), delete=(pod,))


def _pending_pod(inputs: DecisionInput, eligibility: Eligibility, pod: Pod) -> Decision:
    """A Pod that is not bound yet: the scheduler has not placed it, or cannot."""
    if eligibility.kind == "excluded" or (eligibility.kind == "blocked" and eligibility.reason == "Cordoned"):
        state: State = "excluded" if eligibility.kind == "excluded" else "blocked"
        return Decision(
            state, eligibility.reason, eligibility.message, since=eligibility.since, delete=(pod,)
        )
    deadline = pod.created + inputs.spec.progress_deadline_seconds
    if inputs.now >= deadline:
        return Decision(
            "blocked", "Unschedulable", pod.unschedulable or "not scheduled", since=pod.created, delete=(pod,)
        )
    if pod.unschedulable:
        reason = "TooManyPods" if "Too many pods" in pod.unschedulable else "Unschedulable"
        since = past(pod.unschedulable_since, inputs.now) or pod.created
        words = pod.unschedulable
        return Decision("blocked", reason, words, since=since, slot=True, slot_until=deadline, wake=deadline)
    return Decision("active", "Scheduling", since=pod.created, slot=True, wake=deadline)


def _bound_pod(inputs: DecisionInput, node: Node, pod: Pod) -> Decision:
    since = past(node.ready_since, inputs.now)
    if is_lost(inputs, node, pod):
        message = f"Pod {pod.name} may still run there"
        failing = since if _is_current(inputs, node, pod) else 0.0
        return Decision("blocked", NODE_NOT_READY, message, since=since, failing=failing)
    if not node.ready:
        at = lost_at(inputs, node, pod)
        return Decision("active", NODE_NOT_READY, since=since, slot=True, slot_until=at, wake=at)
    if pod.phase == "Pending":
        stuck = pod.created + inputs.spec.progress_deadline_seconds
        wake = stuck if stuck > inputs.now else 0.0
        return Decision("active", pod.waiting or "Starting", since=pod.created, slot=True, wake=wake)
    return Decision("active", "Running", since=pod.created, slot=True)
