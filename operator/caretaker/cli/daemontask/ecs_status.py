"""caretaker status of a DaemonTask with an ECS target: its clusters, as the operator found them. Pure but for
the output."""

import time
from functools import partial
from typing import Any, Final

from caretaker.api import conditions as c
from caretaker.api.conditions import EcsReason as Reason
from caretaker.api.daemontask import DaemonTask
from caretaker.cli.common import UsageError
from caretaker.cli.text import (
    abnormal,
    ago,
    cell,
    cut,
    head_json,
    number,
    problems,
    ready_line,
    section,
    show,
)
from caretaker.daemontask.resource import RawTask, read_ecs

_POSITIVE: Final = frozenset({c.READY, c.SPEC_VALID, c.QUEUE_REACHABLE})
NORMAL: Final = frozenset(
    {Reason.IN_STEP, Reason.STARTING, Reason.NOT_CHECKED, Reason.ACCEPTED, Reason.REACHABLE}
)
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


def status(raw: RawTask, output: str | None, *, watch: bool) -> int:
    """Print it; 0."""
    task, _ = read_ecs(raw)
    if watch:
        raise UsageError(
            f"an ECS target has no end to watch for; kubectl get daemontask {task.metadata.name} --watch "
            "follows it"
        )
    show(task, output, as_json, partial(as_text, now=time.time()))
    return 0


def as_json(task: DaemonTask) -> dict[str, Any]:
    """For programs."""
    meta, status = task.metadata, task.status
    return {
        **head_json(meta, status.observed_generation),
        "conditions": status.conditions,
        "clusters": status.ecs,
        "clustersOmitted": status.ecs_omitted,
    }


def as_text(task: DaemonTask, wide: bool, now: float) -> list[str]:
    """For people: the sum, the problems with actions, a row for each cluster."""
    meta, status = task.metadata, task.status
    service = task.spec.ecs.service if task.spec.ecs is not None else "?"
    head = [
        f"{number(len(status.ecs) + status.ecs_omitted, 'cluster')}, "
        f"{number(status.desired, 'container instance')}, {status.active} with a running task",
        *ready_line(status.conditions, now),
        *problems(meta, status.observed_generation, abnormal(status.conditions, _POSITIVE, NORMAL), ADVICE),
    ]
    rows = [
        [
            one.cluster,
            *map(cell, (one.registered_container_instances, one.desired_count, one.running_count)),
            *(ago(stamp, now) for stamp in (one.last_event_time, one.last_update_time)),
            str(one.last_calls),
            cut(f"{one.reason}: {one.message}" if one.reason else "-", _WHY, wide=wide),
        ]
        for one in status.ecs
    ]
    columns = "CLUSTER  INSTANCES  DESIRED  RUNNING  LAST-EVENT  LAST-UPDATE  CALLS  REASON"
    more = f"and {number(status.ecs_omitted, 'cluster')} more" if status.ecs_omitted else ""
    return [
        f"DaemonTask {meta.namespace}/{meta.name}: service {service}",
        *(f"  {line}" for line in head),
        *section(columns, rows, more),
    ]
