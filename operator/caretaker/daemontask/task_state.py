"""The state of each task that a process keeps between passes.

A cache and some courtesies (backoff after a vanished Pod, nodes at the back of the queue, the end of a Pod
that was gone before its record), never a fact that correctness needs: the process may die at any moment.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from caretaker.api.conditions import Reason
from caretaker.api.names import LABEL_TASK, POD_NODE_NAME
from caretaker.api.objects import Node, Pod, WireMeta
from caretaker.daemontask.bulk import PAUSE, Bulk
from caretaker.daemontask.decision import BACKOFF_BASE, BACKOFF_MAX
from caretaker.daemontask.decision_cache import DecisionCache
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.pods import hashes_of
from caretaker.daemontask.refused_pods import RefusedPods
from caretaker.daemontask.shards import Shards
from caretaker.daemontask.snapshot import PodsByNode, Trouble
from caretaker.kube.errors import ApiError
from caretaker.kube.store import PodIndex
from caretaker.runtime.tasks import in_pieces
from caretaker.runtime.work_queue import Key

ABSENCE: Final = 600.0  # seconds a node must be gone before its ledger entry goes
ABSENCE_CHECK: Final = 600.0
VANISH_WINDOW: Final = 600.0


class TaskState:
    """One task, by UID."""

    def __init__(self, uid: str, unstarted: dict[str, str] | None = None, bulk: Bulk | None = None) -> None:
        self.uid = uid
        # Node UID -> token of an intent of this process that ran nothing, as only this process can know.
        self.unstarted: dict[str, str] = {} if unstarted is None else unstarted
        self.shards: Shards | None = None
        self.eligibility_rules: EligibilityRules | None = None
        self.decision_cache = DecisionCache()
        self.revision = ""
        self._hashes: tuple[bytes, tuple[str, str]] = (b"", ("", ""))  # (digest of a spec, its hashes_of())
        self.backoff_limit = 0
        self.template_error: str | None = (
            None  # why the template is refused; "" = accepted; None = not checked
        )
        self.confirmed = 0.0  # time.monotonic() of the last look at the ledger that found it as known
        self.flushed = 0.0
        self.flush_at = 0.0
        self.width = 1
        self.bulk = bulk or Bulk(time.monotonic())
        self.pod_cost = 0  # of one Pod: see bulk.py
        self.turn: float | None = None  # time.monotonic(): see Bulk; None = not with this template
        self.idle = False  # whether no Pod was waiting for the turn after the last pass
        self.spec_bytes = 0
        self.begins: float | None = None  # time.monotonic(): the next pass; None = none has been asked for
        self.queued = False  # whether nodes wait for a slot
        self.trouble: Trouble | None = None  # why the last Pod was not created
        self.retry_after = 0.0
        self.refused_pods = RefusedPods()
        self.again = False  # a start of this pass was refused, or is to be made under another name
        self.seq_skips: dict[str, int] = {}
        self.deprioritised: dict[str, float] = {}
        self.unplaced: frozenset[str] = frozenset()
        self.not_before: dict[str, float] = {}
        self.creating: set[str] = set()  # names of Pods whose creation is under way
        self.unsure: dict[
            str, str
        ] = {}  # node UID -> name, of nodes whose Pod may have been created unanswered
        self.expected_deletes: set[str] = set()  # UIDs
        self.undeletable: frozenset[str] = frozenset()  # UIDs of live Pods whose last deletion was refused
        self.conflicts: dict[str, str] = {}  # Pod name that something else has -> node UID
        self.unlabelled: set[str] = set()  # those of them that are ours but have lost their labels
        self._vanished: dict[str, list[float]] = {}
        self._ended: dict[str, Pod] = {}  # UID -> Pod that was seen to end and is gone, but not recorded yet
        self._absent: dict[str, float] = {}
        self._absence_checked = 0.0

    @property
    def loaded_shards(self) -> Shards:
        """The ledger."""
        assert self.shards is not None  # noqa: S101 - gather sets it before anything else can run
        return self.shards

    def has_hashes(self, raw: bytes) -> bool:
        """Whether hashes() of this spec is cached."""
        return self._hashes[0] == hashlib.blake2b(raw).digest()

    def hashes(self, raw: bytes, template: dict[str, Any]) -> tuple[str, str]:
        """hashes_of() the template of this spec, cached, as is its size."""
        digest = hashlib.blake2b(raw).digest()
        if self._hashes[0] != digest:
            self._hashes, self.spec_bytes = (digest, hashes_of(template)), len(raw)
            self.bulk.take_pass(self.spec_bytes, time.monotonic())  # wait() did not know this size
        return self._hashes[1]

    def wait(self, now: float) -> float:
        """Seconds until the next pass may begin; 0 = it begins. Tasks that ask first begin first. The bytes
        count even if the pass fails."""
        if self.begins is None:
            self.begins = now + self.bulk.take_pass(self.spec_bytes, now)
        if now < self.begins:
            return self.begins - now
        self.begins = None
        return 0.0

    def allowed(self, now: float) -> tuple[int | None, float]:
        """(how many Pods may be created now, seconds until another one): see Bulk.allowed()."""
        if self.turn is None:  # the dry run of the template takes the API server as long as a Pod
            self.turn = self.bulk.take(self.pod_cost, now)
        elif self.idle:
            self.turn = self.bulk.take(0, now)
        return self.bulk.allowed(self.pod_cost, now, self.turn), max(self.turn - now, PAUSE)

    def refused(self, node_uid: str, error: ApiError, now: float, scale: float) -> None:
        """A Pod was not created. Its node goes behind the others; where they will fare alike, all wait."""
        self.deprioritised[node_uid] = now
        message = error.message or str(error)
        if is_of_one_node(error) and not self.refused_pods.add(node_uid, message, now, scale):
            self.again = True
            return
        self.retry_after = max(error.retry_after or 0.0, 0.0)
        reason = Reason.PERMISSION_DENIED if error.missing_permission else Reason.POD_CREATION_REFUSED
        self.trouble = Trouble(reason, message)

    def created(self, node_uid: str) -> None:
        """A Pod was created."""
        self.seq_skips.pop(node_uid, None)
        self.deprioritised.pop(node_uid, None)
        self.again = self.refused_pods.created(node_uid) or self.again

    def still_there(self, pods: Iterable[Pod]) -> None:
        """The deletion of these Pods did not happen: they may have been placed on their nodes since."""
        for pod in pods:
            self.deprioritised.pop(pod.node_uid, None)
            self.unplaced -= {pod.node_uid}

    def not_started(self, node_uid: str, token: str) -> None:
        """The Pod of this intent was not created, for certain; without a token there was no intent."""
        if token:
            self.unstarted[node_uid] = token

    def never_placed(self, pod: Pod) -> None:
        """We deleted this Pod, and no node had got it."""
        entry = self.shards.find(pod.annotations.get(POD_NODE_NAME, "")) if self.shards is not None else None
        if entry is not None and (entry.node_uid, entry.seq) == (pod.node_uid, pod.seq):
            self.not_started(pod.node_uid, entry.intent)

    def withdrawn(self, entries: Iterable[Entry]) -> None:
        """These stand in the place of the nodes' intents."""
        for entry in entries:
            self.unstarted.pop(entry.node_uid, None)

    def recorded(self, entries: Iterable[Entry]) -> None:
        """Runs were recorded: a taken name is no longer reported."""
        entries = list(entries)
        self.withdrawn(entry for entry in entries if not entry.intent)
        ended = {entry.node_uid for entry in entries}
        self.conflicts = {name: uid for name, uid in self.conflicts.items() if uid not in ended}
        self.unlabelled &= self.conflicts.keys()

    def pod_gone(self, pod: Pod, now: float, scale: float) -> None:
        """A Pod was deleted. If it was not by us and had not finished: once is retried at once, repeated
        deletions back off, or two controllers would keep each other busy. If it had, its end still counts."""
        if pod.uid in self.expected_deletes:
            self.expected_deletes.discard(pod.uid)
            return
        if pod.terminal:
            self.pod_ended(pod)
            return
        times = [t for t in self._vanished.get(pod.node_uid, ()) if now - t < VANISH_WINDOW]
        times.append(now)
        self._vanished[pod.node_uid] = times
        if len(times) > 1:
            wait = min(BACKOFF_BASE * 2.0 ** min(len(times) - 2, 16), BACKOFF_MAX)
            self.not_before[pod.node_uid] = now + wait * scale

    def pod_ended(self, pod: Pod) -> None:
        """A Pod that had ended is being deleted, or was. Where the Pod was seen to end before the request to
        delete it, that state is kept: it shows that the deletion did not kill the Pod. A Pod that the
        deletion killed has the time of the request."""
        if not self._has(pod):
            self._ended.setdefault(pod.uid, pod)

    def with_ended(self, pods: PodsByNode, nodes: Mapping[str, Node]) -> PodsByNode:
        """These, and the Pods of the same nodes that are gone before their end is on record. A Pod whose name
        another Pod has got since is left to the creator of the other Pod."""
        if not self._ended:
            return pods
        self._ended = {
            uid: pod
            for uid, pod in self._ended.items()
            if not self._has(pod) and _is_there(pod, nodes) and _is_latest(pod, pods)
        }
        found = dict(pods)
        for pod in self._ended.values():
            found[pod.node_uid] = {**found.get(pod.node_uid, {}), pod.name: pod}
        return found

    def _has(self, pod: Pod) -> bool:
        """Whether the ledger, as last seen, has the end of this Pod."""
        name = pod.annotations.get(POD_NODE_NAME, "")
        entry = self.shards.find(name) if self.shards is not None else None
        return pod.seq <= (entry.ended if entry is not None and entry.node_uid == pod.node_uid else 0)

    def node_gone(self, node: Node) -> None:
        """Drop the state of a node."""
        for table in (
            self.seq_skips,
            self.deprioritised,
            self.not_before,
            self._vanished,
            self.unstarted,
            self.unsure,
        ):
            table.pop(node.uid, None)
        self.refused_pods.forget(node.uid)
        self.conflicts = {name: uid for name, uid in self.conflicts.items() if uid != node.uid}
        self._ended = {uid: pod for uid, pod in self._ended.items() if pod.node_uid != node.uid}
        self.decision_cache.forget(node.name)
        if self.eligibility_rules is not None:
            self.eligibility_rules.forget(node.name)

    def absent(
        self, recorded: Iterable[str], nodes: Mapping[str, Node], now: float, scale: float = 1.0
    ) -> tuple[str, ...]:
        """Nodes whose entries may go: away for ABSENCE seconds. Looked at once in ABSENCE_CHECK seconds,
        never on an event."""
        if now < self._absence_checked + ABSENCE_CHECK * scale:
            return ()
        self._absence_checked = now
        self._absent = {name: self._absent.get(name, now) for name in recorded if name not in nodes}
        return tuple(name for name, since in self._absent.items() if now - since >= ABSENCE * scale)


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

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._by_key: dict[Key, TaskState] = {}
        # By task UID; outlives a term of leadership, since no other process learns it.
        self._unstarted: dict[str, dict[str, str]] = {}
        self._bulk: dict[str, Bulk] = {}  # by namespace

    def of(self, key: Key, uid: str) -> TaskState:
        """The state of this very task: one that was deleted and made again starts empty."""
        state = self._by_key.get(key)
        if state is None or state.uid != uid:
            if state is not None:
                self._unstarted.pop(state.uid, None)
            bulk = self._bulk.setdefault(key.namespace, Bulk(time.monotonic()))
            state = self._by_key[key] = TaskState(uid, self._unstarted.setdefault(uid, {}), bulk)
        return state

    def find(self, key: Key) -> TaskState | None:
        """The state, if the task has been looked at."""
        return self._by_key.get(key)

    def wait(self, key: Key, now: float) -> float:
        """TaskState.wait(), if the task has been looked at."""
        state = self._by_key.get(key)
        return state.wait(now) if state is not None else 0.0

    def items(self) -> Iterator[tuple[Key, TaskState]]:
        """Every task that has been looked at."""
        return iter(list(self._by_key.items()))

    def clear(self) -> None:
        """Another process may have led meanwhile: only the runs that certainly never began are remembered."""
        self._by_key.clear()

    def drop(self, key: Key) -> None:
        """The task is gone."""
        if (state := self._by_key.pop(key, None)) is not None:
            self._unstarted.pop(state.uid, None)
        alone = all(other.namespace != key.namespace for other in self._by_key)
        bulk = self._bulk.get(key.namespace)
        if alone and bulk is not None and bulk.full(time.monotonic()):  # a debt is kept
            del self._bulk[key.namespace]


async def cache_eligibility(rules: EligibilityRules, nodes: Iterable[Node]) -> None:
    """Cache the eligibility of each node, and let other tasks of the event loop in between: with thousands
    of terms and of nodes it takes seconds."""
    async for node in in_pieces(nodes):
        rules.check(node)
