"""A refresh that a person asks for, under faults: kill -9 at its steps, two operators at once.

Nothing is lost, and nothing is repeated beyond the one duplicate of a call whose outcome is unknown.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from awsdoubles.ministack import MiniStack
from caretaker.api.names import REFRESH_AT
from testbed.admin import Admin, Json
from testbed.cluster import Cluster
from testing.faults import Delay, Match
from testing.refreshing import Refresh
from testing.refreshplace import CAUGHT_UP_SECONDS, Place, refresh_place
from testing.rollouts import together
from testing.stepkills import When, arm
from testing.witness import PLURAL, STATUS_WRITES

LATE_SECONDS: Final = 1.0
TIMES: Final = tuple(f"2026-01-31T12:00:0{n}Z" for n in range(1, 6))
# Where the operator dies, and how many calls the first request may take in all. Without a quiet period the
# write that takes the request is the one that claims its call.
POINTS: Final[tuple[tuple[str, When, int], ...]] = (
    ("W2", "before", 1),
    ("W2", "after", 1),
    ("RefreshCache", "before", 1),
    ("RefreshCache", "after", 2),
    ("W3", "before", 2),
    ("W3", "after", 1),
    ("W4", "before", 1),
)


async def ask(place: Place, resource: Refresh, at: str) -> None:
    await place.admin.patch(resource.url, {"metadata": {"annotations": {REFRESH_AT: at}}})


def done(found: Json, at: str) -> bool:
    """Whether the request of this time is done."""
    requests = found["status"].get("requests") or {}
    return bool(requests.get("doneAt")) and requests.get("refreshAt", "").startswith(at.removesuffix("Z"))


async def survive(place: Place, at: str, when: When, most: int) -> None:
    bucket, queue = place.aws.bucket(), place.aws.queue()
    share = place.share(bucket)
    replica = await place.operator()
    resource = await place.create(queue, debounce={"quietPeriod": "10m", "maxDelay": "10m"})
    await resource.condition("Ready")
    await place.put(bucket, "in/2026/a", "out/b")
    kill = arm(replica, at, when)
    await ask(place, resource, TIMES[0])
    assert await asyncio.to_thread(kill.wait, 120), f"nothing to be killed {when} {at}"
    if (at, when) == ("W2", "before"):
        assert "requests" not in (await resource.get())["status"], "taken without its folders"
    if at == "W2":
        assert not place.control.calls("RefreshCache"), "called without a record"
    await asyncio.to_thread(replica.start)
    await resource.when(lambda r: done(r, TIMES[0]), CAUGHT_UP_SECONDS)
    await place.fresh(share)
    # Another one shows that the first is not taken again.
    await ask(place, resource, TIMES[1])
    await resource.when(lambda r: done(r, TIMES[1]), CAUGHT_UP_SECONDS)
    place.promises()
    made = place.control.refreshes(share)
    assert len(made) <= most + 1
    assert all((one["folders"], one["recursive"]) == (["/"], True) for one in made)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(POINTS[:2], id="around the record"),
        pytest.param(POINTS[2:], id="around the call and its end", marks=pytest.mark.slow),
    ],
)
async def test_killed_around(
    points: tuple[tuple[str, When, int], ...],
    cluster: Cluster,
    admin: Admin,
    ministack: MiniStack,
    tmp_path: Path,
) -> None:
    async def one(at: str, when: When, most: int) -> None:
        async with refresh_place(cluster, admin, ministack.url, tmp_path) as place:
            try:
                await survive(place, at, when, most)
            except Exception as error:
                error.add_note(f"killed {when} {at}; its operator's last lines:")
                error.add_note("\n".join(place.replicas[0].process.lines[-40:]))
                raise

    await together(partial(one, *point)() for point in points)


@pytest.mark.slow
async def test_two_operators_take_each_request_once(
    cluster: Cluster, admin: Admin, ministack: MiniStack, tmp_path: Path
) -> None:
    """One hears late what stands in the API server: what it writes on top of that is refused."""
    async with refresh_place(cluster, admin, ministack.url, tmp_path) as place:
        bucket, queue = place.aws.bucket(), place.aws.queue()
        share = place.share(bucket)
        late = await place.operator("late", start=False)
        late.api.add(Match(verb="get", resource=PLURAL), Delay(after_seconds=LATE_SECONDS))
        prompt = await place.operator("prompt", start=False)
        resource = await place.create(queue, debounce={"quietPeriod": "10m", "maxDelay": "10m"})
        await together(asyncio.to_thread(one.start) for one in (late, prompt))
        await resource.condition("Ready")
        for at in TIMES:
            await place.put(bucket, f"in/{at}")
            await ask(place, resource, at)
            await resource.when(partial(done, at=at), CAUGHT_UP_SECONDS)
        await place.fresh(share)
        place.promises()
        assert len(place.control.refreshes(share)) == len(TIMES)
        assert [c for c in late.api.ledger.calls(STATUS_WRITES.fits) if c.code == 409]
