"""An S3AggregatedRefresh at work: real API server, real operator process, the doubles of AWS around it.

Inputs: the fixtures `cluster`, `aws`, `storage_gateway`. Time is scaled: the floor of 60 s is 6 s here, in
the operator as in the gateway's double.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from awsdoubles.envelopes import Queue
from awsdoubles.gateway.control import Control
from testbed.admin import Admin, Json, path
from testing.aws import Aws
from testing.operator import OperatorProcess

TIME_SCALE: Final = 0.1
MIN_INTERVAL: Final = 60.0 * TIME_SCALE
TIMEOUT: Final = 60.0
PLURAL: Final = "s3aggregatedrefreshes"
ALL: Final = {"namespaces": ["*"], "roleARNs": ["*"], "queueARNs": ["*"], "endpointURLs": ["*"]}


def condition(found: Mapping[str, Any], kind: str) -> Json:
    """The condition of that type; an empty dict when it is not there."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def stands(found: Mapping[str, Any], kind: str, status: str = "True", reason: str | None = None) -> bool:
    """Whether the condition has this status (and reason), and is about the spec as it is now."""
    has = condition(found, kind)
    current = has.get("observedGeneration") == found["metadata"]["generation"]
    return current and has.get("status") == status and reason in (None, has.get("reason"))


def grants(folder: Path, *entries: Mapping[str, Any]) -> tuple[str, ...]:
    """The flags that grant this; without entries everything to every namespace."""
    file = folder / "grants.json"
    file.write_text(json.dumps({"identities": list(entries) or [{**ALL, "ownIdentity": True}]}))
    return ("--aws-identities", str(file))


def operator(
    kubeconfig: Path | str, folder: Path, env: Mapping[str, str], name: str = "refresher", **how: Any
) -> OperatorProcess:
    """An operator with the doubles' AWS, not started yet."""
    how = {"time_scale": TIME_SCALE, "leader_elect": False, "args": grants(folder), **how}
    return OperatorProcess(kubeconfig, name, env=env, **how)


class Refresh:
    """One resource."""

    def __init__(self, admin: Admin, namespace: str, name: str) -> None:
        self._admin = admin
        self.namespace = namespace
        self.name = name
        self.url = path(PLURAL, namespace, name)

    async def get(self) -> Json:
        """As the API server has it."""
        return await self._admin.get(self.url)

    async def when(self, wanted: Callable[[Json], bool], timeout: float = TIMEOUT) -> Json:
        """The resource once `wanted` holds for it and its status is about the spec as it is now."""

        def holds(found: Json) -> bool:
            seen = (found.get("status") or {}).get("observedGeneration")
            return seen == found["metadata"]["generation"] and wanted(found)

        return await self._admin.wait_for(self.url, holds, timeout)

    async def condition(
        self, kind: str, status: str = "True", reason: str | None = None, timeout: float = TIMEOUT
    ) -> Json:
        """The condition once it has this status (and reason)."""
        return condition(await self.when(lambda f: stands(f, kind, status, reason), timeout), kind)

    async def edit(self, **spec: Any) -> Json:
        """Merge-patch the spec."""
        return await self._admin.patch(self.url, {"spec": spec})

    async def delete(self) -> None:
        """As kubectl delete does."""
        await self._admin.delete(self.url)


class Refreshing:
    """What a test has: `aws` (buckets, queues), `control` of the gateway's double, resources."""

    def __init__(self, admin: Admin, namespace: str, aws: Aws, control: Control) -> None:
        self.admin = admin
        self.namespace = namespace
        self.aws = aws
        self.control = control
        control.settings(min_interval=MIN_INTERVAL, objects_per_second=5_000)

    async def create(self, queue: Queue, name: str = "r", **spec: Any) -> Refresh:
        """A resource on this queue; quick unless `spec` says otherwise."""
        body = {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "S3AggregatedRefresh",
            "metadata": {"name": name},
            "spec": {
                "aws": {"region": self.aws.region},
                "source": {"sqs": {"queueURL": queue.url, "waitTime": "1s", "visibilityTimeout": "30s"}},
                "debounce": {"quietPeriod": "2s", "maxDelay": "60s", "minInterval": "60s"},
                "retry": {"initial": "5s", "max": "30s"},
                "resync": {"onStart": False},
                "target": {"storageGateway": {"shares": {"discover": {}}}},
                **spec,
            },
        }
        await self.admin.create(path(PLURAL, self.namespace), body)
        return Refresh(self.admin, self.namespace, name)
