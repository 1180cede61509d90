"""Which Pods of a cordoned node are evicted, when its run may begin or has failed, when its cordon ends.

Pure. The rules for Pods are those of kubectl drain --ignore-daemonsets, with two differences: a Pod of a
DaemonSet stays without a look whether the DaemonSet exists (the garbage collector takes it otherwise), and a
Pod of another DaemonTask is waited for, since evicting it would cut off a run. The state between two looks at
a node is a cache: a new process looks again.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import Drain, PodSelector
from caretaker.api.objects import Node, WireBareMeta
from caretaker.daemontask.cordon import is_cordoned_by, mark_of
from caretaker.daemontask.decision import BACKOFF, DRAINING, Decision, DecisionInput, DrainView, NodeReport
from caretaker.daemontask.intents import is_open
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.pod_failure_policy import cut_message, past, reboot_runs
from caretaker.daemontask.run_triggers import NO_PODS, key_of
from caretaker.daemontask.snapshot import Snapshot

DRAIN_TIMEOUT: Final = "DrainTimeout"
FRESH: Final = 30.0  # seconds for which a node counts as empty after a look
FIRST_WAIT: Final = 5.0  # seconds between two looks at a node, as kubectl drain waits after a refusal
LONGEST_WAIT: Final = 30.0
_ENDED: Final = ("Succeeded", "Failed")


# ---------------------------------------------------------------- the Pods of a node


class _Marks(msgspec.Struct):
    mirror: str | None = msgspec.field(name="kubernetes.io/config.mirror", default=None)


class _Meta(WireBareMeta):
    annotations: _Marks | None = None


class _Volume(msgspec.Struct, rename="camel"):
    empty_dir: dict[str, Any] | None = None


class _Spec(msgspec.Struct):
    volumes: list[_Volume] | None = None


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


class Step(msgspec.Struct, frozen=True):
    """What a drain does next.

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


def step(pods: Iterable[NodePod], drain: Drain, task_uid: str) -> Step:
    """The next step of a node with these Pods. As with kubectl drain, one that may not be evicted keeps all
    others: a node that cannot be drained keeps its workloads."""
    evict, ending, blocked = list[NodePod](), list[NodePod](), list[str]()
    for pod in pods:
        owner = next((one for one in pod.metadata.owner_references or () if one.controller), None)
        kind = owner.kind if owner is not None else ""
        if pod.status.phase in _ENDED or _is_mirror(pod) or kind == "DaemonSet":
            continue
        if owner is not None and owner.uid == task_uid:
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


def drained_first(
    inputs: DecisionInput, node: Node, decision: Decision, entry: Entry | None, not_before: float
) -> Decision:
    """The decision about a node whose run may begin: if the task has cordoned it, it is drained first."""
    drain, mark = inputs.spec.drain, mark_of(node)
    if drain is None or mark is None or not is_cordoned_by(node, inputs.task_uid):
        return decision
    view, now = inputs.drains.get(node.uid), inputs.now
    if view is not None and (view.mark, view.seq) != (node.cordon, decision.seq):
        view = None
    since = max(past(mark.time, now) or (view.first if view is not None else now), not_before)
    if view is not None and view.looked < since:
        view = None  # of an attempt before
    if view is not None and view.empty and now - view.looked <= FRESH * inputs.backoff_scale:
        return replace(decision, slot=True)
    deadline = since + drain.timeout_seconds
    if view is not None and not view.empty and now >= deadline:
        return _timed_out(inputs, node, decision, entry, since, view.message)
    message = view.message if view is not None else ""
    moments = (deadline, view.next if view is not None else 0.0)
    wake = min((at for at in moments if at > now), default=0.0)
    failing = decision.failing
    return Decision(
        "active", DRAINING, message, since=since, slot=True, failing=failing, seq=decision.seq, wake=wake
    )


def _timed_out(
    inputs: DecisionInput, node: Node, decision: Decision, entry: Entry | None, since: float, why: str
) -> Decision:
    """The attempt has failed before its Pod was created. No name of a Pod is used."""
    key, now = key_of(inputs, node, decision.nonce), int(inputs.now)
    same = entry if entry is not None and entry.run_key == key else None
    attempts = 1 + (same.attempts if same is not None else 0)
    final = inputs.spec.at_most_once or attempts > inputs.spec.backoff_limit
    record = Entry(
        node_uid=node.uid,
        revision=inputs.revision,
        run_key=key,
        result="Failed" if final else "Retry",
        seq=entry.seq if entry is not None else 0,
        nonce=decision.nonce,
        boot_id=node.boot_id,
        tick=inputs.tick,
        attempts=attempts,
        disruptions=same.disruptions if same is not None else 0,
        failing_since=(same.failing_since if same is not None else 0) or now,
        started_at=int(since),
        finished_at=now,
        reason=DRAIN_TIMEOUT,
        message=cut_message(why),
        reboot_runs=reboot_runs(decision.start, now, entry, same is not None),
    )
    if final:
        return Decision("failed", record.reason, record.message, since=float(now), record=record)
    failing = float(record.failing_since)
    return Decision(
        "pending", BACKOFF, why, since=float(now), slot=True, failing=failing, record=record, wake=inputs.now
    )


# ---------------------------------------------------------------- the end of the cordon


def due(snapshot: Snapshot, reports: Iterable[NodeReport]) -> list[NodeReport]:
    """The nodes that are being drained and are to be looked at now, those that have waited longest first."""
    found = [
        report
        for report in reports
        if report.decision.reason == DRAINING and _next_look(snapshot, report) <= snapshot.now
    ]
    return sorted(found, key=lambda report: (_next_look(snapshot, report), report.node.name))


def _next_look(snapshot: Snapshot, report: NodeReport) -> float:
    view = snapshot.drains.get(report.node.uid)
    current = view is not None and (view.mark, view.seq) == (report.node.cordon, report.decision.seq)
    return view.next if view is not None and current else 0.0


def releases(snapshot: Snapshot, reports: Iterable[NodeReport], hold: str) -> list[Node]:
    """The nodes that lose the mark of this task, or of an earlier one of its name, and the cordon with it.
    `hold`: why nothing may begin."""
    meta, found = snapshot.task.metadata, list[Node]()
    for report in reports:
        mark = mark_of(report.node)
        if mark is None or (mark.namespace, mark.name) != (meta.namespace, meta.name):
            continue
        if not is_cordoned_by(report.node, meta.uid) or _is_over(snapshot, report, hold):
            found.append(report.node)
    return found


def _is_over(snapshot: Snapshot, report: NodeReport, hold: str) -> bool:
    """Whether no run of this task needs the node cordoned. While a Pod of it lives, one does."""
    decision, entry, drain = report.decision, report.entry, snapshot.task.spec.drain
    pods = snapshot.pods.get(report.node.uid, NO_PODS)
    running = any(not pod.terminal for pod in pods.values()) or (entry is not None and is_open(entry))
    if running or decision.record is not None:
        return False
    if drain is None or decision.state == "excluded" or decision.reason == Reason.AWAITING_SCHEDULE:
        return True
    if decision.state == "succeeded":
        return not decision.slot
    if drain.on_failure == "KeepCordoned" and (decision.state == "failed" or decision.failing):
        return False
    if decision.state == "failed" or hold:
        return True
    # One that waits for long has not begun: it gives its slot back.
    late = decision.since + snapshot.task.spec.progress_deadline_seconds
    return decision.state == "blocked" and decision.since > 0 and late <= snapshot.now


def next_wait(view: DrainView | None, moved: bool, scale: float) -> float:
    """Seconds until the next look: longer and longer while every eviction is refused."""
    if view is None or moved:
        return FIRST_WAIT * scale
    return min((view.next - view.looked) * 1.5, LONGEST_WAIT * scale)
