"""Several operators and S3AggregatedRefreshes: at work at once, one after the other, and cut off for a while.

The record needs no leader: whoever writes on top of what it has not seen is refused (409) and looks again.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from awsdoubles.ministack import MiniStack
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.faults import Delay, Match
from testing.refreshing import TIME_SCALE
from testing.refreshplace import Place, Replica, refresh_place
from testing.rollouts import together
from testing.stepkills import arm
from testing.witness import PLURAL, STATUS_WRITES

LATE_SECONDS: Final = 1.0
SCALE: Final = 2 * TIME_SCALE  # a Lease that a stall of a busy machine does not cost
CLAIM_LOST: Final = 120.0 * SCALE
ROUNDS, ROUND_SECONDS = 4, 4.0


@pytest.fixture
async def place(cluster: Cluster, admin: Admin, ministack: MiniStack, tmp_path: Path) -> AsyncIterator[Place]:
    async with refresh_place(cluster, admin, ministack.url, tmp_path) as made:
        yield made


@pytest.mark.slow
async def test_two_at_once_without_election(
    cluster: Cluster, admin: Admin, ministack: MiniStack, tmp_path: Path
) -> None:
    """One hears what stands in the API server late, and its wall clock is right, ahead, or behind."""

    async def one(skew: float) -> None:
        async with refresh_place(cluster, admin, ministack.url, tmp_path) as place:
            try:
                await two_at_once(place, skew)
            except Exception as error:
                error.add_note(f"the late one's clock was {skew:+g} s off")
                raise

    await together(one(skew) for skew in (0.0, 200.0, -200.0))


async def two_at_once(place: Place, skew: float) -> None:
    source = place.aws.source()
    gateway = place.control.add_gateway()
    shares = [
        place.control.add_share(gateway, bucket=source.bucket, prefix=prefix)
        for prefix in ("", "in/", "out/")
    ]
    late = await place.operator("late", start=False, skew=skew)
    late.api.add(Match(verb="get", resource=PLURAL), Delay(after_seconds=LATE_SECONDS))
    prompt = await place.operator("prompt", start=False)
    resource = await place.create(source.queue)
    await together(asyncio.to_thread(one.start) for one in (late, prompt))
    await resource.condition("Ready")
    # An answer that is lost: whoever looks next knows only what the record says of it.
    place.control.fault("lose_reply", count=3)
    for number in range(ROUNDS):
        keys = [f"{top}/{number}/{n % 3}/{n}" for n in range(12) for top in ("in", "out")]
        await asyncio.to_thread(place.aws.put, source.bucket, *keys)
        await asyncio.sleep(ROUND_SECONDS)
    await place.fresh(*shares)
    await place.caught_up(resource)
    await place.empty(source.queue)
    place.promises()
    for one in (late, prompt):
        assert one.api.ledger.calls(STATUS_WRITES.fits), one.process.name
    refused = [c for c in late.api.ledger.calls(STATUS_WRITES.fits) if c.code == 409]
    assert refused, "it never wrote on top of what it had not seen"


async def leader_and_standby(place: Place, scale: float = SCALE) -> tuple[Replica, Replica]:
    """Both run, and the first leads."""
    how = {"leader_elect": True, "time_scale": scale}
    leader = await place.operator("leader", **how)
    await place.until(lambda: leader.process.metric("caretaker_leader") == 1, "one leads")
    standby = await place.operator("standby", **how)
    await place.until(lambda: standby.process.readyz()[0] == 200, "the other is ready")
    return leader, standby


@pytest.mark.slow
async def test_a_standby_takes_over_the_claim_of_a_dead_leader(place: Place) -> None:
    """Whether the dead one's call was accepted nobody knows: what it claimed is refreshed again."""
    source = place.aws.source()
    share = place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
    resource = await place.create(source.queue)
    leader, standby = await leader_and_standby(place)
    await resource.condition("Ready")
    # Whoever makes the call is to die: a busy machine may have cost the first one its Lease.
    kills = [(arm(one, "RefreshCache", "before"), one) for one in (leader, standby)]
    await asyncio.to_thread(place.aws.put, source.bucket, "in/a", "in/b")
    await place.until(lambda: any(kill.struck for kill, _ in kills), "one is killed", 120)
    for kill, _ in kills:
        kill.disarm()
    (died,) = (time.time() - (time.monotonic() - kill.at) for kill, _ in kills if kill.struck)
    (heir,) = (one for kill, one in kills if not kill.struck)
    assert place.control.calls("RefreshCache") == []
    await asyncio.to_thread(place.aws.put, source.bucket, "out/c")
    await place.fresh(share)
    await place.caught_up(resource)
    await place.empty(source.queue)
    place.promises()
    first, *_ = place.control.refreshes(share)
    assert first["acceptedAt"] - died > CLAIM_LOST, "its owner might still have been at it"
    records = [target for one in place.witness.written for target in one.targets.values()]
    assert {one["claim"]["owner"] for one in records if one.get("claim")} == {"leader", "standby"}
    await place.until(lambda: heir.process.metric("caretaker_leader") == 1, "the other one leads")


@pytest.mark.slow
async def test_a_stop_leaves_nothing_to_take_over(place: Place) -> None:
    """SIGTERM while a call is under way, with the real Lease times: its answer is written before the end."""
    source = place.aws.source()
    share = place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
    resource = await place.create(source.queue)
    leader, _ = await leader_and_standby(place, scale=1.0)
    await resource.condition("Ready")
    leader.gateway.stop_at("RefreshCache", before=lambda: leader.process.signal(signal.SIGTERM))
    await asyncio.to_thread(place.aws.put, source.bucket, "in/a", "in/b")
    await place.until(lambda: not leader.process.running, "the leader has ended")
    assert leader.process.wait_exit() == 0
    (target,) = (await resource.get())["status"]["targets"]
    assert "claim" not in target
    assert target["inFlight"]["notificationID"] in {one["id"] for one in place.control.refreshes(share)}
    await place.fresh(share)
    await place.empty(source.queue)
    assert len(place.control.refreshes(share)) == 1
    place.promises()


@pytest.mark.slow
async def test_nothing_is_deleted_while_the_api_server_is_away(place: Place) -> None:
    """Messages that nothing could be written about stay the queue's, and no more of them are received."""
    source = place.aws.source()
    share = place.control.add_share(place.control.add_gateway(), bucket=source.bucket)
    resource = await place.create(source.queue)
    replica = await place.operator()
    await resource.condition("Ready")
    await place.empty(source.queue)  # S3 has told it of itself
    seen, deleted = received(place), place.sqs.calls.count("DeleteMessageBatch")
    with replica.api.partition():
        await asyncio.to_thread(place.aws.put, source.bucket, "in/a", "in/b")
        await place.until(lambda: received(place) > seen, "messages are received")
        # It waits for passes to answer, and then receives no more.
        await place.until(lambda: silent_for(place, 5.0), "nothing more is received", 120)
        await asyncio.to_thread(place.aws.put, source.bucket, "out/c")
        assert place.sqs.calls.count("DeleteMessageBatch") == deleted
        assert place.control.calls("RefreshCache") == []
        assert sum(place.aws.depth(source.queue.url)) == 3
    await place.fresh(share)
    await place.caught_up(resource)
    await place.empty(source.queue)
    place.promises()


def received(place: Place) -> int:
    return sum(call.messages for call in place.sqs.calls.all("ReceiveMessage"))


def silent_for(place: Place, seconds: float) -> bool:
    last = place.sqs.calls.all("ReceiveMessage")[-1]
    return bool(last.seconds) and time.time() - last.at - last.seconds > seconds
