"""Record every state of every pod in a namespace, and of the nodes, and judge the whole history.

Input: watches of the API server. A state that the API server never showed to any watcher is not seen, as
it is not by any controller either. It changes nothing on the cluster.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import aiohttp

from testbed.admin import Admin, ApiError, Json, path

TERMINAL: Final = frozenset({"Succeeded", "Failed"})
NODE_UID_ANNOTATION: Final = "caretaker.dev/node-uid"


@dataclass(frozen=True)
class Seen:
    """One state of one object: when it was seen (monotonic seconds), by which event, and the object."""

    at: float
    type: str
    object: Json


@dataclass(frozen=True)
class Peak:
    """The largest number of pods that counted at one moment: when, and which."""

    count: int
    at: float
    pods: tuple[str, ...]


def is_active(pod: Json) -> bool:
    """A pod that holds a node's slot: not terminal, whether bound, running or being deleted."""
    return pod.get("status", {}).get("phase") not in TERMINAL


def is_running(pod: Json) -> bool:
    """A pod whose containers run."""
    return bool(pod.get("status", {}).get("phase") == "Running")


def node_of(pod: Json) -> str:
    """The node a pod is bound to, else the one its affinity pins it to, else the empty string."""
    if bound := pod["spec"].get("nodeName"):
        return str(bound)
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    fields = [field for term in terms for field in term.get("matchFields", [])]
    return next((str(field["values"][0]) for field in fields if field["key"] == "metadata.name"), "")


def owner_uid(pod: Json) -> str:
    """The uid of the controlling owner, or the empty string."""
    owners = pod["metadata"].get("ownerReferences", [])
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def run_place(pod: Json) -> tuple[str, str]:
    """(task uid, node uid) of a run; the node's name where the pod does not tell its uid."""
    annotations = pod["metadata"].get("annotations", {})
    return owner_uid(pod), annotations.get(NODE_UID_ANNOTATION) or node_of(pod)


class PodRecorder:
    """All states of the pods of `namespace` (or of those that `labels` selects), and of the nodes.

    Use it as an async context manager; call `settle()` before judging, since the last events may still
    be on their way.
    """

    def __init__(self, admin: Admin, namespace: str, *, labels: str | None = None) -> None:
        self._admin = admin
        self._labels = labels
        self._pods_url = path("pods", namespace)
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.pods: list[Seen] = []
        self.nodes: list[Seen] = []
        self.live: dict[str, Json] = {}

    async def __aenter__(self) -> Self:
        follows = (self._pods_url, self._labels, self.pods), (path("nodes"), None, self.nodes)
        begun = [asyncio.Event() for _ in follows]
        self._tasks = [
            asyncio.create_task(self._follow(*follow, listed))
            for follow, listed in zip(follows, begun, strict=True)
        ]
        for listed, task in zip(begun, self._tasks, strict=True):
            waiting = asyncio.create_task(listed.wait())
            await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                waiting.cancel()
                await task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def wait_until(self, condition: Callable[[], bool], timeout: float = 180.0) -> None:
        """Return once `condition` holds; it is asked again after each recorded state."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def settle(self, timeout: float = 180.0) -> None:
        """Return once everything that the API server shows of the pods by now is recorded."""
        listed = await self._admin.request("GET", self._pods_url, params=self._selector())
        shown = {pod["metadata"]["uid"]: _version(pod) for pod in listed["items"]}
        until = int(listed["metadata"]["resourceVersion"])

        def recorded() -> bool:
            known = {uid: _version(pod) for uid, pod in self.live.items()}
            ended = {entry.object["metadata"]["uid"] for entry in self.pods if entry.type == "DELETED"}
            return all(
                uid in ended or known.get(uid, -1) >= version for uid, version in shown.items()
            ) and all(uid in shown or version > until for uid, version in known.items())

        await self.wait_until(recorded, timeout)

    def moments(self) -> Iterator[tuple[float, dict[str, Json]]]:
        """After each event: the time, and the pods that exist by uid (one dict, changed in place)."""
        existing: dict[str, Json] = {}
        for entry in self.pods:
            uid = entry.object["metadata"]["uid"]
            if entry.type == "DELETED":
                existing.pop(uid, None)
            else:
                existing[uid] = entry.object
            yield entry.at, existing

    def peak(self, counts: Callable[[Json], bool] = is_active) -> Peak:
        """The most pods at one moment for which `counts` holds."""
        return max(self.peaks(lambda _: "", counts).values(), key=lambda p: p.count, default=Peak(0, 0.0, ()))

    def peaks(
        self, group: Callable[[Json], Hashable] = run_place, counts: Callable[[Json], bool] = is_active
    ) -> dict[Hashable, Peak]:
        """The peak of each group of pods; by default the non-terminal pods of each (task uid, node uid)."""
        members: dict[Hashable, dict[str, str]] = {}
        where: dict[str, Hashable] = {}
        best: dict[Hashable, Peak] = {}
        for entry in self.pods:
            meta = entry.object["metadata"]
            if meta["uid"] in where:
                members[where.pop(meta["uid"])].pop(meta["uid"])
            if entry.type == "DELETED" or not counts(entry.object):
                continue
            key = where[meta["uid"]] = group(entry.object)
            now = members.setdefault(key, {})
            now[meta["uid"]] = meta["name"]
            if key not in best or len(now) > best[key].count:
                best[key] = Peak(len(now), entry.at, tuple(now.values()))
        return best

    def max_active(self) -> int:
        """The most non-terminal pods at one moment: what `parallelism` bounds."""
        return self.peak().count

    def max_active_per_place(self) -> int:
        """The most non-terminal pods of one task on one node at one moment: never above 1."""
        return max((peak.count for peak in self.peaks().values()), default=0)

    def max_running_per_place(self) -> int:
        """The most running pods of one task on one node at one moment."""
        return max((peak.count for peak in self.peaks(counts=is_running).values()), default=0)

    def runs_per_node(self, phase: str | None = None) -> Counter[str]:
        """Node name -> number of distinct pods that ever existed for it, or ever were in `phase`."""
        last: dict[str, str] = {}
        for entry in self.pods:
            if phase in {None, entry.object.get("status", {}).get("phase")}:
                last[entry.object["metadata"]["uid"]] = node_of(entry.object)
        return Counter(last.values())

    def states_of(self, name: str) -> list[Seen]:
        """The states of the pods called `name`, oldest first."""
        return [entry for entry in self.pods if entry.object["metadata"]["name"] == name]

    def first_seen(self) -> dict[str, float]:
        """Pod name -> when it was first seen."""
        first: dict[str, float] = {}
        for entry in self.pods:
            first.setdefault(entry.object["metadata"]["name"], entry.at)
        return first

    def _selector(self) -> dict[str, str]:
        return {"labelSelector": self._labels} if self._labels else {}

    async def _follow(self, url: str, labels: str | None, into: list[Seen], listed: asyncio.Event) -> None:
        version = ""
        while True:
            try:
                if not version:
                    version = await self._list(url, labels, into)
                    listed.set()
                async with aclosing(self._admin.watch(url, version, labels=labels)) as events:
                    async for event in events:
                        version = event.object["metadata"]["resourceVersion"]
                        if event.type != "BOOKMARK":
                            self._add(into, event.type, event.object)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.2)  # the API server restarts: resume where we were, missing nothing
            except ApiError as error:
                if error.status not in {410, 429, 500, 503, 504}:
                    raise
                version = "" if error.status == 410 else version
                await asyncio.sleep(0.2)

    async def _list(self, url: str, labels: str | None, into: list[Seen]) -> str:
        params = {"labelSelector": labels} if labels else {}
        listed = await self._admin.request("GET", url, params=params)
        present = {item["metadata"]["uid"] for item in listed["items"]}
        if into is self.pods:
            for uid in set(self.live) - present:
                self._add(into, "DELETED", self.live[uid])
        for item in listed["items"]:
            self._add(into, "ADDED", item)
        return str(listed["metadata"]["resourceVersion"])

    def _add(self, into: list[Seen], kind: str, item: Json) -> None:
        into.append(Seen(time.monotonic(), kind, item))
        if into is self.pods:
            uid = item["metadata"]["uid"]
            if kind == "DELETED":
                self.live.pop(uid, None)
            else:
                self.live[uid] = item
        self._changed.set()


def _version(item: Json) -> int:
    # Comparable since KEP-5504 made resourceVersions of built-in resources ordered numbers.
    return int(item["metadata"]["resourceVersion"])
