"""Everything that happened to one namespace's DaemonTasks, and the promises judged on all of it.

Inputs: watches of Pods, ledger shards and DaemonTasks. Order is by resourceVersion, which is etcd's one
counter for all resources, so a Pod and the ledger can be compared. What others destroyed before it was
recorded may run again; everything else must keep the promises of the design.
"""

import asyncio
import contextlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from testbed.admin import Admin, ApiError, Json, path
from testbed.recorder import PodRecorder, is_active, run_place
from testing.apicalls import Ledger
from testing.world import check_sum, seq_of

RUN_KEY: Final = "caretaker.dev/run-key"
LEDGER_LABEL: Final = "caretaker.dev/ledger"

Place = tuple[str, str]  # (task uid, node uid)


@dataclass(frozen=True)
class Recorded:
    """One state of one node's ledger entry, from resourceVersion `version` on; entry None = it went."""

    version: int
    task_uid: str
    node: str
    entry: Json | None


class History:
    """Use it as an async context manager, from before the tasks exist; call check() at the end, or often."""

    def __init__(self, admin: Admin, namespace: str) -> None:
        self.pods = PodRecorder(admin, namespace)
        self.recorded: list[Recorded] = []
        self.statuses = 0
        self.operators: list[Ledger] = []  # what each operator asked of the API server
        self.at_most_once: set[str] = set()  # uids of the tasks that are
        self._admin = admin
        self._namespace = namespace
        self._excused: set[str] = set()
        self._shards: dict[str, Json] = {}
        self._recorded_until: dict[str, int] = {}  # shard name -> resourceVersion of its last known state
        self._changed = asyncio.Event()
        self._faults: list[str] = []
        self._ticks: dict[str, tuple[Json, str]] = {}  # task uid -> (schedule, its last tick)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.pods.__aenter__()
        shards, tasks = path("configmaps", self._namespace), path("daemontasks", self._namespace)
        listed = [asyncio.Event(), asyncio.Event()]
        self._tasks = [
            asyncio.create_task(self._follow(shards, LEDGER_LABEL, self._shard, listed[0])),
            asyncio.create_task(self._follow(tasks, None, self._task, listed[1])),
        ]
        for event in listed:
            await event.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pods.__aexit__(kind, error, trace)

    def excuse(self, *pod_uids: str) -> None:
        """These Pods were taken away by the test, so that their runs may be repeated."""
        self._excused.update(pod_uids)

    def most_at_once(self, task_uid: str) -> list[str]:
        """The Pods of the task at the moment when most of them held a slot: neither terminal nor being
        deleted, and their nodes not gone."""
        lives = [
            life for of_place in self._lives().values() for life in of_place if life.task_uid == task_uid
        ]
        ends = {life.uid: min(life.ended, self._node_gone(life.place[1])) for life in lives}
        moments = (
            [str(other) for other in lives if other.born <= life.born < ends[other.uid]] for life in lives
        )
        return max(moments, key=len, default=[])

    # ------------------------------------------------------------ the promises

    async def check(self, *, backoff_limit: int | None = None) -> None:
        """Assert every promise on all that happened until now."""
        await self.pods.settle()
        await self._settle_ledger()
        problems = [
            *self._faults,
            *self._two_at_once(),
            *self._repeated(),
            *self._started_twice(),
            *self._lost(),
            *(self._too_many_attempts(backoff_limit) if backoff_limit is not None else ()),
        ]
        ledger = [f"ledger {r.version} {r.node}: {r.entry}" for r in self.recorded] if problems else []
        assert not problems, "\n".join((*problems, *ledger))

    async def _settle_ledger(self, timeout: float = 180.0) -> None:
        """Return once every shard that the API server shows by now is recorded."""
        shards = await self._admin.list(path("configmaps", self._namespace), labels=LEDGER_LABEL)
        async with asyncio.timeout(timeout):
            for shard in shards:
                name, version = shard["metadata"]["name"], _version(shard)
                while self._recorded_until.get(name, 0) < version:
                    self._changed.clear()
                    await self._changed.wait()

    def _two_at_once(self) -> Iterator[str]:
        for place, peak in self.pods.peaks().items():
            if peak.count > 1:
                yield f"{place}: {peak.count} Pods that are not terminal at once: {peak.pods}"

    def _repeated(self) -> Iterator[str]:
        """A Pod made for a run that the ledger had as Succeeded, or that another Pod had completed."""
        for place, lives in self._lives().items():
            for life in lives:
                entry = self._entry_at(life)
                if (
                    entry is not None
                    and entry["nodeUID"] == place[1]
                    and (entry["runKey"], entry["result"]) == (life.key, "Succeeded")
                ):
                    yield f"{life} repeats a recorded success: {entry}"
                for other in lives:
                    done = other.key == life.key and 0 < other.succeeded < life.born
                    if done and not (
                        self._taken_away(other) or self._superseded(other, other.succeeded, life)
                    ):
                        yield f"{life} repeats what {other} completed"

    def _started_twice(self) -> Iterator[str]:
        """A Pod made for a run for which its node had been given another one, whatever became of that: it may
        have run. Only where a run may start at most once."""
        for (task_uid, _), lives in self._lives().items():
            if task_uid not in self.at_most_once:
                continue
            for life in lives:
                for other in lives:
                    given = other.key == life.key and 0 < other.bound < life.born
                    if given and not self._superseded(other, other.bound, life):
                        yield f"{life} may run a second time what {other} was bound for"

    def _superseded(self, other: "Life", since: int, life: "Life") -> bool:
        """Whether the ledger had another run of the node between the two: a template that came back."""
        return any(
            record.entry is not None and record.entry["runKey"] != life.key
            for record in self._records(other.task_uid, other.node)
            if since < record.version < life.born
        )

    def _lost(self) -> Iterator[str]:
        """A success that the operator deleted before the ledger had it."""
        for lives in self._lives().values():
            for life in lives:
                gone = self._node_gone(life.place[1])
                if (
                    0 < life.succeeded < life.died < gone
                    and not self._in_time(life)
                    and not self._taken_away(life)
                ):
                    yield f"{life} was deleted before it was recorded"

    def _node_gone(self, node_uid: str) -> float:
        """From which version on the node is no more; infinity while it is there."""
        versions = (
            _version(seen.object)
            for seen in self.pods.nodes
            if seen.type == "DELETED" and seen.object["metadata"]["uid"] == node_uid
        )
        return next(versions, math.inf)

    def _in_time(self, life: "Life") -> bool:
        """Whether the ledger had it before it died."""
        return any(
            record.version < life.died
            for record in self._records(life.task_uid, life.node)
            if record.entry is not None and record.entry.get("podUID") == life.uid
        )

    def _taken_away(self, life: "Life") -> bool:
        """Whether somebody else deleted it unrecorded: the test, a garbage collector, an eviction."""
        if not life.died or self._in_time(life):
            return False
        return life.uid in self._excused or not any(
            call.resource == "pods"
            and call.verb == "delete"
            and (call.namespace, call.name) == (self._namespace, life.name)
            and life.born_at - 1 < call.time < life.died_at + 1
            for ledger in self.operators
            for call in ledger.calls()
        )

    def _too_many_attempts(self, limit: int) -> Iterator[str]:
        for lives in self._lives().values():
            failed: dict[str, list[Life]] = defaultdict(list)
            for life in lives:
                if life.counted_failure and not self._taken_away(life):
                    failed[life.key].append(life)
            for key, those in failed.items():
                if len(those) > limit + 1:
                    shown = "; ".join(map(str, those))
                    yield f"run {key} failed {len(those)} times, allowed are {limit + 1}: {shown}"

    # ------------------------------------------------------------ what happened

    def _lives(self) -> dict[Place, list["Life"]]:
        """The life of every Pod, oldest first."""
        lives: dict[str, Life] = {}
        for seen in self.pods.pods:
            meta = seen.object["metadata"]
            if RUN_KEY in meta.get("annotations", {}):
                at = seen.at + time.time() - time.monotonic()
                lives.setdefault(meta["uid"], Life(seen.object, at)).take(seen.type, seen.object, at)
        places: dict[Place, list[Life]] = defaultdict(list)
        for life in sorted(lives.values(), key=lambda one: one.born):
            places[life.place].append(life)
        return places

    def _records(self, task_uid: str, node: str) -> list[Recorded]:
        return [r for r in self.recorded if (r.task_uid, r.node) == (task_uid, node)]

    def _entry_at(self, life: "Life") -> Json | None:
        """The ledger's entry of the node when the Pod was made."""
        before = [r for r in self._records(life.task_uid, life.node) if r.version < life.born]
        return before[-1].entry if before else None

    def _shard(self, kind: str, shard: Json) -> None:
        meta, name = shard["metadata"], shard["metadata"]["name"]
        owner = meta["ownerReferences"][0]["uid"]
        old = (self._shards.pop(name, None) or {}).get("data") or {}
        new = {} if kind == "DELETED" else shard.get("data") or {}
        if kind != "DELETED":
            self._shards[name] = shard
        self._recorded_until[name] = _version(shard)
        self._changed.set()
        for node in old.keys() | new.keys():
            if old.get(node) != new.get(node):
                before, after = _decoded(old.get(node)), _decoded(new.get(node))
                self._compare(node, before, after)
                self.recorded.append(Recorded(_version(shard), owner, node, after))

    def _compare(self, node: str, before: Json | None, after: Json | None) -> None:
        same = before is not None and after is not None and before["nodeUID"] == after["nodeUID"]
        if same and before is not None and after is not None and after["seq"] < before["seq"]:
            self._faults.append(f"the ledger of {node} went back from {before} to {after}")

    def _task(self, kind: str, task: Json) -> None:
        if kind == "DELETED" or task.get("status", {}).get("observedGeneration", -1) < 0:
            return
        self.statuses += 1
        try:
            check_sum(task)
        except AssertionError as error:
            self._faults.append(f"{task['metadata']['name']}: the counts do not add up: {error}")
        self._tick(task)

    def _tick(self, task: Json) -> None:
        """The tick that nodes run for never goes back."""
        uid, status = task["metadata"]["uid"], task["status"]
        now = (status.get("observedSchedule") or {}, status.get("lastScheduleTime") or "")
        before = self._ticks.get(uid, now)
        if before[0] == now[0] and now[1] < before[1]:
            self._faults.append(f"{task['metadata']['name']}: after tick {before[1]} came {now[1]}")
        self._ticks[uid] = now

    async def _follow(
        self, url: str, labels: str | None, take: Callable[[str, Json], None], listed: asyncio.Event
    ) -> None:
        """Every event, through restarts of the API server."""
        version = ""
        while True:
            try:
                if not version:
                    found = await self._admin.request(
                        "GET", url, params={"labelSelector": labels} if labels else None
                    )
                    for item in found["items"]:
                        take("ADDED", item)
                    version = found["metadata"]["resourceVersion"]
                    listed.set()
                async with aclosing(self._admin.watch(url, version, labels=labels)) as events:
                    async for event in events:
                        version = event.object["metadata"]["resourceVersion"]
                        if event.type != "BOOKMARK":
                            take(event.type, event.object)
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.2)  # the API server restarts
            except ApiError as error:
                if error.status not in {410, 429, 500, 503, 504}:
                    raise
                version = "" if error.status == 410 else version
                await asyncio.sleep(0.2)


class Life:
    """One Pod from its creation to its end: resourceVersions, 0 = never; `_at` in seconds since the epoch."""

    def __init__(self, pod: Json, at: float) -> None:
        meta, marks = pod["metadata"], pod["metadata"]["annotations"]
        self.uid, self.name = str(meta["uid"]), str(meta["name"])
        self.place: Place = run_place(pod)
        self.task_uid = self.place[0]
        self.node = str(marks["caretaker.dev/node-name"])
        self.key = str(marks[RUN_KEY])
        self.seq = seq_of(pod)
        self.born = _version(pod)
        self.born_at = at
        self.bound = 0
        self.succeeded = 0
        self.ended = math.inf  # terminal, or being deleted
        self.died = 0
        self.died_at = 0.0
        self.counted_failure = False

    def __str__(self) -> str:
        versions = f"born {self.born}, succeeded {self.succeeded}, died {self.died}"
        return f"Pod {self.name} of {self.node} ({versions}, run {self.key}, uid {self.uid})"

    def take(self, kind: str, pod: Json, at: float) -> None:
        """One more state."""
        version = _version(pod)
        if kind == "DELETED" or not is_active(pod) or "deletionTimestamp" in pod["metadata"]:
            self.ended = min(self.ended, version)
        if pod["spec"].get("nodeName"):
            self.bound = self.bound or version
        status = pod.get("status", {})
        if kind == "DELETED":
            self.died, self.died_at = version, at
        elif not is_active(pod) and not self.succeeded:
            if status["phase"] == "Succeeded":
                self.succeeded = version
            else:
                self.counted_failure = not _is_disruption(status)


def _is_disruption(status: dict[str, Any]) -> bool:
    """Neither a disruption nor the kubelet's refusal counts as an attempt."""
    disrupted = any(
        c["type"] == "DisruptionTarget" and c["status"] == "True" for c in status.get("conditions", [])
    )
    return disrupted or not status.get("containerStatuses")


def _version(item: Json) -> int:
    return int(item["metadata"]["resourceVersion"])


def _decoded(text: str | None) -> Json | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        found: Json = json.loads(text)
        return found
    return None
