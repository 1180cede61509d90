"""The snapshot of a pass: the input of a plan. Pure data."""

from collections.abc import Mapping
from functools import cached_property

import msgspec

from caretaker.api.daemontask import DaemonTask, FormerRevision
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.cordon import Cordons
from caretaker.daemontask.decision import DecisionCache, DrainView, PodsByNode
from caretaker.daemontask.dependencies import Dependencies
from caretaker.daemontask.gate_pacing import GatePacing
from caretaker.daemontask.group_view import GroupView
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.referenced_data import ReferencedData
from caretaker.daemontask.refused_pods import Pacing, RefusedPod
from caretaker.daemontask.retention import Absence


class Snapshot(msgspec.Struct, frozen=True, dict=True):
    """Everything a plan reads, gathered before it."""

    task: DaemonTask
    revision: str
    eligibility_rules: EligibilityRules
    nodes: Mapping[str, Node]  # by name
    pods: PodsByNode  # those included that are gone, but ended before and are not recorded yet
    ledger: Ledger
    now: float  # seconds since the epoch
    invalid: str = ""  # why the API server refuses the template; empty = accepted or not yet known
    data: ReferencedData = ReferencedData()  # of spec.dataRefs
    checked: bool = True  # whether the template has been checked
    check_at: float = 0.0  # when it may be checked, where that has to wait
    seq_skips: Mapping[str, int] = {}
    vanished: Mapping[str, float] = {}
    refused: Mapping[str, RefusedPod] = {}  # node UID -> why the API server created no Pod for it
    refused_until: float = 0.0  # no Pod is created for any node: one is tried then; 0 = Pods are created
    exclusion: GroupView | None = None  # the other tasks of spec.exclusive.group
    gates: GatePacing = GatePacing()  # why nodes keep the taint of spec.nodeGate
    drains: Mapping[str, DrainView] = {}  # node UID -> how far it is drained
    cordons: Cordons = Cordons()  # those that could not be set
    unreleased: Mapping[str, RefusedPod] = {}  # node UID -> why it keeps the cordon of spec.drain
    deprioritised: Mapping[str, float] = {}  # node UID -> when it got no Pod, or no room: others go first
    undeletable: frozenset[str] = frozenset()  # UIDs of live Pods whose last deletion was refused
    unplaced: frozenset[str] = frozenset()  # UIDs of nodes with no Pod placed since one was given up
    absence: Absence = Absence()
    namesakes: Mapping[str, Pod] = {}  # node UID -> live Pod of an earlier task of the same name
    token: str = ""  # of the intents that this pass writes: no other pass has it
    unstarted: Mapping[str, str] = {}  # node UID -> token of an intent that is known to have run nothing
    one_at_a_time: bool = False  # the last Pod was refused: one intent at a time
    # How many Pods of a large template may be created now; None = any number.
    allowed: int | None = None
    allowed_at: float = 0.0  # when the next one may be, in seconds since the epoch
    pacing: Pacing = msgspec.field(default_factory=Pacing)
    former: FormerRevision | None = None  # `revision`, where it is that of an older version
    dependencies: Dependencies = Dependencies()
    awaited: bool = False  # other tasks depend on this one
    decision_cache: DecisionCache | None = None  # of the last plans; None: ask every node

    @cached_property
    def left_behind(self) -> list[str]:
        """UIDs of nodes that are gone and have Pods, in the order of `pods`."""
        if not self.pods:
            return []
        gone = self.pods.keys() - {node.uid for node in self.nodes.values()}
        return [uid for uid in self.pods if uid in gone] if gone else []
