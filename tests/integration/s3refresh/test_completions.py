"""The end of a refresh: heard of, lost, early, told to two resources by one queue; and slots at a gateway."""

import json
from typing import Any

import pytest

from awsdoubles.sqsproxy.proxy import SqsProxy
from testbed.admin import Json
from testing.aws import Source
from testing.refreshing import Refresh, Refreshing, gateway, sqs, stands

SOON = {"quietPeriod": "0s", "maxDelay": "1s"}
ROLE = "arn:aws:iam::111122223333:role/refresh"
TIMES = {"timeout": "1m", "assumeAfter": "40s"}  # 3 s and 2 s, as the operator's time is scaled
PATIENT = {"timeout": "6h", "assumeAfter": "5h"}


def told_by(queue_url: str, **more: Any) -> Json:
    """spec.target that hears of ends by this queue."""
    completion = {"queueURL": queue_url, **TIMES, **more.pop("completion", {})}
    return gateway(completion=completion, **more)


def ended(share: str, notification_id: str) -> str:
    """EventBridge's event, as the double sends it."""
    return json.dumps(
        {
            "source": "aws.storagegateway",
            "detail-type": "Storage Gateway Refresh Cache Event",
            "resources": [share],
            "detail": {"notification-id": notification_id},
        }
    )


def results(found: Json) -> list[str]:
    return [(target.get("last") or {}).get("result", "") for target in found["status"]["targets"]]


def idle(found: Json) -> bool:
    """Whether nothing waits, is called or is in flight."""
    return not any({"dirty", "claim", "inFlight"} & target.keys() for target in found["status"]["targets"])


async def one_share(shared: Refreshing, **completion: Any) -> tuple[Source, str, Refresh]:
    """A share whose refreshes' ends come by the source queue itself."""
    source = shared.aws.source()
    share = shared.share(source.bucket)
    shared.control.settings(completion_queue=source.queue.url)
    target = told_by(source.queue.url, completion=completion)
    resource = await shared.create(source.queue, target=target, debounce=SOON)
    await resource.condition("Ready")
    return source, share, resource


async def test_an_end_that_is_heard_of_is_told(shared: Refreshing) -> None:
    source, share, resource = await one_share(shared, **PATIENT)
    shared.control.fault("slow_refresh", seconds=2)
    await shared.put(source.bucket, "a/1")
    await resource.condition("CaughtUp", "False", "Refreshing")
    await shared.fresh(share)
    done = await resource.caught_up()
    assert results(done) == ["Succeeded"]
    assert done["status"]["targets"][0]["last"]["durationSeconds"] >= 1
    await shared.emptied(source.queue.url)


async def test_an_end_that_is_lost_refreshes_again_once_and_is_then_told(
    shared: Refreshing, sqs_proxy: SqsProxy
) -> None:
    """Hole 7: the article took every call for a refresh that was made."""
    source, share, resource = await one_share(shared)
    shared.control.fault("no_completion", count=2)
    await shared.put(source.bucket, "a/1")
    first, second = await shared.refreshed(share, 2)
    assert (set(first["folders"]), set(second["folders"])) == ({"/", "a"}, {"/", "a"})
    await resource.when(idle)  # the second is given up, too
    told = await resource.condition("CaughtUp", "False", "CompletionLost")
    assert told["message"].startswith(share.rpartition("/")[2])
    await resource.condition("Ready")
    assert len(shared.control.refreshes(share)) == 2
    # An end that is received before its call's answer is on record comes again in 10 s: not too late then.
    await resource.edit(target=told_by(source.queue.url, completion=PATIENT))
    await resource.condition("Ready")
    await shared.polls_over(sqs_proxy)
    await shared.put(source.bucket, "b/1")
    assert results(await resource.caught_up()) == ["Succeeded"]


async def test_an_end_that_is_lost_is_assumed_if_asked(shared: Refreshing) -> None:
    source, share, resource = await one_share(shared, onTimeout="Assume")
    shared.control.fault("no_completion")
    await shared.put(source.bucket, "a/1")
    await resource.when(lambda found: results(found) == ["Assumed"])
    await resource.condition("CaughtUp")
    await shared.fresh(share)
    assert len(shared.control.refreshes(share)) == 1


async def test_the_end_of_a_refresh_whose_answer_had_no_id_is_heard_of(shared: Refreshing) -> None:
    source, share, resource = await one_share(shared, **PATIENT)
    shared.control.fault("no_id")
    shared.control.fault("slow_refresh", seconds=1)
    await shared.put(source.bucket, "a/1")
    await resource.condition("CaughtUp", "False", "Refreshing")
    assert results(await resource.caught_up()) == ["Succeeded"]
    assert len(shared.control.refreshes(share)) == 1
    await shared.emptied(source.queue.url)


async def test_what_comes_behind_a_refresh_whose_end_is_lost_waits_for_minutes(shared: Refreshing) -> None:
    """15 of them, or completion.assumeAfter; completion.timeout applies if no changes wait behind."""
    source, share, resource = await one_share(shared, timeout="6h", assumeAfter="40s")
    shared.control.fault("no_completion")
    await shared.put(source.bucket, "a/1")
    await resource.condition("CaughtUp", "False", "Refreshing")
    await shared.put(source.bucket, "b/1")
    _, second = await shared.refreshed(share, 2)
    assert set(second["folders"]) == {"/", "a", "b"}
    assert results(await resource.caught_up()) == ["Succeeded"]
    await shared.fresh(share)


@pytest.mark.slow
async def test_an_end_that_is_told_before_the_call_is_answered_waits_for_it(shared: Refreshing) -> None:
    source, share, resource = await one_share(shared, **PATIENT)
    shared.control.fault("early_completion")
    shared.control.fault("delay", seconds=2)
    await shared.put(source.bucket, "a/1")
    assert results(await resource.caught_up()) == ["Succeeded"]
    await shared.fresh(share)
    assert len(shared.control.refreshes(share)) == 1
    await shared.emptied(source.queue.url)


async def test_two_resources_share_a_queue_of_ends(shared: Refreshing) -> None:
    ends = shared.aws.queue()
    shared.control.settings(completion_queue=ends.url)
    gateways = [shared.control.add_gateway() for _ in range(2)]
    pairs = []
    for number, one in enumerate(gateways):
        source = shared.aws.source()
        shared.control.add_share(one, bucket=source.bucket)
        target = told_by(ends.url, shares={"discover": {"gatewayARNs": [one]}}, completion={"timeout": "6h"})
        resource = await shared.create(source.queue, f"r{number}", target=target, debounce=SOON)
        await resource.condition("Ready")
        pairs.append((source, resource))
    for source, _ in pairs:
        await shared.put(source.bucket, "a/1")
    for _, resource in pairs:
        assert results(await resource.caught_up()) == ["Succeeded"]
    await shared.emptied(ends.url)


@pytest.mark.slow
async def test_a_queue_of_ends_may_be_anothers_source(shared: Refreshing) -> None:
    """Its owner gets the events, both get the ends."""
    owner, other = shared.aws.source(), shared.aws.source()
    shared.control.settings(completion_queue=owner.queue.url)
    resources = []
    for name, source in (("owner", owner), ("other", other)):
        one = shared.control.add_gateway()
        shared.control.add_share(one, bucket=source.bucket)
        target = told_by(
            owner.queue.url, shares={"discover": {"gatewayARNs": [one]}}, completion={"timeout": "6h"}
        )
        spec = {"source": {"sqs": sqs(source.queue)}, "target": target, "debounce": SOON}
        resources.append(await shared.create(source.queue, name, **spec))
    for resource in resources:
        await resource.condition("Ready")
    for source in (owner, other):
        await shared.put(source.bucket, "a/1")
    for resource in resources:
        assert results(await resource.caught_up()) == ["Succeeded"]
    for source in (owner, other):
        await shared.emptied(source.queue.url)


@pytest.mark.slow
async def test_an_end_that_comes_while_its_resource_does_not_read_is_told_when_it_does(
    shared: Refreshing,
) -> None:
    """Another resource on the same queue of ends receives it meanwhile; to that one it means nothing."""
    ends = shared.aws.queue()
    shared.control.settings(completion_queue=ends.url)
    resources = []
    for name in ("reader", "absent"):
        one, source = shared.control.add_gateway(), shared.aws.source()
        share = shared.control.add_share(one, bucket=source.bucket)
        shares = {"discover": {"gatewayARNs": [one]}}
        target = told_by(ends.url, shares=shares, completion=PATIENT)
        resource = await shared.create(source.queue, name, target=target, debounce=SOON)
        await resource.condition("Ready")
        resources.append((source, share, resource))
    source, share, absent = resources[-1]
    shared.control.fault("no_completion")
    await shared.put(source.bucket, "a/1")
    await absent.when(lambda found: any(t.get("inFlight") for t in found["status"]["targets"]))
    await absent.edit(suspend=True)
    await absent.condition("Ready", "True", "Suspended")
    (in_flight,) = ((await absent.get())["status"]["targets"][0]["inFlight"],)
    shared.aws.sqs.send_message(QueueUrl=ends.url, MessageBody=ended(share, in_flight["notificationID"]))
    await shared.until(lambda: shared.aws.depth(ends.url) == (0, 1), "the other has received it")
    await absent.edit(suspend=False)
    assert results(await absent.caught_up()) == ["Succeeded"]
    await shared.emptied(ends.url)


@pytest.mark.slow
async def test_what_a_queue_of_ends_is_read_with_is_one_spec_aws(shared: Refreshing) -> None:
    """Two readers of one queue take each other's messages, until those are dead."""
    owner, other = shared.aws.source(), shared.aws.source()
    shared.share(owner.bucket)
    first = await shared.create(owner.queue, "owner", debounce=SOON)
    await first.condition("Ready")
    other_aws = {"region": shared.aws.region, "externalID": "tenant", "roleARN": ROLE}
    second = await shared.create(
        other.queue, "other", target=told_by(owner.queue.url), debounce=SOON, aws=other_aws
    )
    told = await second.condition("Ready", "False", "QueueConflict")
    assert told["message"].startswith(
        f"spec.target.storageGateway.completion.queueURL: {first.namespace}/{first.name} reads this queue"
    )
    assert "give each its own queue" in told["message"]
    await second.condition("Stalled", reason="QueueConflict")
    await shared.put(owner.bucket, "a/1")
    await first.caught_up()
    await second.edit(target={"storageGateway": {"completion": {"queueURL": shared.aws.queue().url}}})
    await second.when(lambda found: not stands(found, "Ready", "False", "QueueConflict"))


def most_at_a_time(refreshes: list[Json]) -> int:
    """How many refreshes ran together at most."""
    return max(
        sum(other["acceptedAt"] <= one["acceptedAt"] < other["completedAt"] for other in refreshes)
        for one in refreshes
    )


@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.slow), 2])
async def test_a_gateway_has_so_many_refreshes_at_a_time_over_all_resources(
    limit: int, shared: Refreshing
) -> None:
    """Hole 18: after an outage the article refreshes back to back."""
    one, ends = shared.control.add_gateway(), shared.aws.queue()
    shared.control.settings(completion_queue=ends.url)
    shared.control.fault("slow_refresh", seconds=1.0 if limit == 1 else 4.0, count=None)
    shares, sources, resources = [], [], []
    for name in ("x", "y"):
        buckets = [shared.aws.bucket(), shared.aws.bucket()]
        queue = shared.aws.queue()
        for bucket in buckets:
            shared.aws.wiring.connect(bucket, queue)
            shares.append(shared.control.add_share(one, bucket=bucket))
        sources += buckets
        # Only this one's shares: each bucket's events come to one of the two.
        target = told_by(
            ends.url,
            shares={"fileShareARNs": shares[-2:]},
            concurrencyPerGateway=limit,
            completion=PATIENT,
        )
        resources.append(await shared.create(queue, name, target=target, debounce=SOON))
    for resource in resources:
        await resource.condition("Ready")
    for bucket in sources:
        await shared.put(bucket, "a/1")
    for share in shares:
        await shared.fresh(share)
    for resource in resources:
        await resource.caught_up()
    made = shared.control.refreshes()
    assert len(made) == len(shares)
    assert most_at_a_time(made) == limit
    assert all(call["status"] == 200 for call in shared.control.calls("RefreshCache")), "none was refused"
