"""A kubelet by hand: runs the Pods of a test's nodes exactly as the test says.

Inputs: nodes that kwok leaves alone (annotation BY_HAND) and a namespace. Without a script every Pod runs
and succeeds at once. It writes what kubelets write (Pod status, node status, node Leases, the final delete
of a terminating Pod) and must not touch anything else.
"""

import asyncio
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from testbed.admin import Admin, ApiError, Json, path
from testbed.nodes import conditions

BY_HAND: Final = {"kwok.x-k8s.io/node": "by-hand"}
SEEN_SECONDS: Final = 20.0
TERMINATION_BYTES: Final = 4096  # a termination message is cut there
HEARTBEAT_SECONDS: Final = 10.0  # a fifth of the node lifecycle controller's grace period


@dataclass(frozen=True)
class Outcome:
    """How a Pod goes on its node, as the kubelet would report it."""

    phase: str = "Succeeded"
    exit_code: int = 0
    reason: str = ""  # of the container: Completed, Error, OOMKilled; waiting: ImagePullBackOff
    message: str = ""
    pod_reason: str = ""  # of the Pod: Evicted, OutOfcpu, DeadlineExceeded
    condition: str = ""  # a further Pod condition that is True
    containers: bool = True  # whether the kubelet got as far as having containers
    restarts: int = 0  # of each container, which ended like this before
    messages: Mapping[str, str] = field(
        default_factory=dict
    )  # termination messages by container, over `message`


CRASH_LOOP: Final = "CrashLoopBackOff"
SUCCEED: Final = Outcome(reason="Completed")
HOLD: Final = Outcome("Running")  # runs until finish()
IMAGE_PULL: Final = Outcome("Pending", reason="ImagePullBackOff", message="Back-off pulling image")
OOM: Final = Outcome("Failed", 137, "OOMKilled")
EVICTED: Final = Outcome(
    "Failed", 137, "Error", "The node was low on resource: memory.", "Evicted", "DisruptionTarget"
)
DEADLINE: Final = Outcome(
    "Failed",
    143,
    "Error",
    "Pod was active on the node longer than the specified deadline",
    pod_reason="DeadlineExceeded",
)


def fail(exit_code: int = 1, message: str = "") -> Outcome:
    """A container that exits with this code."""
    return Outcome("Failed", exit_code, "Error", message)


def crash_loop(restarts: int, exit_code: int = 1) -> Outcome:
    """restartPolicy OnFailure: containers that failed once more than they were restarted, and wait."""
    return Outcome("Running", exit_code, CRASH_LOOP, restarts=restarts)


def measured(*texts: str, **messages: str) -> Outcome:
    """A run that succeeds and leaves this termination message, or one for each container that is named."""
    return Outcome(reason="Completed", message="".join(texts), messages=messages)


def rejected(reason: str = "OutOfcpu") -> Outcome:
    """Admission by the kubelet refused the Pod: no container ever existed."""
    message = "Pod was rejected: Node didn't have enough resource"
    return Outcome("Failed", message=message, pod_reason=reason, containers=False)


@dataclass
class Kubelet:
    """See the module. Use it as an async context manager.

    default   what happens to a Pod without a script
    silent    nodes whose kubelet does not answer: nothing happens there, Pods stay Terminating
    ahead     node name -> by how many seconds its clock is ahead
    ran       (node name, Pod name) of every Pod that was begun, oldest first
    """

    admin: Admin
    namespace: str
    default: Outcome = SUCCEED
    silent: set[str] = field(default_factory=set)
    ahead: dict[str, float] = field(default_factory=dict)
    ran: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names: set[str] = set()
        self._scripts: dict[str, list[Outcome]] = {}
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._ending: set[str] = set()
        self._saying: dict[str, asyncio.Lock] = {}
        self._seen = asyncio.Condition()
        self._pods: dict[str, Json] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._faults: list[BaseException] = []

    async def __aenter__(self) -> Self:
        self._spawn(self._follow())
        self._spawn(self._heartbeat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        if self._faults and error is None:
            raise self._faults[0]

    # ------------------------------------------------------------ for the test

    def serve(self, names: Iterable[str]) -> None:
        """Be the kubelet of these nodes."""
        self._names.update(names)
        self._look()

    def script(self, node: str, *outcomes: Outcome) -> None:
        """The next Pods of the node go like this, one after the other; then as `default` says."""
        self._scripts[node] = list(outcomes)

    async def finish(self, *nodes: str, outcome: Outcome = SUCCEED) -> None:
        """End what these nodes run, those with a silent kubelet apart.

        Who names a node knows of its Pod already; the kubelet's own watch may be a moment behind.
        """
        spoken = set(nodes) - self.silent
        async with asyncio.timeout(SEEN_SECONDS), self._seen:
            await self._seen.wait_for(lambda: spoken <= {_node_of(pod) for pod in self._live()})
        await self._end(spoken, outcome)

    async def finish_all(self, outcome: Outcome = SUCCEED) -> None:
        """End what any node runs, and from now on whatever comes."""
        self.default = outcome
        await self._end(self._names - self.silent, outcome)

    def answer(self, node: str) -> None:
        """A silent kubelet is back."""
        self.silent.discard(node)
        self._look()

    async def ready(self, node: str, status: str = "True") -> None:
        """Set the node's Ready condition: True, False or Unknown."""
        now = _now()
        changed = [{**c, "lastTransitionTime": now, "lastHeartbeatTime": now} for c in conditions(status)]
        await self._patch_node(node, {"conditions": changed})

    async def reboot(self, node: str) -> str:
        """A new bootID, as after a reboot too quick to show in the Ready condition; the new one."""
        boot_id = str(uuid.uuid4())
        await self._patch_node(node, {"nodeInfo": {"bootID": boot_id}})
        return boot_id

    # ------------------------------------------------------------ work

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._faults.append(task.exception() or RuntimeError())

    async def _follow(self) -> None:
        async with aclosing(self.admin.states(path("pods", self.namespace))) as states:
            async for pods in states:
                self._pods = pods
                self._look()
                async with self._seen:
                    self._seen.notify_all()

    def _live(self) -> list[Json]:
        return [pod for uid, pod in self._pods.items() if uid not in self._ended]

    async def _end(self, nodes: set[str], outcome: Outcome) -> None:
        found = [pod for pod in self._live() if _node_of(pod) in nodes]
        await asyncio.gather(*(self._report(pod, outcome) for pod in found))

    def _look(self) -> None:
        for uid, pod in self._pods.items():
            node = _node_of(pod)
            if node not in self._names or node in self.silent:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                if uid not in self._ending:
                    self._ending.add(uid)
                    self._spawn(self._remove(pod))
            elif uid not in self._begun:
                self._begun.add(uid)
                self.ran.append((node, pod["metadata"]["name"]))
                script = self._scripts.get(node)
                self._spawn(self._run(pod, script.pop(0) if script else self.default))

    async def _run(self, pod: Json, outcome: Outcome) -> None:
        if outcome.containers and outcome.phase != "Pending":
            await self._report(pod, HOLD)
        if outcome is not HOLD:
            await self._report(pod, outcome)

    async def _report(self, pod: Json, outcome: Outcome) -> None:
        """Once a Pod has ended, nothing more is said of it."""
        meta = pod["metadata"]
        async with self._saying.setdefault(meta["uid"], asyncio.Lock()):
            if meta["uid"] in self._ended:
                return
            if outcome.phase in ("Succeeded", "Failed"):
                self._ended.add(meta["uid"])
            now = _now(self.ahead.get(_node_of(pod), 0.0))
            body = {"metadata": {"uid": meta["uid"]}, "status": _pod_status(pod, outcome, now)}
            with _unless_gone():
                await self.admin.patch(
                    path("pods", self.namespace, meta["name"], "status"), body, "strategic"
                )

    async def _remove(self, pod: Json) -> None:
        """The last words about a Pod that was deleted: its containers are killed, then it may go."""
        if pod["metadata"]["uid"] in self._begun:
            await self._report(pod, Outcome("Failed", 137, "Error"))
        await self.admin.delete(path("pods", self.namespace, pod["metadata"]["name"]), grace=0)

    async def _patch_node(self, node: str, status: Mapping[str, Any]) -> None:
        await self.admin.patch(path("nodes", name=node, sub="status"), {"status": status}, "strategic")

    async def _heartbeat(self) -> None:
        for beat in itertools.count():
            await asyncio.gather(*(self._renew(node, beat) for node in sorted(self._names - self.silent)))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _renew(self, node: str, beat: int) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now}
        body = {"metadata": {"name": node, "namespace": "kube-node-lease"}, "spec": spec}
        url = path("leases", "kube-node-lease")
        with _unless_gone():
            if beat and await self.admin.find(f"{url}/{node}") is not None:
                await self.admin.patch(f"{url}/{node}", {"spec": spec})
            else:
                await self.admin.create(url, body)


@contextmanager
def _unless_gone() -> Iterator[None]:
    """What is written about may be gone, replaced or made by another by now; kubelets shrug at it."""
    try:
        yield
    except ApiError as error:
        if error.status not in (404, 409):
            raise


def _node_of(pod: Json) -> str:
    """Empty: not scheduled yet."""
    return str(pod["spec"].get("nodeName", ""))


def _now(ahead: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _pod_status(pod: Json, outcome: Outcome, now: str) -> Json:
    running = outcome.phase == "Running"
    ready = {"type": "Ready", "status": "True" if running else "False", "lastTransitionTime": now}
    status: Json = {"phase": outcome.phase, "startTime": now, "conditions": [ready]}
    if outcome.condition:
        status["conditions"].append(
            {"type": outcome.condition, "status": "True", "reason": outcome.pod_reason or "Test"}
            | {"lastTransitionTime": now}
        )
    if outcome.pod_reason:
        status |= {"reason": outcome.pod_reason, "message": outcome.message}
    if outcome.containers:
        # Sorted, as the kubelet's are.
        names = sorted(container["name"] for container in pod["spec"]["containers"])
        status["containerStatuses"] = [
            _container(name, _state(outcome, now, name), ready=running) | _restarted(outcome, now)
            for name in names
        ]
    return status


def _state(outcome: Outcome, now: str, container: str) -> Json:
    if outcome.phase == "Running" and outcome.reason == CRASH_LOOP:
        return {"waiting": {"reason": CRASH_LOOP}}
    if outcome.phase == "Running":
        return {"running": {"startedAt": now}}
    if outcome.phase == "Pending":
        return {"waiting": {"reason": outcome.reason, "message": outcome.message}}
    end: Json = {"exitCode": outcome.exit_code, "reason": outcome.reason or "Error", "finishedAt": now}
    message = outcome.messages.get(container, "" if outcome.pod_reason else outcome.message)
    if message:
        end["message"] = message.encode()[:TERMINATION_BYTES].decode(errors="ignore")
    return {"terminated": end}


def _restarted(outcome: Outcome, now: str) -> Json:
    """How the containers ended that were restarted, or are about to be."""
    if outcome.reason != CRASH_LOOP:
        return {}
    end = {"exitCode": outcome.exit_code, "reason": "Error", "finishedAt": now}
    return {"restartCount": outcome.restarts, "lastState": {"terminated": end}}


def _container(name: str, state: Json, *, ready: bool) -> Json:
    return {"name": name, "image": "test", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
