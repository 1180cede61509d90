"""The conditions of a DaemonTask with an ECS target; docs/operations.md explains them.

Pure: Snapshot -> conditions. A chain of small rules decides Ready; the first that applies wins. Ready is
about the services; a queue that cannot be read delays changes, and makes the task Degraded.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionState
from caretaker.api.conditions import EcsReason as Reason
from caretaker.daemontask.ecs.plan import shown
from caretaker.daemontask.ecs.snapshot import CallFailure, ClusterState, Snapshot

# Looks in a row that fail for a transient cause before Ready turns False.
FAILURES_REPORTED: Final = 3
SHOWN: Final = 3
# Reasons of Ready=False that need an action of the user.
STALLING: Final = frozenset(
    (
        Reason.INVALID_SPEC,
        Reason.NOT_GRANTED,
        Reason.CLUSTER_NOT_FOUND,
        Reason.SERVICE_NOT_FOUND,
        Reason.SERVICE_INACTIVE,
        Reason.DAEMON_SERVICE,
        Reason.FARGATE_SERVICE,
        Reason.MANAGED_SCALING,
        Reason.SEVERAL_CAPACITY_PROVIDERS,
        Reason.PLACEMENT_BY_TASKS,
    )
)


def conditions_of(snapshot: Snapshot) -> Iterable[Condition]:
    """Every condition of the target; Reconciling, Stalled, Degraded, MalformedMessages and Suspended only
    while True."""
    condition = partial(Condition, observed_generation=snapshot.meta.generation)
    status, reason, message = ready(snapshot)
    yield condition(c.READY, status, reason, message)
    yield condition(c.SPEC_VALID, *_spec_valid(snapshot))
    yield condition(c.QUEUE_REACHABLE, *_queue(snapshot))
    if status != "True" and reason in STALLING:
        yield condition(c.STALLED, "True", reason, message)
    elif status != "True" and reason != Reason.NO_CLUSTERS:
        yield condition(c.RECONCILING, "True", reason, message)
    if degraded := _degraded(snapshot):
        yield condition(c.DEGRADED, "True", *degraded)
    if snapshot.queue.malformed and not snapshot.idle:
        text = f"messages of the last hour could not be read, the latest: {snapshot.queue.malformed}"
        yield condition(c.MALFORMED_MESSAGES, "True", Reason.UNREADABLE, text)
    if snapshot.suspend:
        text = "spec.suspend is true: nothing is asked of AWS, nothing received"
        yield condition(c.SUSPENDED, "True", Reason.SUSPENDED, text)


def ready(snapshot: Snapshot) -> ConditionState:
    """The first rule that applies."""
    return next(service for rule in _READY_RULES if (service := rule(snapshot)) is not None)


# ---------------------------------------------------------------- Ready


def _refused(snapshot: Snapshot) -> ConditionState | None:
    return None if snapshot.refusal is None else ("False", *snapshot.refusal)


def _suspended(snapshot: Snapshot) -> ConditionState | None:
    if not snapshot.suspend:
        return None
    return "True", Reason.SUSPENDED, "suspended; desired counts stay as they are"


def _unlisted(snapshot: Snapshot) -> ConditionState | None:
    listing = snapshot.listing
    known = bool(listing.at) or _stands(snapshot)
    if listing.failure is None or not _lasting(listing.failure, listing.failures, known=known):
        return None
    return "False", listing.failure.reason, listing.failure.message


def _failing(snapshot: Snapshot) -> ConditionState | None:
    stands = _stands(snapshot)
    found = [
        cluster.failure
        for cluster in snapshot.clusters.values()
        if cluster.failure is not None
        and _lasting(cluster.failure, cluster.failures, known=cluster.service is not None or stands)
    ]
    if not found:
        return None
    more = f" (and {len(found) - 1} more clusters)" if len(found) > 1 else ""
    return "False", found[0].reason, f"{found[0].message}{more}"


def _unfit(snapshot: Snapshot) -> ConditionState | None:
    found = [cluster for _, cluster in shown(snapshot) if _problem(cluster)]
    if not found:
        return None
    found.sort(key=lambda cluster: _problem(cluster) not in STALLING)
    return "False", _problem(found[0]), _summary(found)


def _starting(snapshot: Snapshot) -> ConditionState | None:
    if not _waits(snapshot):
        return None
    starting: ConditionState = ("False", Reason.STARTING, "the clusters have not all been looked at yet")
    return _said(snapshot, c.READY) or starting


def _waits(snapshot: Snapshot) -> bool:
    """Whether the list of clusters is unknown, or a cluster was never checked."""
    unlisted = snapshot.spec is not None and not snapshot.spec.clusters and not snapshot.listing.at
    return unlisted or any(cluster.service is None for cluster in snapshot.clusters.values())


def _said(snapshot: Snapshot, kind: str) -> ConditionState | None:
    """The present condition, if it is about this spec. A new leader, or a new cluster, changes it only after
    a check."""
    before = c.find(snapshot.status.conditions, kind)
    if before is None or before.observed_generation != snapshot.meta.generation:
        return None
    return before.status, before.reason, before.message


def _stands(snapshot: Snapshot) -> bool:
    """Whether Ready has a result for this spec, from another process or from before a new cluster appeared.
    One failed check, as after an upgrade of the operator, does not change it."""
    message = _said(snapshot, c.READY)
    return message is not None and message[1] != Reason.STARTING


def _nowhere(snapshot: Snapshot) -> ConditionState | None:
    if snapshot.spec is None or any(True for _ in shown(snapshot)):
        return None
    return (
        "False",
        Reason.NO_CLUSTERS,
        f"no cluster in {snapshot.spec.aws.region} runs the service {snapshot.spec.service}",
    )


def _in_step(snapshot: Snapshot) -> ConditionState | None:
    kept = [cluster.service for _, cluster in shown(snapshot) if cluster.service is not None]
    instances = sum(service.counted or 0 for service in kept)
    clusters = "1 cluster" if len(kept) == 1 else f"{len(kept)} clusters"
    message = f"desiredCount is the number of container instances in {clusters}, {instances} altogether"
    held = sum(service.reason == Reason.MAX_COUNT_REACHED for service in kept)
    return (
        "True",
        Reason.IN_STEP,
        message + (f"; spec.ecs.maxCount holds {held} of them lower" if held else ""),
    )


_READY_RULES: Final[tuple[Callable[[Snapshot], ConditionState | None], ...]] = (
    _refused,
    _suspended,
    _unlisted,
    _failing,
    _unfit,
    _starting,
    _nowhere,
    _in_step,
)


def _lasting(failure: CallFailure, failures: int, *, known: bool) -> bool:
    """Whether Ready reports it: at once if it is not transient or nothing is known, else when it lasts."""
    return not failure.transient or failures >= FAILURES_REPORTED or not known


def _problem(cluster: ClusterState) -> str:
    """The reason for which its service is left as it is."""
    return "" if cluster.service is None or cluster.service.doubt else cluster.service.reason


def _summary(found: Iterable[ClusterState]) -> str:
    messages = [cluster.service.message for cluster in found if cluster.service is not None]
    more = f"; and {len(messages) - SHOWN} more" if len(messages) > SHOWN else ""
    return "; ".join(messages[:SHOWN]) + more


# ---------------------------------------------------------------- the others


def _spec_valid(snapshot: Snapshot) -> ConditionState:
    if snapshot.spec is None:
        return "False", Reason.INVALID_SPEC, snapshot.refusal[1] if snapshot.refusal is not None else ""
    return "True", Reason.ACCEPTED, "the spec can be read"


def _queue(snapshot: Snapshot) -> ConditionState:
    queue = snapshot.queue
    unchecked: ConditionState = ("Unknown", Reason.NOT_CHECKED, "the queue has not been asked yet")
    if snapshot.idle:
        return unchecked
    if not (queue.received or queue.failure):
        return _said(snapshot, c.QUEUE_REACHABLE) or unchecked
    if queue.failure is not None:
        return "False", queue.failure.reason, queue.failure.message
    return "True", Reason.REACHABLE, "messages are received"


def _degraded(snapshot: Snapshot) -> tuple[str, str] | None:
    """(reason, message) of the most serious fault."""
    if snapshot.idle:
        return None
    problems = [cluster for _, cluster in shown(snapshot) if _problem(cluster) in STALLING]
    if problems:
        return _problem(problems[0]), _summary(problems)
    queue = snapshot.queue.failure
    if queue is not None:
        seconds = snapshot.spec.resync_seconds if snapshot.spec is not None else 0
        return queue.reason, f"no events come, clusters are looked at every {seconds} s only: {queue.message}"
    doubts = [
        cluster for _, cluster in shown(snapshot) if cluster.service is not None and cluster.service.doubt
    ]
    if doubts and doubts[0].service is not None:
        return doubts[0].service.reason, _summary(doubts)
    message = _said(snapshot, c.DEGRADED) if _waits(snapshot) or not snapshot.queue.received else None
    return message[1:] if message is not None else None
