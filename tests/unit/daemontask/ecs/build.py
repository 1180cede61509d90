"""Builders: what a pass of an ECS target knows."""

import json
from typing import Any

import msgspec

from caretaker.api.daemontask import Status
from caretaker.api.ecs import EcsAws, EcsEvents, EcsSpec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.ecs.check import Answer, Call, CheckParams, ServiceState, check, following
from caretaker.daemontask.ecs.instances import Notice
from caretaker.daemontask.ecs.snapshot import CallFailure, ClusterState, Listing, Queue, Snapshot

NOW = 1_800_000_000.0
CLOCK = 5_000.0
REGION = "eu-west-1"
URL = f"https://sqs.{REGION}.amazonaws.com/123456789012/ecs-instances"
CLUSTER = f"arn:aws:ecs:{REGION}:123456789012:cluster"
INSTANCE = f"arn:aws:ecs:{REGION}:123456789012:container-instance"

IN_STEP = ServiceState(desired=3, running=3, counted=3, target=3)
DENIED = CallFailure("AccessDenied", "allow ecs:DescribeServices", transient=False)
THROTTLED = CallFailure("Throttled", "Rate exceeded", transient=True)


def spec(*clusters: str, **fields: Any) -> EcsSpec:
    return EcsSpec(EcsAws(REGION), "agent", EcsEvents(URL), clusters, **fields)


def snapshot(
    given: EcsSpec | None = None, /, clusters: dict[str, ClusterState] | None = None, **fields: Any
) -> Snapshot:
    """Of one cluster, prod, that is kept."""
    return Snapshot(
        meta=WireMeta(name="agents", namespace="ops", uid="u1", generation=2),
        spec=given or spec("prod"),
        status=fields.pop("status", Status()),
        suspend=fields.pop("suspend", False),
        now=NOW,
        clock=fields.pop("clock", CLOCK),
        clusters={"prod": known()} if clusters is None else clusters,
        listing=fields.pop("listing", Listing(at=CLOCK - 10)),
        queue=fields.pop("queue", Queue(received=True)),
        **fields,
    )


def known(**fields: Any) -> ClusterState:
    """Looked at ten seconds ago."""
    base = ClusterState(service=IN_STEP, checked=CLOCK - 10, calls=2)
    return msgspec.structs.replace(base, **fields)


def event(
    instance: str = "a", status: str = "ACTIVE", *, cluster: str = "prod", version: int = 1, **detail: Any
) -> dict[str, Any]:
    """As EventBridge sends it."""
    return {
        "version": "0",
        "id": "9bcdac79-b31f-4d3d-9410-fbd727c29fab",
        "detail-type": "ECS Container Instance State Change",
        "source": "aws.ecs",
        "account": "123456789012",
        "time": "2026-01-06T16:41:06Z",
        "region": REGION,
        "resources": [f"{INSTANCE}/{cluster}/{instance}"],
        "detail": {
            "agentConnected": True,
            "clusterArn": f"{CLUSTER}/{cluster}",
            "containerInstanceArn": f"{INSTANCE}/{cluster}/{instance}",
            "status": status,
            "version": version,
            **detail,
        },
    }


def body(**fields: Any) -> str:
    return json.dumps(event(**fields))


def notice(instance: str = "a", status: str = "ACTIVE", version: int = 1, *, cluster: str = "prod") -> Notice:
    return Notice(REGION, cluster, f"{INSTANCE}/{cluster}/{instance}", status, version)


class Account:
    """Answers the calls of looks, as ECS would, from what it is told; counts them."""

    def __init__(self, **service: Any) -> None:
        self.service: dict[str, Any] | None = {
            "status": "ACTIVE",
            "desiredCount": 0,
            "runningCount": 0,
            "schedulingStrategy": "REPLICA",
            "launchType": "EC2",
            "placementConstraints": [{"type": "distinctInstance"}],
            "deploymentConfiguration": {"minimumHealthyPercent": 50},
            **service,
        }
        self.cluster = True
        self.active: set[str] = set()
        self.draining: set[str] = set()
        self.registering: set[str] = set()
        self.elsewhere: set[str] = set()  # ACTIVE, where a constraint keeps the service from them
        self.calls: list[str] = []

    def answer(self, call: Call) -> Answer:
        self.calls.append(call.method)
        given = call.parameters
        match call.method:
            case "describe_services":
                missing = [] if self.service else [{"reason": "MISSING"}]
                return {"services": [dict(self.service)] if self.service else [], "failures": missing}
            case "describe_clusters":
                count = len(self.active | self.draining | self.elsewhere)
                status = "ACTIVE" if self.cluster else "INACTIVE"
                return {"clusters": [{"status": status, "registeredContainerInstancesCount": count}]}
            case "list_container_instances":
                every = self.active
                if given.get("status") != "ACTIVE":
                    every = every | self.draining | self.registering
                if "filter" not in given:
                    every = every | self.elsewhere
                found = sorted(every)
                start = int(given.get("nextToken", 0))
                end = start + given["maxResults"]
                more = {"nextToken": str(end)} if end < len(found) else {}
                return {"containerInstanceArns": found[start:end], **more}
            case "update_service":
                assert self.service is not None
                self.service["desiredCount"] = given["desiredCount"]
                return {"service": dict(self.service)}

    def look(self, **wanted: Any) -> ServiceState:
        """A look from the beginning to the end."""
        looking = check(CheckParams("prod", "agent", **{"counts": "Active", "learn": False, **wanted}))
        step = following(looking, None)
        while not isinstance(step, ServiceState):
            step = following(looking, self.answer(step))
        return step
