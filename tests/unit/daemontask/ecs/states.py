"""Every state of an ECS target that Ready tells apart, by a sentence: a table for whoever reads it."""

from typing import Any, Final

import msgspec

from caretaker.daemontask.ecs.check import PendingDecrease, ServiceState
from caretaker.daemontask.ecs.snapshot import CallFailure, ClusterState, Listing, Queue, Snapshot
from unit.daemontask.ecs.build import DENIED, IN_STEP, THROTTLED, known, snapshot, spec

DAEMON = ServiceState("DaemonService", "prod: DAEMON")
ABSENT = ServiceState("ServiceNotFound", "prod: none")
DOUBT = msgspec.structs.replace(IN_STEP, reason="NoDistinctInstance", message="lacks it", doubt=True)
CONFIRMING = msgspec.structs.replace(
    IN_STEP, reason="ConfirmingDecrease", message="gone", counted=0, decrease=PendingDecrease(0)
)
EVERY = spec()


def of(**fields: Any) -> Snapshot:
    return snapshot(clusters={"prod": known(**fields)})


# What is seen, and every condition by its reason: `!` stands for False, `?` for Unknown, the rest is True.
CASES: Final[dict[str, tuple[Snapshot, dict[str, str]]]] = {
    "in step": (
        of(),
        {"Ready": "InStep"},
    ),
    "before the first look": (
        snapshot(clusters={"prod": ClusterState()}),
        {"Ready": "!Starting", "Reconciling": "Starting"},
    ),
    "a service that is left alone": (
        of(service=DAEMON),
        {"Ready": "!DaemonService", "Stalled": "DaemonService", "Degraded": "DaemonService"},
    ),
    "a named cluster without the service": (
        of(service=ABSENT),
        {"Ready": "!ServiceNotFound", "Stalled": "ServiceNotFound", "Degraded": "ServiceNotFound"},
    ),
    "kept with a doubt": (
        of(service=DOUBT),
        {"Ready": "InStep", "Degraded": "NoDistinctInstance"},
    ),
    **{
        f"kept with a doubt: {reason}": (
            of(service=msgspec.structs.replace(DOUBT, reason=reason)),
            {"Ready": "InStep", "Degraded": reason},
        )
        for reason in ("MaxCountReached", "DrainMayHang", "TaskDefinitionUnread")
    },
    "so many are gone that it is to be confirmed": (
        of(service=CONFIRMING),
        {"Ready": "!ConfirmingDecrease", "Reconciling": "ConfirmingDecrease"},
    ),
    "what only a person ends is told first": (
        snapshot(
            spec("lab", "prod"), clusters={"lab": known(service=CONFIRMING), "prod": known(service=DAEMON)}
        ),
        {"Ready": "!DaemonService", "Stalled": "DaemonService", "Degraded": "DaemonService"},
    ),
    "of all clusters those without the service are none of its business": (
        snapshot(EVERY, clusters={"prod": known(service=ABSENT), "lab": known()}),
        {"Ready": "InStep"},
    ),
    "none runs the service": (
        snapshot(EVERY, clusters={"prod": known(service=ABSENT)}),
        {"Ready": "!NoClusters"},
    ),
    "not listed yet": (
        snapshot(EVERY, clusters={}, listing=Listing()),
        {"Ready": "!Starting", "Reconciling": "Starting"},
    ),
    "clusters may not be listed": (
        snapshot(EVERY, clusters={}, listing=Listing(failure=DENIED, failures=1)),
        {"Ready": "!AccessDenied", "Reconciling": "AccessDenied"},
    ),
    "a permission that is missing is told at once": (
        of(failure=DENIED, failures=1),
        {"Ready": "!AccessDenied", "Reconciling": "AccessDenied"},
    ),
    "a throttled look or two": (
        of(failure=THROTTLED, failures=2),
        {"Ready": "InStep"},
    ),
    "throttled again and again": (
        of(failure=THROTTLED, failures=3),
        {"Ready": "!Throttled", "Reconciling": "Throttled"},
    ),
    "throttled before anything was known": (
        of(failure=THROTTLED, failures=1, service=None),
        {"Ready": "!Throttled", "Reconciling": "Throttled"},
    ),
    "no events come": (
        snapshot(queue=Queue(failure=DENIED)),
        {"Ready": "InStep", "QueueReachable": "!AccessDenied", "Degraded": "AccessDenied"},
    ),
    "a message that could not be read": (
        snapshot(queue=Queue(received=True, malformed="no JSON")),
        {"Ready": "InStep", "MalformedMessages": "Unreadable"},
    ),
    "suspended": (
        msgspec.structs.replace(of(service=DAEMON), suspend=True),
        {"Ready": "Suspended", "Suspended": "Suspended", "QueueReachable": "?NotChecked"},
    ),
    "not granted": (
        msgspec.structs.replace(of(), refusal=("NotGranted", "no"), clusters={}),
        {"Ready": "!NotGranted", "Stalled": "NotGranted", "QueueReachable": "?NotChecked"},
    ),
    "a spec of an older CRD": (
        msgspec.structs.replace(of(), spec=None, refusal=("InvalidSpec", "no"), clusters={}),
        {
            "Ready": "!InvalidSpec",
            "Stalled": "InvalidSpec",
            "SpecValid": "!InvalidSpec",
            "QueueReachable": "?NotChecked",
        },
    ),
    **{
        f"left alone: {reason}": (
            of(service=ServiceState(reason, f"prod: {reason}")),
            {"Ready": f"!{reason}", "Stalled": reason, "Degraded": reason},
        )
        for reason in (
            "FargateService",
            "ServiceInactive",
            "ClusterNotFound",
            "ManagedScaling",
            "SeveralCapacityProviders",
            "PlacementByTasks",
        )
    },
    **{
        f"looks fail: {reason}": (
            of(failure=CallFailure(reason, "no", transient=False), failures=1),
            {"Ready": f"!{reason}", "Reconciling": reason},
        )
        for reason in ("NoIdentity", "Unreachable", "RequestRefused")
    },
}
