"""A rollout through a bad network and a busy API server: it converges, and no promise is broken.

Each fault has a rollout, an operator and a proxy of its own; those of one test run side by side.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.faults import Answer, LoseReply, Match
from testing.rollouts import Rollouts, rollouts, together, until
from testing.world import Task

pytestmark = pytest.mark.slow

NODES = 6
RETRY_AFTER = 2
WRITES = (
    ("create", "pods", 3),
    ("create", "configmaps", 1),
    ("patch", "configmaps", 2),
    ("patch", "daemontasks", 2),
    ("delete", "pods", 2),
    ("create", "events", 1),
)

Fault = Callable[[Rollouts, ApiProxy, Task], Awaitable[None]]


async def rollouts_under(faults: list[Fault], cluster: Cluster, admin: Admin, folder: Path) -> None:
    """One rollout for each fault; the fault begins with it and ends before it may converge."""

    async def one(fault: Fault) -> None:
        async with rollouts(cluster, admin, folder) as place:
            *good, bad = await place.nodes.add(NODES)
            await place.fail_on(bad)
            _, proxy = await place.operator()
            await until(lambda: proxy.open_watches() >= 3)
            task = await place.task(parallelism=2, backoffLimit=1, ttlSecondsAfterFinished=0)
            await fault(place, proxy, task)
            await place.converged(task, succeeded=len(good), failed=1)
            await place.history.check(backoff_limit=1)
            runs = place.history.pods.runs_per_node()
            assert runs == {**dict.fromkeys(good, 1), bad: 2}, fault.__name__

    await together(one(fault) for fault in faults)


async def test_answers_that_are_lost_or_refusals(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    async def lost_replies(_: Rollouts, proxy: ApiProxy, __: Task) -> None:
        for verb, resource, times in WRITES:
            where = Match(verb=verb, resource=resource, where=lambda call: call.is_write, times=times)
            proxy.add(where, LoseReply())

    async def conflicts(_: Rollouts, proxy: ApiProxy, __: Task) -> None:
        proxy.add(Match(verb="patch", resource="configmaps", times=3), Answer(409, "Conflict"))
        proxy.add(Match(verb="patch", resource="daemontasks", times=3), Answer(409, "Conflict"))

    async def server_errors(_: Rollouts, proxy: ApiProxy, task: Task) -> None:
        for status in (500, 502, 503, 504):
            proxy.add(Match(times=2), Answer(status, "InternalError"))
        await task.ledger_when(bool)
        proxy.add(Match(times=5), Answer(503, "ServiceUnavailable"))

    async def too_many_requests(_: Rollouts, proxy: ApiProxy, __: Task) -> None:
        creating = Match(verb="create", resource="pods", where=lambda call: call.is_write, times=2)
        rule = proxy.add(creating, Answer(429, "TooManyRequests", retry_after=RETRY_AFTER))
        refused = await asyncio.to_thread(rule.wait, 2, 60)
        tries = await asyncio.to_thread(
            proxy.ledger.wait, lambda c: c.is_write and (c.verb, c.resource) == ("create", "pods"), 3, 60
        )
        assert refused == tries[:2], "nothing was tried in between"
        for before, after in itertools.pairwise(tries[:3]):  # those after it were refused no more
            assert after.time - before.time >= RETRY_AFTER, "Retry-After is honoured"

    await rollouts_under(
        [lost_replies, conflicts, server_errors, too_many_requests], cluster, admin, tmp_path
    )


async def test_watches_that_break(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    async def at_every_record(task: Task, break_it: Callable[[], object]) -> None:
        for count in range(1, NODES):
            await task.ledger_when(lambda entries, count=count: len(entries) >= count)
            break_it()

    async def expired_in_the_stream(_: Rollouts, proxy: ApiProxy, task: Task) -> None:
        await at_every_record(task, proxy.send_watch_error)

    async def cut(_: Rollouts, proxy: ApiProxy, task: Task) -> None:
        await at_every_record(task, proxy.cut_watches)

    async def partitioned(_: Rollouts, proxy: ApiProxy, task: Task) -> None:
        for silent in (False, True):
            await task.ledger_when(bool)
            with proxy.partition(silent=silent):
                await asyncio.sleep(2.0)

    await rollouts_under([expired_in_the_stream, cut, partitioned], cluster, admin, tmp_path)
