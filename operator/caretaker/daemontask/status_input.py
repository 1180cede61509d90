"""The input of conditions and messages. Pure data."""

from collections.abc import Mapping

import msgspec

from caretaker.daemontask.decision import WriteRefusal
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.snapshot import Snapshot


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a plan."""

    created: int = 0
    started: frozenset[str] = frozenset()  # names of the nodes that got a Pod
    refusal: WriteRefusal | None = None
    opened: frozenset[str] = frozenset()  # names of the nodes that lost the taint of spec.nodeGate
    unopened: Mapping[str, str] = {}  # node name -> why the node keeps it, where a user may have to act
    open_at: float = 0.0  # when the first of them is tried again
    drain_at: float = 0.0  # when a node that is being drained is to be looked at again
    undrained: str = ""  # which node can be neither drained nor uncordoned, and why
    conflicts: tuple[str, ...] = ()  # Pod names that cannot be used
    unlabelled: frozenset[str] = frozenset()  # those of them whose Pod is the task's own, without its label
    shards: int = 0  # ledger shards that exist now
    recorded: int = 0  # nodes with an entry now, readable or not
    writes: tuple[int, ...] = ()  # of each shard the highest count of writes that is known
    more: bool = False  # work is left that needs no event: plan again at once
    flush_at: float = 0.0  # when the ledger may be written again; 0 = nothing waits for it


class StatusInput(msgspec.Struct, frozen=True):
    """The input of the rules for conditions."""

    snapshot: Snapshot
    plan: Plan
    outcome: Outcome
    desired: int
    active: int
    succeeded: int
    failed: int
    pending: int
    blocked: int
    complete: bool  # the current revision's rollout is complete, or was once

    @property
    def busy(self) -> bool:
        """Whether the rollout still makes progress by itself."""
        launch = self.plan.launch
        waiting = self.pending > self.overdue + self.ordered
        canary = self.plan.rollout.canary
        held = self.plan.hold or launch.jammed or launch.in_vain or (canary is not None and canary.failed)
        goes_on = waiting and not held
        return self.active > len(self.plan.nodes.stuck) or goes_on

    @property
    def overdue(self) -> int:
        """Nodes that only the deadline of the rollout keeps from their run."""
        return sum(report.decision.state == "pending" for report in self.plan.nodes.overdue)

    @property
    def ordered(self) -> int:
        """Nodes that wait for another task."""
        return sum(self.plan.nodes.ordered.values())

    @property
    def waits_for_tasks(self) -> bool:
        """Whether all that is left to do waits for other tasks."""
        return not self.active and 0 < self.pending == self.ordered

    @property
    def waits_for_tick(self) -> bool:
        """Whether nothing is left to do before the schedule's first tick."""
        return self.complete and not self.active and 0 < self.pending == self.plan.nodes.awaiting
