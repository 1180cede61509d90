"""A rollout, a refresh and an enforcement that are under way on fake nodes while something is done to the
operator; and what of them was repeated, forgotten or lost.

Inputs: the doubles of AWS, and an operator that works with them in real time. Judged is what others see: all
states of all Pods, what a reader of the share sees, each call that EC2 was sent.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final

from awsdoubles.ec2.control import Control as Ec2Control
from awsdoubles.envelopes import Envelope
from awsdoubles.gateway.control import Control as GatewayControl
from caretaker.api.names import LABEL_TASK
from testbed.admin import Admin, path
from testbed.recorder import PodRecorder
from testbed.steer import behaviour
from testing.aws import Aws
from testing.cluster import Nodes
from testing.customresource import Resource, stands
from testing.imds import MODIFY, SLOW, TAGS
from testing.nodetasks import task
from testing.refreshing import Refreshing
from testing.release import NAMESPACE

AT_ONCE: Final = 8
RUN_SECONDS: Final = 3.0
# So many are done before anything is done to the operator.
BEGUN: Final = 12
WRITE_SECONDS: Final = 0.2
# Each event is of a folder of its own, which the share shows already: no other event makes up for a lost one.
FOLDERS: Final = 200
END_SECONDS: Final = 300.0
# A share is refreshed once a minute at most.
FRESH_SECONDS: Final = 150.0
# Nothing of the release may be put on them: their kubelets are fakes.
TAINTS: Final = [{"key": "fake", "effect": "NoSchedule"}]


class Fleet:
    """Fake nodes with an instance of the EC2 double behind each, whose hop limit is 1 at first."""

    def __init__(self, admin: Admin, control: Ec2Control) -> None:
        self.nodes = Nodes(admin, "fleet")
        self.control = control
        self.instances: list[str] = []
        self._admin = admin

    async def add(self, count: int) -> None:
        """Nodes that can take pods."""
        names = await self.nodes.add(count, taints=TAINTS)
        made = await asyncio.to_thread(self.control.add_nodes, count, tags=TAGS, options=SLOW)
        self.instances += [str(one["id"]) for one in made]
        patches = [{"spec": {"providerID": one["providerID"]}} for one in made]
        await asyncio.gather(
            *(
                self._admin.patch(path("nodes", name=name), body)
                for name, body in zip(names, patches, strict=True)
            )
        )

    async def gone(self) -> None:
        """No nodes any more."""
        await self.nodes.delete(*self.nodes.names)


class UnderWay:
    """The work, from its beginning (`begun`) to its end (`judged`); `name` is that of its resources."""

    def __init__(self, name: str, admin: Admin, fleet: Fleet, aws: Aws, gateway: GatewayControl) -> None:
        self.name = name
        self.written: list[str] = []
        self.pause = 0.0  # the longest time in which the rollout started nothing
        self.task = Resource(admin, path("daemontasks", "default", name))
        self.policy = Resource(admin, path("imdspolicies", name=name))
        self._admin = admin
        self._fleet = fleet
        self._aws = aws
        self._refreshing = Refreshing(admin, NAMESPACE, aws, gateway, scale=1.0)
        self._bucket = ""
        self._share = ""
        self._record: PodRecorder

    @asynccontextmanager
    async def begun(self, hop_limit: int) -> AsyncIterator[None]:
        """In the block all three are under way; at its end they have come to theirs."""
        await self._begin_refresh()
        self._fleet.control.clear_calls()
        async with PodRecorder(self._admin, "default", labels=f"{LABEL_TASK}={self.name}") as self._record:
            await self._admin.create(path("imdspolicies"), self._policy(hop_limit))
            await self._admin.create(path("daemontasks", "default"), self._task())
            await self.task.when(lambda found: found["status"].get("succeeded", 0) >= BEGUN)
            await self._refreshing.until(lambda: len(self.changes()) >= BEGUN, "instances are changed")
            writing = asyncio.create_task(self._write())
            try:
                yield
            finally:
                writing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await writing
            await self._end()

    async def goes_on(self) -> bool:
        """Whether rollout and enforcement have still something to do."""
        ran = (await self.task.get())["status"].get("succeeded", 0)
        return bool(ran < len(self._fleet.nodes.names)) and len(self.changes()) < len(self._fleet.instances)

    def changes(self) -> Counter[str]:
        """Instance -> how often EC2 was told to change it, and did."""
        calls = [call for call in self._fleet.control.calls(MODIFY) if not call["params"].get("DryRun")]
        return Counter(str(call["params"]["InstanceId"]) for call in calls if call["status"] == 200)

    def judged(self, hop_limit: int) -> dict[str, int]:
        """What must not be, and how often it was."""
        ran = self._record.runs_per_node()
        changed = self.changes()
        found = self._fleet.control.instances(self._fleet.instances)
        kept = [one for one in found if one["inForce"]["HttpPutResponseHopLimit"] != hop_limit]
        return {
            "runs repeated": sum(count - 1 for count in ran.values()),
            "nodes forgotten": len(set(self._fleet.nodes.names) - set(ran)),
            "runs beyond parallelism": max(0, self._record.max_active() - AT_ONCE),
            "events lost": len(self._refreshing.control.differences(self._share)),
            "changes repeated": sum(count - 1 for count in changed.values()),
            "instances forgotten": len(kept),
        }

    async def clear(self) -> None:
        """Only the task stays."""
        await self.policy.delete()
        await self._refreshing.clear()

    async def _begin_refresh(self) -> None:
        self._bucket = await asyncio.to_thread(
            self._aws.bucket, *(f"{number:03d}/old.csv" for number in range(FOLDERS))
        )
        queue = await asyncio.to_thread(self._aws.queue)
        await asyncio.to_thread(self._aws.wiring.connect, self._bucket, queue, Envelope.S3)
        self._share = self._refreshing.share(self._bucket)
        made = await self._refreshing.create(queue, name=self.name)
        await made.condition("Ready")
        await self._put()

    async def _write(self) -> None:
        while True:
            await self._put()
            await asyncio.sleep(WRITE_SECONDS)

    async def _put(self) -> None:
        number = len(self.written)
        key = f"{number % FOLDERS:03d}/new-{number}.csv"
        await asyncio.to_thread(self._aws.put, self._bucket, key)
        self.written.append(key)

    async def _end(self) -> None:
        """What does not come to its end in time is judged as it is."""
        with contextlib.suppress(TimeoutError):
            await self.task.when(lambda found: stands(found, "Ready"), END_SECONDS)
        with contextlib.suppress(TimeoutError):
            await self.policy.when(lambda found: stands(found, "Ready", "True", "Enforced"), END_SECONDS)
        with contextlib.suppress(AssertionError):
            await asyncio.to_thread(self._refreshing.control.wait_fresh, self._share, FRESH_SECONDS)
        await self._record.settle()
        starts = sorted(self._record.first_seen().values())
        self.pause = max((later - one for one, later in pairwise(starts)), default=0.0)

    def _task(self) -> dict[str, Any]:
        pod = {"nodeSelector": self._fleet.nodes.selector, "tolerations": [{"operator": "Exists"}]}
        body = task(self.name, parallelism=AT_ONCE, pod=pod)
        body["spec"]["template"]["metadata"] = {"annotations": behaviour(run_seconds=RUN_SECONDS)}
        return body

    def _policy(self, hop_limit: int) -> dict[str, Any]:
        return {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "IMDSPolicy",
            "metadata": {"name": self.name},
            "spec": {
                "mode": "Enforce",
                "options": {"httpPutResponseHopLimit": hop_limit},
                "selector": {"nodeSelector": {"matchLabels": self._fleet.nodes.selector}},
                "safety": {
                    "allowLoosening": ["HopLimit"],
                    "canary": {"instances": 0},
                    "maxChangesPerMinute": 120,
                },
            },
        }
