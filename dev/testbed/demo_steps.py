"""The steps of the demo: each applies something, waits until it is as promised, and tells what was seen.

Inputs: a Stage (cluster, operator, screen). A step that does not show what it promises raises StepError.
Nothing here may be staged beyond what stands in for hardware: pods that fail, nodes that join and reboot.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import yaml

from testbed import steer
from testbed.admin import Admin, Json, path
from testbed.demo_operator import DEMO_NAMESPACE as NAMESPACE
from testbed.demo_operator import Operator
from testbed.demo_screen import Screen
from testbed.nodes import node
from testbed.paths import CHECKOUT
from testbed.recorder import PodRecorder, node_of

TASK_LABEL: Final = "caretaker.dev/daemontask"
STEP_SECONDS: Final = 180.0
FAILING: Final = "node-07"
LATE: Final = "node-20"
REBOOTING: Final = "node-03"
DRAINED: Final = ("node-10", "node-11")
POOL: Final = {"demo": "drained"}
REPLICAS: Final = 3
LEAST: Final = 2


class StepError(Exception):
    """A step did not show what it promises."""


@dataclass(frozen=True)
class Result:
    """One row of the summary."""

    step: str
    seen: str
    seconds: float
    runs: int  # pods created: one per attempt of a run on a node
    writes: int  # requests the operator sent meanwhile to change anything


class Stage:
    """What every step uses."""

    def __init__(self, screen: Screen, admin: Admin, operator: Operator, record: PodRecorder) -> None:
        self.screen = screen
        self.admin = admin
        self.operator = operator
        self.record = record
        self.doubles = operator.doubles

    @classmethod
    @asynccontextmanager
    async def open(cls, screen: Screen, admin: Admin, operator: Operator) -> AsyncIterator[Self]:
        """With a recorder of every pod's and node's states."""
        async with PodRecorder(admin, NAMESPACE, labels=TASK_LABEL) as record:
            yield cls(screen, admin, operator, record)

    async def run(self, number: int, step: "Step") -> Result:
        """One step, with its time and its cost."""
        self.screen.title(f"{number}. {step.title}")
        started, writes, pods = time.monotonic(), await self.operator.writes(), self._pods_so_far()
        seen = await step.act(self)
        seconds = time.monotonic() - started
        await self.record.settle()
        runs = self._pods_so_far() - pods
        return Result(step.name, seen, seconds, runs, await self.operator.writes() - writes)

    def say(self, text: str) -> None:
        """One line of the step."""
        self.screen.line(f"  {text}")

    async def apply(self, task: Json) -> None:
        """kubectl apply."""
        await self.admin.apply(path("daemontasks", NAMESPACE, task["metadata"]["name"]), task)

    async def until(self, name: str, condition: Callable[[Json], bool]) -> Json:
        """The DaemonTask once its status fits; shows how far it is meanwhile."""

        def look(task: Json) -> bool:
            status = task.get("status", {})
            if status.get("observedGeneration") != task["metadata"]["generation"]:
                return False
            self.screen.progress(status["succeeded"], status["desired"], _counts(status))
            return condition(task)

        return await self.admin.wait_for(path("daemontasks", NAMESPACE, name), look, STEP_SECONDS)

    def pods(self, task: str, node_name: str | None = None) -> dict[str, Json]:
        """Every pod that ever was of a task (and a node), by uid, in its last known state."""
        return {
            seen.object["metadata"]["uid"]: seen.object
            for seen in self.record.pods
            if seen.object["metadata"]["labels"].get(TASK_LABEL) == task
            and node_name in (None, node_of(seen.object))
        }

    def _pods_so_far(self) -> int:
        return len({seen.object["metadata"]["uid"] for seen in self.record.pods})


@dataclass(frozen=True)
class Step:
    """One step: its row's name, its title, what it does; `act` returns what was seen."""

    name: str
    title: str
    act: Callable[[Stage], Awaitable[str]]


async def every_node(stage: Stage) -> str:
    """examples/hello.yaml."""
    await stage.apply(_example("hello"))
    task = await stage.until("hello", lambda t: _ready(t) and _all_succeeded(t))
    count, shards = task["status"]["succeeded"], task["status"]["ledger"]["shards"]
    stage.say(
        f"one pod on each of {count} nodes, to completion: Ready is True. What ran stands in a ledger"
        f" ({shards} ConfigMap), so nothing repeats when pods are cleaned up"
    )
    return f"{count} of {count} nodes succeeded"


async def failing_node(stage: Stage) -> str:
    """One node fails its retries, is mended and re-run alone."""
    await steer.steer_node(stage.admin, FAILING, steer.behaviour("fail", message="/ is 97% full"))
    await stage.apply(_disk_check())
    stage.say(
        f"the disk of {FAILING} is full, so the pod exits 1 there; the retry comes 10 s after a failure"
    )
    task = await stage.until(
        "disk-check", lambda t: t["status"]["failed"] == 1 and bool(_true_since(t, "Stalled"))
    )
    failed = task["status"]["failedNodes"][0]
    stage.say(
        f"failedNodes: {failed['nodeName']}, {failed['attempts']} attempts, exit code {failed['exitCode']}:"
        f" {failed['message']}. It is named, and held up none of the"
        f" other {task['status']['succeeded']} nodes"
    )
    await steer.release_node(stage.admin, FAILING)
    stage.say(f"{FAILING} is mended: caretaker rerun daemontask disk-check --nodes {FAILING}")
    await stage.operator.command("rerun", "daemontask", "disk-check", "--nodes", FAILING)
    task = await stage.until("disk-check", lambda t: _ready(t) and _all_succeeded(t))
    again = len(stage.pods("disk-check")) - task["status"]["desired"] - 1
    stage.say(
        f"{task['status']['succeeded']} of {task['status']['desired']} succeeded; only {FAILING} ran again"
    )
    if again != 1:
        raise StepError(f"{again} pods were created by the re-run of one node")
    return f"{FAILING} failed {failed['attempts']} times, shown; mended and re-run alone"


async def late_node(stage: Stage) -> str:
    """A node joins after the rollout is complete."""
    before = await stage.admin.get(path("daemontasks", NAMESPACE, "hello"))
    await stage.admin.create(path("nodes"), node(LATE))
    task = await stage.until(
        "hello", lambda t: _all_succeeded(t) and t["status"]["succeeded"] > before["status"]["succeeded"]
    )
    await stage.record.settle()
    delay = _milliseconds(_ready_to_pod(stage.record, LATE))
    stage.say(
        f"{LATE} joined: its pod was there {delay} after it was Ready. Nobody applied anything,"
        " and hello stayed Ready: nodes that an autoscaler adds are looked after"
    )
    if _true_since(task, "Ready") != _true_since(before, "Ready"):
        raise StepError("Ready changed while the node joined")
    return f"pod {delay} after {LATE} was Ready"


async def reboot(stage: Stage) -> str:
    """A reboot, however soon after a run, runs the node again, and no other."""
    name = "node-reboot-check"
    await stage.apply(_example(name))
    await stage.until(name, lambda t: _ready(t) and _all_succeeded(t))
    stage.say(f"{name} has rerunOn: [TemplateChange, NodeReboot] and has run on every node")
    boot = await steer.reboot(stage.admin, REBOOTING)
    await _recorded(stage, name, lambda entry: entry.get("bootID") == boot and entry["seq"] == 2)
    await stage.until(name, lambda t: _ready(t) and _all_succeeded(t))
    others = len(stage.pods(name)) - len(stage.pods(name, REBOOTING))
    runs = len(stage.pods(name, REBOOTING))
    stage.say(f"{REBOOTING} rebooted: it ran again ({runs} runs), the other {others} nodes did not")
    if runs != 2:
        raise StepError(f"{runs} runs on {REBOOTING}, not 2")
    return f"a reboot re-ran {REBOOTING} alone"


async def drain(stage: Stage) -> str:
    """Nodes are drained in turn; a workload keeps the replicas that its PodDisruptionBudget asks for."""
    admin = stage.admin
    for name in DRAINED:
        await admin.patch(path("nodes", name=name), {"metadata": {"labels": POOL}})
    await admin.apply(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/web", _web())
    budget = path("poddisruptionbudgets", NAMESPACE, "web")
    await admin.apply(budget, _budget())
    await admin.wait_for(
        budget, lambda found: found.get("status", {}).get("currentHealthy") == REPLICAS, STEP_SECONDS
    )
    spec = {"parallelism": 1, "drain": {}}
    watching = asyncio.create_task(_least_running(admin))
    try:
        await stage.apply(_task("patch-nodes", "true", POOL, **spec))
        await stage.until("patch-nodes", lambda t: _ready(t) and _all_succeeded(t))
        await admin.wait_for_all(
            path("nodes"),
            lambda nodes: not any(one["spec"].get("unschedulable") for one in nodes),
            STEP_SECONDS,
        )
    finally:
        watching.cancel()
    least = await watching
    stage.say(
        f"web has {REPLICAS} replicas on {len(DRAINED)} nodes and a PodDisruptionBudget of {LEAST};"
        " patch-nodes has drain: {} and parallelism: 1"
    )
    stage.say(
        "each node in turn was cordoned, emptied, run and uncordoned;"
        f" at least {least} replicas of web ran throughout"
    )
    if least < LEAST:
        raise StepError(f"{least} replicas of web ran at a time, not {LEAST}")
    return f"{len(DRAINED)} nodes drained in turn, {least} of {REPLICAS} replicas ran throughout"


async def _least_running(admin: Admin) -> int:
    """The fewest Pods of web that ran at a time, once cancelled."""
    least = REPLICAS
    with contextlib.suppress(asyncio.CancelledError):
        async for pods in admin.states(path("pods", NAMESPACE), labels="app=web"):
            running = sum(
                pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
                for pod in pods.values()
            )
            least = min(least, running)
    return least


STEPS: Final = (
    Step("every node", "A task runs once on every node (examples/hello.yaml)", every_node),
    Step("failing node", "A node fails, shows, is mended and re-run", failing_node),
    Step("late node", "A node joins later and runs at once", late_node),
    Step("reboot", "A node reboots and runs again (examples/node-reboot-check.yaml)", reboot),
    Step("drain", "Nodes are drained before they run, within a PodDisruptionBudget", drain),
)


def _example(name: str) -> Json:
    task: Json = yaml.safe_load((CHECKOUT / "examples" / f"{name}.yaml").read_text())
    return task


def _disk_check() -> Json:
    """One retry, so that the demo does not wait for three."""
    command = "test $(df -P / | awk 'NR == 2 {print $5}' | tr -d %) -lt 95"
    return _task("disk-check", command, backoffLimit=1)


def _task(name: str, command: str, nodes: Mapping[str, str] | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "busybox:1.37", "command": ["sh", "-c", command]}
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "DaemonTask",
        "metadata": {"name": name},
        "spec": {**spec, "template": {"spec": {"nodeSelector": nodes, "containers": [container]}}},
    }


def _web() -> Json:
    labels = {"app": "web"}
    pod = {
        "nodeSelector": POOL,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "nginx:1.29"}],
    }
    template = {"metadata": {"labels": labels, "annotations": steer.behaviour("run-on")}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
    }


def _budget() -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": LEAST, "selector": {"matchLabels": {"app": "web"}}},
    }


def _counts(status: Json) -> str:
    words = [f"{status[key]} {key}" for key in ("active", "failed", "pending", "blocked") if status[key]]
    return ", ".join(["nodes succeeded", *words])


def _all_succeeded(task: Json) -> bool:
    return bool(task["status"]["desired"]) and task["status"]["succeeded"] == task["status"]["desired"]


def _true_since(task: Json, kind: str) -> str:
    """When the condition became True; empty while it is not."""
    conditions = task["status"].get("conditions", [])
    found = (c["lastTransitionTime"] for c in conditions if c["type"] == kind and c["status"] == "True")
    return next(found, "")


def _ready(task: Json) -> bool:
    return bool(_true_since(task, "Ready"))


def _ready_to_pod(record: PodRecorder, name: str) -> float:
    """Seconds from the first sight of the node's Ready=True to the first sight of a pod for it."""
    ready = min(s.at for s in record.nodes if s.object["metadata"]["name"] == name and _is_ready(s.object))
    created = min(s.at for s in record.pods if node_of(s.object) == name)
    return created - ready


def _milliseconds(seconds: float) -> str:
    """Two watches tell of the node and of the pod: below some milliseconds their order means nothing."""
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.005 else "less than 5 ms"


def _is_ready(body: Json) -> bool:
    conditions: list[dict[str, Any]] = body["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def _recorded(stage: Stage, task: str, condition: Callable[[Json], bool]) -> None:
    """Return once the ledger entry of the rebooting node fits."""
    labels = f"caretaker.dev/ledger,{TASK_LABEL}={task}"

    def fits(shards: list[Json]) -> bool:
        entries = (s.get("data", {}).get(REBOOTING) for s in shards)
        return any(entry and condition(json.loads(entry)) for entry in entries)

    await stage.admin.wait_for_all(path("configmaps", NAMESPACE), fits, STEP_SECONDS, labels=labels)
