"""Creating and deleting the Pods of a task.

I/O only: which Pods, was decided before. A name that is taken is looked at, never assumed; a Pod that has
not finished is deleted only as it was seen, so that a run which ended meanwhile is not lost.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from caretaker.api.conditions import Reason
from caretaker.api.daemontask import DaemonTask
from caretaker.api.hashing import h10
from caretaker.api.names import LABEL_NODE_HASH, LABEL_TASK
from caretaker.api.objects import Pod, WireMeta, WirePod
from caretaker.daemontask.decision import PodsByNode, WriteRefusal
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import Launch
from caretaker.daemontask.pods import PodEncoder, Start, pod_name
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, NotLeader, or_none
from caretaker.kube.store import Store
from caretaker.runtime.controller import Retry
from caretaker.runtime.tasks import YieldingLock

logger = logging.getLogger(__name__)

DELETE_CONCURRENCY: Final = 32
CREATE_CONCURRENCY: Final = 64  # requests at a time
# Bytes of these requests together: fewer large Pods are created at a time, because responses that arrive
# together are decoded one after the other without a yield.
CREATE_BYTES: Final = 1 << 20
# How long a look at the ledger counts, in seconds. With the timeout of a write it stays below the floor of
# retention.py: a Pod that another operator recorded since still holds its name.
CONFIRMED_SECONDS: Final = 10.0

MOST_NAMED: Final = 250  # nodes that a list of Pods names; of more, all of the task's Pods are listed

# How long a node waits before its Pod, which lost its label, is looked at again.
LABEL_LOST_SECONDS: Final = 60.0


class PodControl:
    """Writes Pods, and updates the store by the answers of the API server."""

    def __init__(self, client: KubeClient, pods: Store[Pod]) -> None:
        self._client = client
        self._pods = pods
        self._yielding = YieldingLock()

    # ------------------------------------------------------------------ create

    async def start(
        self, task: DaemonTask, revision: str, launch: Launch, state: TaskState
    ) -> tuple[list[str], bool]:
        """Slow start: one Pod at a time, one more with every success, none after a failure that concerns all
        of them nor from the boundary on, when budgets or the deadline allow another number; the width
        reached is kept for the next pass. Returns (names of the nodes that have a Pod now and had none
        before, whether no other plan is needed at once): starts that were not tried need another look at the
        ledger or the budgets first, and a refused one leaves its slot to another node."""
        left, creation = deque(launch.starts), state.creation
        if not left:
            return [], True
        creation.refusal, creation.again = None, False
        until = state.ledger.confirmed + CONFIRMED_SECONDS
        async with self._yielding:
            encoder = PodEncoder(task.metadata, task.spec, revision)
        most = max(min(CREATE_CONCURRENCY, CREATE_BYTES // encoder.size), 1)
        creators: list[asyncio.Task[None]] = []
        begun: list[Start] = []
        created: list[str] = []

        async def create() -> None:
            """One slot of the width; a slow answer holds up this slot and no other."""
            while (
                left
                and creation.refusal is None
                and time.monotonic() < until
                and not 0 < launch.boundary <= time.time()
            ):
                if begun and state.bulk.spent(state.spec.pod_cost, time.monotonic()):
                    return  # another task of the namespace was quicker
                begun.append(start := left.popleft())
                if not await self._create(task.metadata, encoder, start, state):
                    continue
                created.append(start.node_name)
                if left and creation.refusal is None and len(creators) < most:
                    creators.append(asyncio.create_task(create()))

        creators.extend(
            asyncio.create_task(create()) for _ in range(min(creation.width, len(launch.starts), most))
        )
        awaited = 0
        try:
            while awaited < len(creators):  # one that succeeds adds another
                batch, awaited = creators[awaited:], len(creators)
                await asyncio.wait(batch)
        finally:  # a pass that is cancelled leaves nothing behind that still creates
            for creator in creators:
                creator.cancel()
        await run_all(creators)
        creation.width = 1 if creation.refusal is not None else max(len(creators), creation.width)
        return created, not (left or creation.again) or creation.refusal is not None

    async def _create(self, meta: WireMeta, encoder: PodEncoder, start: Start, state: TaskState) -> bool:
        """Whether the node has a Pod now that it did not have before."""
        path, ledger = f"/api/v1/namespaces/{meta.namespace}/pods", state.ledger
        state.pacing.turn = state.bulk.take(state.spec.pod_cost, time.monotonic())
        body = encoder.body(start)
        name = body["metadata"]["name"]
        state.creation.under_way.add(name)
        token = ledger.unstarted.pop(start.node_uid, "")
        try:
            made: WirePod = await self._client.create(path, body, WirePod)
            self._pods.observe_write(made.record(), int(made.metadata.resource_version))
        except NotLeader:
            ledger.not_started(start.node_uid, token)
            raise
        except ApiError as error:
            if error.already_exists:
                state.creation.unsure[start.node_uid] = start.node_name  # until it is looked at
                adopted = await self._adopt(meta, start, state, token)
                state.creation.unsure.pop(start.node_uid, None)
                return adopted
            state.refused(start.node_uid, error, time.time())
            if _made_nothing(error):
                ledger.not_started(start.node_uid, token)
            else:
                state.creation.unsure[start.node_uid] = start.node_name
            if error.status == 0 or error.status >= 500 or error.throttled:
                logger.warning("no Pod for node %s yet: %s", start.node_name, error)
            return False
        finally:
            state.creation.under_way.discard(name)
        state.created(start.node_uid)
        return True

    async def _adopt(self, meta: WireMeta, start: Start, state: TaskState, token: str) -> bool:
        """After a 409: read the Pod that has the name and check its owner."""
        creation = state.creation
        name = pod_name(meta.name, meta.uid, start.node_uid, start.seq)
        found = await self._find(meta.namespace, name)
        if found is None:
            raise Retry(f"Pod {name} went away while it was looked at")
        pod = found.record()
        if pod.owner_uid == meta.uid and pod.node_uid == start.node_uid:
            # Ours, from a lost answer or another operator, for this run or an earlier one: the next plan
            # sees it and waits for it, or records it.
            if LABEL_TASK in pod.labels:
                self._pods.observe_write(pod, int(found.metadata.resource_version))
            else:
                # A user took its label to set it aside: the node waits, nothing else does.
                creation.conflicts[name] = start.node_uid
                creation.unlabelled.add(name)
                state.deletions.not_before[start.node_uid] = time.time() + LABEL_LOST_SECONDS
                logger.warning("Pod %s has lost its labels; its node waits until it is gone", name)
                return False
            return not (pod.terminal or pod.deletion)
        state.ledger.not_started(start.node_uid, token)
        creation.seq_skips[start.node_uid] = creation.seq_skips.get(start.node_uid, 0) + 1
        creation.conflicts[name], creation.again = start.node_uid, True
        logger.warning("Pod %s exists and is not of this task; the next name is used", name)
        return False

    async def is_gone(self, meta: WireMeta, run: Entry) -> bool:
        """Whether the API server has no Pod of this run either; if it has, the store knows from now on. One
        that has lost its label proves nothing more."""
        found = await self._find(meta.namespace, pod_name(meta.name, meta.uid, run.node_uid, run.seq))
        if found is None:
            return True
        pod = found.record()
        if (pod.owner_uid, pod.node_uid) != (meta.uid, run.node_uid) or LABEL_TASK not in pod.labels:
            return True
        self._pods.observe_write(pod, int(found.metadata.resource_version))
        return False

    async def has_seen_all(self, meta: WireMeta, seen: PodsByNode, nodes: Mapping[str, str]) -> bool:
        """Whether `seen` has every Pod that the API server has of these nodes (name -> UID); those that it
        does not have go to the store. One list, however many nodes."""
        if not nodes:
            return True
        selector = f"{LABEL_TASK}={meta.name}"
        if len(nodes) <= MOST_NAMED:
            selector += f",{LABEL_NODE_HASH} in ({','.join(map(h10, nodes))})"
        listed, _ = await self._client.list(
            f"/api/v1/namespaces/{meta.namespace}/pods", WirePod, params={"labelSelector": selector}
        )
        uids, all_seen = set(nodes.values()), True
        for found in listed:
            pod = found.record()
            if pod.owner_uid != meta.uid or pod.node_uid not in uids:
                continue
            if pod.name not in seen.get(pod.node_uid, {}):
                self._pods.observe_write(pod, int(found.metadata.resource_version))
                all_seen = False
        return all_seen

    # ------------------------------------------------------------------ delete

    async def delete(
        self, pods: Sequence[Pod], state: TaskState
    ) -> tuple[WriteRefusal | None, bool, set[str]]:
        """Delete them, by uid. A refusal holds up neither the others nor the rest of the pass. Returns (the
        first refusal, whether every other Pod was as it had been seen, the UIDs of those that were deleted):
        one that was not as seen is left for another plan, which no event may ask for. Raises NotLeader, and
        ApiError when the server did not answer."""
        gate = asyncio.Semaphore(DELETE_CONCURRENCY)

        async def one(pod: Pod) -> WriteRefusal | bool:
            async with gate:
                try:
                    return await self._delete(pod, state)
                except ApiError as error:
                    if error.transient or error.missing_permission is not None:
                        raise
                    # If the Pod goes after all, it is not by us; and its result counts.
                    state.deletions.expected.discard(pod.uid)
                    return WriteRefusal(Reason.POD_DELETION_REFUSED, f"Pod {pod.name}: {error.message}")

        found = list(zip(pods, await run_all(one(pod) for pod in pods), strict=True))
        refusals = {pod.uid: answer for pod, answer in found if isinstance(answer, WriteRefusal)}
        state.deletions.undeletable = frozenset(
            pod.uid for pod in pods if pod.uid in refusals and not pod.terminal
        )
        as_seen = all(answer is not False for _, answer in found)
        gone = {pod.uid for pod, answer in found if answer is True}
        return next(iter(refusals.values()), None), as_seen, gone

    async def _delete(self, pod: Pod, state: TaskState) -> bool:
        """Whether the Pod was as it had been seen, and was deleted."""
        key = (pod.namespace, pod.name)
        preconditions, version = {"uid": pod.uid}, self._pods.version_of(key)
        if not pod.terminal:
            # It may have been bound, run and finished since: then it is to be recorded, not deleted.
            if self._pods.get(*key) != pod:
                return False  # so it is known here already
            preconditions["resourceVersion"] = str(version)
        state.deletions.expected.add(pod.uid)
        if not pod.node_name and not pod.terminal:
            state.order.deprioritised[pod.node_uid] = time.time()
        try:
            left: WirePod = await self._client.delete(
                _path(pod.namespace, pod.name), body={"preconditions": preconditions}, type=WirePod
            )
        except ApiError as error:
            if error.not_found:
                self._pods.observe_delete(key, pod.uid)
                return True
            if error.status == 409 and await self._reread(pod, version, state):
                return False
            raise  # a webhook may answer 409 too, and would do so for ever
        meta = left.metadata
        if not (pod.terminal or pod.node_name or left.spec.node_name):
            state.ledger.never_placed(pod)
        if pod.node_name and not pod.terminal and meta.deletion_timestamp is not None:
            self._pods.observe_write(left.record(), int(meta.resource_version))
        else:
            self._pods.observe_delete(key, pod.uid, int(meta.resource_version or 0))
        return True

    async def _reread(self, pod: Pod, version: int, state: TaskState) -> bool:
        """Whether the Pod differs from the one that was decided on; the next plan sees the current one."""
        found = await self._find(pod.namespace, pod.name)
        if found is None or found.metadata.uid != pod.uid:
            self._pods.observe_delete((pod.namespace, pod.name), pod.uid)
        if found is None:
            return True
        state.deletions.expected.discard(pod.uid)
        self._pods.observe_write(found.record(), int(found.metadata.resource_version))
        return (found.metadata.uid, int(found.metadata.resource_version)) != (pod.uid, version)

    async def _find(self, namespace: str, name: str) -> WirePod | None:
        found: WirePod | None = await or_none(self._client.get(_path(namespace, name), WirePod))
        return found


def _made_nothing(error: ApiError) -> bool:
    """Whether it is certain that there is no Pod. A webhook is asked before anything is stored; one that does
    not answer makes the API server say 500."""
    return error.not_executed or "failed calling webhook" in error.message


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


async def run_all(awaitables: Iterable[Any]) -> list[Any]:
    """Waits for all, then raises the first error: nothing is left running behind a failed pass."""
    every = list(awaitables)
    if not every:  # most passes have nothing to do: spare them a turn of the event loop
        return []
    results = await asyncio.gather(*every, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
