"""kill -9 of an operator at every step from an event to its refresh: the next one loses and invents nothing.

Each W is a status write of the design: W1 dirty, W2 claimed, W3 in flight, W3' failed, W4 ended. The points
of a group run side by side, each with doubles, a namespace and an operator of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from awsdoubles.envelopes import Queue
from awsdoubles.ministack import MiniStack
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.refreshing import Refresh, s3_event
from testing.refreshplace import CAUGHT_UP_SECONDS, Place, refresh_place
from testing.rollouts import together, until
from testing.stepkills import CALLS, POINTS, WRITES, When, arm

KEYS = ("in/2026/a/1", "in/2026/b/2", "out/3", "in/2026/a/4")
FOLDERS = {"/", "in", "in/2026", "in/2026/a", "in/2026/b", "out"}


@dataclass(frozen=True)
class Point:
    """Where the operator dies. `refused`: the gateway refuses the first call; `tracked`: its end is told."""

    at: str
    when: When
    refused: bool = False
    tracked: bool = False

    def __str__(self) -> str:
        return f"{self.when} {self.at}{' (tracked)' if self.tracked else ''}"


async def survive(point: Point, place: Place) -> None:
    """One storm of events with a crash in it."""
    source = place.aws.source(max_receives=5)
    completion = place.aws.queue()
    share = place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
    if point.tracked:
        place.control.settings(completion_queue=completion.url)
    if point.refused:
        place.control.fault("refuse")
    replica = await place.operator(start=False)
    gateway = {
        "shares": {"discover": {}},
        "completion": {"queueURL": completion.url if point.tracked else ""},
    }
    resource = await place.create(source.queue, target={"storageGateway": gateway})
    await asyncio.to_thread(place.aws.put, source.bucket, *KEYS)
    kill = arm(replica, point.at, point.when)
    await asyncio.to_thread(replica.start)
    assert await asyncio.to_thread(kill.wait, 120), f"nothing to be killed {point}"
    await judge_the_dead(place, point, resource)
    most = 1 + await asyncio.to_thread(duplicates, place, point, source.queue)
    await asyncio.to_thread(replica.start)

    await place.fresh(share)
    await place.caught_up(resource)
    await place.empty(source.queue, completion)
    place.promises()
    made = place.control.refreshes(share)
    assert len(made) <= most, f"{most - 1} duplicates at worst"
    assert {folder for one in made for folder in one["folders"]} == FOLDERS
    assert not any(one["recursive"] for one in made)


def duplicates(place: Place, point: Point, queue: Queue) -> int:
    """How many refreshes the dead operator may have made necessary: one for a call whose outcome nobody
    recorded, one for messages that it did not delete and that come again when that call's repeat is on its
    way."""
    called = point.at == "RefreshCache" or bool(place.control.calls("RefreshCache"))
    return called + (place.aws.depth(queue.url) != (0, 0))


async def judge_the_dead(place: Place, point: Point, resource: Refresh) -> None:
    """What the first operator must not have done before it died."""
    called = place.control.calls("RefreshCache")
    if point.at in ("W1", "W2"):
        assert not called, "called without a record"
    if point.at == "W1":
        assert not place.sqs.calls.count("DeleteMessageBatch"), "deleted what was not on record"
    if (point.at, point.when) == ("DeleteMessageBatch", "before"):
        (target,) = (await resource.get())["status"]["targets"]
        held = [part for part in (target.get("dirty"), target.get("claim")) if part]
        assert held, "about to delete what was not on record"


async def die_with_the_last_receive(place: Place) -> None:
    """What was received as often as the queue allows, and never written of, lies in the dead-letter queue
    some time after the next operator has started: everything is refreshed for it."""
    source = place.aws.source(max_receives=1)
    share = place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
    replica = await place.operator()
    resource = await place.create(source.queue)
    await resource.edit(source={"sqs": {"malformed": "Discard"}})  # asks for no more receives than one
    await resource.condition("Ready")
    kill = arm(replica, "W1", "before")
    await asyncio.to_thread(place.aws.put, source.bucket, *KEYS)
    assert await asyncio.to_thread(kill.wait, 120)
    await asyncio.to_thread(replica.start)
    # What was put late, and received by the next operator, may be on its way before.
    await until(lambda: place.aws.depth(source.queue.dead_letters)[0], CAUGHT_UP_SECONDS)

    def everything() -> bool:
        made = place.control.refreshes(share)
        return any(one["recursive"] and one["folders"] == ["/"] for one in made)

    await until(everything, CAUGHT_UP_SECONDS)
    await place.fresh(share)
    await place.caught_up(resource)
    place.promises()


Story = Callable[[Place], Awaitable[None]]


def stories(points: Iterable[Point]) -> dict[str, Story]:
    return {str(point): partial(survive, point) for point in points}


GROUPS = [
    pytest.param(
        stories([Point("W1", "before"), Point("RefreshCache", "after")]),
        id="some of both",
    ),
    pytest.param(
        stories(Point(at, when, refused=at == "W3'") for at, when in POINTS if at in WRITES),
        id="a status write",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        {
            **stories(Point(at, when) for at, when in POINTS if at in CALLS),
            **stories(Point("W4", when, tracked=True) for when in ("before", "after")),
            "with its last receive": die_with_the_last_receive,
        },
        id="a call of AWS",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("group", GROUPS)
async def test_killed_around(
    group: dict[str, Story], cluster: Cluster, admin: Admin, ministack: MiniStack, tmp_path: Path
) -> None:
    async def one(name: str, story: Story) -> None:
        async with refresh_place(cluster, admin, ministack.url, tmp_path) as place:
            try:
                await story(place)
            except Exception as error:
                error.add_note(f"killed {name}; its operator's last lines:")
                error.add_note("\n".join(place.replicas[0].process.lines[-40:]))
                raise

    await together(one(name, story) for name, story in group.items())


@pytest.mark.slow
async def test_two_resources_of_one_share_keep_the_gateways_interval_over_a_crash(
    cluster: Cluster, admin: Admin, ministack: MiniStack, tmp_path: Path
) -> None:
    """The call of one resource is not in the record of the other."""
    scale = 0.3  # the gateway's 60 s are 18: longer than an operator takes to start
    async with refresh_place(cluster, admin, ministack.url, tmp_path) as place:
        place.control.settings(min_interval=60 * scale)
        source, other = place.aws.source(), place.aws.source()
        share = place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
        replica = await place.operator(time_scale=scale)
        quick = {"quietPeriod": "0s", "maxDelay": "1s"}
        slow = await place.create(source.queue, "slow", debounce={**quick, "minInterval": "1h"})
        fast = await place.create(other.queue, "fast", debounce=quick)
        for resource in (slow, fast):
            await resource.condition("Ready")
        await place.put(source.bucket, "a/1")
        await place.refreshed(share)
        await asyncio.to_thread(replica.kill9)
        told = s3_event(source.bucket, "b/1")
        await asyncio.to_thread(place.aws.sqs.send_message, QueueUrl=other.queue.url, MessageBody=told)
        await asyncio.to_thread(replica.start)
        await place.refreshed(share, 2)
        place.promises()
