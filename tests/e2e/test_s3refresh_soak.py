"""Some minutes of writes to S3 with everything at once going wrong, then quiet: no event was lost.

SOAK_MINUTES says how long (default 0.5; a minute or two more until all is fresh). The seed is printed, and
SOAK_SEED takes it again.
"""

import asyncio
import contextlib
import json
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from awsdoubles.envelopes import Envelope, Queue
from awsdoubles.ministack import MiniStack
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.refreshchaos import RefreshChaos
from testing.refreshing import Refresh
from testing.refreshplace import MOST_RECEIVES, Place, refresh_place
from testing.s3writers import Writer, unrefreshed

TIME_SCALE = 0.2
CONVERGE_SECONDS = 600.0  # a gateway's turns, one after the other, each with an unknown outcome before it
QUICK: dict[str, Any] = {
    "debounce": {"quietPeriod": "1s", "maxDelay": "5s", "minInterval": "60s"},
    "retry": {"initial": "5s", "max": "30s"},
}


@dataclass(frozen=True)
class Stage:
    """What the chaos happens to."""

    place: Place
    resources: list[Refresh]
    queues: list[Queue]
    shares: list[str]
    writers: list[Writer]


async def set_up(place: Place, seed: int) -> Stage:
    """Two resources with a queue each, which share a gateway; one of them hears of the ends of refreshes, the
    other's events come by SNS or EventBridge, as the seed says."""
    control, aws = place.control, place.aws
    control.settings(min_interval=60 * TIME_SCALE, objects_per_second=2_000)
    first = aws.source(max_receives=MOST_RECEIVES)
    envelope = random.Random(seed).choice([e for e in Envelope if e is not Envelope.S3])
    print(f"the second queue's envelope is {envelope}", flush=True)
    second = aws.source(envelope, max_receives=MOST_RECEIVES)
    ends = aws.queue(max_receives=MOST_RECEIVES)
    control.settings(completion_queue=ends.url)
    busy, other = control.add_gateway(), control.add_gateway()
    tracked = [
        control.add_share(busy, bucket=first.bucket),
        control.add_share(busy, bucket=first.bucket, prefix="in/"),
    ]
    assumed = [
        control.add_share(busy, bucket=second.bucket, prefix="in/"),
        control.add_share(other, bucket=second.bucket, protocol="SMB"),
    ]
    told = {"queueURL": ends.url, "assumeAfter": "60s", "timeout": "90s"}
    resources = [
        await place.create(first.queue, "tracked", **QUICK, target=_target(tracked, completion=told)),
        await place.create(second.queue, "assumed", **QUICK, target=_target(assumed)),
    ]
    writers = [
        Writer(aws, source.bucket, top, f"{seed} {source.bucket} {top}")
        for source in (first, second)
        for top in ("in", "out")
    ]
    return Stage(place, resources, [first.queue, second.queue, ends], [*tracked, *assumed], writers)


def _target(shares: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"storageGateway": {"shares": {"fileShareARNs": list(shares)}, "rediscoverEvery": "1m", **more}}


@pytest.fixture
def seed() -> int:
    """Of all that chance decides."""
    return int(os.environ.get("SOAK_SEED") or secrets.randbelow(2**32))


@pytest.fixture
async def place(
    cluster: Cluster, admin: Admin, ministack: MiniStack, tmp_path: Path, seed: int
) -> AsyncIterator[Place]:
    async with refresh_place(cluster, admin, ministack.url, tmp_path, seed=seed) as made:
        yield made


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_events_through_chaos(place: Place, seed: int) -> None:
    minutes = float(os.environ.get("SOAK_MINUTES", "0.5"))
    print(f"\nSOAK_SEED={seed} SOAK_MINUTES={minutes:g}", flush=True)
    stage = await set_up(place, seed)
    for name in ("one", "two"):
        await place.operator(name, leader_elect=True, time_scale=TIME_SCALE)
    chaos = RefreshChaos(place, stage.resources, stage.shares, seed)
    try:
        async with writing(stage.writers):
            await chaos.run(minutes * 60)
        await chaos.end()
        await converged(stage)
    except BaseException:
        await tell(stage)
        raise
    finally:
        print(f"seed {seed}: {chaos.summary()}; {figures(stage)}", flush=True)


@contextlib.asynccontextmanager
async def writing(writers: Sequence[Writer]) -> AsyncIterator[None]:
    """Writers at work."""
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [r for r in results if isinstance(r, Exception)]
    assert not failed, failed


async def converged(stage: Stage) -> None:
    """The shares show the buckets, every single write was followed by a refresh, and nothing is left over."""
    place, began = stage.place, time.monotonic()
    await place.fresh(*stage.shares, timeout=CONVERGE_SECONDS)
    print(f"all shares are fresh after {time.monotonic() - began:.0f} s", flush=True)
    await place.empty(*stage.queues, timeout=CONVERGE_SECONDS)
    print(f"all queues are empty after {time.monotonic() - began:.0f} s", flush=True)
    place.promises()
    writes = [write for writer in stage.writers for write in writer.writes]
    missing = list(unrefreshed(writes, place.control.shares(), place.control.refreshes()))
    assert not missing, "\n".join(missing)
    for resource in stage.resources:
        await place.caught_up(resource, CONVERGE_SECONDS)
    print(f"caught up after {time.monotonic() - began:.0f} s", flush=True)


def figures(stage: Stage) -> str:
    """What came of it, in numbers."""
    control = stage.place.control
    calls, accepted = control.calls("RefreshCache"), control.refreshes()
    writes = sum(len(writer.writes) for writer in stage.writers)
    made = f"{len(calls)} calls, {len(accepted)} refreshes accepted"
    return f"{writes} events written, {made}, {len(stage.place.witness.written)} statuses"


async def tell(stage: Stage) -> None:
    """How things stand, for whoever looks into a failure."""
    for resource in stage.resources:
        print(json.dumps((await resource.get()).get("status"), indent=1))
    for share in stage.shares:
        print(share, *stage.place.control.differences(share)[:20], sep="\n  ")
    for queue in stage.queues:
        print(queue.url, stage.place.aws.depth(queue.url))
    for call in stage.place.control.calls("RefreshCache")[-30:]:
        print(json.dumps(call))
    for replica in stage.place.replicas:
        print(*replica.process.lines[-80:], sep="\n")
