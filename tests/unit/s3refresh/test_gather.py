"""What a pass reads changes nothing; what precedes the status is written by before()."""

import asyncio
import time
from typing import Any, Final

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.grants import Grants
from caretaker.api.names import REFRESH_AT
from caretaker.api.objects import WireMeta
from caretaker.aws.identity import ClientKey
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Conflict
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.controller import S3AggregatedRefreshKind
from caretaker.s3refresh.costs import CostView
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.metrics import S3RefreshMetrics
from caretaker.s3refresh.resource import FINALIZER, RawRefresh
from caretaker.s3refresh.shared import Dependencies
from caretaker.s3refresh.snapshot import Discovery, Plan
from testing.s3refreshes import refresh

KEY: Final = Key("S3AggregatedRefresh", "ours", "r")
OWN: Final = Grants.default("ours")


class ApiServer:
    """Holds the resource `r` and records what is asked."""

    host = "https://api.example.com"
    guard = None

    def __init__(self, **spec: Any) -> None:
        wanted = refresh(
            **{
                "filter": {"buckets": ["media"]},
                "target": {"http": {"url": "https://cdn.example.com/purge"}},
                **spec,
            }
        )
        self.resource = RawRefresh(
            WireMeta(name="r", namespace="ours", uid="u", resource_version="7"),
            msgspec.Raw(msgspec.json.encode(wanted)),
        )
        self.asked: list[tuple[str, Any]] = []
        self.strips = False  # a webhook takes each change back, and allows no dry run
        self.old = False  # its CRD has no status.requests

    async def get(self, path: str, _: Any) -> RawRefresh:
        self.asked.append(("get", path))
        return self.resource

    async def patch(self, path: str, body: Any, *_: Any, params: Any = None) -> RawRefresh:
        if params is not None:
            self.asked.append(("try", path))
            if self.strips:
                raise ApiError(400, "BadRequest", "webhook does not support dry run")
            asked = {} if self.old else {"requests": body["status"]["requests"]}
            return msgspec.structs.replace(self.resource, status=msgspec.Raw(msgspec.json.encode(asked)))
        self.asked.append(("patch", body))
        if not self.strips:
            written = msgspec.structs.replace(self.resource.metadata, resource_version="8")
            self.resource = RawRefresh(written, self.resource.spec)
        return self.resource

    async def list(self, path: str, *_: Any, **__: Any) -> tuple[list[Any], str]:
        self.asked.append(("list", path))
        return [], ""


class Silent:
    """A service that never answers."""

    def __getattr__(self, _: str) -> Any:
        async def call(**_: Any) -> Any:
            await asyncio.Event().wait()

        return call


class Aws:
    """`counted`: the calls to CloudWatch."""

    def __init__(self) -> None:
        self.counted: list[str] = []

    def sqs(self, *_: Any) -> Silent:
        return Silent()

    storagegateway = sqs

    def cloudwatch(self, key: ClientKey) -> Silent:
        self.counted.append(key.region)
        return Silent()

    def retire(self, _: Any) -> None:
        """No keys are replaced."""


def kind_of(client: Any, added: list[Key], aws: Any = None) -> S3AggregatedRefreshKind:
    aws = aws or Aws()
    metrics = S3RefreshMetrics(CollectorRegistry())
    return S3AggregatedRefreshKind(Dependencies(client, aws, OWN, metrics, added.append, owner="me"))


def shown(kind: S3AggregatedRefreshKind) -> list[Any]:
    (family,) = kind._metrics.dirty.collect()
    return list(family.samples)


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("s3refresh")}


@pytest.mark.parametrize("on_delete", ["Discard", "Flush"])
async def test_a_gather_only_reads(on_delete: str) -> None:
    api, added = ApiServer(onDelete=on_delete), list[Key]()
    kind = kind_of(api, added)
    for _ in range(2):
        snapshot = await kind.gather(KEY)
    assert snapshot is not None
    assert snapshot.setup.config is not None
    assert {verb for verb, _ in api.asked} == {"get"}
    assert (kind._shared.workers, tasks(), added) == ({}, set(), [])
    assert not kind._shared.claims.has_source(snapshot.setup.config.source.arn)


async def test_a_request_is_taken_only_where_the_crd_keeps_its_record() -> None:
    api = ApiServer()
    kind, api.old = kind_of(api, []), True
    api.resource.metadata.annotations = {REFRESH_AT: "2026-01-31T12:00:00Z"}
    for _ in range(2):
        snapshot = await kind.gather(KEY)
        assert snapshot is not None
        (error,) = snapshot.plan_input.requests.errors
        assert not snapshot.plan_input.requests.any
        assert error.startswith("status.requests is not stored, so no request is taken: install the CRDs")
    api.old = False
    for _ in range(2):
        snapshot = await kind.gather(KEY)
        assert snapshot is not None
        assert snapshot.plan_input.requests.everything
    tried = [path for verb, path in api.asked if verb == "try"]
    assert [path.rpartition("/s3aggregatedrefreshes/")[2] for path in tried] == ["r/status"] * 3


async def test_a_request_is_taken_where_a_webhook_allows_no_dry_run() -> None:
    api = ApiServer()
    api.strips = True
    api.resource.metadata.annotations = {REFRESH_AT: "2026-01-31T12:00:00Z"}
    snapshot = await kind_of(api, []).gather(KEY)
    assert snapshot is not None
    assert snapshot.plan_input.requests.everything


async def test_before_the_status_its_tasks_begin_and_its_queue_is_claimed() -> None:
    api = ApiServer()
    kind = kind_of(api, [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    assert snapshot.setup.config is not None
    await kind.before(snapshot, kind.plan(snapshot))
    assert [verb for verb, _ in api.asked] == ["get", "list"], "the calls of former leaders are read"
    assert tasks() == {"s3refresh-ends", "s3refresh-discover", "s3refresh-check"}
    assert kind._shared.claims.has_source(snapshot.setup.config.source.arn)
    kind.forget(KEY)
    assert not kind._shared.claims.has_source(snapshot.setup.config.source.arn)
    await kind.stop()
    if ending := [one for one in asyncio.all_tasks() if one.get_name() in tasks()]:
        await asyncio.wait(ending, timeout=10)
    assert tasks() == set()


async def test_once_a_stop_has_begun_a_pass_under_way_begins_no_tasks() -> None:
    """They would read its queue until the process ends."""
    kind = kind_of(ApiServer(), [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    await kind.quiesce(10)
    await kind.before(snapshot, kind.plan(snapshot))
    assert tasks() == set()
    await kind.stop()
    await kind.before(snapshot, kind.plan(snapshot))
    assert tasks() != set(), "when it leads again they begin"
    await kind.stop()


@pytest.mark.parametrize("stopping", [False, True])
async def test_cloudwatch_is_asked_for_a_bucket_on_record_unless_a_stop_has_begun(*, stopping: bool) -> None:
    """A process that stops neither asks nor records that it does: the next one asks at once."""
    aws, gateway = Aws(), {"storageGateway": {"shares": {"discover": {}}}}
    kind = kind_of(ApiServer(cost={}, target=gateway, filter={}), [], aws)
    first = await kind.gather(KEY)
    assert first is not None
    await kind.before(first, kind.plan(first))
    share = Share("share-1", "arn:share-1", "media", region="eu-west-1")
    kind._shared.workers[KEY].discoverer.discovery = Discovery(complete=True, shares=(share,))
    due = await kind.gather(KEY)
    assert due is not None
    assert list(due.cost.due) == [("eu-west-1", "media")]
    assert aws.counted == [], "it is not on record yet"
    if stopping:
        await kind.quiesce(10)
        later = await kind.gather(KEY)
        assert later is not None
        assert later.cost.due == {}
    await kind.after(due, kind.plan(due), None)
    assert aws.counted == ([] if stopping else ["eu-west-1"])
    await kind.stop()


async def test_a_resource_where_nothing_happens_is_looked_at_when_its_count_is_due() -> None:
    kind = kind_of(ApiServer(), [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    soon = msgspec.structs.replace(snapshot, cost=CostView(wake=time.time() + 30))
    assert kind.requeue(snapshot, Plan(), None).delay is None
    assert 29 < (kind.requeue(soon, Plan(), None).delay or 0) <= 30


async def test_a_pass_shows_its_targets_before_its_status_is_written() -> None:
    kind = kind_of(ApiServer(), [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    plan = kind.plan(snapshot)
    kind.observe(snapshot, plan, kind.status(snapshot, plan, None))
    assert [sample.labels for sample in shown(kind)] == [{"namespace": "ours", "name": "r"}]
    kind.forget(KEY)
    assert shown(kind) == []


async def test_a_finalizer_is_written_before_any_task_begins_and_the_pass_runs_again() -> None:
    api = ApiServer(onDelete="Flush")
    kind = kind_of(api, [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    with pytest.raises(Conflict):
        await kind.before(snapshot, kind.plan(snapshot))
    assert api.asked[1:] == [("patch", {"metadata": {"resourceVersion": "7", "finalizers": [FINALIZER]}})]
    assert tasks() == set()
    assert snapshot.setup.config is not None
    assert not kind._shared.claims.has_source(snapshot.setup.config.source.arn), "nor is a queue claimed"


async def test_a_finalizer_that_a_webhook_takes_off_does_not_keep_the_resource_from_its_work() -> None:
    api = ApiServer(onDelete="Flush")
    api.strips = True
    kind = kind_of(api, [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    await kind.before(snapshot, kind.plan(snapshot))
    assert tasks() != set()
    await kind.stop()


async def test_a_queue_that_another_resource_has_claimed_meanwhile_is_not_read() -> None:
    api = ApiServer()
    kind = kind_of(api, [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    older = msgspec.structs.replace(api.resource.metadata, name="a", creation_timestamp="")
    api.resource = RawRefresh(older, api.resource.spec)
    other = await kind.gather(Key("S3AggregatedRefresh", "ours", "a"))
    assert other is not None
    await kind.before(other, kind.plan(other))
    with pytest.raises(Conflict):
        await kind.before(snapshot, kind.plan(snapshot))
    assert [worker for worker in kind._shared.workers if worker.name == "r"] == []
    await kind.stop()
