"""An S3AggregatedRefresh at work: real API server, real operator process, the doubles of AWS around it.

Inputs: the fixtures `cluster`, `aws`, `storage_gateway`. Time is scaled: the floor of 60 s is 6 s here, in
the operator as in the gateway's double.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from awsdoubles.envelopes import Queue
from awsdoubles.gateway.control import Control
from awsdoubles.sqsproxy.proxy import SqsProxy
from caretaker.api import names
from testbed.admin import Admin, ApiError, Json, path
from testing.aws import Aws
from testing.customresource import TIMEOUT, Resource, condition, stands
from testing.operator import OperatorProcess

__all__ = [
    "ALL",
    "LOOPBACK",
    "MIN_INTERVAL",
    "PLURAL",
    "TIMEOUT",
    "TIME_SCALE",
    "Refresh",
    "Refreshing",
    "add_headers",
    "condition",
    "gateway",
    "grants",
    "operator",
    "s3_event",
    "sqs",
    "stands",
]

TIME_SCALE: Final = 0.1


async def add_headers(admin: Admin, namespace: str, name: str, url: str, **entries: str) -> None:
    """A Secret whose values may be sent as headers to the host of this URL."""
    meta = {
        "name": name,
        "labels": {names.SECRET_HEADERS: "true"},
        "annotations": {names.SECRET_HOSTS: urlsplit(url).netloc},
    }
    await admin.create(path("secrets", namespace), {"metadata": meta, "stringData": entries})


MIN_INTERVAL: Final = 60.0 * TIME_SCALE
LOOK_SECONDS: Final = 0.1
PLURAL: Final = "s3aggregatedrefreshes"
# Allows endpoints of doubles, which run on this machine, in specs.
LOOPBACK: Final = ("--egress-allow", "127.0.0.1")
ALL: Final = {
    "namespaces": ["*"],
    "roleARNs": ["*"],
    "queueARNs": ["*"],
    "targetARNs": ["*"],
    "endpointURLs": ["*"],
}


def grants(folder: Path, *entries: Mapping[str, Any]) -> tuple[str, ...]:
    """The flags that grant these entries; without entries everything is granted to every namespace."""
    file = folder / "grants.json"
    file.write_text(json.dumps({"identities": list(entries) or [{**ALL, "ownIdentity": True}]}))
    return ("--aws-identities", str(file))


def operator(
    kubeconfig: Path | str, folder: Path, env: Mapping[str, str], name: str = "refresher", **how: Any
) -> OperatorProcess:
    """An operator with the doubles' AWS, not started yet."""
    if "args" not in how:
        how["args"] = grants(folder)
    how = {"time_scale": TIME_SCALE, "leader_elect": False, **how}
    return OperatorProcess(kubeconfig, name, env=env, **how)


class Refresh(Resource):
    """One resource."""

    def __init__(self, admin: Admin, namespace: str, name: str) -> None:
        super().__init__(admin, path(PLURAL, namespace, name))
        self.namespace = namespace
        self.name = name

    async def gone(self) -> None:
        """Return once the API server has it no more."""
        await self._admin.wait_gone(self.url, TIMEOUT)

    async def caught_up(self) -> Json:
        """The resource once it has refreshed something and nothing is left to do."""

        def done(found: Json) -> bool:
            called = any((t.get("last") or {}).get("acceptedAt") for t in found["status"].get("targets", ()))
            return called and stands(found, "CaughtUp")

        return await self.when(done)


class Refreshing:
    """What a test has: `aws` (buckets, queues), `control` of the gateway's double, resources.

    The operator may be shared: names begin with `prefix`, and `endpoints` (spec.aws.endpointURLs) lead to
    this test's own doubles. `scale` is the operator's time_scale.
    """

    def __init__(
        self,
        admin: Admin,
        namespace: str,
        aws: Aws,
        control: Control,
        *,
        scale: float = TIME_SCALE,
        prefix: str = "",
        endpoints: Mapping[str, str] | None = None,
    ) -> None:
        self.admin = admin
        self.namespace = namespace
        self.aws = aws
        self.control = control
        self.min_interval = 60.0 * scale
        self.made: list[Refresh] = []
        self._prefix = prefix
        self._endpoints = dict(endpoints or {})
        control.settings(min_interval=self.min_interval, objects_per_second=5_000)

    def body(self, queue: Queue, name: str = "r", **spec: Any) -> Json:
        """What create() sends."""
        return {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "S3AggregatedRefresh",
            "metadata": {"name": f"{self._prefix}{name}"},
            "spec": {
                "aws": {"region": self.aws.region, "endpointURLs": self._endpoints},
                "source": {"sqs": sqs(queue)},
                "debounce": {"quietPeriod": "2s", "maxDelay": "60s", "minInterval": "60s"},
                "retry": {"initial": "5s", "max": "30s"},
                "resync": {"onStart": False},
                "target": gateway(),
                **spec,
            },
        }

    async def create(self, queue: Queue, name: str = "r", **spec: Any) -> Refresh:
        """A resource on this queue; quick unless `spec` says otherwise."""
        body = self.body(queue, name, **spec)
        await self.admin.create(path(PLURAL, self.namespace), body)
        self.made.append(Refresh(self.admin, self.namespace, body["metadata"]["name"]))
        return self.made[-1]

    def share(self, bucket: str, **how: Any) -> str:
        """A share of a gateway of its own; its ARN."""
        return self.control.add_share(self.control.add_gateway(), bucket=bucket, **how)

    async def put(self, bucket: str, *keys: str) -> None:
        """Write empty objects."""
        await asyncio.to_thread(self.aws.put, bucket, *keys)

    async def fresh(self, share: str) -> None:
        """Return once the share shows the bucket as it is, which is what it is all for."""
        await asyncio.to_thread(self.control.wait_fresh, share, TIMEOUT)

    async def until(self, holds: Callable[[], bool], what: str, timeout: float = TIMEOUT) -> None:
        """Return once it holds, of something that tells nobody."""
        try:
            async with asyncio.timeout(timeout):
                while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - as said
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise AssertionError(f"not in {timeout:.0f} s: {what}") from None

    async def refreshed(self, share: str, times: int = 1) -> list[Json]:
        """The share's accepted refreshes once there are so many."""
        await self.until(
            lambda: len(self.control.refreshes(share)) >= times, f"{times} refresh(es) of {share}"
        )
        return self.control.refreshes(share)

    async def emptied(self, queue_url: str) -> None:
        """Return once the queue holds nothing, seen or unseen."""
        await self.until(lambda: self.aws.depth(queue_url) == (0, 0), f"{queue_url} is empty")

    async def polls_over(self, proxy: SqsProxy) -> None:
        """Return once the receives that are under way now are answered: after an edit nobody takes what they
        bring, and it is hidden for the visibility timeout."""
        now = time.time()
        await self.until(
            lambda: all(one.seconds for one in proxy.calls.all("ReceiveMessage") if one.at <= now),
            "receives are answered",
        )

    async def clear(self) -> None:
        """Delete what was created, finalizers or not."""
        for one in self.made:
            await one.delete()
            if await self.admin.find(one.url) is not None:
                with contextlib.suppress(ApiError):  # it has just gone
                    await self.admin.patch(one.url, {"metadata": {"finalizers": None}})
            await one.gone()


def sqs(queue: Queue, **more: Any) -> Json:
    """spec.source.sqs with short waits."""
    return {"queueURL": queue.url, "waitTime": "1s", "visibilityTimeout": "30s", **more}


def s3_event(bucket: str, key: str) -> str:
    """The message that S3 sends for a written object."""
    what = {"bucket": {"name": bucket}, "object": {"key": key}}
    return json.dumps({"Records": [{"eventVersion": "2.1", "eventName": "ObjectCreated:Put", "s3": what}]})


def gateway(**fields: Any) -> Json:
    """spec.target of all shares that the endpoint knows."""
    return {"storageGateway": {"shares": {"discover": {}}, **fields}}
