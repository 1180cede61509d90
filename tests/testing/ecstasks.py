"""DaemonTasks with an ECS target at work: real API server and operator process, doubles of ECS and SQS.

Inputs: the fixtures `cluster`, `aws`, `ecs`. Waits of the operator are short: a second of merging is 50 ms.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from awsdoubles.clients import REGION
from awsdoubles.ecs.control import Control, arns, send
from awsdoubles.envelopes import Queue
from testbed.admin import Admin, Json, path
from testing.aws import Aws
from testing.customresource import TIMEOUT, Resource

PLURAL: Final = "daemontasks"
TIME_SCALE: Final = 0.05
SERVICE: Final = "agent"
NEVER: Final = 86400  # spec.ecs.resyncSeconds: no resync during a test
SOON: Final = 30  # takes 1.5 s
LOOK_SECONDS: Final = 0.02


class Task(Resource):
    """One task."""

    def __init__(self, admin: Admin, namespace: str, name: str) -> None:
        super().__init__(admin, path(PLURAL, namespace, name))
        self.name = name

    async def clusters(self, wanted: Mapping[str, int], timeout: float = TIMEOUT) -> Json:
        """The task once its status has these clusters with this many container instances each, all kept."""

        def kept(found: Json) -> bool:
            seen = {one["cluster"]: one for one in found["status"].get("ecs", ())}
            counts = {name: one.get("registeredContainerInstances") for name, one in seen.items()}
            even = all(one.get("desiredCount") == counts[name] for name, one in seen.items())
            return counts == dict(wanted) and even

        return await self.when(kept, timeout)


class EcsTasks:
    """What a test has: `control` of its ECS double, a queue, tasks that lead the operator to both."""

    def __init__(
        self,
        admin: Admin,
        namespace: str,
        aws: Aws,
        control: Control,
        endpoints: Mapping[str, str],
        prefix: str = "",
    ) -> None:
        self.admin = admin
        self.namespace = namespace
        self.aws = aws
        self.control = control
        self.endpoints = dict(endpoints)
        self.made: list[Task] = []
        self._prefix = prefix
        self._queue: Queue | None = None

    @property
    def queue(self) -> Queue:
        """The test's own, without a dead-letter queue."""
        if self._queue is None:
            self._queue = self.aws.queue(max_receives=None)
        return self._queue

    def cluster(
        self, name: str = "prod", instances: int = 0, *, region: str = REGION, **service: Any
    ) -> list[str]:
        """A cluster with so many container instances and the service; their ARNs. No events are sent."""
        self.control.add_cluster(name, region=region)
        self.control.put_service(name, SERVICE, region=region, **service)
        return arns(self.control.register(name, instances, region=region)) if instances else []

    def body(self, name: str = "t", /, *, suspend: bool = False, **ecs: Any) -> Json:
        """What create() sends."""
        aws = {"region": REGION, "endpointURLs": self.endpoints, **ecs.pop("aws", {})}
        given = {"service": SERVICE, "resyncSeconds": NEVER, **ecs}
        if "events" not in given:
            given["events"] = {"sqsQueueURL": self.queue.url}
        return {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "DaemonTask",
            "metadata": {"name": f"{self._prefix}{name}"},
            "spec": {"suspend": suspend, "ecs": {"aws": aws, **given}},
        }

    async def create(self, name: str = "t", /, **ecs: Any) -> Task:
        """A task."""
        body = self.body(name, **ecs)
        await self.admin.create(path(PLURAL, self.namespace), body)
        self.made.append(Task(self.admin, self.namespace, body["metadata"]["name"]))
        return self.made[-1]

    async def send(self, events: Sequence[Json]) -> None:
        """Deliver events."""
        await asyncio.to_thread(send, self.aws.sqs, self.queue.url, events)

    async def drained(self) -> None:
        """Return once every message was received and deleted."""
        await self.until(lambda: self.aws.depth(self.queue.url) == (0, 0))

    async def until(self, wanted: Callable[[], bool], timeout: float = TIMEOUT) -> None:
        """Return once it holds."""
        deadline = time.monotonic() + timeout
        while not await asyncio.to_thread(wanted):
            assert time.monotonic() < deadline, f"not within {timeout:g} s"
            await asyncio.sleep(LOOK_SECONDS)

    def operations(self) -> list[str]:
        """The names of the calls to ECS since the last time they were cleared."""
        return [call["operation"] for call in self.control.calls()]

    async def called(self, count: int) -> None:
        """Return once so many calls were made since the last time they were cleared."""
        await self.until(lambda: len(self.operations()) >= count)

    def desired(self, cluster: str = "prod", *, region: str = REGION) -> int:
        """What the service's desired count is in ECS."""
        return int(self.control.service(cluster, SERVICE, region=region)["desired"])

    async def event(self, task: Task, reason: str, message: str = "") -> None:
        """Return once there is an Event about the task with this reason, and this in its message."""

        def told(events: Sequence[Json]) -> bool:
            mine = [e for e in events if e["involvedObject"]["name"] == task.name]
            return any(e["reason"] == reason and message in e["message"] for e in mine)

        await self.admin.wait_for_all(path("events", self.namespace), told, TIMEOUT)

    async def clear(self) -> None:
        """Delete what was created."""
        await asyncio.gather(*(task.delete() for task in self.made))
