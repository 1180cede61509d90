"""What the double knows: clusters with their container instances and services, by region.

Pure: times are arguments. Names and shapes are those of the Amazon ECS API reference.
"""

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from awsdoubles.clients import ACCOUNT
from awsdoubles.ecs.scheduler import instances_wanted, schedule

Json = dict[str, Any]

# Those that registeredContainerInstancesCount counts (API reference, Cluster).
REGISTERED: Final = ("ACTIVE", "DRAINING")
_numbers = itertools.count(1)


@dataclass
class Instance:
    """A container instance. `version` grows with every change that makes an event."""

    arn: str
    cluster: str  # ARN
    registered_at: float
    status: str = "ACTIVE"
    connected: bool = True
    version: int = 1
    attributes: dict[str, str] = field(default_factory=dict)
    provider: str = ""  # its capacity provider

    def event(self, region: str, now: float) -> Json:
        """What EventBridge delivers of it ("ECS Container Instance State Change", ECS developer guide)."""
        number = next(_numbers)
        detail = {
            "agentConnected": self.connected,
            "attributes": [
                {"name": "com.amazonaws.ecs.capability.docker-remote-api.1.18"},
                *({"name": name, "value": value} for name, value in self.attributes.items()),
            ],
            "clusterArn": self.cluster,
            "containerInstanceArn": self.arn,
            "ec2InstanceId": f"i-{UUID(int=number).hex[-17:]}",
            "registeredResources": [{"name": "CPU", "type": "INTEGER", "integerValue": 2048}],
            "remainingResources": [{"name": "CPU", "type": "INTEGER", "integerValue": 1988}],
            "status": self.status,
            "version": self.version,
            "versionInfo": {"agentVersion": "1.98.0", "dockerVersion": "DockerVersion: 25.0.8"},
            "registeredAt": stamp(self.registered_at),
            "updatedAt": stamp(now),
        }
        return {
            "version": "0",
            "id": str(UUID(int=number)),
            "detail-type": "ECS Container Instance State Change",
            "source": "aws.ecs",
            "account": ACCOUNT,
            "time": stamp(now),
            "region": region,
            "resources": [self.arn],
            "detail": detail,
        }


@dataclass
class Service:
    """A service. Its tasks start `start_seconds` after they are wanted. `tasks`: the container instances on
    which they run, one for each task; `providers`: its strategy."""

    arn: str
    name: str
    cluster: str  # ARN
    desired: int
    strategy: str = "REPLICA"
    launch_type: str = "EC2"
    providers: list[Json] = field(default_factory=list)
    minimum_healthy: int = 100
    maximum: int = 200
    definition: str = "agent:1"  # family and revision of its task definition
    defined: list[Json] = field(default_factory=list)  # placement constraints of that
    status: str = "ACTIVE"
    constraints: list[Json] = field(default_factory=lambda: [{"type": "distinctInstance"}])
    tasks: list[str] = field(default_factory=list)
    running: int = 0
    changed_at: float = 0.0


@dataclass
class Cluster:
    """A cluster. Container instances that were deregistered are forgotten, as AWS does in time."""

    name: str
    region: str
    status: str = "ACTIVE"
    instances: dict[str, Instance] = field(default_factory=dict)  # by ARN
    services: dict[str, Service] = field(default_factory=dict)  # by name
    default_strategy: list[Json] = field(default_factory=list)

    @property
    def arn(self) -> str:
        """The cluster's ARN."""
        return f"arn:aws:ecs:{self.region}:{ACCOUNT}:cluster/{self.name}"

    def of_status(self, *statuses: str) -> list[Instance]:
        """Its container instances of any of these."""
        return [one for one in self.instances.values() if one.status in statuses]

    def register(self, now: float, **how: Any) -> Instance:
        """One more, with these `attributes`, of this `provider`."""
        name = UUID(int=next(_numbers)).hex
        arn = f"arn:aws:ecs:{self.region}:{ACCOUNT}:container-instance/{self.name}/{name}"
        self.instances[arn] = made = Instance(arn, self.arn, now, **how)
        return made

    def settle(self, service: Service, now: float, start_seconds: float) -> None:
        """Start and stop tasks; see scheduler.py."""
        if service.strategy == "DAEMON":
            service.desired = len(self.of_status("ACTIVE"))
        if service.status != "ACTIVE" or now < service.changed_at + start_seconds:
            return
        schedule(self, service)
        service.running = len(service.tasks)


@dataclass
class Provider:
    """A capacity provider of an Auto Scaling group: `status` of its managed scaling, `maximum` of the
    group, `protected`: by managed termination protection."""

    name: str
    status: str = "ENABLED"
    target: int = 100  # targetCapacity
    maximum: int = 100
    protected: bool = True


def scaled(cluster: Cluster, provider: Provider, now: float) -> list[Json]:
    """A minute of managed scaling: instances join, or one leaves, without a task where they are protected;
    the events. With scaling off nothing happens."""
    mine = [one for one in cluster.instances.values() if one.provider == provider.name]
    wanted = instances_wanted(cluster, provider)
    if provider.status != "ENABLED" or wanted == len(mine):
        return []
    if wanted > len(mine):
        joined = [cluster.register(now, provider=provider.name) for _ in range(wanted - len(mine))]
        return [one.event(cluster.region, now) for one in joined]
    services = [one for one in cluster.services.values() if one.strategy != "DAEMON"]
    busy = {arn for service in services for arn in service.tasks}
    left = next((one for one in mine if not provider.protected or one.arn not in busy), None)
    if left is None:
        return []
    del cluster.instances[left.arn]
    left.status, left.version = "INACTIVE", left.version + 1
    return [left.event(cluster.region, now)]


@dataclass
class Settings:
    """How it behaves. `start_seconds`: until a task that is wanted runs."""

    start_seconds: float = 0.0


@dataclass
class World:
    """Everything."""

    settings: Settings = field(default_factory=Settings)
    clusters: dict[tuple[str, str], Cluster] = field(default_factory=dict)  # by region and name
    providers: dict[tuple[str, str], Provider] = field(default_factory=dict)  # by region and name
    denied: set[str] = field(default_factory=set)  # operations
    calls: list[Json] = field(default_factory=list)

    def reset(self) -> None:
        """As at the start."""
        self.settings = Settings()
        self.clusters.clear()
        self.providers.clear()
        self.denied.clear()
        self.calls.clear()

    def find(self, region: str, name: str) -> Cluster | None:
        """By name or ARN; "" is the cluster called default."""
        return self.clusters.get((region, (name or "default").rpartition("/")[2]))

    def in_region(self, region: str) -> list[Cluster]:
        """The clusters of one, sorted by name."""
        return [one for (where, _), one in sorted(self.clusters.items()) if where == region]


def stamp(at: float) -> str:
    """As in events: 2016-12-06T16:41:06.991Z."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
