"""A DaemonTask's clusters as text and as JSON, and the actions for its conditions. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition
from caretaker.api.conditions import EcsReason as Reason
from caretaker.api.daemontask import DaemonTask
from caretaker.api.ecs import EcsCluster
from caretaker.api.times import parse_time
from caretaker.cli.diagnostics import abnormal_conditions as abnormal_by_reason
from caretaker.cli.diagnostics import diagnostics
from caretaker.cli.text import age, cut, number, table

_POSITIVE: Final = frozenset({c.READY, c.SPEC_VALID, c.QUEUE_REACHABLE})
_NORMAL: Final = frozenset({Reason.IN_STEP, Reason.STARTING, Reason.NOT_CHECKED})
_WHY: Final = 70  # characters, without -o wide

ADVICE: Final = {
    Reason.SUSPENDED: "set spec.suspend to false to have the counts kept again",
    Reason.INVALID_SPEC: "correct the field that is named and apply again",
    Reason.NOT_GRANTED: "name what the namespace may use, or have it added to --aws-identities",
    Reason.ACCESS_DENIED: "docs/iam/daemontask-ecs.json has all that is needed; it is tried again by itself",
    Reason.NO_IDENTITY: "give the operator credentials, or set spec.ecs.aws.roleARN",
    Reason.THROTTLED: "wait; look for who else calls ECS in this account and region",
    Reason.UNREACHABLE: "see that the operator reaches AWS; it is tried again by itself",
    Reason.REQUEST_REFUSED: "correct the name that is refused",
    Reason.NO_CLUSTERS: "create the service in a cluster of the region",
    Reason.CLUSTER_NOT_FOUND: "correct spec.ecs.clusters or spec.ecs.aws.region, or create the cluster",
    Reason.SERVICE_NOT_FOUND: "create the service there, or take the cluster from spec.ecs.clusters",
    Reason.SERVICE_INACTIVE: "create the service again, or take the cluster from spec.ecs.clusters",
    Reason.DAEMON_SERVICE: "delete the task: ECS keeps such a service itself",
    Reason.FARGATE_SERVICE: "use launchType EC2, or delete the task",
    Reason.MANAGED_SCALING: "use launchType EC2, or turn managed scaling off, or delete the task",
    Reason.SEVERAL_CAPACITY_PROVIDERS: "use one capacity provider, or launchType EC2",
    Reason.PLACEMENT_BY_TASKS: "use attributes of container instances in the placement constraint",
    Reason.CONFIRMING_DECREASE: "look whether the container instances are gone; it is set by itself if so",
    Reason.MAX_COUNT_REACHED: "raise spec.ecs.maxCount if so many container instances are meant",
    Reason.DRAIN_MAY_HANG: "set spec.ecs.countInstances to Active",
    Reason.TASK_DEFINITION_UNREAD: "docs/iam/daemontask-ecs.json has all that is needed",
    Reason.NO_DISTINCT_INSTANCE: "aws ecs update-service ... --placement-constraints type=distinctInstance",
    Reason.QUEUE_NOT_FOUND: "correct spec.ecs.events.sqsQueueURL, or create the queue",
    Reason.UNREADABLE: "find out who else sends to the queue; the log has the messages' ids",
}


def abnormal_conditions(conditions: Iterable[Condition]) -> list[Condition]:
    """The conditions that report a problem or wait for a person, each reason once."""
    return list(abnormal_by_reason(conditions, _POSITIVE, _NORMAL).values())


def advice(reason: str) -> str:
    """One line; empty where there is nothing to do."""
    return ADVICE.get(reason, "")


def as_json(task: DaemonTask) -> dict[str, Any]:
    """For programs."""
    meta, status = task.metadata, task.status
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "generation": meta.generation,
        "observedGeneration": status.observed_generation,
        "conditions": msgspec.to_builtins(status.conditions),
        "clusters": msgspec.to_builtins(status.ecs),
        "clustersOmitted": status.ecs_omitted,
    }


def as_text(task: DaemonTask, now: float, *, wide: bool) -> list[str]:
    """For people: the sum, the problems with actions, a row for each cluster."""
    meta, status = task.metadata, task.status
    service = task.spec.ecs.service if task.spec.ecs is not None else "?"
    lines = [
        f"DaemonTask {meta.namespace}/{meta.name}: service {service}",
        f"  {number(len(status.ecs) + status.ecs_omitted, 'cluster')}, "
        f"{number(status.desired, 'container instance')}, {status.active} with a running task",
    ]
    if ready := c.find(status.conditions, c.READY):
        since = parse_time(ready.last_transition_time)
        passed = f" for {age(now - since)}" if since else ""
        lines.append(f"  Ready={ready.status} {ready.reason}{passed}")
    abnormal = abnormal_conditions(status.conditions)
    lines += [f"  {line}" for line in diagnostics(meta, status.observed_generation, abnormal, advice)]
    return lines + rows(status.ecs, status.ecs_omitted, now, wide=wide)


def rows(clusters: Sequence[EcsCluster], omitted: int, now: float, *, wide: bool) -> list[str]:
    """The table."""
    if not clusters:
        return []
    found: list[tuple[str, ...]] = [
        ("CLUSTER", "INSTANCES", "DESIRED", "RUNNING", "LAST-EVENT", "LAST-UPDATE", "CALLS", "REASON")
    ]
    for one in clusters:
        why = f"{one.reason}: {one.message}" if one.reason else "-"
        found.append(
            (
                one.cluster,
                *(_count(n) for n in (one.registered_container_instances, one.desired_count)),
                _count(one.running_count),
                _ago(one.last_event_time, now),
                _ago(one.last_update_time, now),
                str(one.last_calls),
                why if wide else cut(why, _WHY),
            )
        )
    more = [f"and {number(omitted, 'cluster')} more"] if omitted else []
    return ["", *table(found), *more]


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _ago(stamp: str | None, now: float) -> str:
    at = parse_time(stamp)
    return f"{age(now - at)} ago" if at else "-"
