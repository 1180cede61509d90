"""The order of tasks on a node, spec.dependsOn.

Pure. The pass of a task that others depend on gives its Progress. Their plans compare it with the nodes that
want a run: a run starts once every dependency is done there. A node that waits wants no slot.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask, Spec
from caretaker.api.names import GROUP
from caretaker.api.objects import Node, WireMeta
from caretaker.daemontask.decision import DecisionInput, NodeReport
from caretaker.daemontask.node_eligibility import TAINT, EligibilityRules
from caretaker.daemontask.pod_failure_policy import NODE_REBOOT
from caretaker.daemontask.run_triggers import RETRY, trigger_of

AtNode = Literal["done", "failed", "waits"]

# Why nothing is known of a dependency.
NOT_FOUND: Final = "NotFound"
NOT_READ: Final = "NotRead"
ON_ECS: Final = "OnEcs"
_WORDS: Final = {
    NOT_FOUND: "which is not in this namespace",
    NOT_READ: "which the operator has not read yet",
    ON_ECS: "which has spec.ecs and runs on no node",
    Reason.INVALID_SPEC: "whose spec is not valid",
    Reason.LEDGER_LOST: "whose ledger has lost records",
}
_LEFT_OUT: Final = ("excluded", "held")
_SHOWN: Final = 8  # tasks of a circle

_NO_RULES: Final = EligibilityRules({})

Identity = tuple[str, int, tuple[tuple[str, str], ...]]


class Progress(msgspec.Struct, frozen=True):
    """How far a task is on its nodes, for the tasks that depend on it. Nodes are UIDs."""

    identity: Identity  # of the task that the pass has read
    rules: EligibilityRules
    fault: str = ""  # why the rest says nothing
    until: float = 0.0  # when its next tick is due, and no node is done; 0 = never
    done: Mapping[str, str] = {}  # node -> boot ID that the run is of; "" = of any
    failed: frozenset[str] = frozenset()
    unfinished: frozenset[str] = frozenset()


class Dependency(msgspec.Struct, frozen=True):
    """One entry of spec.dependsOn."""

    name: str
    progress: Progress | None = None
    missing: bool = False

    @property
    def fault(self) -> str:
        """Why nothing is known of it; empty if something is."""
        if self.progress is None:
            return NOT_FOUND if self.missing else NOT_READ
        return self.progress.fault

    def at(self, node: Node, now: float) -> AtNode:
        """Its state on a node. The task's rules decide about a node that its pass has not seen."""
        progress = self.progress
        if progress is None or progress.fault or 0 < progress.until <= now:
            return "waits"
        boot_id = progress.done.get(node.uid)
        if boot_id is not None:
            return "done" if boot_id in ("", node.boot_id) else "waits"
        if node.uid in progress.failed:
            return "failed"
        left_out = node.uid not in progress.unfinished and progress.rules.check(node).kind in _LEFT_OUT
        return "done" if left_out else "waits"

    def words(self, state: AtNode) -> str:
        """The wait of a node, in words."""
        why = "which failed there" if state == "failed" else _WORDS.get(self.fault, "")
        return f"DaemonTask {self.name}{f', {why}' if why else ''}"


class Dependencies(msgspec.Struct, frozen=True):
    """spec.dependsOn of a task."""

    each: tuple[Dependency, ...] = ()
    circle: tuple[
        str, ...
    ] = ()  # the names of tasks that depend on each other, the first one again at the end

    @property
    def circle_words(self) -> str:
        """The circle, cut."""
        if len(self.circle) <= _SHOWN:
            return " -> ".join(self.circle)
        return " -> ".join((*self.circle[: _SHOWN - 1], "...", self.circle[-1]))

    def awaited(self, node: Node, now: float) -> str:
        """The task that a run on the node waits for, a failed one first; empty if the run may start."""
        found = [(one, state) for one in self.each if (state := one.at(node, now)) != "done"]
        if not found:
            return ""
        one, state = next((pair for pair in found if pair[1] == "failed"), found[0])
        return one.words(state)

    def needs_action(self, waits: Collection[str]) -> bool:
        """Whether all of these waits end only after an action of a person."""
        passing = {one.words("waits") for one in self.each if one.fault in ("", NOT_READ)}
        return not passing.intersection(waits)


def names_of(spec: Spec) -> tuple[str, ...]:
    """The tasks in spec.dependsOn."""
    return tuple(one.name for one in spec.depends_on)


def identity_of(meta: WireMeta) -> Identity:
    """Of a task as it was read: a change of its spec or of a request makes another one."""
    marks = (meta.annotations or {}).items()
    return meta.uid, meta.generation, tuple(sorted(pair for pair in marks if pair[0].startswith(f"{GROUP}/")))


def on_ecs(meta: WireMeta) -> Progress:
    """That of a task with spec.ecs."""
    return Progress(identity_of(meta), _NO_RULES, ON_ECS)


def progress_of(
    task: DaemonTask, rules: EligibilityRules, reports: Iterable[NodeReport], until: float, fault: str = ""
) -> Progress:
    """The progress by the decisions of a pass. A success counts once it is on record and minSuccessSeconds
    have passed."""
    done, failed, unfinished = dict[str, str](), set[str](), set[str]()
    reboots = NODE_REBOOT in task.spec.rerun_on
    for report in reports:
        decision, node = report.decision, report.node
        if decision.state == "succeeded" and decision.record is None and not decision.slot:
            done[node.uid] = node.boot_id if reboots else ""
        elif decision.state == "failed":
            failed.add(node.uid)
        elif decision.state != "excluded" and decision.reason != TAINT:
            unfinished.add(node.uid)
    return Progress(
        identity_of(task.metadata), rules, fault, until, done, frozenset(failed), frozenset(unfinished)
    )


def in_order(dependencies: Dependencies, inputs: DecisionInput, report: NodeReport) -> NodeReport:
    """The report; where its run has to wait, without the start, the drain, or the Pod that makes way for it.
    Another attempt at a run that has begun on the node does not wait."""
    decision = report.decision
    begins = decision.start or decision.drain
    if not (begins or decision.replace) or _has_begun(inputs, report):
        return report
    awaited = dependencies.awaited(report.node, inputs.now)
    if not awaited:
        return report
    if not begins:
        waiting = msgspec.structs.replace(decision, replace=None)
    else:
        waiting = msgspec.structs.replace(
            decision,
            state="pending",
            reason=Reason.AWAITING_DEPENDENCY,
            message=awaited,
            start="",
            drain="",
        )
    return msgspec.structs.replace(report, decision=waiting)


def _has_begun(inputs: DecisionInput, report: NodeReport) -> bool:
    entry = report.entry
    if entry is None or trigger_of(inputs, report.node, entry) != RETRY:
        return False  # a Pod that makes way does so for another run, and a drain may be for one
    return entry.revision == inputs.revision and entry.attempts + entry.disruptions > 0


def circle_of(name: str, first: Iterable[str], further: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """The shortest way along dependencies that leads back to the task; empty if none does. `first`: those of
    the task itself; `further`: those of another one, as far as they are known."""
    ways: dict[str, tuple[str, ...]] = {}
    fresh: dict[str, tuple[str, ...]] = {other: (name, other) for other in first}
    while fresh:
        if name in fresh:
            return fresh[name]
        ways |= fresh
        nearer, fresh = fresh, {}
        for last, way in nearer.items():
            for other in further(last):
                if other not in ways:
                    fresh.setdefault(other, (*way, other))
    return ()
