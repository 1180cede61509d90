"""Who leads, by what the API server shows of the Lease and of pods."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from testbed.admin import Admin, ApiError, Json
from testing.leading import Leading


class Shown:
    """In place of an API server: what its watches tell, as a test has it."""

    def __init__(self, holder: str, *pods: str) -> None:
        self._queues: dict[str, asyncio.Queue[list[Json]]] = {
            "leases": asyncio.Queue(),
            "pods": asyncio.Queue(),
        }
        self.hold(holder)
        self.run(*pods)

    def hold(self, holder: str | None) -> None:
        self._queues["leases"].put_nowait([{"spec": {"holderIdentity": holder}}])

    def run(self, *pods: str) -> None:
        running = {"containerStatuses": [{"state": {"running": {}}}]}
        self._queues["pods"].put_nowait([{"metadata": {"name": pod}, "status": running} for pod in pods])

    async def states(self, url: str, **_: Any) -> AsyncGenerator[dict[str, Json], None]:
        queue = self._queues[url.rpartition("/")[2]]
        while True:
            yield {str(number): one for number, one in enumerate(await queue.get())}


def watch(shown: Shown) -> Leading:
    return Leading(cast("Admin", shown))


async def test_nobody_leads_between_a_lease_that_is_released_and_the_next_holder() -> None:
    shown = Shown("a", "a", "b")
    async with watch(shown) as seen:
        assert (seen.leader, seen.without()) == ("a", 0.0)
        shown.hold(None)
        await seen.until(lambda pod: not pod)
        shown.hold("b")
        await seen.until(lambda pod: pod == "b")
    assert seen.leaders() == ["a", "b"]
    assert 0 < seen.without() < 1


async def test_a_holder_whose_pod_is_gone_leads_no_more() -> None:
    shown = Shown("a", "a", "b")
    async with watch(shown) as seen:
        shown.run("b")
        await seen.until(lambda pod: not pod)
        begun = seen.without()
        await asyncio.sleep(0)
        assert seen.without() > begun
    # What comes after the block is not watched.
    assert seen.without() == seen.without() > 0


async def test_a_watch_that_is_refused_is_told_of_at_once_and_the_other_ends() -> None:
    class Refused(Shown):
        async def states(self, url: str, **_: Any) -> AsyncGenerator[dict[str, Json], None]:
            if url.endswith("leases"):
                raise ApiError(403, "Forbidden", "no")
            async for found in super().states(url):
                yield found

    since = time.monotonic()
    with pytest.raises(ApiError):
        async with watch(Refused("a", "a")):
            pass
    assert time.monotonic() - since < 10
    assert asyncio.all_tasks() == {asyncio.current_task()}
