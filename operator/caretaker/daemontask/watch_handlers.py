"""Which tasks an event concerns.

Called synchronously by the stores for every change of a Node or of one of our Pods; adds keys to the
queue and nothing else. The work per event is one look at each task's node rules, never at other nodes.
"""

import time
from typing import Final, Protocol

import msgspec

from caretaker.api.names import LABEL_REVISION, LABEL_TASK, POD_NODE_NAME
from caretaker.api.objects import Node, Pod
from caretaker.api.wire_conditions import NodeCondition
from caretaker.daemontask.cordon import ended, mark_of
from caretaker.daemontask.resource import KIND
from caretaker.daemontask.task_order import TaskOrder
from caretaker.daemontask.task_state import TaskState, TaskStates
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key

CLOSE: Final = 60.0  # seconds: a node's report of itself may come so late
SLOW: Final = 10.0  # seconds after which a Pod's start is news


class Enqueue(Protocol):
    """WorkQueue.add."""

    def __call__(self, key: Key, *, urgent: bool = False, patient: bool = False) -> None: ...


class WatchHandlers:
    """Routes node and Pod changes to task keys.

    nodes        name -> Node, kept by event
    node_store   the Store of all nodes, as the API server has them
    pod_store    the Store of the Pods of all tasks
    task_states  the memory of each task
    order        which tasks wait for which
    """

    def __init__(
        self,
        nodes: Store[Node],
        pods: Store[Pod],
        on_key: Enqueue,
        namespace: str = "",
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self.node_store = nodes
        self.ended: dict[str, str] = {}  # node UID -> mark of a task whose cordon a person has ended
        self.pod_store = pods
        self.task_states = TaskStates()
        self.order = TaskOrder(self._order_changed)
        self.on_key = on_key
        self._namespace = namespace  # the one that the operator works in; "" = all
        nodes.subscribe(self._node_changed)
        pods.subscribe(self._pod_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            if new.cordon and not new.unschedulable:
                self.ended[new.uid] = new.cordon
            elif self.ended.get(new.uid) != new.cordon:
                self.ended.pop(new.uid, None)
            self.nodes[new.name] = self.own(self._dated(old, new))
        elif old is not None:
            self.nodes.pop(old.name, None)
            self.ended.pop(old.uid, None)
        self._marked(old, new)
        for key, state in self.task_states.items():
            if _concerns(state, old, new):
                large = self.task_states.pass_turn(key).large
                self.on_key(key, urgent=not large and _may_start(state, new), patient=large)
            if new is None and old is not None:
                state.node_gone(old)

    def _order_changed(self, key: Key) -> None:
        """A task that this one depends on has changed, or that depends on it."""
        large = self.task_states.pass_turn(key).large
        self.on_key(key, urgent=not large, patient=large)

    def own(self, node: Node) -> Node:
        """The node; where a person ended a task's cordon and the mark is left, a later cordon is theirs."""
        if not node.unschedulable or not node.cordon or self.ended.get(node.uid) != node.cordon:
            return node
        return msgspec.structs.replace(node, cordon=ended(node.cordon))

    def _marked(self, old: Node | None, new: Node | None) -> None:
        """The cordon of a task came, changed or ended: the task may not exist any more."""
        marks = [
            (n.uid, n.unschedulable, n.cordon) if n is not None and n.cordon else None for n in (old, new)
        ]
        if marks[0] == marks[1]:
            return
        for node in (old, new):
            mark = mark_of(node) if node is not None else None
            if mark is not None and self._namespace in ("", mark.namespace):
                self.on_key(Key(KIND, mark.namespace, mark.name), urgent=True)

    def _dated(self, old: Node | None, new: Node) -> Node:
        """The node, each condition dated to when it was seen to change, where its reporter's time is not
        close to that: a wrong clock must neither delay a task that waits for the node nor hurry it."""
        now, known = time.time(), self.nodes.get(new.name)
        joined = old is None or known is None or old.uid != new.uid
        seen = {} if joined else dict(zip(_conditions(old), _conditions(known), strict=False))

        def since(condition: NodeCondition) -> float:
            stated = condition[2]
            if joined:
                return min(stated, now)  # it was so before
            if (before := seen.get(condition)) is not None:
                return before[2]
            return stated if now - CLOSE <= stated <= now else now

        ready, *others = [(kind, state, since((kind, state, at))) for kind, state, at in _conditions(new)]
        if (ready, *others) == _conditions(new):
            return new
        return msgspec.structs.replace(new, ready_since=ready[2], conditions=tuple(others))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        if pod is None or not (task := pod.labels.get(LABEL_TASK)):
            return
        key = Key(KIND, pod.namespace, task)
        state = self.task_states.find(key)
        if state is None:  # not looked at yet, or gone: then its cordons may wait for the end of the run
            node = self.nodes.get(pod.annotations.get(POD_NODE_NAME, ""))
            if node is not None and node.cordon and (new is None or new.terminal):
                self.on_key(key)
            return
        if state.uid != pod.owner_uid:
            self.on_key(key)  # of an earlier task of this name: a node may wait for it
            return
        if new is None:
            state.pod_gone(pod, time.time())
        elif old is not None and old.terminal and new.deletion and not old.deletion:
            state.pod_ended(old)
        changed = old is None or new is None or _view(state, old) != _view(state, new)
        if not changed and old is not None and new is not None:
            changed = self._begins(state, old, new)
        if changed and not _just_made(state, old, new):
            # The end of a run frees a slot, which is urgent if a node waits for one; and opens a gated node.
            waits = state.order.queued or self._gated(state, pod)
            self.on_key(key, urgent=waits and (new is None or new.terminal))

    def _gated(self, state: TaskState, pod: Pod) -> bool:
        node = self.nodes.get(pod.annotations.get(POD_NODE_NAME, ""))
        return node is not None and state.spec.rules.gated(node)

    def _begins(self, state: TaskState, old: Pod, new: Pod) -> bool:
        """Whether a Pod is placed or begins to run that status may call late. A pass for every Pod that is
        placed would double those of a rollout."""
        if (bool(old.node_name), old.phase) == (bool(new.node_name), new.phase):
            return False
        return new.node_uid in state.order.unplaced or time.time() - new.created >= SLOW


def _conditions(node: Node | None) -> tuple[NodeCondition, ...]:
    """All of its conditions, Ready first."""
    return (("Ready", str(node.ready), node.ready_since), *node.conditions) if node is not None else ()


def _view(state: TaskState, pod: Pod) -> tuple[object, ...]:
    """The part of a Pod that a decision reads and that can change on the same node. Being placed and
    beginning to run change nothing: the Pod is active all the while. Nor do restarts of its containers,
    before there are too many, unless it has an older template: then it makes way."""
    outdated = pod.labels.get(LABEL_REVISION) != state.spec.revision
    waiting = pod.waiting if pod.phase == "Pending" or outdated else ""
    worn_out = pod.failures > state.spec.backoff_limit
    return (pod.terminal, bool(pod.deletion), pod.unschedulable, waiting, worn_out, pod.uid)


def _just_made(state: TaskState, old: Pod | None, new: Pod | None) -> bool:
    """Our own new Pod that waits for the scheduler: it was counted when it was made."""
    if old is not None or new is None or new.name not in state.creation.under_way:
        return False
    return not (new.terminal or new.deletion or new.unschedulable)


def _may_start(state: TaskState, new: Node | None) -> bool:
    rules = state.spec.rules
    return new is not None and not rules.costly and rules.check(new).kind == "fits"


def _concerns(state: TaskState, old: Node | None, new: Node | None) -> bool:
    """Whether the task could decide otherwise. A label that it does not look at changes nothing for it."""
    rules = state.spec.rules
    if not state.spec.revision:
        return False  # its first pass is still to come
    if rules.costly:
        return True  # the pass computes the eligibility, and yields in between
    if old is None or new is None or old.uid != new.uid:
        node = new or old
        return node is not None and (rules.check(node).kind != "excluded" or rules.gated(node))
    before = rules.check(old)
    after = rules.check(new)
    return (before, rules.gated(old)) != (after, rules.gated(new)) or (
        after.kind != "excluded"
        and (old.boot_id, *_watched(state, old)) != (new.boot_id, *_watched(state, new))
    )


def _watched(state: TaskState, node: Node) -> tuple[NodeCondition, ...]:
    """The conditions of the node that the task looks at."""
    found, listed = _conditions(node), state.spec.rules.health
    if not listed:
        return found[:1]
    types = {"Ready", *(one.type for one in listed)}
    return tuple([one for one in found if one[0] in types])
