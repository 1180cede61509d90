"""The test's side of the double: plain JSON under `/_control/`.

`control.Control` is its client; what each call does stands there.
"""

import dataclasses
import time

from awsdoubles.clients import ACCOUNT
from awsdoubles.controlapi import BadRequestError, ControlBase, Handler, Json, common
from awsdoubles.ecs.faults import Fault, Faults
from awsdoubles.ecs.operations import OPERATIONS, instance_view
from awsdoubles.ecs.state import Cluster, Instance, Provider, Service, World, scaled


class ControlApi(ControlBase):
    """Every call is a POST of an object and answers a value."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        own: dict[str, Handler] = {
            "reset": self._reset,
            "add-cluster": self._add_cluster,
            "remove-cluster": self._remove_cluster,
            "put-service": self._put_service,
            "remove-service": self._remove_service,
            "service": lambda body: dataclasses.asdict(self._service(body)),
            "put-provider": self._put_provider,
            "default-strategy": self._default_strategy,
            "scale": self._scale,
            "register": self._register,
            "change": self._change,
            "instances": lambda body: [instance_view(i) for i in self._cluster(body).instances.values()],
            "deny": self._deny,
            "allow": lambda body: self._world.denied.discard(body["operation"]),
        }
        super().__init__({**common(world, faults, Fault), **own})

    def _reset(self, _: Json) -> None:
        self._faults.all.clear()
        self._world.reset()

    def _add_cluster(self, body: Json) -> Json:
        made = Cluster(body["name"], body["region"])
        self._world.clusters[made.region, made.name] = made
        return {"arn": made.arn}

    def _remove_cluster(self, body: Json) -> None:
        self._cluster(body).status = "INACTIVE"

    def _put_service(self, body: Json) -> Json:
        cluster = self._cluster(body)
        name, given = (
            body["service"],
            {k: v for k, v in body.items() if k not in ("cluster", "region", "service")},
        )
        arn = f"arn:aws:ecs:{cluster.region}:{ACCOUNT}:service/{cluster.name}/{name}"
        desired = given.pop("desired", 0)
        known = cluster.services.get(name)
        base = known or Service(arn, name, cluster.arn, desired)
        cluster.services[name] = dataclasses.replace(base, desired=desired, changed_at=time.time(), **given)
        return {"arn": arn}

    def _remove_service(self, body: Json) -> None:
        """As DeleteService does: it is INACTIVE, and known for a while."""
        service = self._service(body)
        service.status, service.desired, service.running = "INACTIVE", 0, 0

    def _register(self, body: Json) -> list[Json]:
        cluster, now = self._cluster(body), time.time()
        how = {name: body[name] for name in ("attributes", "provider") if name in body}
        made = [cluster.register(body.get("registered_at", now), **how) for _ in range(body["count"])]
        return [one.event(cluster.region, now) for one in made]

    def _put_provider(self, body: Json) -> None:
        given = {k: v for k, v in body.items() if k != "region"}
        self._world.providers[body["region"], body["name"]] = Provider(**given)

    def _default_strategy(self, body: Json) -> None:
        self._cluster(body).default_strategy = body["strategy"]

    def _scale(self, body: Json) -> list[Json]:
        cluster, now = self._cluster(body), time.time()
        for service in cluster.services.values():
            cluster.settle(service, now, self._world.settings.start_seconds)
        providers = [one for (where, _), one in self._world.providers.items() if where == cluster.region]
        return [event for one in providers for event in scaled(cluster, one, now)]

    def _change(self, body: Json) -> list[Json]:
        """The events that follow when these container instances are as they are told to be from now on."""
        cluster, now = self._cluster(body), time.time()
        found = [self._instance(cluster, arn) for arn in body.get("instances") or list(cluster.instances)]
        for one in found:
            one.status = body.get("status") or one.status
            one.connected = body.get("connected", one.connected)
            one.version += 1
            if one.status == "INACTIVE":  # deregistered
                one.connected = False
                del cluster.instances[one.arn]
        return [one.event(cluster.region, now) for one in found]

    def _deny(self, body: Json) -> None:
        if body["operation"] not in OPERATIONS:
            raise BadRequestError(f"no operation {body['operation']!r}: {', '.join(OPERATIONS)}")
        self._world.denied.add(body["operation"])

    def _cluster(self, body: Json) -> Cluster:
        found = self._world.find(body["region"], body["cluster"])
        if found is None:
            raise BadRequestError(f"no cluster {body['cluster']!r} in {body['region']}")
        return found

    def _service(self, body: Json) -> Service:
        cluster = self._cluster(body)
        if body["service"] not in cluster.services:
            raise BadRequestError(f"no service {body['service']!r}")
        service = cluster.services[body["service"]]
        cluster.settle(service, time.time(), self._world.settings.start_seconds)
        return service

    def _instance(self, cluster: Cluster, arn: str) -> Instance:
        if arn not in cluster.instances:
            raise BadRequestError(f"no container instance {arn!r}")
        return cluster.instances[arn]
