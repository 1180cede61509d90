"""Invalidations that are sent to CloudFront, and the meaning of each answer for the claim."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from awsdoubles.cloudfront import CloudFront, Fault
from caretaker.api.objects import WireMeta
from caretaker.aws.calls import Aws
from caretaker.aws.services import Rate
from caretaker.kube.errors import NotLeader
from caretaker.s3refresh.debounce import UNKNOWN, Claim
from caretaker.s3refresh.snapshot import Result
from caretaker.s3refresh.targets import TargetClient, Tools, make
from unit.s3refresh.test_cloudfront import AGAIN, BUCKET, CLAIM, ID, keys, read_spec, trees


@pytest.fixture
def cloudfront() -> Iterator[CloudFront]:
    with CloudFront() as started:
        started.distributions.add(ID)
        yield started


@pytest.fixture
async def target(cloudfront: CloudFront, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TargetClient]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFRONT", cloudfront.url)
    async with Aws(rates={"cloudfront": Rate(500, 10)}) as aws:
        client: Any = None
        tools = Tools(aws, client, WireMeta(name="r", namespace="n"))
        yield make(read_spec({"prefix": "site/"}), tools)


async def test_the_buckets_are_known_without_a_call(target: TargetClient, cloudfront: CloudFront) -> None:
    found = await target.discover()
    assert (found.complete, found.faults, found.shares) == (True, (), (BUCKET,))
    assert cloudfront.calls == []


async def test_a_refresh_is_one_invalidation_by_the_claims_id(
    target: TargetClient, cloudfront: CloudFront
) -> None:
    assert await target.refresh(BUCKET, CLAIM) == Result("media", "c1")
    assert await target.refresh(BUCKET, AGAIN) == Result("media", "c1")
    (made,) = cloudfront.invalidations
    assert (made.distribution, made.reference, made.paths) == (ID, "c1", ("/a/b.html", "/c.css"))
    assert cloudfront.calls == [("c1", ""), ("c1", "")]


@pytest.mark.parametrize("attempt", [CLAIM, AGAIN])
async def test_a_lost_reply_is_an_unknown_outcome(
    target: TargetClient, cloudfront: CloudFront, attempt: Claim
) -> None:
    cloudfront.faults.append(Fault("lose"))
    assert (await target.refresh(BUCKET, attempt)).code == UNKNOWN
    assert await target.refresh(BUCKET, AGAIN) == Result("media", "c1")
    assert len(cloudfront.invalidations) == 1


@pytest.mark.parametrize(
    ("status", "code", "first", "again"),
    [
        (503, "ServiceUnavailable", UNKNOWN, UNKNOWN),
        (500, "InternalError", UNKNOWN, UNKNOWN),
        (429, "TooManyRequests", "TooManyRequests", UNKNOWN),
        (400, "Throttling", "Throttling", UNKNOWN),
        (403, "AccessDenied", "AccessDenied", UNKNOWN),
        (400, "TooManyInvalidationsInProgress", *["TooManyInvalidationsInProgress"] * 2),
        (400, "InvalidationBatchAlreadyExists", *["InvalidationBatchAlreadyExists"] * 2),
        (404, "NoSuchDistribution", "NoSuchDistribution", "NoSuchDistribution"),
        (400, "InvalidArgument", "InvalidArgument", "InvalidArgument"),
    ],
)
async def test_what_an_error_means(
    target: TargetClient, cloudfront: CloudFront, status: int, code: str, first: str, again: str
) -> None:
    for attempt, meant in ((CLAIM, first), (AGAIN, again)):
        cloudfront.faults.append(Fault("refuse", status=status, code=code))
        found = await target.refresh(BUCKET, attempt)
        assert found.code == meant
        assert found.refused is (code in ("InvalidArgument", "TooManyInvalidationsInProgress"))
    assert cloudfront.invalidations == []


async def test_a_denied_call_names_the_action(target: TargetClient, cloudfront: CloudFront) -> None:
    cloudfront.denied = True
    found = await target.refresh(BUCKET, CLAIM)
    assert found.code == "AccessDenied"
    assert "allow cloudfront:CreateInvalidation to the identity that spec.aws names" in found.message


async def test_other_paths_under_the_same_id_are_another_call(
    target: TargetClient, cloudfront: CloudFront
) -> None:
    await target.refresh(BUCKET, CLAIM)
    other = replace(AGAIN, request=keys("x"))
    assert (await target.refresh(BUCKET, other)).code == "InvalidationBatchAlreadyExists"
    assert not (await target.refresh(BUCKET, replace(other, id="c2", attempt=1))).code
    assert [one.paths for one in cloudfront.invalidations] == [("/a/b.html", "/c.css"), ("/x",)]


async def test_the_limits_are_kept_until_invalidations_complete(
    target: TargetClient, cloudfront: CloudFront
) -> None:
    cloudfront.lag = 60
    for n in range(15):
        assert not (await target.refresh(BUCKET, replace(CLAIM, id=f"w{n}", request=trees(f"t{n}")))).code
    over = replace(CLAIM, id="over", request=trees("t15"))
    assert (await target.refresh(BUCKET, over)).code == "TooManyInvalidationsInProgress"
    assert not (await target.refresh(BUCKET, CLAIM)).code  # files count apart
    for one in cloudfront.invalidations:
        one.ends = 0
    assert not (await target.refresh(BUCKET, over)).code


async def test_without_the_lease_nothing_is_sent(target: TargetClient, cloudfront: CloudFront) -> None:
    def guard(_: float) -> None:
        raise NotLeader("held by another")

    client: Any = target
    client._client._aws.hooks.guard = guard
    with pytest.raises(NotLeader):
        await target.refresh(BUCKET, CLAIM)
    assert cloudfront.calls == []
