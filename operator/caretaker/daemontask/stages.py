"""The stages of a rollout: the canary of spec.canary, then one domain of spec.topologyKey after the other.

Pure. A stage keeps nodes from beginning the run; runs that have begun go on. Stages end with the rollout:
none holds up nodes that join, reboot or are re-run later.
"""

import heapq
from collections.abc import Sequence
from functools import partial

import msgspec

from caretaker.api.daemontask import resolve
from caretaker.daemontask.decision import DecisionInput, NodeReport
from caretaker.daemontask.node_summary import NodeSummary, Reports
from caretaker.daemontask.resting import was_watched
from caretaker.daemontask.run_triggers import is_retry
from caretaker.daemontask.slots import turn


class Canary(msgspec.Struct, frozen=True):
    """The canary of a rollout.

    wanted  nodes that have to pass: to succeed, and to be healthy for the soak after that
    passed  nodes that have
    moving  nodes that run, retry or soak
    shaken  whether the run has failed on one of these, or one is not healthy
    bad     nodes that have failed, or that have not been healthy since their run
    """

    wanted: int
    passed: int = 0
    moving: int = 0
    shaken: bool = False
    bad: Reports = ()

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return self.passed >= self.wanted

    @property
    def room(self) -> int:
        """How many more nodes may begin: none after a failure."""
        return 0 if self.shaken or self.bad else max(self.wanted - self.passed - self.moving, 0)

    @property
    def failed(self) -> bool:
        """Whether it can no longer pass."""
        return bool(self.bad) and self.passed + self.moving < self.wanted


class Stage(msgspec.Struct, frozen=True):
    """Which nodes may start in the stage of a rollout.

    waiting   of the nodes that wait for a slot
    kept_out  how many of the others wait for the canary, or for another domain
    domain    of spec.topologyKey, that nodes begin in; None: in any
    room      how many nodes may begin; None: any number
    surplus   of those kept out the nodes that were cordoned for a rollout before
    """

    waiting: Sequence[NodeReport] = ()
    kept_out: int = 0
    domain: str | None = None
    room: int | None = None
    surplus: Reports = ()


def canary_of(inputs: DecisionInput, nodes: NodeSummary, failed: Reports, since: float) -> Canary | None:
    """The canary, if the task has one. A node counts once it has begun the run that is wanted now.

    failed  the nodes whose failure counts for this rollout
    since   when a person last had the task go on: nodes that were lost before do not count
    """
    spec = inputs.spec.canary
    if spec is None:
        return None
    # With rerunOn: [] a success of an earlier revision stands; it shows nothing about this one.
    ours = [
        r for r in nodes.holders if r.decision.slot and r.decision.state == "succeeded" and _is_of(inputs, r)
    ]
    failing = [r for r in nodes.failing if r.decision.state != "succeeded" or _is_of(inputs, r)]
    lost = [report for report in failing if not report.decision.slot]
    shaky = sum(report.decision.state == "succeeded" for report in lost)
    begun = [r for r in nodes.holders if r.decision.slot and r.decision.state not in ("succeeded", "failed")]
    return Canary(
        wanted=max(resolve(spec.nodes, nodes.desired, up=True), 1),
        passed=nodes.counts["succeeded"] - nodes.earlier - len(ours) - shaky,
        moving=len(ours) + sum(not (r.decision.outdated or _begins(inputs, r)) for r in begun),
        shaken=any(report.decision.failing > since for report in failing if report.decision.slot),
        bad=(*failed, *(report for report in lost if report.decision.failing > since)),
    )


def stage_of(
    inputs: DecisionInput,
    canary: Canary | None,
    holders: Sequence[NodeReport],
    wanting: Sequence[NodeReport],
    *,
    finished: bool,
) -> Stage:
    """The stage now. `finished`: the rollout is."""
    key = None if finished else inputs.spec.topology_key
    room = canary.room if canary is not None and not canary.over else None
    if key is None and room is None:
        return Stage(wanting)
    begun = [report for report in wanting if not _begins(inputs, report)]
    firsts = [report for report in wanting if _begins(inputs, report)]
    others, domain = firsts, None
    if key is not None:
        domain = _domain(inputs, key, holders, firsts)
        firsts = [report for report in firsts if domain_of(key, report) == domain]
    if room is not None:
        firsts = heapq.nsmallest(room, firsts, key=partial(_turn, inputs))
    going = {report.node.uid for report in firsts}
    surplus = [r for r in others if r.decision.cordoned and r.node.uid not in going]
    return Stage((*begun, *firsts), len(others) - len(firsts), domain, room, tuple(surplus))


def domain_of(key: str, report: NodeReport) -> str:
    """The node's domain; "" without the label."""
    return report.node.labels.get(key, "")


def _is_of(inputs: DecisionInput, report: NodeReport) -> bool:
    return report.entry is not None and report.entry.revision == inputs.revision


def _begins(inputs: DecisionInput, report: NodeReport) -> bool:
    """Whether a node that may start has not begun the run, though it may be cordoned for it already."""
    decision, entry = report.decision, report.entry
    if not decision.start or decision.failing:
        return False
    if entry is None or not decision.slot:
        return True
    return not (is_retry(inputs, entry, decision.start) or was_watched(inputs, report.node, entry))


def _turn(inputs: DecisionInput, report: NodeReport) -> tuple[bool, tuple[float, bytes]]:
    """Those first that hold a slot by their cordon: the others may find none."""
    return not report.decision.holds_slot, turn(inputs, report)


def _domain(
    inputs: DecisionInput, key: str, holders: Sequence[NodeReport], firsts: Sequence[NodeReport]
) -> str | None:
    """The first domain in which a node is in the middle of its run; else the first in which one is cordoned
    for it, as it holds a slot; else the first in which one waits, or is active with a Pod that makes way for
    a newer run. Nodes that no Pod reached when it was last tried go behind those of all domains, or one of
    them would hold up the others for ever."""
    held = [r for r in holders if r.decision.replace is None and r.decision.state != "failed"]
    busy = [report for report in held if not _begins(inputs, report)] or held
    waits = [*firsts, *(report for report in holders if report.decision.replace is not None)]
    ahead = [] if busy else [report for report in waits if not turn(inputs, report)[0]]
    return min((domain_of(key, report) for report in busy or ahead or waits), default=None)
