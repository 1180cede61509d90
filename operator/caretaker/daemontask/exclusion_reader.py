"""Reads of a process before a task of an exclusive group may start anything.

I/O only. Another process may have led until a moment ago: the stores may not show its last writes yet.
"""

from typing import Final

import msgspec

from caretaker.api.names import LABEL_TASK
from caretaker.api.objects import Node, Pod, WireBareMeta, WireNode, WirePod
from caretaker.daemontask.exclusion import Exclusion
from caretaker.daemontask.resource import KIND
from caretaker.kube.client import KubeClient
from caretaker.kube.store import Store
from caretaker.registry import DAEMON_TASK
from caretaker.runtime.work_queue import Key

_CORDONED: Final = {"fieldSelector": "spec.unschedulable=true"}


class _Exclusive(msgspec.Struct):
    group: str = ""


class _Spec(msgspec.Struct):
    exclusive: _Exclusive | None = None


class _Task(msgspec.Struct):
    metadata: WireBareMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


async def read_groups(
    client: KubeClient, exclusion: Exclusion, namespace: str, pods: Store[Pod], nodes: Store[Node]
) -> None:
    """Quorum reads: the groups of all tasks of the namespace; their Pods, and the cordoned nodes, which the
    stores know from now on. Once for each namespace, until exclusion.clear() or expire()."""
    tasks, _ = await client.list(DAEMON_TASK.path(namespace), _Task)
    listed, _ = await client.list(
        f"/api/v1/namespaces/{namespace}/pods", WirePod, params={"labelSelector": LABEL_TASK}
    )
    for pod in listed:
        pods.observe_write(pod.record(), int(pod.metadata.resource_version))
    cordoned, _ = await client.list("/api/v1/nodes", WireNode, params=_CORDONED)
    for node in cordoned:
        nodes.observe_write(node.record(), int(node.metadata.resource_version))
    found = [
        (Key(KIND, namespace, task.metadata.name), task.metadata.uid, _group_of(task))
        for task in tasks
        if task.metadata.deletion_timestamp is None
    ]
    exclusion.listed(namespace, found)


def _group_of(task: _Task) -> str:
    return task.spec.exclusive.group if task.spec.exclusive is not None else ""
