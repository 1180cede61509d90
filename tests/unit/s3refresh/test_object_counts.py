"""CloudWatch is asked once for all resources that sign alike. The double's answers, without a network."""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from awsdoubles.cloudwatch.operations import get_metric_data
from awsdoubles.cloudwatch.state import Fault, World, metric_of
from caretaker.api.aws import AwsSpec, SecretRef
from caretaker.api.s3refresh import BucketStatus, CostStatus
from caretaker.api.times import format_time
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.s3refresh import costs
from caretaker.s3refresh.costs import DAY, Count, Place
from caretaker.s3refresh.object_counts import ObjectCounts, Signer, counted

NOW = time.time()
TODAY = NOW // DAY * DAY
MEDIA: Place = ("eu-west-1", "media")
ROLE = Signer.of(AwsSpec("eu-west-1", "arn:aws:iam::111122223333:role/media"), "team-a")
DENIED = AwsError(
    ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="cloudwatch", operation="GetMetricData"
)


class Played:
    """CloudWatch of eu-west-1. `gate` holds answers back until it is set."""

    def __init__(self) -> None:
        self.world = World()
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.taken: Mapping[str, Fault] = {}
        self.page = 100_800
        self.gate = asyncio.Event()
        self.gate.set()

    def put(self, bucket: str, *points: tuple[float, float]) -> None:
        dimensions = {"BucketName": bucket, "StorageType": "AllStorageTypes"}
        metric = metric_of("eu-west-1", "AWS/S3", "NumberOfObjects", dimensions)
        self.world.points.setdefault(metric, []).extend(points)

    async def get_metric_data(self, **given: Any) -> Any:
        self.calls.append(given)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        times = {name: given[name].timestamp() for name in ("StartTime", "EndTime")}
        body = {"MaxDatapoints": self.page, **given, **times}
        answer = get_metric_data(self.world, "eu-west-1", body, NOW, self.taken)
        for one in answer["MetricDataResults"]:
            one["Timestamps"] = [datetime.fromisoformat(format_time(at)) for at in one["Timestamps"]]
        return answer


def due(*buckets: str, failures: int = 1) -> dict[Place, Count]:
    return {("eu-west-1", one): Count(NOW, failures=failures) for one in buckets}


async def asked(
    counts: ObjectCounts, client: Any, wanted: dict[Place, Count], signer: Signer = ROLE
) -> dict[Place, Count | None]:
    """What is known once there is an answer."""
    done = asyncio.Event()
    counts.ask(signer, {"eu-west-1": client}, wanted, done.set)
    await asyncio.wait_for(done.wait(), 5)
    return {place: counts.found("team-a", signer, place) for place in wanted}


async def test_the_newest_figure_counts_though_it_is_two_days_late() -> None:
    client = Played()
    client.put("media", (TODAY - 3 * DAY, 5), (TODAY - 2 * DAY, 1_000_000), (TODAY - 9 * DAY, 7))
    found = await counted(client, ["media", "new"], NOW)
    assert found["media"] == Count(NOW, 1_000_000, TODAY - 2 * DAY)
    assert found["new"] == Count(NOW, problem=costs.NO_DATA)
    (call,) = client.calls
    stat = call["MetricDataQueries"][0]["MetricStat"]
    assert (stat["Period"], stat["Stat"], stat["Metric"]["Namespace"]) == (DAY, "Average", "AWS/S3")


async def test_a_figure_of_several_pages_is_joined() -> None:
    client = Played()
    client.page = 1
    client.put("media", *((TODAY - at * DAY, 10 - at) for at in range(4)))
    assert (await counted(client, ["media"], NOW))["media"].objects == 10
    assert len(client.calls) == 4


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300])
async def test_a_figure_that_is_none_is_none(value: float) -> None:
    client = Played()
    client.put("media", (TODAY, value))
    assert (await counted(client, ["media"], NOW))["media"] == Count(NOW, problem=costs.NO_DATA)


@pytest.mark.parametrize("code", ["InternalError", "Forbidden"])
async def test_a_metric_that_is_refused_is_a_failure(code: str) -> None:
    client = Played()
    client.put("media", (TODAY, 1))
    client.taken = {"withhold": Fault("withhold", code=code)}
    found = await asked(ObjectCounts(), client, due("media", failures=3))
    assert found[MEDIA] == Count(NOW, failures=3, problem=f"spec.cost: CloudWatch answers {code}")


async def test_one_call_for_the_buckets_of_a_region_and_for_all_who_wait() -> None:
    counts, client = ObjectCounts(), Played()
    news: asyncio.Queue[str] = asyncio.Queue()
    client.put("media", (TODAY, 5))
    client.gate.clear()

    def waits(name: str) -> Callable[[], None]:
        return lambda: news.put_nowait(name)

    counts.ask(ROLE, {"eu-west-1": client}, due("media", "other"), waits("a"))
    counts.ask(ROLE, {"eu-west-1": client}, due("media"), waits("b"))
    counts.ask(ROLE, {"eu-west-1": client}, due("third"), waits("c"))
    await asyncio.sleep(0)
    client.gate.set()
    async with asyncio.timeout(5):
        answered = [await news.get() for _ in range(4)]  # "a" waits for two buckets
    assert sorted(answered) == ["a", "a", "b", "c"]
    assert [len(call["MetricDataQueries"]) for call in client.calls] == [3]
    other_namespace = counts.found("team-b", ROLE, MEDIA)
    assert other_namespace is not None
    assert other_namespace.objects == 5


async def test_one_call_at_a_time_waits_for_cloudwatch() -> None:
    """Others use the same threads: a CloudWatch that never answers delays no refresh."""
    counts, client, others = ObjectCounts(), Played(), Played()
    news: asyncio.Queue[None] = asyncio.Queue()
    client.gate.clear()
    for number in range(40):
        signer = Signer.of(AwsSpec("eu-west-1", f"arn:aws:iam::111122223333:role/r{number % 2}"), "team-a")
        one = others if number % 2 else client
        counts.ask(signer, {"eu-west-1": one}, due(f"b{number}"), lambda: news.put_nowait(None))
        await asyncio.sleep(0)
    assert [len(call["MetricDataQueries"]) for call in client.calls] == [1]
    assert others.calls == []
    client.gate.set()
    async with asyncio.timeout(5):
        for _ in range(40):
            await news.get()
    assert [len(call["MetricDataQueries"]) for call in client.calls] == [1, 19]
    assert [len(call["MetricDataQueries"]) for call in others.calls] == [20]


async def test_a_call_has_at_most_500_buckets() -> None:
    counts, client, left = ObjectCounts(), Played(), list(range(501))
    done = asyncio.Event()
    wanted = due(*(f"b{number}" for number in left))
    counts.ask(ROLE, {"eu-west-1": client}, wanted, lambda: done.set() if not left[1:] else left.clear())
    await asyncio.wait_for(done.wait(), 5)
    assert [len(call["MetricDataQueries"]) for call in client.calls] == [500, 1]


async def test_passes_that_began_before_a_failure_ask_no_more() -> None:
    counts, client = ObjectCounts(), Played()
    client.error = DENIED
    await asked(counts, client, due("media"))
    for number in range(5):
        await asked(counts, client, {MEDIA: Count(NOW + number, failures=1)})
    assert len(client.calls) == 1
    await asked(counts, client, {MEDIA: Count(NOW + 60, failures=2)})
    assert len(client.calls) == 2


async def test_an_answer_that_was_asked_for_ahead_of_now_is_none() -> None:
    counts, client = ObjectCounts(), Played()
    await asked(counts, client, {MEDIA: Count(NOW + 30 * DAY, failures=1)})
    await asked(counts, client, due("media"))
    assert len(client.calls) == 2


async def test_an_answer_that_came_since_the_pass_began_is_enough() -> None:
    counts, client = ObjectCounts(), Played()
    client.put("media", (TODAY, 5))
    await asked(counts, client, due("media"))
    later = {MEDIA: Count(NOW + 1, failures=1)}
    assert await asked(counts, client, later) == {MEDIA: Count(NOW, 5, TODAY)}
    assert len(client.calls) == 1
    await asked(counts, client, {MEDIA: Count(NOW + DAY, failures=1)})
    assert len(client.calls) == 2


async def test_a_call_that_is_denied_is_a_failure_that_names_the_permission() -> None:
    client = Played()
    client.error = DENIED
    found = (await asked(ObjectCounts(), client, due("media", failures=2)))[MEDIA]
    assert found is not None
    assert (found.objects, found.failures) == (None, 2)
    assert "allow cloudwatch:GetMetricData to the identity that spec.aws names" in found.problem


async def test_an_answer_of_another_form_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    client = Played()
    client.error = KeyError("MetricDataResults")
    found = (await asked(ObjectCounts(), client, due("media")))[MEDIA]
    assert found is not None
    assert found.problem == "spec.cost: KeyError: 'MetricDataResults'"
    assert "cannot be counted" in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        AwsSpec("eu-west-1", "arn:aws:iam::111122223333:role/other"),
        AwsSpec("eu-west-1", "arn:aws:iam::111122223333:role/media", external_id="x"),
        AwsSpec("eu-west-1", "arn:aws:iam::111122223333:role/media", endpoint_urls={"sts": "https://x"}),
        AwsSpec("eu-west-1", credentials_secret_ref=SecretRef("keys")),
        AwsSpec("eu-west-1"),
    ],
)
async def test_another_identity_learns_nothing(other: AwsSpec) -> None:
    counts, client = ObjectCounts(), Played()
    client.put("media", (TODAY, 5))
    assert await asked(counts, client, due("media")) == {MEDIA: Count(NOW, 5, TODAY)}
    assert counts.found("team-a", Signer.of(other, "team-a"), MEDIA) is None


def test_keys_of_a_secret_are_those_of_their_namespace() -> None:
    spec = AwsSpec("eu-west-1", credentials_secret_ref=SecretRef("keys"))
    assert Signer.of(spec, "team-a") != Signer.of(spec, "team-b")
    assert Signer.of(AwsSpec("eu-west-1"), "team-a") == Signer.of(AwsSpec("us-east-1"), "team-b")


async def test_a_count_on_record_is_taken_over_within_its_namespace_alone() -> None:
    """A user of another namespace may have written it."""
    counts = ObjectCounts()
    status = CostStatus(
        (BucketStatus("media", "eu-west-1", 1, 5, format_time(TODAY), format_time(NOW - 60)),)
    )
    counts.recall("team-a", ROLE, status, NOW)
    older = replace(status.buckets[0], objects=4, asked_at=format_time(NOW - 3600))
    counts.recall("team-a", ROLE, CostStatus((older,)), NOW)
    found = counts.found("team-a", ROLE, MEDIA)
    assert found is not None
    assert (found.objects, found.due_at()) == (5, int(NOW - 60) + DAY)
    assert counts.found("team-b", ROLE, MEDIA) is None
    await counts.stop()
    assert counts.found("team-a", ROLE, MEDIA) is None


async def test_a_figure_of_a_later_time_was_counted_now() -> None:
    client = Played()
    client.put("media", (TODAY + 1, 5))
    assert (await counted(client, ["media"], TODAY))["media"] == Count(TODAY, 5, TODAY)


async def test_a_stop_ends_the_calls() -> None:
    counts, client = ObjectCounts(), Played()
    client.put("made", (TODAY, 5))
    assert (await asked(counts, client, due("made"))) != {("eu-west-1", "made"): None}
    client.gate.clear()
    counts.ask(ROLE, {"eu-west-1": client}, due("media"), lambda: None)
    await asyncio.sleep(0)
    await asyncio.wait_for(counts.stop(), 5)
    client.gate.set()
    assert counts.found("team-a", ROLE, MEDIA) is None
    assert counts.found("team-a", ROLE, ("eu-west-1", "made")) is None, "another process may lead meanwhile"
    assert await asked(counts, client, due("media")) != {MEDIA: None}, "it leads again"
