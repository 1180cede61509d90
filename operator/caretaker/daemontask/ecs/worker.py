"""The worker of one task between its passes: events, checks of clusters, the list of clusters.

Inputs: AWS. Each result asks for a pass; plan.py decides which cluster is checked, and when. Everything here
may be lost at any time: a new process checks every cluster.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from caretaker.api.conditions import EcsReason as Reason
from caretaker.aws.ecs import Ecs
from caretaker.aws.errors import AwsError
from caretaker.aws.pages import KeptBytes, pages
from caretaker.daemontask.ecs.check import (
    DENIED,
    Answer,
    Call,
    CheckParams,
    Facts,
    PendingDecrease,
    ServiceState,
    UnclearError,
    check,
    following,
    no_cluster,
    no_service,
)
from caretaker.daemontask.ecs.instances import Instances, Notice
from caretaker.daemontask.ecs.plan import (
    CONFIRM_SECONDS,
    ECS,
    QUEUE,
    Plan,
    backoff,
    call_failure,
    covers,
    resync_of,
    unclear,
)
from caretaker.daemontask.ecs.reader import Reader
from caretaker.daemontask.ecs.snapshot import CallFailure, ClusterState, Listing, Queue, Snapshot, unchecked
from caretaker.daemontask.metrics import EcsMetrics
from caretaker.kube.errors import NotLeader
from caretaker.obs import log
from caretaker.runtime.tasks import cancel

logger = logging.getLogger(__name__)

PAGE: Final = 100
# Twice the quota of an account in a region (Amazon ECS service quotas).
MOST_CLUSTERS: Final = 20_000
MOST_NAMED: Final = 1_000  # names of unknown clusters that are kept until the next list


class _Named(msgspec.Struct, frozen=True):
    """The first and the last event of an unknown cluster, by time.monotonic(); `at`: in Unix seconds."""

    first: float = 0.0
    last: float = 0.0
    at: float = 0.0


class _Learnt(msgspec.Struct):
    """Of one cluster. `since`: when the facts began to be gathered, by time.monotonic()."""

    instances: Instances
    facts: Facts = Facts()
    since: float = 0.0

    def keep(self, facts: Facts) -> None:
        """Keep all facts of a check."""
        self.facts = facts


class Worker:
    """The worker of one task, by UID and spec, which `snapshot` has. `on_news` asks for a pass."""

    def __init__(
        self, snapshot: Snapshot, ecs: Ecs, metrics: EcsMetrics, on_news: Callable[[], None]
    ) -> None:
        assert snapshot.spec is not None  # noqa: S101 - an idle task has no worker
        self.uid = snapshot.meta.uid
        self.spec = snapshot.spec
        self.clusters: dict[str, ClusterState] = unchecked(self.spec)
        self.listing = Listing()
        self.reader: Reader | None = None
        self._ecs = ecs
        self._metrics = metrics
        self._on_news = on_news
        self._learnt: dict[str, _Learnt] = {}  # by cluster
        self._named: dict[str, _Named] = {}  # clusters that events name and no list has
        self._tasks: set[asyncio.Task[None]] = set()

    def serves(self, snapshot: Snapshot) -> bool:
        """Whether it is the worker of this task and spec."""
        return (self.uid, self.spec) == (snapshot.meta.uid, snapshot.spec)

    async def end(self) -> None:
        """Cancel all checks."""
        await cancel(*self._tasks)

    @property
    def queue(self) -> Queue:
        """The state of the queue."""
        if self.reader is None:
            return Queue()
        problem = self.reader.problem
        failure = call_failure(problem, QUEUE) if problem is not None else None
        return Queue(self.reader.connected, failure, self.reader.fault)

    # ---------------------------------------------------------------- events

    def hear(self, notices: Sequence[Notice]) -> None:
        """Mark the clusters in which the number of container instances may have changed."""
        news = False
        for notice in notices:
            if notice.region != self.spec.aws.region or not self._concerns(notice.cluster):
                self._metrics.events.labels("Foreign").inc()
                continue
            if notice.cluster not in self.clusters:
                self._metrics.events.labels("Changed").inc()
                news = self._name(notice.cluster) or news
                continue
            changed = self._of(notice.cluster).instances.changed(notice)
            self._metrics.events.labels("Changed" if changed else "Unchanged").inc()
            if changed:
                self._mark(notice.cluster)
                news = True
        if news:
            self._on_news()

    def _concerns(self, cluster: str) -> bool:
        return not self.spec.clusters or cluster in self.spec.clusters

    def _name(self, cluster: str) -> bool:
        """Note a cluster that the next list may have: whoever sends to the queue may name any. Whether it is
        a new name."""
        now = time.monotonic()
        self.listing = replace(self.listing, named=now)
        known = self._named.get(cluster)
        if known is not None or len(self._named) < MOST_NAMED:
            self._named[cluster] = _Named(now if known is None else known.first, now, time.time())
            return known is None
        return False  # the list is on its way already

    def _of(self, cluster: str) -> _Learnt:
        return self._learnt.setdefault(cluster, _Learnt(Instances(self.spec.count_instances)))

    def _mark(self, cluster: str) -> None:
        state = self.clusters[cluster]
        self.clusters[cluster] = replace(state, dirty=state.dirty or time.monotonic(), event_at=time.time())

    # ---------------------------------------------------------------- checks of a pass

    def begin(self, plan: Plan) -> None:
        """Start the checks and the list of a plan."""
        with log.outside_pass():
            if plan.list:
                self.listing = replace(self.listing, busy=True)
                self._spawn(self._list())
            for name in plan.checks:
                state = self.clusters[name]
                since = state.dirty
                # An event from now on may be about a change that this check misses.
                self.clusters[name] = replace(state, busy=True, dirty=0.0, checked=time.monotonic())
                self._spawn(self._check(name, since))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine, name="ecs-check")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------- checks

    async def _check(self, name: str, since: float) -> None:
        """Look at one cluster. `since`: when the first event came that asks for it, 0 = none did."""
        learnt = self._of(name)
        learnt.instances.begin()
        # A check for an event takes three calls, without a list; so does a retry.
        learn = not (since or self.clusters[name].retry or learnt.instances.complete)
        params = self._wanted(name, learn=learn)
        calls, service, failure = 0, None, None
        steps = check(params, learnt.keep)
        answer: Answer | None = None
        try:
            while service is None:
                step = following(steps, answer)
                if isinstance(step, ServiceState):
                    service = step
                else:
                    calls += 1
                    self._found(name, step)
                    answer = await send(self._ecs, step)
        except AwsError as error:
            failure = call_failure(error, ECS)
            if failure.absent:
                gone = failure.reason == Reason.SERVICE_NOT_FOUND
                service, failure = no_service(params) if gone else no_cluster(name), None
        except UnclearError as error:
            failure = unclear(error)
        except NotLeader as error:  # the guard: nothing was sent
            logger.info("cluster %s is left as it is: %s", name, error)
            self._put_off(name, since, calls)
            self._count(None, since)
            return
        except Exception as error:  # an unexpected response must not end the worker
            logger.exception("the look at cluster %s failed", name)
            failure = CallFailure(Reason.UNREACHABLE, f"{type(error).__name__}: {error}", transient=True)
        self._checked(name, since, service, failure, calls)
        self._count(service, since)

    def _found(self, name: str, call: Call) -> None:
        """Raise the pending decrease to the count that a check is about to set. UpdateService may fail, and a
        later check must not confirm fewer than this one has found."""
        service = self.clusters[name].service
        if call.method != "update_service" or service is None or service.decrease is None:
            return
        counted = max(service.decrease.counted, call.parameters["desiredCount"])
        service = replace(service, decrease=replace(service.decrease, counted=counted))
        self.clusters[name] = replace(self.clusters[name], service=service)

    def _wanted(self, name: str, *, learn: bool) -> CheckParams:
        spec, state = self.spec, self.clusters[name]
        now = time.monotonic()
        learnt = self._of(name)
        if now - learnt.since >= resync_of(spec):
            learnt.facts, learnt.since = learnt.facts.lasting, now
        decrease = state.service.decrease if state.service is not None else None
        return CheckParams(
            name,
            spec.service,
            spec.count_instances,
            learn,
            spec.max_count,
            spec.max_decrease_percent,
            PendingDecrease(decrease.counted, old=now >= state.confirm) if decrease is not None else None,
            learnt.facts,
        )

    def _checked(
        self, name: str, since: float, service: ServiceState | None, failure: CallFailure | None, calls: int
    ) -> None:
        state = self.clusters.get(name)
        if state is None:
            return  # the list no longer has it
        if failure is not None or service is None:
            failures = state.failures + 1
            wait = backoff(failures, transient=failure is None or failure.transient)
            retry = time.monotonic() + wait * random.uniform(0.5, 1)
            # The next try counts as asked for by the same event.
            dirty = since or state.dirty
            changes: dict[str, Any] = {
                "failure": failure,
                "failures": failures,
                "retry": retry,
                "dirty": dirty,
            }
        else:
            if service.arns is not None:
                self._of(name).instances.learn(service.arns, service.counts)
            confirm = 0.0
            if service.decrease is not None:
                new = service.decrease.new
                confirm = time.monotonic() + CONFIRM_SECONDS if new else state.confirm
            changes = {"failure": None, "failures": 0, "retry": 0.0, "service": service, "confirm": confirm}
            if service.was is not None:
                changes["update_at"] = time.time()
        self.clusters[name] = replace(state, busy=False, calls=calls, **changes)
        self._on_news()

    def _put_off(self, name: str, since: float, calls: int) -> None:
        """UpdateService was not sent, for lack of the Lease. No condition reports it, since it is not about
        the cluster; the check is repeated soon."""
        state = self.clusters.get(name)
        if state is None:
            return  # the list no longer has it
        wait = backoff(1, transient=True) * random.uniform(0.5, 1)
        self.clusters[name] = replace(
            state, busy=False, calls=calls, retry=time.monotonic() + wait, dirty=since or state.dirty
        )
        self._on_news()

    def _count(self, service: ServiceState | None, since: float) -> None:
        if service is None:
            result = "Failed"
        elif service.was is not None:
            result = "Updated"
        else:
            result = "InStep" if service.in_step else "LeftAlone"
        self._metrics.looks.labels(result).inc()
        if since and service is not None:
            self._metrics.lag.observe(time.monotonic() - since)

    # ---------------------------------------------------------------- the list

    async def _list(self) -> None:
        """List every cluster of the account in the region."""
        found: list[str] = []
        failure: CallFailure | None = None
        begun = time.monotonic()
        try:
            found = await listed(self._ecs)
        except AwsError as error:
            failure = call_failure(error, ECS)
        except UnclearError as error:
            failure = unclear(error)
        except Exception as error:  # an unexpected response must not end the worker
            logger.exception("the clusters cannot be listed")
            failure = CallFailure(Reason.UNREACHABLE, f"{type(error).__name__}: {error}", transient=True)
        self._listed(found, failure, begun)

    def _listed(self, found: Sequence[str], failure: CallFailure | None, begun: float) -> None:
        before = self.listing
        if failure is not None:
            failures = before.failures + 1
            wait = backoff(failures, transient=failure.transient) * random.uniform(0.5, 1)
            retry = time.monotonic() + wait
            self.listing = replace(before, busy=False, failure=failure, failures=failures, retry=retry)
        else:
            self.listing = Listing(at=time.monotonic(), begun=begun, named=before.named)
            listed = set(found)
            for name, state in list(self.clusters.items()):
                # A cluster with an event may be newer than the list, unless it cannot even be checked.
                if name not in listed and not state.busy and (not state.dirty or state.failures):
                    del self.clusters[name]
                    self._learnt.pop(name, None)
            for name in listed - self.clusters.keys():
                event = self._named.get(name, _Named())
                self.clusters[name] = ClusterState(dirty=event.first, event_at=event.at)
            full = len(self._named) >= MOST_NAMED
            self._named = {
                name: event
                for name, event in self._named.items()
                if name not in listed and not covers(self.listing, event.last)
            }
            if not self._named and not full:
                self.listing = replace(self.listing, named=0.0)
        self._on_news()


async def send(ecs: Ecs, call: Call) -> Answer:
    """Send a call. Each method is named here, so that this lists all that AWS is asked. Raises AwsError."""
    given = call.parameters
    if call.method == "describe_task_definition":
        return await _definition(ecs, given)
    answer: Answer
    match call.method:
        case "describe_services":
            answer = await ecs.describe_services(**given)
        case "describe_clusters":
            answer = await ecs.describe_clusters(**given)
        case "describe_capacity_providers":
            answer = await ecs.describe_capacity_providers(**given)
        case "describe_container_instances":
            answer = await ecs.describe_container_instances(**given)
        case "list_container_instances":
            answer = await ecs.list_container_instances(**given)
        case "update_service":
            answer = await ecs.update_service(**given)
    return answer


async def _definition(ecs: Ecs, given: dict[str, Any]) -> Answer:
    try:
        return await ecs.describe_task_definition(**given)
    except AwsError as error:
        if not error.access_denied:
            raise
        return {DENIED: True}


async def listed(ecs: Ecs) -> list[str]:
    """The names of all clusters. Raises AwsError, UnclearError."""
    arns: list[str] = []
    async for answer in pages(ecs.list_clusters, by="nextToken", kept=KeptBytes(), maxResults=PAGE):
        if answer.get("clusterArns") is None:
            raise UnclearError("ListClusters answered without clusterArns")
        arns += answer["clusterArns"]
        if len(arns) > MOST_CLUSTERS:
            raise UnclearError(f"ListClusters answered with more than {MOST_CLUSTERS:,} clusters")
    return [arn.rpartition("/")[2] for arn in arns]
