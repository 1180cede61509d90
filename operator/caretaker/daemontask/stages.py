"""The stages of a rollout: the canary of spec.canary, then one domain of spec.topologyKey after the other.

Pure. A stage keeps nodes from beginning the run; runs that have begun go on. Stages end with the rollout: none
holds up nodes that join, reboot or are re-run later.
"""

import heapq
from collections.abc import Sequence
from functools import partial

import msgspec

from caretaker.api.daemontask import resolve
from caretaker.daemontask.decision import DecisionInput, NodeReport
from caretaker.daemontask.node_summary import NodeSummary, Reports
from caretaker.daemontask.slots import turn


class Canary(msgspec.Struct, frozen=True):
    """The canary of a rollout.

    wanted  nodes that have to pass: to succeed, and to be healthy for the soak after that
    passed  nodes that have
    moving  nodes that run, retry or soak
    bad     nodes that have failed, or that have not been healthy since their run
    """

    wanted: int
    passed: int = 0
    moving: int = 0
    bad: Reports = ()

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return self.passed >= self.wanted

    @property
    def room(self) -> int:
        """How many more nodes may begin."""
        return max(self.wanted - self.passed - self.moving - len(self.bad), 0)

    @property
    def failed(self) -> bool:
        """Whether it can no longer pass."""
        return not self.room and self.passed + self.moving < self.wanted


class Stage(msgspec.Struct, frozen=True):
    """Which nodes may start in the stage of a rollout.

    waiting   of the nodes that wait for a slot
    kept_out  how many of the others wait for the canary, or for another domain
    domain    of spec.topologyKey, that nodes begin in; None: in any
    room      how many nodes may begin; None: any number
    """

    waiting: Sequence[NodeReport] = ()
    kept_out: int = 0
    domain: str | None = None
    room: int | None = None


def canary_of(inputs: DecisionInput, nodes: NodeSummary, failed: Reports, since: float) -> Canary | None:
    """The canary, if the task has one. A node counts once it has begun the run that is wanted now.

    failed  the nodes whose failure counts for this rollout
    since   when a person last had the task go on: nodes that were lost before do not count
    """
    spec = inputs.spec.canary
    if spec is None:
        return None
    lost = [report for report in nodes.failing if not report.decision.slot]
    shaky = sum(report.decision.state == "succeeded" for report in lost)
    begun = [r for r in nodes.holders if r.decision.slot and r.decision.state not in ("succeeded", "failed")]
    return Canary(
        wanted=max(resolve(spec.nodes, nodes.desired, up=True), 1),
        passed=nodes.counts["succeeded"] - nodes.resting - shaky,
        moving=nodes.resting + sum(not report.decision.outdated for report in begun),
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
    begun = [report for report in wanting if _has_begun(report)]
    firsts = [report for report in wanting if not _has_begun(report)]
    others, domain = len(firsts), None
    if key is not None:
        domain = _domain(inputs, key, holders, firsts)
        firsts = [report for report in firsts if domain_of(key, report) == domain]
    if room is not None:
        firsts = heapq.nsmallest(room, firsts, key=partial(turn, inputs))
    return Stage((*begun, *firsts), others - len(firsts), domain, room)


def domain_of(key: str, report: NodeReport) -> str:
    """The node's domain; "" without the label."""
    return report.node.labels.get(key, "")


def _has_begun(report: NodeReport) -> bool:
    return report.decision.slot or report.decision.failing > 0


def _domain(
    inputs: DecisionInput, key: str, holders: Sequence[NodeReport], firsts: Sequence[NodeReport]
) -> str | None:
    """The first domain in which a node is in the middle of its run; else the first in which one waits, or is
    active with a Pod that makes way for a newer run. Nodes that no Pod reached when it was last tried go
    behind those of all domains, or one of them would hold up the others for ever."""
    busy = [r for r in holders if r.decision.replace is None and r.decision.state != "failed"]
    waits = [*firsts, *(report for report in holders if report.decision.replace is not None)]
    ahead = [] if busy else [report for report in waits if not turn(inputs, report)[0]]
    return min((domain_of(key, report) for report in busy or ahead or waits), default=None)
