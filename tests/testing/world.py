"""A test's own world: a namespace, nodes with a kubelet by hand, and DaemonTasks in it.

Inputs: the shared cluster and an operator that runs somewhere. Waiting is always for a state of an object,
with a bound; nothing here sleeps. It must keep to its namespace and its nodes, since tests share both the
API server and the operator.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from testbed.admin import Admin, Json, Jsons, path
from testing.cluster import Nodes
from testing.customresource import TIMEOUT, condition, stands
from testing.kubelet import BY_HAND, Kubelet

TASK_LABEL: Final = "caretaker.dev/daemontask"
COUNTS: Final = ("succeeded", "failed", "active", "pending", "blocked")

Spec = dict[str, Any]


def blocked(task: Mapping[str, Any]) -> dict[str, str]:
    """Node name -> why nothing starts there, of those that status lists."""
    return {one["nodeName"]: one["reason"] for one in task["status"]["blockedNodes"]}


def node_of(pod: Mapping[str, Any]) -> str:
    """The node that a run is for."""
    return str(pod["metadata"]["annotations"]["caretaker.dev/node-name"])


class Task:
    """One DaemonTask, as a user with kubectl meets it."""

    def __init__(self, admin: Admin, namespace: str, name: str) -> None:
        self._admin = admin
        self.namespace = namespace
        self.name = name
        self.url = path("daemontasks", namespace, name)

    async def get(self) -> Json:
        """As it stands."""
        return await self._admin.get(self.url)

    async def uid(self) -> str:
        """metadata.uid."""
        return str((await self.get())["metadata"]["uid"])

    async def edit(self, **spec: Any) -> Json:
        """Merge-patch the spec."""
        return await self._admin.patch(self.url, {"spec": spec})

    async def put_template(self, template: Json) -> Json:
        """Replace the whole template."""
        step = {"op": "replace", "path": "/spec/template", "value": template}
        return await self._admin.patch(self.url, [step], "json")

    async def annotate(self, **marks: str | None) -> Json:
        """Set (None: remove) annotations under caretaker.dev/; `_` stands for `-`."""
        wanted = {f"caretaker.dev/{key.replace('_', '-')}": value for key, value in marks.items()}
        return await self._admin.patch(self.url, {"metadata": {"annotations": wanted}})

    async def touch(self) -> Json:
        """An edit that means nothing: the operator hears of the task."""
        wanted = {"example.com/touched": str(time.time())}
        return await self._admin.patch(self.url, {"metadata": {"annotations": wanted}})

    async def delete(self, propagation: str = "Background") -> None:
        """As kubectl delete does."""
        await self._admin.delete(self.url, propagation=propagation)

    async def when(self, wanted: Callable[[Json], bool], timeout: float = TIMEOUT) -> Json:
        """The task once `wanted` holds for it and its status is about the spec as it is now."""

        def holds(task: Json) -> bool:
            seen = (task.get("status") or {}).get("observedGeneration")
            return seen == task["metadata"]["generation"] and wanted(task)

        found = await self._admin.wait_for(self.url, holds, timeout)
        check_sum(found)
        return found

    async def counts(self, timeout: float = TIMEOUT, **wanted: int) -> Json:
        """The task once status has these counts, such as `succeeded=5`."""
        return await self.when(lambda t: all(t["status"][k] == n for k, n in wanted.items()), timeout)

    async def condition(
        self, kind: str, status: str = "True", reason: str | None = None, timeout: float = TIMEOUT
    ) -> Json:
        """The condition once it has this status (and reason)."""
        return condition(await self.when(lambda t: stands(t, kind, status, reason), timeout), kind)

    async def done(self, succeeded: int, timeout: float = TIMEOUT) -> Json:
        """The task once Ready=True and so many nodes have succeeded, nothing being left to do.

        The ledger has an entry of each of them by then, of a second run perhaps still the first one's: status
        counts what Pods tell, and the ledger's next write may be put off for a moment.
        """

        def is_done(task: Json) -> bool:
            status = task["status"]
            left = status["active"] or status["pending"]
            recorded = status["ledger"]["recorded"] >= status["succeeded"] + status["failed"]
            return stands(task, "Ready") and status["succeeded"] == succeeded and not left and recorded

        return await self.when(is_done, timeout)

    async def pods(self) -> Jsons:
        """Its Pods, oldest first."""
        found = await self._admin.list(path("pods", self.namespace), labels=f"{TASK_LABEL}={self.name}")
        return sorted(found, key=lambda pod: (node_of(pod), seq_of(pod)))

    async def pods_when(self, wanted: Callable[[Jsons], bool], timeout: float = TIMEOUT) -> Jsons:
        """Its Pods once `wanted` holds for them."""
        return await self._admin.wait_for_all(
            path("pods", self.namespace), wanted, timeout, labels=f"{TASK_LABEL}={self.name}"
        )

    async def running(self, count: int = 1) -> Jsons:
        """Its Pods once so many of them run; status calls a Pod active as soon as it is made."""

        def run(pods: Jsons) -> bool:
            return [pod["status"]["phase"] for pod in pods].count("Running") == count

        return await self.pods_when(run)

    async def shards(self) -> Jsons:
        """The ConfigMaps of its ledger."""
        labels = f"caretaker.dev/ledger,{TASK_LABEL}={self.name}"
        return await self._admin.list(path("configmaps", self.namespace), labels=labels)

    async def ledger(self) -> dict[str, Json]:
        """Node name -> ledger entry."""
        found = [item for shard in await self.shards() for item in (shard.get("data") or {}).items()]
        return {node: json.loads(text) for node, text in found}

    async def ledger_when(
        self, wanted: Callable[[dict[str, Json]], bool], timeout: float = TIMEOUT
    ) -> dict[str, Json]:
        """The ledger once `wanted` holds for it."""
        found: dict[str, Json] = {}

        def holds(shards: Jsons) -> bool:
            found.clear()
            for shard in shards:
                found.update({k: json.loads(v) for k, v in (shard.get("data") or {}).items()})
            return wanted(found)

        labels = f"caretaker.dev/ledger,{TASK_LABEL}={self.name}"
        await self._admin.wait_for_all(path("configmaps", self.namespace), holds, timeout, labels=labels)
        return found

    async def events(self, reason: str | None = None) -> Jsons:
        """The Events about it."""
        uid = await self.uid()
        found = await self._admin.list(path("events", self.namespace))
        mine = [event for event in found if event["involvedObject"].get("uid") == uid]
        return [event for event in mine if reason in (None, event["reason"])]

    async def event(self, reason: str, timeout: float = TIMEOUT, count: int = 1) -> Json:
        """The first Event of that reason, once there are so many."""
        found = await self._admin.wait_for_all(
            path("events", self.namespace),
            lambda events: sum(e["reason"] == reason for e in events) >= count,
            timeout,
            fields=f"involvedObject.name={self.name},reason={reason}",
        )
        return found[0]


def seq_of(pod: Mapping[str, Any]) -> int:
    """How manieth Pod of its node this is."""
    return int(pod["metadata"]["annotations"]["caretaker.dev/seq"])


def check_sum(task: Mapping[str, Any]) -> None:
    """The invariant of every status."""
    status = task["status"]
    assert status["desired"] == sum(status[name] for name in COUNTS), status


async def allowed(admin: Admin, user: str, verb: str, resource: str, namespace: str | None = None) -> bool:
    """Whether the API server lets the user do so; it takes it a moment to take note of a role."""
    asked = path(resource, namespace)
    group = asked.removeprefix("/apis/").split("/")[0] if asked.startswith("/apis/") else ""
    review = {
        "kind": "SubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {
            "user": user,
            "resourceAttributes": {"group": group, "resource": resource, "verb": verb}
            | ({"namespace": namespace} if namespace else {}),
        },
    }
    answer = await admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


class World:
    """See the module."""

    def __init__(self, admin: Admin, namespace: str, nodes: Nodes, kubelet: Kubelet) -> None:
        self.admin = admin
        self.namespace = namespace
        self.nodes = nodes
        self.kubelet = kubelet

    @property
    def selector(self) -> dict[str, str]:
        """The nodeSelector of this test's nodes."""
        return self.nodes.selector

    async def join(self, count: int = 1, **how: Any) -> list[str]:
        """Nodes of this test, with our kubelet; they are Ready unless `ready=False`."""
        how["annotations"] = {**BY_HAND, **(how.get("annotations") or {})}
        wait = how.pop("wait", True)
        names = await self.nodes.add(count, wait=False, **how)
        self.kubelet.serve(names)
        if wait and how.get("ready", True):
            await self.nodes.wait_ready(names)
        return names

    def template(self, *, labels: Mapping[str, str] | None = None, **pod: Any) -> Json:
        """A pod template for this test's nodes."""
        spec = {"nodeSelector": self.selector, "containers": [{"name": "main", "image": "test:1"}], **pod}
        return {"metadata": {"labels": dict(labels)}, "spec": spec} if labels else {"spec": spec}

    async def task(
        self, name: str = "t", *, annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> Task:
        """Create a DaemonTask; without a template it gets template()."""
        await self.create(name, {"template": self.template(), **spec}, annotations)
        return self.handle(name)

    def handle(self, name: str) -> Task:
        """The DaemonTask of that name, whether it exists or not."""
        return Task(self.admin, self.namespace, name)

    async def create(self, name: str, spec: Spec, annotations: Mapping[str, str] | None = None) -> Json:
        """POST a DaemonTask; ApiError when it is refused."""
        body = {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "DaemonTask",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": spec,
        }
        return await self.admin.create(path("daemontasks", self.namespace), body)

    async def node(self, name: str) -> Json:
        """A Node."""
        return await self.admin.get(path("nodes", name=name))

    async def patch_node(self, name: str, body: Json) -> Json:
        """Merge-patch a Node."""
        return await self.admin.patch(path("nodes", name=name), body)

    async def cordon(self, name: str, *, on: bool = True) -> None:
        """kubectl cordon, uncordon."""
        await self.patch_node(name, {"spec": {"unschedulable": on}})

    async def taint(self, name: str, effect: str | None, key: str = "test") -> None:
        """Add a taint, or (None) remove it."""
        taints = [t for t in (await self.node(name))["spec"].get("taints") or [] if t["key"] != key]
        if effect is not None:
            taints.append({"key": key, "effect": effect})
        await self.patch_node(name, {"spec": {"taints": taints}})

    async def shrink(self, name: str, **allocatable: str) -> None:
        """Leave the node one CPU (or what is given, such as `pods="1"`), as the scheduler sees it."""
        body = {"status": {"allocatable": allocatable or {"cpu": "1"}}}
        await self.admin.patch(path("nodes", name=name, sub="status"), body)

    async def delete_pods(self, pods: Iterable[Json], *, grace: int | None = None) -> None:
        """Delete Pods as a person does."""
        names = [pod["metadata"]["name"] for pod in pods]
        await asyncio.gather(
            *(self.admin.delete(path("pods", self.namespace, name), grace=grace) for name in names)
        )

    async def until(self, wanted: Callable[[], Any]) -> None:
        """Return once `wanted` (may be async) holds for what no watch shows, such as the clock."""
        async with asyncio.timeout(TIMEOUT):
            while not await _asked(wanted):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.05)

    async def gone(self, pods: Iterable[Json]) -> None:
        """Return once these Pods do not exist."""
        for pod in pods:
            await self.admin.wait_gone(path("pods", self.namespace, pod["metadata"]["name"]))


def in_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[object], None]:
    """A callback for the proxy's thread that has `work` done in this test's loop and waits for it."""
    loop = asyncio.get_running_loop()

    def call(_: object) -> None:
        asyncio.run_coroutine_threadsafe(work(), loop).result(TIMEOUT)

    return call


async def holds_for(seconds: float, check: Callable[[], Any]) -> None:
    """Assert that what must not happen does not: `check` (may be async) is true all the time."""
    until = time.monotonic() + seconds
    while True:
        assert await _asked(check)
        if time.monotonic() >= until:
            return
        await asyncio.sleep(0.1)


async def _asked(check: Callable[[], Any]) -> bool:
    found = check()
    return bool(await found if asyncio.iscoroutine(found) else found)
