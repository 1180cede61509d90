"""Ledgers of runs that nobody has to wait for.

What the operator would have recorded of Pods that ran and were deleted at their TTL, made by its own code
from the Pods that it would have created (pods.build, pod_failure_policy.entry_for) and written by it too
(shards.Shards).
No operator may run meanwhile: it would start the runs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from caretaker.api.daemontask import DaemonTask
from caretaker.api.objects import Node, WireNode, WirePod
from caretaker.api.times import format_time
from caretaker.daemontask.decision import DecisionInput
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.pod_failure_policy import entry_for
from caretaker.daemontask.pods import Start, build, revision_of, run_key
from caretaker.daemontask.resource import RawTask, read_task
from caretaker.daemontask.shards import Shards
from caretaker.kube.client import KubeClient
from caretaker.registry import DAEMON_TASK

NAMESPACE: Final = "default"
_RAN: Final = 2.0  # seconds


async def record_runs(kubeconfig: Path, tasks: Sequence[str], ended: float) -> None:
    """Write the ledgers of these tasks as if each had run once on every node, until `ended` (seconds since
    the epoch)."""
    async with await KubeClient.connect(str(kubeconfig)) as client:
        wired, _ = await client.list("/api/v1/nodes", WireNode)
        nodes = [node.record() for node in wired]
        for name in tasks:
            task, _ = read_task(await client.get(DAEMON_TASK.path(NAMESPACE, name), RawTask))
            meta = task.metadata
            shards = Shards(client, NAMESPACE, meta.name, meta.uid)
            await shards.load(ended)
            await shards.write(dict(_entries(task, nodes, ended)), ())


def _entries(task: DaemonTask, nodes: Sequence[Node], ended: float) -> Iterator[tuple[str, Entry]]:
    revision, uid = revision_of(task.spec), task.metadata.uid
    for node in nodes:
        key = run_key(uid, revision, node.uid, "", "")
        start = Start(node.name, node.uid, 1, 1, key, "", node.boot_id, "NewNode")
        body = build(task.metadata, task.spec, revision, start)
        # A UID of its own, as the API server gives one: no two entries share a string.
        body["metadata"]["uid"] = f"{uid[:18]}{node.uid[18:]}"
        body["metadata"]["creationTimestamp"] = format_time(ended - _RAN)
        body["spec"] = {"nodeName": node.name}
        body["status"] = {"phase": "Succeeded", "containerStatuses": [_end(ended)]}
        pod = msgspec.convert(body, WirePod).record()
        yield node.name, entry_for(DecisionInput(uid, task.spec, revision, ended), pod, node, None)


def _end(ended: float) -> dict[str, object]:
    finished = {"exitCode": 0, "reason": "Completed", "finishedAt": format_time(ended)}
    return {"name": "main", "state": {"terminated": finished}}
