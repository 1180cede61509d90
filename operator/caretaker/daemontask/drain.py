"""Which Pods of a cordoned node are evicted, when its run may begin or has failed.

Pure. The rules for Pods are those of kubectl drain --ignore-daemonsets, with three differences: a Pod of a
DaemonSet stays without a look whether the DaemonSet exists (the garbage collector takes it otherwise), the
operator's own Pods stay, since one that finds no other node could not end the cordon, and a Pod of another
DaemonTask is waited for, since evicting it would cut off a run.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from caretaker.api.daemontask import Drain, PodSelector
from caretaker.api.objects import Node, Taint, WireBareMeta
from caretaker.api.times import parse_time, past
from caretaker.daemontask.cordon import is_cordoned_by, mark_of
from caretaker.daemontask.decision import (
    BACKOFF,
    CORDONED,
    DRAINING,
    Decision,
    DecisionInput,
    DrainView,
    NodeReport,
)
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_eligibility import UNSCHEDULABLE, Tolerated
from caretaker.daemontask.pod_failure_policy import cut_message, reboot_runs
from caretaker.daemontask.run_triggers import key_of, nonce_of
from caretaker.kube.errors import ApiError

DRAIN_TIMEOUT: Final = "DrainTimeout"
NOT_STARTED: Final = "NotStarted"
NO_RUN: Final = (DRAIN_TIMEOUT, NOT_STARTED)
FRESH: Final = 30.0  # seconds for which a node counts as empty after a look
FIRST_WAIT: Final = 5.0  # seconds between two looks at a node, as kubectl drain waits after a refusal
LONGEST_WAIT: Final = 30.0
BREAK: Final = 30.0  # seconds by which a look may be late: after that the drain begins anew
_MESSAGE: Final = 300  # characters of an answer
_ENDED: Final = ("Succeeded", "Failed")
_CORDON: Final = Taint(UNSCHEDULABLE, "NoSchedule")
_OPERATOR: Final = ("app.kubernetes.io/name", "caretaker")  # a label of the chart's Pods


# ---------------------------------------------------------------- the Pods of a node


class _Marks(msgspec.Struct):
    mirror: str | None = msgspec.field(name="kubernetes.io/config.mirror", default=None)


class _Meta(WireBareMeta):
    annotations: _Marks | None = None
    labels: dict[str, str] | None = None


class _Volume(msgspec.Struct, rename="camel"):
    empty_dir: dict[str, Any] | None = None


class _Spec(msgspec.Struct):
    volumes: list[_Volume] | None = None
    tolerations: list[dict[str, Any]] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class NodePod(msgspec.Struct):
    """A Pod as a drain looks at it."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def full_name(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def tolerates_cordon(self) -> bool:
        """Whether the scheduler puts it on cordoned nodes too: its successor comes back at once."""
        return Tolerated(self.spec.tolerations or ()).has(_CORDON)


class Step(msgspec.Struct, frozen=True):
    """The next step of a drain.

    evict    Pods to evict
    ending   Pods that end by themselves, and are waited for
    blocked  why nothing is evicted: a Pod, and the field that would allow it
    """

    evict: tuple[NodePod, ...] = ()
    ending: tuple[NodePod, ...] = ()
    blocked: str = ""

    @property
    def empty(self) -> bool:
        """Whether the run may begin."""
        return not (self.evict or self.ending or self.blocked)


def step(
    pods: Iterable[NodePod],
    drain: Drain,
    task_uid: str,
    *,
    known: Collection[str] | None = None,
    operator: str = "",
) -> Step:
    """The next step of a node with these Pods. As with kubectl drain, one that may not be evicted keeps all
    others: a node that cannot be drained keeps its workloads.

    known     UIDs of Pods that tolerate the cordon and were there at the first look: later ones stay, or
              they would be evicted without end; None = this is the first look
    operator  the operator's own namespace
    """
    evict, ending, blocked = list[NodePod](), list[NodePod](), list[str]()
    for pod in pods:
        owner = next((one for one in pod.metadata.owner_references or () if one.controller), None)
        kind = owner.kind if owner is not None else ""
        if _stays(pod, operator) or kind == "DaemonSet" or (owner is not None and owner.uid == task_uid):
            continue
        if known is not None and pod.metadata.uid not in known and pod.tolerates_cordon:
            continue
        if pod.metadata.deletion_timestamp is not None or kind == "DaemonTask":
            ending.append(pod)
        elif owner is None and not drain.force:
            blocked.append(f"Pod {pod.full_name} has no controller, which needs spec.drain.force")
        elif _has_empty_dir(pod) and not drain.delete_empty_dir_data:
            blocked.append(
                f"Pod {pod.full_name} has an emptyDir volume, which needs spec.drain.deleteEmptyDirData"
            )
        else:
            evict.append(pod)
    if blocked:
        return Step((), tuple(ending), min(blocked))
    return Step(tuple(evict), tuple(ending))


def _stays(pod: NodePod, operator: str) -> bool:
    name, value = _OPERATOR
    ours = bool(operator) and pod.metadata.namespace == operator
    if ours and (pod.metadata.labels or {}).get(name) == value:
        return True
    return pod.status.phase in _ENDED or _is_mirror(pod)


def _is_mirror(pod: NodePod) -> bool:
    marks = pod.metadata.annotations
    return marks is not None and marks.mirror is not None


def _has_empty_dir(pod: NodePod) -> bool:
    return any(volume.empty_dir is not None for volume in pod.spec.volumes or ())


def label_selector(selector: PodSelector | None) -> str:
    """The selector as a parameter of a list; "" = all."""
    if selector is None:
        return ""
    terms = [f"{key}={value}" for key, value in selector.match_labels.items()]
    for one in selector.match_expressions:
        values = f"({','.join(one.values)})"
        terms.append(
            {
                "In": f"{one.key} in {values}",
                "NotIn": f"{one.key} notin {values}",
                "Exists": one.key,
                "DoesNotExist": f"!{one.key}",
            }[one.operator]
        )
    return ",".join(terms)


def eviction(pod: NodePod, drain: Drain) -> dict[str, Any]:
    """The policy/v1 Eviction of this very Pod."""
    options: dict[str, Any] = {"preconditions": {"uid": pod.metadata.uid}}
    if drain.grace_period_seconds is not None:
        options["gracePeriodSeconds"] = drain.grace_period_seconds
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
        "deleteOptions": options,
    }


# ---------------------------------------------------------------- the run


class _Failure(msgspec.Struct, frozen=True):
    """Why an attempt has failed before anything of it ran."""

    reason: str
    message: str
    since: float = 0.0  # when the attempt began; 0 = now


def view_of(drains: Mapping[str, DrainView], node: Node, run: str, now: float) -> DrainView | None:
    """How far the node is drained for this attempt; not as seen before the clock was set back."""
    view = drains.get(node.uid)
    same = view is not None and (view.mark, view.run) == (node.cordon, run)
    return view if view is not None and same and view.looked <= now else None


def continued(drains: Mapping[str, DrainView], report: NodeReport, now: float) -> DrainView | None:
    """The view of a drain that goes on: so too for another run (of a later tick, an edit, a re-run), or one
    that cannot end would never fail. An attempt that has ended, or a break, ends it."""
    node, entry, view = report.node, report.entry, drains.get(report.node.uid)
    if view is None or view.mark != node.cordon or view.looked > now:
        return None
    if view.run == report.decision.drain:
        return view
    ended = entry is not None and entry.finished_at >= view.first
    return None if ended or view.empty or now > view.next + BREAK else view


def drained_first(inputs: DecisionInput, node: Node, ready: Decision, entry: Entry | None) -> Decision:
    """The decision about a node whose run may begin: if the task has cordoned it, it is drained first."""
    drain, mark = inputs.spec.drain, mark_of(node)
    ours = is_cordoned_by(node, inputs.task_uid)
    if drain is None or mark is None or not ours:
        return (
            replace(ready, start="", slot=True, reason=CORDONED) if ours else ready
        )  # the cordon ends first
    if why := _in_vain(inputs, node, ready, entry, past(mark.time, inputs.now)):
        return _failed(inputs, node, ready, entry, _Failure(NOT_STARTED, why))
    run = f"{key_of(inputs, node, ready.nonce)}/{ready.seq}/{ready.attempt}"
    view = view_of(inputs.drains, node, run, inputs.now)
    if view is None:
        reason = CORDONED if ready.state == "pending" else ready.reason
        return replace(ready, slot=True, drain=run, reason=reason)
    if view.empty and inputs.now - view.looked <= FRESH:
        return replace(ready, slot=True)
    if not (view.empty or view.fault) and view.looked >= view.first + drain.timeout_seconds:
        failure = _Failure(DRAIN_TIMEOUT, view.message, view.first)
        return _failed(inputs, node, ready, entry, failure)
    wake = next((at for at in (_look_at(view, drain),) if at > inputs.now), 0.0)
    return Decision(
        "active",
        DRAINING,
        view.message,
        since=view.first,
        slot=True,
        failing=ready.failing,
        drain=run,
        wake=wake,
    )


def _in_vain(inputs: DecisionInput, node: Node, ready: Decision, entry: Entry | None, cordoned: float) -> str:
    """Why the run cannot begin though the node was drained for it; "" = it may."""
    if node.uid in inputs.unplaced and inputs.deprioritised.get(node.uid, 0.0) >= cordoned:
        return "the drained node has no room for the Pod"
    if ready.state != "blocked" or entry is None or not entry.rejections:
        return ""
    if inputs.now < max(entry.started_at, cordoned) + inputs.spec.progress_deadline_seconds:
        return ""
    return f"the kubelet of the drained node rejects the Pod, {entry.reason}: {entry.message}"


def _look_at(view: DrainView, drain: Drain) -> float:
    """When the node is looked at next. The last look is at the deadline: a pod that it finds is a timeout."""
    last = view.empty or view.fault
    return view.next if last else min(view.next, view.first + drain.timeout_seconds)


def _failed(
    inputs: DecisionInput, node: Node, ready: Decision, entry: Entry | None, failure: _Failure
) -> Decision:
    """The attempt has failed, and nothing of it ran. A node that was drained in vain is not tried again: no
    other attempt would differ. No name of a Pod is used."""
    key, now = key_of(inputs, node, ready.nonce), int(inputs.now)
    same = (
        entry
        if entry is not None and (entry.run_key == key or _of_drain(inputs, node, ready, entry))
        else None
    )
    attempts = 1 + (same.attempts if same is not None else 0)
    final = inputs.spec.at_most_once or failure.reason == NOT_STARTED or attempts > inputs.spec.backoff_limit
    record = Entry(
        node_uid=node.uid,
        revision=inputs.revision,
        run_key=key,
        result="Failed" if final else "Retry",
        seq=entry.seq if entry is not None else 0,
        nonce=ready.nonce,
        boot_id=node.boot_id,
        tick=inputs.tick,
        attempts=attempts,
        disruptions=same.disruptions if same is not None else 0,
        failing_since=(same.failing_since if same is not None else 0) or now,
        started_at=int(failure.since) or now,
        finished_at=now,
        reason=failure.reason,
        message=cut_message(failure.message),
        reboot_runs=reboot_runs(ready.start, now, entry, same is not None),
    )
    if final:
        return Decision("failed", record.reason, record.message, since=float(now), record=record)
    failing = float(record.failing_since)
    return Decision(
        "pending",
        BACKOFF,
        failure.message,
        since=float(now),
        slot=True,
        failing=failing,
        record=record,
        wake=inputs.now,
    )


def not_in_vain(
    inputs: DecisionInput,
    nodes: Mapping[str, Node],
    entries: Mapping[str, Entry],
    wanting: Sequence[NodeReport],
    resumed: float,
) -> tuple[Sequence[NodeReport], str]:
    """(the nodes that may begin, a node that was drained in vain and keeps others from it).

    With Uncordon such a node holds no slot: without this rule a Pod that fits nowhere would empty one node
    after the other. So no further node is cordoned until a person edits the template, asks for a re-run, or
    has the task go on (`resumed`).
    """
    drain = inputs.spec.drain
    if drain is None or drain.on_failure != "Uncordon" or not wanting:
        return wanting, ""
    vain = {
        name: float(entry.finished_at)
        for name, entry in entries.items()
        if entry.reason == NOT_STARTED and entry.revision == inputs.revision
        if (node := nodes.get(name)) is not None and node.uid == entry.node_uid
        if nonce_of(inputs, node, entry) == entry.nonce
    }
    last = max(vain.values(), default=-1.0)
    may = [
        report
        for report in wanting
        if report.decision.cordoned or max(resumed, parse_time(report.decision.nonce) or 0.0) > last
    ]
    return may, min(vain) if len(may) < len(wanting) else ""


def _of_drain(inputs: DecisionInput, node: Node, ready: Decision, entry: Entry) -> bool:
    """Whether the drain under this cordon has failed before, for an earlier tick."""
    mark = mark_of(node)
    failed = mark is not None and entry.result == "Retry" and entry.reason == DRAIN_TIMEOUT
    same = (entry.revision, entry.nonce) == (inputs.revision, ready.nonce)
    return same and failed and mark is not None and entry.finished_at >= mark.time


def due(inputs: DecisionInput, reports: Iterable[NodeReport]) -> list[NodeReport]:
    """Of the nodes that are drained those that are to be looked at now, the longest wait first."""
    drain = inputs.spec.drain
    if drain is None:
        return []
    found = list[tuple[float, str, NodeReport]]()
    for report in reports:
        view = view_of(inputs.drains, report.node, report.decision.drain, inputs.now)
        at = 0.0 if view is None else _look_at(view, drain)
        if at <= inputs.now:
            found.append((at, report.node.name, report))
    return [report for _, _, report in sorted(found, key=lambda one: one[:2])]


def next_wait(view: DrainView | None, *, moved: bool) -> float:
    """Seconds until the next look: longer and longer while every eviction is refused."""
    if view is None or moved:
        return FIRST_WAIT
    return min((view.next - view.looked) * 1.5, LONGEST_WAIT)


def words_of(error: ApiError) -> str:
    """The API server's words. It names the PodDisruptionBudget in a cause."""
    causes = "; ".join(message for _, message in error.causes if message)
    return (causes or error.message or str(error))[:_MESSAGE]
