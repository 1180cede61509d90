"""The decision about one node: its state, and its needs; and the decisions that still hold.

Pure. A pass over thousands of nodes asks only those that have changed: a cached decision equals the one that
the plan would make again, since a decision reads only the inputs that `DecisionCache` compares. Records are
frozen and replaced whole, so the same object means that nothing changed. A decision depends on time only
through its `wake`.
"""

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final, Literal

import msgspec

from caretaker.api.daemontask import Spec
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.group_view import Hold
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.refused_pods import RefusedPod

PodsByNode = Mapping[str, Mapping[str, Pod]]  # node UID -> Pod name -> Pod

State = Literal["excluded", "succeeded", "failed", "active", "pending", "blocked"]

BACKOFF_BASE: Final = 10.0
BACKOFF_MAX: Final = 600.0
BACKOFF: Final = "Backoff"
QUEUED: Final = "Queued"
POD_REFUSED: Final = "PodRefused"
CORDONED: Final = "Cordoned"
DRAINING: Final = "Draining"
CANARY_SOAKING: Final = "CanarySoaking"
PREDECESSOR_TERMINATING: Final = "PredecessorTerminating"
# Waiting reasons of a container in the ordinary course of its start.
STARTING: Final = ("", "ContainerCreating", "PodInitializing")


class DrainView(msgspec.Struct, frozen=True):
    """A node as it was seen while it was drained. Moments are seconds since the epoch. It is forgotten with
    the process, and while the task is held: the next look begins anew."""

    mark: str  # Node.cordon
    run: str  # Decision.drain
    first: float  # look, later by the time for which the API server gave no answer or the right was missing
    looked: float  # last
    next: float  # look
    empty: bool = False  # the run may begin
    message: str = ""  # why not
    fault: str = ""  # of the API server, or a missing right: why the drain cannot go on
    denied: bool = False  # the fault is a missing right
    stood: float = 0.0  # seconds for which answers to evictions, such as 429, have stopped the clock
    tried: int = 0  # evictions so far
    known: frozenset[str] = frozenset()  # UIDs of Pods of the first look that tolerate the cordon


class WriteRefusal(msgspec.Struct, frozen=True):
    """Why the API server refused a write: a reason constant and its words."""

    reason: str
    message: str
    retry_after: float = 0.0  # seconds, as the API server asked


class Deadline(msgspec.Struct, frozen=True):
    """The deadline of the rollout, in seconds since the epoch, and when its clock began."""

    began: float
    at: float
    passed: bool


class DecisionInput(msgspec.Struct, frozen=True, dict=True):
    """Everything about the task that a node's decision reads. Slots, rollout and drains read parts of it."""

    task_uid: str
    spec: Spec
    revision: str
    now: float
    rerun_at: str = ""  # RFC 3339, normalised to UTC; empty = never asked
    rerun_nodes: Mapping[str, str] = {}
    seq_skips: Mapping[str, int] = {}  # node UID -> names taken by foreign Pods
    vanished: Mapping[str, float] = {}  # node UID -> not before; its Pod was deleted by another client
    tick: int = 0  # of the schedule, that nodes run for; 0 = of none
    stored: int = 0  # the one before, where `tick` is only being stored; else the same
    awaited: bool = False  # the schedule's first tick is still to come
    namesakes: Mapping[str, Pod] = {}  # node UID -> live Pod of an earlier task, or node, of its name
    corrupt: Mapping[str, str] = {}  # node name -> why its ledger entry cannot be read
    version: int = 0  # beyond the seqs of nodes in `corrupt`; see Ledger
    unstarted: Mapping[str, str] = {}  # node UID -> token of an intent that is known to have run nothing
    refused: Mapping[str, RefusedPod] = {}  # node UID -> why the API server created no Pod for it
    unplaced: frozenset[str] = frozenset()  # UIDs of nodes with no Pod placed since one was given up
    deprioritised: Mapping[str, float] = {}  # node UID -> when it got no Pod, or no room: others go first
    waiting_since: float = 0.0  # when the rollout began: a wait before it makes nothing late
    drains: Mapping[str, DrainView] = {}  # node UID -> how far it is drained
    held: Mapping[str, Hold] = {}  # node UID -> the other task of spec.exclusive.group that holds the node
    unsure: Collection[str] = ()  # UIDs of nodes that may still be cordoned by a request without an answer
    deadline: Deadline | None = None  # of spec.rolloutDeadlineSeconds, while the rollout has one
    soak: int = 0  # spec.canary.soakSeconds, until the canary of the rollout has passed

    @cached_property
    def min_success_seconds(self) -> int:
        """How long a node is watched after its success before its slot is free."""
        return max(self.spec.min_success_seconds, self.soak)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The state of one node, and its needs."""

    state: State
    reason: str = ""
    message: str = ""
    since: float = 0.0
    slot: bool = False  # holds one of the slots that parallelism and budgets give
    slot_for: str = ""  # why, where that is not `reason`
    slot_since: float = 0.0  # since when, likewise
    slot_until: float = 0.0  # when the reason for the slot ends by itself; 0 = by an event
    failing: float = 0.0  # since when its run has failed and may still succeed, or is lost with its node
    start: str = ""  # trigger of the run it wants to start; empty = none
    seq: int = 0  # with start: the Pod's sequence number
    attempt: int = 1
    nonce: str = ""
    record: Entry | None = None  # the entry to write before anything else happens to this node
    delete: tuple[Pod, ...] = ()
    replace: Pod | None = None  # makes way for a newer run as soon as runs may start
    outdated: bool = False  # its Pod is of another run than the one that is wanted
    duplicates: bool = False  # more than one live Pod was found
    cordoned: bool = False  # by this task, for spec.drain
    drain: str = ""  # the attempt at a run for which the node is emptied first
    overdue: bool = False  # the deadline of the rollout keeps it from its run
    wake: float = 0.0  # when this node must be looked at again; 0 = on an event only

    @property
    def holds_slot(self) -> bool:
        """Whether it counts for parallelism: no task has more nodes cordoned than that."""
        return self.slot or self.cordoned


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
    deadline: Deadline | None = None
    soak: int = 0


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
        # Most nodes of most passes have no Pod: they are spared the call.
        same = cached.pod is _only(pods) if pods else cached.pod is None
        return cached.report if same else None

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
