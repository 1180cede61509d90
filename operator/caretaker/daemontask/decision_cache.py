"""Decisions that still hold, so that a pass over thousands of nodes asks only those that have changed.

Pure, like the plan that it serves: a cached decision equals the one that the plan would make again, since a
decision reads only the inputs that `DecisionCache` compares. Records are frozen and replaced whole, so the
same object means that nothing changed. A decision depends on time only through its `wake`.
"""

import math
from collections.abc import Mapping

import msgspec

from caretaker.api.daemontask import Spec
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.decision import Decision
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_eligibility import EligibilityRules


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """One node, its decision, the entry that counts for it and its finished Pods whose time is over."""

    node: Node
    decision: Decision
    entry: Entry | None
    expired: tuple[Pod, ...] = ()
    expires: float = 0.0  # when the next finished Pod's time is over; 0 = never


class Basis(msgspec.Struct, frozen=True):
    """The common input of the decisions on all nodes."""

    spec: Spec
    revision: str
    eligibility_rules: EligibilityRules
    rerun_at: str
    rerun_nodes: Mapping[str, str]
    tick: int
    waiting_since: float
    scale: float


class _CachedReport(msgspec.Struct, frozen=True, gc=False):
    entry: Entry | None  # as the ledger has it
    pod: Pod | None
    until: float
    report: NodeReport


class DecisionCache:
    """The reports of one task's last passes, by node name."""

    def __init__(self) -> None:
        self._basis: Basis | None = None
        self._now = 0.0
        self._reports: dict[str, _CachedReport] = {}

    def begin(self, basis: Basis, now: float) -> None:
        """A pass begins. Forgets all when every decision may be another, or when the clock went back."""
        if basis != self._basis or now < self._now:
            self._reports.clear()
        self._basis, self._now = basis, now

    def get(self, node: Node, pods: Mapping[str, Pod], entry: Entry | None) -> NodeReport | None:
        """The report on this node, if nothing that it was made from has changed."""
        cached = self._reports.get(node.name)
        if cached is None or cached.report.node is not node or cached.entry is not entry:
            return None
        if self._now >= cached.until or len(pods) > 1:
            return None
        return cached.report if cached.pod is _only(pods) else None

    def put(self, pods: Mapping[str, Pod], entry: Entry | None, report: NodeReport) -> None:
        """Remember a report that asks for nothing but a start; others come true and are made anew."""
        decision, name = report.decision, report.node.name
        if decision.record is not None or decision.delete or report.expired or len(pods) > 1:
            self._reports.pop(name, None)
            return
        until = min(decision.wake or math.inf, report.expires or math.inf)
        self._reports[name] = _CachedReport(entry, _only(pods), until, report)

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._reports.pop(name, None)


def _only(pods: Mapping[str, Pod]) -> Pod | None:
    return next(iter(pods.values())) if pods else None
