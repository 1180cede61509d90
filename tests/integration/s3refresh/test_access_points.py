"""Shares that reach their bucket through an access point: a real API server and operator, and the doubles of
Storage Gateway and S3 Control."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from awsdoubles.gateway.control import Control
from awsdoubles.gateway.server import StorageGateway
from testbed.admin import Admin, Json
from testbed.cluster import Cluster
from testing import refreshing
from testing.aws import Aws, Source
from testing.cli import Cli
from testing.operator import OperatorProcess
from testing.refreshing import Refresh, Refreshing, condition, gateway, operator

ALLOW = "allow s3:GetAccessPoint to the identity that spec.aws names, or add `finance: BUCKET`"


@pytest.fixture
def env(aws: Aws, storage_gateway: StorageGateway) -> dict[str, str]:
    return aws.environment(storage_gateway.url)


@pytest.fixture
async def process(
    cluster: Cluster, namespace: str, tmp_path: Path, env: dict[str, str]
) -> AsyncIterator[OperatorProcess]:
    """An operator that calls the doubles in place of AWS itself: no endpoint is the spec's."""
    made = operator(cluster.kubeconfig, tmp_path, env, namespace=namespace)
    try:
        yield made.start()
    finally:
        made.kill9()
        print("\n".join(made.lines))
    made.assert_clean_logs()


@pytest.fixture
async def place(
    admin: Admin, namespace: str, aws: Aws, storage_gateway: StorageGateway, process: OperatorProcess
) -> AsyncIterator[Refreshing]:
    made = Refreshing(admin, namespace, aws, storage_gateway.control)
    yield made
    await made.clear()


async def watched(place: Refreshing, source: Source, name: str = "r", **spec: Any) -> Refresh:
    # A receive of a killed operator that still waited would hide the next message.
    sqs = refreshing.sqs(source.queue, waitTime="0s")
    return await place.create(source.queue, name, **{"source": {"sqs": sqs}, "target": gateway(), **spec})


def share_of(place: Refreshing, source: Source, name: str = "finance", prefix: str = "") -> tuple[str, str]:
    """(a share of the bucket, the ARN of the access point that its location names)."""
    point = str(place.control.add_access_point(name, bucket=source.bucket)["arn"])
    location = f"{point}/{prefix}" if prefix else point
    return place.share(source.bucket, prefix=prefix, location=location), point


def lookups(control: Control) -> list[Json]:
    return control.calls("GetAccessPoint")


def locations(found: Json) -> set[str]:
    return {one.get("location", "") for one in found["status"].get("targets", ())}


def unresolved(found: Json) -> str:
    """The message of TargetsResolved=False."""
    now = condition(found, "TargetsResolved")
    return now["message"] if now.get("reason") == "TargetsUnresolved" else ""


async def test_events_of_the_bucket_refresh_its_share_and_s3_is_asked_once_also_after_kills(
    place: Refreshing, process: OperatorProcess
) -> None:
    source, other = place.aws.source(), place.aws.source()
    share, _ = share_of(place, source, prefix="team/")
    resource = await watched(place, source)
    second = await watched(place, other, "other", target=gateway(rediscoverEvery="10s"))
    await resource.condition("Ready")
    await second.condition("Ready")
    for number in range(3):
        if number:
            process.kill9()
            process.start()
        await place.put(source.bucket, f"team/{number}/a", f"elsewhere/{number}")
        await place.fresh(share)
        assert locations(await resource.get()) == {f"{source.bucket}/team/"}
        assert len(lookups(place.control)) == number + 1, "by each process, for both resources"
    assert {call["code"] for call in lookups(place.control)} == {""}
    made = place.control.refreshes(share)
    assert not any("elsewhere" in folder for one in made for folder in one["folders"])


async def test_a_denied_access_point_is_named_and_keeps_no_other_share_waiting(place: Refreshing) -> None:
    source, other = place.aws.source(), place.aws.source()
    place.aws.wiring.connect(other.bucket, source.queue)
    plain = place.share(other.bucket)
    share, point = share_of(place, source)
    place.control.deny_access_point(point)
    resource = await watched(place, source)
    said = await resource.condition("TargetsResolved", "False", "TargetsUnresolved")
    assert said["message"].startswith(f"{share}: which bucket access point {point} belongs to is not known: ")
    assert "s3control:GetAccessPoint: AccessDenied" in said["message"]
    assert ALLOW in said["message"]
    neighbour_source = place.aws.source()
    named = {"fileShareARNs": [place.share(neighbour_source.bucket)]}
    neighbour = await watched(place, neighbour_source, "n", target={"storageGateway": {"shares": named}})
    await neighbour.condition("Ready")
    await place.put(other.bucket, "a/1")
    await place.put(source.bucket, "b/1")
    await place.fresh(plain)
    await place.emptied(source.queue.url)
    assert place.control.refreshes(share) == []
    place.control.deny_access_point(point, denied=False)
    await place.fresh(share)
    (whole,) = place.control.refreshes(share)
    assert whole["recursive"], "it is new, and has missed events"
    found = await resource.condition("Ready")
    assert found["status"] == "True"


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside another share"])
async def test_a_share_on_record_is_refreshed_while_its_access_point_is_denied_after_a_kill(
    place: Refreshing, process: OperatorProcess, alone: bool
) -> None:
    source = place.aws.source()
    if not alone:
        place.share(place.aws.bucket())
    share, point = share_of(place, source)
    resource = await watched(place, source)
    await place.put(source.bucket, "a/1")
    await place.fresh(share)
    await resource.caught_up()
    place.control.fault("delay", operation="GetAccessPoint", seconds=4)
    process.kill9()
    before = len(lookups(place.control))
    process.start()
    await place.until(lambda: len(lookups(place.control)) > before, "S3 is asked")
    process.kill9()  # before the answer
    place.control.deny_access_point(point)
    process.start()
    await resource.when(lambda r: ALLOW in unresolved(r))
    await place.put(source.bucket, "b/1")
    await place.fresh(share)
    last = place.control.refreshes(share)[-1]
    assert (set(last["folders"]), last["recursive"]) == ({"/", "b"}, False)
    place.control.deny_access_point(point, denied=False)
    await resource.condition("Ready")


async def test_an_access_point_that_is_made_again_on_another_bucket_loses_no_event(
    place: Refreshing, process: OperatorProcess
) -> None:
    source, other = place.aws.source(), place.aws.bucket()
    place.aws.wiring.connect(other, source.queue)
    share, point = share_of(place, source)
    resource = await watched(place, source)
    await place.fresh(share)
    await resource.when(lambda r: locations(r) == {f"{source.bucket}/"})
    process.kill9()
    before = len(place.control.refreshes(share))
    place.control.remove_access_point(point)
    place.control.add_access_point("finance", bucket=other)
    place.control.deny_access_point(point)
    process.start()
    await resource.when(lambda r: ALLOW in unresolved(r))
    await place.put(other, "a/1")
    await place.emptied(source.queue.url)
    assert len(place.control.refreshes(share)) == before, "its bucket is not known: the event is gone"
    place.control.deny_access_point(point, denied=False)
    await resource.when(lambda r: locations(r) == {f"{other}/"})
    await place.until(lambda: len(place.control.refreshes(share)) > before, "the share is refreshed")
    assert place.control.refreshes(share)[-1]["recursive"], "it has missed events"


async def test_s3_that_throttles_is_asked_again_and_the_condition_says_so(place: Refreshing) -> None:
    source = place.aws.source()
    share, _ = share_of(place, source)
    busy = {"status": 503, "code": "SlowDown", "message": "Please reduce your request rate."}
    place.control.fault("refuse", operation="GetAccessPoint", count=1, **busy)
    resource = await watched(place, source)
    await resource.when(lambda r: "SlowDown: Please reduce your request rate." in unresolved(r))
    await resource.condition("Ready")
    await place.put(source.bucket, "a/1")
    await place.fresh(share)
    assert [one["code"] for one in lookups(place.control)] == ["SlowDown", ""]


async def test_an_alias_leads_to_its_bucket_and_a_multi_region_access_point_is_refused(
    place: Refreshing,
) -> None:
    source = place.aws.source()
    alias = place.control.add_access_point("media", bucket=source.bucket)["alias"]
    share = place.share(source.bucket, location=f"arn:aws:s3:::{alias}")
    multi = place.share(source.bucket, location="arn:aws:s3::000000000000:accesspoint/mfzwi23gnjvgw.mrap")
    resource = await watched(place, source)
    words = "Multi-Region Access Point mfzwi23gnjvgw.mrap is not supported: use an access point of one bucket"
    await resource.when(lambda r: unresolved(r) == f"{multi}: {words}")
    await place.put(source.bucket, "a/1")
    await place.fresh(share)
    assert len(lookups(place.control)) == 1


async def test_plan_and_status_show_the_bucket_or_what_to_do(
    place: Refreshing,
    cluster: Cluster,
    namespace: str,
    env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    cli = Cli(Path(cluster.kubeconfig), namespace)
    source = place.aws.source()
    share, point = share_of(place, source, prefix="team/")
    body = json.dumps(place.body(source.queue))
    said = await cli("plan", "-f", "-", stdin=body)
    assert said.code == 0, said.err
    assert f"  access point {point}: bucket {source.bucket}" in said.lines
    place.control.deny_access_point(point)
    said = await cli("plan", "-f", "-", stdin=body)
    assert said.code == 1
    assert point in said.err
    assert "allow s3:GetAccessPoint to the identity you ask with, or add `finance: BUCKET`" in said.err
    place.control.deny_access_point(point, denied=False)
    resource = await watched(place, source)
    await resource.condition("Ready")
    said = await asyncio.wait_for(cli("status", f"s3ar/{resource.name}", "-o", "wide"), 30)
    (row,) = [line for line in said.lines if share.rpartition("/")[2] in line]
    assert f"{source.bucket}/team/" in row
    await resource.when(lambda r: locations(r) == {f"{source.bucket}/team/"})
    place.control.deny_access_point(point)
    said = await cli("plan", "-f", "-", "--output", "json", stdin=body)
    (target,) = json.loads(said.out)["refreshes"][0]["targets"]
    assert (target["bucket"], target["prefix"], target["usable"]) == (source.bucket, "team/", True)
    assert target["accessPoint"] is None, "S3 has not named it"
