"""Steer an ECS double, and look into it: from a test, the demo, another process.

Blocking, standard library only. What changes a container instance returns the events that EventBridge would
deliver of it: whoever asks sends them, loses them, repeats them.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from awsdoubles.clients import REGION
from awsdoubles.controlclient import ControlClient, ControlError
from awsdoubles.ecs.faults import THROTTLED

__all__ = ["Control", "ControlError", "send"]

Json = dict[str, Any]
BATCH: Final = 10


class Control(ControlClient):
    """`url` is the double's address, the same that AWS_ENDPOINT_URL_ECS holds."""

    def reset(self) -> None:
        """Forget all clusters, calls and faults; settings as at the start."""
        self._call("reset")

    def settings(self, **changes: Any) -> Json:
        """Change and return the settings: the fields of `state.Settings`."""
        return dict(self._call("settings", **changes))

    def add_cluster(self, name: str, *, region: str = REGION) -> str:
        """A new cluster's ARN."""
        return str(self._call("add-cluster", name=name, region=region)["arn"])

    def remove_cluster(self, cluster: str, *, region: str = REGION) -> None:
        """As if it had been deleted."""
        self._call("remove-cluster", cluster=cluster, region=region)

    def put_service(self, cluster: str, service: str, *, region: str = REGION, **how: Any) -> str:
        """Make or replace a service: `desired`, `strategy`, `launch_type`, `providers`, `constraints`,
        `minimum_healthy`, `status`; of its task definition the name, `definition`, and the constraints,
        `defined`. Its ARN."""
        return str(self._call("put-service", cluster=cluster, service=service, region=region, **how)["arn"])

    def remove_service(self, cluster: str, service: str, *, region: str = REGION) -> None:
        """As DeleteService: it stays, INACTIVE."""
        self._call("remove-service", cluster=cluster, service=service, region=region)

    def service(self, cluster: str, service: str, *, region: str = REGION) -> Json:
        """{desired, running, status, ...} now."""
        return dict(self._call("service", cluster=cluster, service=service, region=region))

    def put_provider(self, name: str, *, region: str = REGION, **how: Any) -> None:
        """Make or replace a capacity provider: `status` of its managed scaling, `target`, `maximum`,
        `protected`."""
        self._call("put-provider", name=name, region=region, **how)

    def default_strategy(self, cluster: str, strategy: Sequence[Json], *, region: str = REGION) -> None:
        """Of services that name neither a launch type nor a strategy."""
        self._call("default-strategy", cluster=cluster, strategy=list(strategy), region=region)

    def scale(self, cluster: str, *, region: str = REGION) -> list[Json]:
        """A minute of managed scaling passes; an event of each instance that joins or leaves."""
        return list(self._call("scale", cluster=cluster, region=region))

    def register(self, cluster: str, count: int = 1, *, region: str = REGION, **how: Any) -> list[Json]:
        """Container instances that join, with `attributes`, of a `provider`; an event of each."""
        return list(self._call("register", cluster=cluster, count=count, region=region, **how))

    def drain(self, cluster: str, instances: Sequence[str], *, region: str = REGION) -> list[Json]:
        """Set to DRAINING; an event of each."""
        return self._change(cluster, instances, region, status="DRAINING")

    def activate(self, cluster: str, instances: Sequence[str], *, region: str = REGION) -> list[Json]:
        """Set to ACTIVE; an event of each."""
        return self._change(cluster, instances, region, status="ACTIVE")

    def deregister(self, cluster: str, instances: Sequence[str], *, region: str = REGION) -> list[Json]:
        """Gone; an event of each."""
        return self._change(cluster, instances, region, status="INACTIVE")

    def flap(
        self, cluster: str, instances: Sequence[str] = (), *, connected: bool, region: str = REGION
    ) -> list[Json]:
        """Their agents connect or disconnect, nothing else; an event of each."""
        return self._change(cluster, instances, region, connected=connected)

    def instances(self, cluster: str, *, region: str = REGION) -> list[Json]:
        """{arn, status, agentConnected, version} of each."""
        return list(self._call("instances", cluster=cluster, region=region))

    def deny(self, operation: str) -> None:
        """Take the permission for an operation away."""
        self._call("deny", operation=operation)

    def allow(self, operation: str) -> None:
        """Give it back."""
        self._call("allow", operation=operation)

    def throttle(self, **how: Any) -> Json:
        """Refuse as ECS does what is one request too many; `how` as of fault."""
        return self.fault("refuse", **{**THROTTLED, **how})

    def _change(self, cluster: str, instances: Sequence[str], region: str, **how: Any) -> list[Json]:
        return list(self._call("change", cluster=cluster, instances=list(instances), region=region, **how))


def arns(events: Iterable[Json]) -> list[str]:
    """The container instances that the events are about."""
    return [one["detail"]["containerInstanceArn"] for one in events]


def send(sqs: Any, queue_url: str, events: Sequence[Json]) -> None:
    """Deliver events to a queue, as EventBridge does: a message each."""
    for start in range(0, len(events), BATCH):
        batch = events[start : start + BATCH]
        entries = [{"Id": str(at), "MessageBody": json.dumps(one)} for at, one in enumerate(batch)]
        answer = sqs.send_message_batch(QueueUrl=queue_url, Entries=entries)
        assert not answer.get("Failed"), answer
