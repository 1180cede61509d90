"""Evicts the Pods of nodes that are drained.

I/O only: which nodes and Pods, was decided before. A Pod is evicted by its UID, so a successor of its name is
never meant. It must evict by the Eviction API alone, which obeys PodDisruptionBudgets, and list the Pods of
single nodes alone, at a rate that is bounded over all tasks.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from caretaker.api.daemontask import DaemonTask, Drain
from caretaker.api.objects import Node
from caretaker.daemontask.decision import DrainView, NodeReport
from caretaker.daemontask.drain import (
    FIRST_WAIT,
    NodePod,
    Step,
    continued,
    eviction,
    label_selector,
    next_wait,
    step,
    words_of,
)
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.pod_control import run_all
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, by_admission

CONCURRENCY: Final = 16
LOOKS: Final = 20  # nodes whose Pods are listed within TURN_SECONDS, of all tasks
TURN_SECONDS: Final = 1.0
EVICTIONS: Final = 100  # in a pass, of which a node gets its share
ANSWERS: Final = 600.0  # seconds, or timeoutSeconds: for so long 429 and 5xx to evictions stop the clock
SECONDS: Final = 5.0  # no eviction of a pass is sent later: the rest of the task waits for the pass
ASKED_MAX: Final = 60.0  # seconds until the next look, at most, where the API server asks for a later one


class Drained(msgspec.Struct, frozen=True):
    """The result of a pass.

    next_at  when a node is to be looked at, or cordoned, again; 0 = none is
    again    whether another plan is needed at once
    """

    next_at: float = 0.0
    again: bool = False


class _Bound(msgspec.Struct, frozen=True):
    """How many Pods of a node are evicted at a look, and until when (time.monotonic())."""

    most: int
    stop_at: float


class DrainControl:
    """Lists Pods and creates Evictions."""

    def __init__(self, client: KubeClient, metrics: DaemonTaskMetrics, operator: str = "") -> None:
        self._client = client
        self._metrics = metrics
        self._operator = operator  # namespace of its Pods
        self._turn = 0.0  # time.monotonic() from which Pods of nodes may be listed again

    async def drain(self, task: DaemonTask, reports: Sequence[NodeReport], state: TaskState) -> Drained:
        """Look at the first of these nodes, and evict their Pods."""
        clock, turn = time.monotonic(), asyncio.Semaphore(CONCURRENCY)
        moments = [view.next for view in state.drains.views.values()]
        if clock < self._turn:
            moments += [time.time() + self._turn - clock] if reports else []
            return Drained(min(moments, default=0.0))

        async def one(report: NodeReport) -> DrainView:
            async with turn:
                return await self._look(task, report, state, _Bound(most, clock + SECONDS))

        looked = reports[:LOOKS]
        most = EVICTIONS // max(len(looked), 2)
        self._turn = clock + TURN_SECONDS * len(looked) / LOOKS
        views = await run_all(one(report) for report in looked)
        state.drains.views.update((report.node.uid, view) for report, view in zip(looked, views, strict=True))
        moments = [view.next for view in state.drains.views.values()]
        if len(reports) > LOOKS:
            moments.append(time.time() + TURN_SECONDS)
        return Drained(min(moments, default=0.0), any(view.empty for view in views))

    async def _look(self, task: DaemonTask, report: NodeReport, state: TaskState, bound: _Bound) -> DrainView:
        """The node as it is now."""
        node, run, now = report.node, report.decision.drain, time.time()
        before = continued(state.drains.views, report, now)
        view, wait = DrainView(node.cordon, run, now, now, now), next_wait(before, moved=False)
        if before is not None:
            lost = now - before.looked if before.fault else 0.0
            first = before.first + max(lost, 0.0)
            view = replace(view, first=first, known=before.known, tried=before.tried, stood=before.stood)
        try:
            pods, found = await self._step(task, node, before)
        except ApiError as error:
            view = replace(view, denied=error.missing_permission is not None)
            return _stopped(view, before, f"its Pods cannot be listed: {words_of(error)}", now + wait)
        if before is None:
            view = replace(view, known=frozenset(pod.metadata.uid for pod in pods if pod.tolerates_cordon))
        if found.empty:
            return replace(view, empty=True, next=now + FIRST_WAIT)
        if found.blocked:
            return replace(view, message=found.blocked, next=now + wait)
        return await self._empty(task, view, before, found, bound)

    async def _empty(
        self, task: DaemonTask, view: DrainView, before: DrainView | None, found: Step, bound: _Bound
    ) -> DrainView:
        """The node after evictions. At the end of its time nothing more is evicted."""
        drain, waits = _drain_of(task), [*found.ending, *found.evict]
        message = f"{len(waits)} Pod(s) have not ended yet, first {min(pod.full_name for pod in waits)}"
        if view.looked >= view.first + drain.timeout_seconds:
            return replace(view, message=(before.message if before is not None else "") or message)
        begin = view.tried % len(found.evict) if found.evict else 0  # of many, each look tries others
        tried = await self._evict_all([*found.evict[begin:], *found.evict[:begin]], drain, bound)
        view = replace(view, tried=view.tried + len(tried))
        refused = [(pod, error) for pod, error in tried if error is not None]
        moved = len(refused) < len(tried) or not tried
        next_at = time.time() + next_wait(before, moved=moved)
        if not refused:
            return replace(view, message=message, next=next_at)
        most = max(drain.timeout_seconds, ANSWERS)
        faults = [
            one for one in refused if _is_fault(one[1]) and not (_is_answer(one[1]) and view.stood >= most)
        ]
        pod, first = (faults or refused)[0]
        next_at = max(next_at, view.looked + min(first.retry_after or 0.0, ASKED_MAX))
        message = f"Pod {pod.full_name} stays: {words_of(first)}"
        if faults:
            view = replace(view, denied=first.missing_permission is not None)
            return _stopped(view, before, message, next_at, answered=_is_answer(first))
        return replace(view, message=message, next=next_at)

    async def _step(
        self, task: DaemonTask, node: Node, before: DrainView | None
    ) -> tuple[list[NodePod], Step]:
        """The node's Pods and the next step. The Pods to evict are read from the API server's cache, which
        costs it little; an empty node is confirmed from its store."""
        drain, known = _drain_of(task), before.known if before is not None else None
        params = {"fieldSelector": f"spec.nodeName={node.name}"}
        if selector := label_selector(drain.pod_selector):
            params["labelSelector"] = selector
        uid = task.metadata.uid
        if before is not None and not before.empty:
            cached = {**params, "resourceVersion": "0"}
            pods, _ = await self._client.list("/api/v1/pods", NodePod, params=cached)
            found = step(pods, drain, uid, known=known, operator=self._operator)
            if not found.empty:
                return pods, found
        pods, _ = await self._client.list("/api/v1/pods", NodePod, params=params)
        return pods, step(pods, drain, uid, known=known, operator=self._operator)

    async def _evict_all(
        self, pods: Sequence[NodePod], drain: Drain, bound: _Bound
    ) -> list[tuple[NodePod, ApiError | None]]:
        """The Pods that were tried, and why each was not evicted."""
        tried = list[tuple[NodePod, ApiError | None]]()
        for pod in pods[: bound.most]:
            if time.monotonic() >= bound.stop_at and tried:
                break
            tried.append((pod, await self._evict(pod, eviction(pod, drain))))
        return tried

    async def _evict(self, pod: NodePod, body: Mapping[str, Any]) -> ApiError | None:
        """Why it was not evicted. None: it was, or it is gone, or another Pod has its name, or it goes with
        its namespace."""
        meta, result, refusal = pod.metadata, "Evicted", None
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/eviction"
        try:
            await self._client.create(path, body)
        except ApiError as error:
            if error.not_found or error.terminating or (error.conflict and not by_admission(error)):
                result = "Gone"
            else:
                result, refusal = "Refused" if error.throttled and error.causes else "Failed", error
        self._metrics.evictions.labels(result).inc()
        return refusal


def _drain_of(task: DaemonTask) -> Drain:
    drain = task.spec.drain
    assert drain is not None  # noqa: S101 - only nodes of such tasks are drained
    return drain


def _stopped(
    view: DrainView, before: DrainView | None, message: str, next_at: float, *, answered: bool = False
) -> DrainView:
    """The time since the last look does not count: the node is not at fault."""
    lost = max(view.looked - before.looked, 0.0) if before is not None else 0.0
    first = (before.first if before is not None else view.first) + lost
    stood = view.stood + (lost if answered else 0.0)
    return replace(view, message=message, fault=message, first=first, next=next_at, stood=stood)


def _is_fault(error: ApiError) -> bool:
    """Whether the answer says nothing of the Pod: want of a right or of an answer, overload. A
    PodDisruptionBudget answers 429 too, with itself as the cause; a webhook may answer anything."""
    if error.missing_permission is not None or error.status in (0, 401, 408):
        return True
    return not by_admission(error) and _is_answer(error)


def _is_answer(error: ApiError) -> bool:
    """Overload, or the like: a refusal in its clothes where it does not end."""
    return (error.throttled and not error.causes) or error.status > 500
