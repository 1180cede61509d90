"""The state of each task that a process keeps between passes.

A cache and some courtesies (backoff after a vanished Pod, nodes at the back of the queue, the end of a Pod
that was gone before its record), never a fact that correctness needs: the process may die at any moment.

gather() fills the caches of its reads, `spec` and `ledger.shards`; all else changes in before(), or with
an event of a watch.
"""

import time
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from caretaker.api.conditions import Reason
from caretaker.api.names import LABEL_TASK, POD_NODE_NAME
from caretaker.api.objects import Node, Pod, WireMeta
from caretaker.daemontask.bulk import FREE, Bulk, PassTurn
from caretaker.daemontask.cordon import Cordons
from caretaker.daemontask.decision import (
    BACKOFF_BASE,
    BACKOFF_MAX,
    DecisionCache,
    DrainView,
    PodsByNode,
    WriteRefusal,
)
from caretaker.daemontask.gate_pacing import GatePacing
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.referenced_data import DataCache
from caretaker.daemontask.refused_pods import Pacing, RefusedPods
from caretaker.daemontask.retention import Absence
from caretaker.daemontask.shards import Shards
from caretaker.kube.errors import ApiError
from caretaker.kube.store import PodIndex
from caretaker.runtime.tasks import in_pieces
from caretaker.runtime.work_queue import Key

VANISH_WINDOW: Final = 600.0


class SpecCache(msgspec.Struct, frozen=True):
    """Derived from the spec that was read last. Replaced as a whole."""

    digest: bytes = b""  # of the spec
    hashes: tuple[str, str] = ("", "")  # hashes_of() the template
    backoff_limit: int = 0
    revision: str = ""  # "" = no spec was read
    rules: EligibilityRules = EligibilityRules({})
    pod_cost: int = 0  # of one Pod: see bulk.py
    turn: float = 0.0  # of the dry run, and the first one of this revision: see Pacing
    template_error: str | None = None  # why the template is refused; "" = accepted; None = not checked
    data: DataCache = msgspec.field(default_factory=DataCache)  # of spec.dataRefs; the same for every spec

    def check_in(self, now: float) -> float:
        """Seconds until the dry run of a large template may be made; 0 = now, or it was made."""
        return max(self.turn - now, 0.0) if self.template_error is None and self.pod_cost > FREE else 0.0


class LedgerSession(msgspec.Struct):
    """The ledger, and when it was read and written."""

    # Node UID -> token of an intent of this process that ran nothing, as only this process can know.
    unstarted: dict[str, str]
    shards: Shards | None = None
    confirmed: float = 0.0  # time.monotonic() of the last look at the ledger that found it as known
    flushed: float = 0.0

    @property
    def loaded(self) -> Shards:
        """The shards."""
        assert self.shards is not None  # noqa: S101 - gather sets it before anything else can run
        return self.shards

    def entry_of(self, pod: Pod) -> Entry | None:
        """The entry of the Pod's node, as last read or written."""
        entry = self.shards.find(pod.annotations.get(POD_NODE_NAME, "")) if self.shards is not None else None
        return entry if entry is not None and entry.node_uid == pod.node_uid else None

    def has_end_of(self, pod: Pod) -> bool:
        """Whether the ledger, as last seen, has the end of this Pod."""
        entry = self.entry_of(pod)
        return pod.seq <= (entry.ended if entry is not None else 0)

    def not_started(self, node_uid: str, token: str) -> None:
        """The Pod of this intent was not created, for certain; without a token there was no intent."""
        if token:
            self.unstarted[node_uid] = token

    def never_placed(self, pod: Pod) -> None:
        """We deleted this Pod, and no node had got it."""
        entry = self.entry_of(pod)
        if entry is not None and entry.seq == pod.seq:
            self.not_started(pod.node_uid, entry.intent)

    def withdrawn(self, entries: Iterable[Entry]) -> None:
        """These stand in the place of the nodes' intents."""
        for entry in entries:
            self.unstarted.pop(entry.node_uid, None)


class Creation(msgspec.Struct):
    """The creation of Pods, and its obstacles."""

    width: int = 1
    refusal: WriteRefusal | None = None  # why the last Pod was not created
    again: bool = False  # a start of this pass was refused, or is to be made under another name
    under_way: set[str] = set()  # names of Pods
    unsure: dict[str, str] = {}  # node UID -> name, of nodes whose Pod may have been created unanswered
    seq_skips: dict[str, int] = {}
    conflicts: dict[str, str] = {}  # Pod name that something else has -> node UID
    unlabelled: set[str] = set()  # those of them that are ours but have lost their labels


class Order(msgspec.Struct):
    """The order in which nodes get their slots."""

    queued: bool = False  # whether nodes wait for a slot
    deprioritised: dict[str, float] = {}  # node UID -> since when
    unplaced: frozenset[str] = frozenset()  # node UIDs

    def still_there(self, pods: Iterable[Pod]) -> None:
        """The deletion of these Pods did not happen: they may have been placed on their nodes since."""
        for pod in pods:
            self.deprioritised.pop(pod.node_uid, None)
            self.unplaced -= {pod.node_uid}


class Deletions(msgspec.Struct):
    """Pods that were deleted, or were to be."""

    expected: set[str] = set()  # UIDs, of those that we delete
    undeletable: frozenset[str] = frozenset()  # UIDs of live Pods whose last deletion was refused
    vanished: dict[str, list[float]] = {}  # node UID -> when Pods were deleted, not by us
    not_before: dict[str, float] = {}  # node UID -> when the next Pod may follow
    ended: dict[str, Pod] = {}  # UID -> Pod that was seen to end and is gone, but not recorded yet


class Drains(msgspec.Struct):
    """The nodes that spec.drain cordons and drains."""

    views: dict[str, DrainView] = {}  # node UID -> how far it is drained
    cordons: Cordons = Cordons()  # those that could not be set
    unreleased: RefusedPods = msgspec.field(default_factory=RefusedPods)  # nodes whose uncordon was refused

    def forget(self, node_uid: str) -> None:
        """Drop the state of a node."""
        self.unreleased.forget(node_uid)
        self.views.pop(node_uid, None)
        unsure = {uid: at for uid, at in self.cordons.unsure.items() if uid != node_uid}
        self.cordons = msgspec.structs.replace(self.cordons, unsure=unsure)


class TaskState:
    """One task, by UID."""

    def __init__(self, uid: str, unstarted: dict[str, str] | None = None, bulk: Bulk | None = None) -> None:
        self.uid = uid
        self.bulk = bulk or Bulk(time.monotonic())
        self.spec = SpecCache()
        self.decision_cache = DecisionCache()
        self.ledger = LedgerSession({} if unstarted is None else unstarted)
        self.pacing = Pacing()
        self.gates = GatePacing()
        self.drains = Drains()
        self.creation = Creation()
        self.order = Order()
        self.deletions = Deletions()
        self.absence = Absence()

    def next_pacing(self, now: float) -> Pacing:
        """The pacing of this revision; a task that was idle gets a new turn."""
        if self.pacing.revision != self.spec.revision:
            return Pacing(self.spec.revision, self.spec.turn)
        turn = self.bulk.take(0, now) if self.pacing.idle else self.pacing.turn
        return msgspec.structs.replace(self.pacing, turn=turn)

    def keep_unrecorded(self, pods: PodsByNode, nodes: Mapping[str, Node]) -> None:
        """Of the Pods that ended and are gone, keep those that still count."""
        self.deletions.ended = self._unrecorded(pods, nodes)

    def refused(self, node_uid: str, error: ApiError, now: float) -> None:
        """A Pod was not created. Its node goes behind the others; where they will fare alike, all wait."""
        self.order.deprioritised[node_uid] = now
        message = error.message or str(error)
        if is_of_one_node(error) and not self.pacing.refused_pods.add(node_uid, message, now):
            self.creation.again = True
            return
        reason = Reason.PERMISSION_DENIED if error.missing_permission else Reason.POD_CREATION_REFUSED
        self.creation.refusal = WriteRefusal(reason, message, max(error.retry_after or 0.0, 0.0))

    def created(self, node_uid: str) -> None:
        """A Pod was created."""
        self.creation.seq_skips.pop(node_uid, None)
        self.order.deprioritised.pop(node_uid, None)
        self.creation.again |= self.pacing.refused_pods.created(node_uid)

    def recorded(self, entries: Iterable[Entry]) -> None:
        """Runs were recorded: a taken name is no longer reported."""
        entries = list(entries)
        self.ledger.withdrawn(entry for entry in entries if not entry.intent)
        self._forget_conflicts({entry.node_uid for entry in entries})
        self.creation.unlabelled &= self.creation.conflicts.keys()

    def _forget_conflicts(self, nodes: Container[str]) -> None:
        of = self.creation
        of.conflicts = {name: uid for name, uid in of.conflicts.items() if uid not in nodes}

    def pod_gone(self, pod: Pod, now: float) -> None:
        """A Pod was deleted. If it was not by us and had not finished: once is retried at once, repeated
        deletions back off, or two controllers would keep each other busy. If it had, its end still counts."""
        of = self.deletions
        if pod.uid in of.expected:
            of.expected.discard(pod.uid)
            return
        if pod.terminal:
            self.pod_ended(pod)
            return
        times = [*(t for t in of.vanished.get(pod.node_uid, ()) if now - t < VANISH_WINDOW), now]
        of.vanished[pod.node_uid] = times
        if len(times) > 1:
            wait = min(BACKOFF_BASE * 2.0 ** min(len(times) - 2, 16), BACKOFF_MAX)
            of.not_before[pod.node_uid] = now + wait

    def pod_ended(self, pod: Pod) -> None:
        """A Pod that had ended is being deleted, or was. Where the Pod was seen to end before the request to
        delete it, that state is kept: it shows that the deletion did not kill the Pod. A Pod that the
        deletion killed has the time of the request."""
        if not self.ledger.has_end_of(pod):
            self.deletions.ended.setdefault(pod.uid, pod)

    def with_ended(self, pods: PodsByNode, nodes: Mapping[str, Node]) -> PodsByNode:
        """These, and the Pods of the same nodes that are gone before their end is on record."""
        if not self.deletions.ended:
            return pods
        found = dict(pods)
        for pod in self._unrecorded(pods, nodes).values():
            found[pod.node_uid] = {**found.get(pod.node_uid, {}), pod.name: pod}
        return found

    def _unrecorded(self, pods: PodsByNode, nodes: Mapping[str, Node]) -> dict[str, Pod]:
        """Of the Pods that ended and are gone those that still count. One whose name another Pod has got
        since is left to the creator of the other Pod."""
        ended, has_end_of = self.deletions.ended.items(), self.ledger.has_end_of
        return {
            uid: pod
            for uid, pod in ended
            if not has_end_of(pod) and _is_there(pod, nodes) and _is_latest(pod, pods)
        }

    def node_gone(self, node: Node) -> None:
        """Drop the state of a node."""
        creation, deletions = self.creation, self.deletions
        for table in (
            creation.seq_skips,
            creation.unsure,
            self.order.deprioritised,
            deletions.not_before,
            deletions.vanished,
            self.ledger.unstarted,
        ):
            table.pop(node.uid, None)
        self.pacing.refused_pods.forget(node.uid)
        self.drains.forget(node.uid)
        self._forget_conflicts((node.uid,))
        deletions.ended = {uid: pod for uid, pod in deletions.ended.items() if pod.node_uid != node.uid}
        self.decision_cache.forget(node.name)
        self.spec.rules.forget(node.name)


def namesakes_of(index: PodIndex, meta: WireMeta) -> dict[str, Pod]:
    """Live Pods of earlier tasks of this name, by node UID: the garbage collector will take them."""
    found: dict[str, Pod] = {}
    for namespace, owner in index.owners():
        if namespace != meta.namespace or owner == meta.uid:
            continue
        by_node = index.pods_of(namespace, owner)
        one = next(pod for pods in by_node.values() for pod in pods.values())
        if one.labels.get(LABEL_TASK) == meta.name:
            live = (pod for pods in by_node.values() for pod in pods.values() if not pod.terminal)
            found.update((pod.node_uid, pod) for pod in live)
    return found


def is_of_one_node(error: ApiError) -> bool:
    """Whether a create that failed may say something of the node rather than of all: a policy or webhook may
    refuse the Pods of one node, or fail on them. No answer, throttling and our own rights are of all."""
    if error.missing_permission is not None or error.throttled or error.status in (0, 401, 503):
        return False
    return error.status >= 400


def _is_there(pod: Pod, nodes: Mapping[str, Node]) -> bool:
    node = nodes.get(pod.annotations.get(POD_NODE_NAME, ""))
    return node is not None and node.uid == pod.node_uid


def _is_latest(pod: Pod, pods: PodsByNode) -> bool:
    other = pods.get(pod.node_uid, {}).get(pod.name)
    return other is None or other.uid == pod.uid


class TaskStates:
    """All tasks, by key."""

    def __init__(self) -> None:
        self._by_key: dict[Key, TaskState] = {}
        # By task UID; outlives a term of leadership, since no other process learns it.
        self._unstarted: dict[str, dict[str, str]] = {}
        self._bulk: dict[str, Bulk] = {}  # by namespace
        self._turns: dict[Key, PassTurn] = {}

    def of(self, key: Key, uid: str) -> TaskState:
        """The state of this very task: one that was deleted and made again starts empty."""
        state = self._by_key.get(key)
        if state is None or state.uid != uid:
            if state is not None:
                self._unstarted.pop(state.uid, None)
            bulk = self._bulk_of(key)
            state = self._by_key[key] = TaskState(uid, self._unstarted.setdefault(uid, {}), bulk)
        return state

    def find(self, key: Key) -> TaskState | None:
        """The state, if the task has been looked at."""
        return self._by_key.get(key)

    def pass_turn(self, key: Key) -> PassTurn:
        """When passes over the task may begin: one that was deleted and made again has the same turn."""
        if (turn := self._turns.get(key)) is None:
            turn = self._turns[key] = PassTurn(self._bulk_of(key))
        return turn

    def _bulk_of(self, key: Key) -> Bulk:
        return self._bulk.setdefault(key.namespace, Bulk(time.monotonic()))

    def items(self) -> Iterator[tuple[Key, TaskState]]:
        """Every task that has been looked at."""
        return iter(list(self._by_key.items()))

    def clear(self) -> None:
        """Another process may have led meanwhile: only the runs that certainly never began are remembered."""
        self._by_key.clear()
        self._turns.clear()

    def drop(self, key: Key) -> None:
        """The task is gone."""
        if (state := self._by_key.pop(key, None)) is not None:
            self._unstarted.pop(state.uid, None)
        self._turns.pop(key, None)
        known = {*self._by_key, *self._turns}
        alone = all(other.namespace != key.namespace for other in known)
        bulk = self._bulk.get(key.namespace)
        if alone and bulk is not None and bulk.full(time.monotonic()):  # a debt is kept
            del self._bulk[key.namespace]


async def cache_eligibility(rules: EligibilityRules, nodes: Iterable[Node]) -> None:
    """Cache the eligibility of each node, and let other tasks of the event loop in between: with thousands
    of terms and of nodes it takes seconds."""
    async for node in in_pieces(nodes):
        rules.check(node)
