"""What a look leaves for the next one: when it failed, and when an event came meanwhile."""

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.daemontask.ecs import worker as worker_module
from caretaker.daemontask.ecs.check import Call
from caretaker.daemontask.ecs.conditions import ready
from caretaker.daemontask.ecs.plan import (
    BACKOFF,
    BACKOFF_REFUSED,
    CONFIRM_SECONDS,
    LIST_SECONDS,
    MERGE_SECONDS,
    Plan,
    plan,
)
from caretaker.daemontask.ecs.snapshot import CallFailure, ClusterState, Snapshot
from caretaker.daemontask.ecs.worker import MOST_CLUSTERS, MOST_NAMED, Worker
from caretaker.daemontask.metrics import EcsMetrics
from caretaker.kube.errors import NotLeader
from fakes import virtualtime
from fakes.virtualtime import monotonic, played
from unit.daemontask.ecs.build import INSTANCE, Account, notice, snapshot, spec
from unit.daemontask.ecs.played import Played


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits, and a busy machine changes no order."""
    monkeypatch.setattr(worker_module, "time", virtualtime)


class Ecs:
    """An account; the first call of each of the methods that `errors` names fails so."""

    def __init__(self, account: Account | Played, **errors: Exception) -> None:
        self.account = account
        self.errors = errors

    def __getattr__(self, method: str) -> Any:
        async def answer(**parameters: Any) -> Any:
            if method in self.errors:
                raise self.errors.pop(method)
            if method == "list_clusters":
                return {"clusterArns": []}
            return self.account.answer(Call(method, parameters))  # type: ignore[arg-type]

        return answer


@played
async def test_a_look_that_an_event_asked_for_takes_three_calls_when_it_is_tried_again() -> None:
    account = Account(desiredCount=1)
    account.active = {f"{INSTANCE}/prod/a", f"{INSTANCE}/prod/b"}
    throttled = AwsError(ErrorClass.THROTTLED, "ThrottlingException", "no", service="ecs", operation="x")
    news = asyncio.Event()
    registry = CollectorRegistry()
    ecs: Any = Ecs(account, describe_services=throttled)
    worker = Worker(snapshot(spec("prod")), ecs, EcsMetrics(registry), news.set)
    worker.hear([notice("b")])
    for _ in range(2):
        news.clear()
        worker.begin(Plan(("prod",)))
        await asyncio.wait_for(news.wait(), 10)
    calls, lags = account.calls, registry.get_sample_value("caretaker_daemontask_ecs_lag_seconds_count") or 0
    assert calls == ["describe_services", "list_container_instances", "update_service"]
    assert lags == 1, "how late a change was followed is told, failures included"


@pytest.mark.parametrize(
    ("error", "waits"), [(ErrorClass.THROTTLED, BACKOFF), (ErrorClass.ACCESS_DENIED, BACKOFF_REFUSED)]
)
@played
async def test_a_look_that_failed_waits_for_its_backoff(error: ErrorClass, waits: tuple[float, ...]) -> None:
    """Half of it at least."""

    news = asyncio.Event()
    ecs = Ecs(Account())
    given: Any = ecs
    worker = Worker(snapshot(spec("prod")), given, EcsMetrics(CollectorRegistry()), news.set)
    for wait in (*waits, waits[-1]):
        ecs.errors["describe_services"] = AwsError(error, "No", "no", service="ecs", operation="x")
        news.clear()
        began = monotonic()
        worker.begin(Plan(("prod",)))
        await asyncio.wait_for(news.wait(), 10)
        assert began + wait / 2 <= worker.clusters["prod"].retry <= monotonic() + wait


@pytest.mark.parametrize(
    ("code", "reason"), [("ServiceNotFound", "ServiceNotFound"), ("ClusterNotFound", "ClusterNotFound")]
)
@played
async def test_what_is_deleted_between_two_calls_is_called_by_its_name(code: str, reason: str) -> None:
    account = Account(desiredCount=1)
    account.active = {f"{INSTANCE}/prod/a", f"{INSTANCE}/prod/b"}
    error = AwsError(ErrorClass.NOT_FOUND, f"{code}Exception", "no", service="ecs", operation="UpdateService")
    news = asyncio.Event()
    ecs: Any = Ecs(account, update_service=error)
    worker = Worker(snapshot(spec("prod")), ecs, EcsMetrics(CollectorRegistry()), news.set)
    worker.begin(Plan(("prod",)))
    await asyncio.wait_for(news.wait(), 10)
    found = worker.clusters["prod"].service
    assert found is not None
    assert found.reason == reason


@played
async def test_a_cluster_that_is_gone_and_cannot_be_looked_at_is_forgotten() -> None:
    denied = AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="ecs", operation="x")
    news = asyncio.Event()
    ecs: Any = Ecs(Account(), describe_services=denied)
    worker = Worker(snapshot(spec()), ecs, EcsMetrics(CollectorRegistry()), news.set)
    worker.clusters["prod"] = ClusterState()
    worker.hear([notice("a")])
    found = []
    for asked in (Plan(("prod",)), Plan(list=True)):
        news.clear()
        worker.begin(asked)
        await asyncio.wait_for(news.wait(), 10)
        found.append(set(worker.clusters))
    assert found == [{"prod"}, set()]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        pytest.param([], "Starting", id="nothing is known of the cluster yet"),
        pytest.param(["refused"], "AccessDenied", id="what AWS refused stands"),
        pytest.param(["done"], "InStep", id="what was found stands"),
    ],
)
@played
async def test_a_lease_that_is_too_short_for_a_write_puts_a_look_off_and_no_condition_tells_of_it(
    before: list[str], told: str
) -> None:
    account = Account(desiredCount=1)
    account.active = {f"{INSTANCE}/prod/a"}
    news = asyncio.Event()
    ecs = Ecs(account)
    given: Any = ecs
    worker = Worker(snapshot(spec("prod")), given, EcsMetrics(CollectorRegistry()), news.set)

    async def look(**errors: Exception) -> None:
        ecs.errors.update(errors)
        news.clear()
        worker.begin(Plan(("prod",)))
        await asyncio.wait_for(news.wait(), 10)

    for past in before:
        denied = AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="ecs", operation="x")
        await look(**({"describe_services": denied} if past == "refused" else {}))
    account.active.add(f"{INSTANCE}/prod/b")
    started = monotonic()
    await look(update_service=NotLeader("3 s of the Lease are left"))
    seen = snapshot(clusters=dict(worker.clusters), clock=monotonic())
    asked = [plan(seen), plan(msgspec.structs.replace(seen, clock=started + 2))]
    await look()
    reason, (now, later), count = (
        ready(seen)[1],
        asked,
        account.answer(Call("describe_services", {}))["services"][0]["desiredCount"],
    )
    assert reason == told
    assert (now.checks, now.wake is not None) == ((), True), "it waits for its turn"
    assert later.checks == ("prod",)
    assert count == 2


class Held(Ecs):
    """The first answer to `method` is of its time, and is held back until `go`."""

    def __init__(self, account: Account, method: str) -> None:
        super().__init__(account)
        self.method = method
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, method: str) -> Any:
        ask = super().__getattr__(method)

        async def answer(**parameters: Any) -> Any:
            found = await ask(**parameters)
            if method == self.method and not self.asked.is_set():
                self.asked.set()
                await self.go.wait()
            return found

        return answer


@pytest.mark.parametrize("by_event", [True, False], ids=["a look of an event", "a look of its own"])
@pytest.mark.parametrize(
    ("counts", "method"), [("Registered", "describe_clusters"), ("Active", "list_container_instances")]
)
@played
async def test_an_event_that_comes_during_a_look_leads_to_another(
    counts: str, method: str, *, by_event: bool
) -> None:
    """The answer that is on its way does not have it any more."""

    account = Account(desiredCount=1)
    account.active = {f"{INSTANCE}/prod/a"}
    news = asyncio.Event()
    ecs: Any = Held(account, method)
    given = spec("prod", count_instances=counts)
    worker = Worker(snapshot(given), ecs, EcsMetrics(CollectorRegistry()), news.set)
    if by_event:
        worker.hear([notice("a")])
    news.clear()
    worker.begin(Plan(("prod",)))
    await asyncio.wait_for(ecs.asked.wait(), 10)
    account.active.add(f"{INSTANCE}/prod/b")
    worker.hear([notice("b")])
    seen = snapshot(given, dict(worker.clusters))
    assert plan(seen) == Plan(), "no second look beside the first"
    news.clear()
    ecs.go.set()
    found = []
    for _ in range(2):
        await asyncio.wait_for(news.wait(), 10)
        known = worker.clusters["prod"]
        found.append((known.service.counted if known.service else None, ecs.account.service["desiredCount"]))
        later = msgspec.structs.replace(
            snapshot(given, dict(worker.clusters)), clock=(known.dirty or known.checked) + MERGE_SECONDS
        )
        news.clear()
        worker.begin(plan(later))
    calls = account.calls
    assert found == [(1, 1), (2, 2)]
    assert calls.count("describe_services") == 2, "and no third one"


@played
async def test_so_many_that_are_gone_at_once_are_confirmed_by_a_second_look() -> None:
    """A minute later; and a look of an event before that confirms nothing."""

    account = Account(desiredCount=500)
    news = asyncio.Event()
    ecs: Any = Ecs(account)
    given = spec("prod")
    worker = Worker(snapshot(given), ecs, EcsMetrics(CollectorRegistry()), news.set)
    found = []
    wakes: list[float | None] = []
    began = monotonic()
    for _ in range(3):
        if account.calls:
            worker.hear([notice("gone", version=len(account.calls))])
        news.clear()
        worker.begin(Plan(("prod",)))
        await asyncio.wait_for(news.wait(), 10)
        assert account.service is not None
        seen = snapshot(given, dict(worker.clusters), clock=monotonic())
        found.append((account.service["desiredCount"], ready(seen)[1]))
        wakes.append(plan(seen).wake)
        if len(found) == 2:
            wake = wakes[0]
            assert wake is not None
            assert wakes[1] == wake, "events do not put it off"
            assert wake - began >= CONFIRM_SECONDS
            await asyncio.sleep(wake - monotonic())
    assert found == [
        (500, "ConfirmingDecrease"),
        (500, "ConfirmingDecrease"),
        (0, "InStep"),
    ]


@played
async def test_an_answer_that_says_too_little_is_a_failed_look_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    account = Account(desiredCount=3)
    assert account.service is not None
    del account.service["desiredCount"]
    news = asyncio.Event()
    ecs: Any = Ecs(account)
    worker = Worker(snapshot(spec("prod")), ecs, EcsMetrics(CollectorRegistry()), news.set)
    worker.begin(Plan(("prod",)))
    await asyncio.wait_for(news.wait(), 10)
    assert account.calls == ["describe_services"]
    found = worker.clusters["prod"].failure
    assert found == CallFailure(
        "Unreachable", "spec.ecs: DescribeServices answered without desiredCount", transient=True
    )
    assert caplog.records == []


class Listed(Ecs):
    """An account with these clusters; a list is of its time, and is held back until `go`."""

    def __init__(self, *clusters: str) -> None:
        super().__init__(Account())
        self.clusters = list(clusters)
        self.lists = 0
        self.go = asyncio.Event()
        self.go.set()

    async def list_clusters(self, **_: Any) -> dict[str, Any]:
        found = [f"arn:aws:ecs:eu-west-1:1:cluster/{name}" for name in self.clusters]
        self.lists += 1
        await self.go.wait()
        return {"clusterArns": found}


class Listener:
    """A worker of all clusters, whose passes come when they are due."""

    def __init__(self, ecs: Listed) -> None:
        self.ecs = ecs
        self.news = asyncio.Event()
        given: Any = ecs
        self.worker = Worker(snapshot(spec()), given, EcsMetrics(CollectorRegistry()), self.news.set)

    def seen(self) -> Snapshot:
        worker = self.worker
        states = {"clusters": dict(worker.clusters), "listing": worker.listing}
        return snapshot(spec(), clock=monotonic(), **states)

    async def listed(self) -> None:
        """As long after the first list that the next one is made at once."""
        await self.rest()
        past, listing = monotonic() - LIST_SECONDS, self.worker.listing
        self.worker.listing = msgspec.structs.replace(listing, at=past, begun=past)

    async def rest(self) -> None:
        """Until nothing is due but the resync."""
        async with asyncio.timeout(600):
            while True:
                self.news.clear()
                made = plan(self.seen())
                self.worker.begin(made)
                busy = self.worker.listing.busy or any(one.busy for one in self.worker.clusters.values())
                wait = (made.wake or 0.0) - monotonic()
                if not busy and not made.checks and wait > 60:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.news.wait(), None if busy else max(wait, 0.001))


@played
async def test_a_cluster_that_no_list_has_is_neither_kept_nor_looked_at() -> None:
    of = Listener(Listed("prod"))
    await of.listed()
    calls = len(of.ecs.account.calls)
    began = monotonic()
    of.worker.hear([notice(cluster=f"forged-{number}") for number in range(5_000)])
    assert (set(of.worker.clusters), len(of.worker._named)) == ({"prod"}, MOST_NAMED)
    await of.rest()
    assert (set(of.worker.clusters), of.worker._named, set(of.worker._learnt)) == ({"prod"}, {}, {"prod"})
    assert of.ecs.lists == 3, "the first one, one at once, and one that a list that lags does not defeat"
    assert monotonic() - began >= LIST_SECONDS
    assert len(of.ecs.account.calls) == calls


@pytest.mark.parametrize("forged", [0, 5_000])
@played
async def test_a_new_cluster_is_looked_at_once_the_list_has_it(forged: int) -> None:
    of = Listener(Listed("prod"))
    await of.listed()
    of.ecs.account.calls.clear()  # type: ignore[union-attr]
    of.worker.hear([notice(cluster=f"forged-{number}") for number in range(forged)])
    of.ecs.clusters.append("new")
    of.worker.hear([notice(cluster="new")])
    await of.rest()
    assert set(of.worker.clusters) == {"prod", "new"}
    state = of.worker.clusters["new"]
    assert state.service is not None
    assert bool(state.event_at) == (not forged)
    assert state.calls <= 3, "besides the list"


@played
async def test_an_event_that_comes_during_a_list_leads_to_another_list() -> None:
    of = Listener(Listed("prod"))
    await of.listed()
    of.worker.hear([notice(cluster="forged")])
    of.ecs.go.clear()
    while of.ecs.lists < 2:
        of.worker.begin(plan(of.seen()))
        await asyncio.sleep(0.001)
    of.ecs.clusters.append("new")
    of.worker.hear([notice(cluster="new")])
    of.ecs.go.set()
    await of.rest()
    assert of.worker.clusters["new"].event_at


@played
async def test_a_cluster_that_the_list_has_too_late_is_found() -> None:
    of = Listener(Listed())
    await of.listed()
    of.worker.hear([notice(cluster="new")])
    while of.ecs.lists < 2:
        of.news.clear()
        of.worker.begin(plan(of.seen()))
        await asyncio.sleep(0.001)
    of.ecs.clusters.append("new")
    await of.rest()
    assert of.worker.clusters["new"].event_at


@played
async def test_more_clusters_than_an_account_can_have_are_no_list() -> None:
    of = Listener(Listed(*(f"c{number}" for number in range(MOST_CLUSTERS + 1))))
    of.worker.begin(Plan(list=True))
    await asyncio.wait_for(of.news.wait(), 10)
    number, failure = len(of.worker.clusters), of.worker.listing.failure
    assert (number, failure and failure.message) == (
        0,
        "spec.ecs: ListClusters answered with more than 20,000 clusters",
    )


def test_a_list_of_clusters_that_is_none_forgets_no_cluster() -> None:
    async def run() -> tuple[set[str], CallFailure | None]:
        news = asyncio.Event()

        class Silent(Ecs):
            async def list_clusters(self, **_: Any) -> dict[str, Any]:
                return {"nextToken": "x"}

        ecs: Any = Silent(Account())
        worker = Worker(snapshot(spec()), ecs, EcsMetrics(CollectorRegistry()), news.set)
        worker.clusters["prod"] = ClusterState()
        worker.begin(Plan(list=True))
        await asyncio.wait_for(news.wait(), 10)
        return set(worker.clusters), worker.listing.failure

    clusters, failure = virtualtime.run(run())
    assert clusters == {"prod"}
    assert failure == CallFailure("Unreachable", "spec.ecs: ListClusters answered without clusterArns", True)


def test_a_list_of_clusters_without_an_end_is_read_up_to_16_mib() -> None:
    async def run() -> tuple[int, CallFailure | None]:
        news, number = asyncio.Event(), 0

        class Endless(Ecs):
            async def list_clusters(self, **_: Any) -> dict[str, Any]:
                nonlocal number
                number += 1
                meta = {"Bytes": 4 << 20}
                return {"clusterArns": [f"a{number}"], "nextToken": f"t{number}", "ResponseMetadata": meta}

        ecs: Any = Endless(Account())
        worker = Worker(snapshot(spec()), ecs, EcsMetrics(CollectorRegistry()), news.set)
        worker.begin(Plan(list=True))
        await asyncio.wait_for(news.wait(), 10)
        return number, worker.listing.failure

    number, failure = virtualtime.run(run())
    assert number == 4
    assert failure is not None
    assert "its pages have more than 16 MiB" in failure.message


@played
async def test_managed_scaling_that_is_turned_on_is_seen_within_a_resync_whatever_events_come() -> None:
    ecs = Played(providers=[{"capacityProvider": "asg", "weight": 1}])
    provider = ecs.provider("asg", status="DISABLED")
    ecs.join(2, "asg")
    news = asyncio.Event()
    given: Any = Ecs(ecs)
    registry, every = CollectorRegistry(), spec("prod", resync_seconds=30)
    worker = Worker(snapshot(every), given, EcsMetrics(registry), news.set)
    found: list[str] = []
    began = monotonic()
    while not found or not found[-1]:
        news.clear()
        worker.begin(Plan(("prod",)))
        await asyncio.wait_for(news.wait(), 10)
        provider.status = "ENABLED"
        service = worker.clusters["prod"].service
        assert service is not None
        found.append(service.reason)
        assert monotonic() - began < 60
        await asyncio.sleep(1)
    seconds, calls = monotonic() - began, ecs.calls
    assert found[-1] == "ManagedScaling"
    assert 30 <= seconds <= 32, "until then what is known is not asked for again"
    assert calls.count("DescribeCapacityProviders") == 2


@played
async def test_a_revision_of_a_task_definition_is_read_once_however_many_resyncs_there_are() -> None:
    ecs = Played(facts=False)
    ecs.join(2)
    news = asyncio.Event()
    given: Any = Ecs(ecs)
    every = spec("prod", resync_seconds=30)
    worker = Worker(snapshot(every), given, EcsMetrics(CollectorRegistry()), news.set)
    for _ in range(3):
        news.clear()
        worker.begin(Plan(("prod",)))
        await asyncio.wait_for(news.wait(), 10)
        await asyncio.sleep(30)
    calls = ecs.calls
    assert calls.count("DescribeTaskDefinition") == 1
    assert calls.count("DescribeServices") == 4


@pytest.mark.parametrize("refused", [True, False])
@played
async def test_a_task_definition_that_may_not_be_read_fails_no_look_and_one_that_cannot_be_does(
    *, refused: bool
) -> None:
    ecs = Played(facts=False)
    ecs.join(2)
    kind = ErrorClass.ACCESS_DENIED if refused else ErrorClass.THROTTLED
    error = AwsError(kind, "x", "no", service="ecs", operation="DescribeTaskDefinition")
    news = asyncio.Event()
    given: Any = Ecs(ecs, describe_task_definition=error)
    worker = Worker(snapshot(spec("prod")), given, EcsMetrics(CollectorRegistry()), news.set)
    worker.begin(Plan(("prod",)))
    await asyncio.wait_for(news.wait(), 10)
    service, failure = worker.clusters["prod"].service, worker.clusters["prod"].failure
    assert (service.reason if service else "") == ("TaskDefinitionUnread" if refused else "")
    assert (failure is None) == refused
