"""What a refresh costs: real API server, real operator, the doubles of CloudWatch and Storage Gateway."""

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from awsdoubles.cloudwatch.server import CloudWatch
from awsdoubles.gateway.server import StorageGateway
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing import refreshing
from testing.aws import Aws
from testing.cli import Cli
from testing.operator import OperatorProcess
from testing.refreshing import PLURAL, Refresh, Refreshing, condition, operator

DAY = 24 * 3600
SCALE = 0.05  # a minute is 3 s
MILLION = "a refresh of everything costs an estimated 0.4050 for 1000000 objects"


@pytest.fixture
def scale() -> float:
    return SCALE


@pytest.fixture
def env(aws: Aws, storage_gateway: StorageGateway, cloudwatch: CloudWatch) -> dict[str, str]:
    return aws.environment(storage_gateway.url, cloudwatch_url=cloudwatch.url)


@pytest.fixture
async def process(
    cluster: Cluster, namespace: str, tmp_path: Path, env: dict[str, str], scale: float
) -> AsyncIterator[OperatorProcess]:
    """An operator that calls the doubles in place of AWS itself: no endpoint is the spec's."""
    made = operator(cluster.kubeconfig, tmp_path, env, namespace=namespace, time_scale=scale)
    try:
        yield made.start()
    finally:
        made.kill9()
        print("\n".join(made.lines))
    made.assert_clean_logs()


@pytest.fixture
async def place(
    admin: Admin,
    namespace: str,
    aws: Aws,
    storage_gateway: StorageGateway,
    process: OperatorProcess,
    scale: float,
) -> AsyncIterator[Refreshing]:
    made = Refreshing(admin, namespace, aws, storage_gateway.control, scale=scale)
    yield made
    await made.clear()


def put(cloudwatch: CloudWatch, bucket: str, objects: float) -> None:
    """S3 counts at midnight, and the figure is there a day later."""
    dimensions = {"BucketName": bucket, "StorageType": "AllStorageTypes"}
    midnight = time.time() // DAY * DAY - DAY
    cloudwatch.control.put("AWS/S3", "NumberOfObjects", dimensions, [(midnight, objects)])


def cost(found: Json) -> Json:
    return found["status"].get("cost") or {}


def answered(found: Json) -> bool:
    """Whether CloudWatch has answered for every bucket."""
    buckets = cost(found).get("buckets", ())
    return bool(buckets) and not any(one.get("failures") for one in buckets)


def is_true(found: Json, reason: str) -> bool:
    now = condition(found, "CostEstimated")
    return (now.get("status"), now.get("reason")) == ("True", reason)


async def watched(place: Refreshing, name: str = "r", **spec: Any) -> tuple[Refresh, str, str]:
    """(resource, its share, the share's bucket), whose events reach it."""
    source = place.aws.source()
    share = place.share(source.bucket)
    arns = {"storageGateway": {"shares": {"fileShareARNs": [share]}}}
    # A receive of a killed operator that still waited would hide the next message.
    sqs = refreshing.sqs(source.queue, waitTime="0s")
    made = await place.create(source.queue, name, source={"sqs": sqs}, target=arns, **spec)
    return made, share, source.bucket


async def test_cloudwatch_is_asked_once_a_day_also_after_kills_and_not_without_spec_cost(
    place: Refreshing, process: OperatorProcess, cloudwatch: CloudWatch
) -> None:
    resource, share, bucket = await watched(place)
    put(cloudwatch, bucket, 1_000_000)
    await place.put(bucket, "a/1")
    await place.fresh(share)
    await resource.caught_up()
    assert cloudwatch.control.calls() == []
    assert cost(await resource.get()) == {}
    await resource.edit(cost={})
    found = await resource.when(answered)
    assert is_true(found, "Estimated"), condition(found, "CostEstimated")
    assert condition(found, "CostEstimated")["message"].startswith(MILLION)
    assert (cost(found)["refreshCost"], cost(found)["refreshSeconds"]) == ("0.4050", 182)
    for number in range(2):
        process.kill9()
        process.start()
        # A new resource of the same share, too: the record of the first is known.
        other = await place.create(
            place.aws.queue(),
            f"other-{number}",
            cost={"headPrice": "0.0008"},
            target={"storageGateway": {"shares": {"fileShareARNs": [share]}}},
        )
        found = await other.when(answered)
        assert cost(found)["refreshCost"] == "0.8050"
        await place.put(bucket, f"b{number}/1")
        await place.fresh(share)
    (call,) = cloudwatch.control.calls()
    assert (call["operation"], call["region"], call["code"]) == ("GetMetricData", "eu-west-1", "")


@pytest.mark.parametrize("scale", [0.1])
async def test_an_operator_that_dies_at_a_call_asks_again_after_a_backoff(
    place: Refreshing, process: OperatorProcess, cloudwatch: CloudWatch, scale: float
) -> None:
    """Neither never nor at once: a call that failed is on record."""
    cloudwatch.control.fault("delay", seconds=6)
    resource, share, bucket = await watched(place, cost={})
    put(cloudwatch, bucket, 1_000_000)
    await place.until(lambda: bool(cloudwatch.control.calls()), "CloudWatch is asked")
    process.kill9()
    (recorded,) = cost(await resource.get())["buckets"]
    assert (recorded["failures"], recorded["problem"]) == (1, "CloudWatch has not answered yet")
    process.start()
    await place.put(bucket, "a/1")
    await place.fresh(share)
    found = await resource.when(answered)
    assert is_true(found, "Estimated")
    first, second = cloudwatch.control.calls()
    assert second["at"] - first["at"] >= 60 * scale - 1, "times on record are whole seconds"


async def test_a_cloudwatch_that_refuses_delays_no_refresh_and_is_asked_again(
    place: Refreshing, cloudwatch: CloudWatch
) -> None:
    cloudwatch.control.deny()
    resource, share, bucket = await watched(place, cost={"maxEstimatedCostPerDay": "2"})
    put(cloudwatch, bucket, 1_000_000)
    found = await resource.when(lambda r: "AccessDenied" in condition(r, "CostEstimated").get("message", ""))
    now = condition(found, "CostEstimated")
    assert (now["status"], now["reason"]) == ("False", "CostUnknown")
    assert "allow cloudwatch:GetMetricData to the identity that spec.aws names" in now["message"]
    assert now["message"].endswith("; minInterval stays as it is")
    assert condition(found, "Ready")["status"] == "True"
    await place.put(bucket, "a/1")
    await place.fresh(share)
    cloudwatch.control.allow()
    await resource.when(lambda r: is_true(r, "IntervalWidened"))
    codes = [one["code"] for one in cloudwatch.control.calls()]
    assert codes == ["AccessDenied"] * (len(codes) - 1) + [""]


async def test_a_budget_widens_the_interval_and_loses_nothing(
    place: Refreshing, cloudwatch: CloudWatch, cluster: Cluster, namespace: str
) -> None:
    resource, share, bucket = await watched(place, cost={"maxEstimatedCostPerDay": "2"})
    put(cloudwatch, bucket, 1_000_000)
    await resource.when(lambda r: is_true(r, "IntervalWidened"))
    await place.put(bucket, "a/1")
    await place.fresh(share)
    await resource.caught_up()
    await place.put(bucket, "b/1", "c/1")
    found = await resource.when(lambda r: any(t.get("dirty") for t in r["status"]["targets"]))
    assert cost(found)["minInterval"] == "6h"
    said = await Cli(Path(cluster.kubeconfig), namespace)("status", f"s3ar/{resource.name}")
    assert any("cost: " in line and "the budget makes minInterval 6h" in line for line in said.lines)
    assert "(minInterval by the budget)" in said.out
    assert len(place.control.refreshes(share)) == 1
    await resource.edit(cost={"maxEstimatedCostPerDay": "1000"})
    await place.fresh(share)
    found = await resource.caught_up()
    assert "minInterval" not in {k for k, v in cost(found).items() if v is not None}
    assert is_true(found, "Estimated")
    assert {f for one in place.control.refreshes(share)[1:] for f in one["folders"]} == {"/", "b", "c"}
    assert len(cloudwatch.control.calls()) == 1


async def test_a_bucket_that_the_spec_names_is_not_asked_for(
    place: Refreshing, cloudwatch: CloudWatch
) -> None:
    """accessPointBuckets may name any bucket of the account that the identity may read."""
    source = place.aws.source()
    alias = "media-abcdefghijklmnopqrstuvwxyz-s3alias"
    share = place.share(source.bucket, location=f"arn:aws:s3:::{alias}")
    put(cloudwatch, source.bucket, 5)
    gateway = {"shares": {"fileShareARNs": [share]}, "accessPointBuckets": {alias: source.bucket}}
    resource = await place.create(source.queue, cost={}, target={"storageGateway": gateway})
    problem = "CloudWatch is asked only for buckets that Storage Gateway names itself"
    await resource.when(lambda r: problem in condition(r, "CostEstimated").get("message", ""))
    await place.put(source.bucket, "a/1")
    await resource.caught_up()
    assert cloudwatch.control.calls() == []


async def test_a_job_or_http_target_has_no_cost(place: Refreshing, admin: Admin) -> None:
    body = place.body(place.aws.queue(), cost={}, filter={"buckets": ["media"]})
    body["spec"]["target"] = {"http": {"url": "https://cdn.example.com/purge"}}
    with pytest.raises(Exception, match="the cost of a Job or of a call by HTTP is not known"):
        await admin.create(path(PLURAL, place.namespace), body)


async def test_plan_shows_the_cost_of_a_new_resource(
    aws: Aws,
    storage_gateway: StorageGateway,
    cloudwatch: CloudWatch,
    cluster: Cluster,
    namespace: str,
    env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    admin: Admin,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    cli = Cli(Path(cluster.kubeconfig), namespace)
    source = aws.source()
    control = storage_gateway.control
    control.add_share(control.add_gateway(), bucket=source.bucket)
    put(cloudwatch, source.bucket, 1_000_000)
    body = Refreshing(admin, namespace, aws, control).body(source.queue, cost={"maxEstimatedCostPerDay": "2"})

    said = await cli("plan", "-f", "-", stdin=json.dumps(body))
    assert said.code == 0, said.err
    assert any(MILLION in line and "makes minInterval 6h" in line for line in said.lines)
    cloudwatch.control.deny()
    said = await cli("plan", "-f", "-", stdin=json.dumps(body))
    assert said.code == 0, "refreshes do not depend on it"
    assert any("allow cloudwatch:GetMetricData to the identity you ask with" in line for line in said.lines)
    assert len(cloudwatch.control.calls()) == 2
