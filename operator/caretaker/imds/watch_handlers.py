"""Which policies an event concerns: a change of a Node, or of another policy.

Called synchronously by the Store for every change of a Node; adds keys to the queue and nothing else.
Policies decide together on the options of a node, so a change of one brings all the others into the queue.
"""

from collections.abc import Collection
from typing import Final

from caretaker.api.imds import Spec
from caretaker.api.objects import Node
from caretaker.imds.instance_ref import InstanceRef, instance_ref_of, policy_inputs, readiness
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key, WorkQueue

# From the FIRST event of new nodes: a quiet window would starve while they join steadily.
JOIN_SECONDS: Final = 3.0


class WatchHandlers:
    """Routes changes to the keys of policies.

    nodes    name -> the Node and its instance, kept by event
    awaited  policy -> the Nodes whose readiness it waits for
    events   of nodes and policies, for which the known policies were enqueued
    """

    def __init__(self, nodes: Store[Node], queue: WorkQueue) -> None:
        self.nodes: dict[str, tuple[Node, InstanceRef]] = {}
        self.awaited: dict[Key, Collection[str]] = {}
        self.events = 0
        self._queue = queue
        self._specs: dict[Key, Spec | None] = {}
        nodes.subscribe(self._node_changed)

    @property
    def instances(self) -> set[str]:
        """Those of all Nodes."""
        return {ref.instance for _, ref in self.nodes.values()}

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Stores the Node and enqueues policies: those that wait for it at once, all others later."""
        if new is None:
            if old is not None:
                self.nodes.pop(old.name, None)
        else:
            self.nodes[new.name] = (new, instance_ref_of(new))
        if readiness(old) != readiness(new):
            name = new.name if new is not None else old.name if old is not None else ""
            for key, nodes in self.awaited.items():
                if name in nodes:
                    self._queue.add(key)
        if policy_inputs(old) != policy_inputs(new):
            self.events += 1
            for key in self._specs:
                self._queue.add_after(key, JOIN_SECONDS)

    def known(self, key: Key, spec: Spec | None, events: int) -> None:
        """Enqueue the others if the spec differs, and a new policy again if it missed an event. `events`: as
        before its spec was read."""
        if key not in self._specs and self.events != events:
            self._queue.add_after(key, JOIN_SECONDS)
        if key not in self._specs or spec != self._specs[key]:
            self.enqueue_others(key)
        self._specs[key] = spec

    def enqueue_others(self, key: Key) -> None:
        """Something about this policy has changed for all others."""
        self.events += 1
        for other in self._specs:
            if other != key:
                self._queue.add(other)

    def forget(self, key: Key) -> None:
        """The policy is gone; others win its options."""
        self.awaited.pop(key, None)
        self._specs.pop(key, None)
        self.enqueue_others(key)

    def clear(self) -> None:
        """Another process may lead: no policy is known. The nodes still are."""
        self._specs.clear()
        self.awaited.clear()
