"""Two operators at work at once, one of them behind: uniqueness and durability need no leader.

Neither stands for election. The late one sees the world through a proxy that holds its watches and first
lists back, or the answers to its reads, as a machine that stands still for a while would get them.
"""

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed import steer
from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.faults import Delay, Match, Stall
from testing.rollouts import Rollouts, fresh_image, rollouts, until

NODES = 8
LATE_SECONDS = 3.0
CACHES = frozenset({"nodes", "pods", "daemontasks"})


@pytest.fixture
async def place(cluster: Cluster, admin: Admin, tmp_path: Path) -> AsyncIterator[Rollouts]:
    async with rollouts(cluster, admin, tmp_path) as made:
        yield made


async def start_both(place: Rollouts) -> tuple[ApiProxy, ApiProxy]:
    """The proxies of the one that is up to date and of the late one."""
    (_, prompt), (_, late) = await asyncio.gather(place.operator("prompt"), place.operator("late"))
    return prompt, late


async def watching(proxy: ApiProxy) -> None:
    """Return once all caches of that operator are fed by a watch."""
    for resource in CACHES:
        await until(lambda resource=resource: proxy.open_watches(Match(resource=resource)))


def failures(task: Json) -> list[tuple[str, int | None]]:
    """Node and exit code of each failed run in the status."""
    return [(one["nodeName"], one.get("exitCode")) for one in task["status"]["failedNodes"]]


@pytest.mark.slow
async def test_one_sees_the_world_seconds_late(place: Rollouts) -> None:
    *good, bad = await place.nodes.add(NODES)
    await place.fail_on(bad)
    prompt, late = await start_both(place)
    late.stale(LATE_SECONDS, Match(verb={"watch", "list"}, resource=CACHES))
    task = await place.task(backoffLimit=1, ttlSecondsAfterFinished=0, parallelism=3)
    await place.converged(task, succeeded=len(good), failed=1)
    await task.edit(template=place.template(image=fresh_image()))
    await place.converged(task, succeeded=len(good), failed=1)
    await task.annotate(rerun_at="2026-01-01T00:00:00Z")
    await task.ledger_when(lambda entries: all(entry.get("nonce") for entry in entries.values()))
    await place.converged(task, succeeded=len(good), failed=1)
    await place.history.check(backoff_limit=1)
    runs = place.history.pods.runs_per_node()
    assert {name: runs[name] for name in good} == dict.fromkeys(good, 3)
    assert late.ledger.writes()
    assert prompt.ledger.writes()


@pytest.mark.slow
async def test_one_sees_the_world_seconds_late_and_no_run_has_a_second_pod(place: Rollouts) -> None:
    *good, bad = await place.nodes.add(NODES)
    await place.fail_on(bad)
    prompt, late = await start_both(place)
    late.stale(LATE_SECONDS, Match(verb={"watch", "list"}, resource=CACHES))
    long = steer.behaviour(run_seconds=LATE_SECONDS / 2)  # else all is over before the late one hears of it
    once = {"runGuarantee": "AtMostOnce", "backoffLimit": 0, "parallelism": 3}
    task = await place.task(marks=long, ttlSecondsAfterFinished=0, **once)
    await place.converged(task, succeeded=len(good), failed=1)
    await task.edit(template=place.template(long, image=fresh_image()))
    await place.converged(task, succeeded=len(good), failed=1)
    # The late one writes what it saw seconds ago; both report the failure once it has caught up.
    await task.when(lambda body: failures(body) == [(bad, 3)])
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys((*good, bad), 2)
    assert late.ledger.writes()
    assert prompt.ledger.writes()


@pytest.mark.slow
async def test_one_still_works_on_the_old_spec(place: Rollouts) -> None:
    """Its read of the task is answered late: after the other has rolled out and recorded the new one."""
    names = await place.nodes.add(NODES)
    _, late = await start_both(place)
    task = await place.task()
    await place.converged(task, succeeded=NODES)
    with late.fault(Match(verb="get", resource="daemontasks", times=4), Delay(after_seconds=LATE_SECONDS)):
        # An annotation wakes both; the late one reads the task as it is now and hears of it in 3 s.
        await task.touch()
        await asyncio.to_thread(late.ledger.wait, lambda call: call.verb == "get" and not call.code)
        await task.edit(template=place.template(image=fresh_image()))
        await place.converged(task, succeeded=NODES)
        # One after the other, and a busy machine takes its time in between.
        held = functools.partial(late.ledger.wait, count=2, timeout=60)
        await asyncio.to_thread(held, lambda call: call.verb == "get" and call.seconds > LATE_SECONDS)
    await place.converged(task, succeeded=NODES)
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys(names, 2)


@pytest.mark.slow
async def test_one_still_sees_the_old_boot_and_the_old_node(place: Rollouts) -> None:
    """Its watch of nodes stands still while one node reboots, one is replaced and one is new."""
    rebooted, replaced, *others = await place.nodes.add(4)
    _, late = await start_both(place)
    task = await place.task(rerunOn=["TemplateChange", "NodeReboot"], ttlSecondsAfterFinished=0)
    await place.converged(task, succeeded=4)
    await watching(late)
    with late.fault(Match(verb="watch", resource="nodes"), Stall()):
        await place.nodes.delete(replaced)
        await asyncio.gather(
            place.nodes.add(names=[replaced]),
            place.nodes.add(names=["new"]),
            steer.reboot(place.admin, rebooted),
        )
        uid = await place.nodes.uid(replaced)
        await task.ledger_when(
            lambda entries: (
                entries[replaced]["nodeUID"] == uid and entries[rebooted]["seq"] == 2 and "new" in entries
            )
        )
        # A rerun makes the late one act on every node with what it knows.
        await task.annotate(rerun_at="2026-01-01T00:00:00Z")
        await task.ledger_when(lambda entries: all(entry.get("nonce") for entry in entries.values()))
        await place.converged(task, succeeded=5)
        await place.history.check(backoff_limit=0)
    runs = place.history.pods.runs_per_node(phase="Succeeded")
    assert runs == {rebooted: 3, replaced: 3, "new": 2, **dict.fromkeys(others, 2)}


@pytest.mark.slow
async def test_one_is_killed_again_and_again(place: Rollouts) -> None:
    await place.nodes.add(NODES)
    mortal, _ = await place.operator("mortal")
    _, late = await place.operator("late")
    late.stale(1.0, Match(verb={"watch", "list"}, resource=CACHES))
    task = await place.task(parallelism=2, ttlSecondsAfterFinished=0)
    for count in (1, 3, 5):
        await task.ledger_when(lambda entries, count=count: len(entries) >= count)
        await asyncio.to_thread(mortal.restart, kill=True)
    await place.converged(task, succeeded=NODES)
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys(place.nodes.names, 1)


@pytest.mark.slow
async def test_both_open_nodes_and_no_other_taint_is_lost(place: Rollouts) -> None:
    """Others change taints meanwhile, and the late one asks for nodes that are open."""
    theirs = {"key": "example.com/theirs", "effect": "PreferNoSchedule"}
    names = await place.nodes.add(NODES, taints=[theirs, place.gate()])
    prompt, late = await start_both(place)
    late.stale(LATE_SECONDS, Match(verb={"watch", "list"}, resource=CACHES))
    task = await place.task(nodeGate={})
    fresh = {"key": "example.com/new", "effect": "PreferNoSchedule"}
    changed = names[: NODES // 2]
    for name in changed:
        added = [{"op": "add", "path": "/spec/taints/0", "value": fresh}]
        await place.admin.patch(path("nodes", name=name), added, "json")
    await place.converged(task, succeeded=NODES)
    await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 0)
    after = {name: [*[fresh["key"]] * (name in changed), theirs["key"]] for name in names}
    assert await place.shut() == after
    await until(late.ledger.writes)
    assert prompt.ledger.writes()
    assert await place.shut() == after
