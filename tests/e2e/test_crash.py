"""kill -9 at every point between deciding and recording: the restarted operator repeats and forgets nothing.

The proxy kills the operator at the nth request of a kind, either just before the API server sees it or just
after it was executed and before the answer: whatever the process knew, the rest must follow from the cluster.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.apiproxy import ApiProxy
from testing.faults import Action, Match, Run
from testing.operator import OperatorProcess
from testing.rollouts import Rollouts, rollouts, together
from testing.schedules import AT, YEARLY, last_seen_years_ago, this_year

NODES = 8
ELECT_SCALE = 0.4
When = Literal["before", "after"]


@dataclass(frozen=True)
class Point:
    """Each process of `lives` dies at that manieth request of the sort in its own life."""

    verb: str
    resource: str
    lives: tuple[int, ...] = (1,)
    subresource: str = ""
    elect: bool = False
    ttl: bool = False
    gate: bool = False
    backoff_limit: int = 1
    parallelism: int | None = None

    def match(self, nth: int) -> Match:
        """The nth such write; dry runs are none."""
        return Match(
            verb=self.verb,
            resource=self.resource,
            subresource=self.subresource,
            where=lambda call: call.is_write,
            nth=nth,
        )


Story = Callable[[Rollouts, Point, When], Awaitable[None]]


@pytest.mark.parametrize(
    "point",
    [
        # Two at a time: of more, one life could create what the next ones are to be killed at.
        pytest.param(Point("create", "pods", (1, 2, 3), parallelism=2), id="creating Pods"),
        pytest.param(Point("create", "configmaps"), id="creating a ledger shard", marks=pytest.mark.slow),
        pytest.param(
            Point("patch", "configmaps", (1, 1), backoff_limit=2),
            id="recording in the ledger",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Point("patch", "daemontasks", (1, 2), "status"), id="writing status", marks=pytest.mark.slow
        ),
        # One life: the deletes go out at once, so how many are left for the next one is a matter of luck.
        pytest.param(Point("delete", "pods", ttl=True), id="deleting recorded Pods", marks=pytest.mark.slow),
        # One life, likewise.
        pytest.param(Point("patch", "nodes", gate=True), id="opening nodes", marks=pytest.mark.slow),
        pytest.param(Point("create", "events", (1, 1)), id="posting Events", marks=pytest.mark.slow),
        pytest.param(Point("create", "leases", elect=True), id="creating the Lease", marks=pytest.mark.slow),
        pytest.param(
            Point("patch", "leases", (1, 2), elect=True), id="renewing the Lease", marks=pytest.mark.slow
        ),
    ],
)
async def test_killed_while(point: Point, cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    """Both before the API server sees the request, and after it was executed and before the answer."""
    await both(survive, point, cluster, admin, tmp_path)


async def survive(place: Rollouts, point: Point, when: When) -> None:
    """One rollout with its crashes."""
    other = {"key": "example.com/theirs", "effect": "PreferNoSchedule"}
    *good, bad = await place.nodes.add(NODES, taints=[place.gate(), other] if point.gate else None)
    await place.fail_on(bad)
    # A Lease that a stall of a busy machine does not cost.
    pace = {"leader_elect": True, "time_scale": ELECT_SCALE} if point.elect else {}
    operator, proxy = await place.operator(start=False, **pace)
    spec: dict[str, Any] = {"ttlSecondsAfterFinished": 0} if point.ttl else {}
    if point.gate:
        spec["nodeGate"] = {}
    if point.parallelism is not None:
        spec["parallelism"] = point.parallelism
    task = await place.task(backoffLimit=point.backoff_limit, **spec)
    for nth in point.lives:
        await live_until(point, nth, when, operator, proxy)
    await asyncio.to_thread(operator.start)

    await place.converged(task, succeeded=len(good), failed=1)
    if point.gate:
        await task.when(lambda t: t["status"]["nodeGate"]["gatedNodes"] == 1)
        left = {**{name: [other["key"]] for name in good}, bad: [place.gate()["key"], other["key"]]}
        assert await place.shut() == left
    if point.ttl:  # the last failed Pod of a node stays for its logs
        (left,) = await task.pods_when(lambda pods: len(pods) == 1)
        assert left["metadata"]["annotations"]["caretaker.dev/node-name"] == bad
    await place.history.check(backoff_limit=point.backoff_limit)
    runs = place.history.pods.runs_per_node()
    assert runs == {**dict.fromkeys(good, 1), bad: point.backoff_limit + 1}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            Point("create", "configmaps", parallelism=2),
            id="writing the first intents",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Point("patch", "configmaps", (1, 2), parallelism=2),
            id="writing results and intents",
            marks=pytest.mark.slow,
        ),
        pytest.param(Point("create", "pods", (1, 2), parallelism=2), id="creating what was intended"),
    ],
)
async def test_killed_while_it_starts_runs_at_most_once(
    point: Point, cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    """Each node has run, once, or is told to have an unknown outcome; it runs again only when asked to."""
    await both(survive_once, point, cluster, admin, tmp_path)


async def survive_once(place: Rollouts, point: Point, when: When) -> None:
    """One rollout with its crashes, and what people do then."""
    names = await place.nodes.add(NODES)
    operator, proxy = await place.operator(start=False)
    task = await place.task(runGuarantee="AtMostOnce", backoffLimit=0, parallelism=point.parallelism)
    for nth in point.lives:
        await live_until(point, nth, when, operator, proxy)
    await asyncio.to_thread(operator.start)

    found = await task.counts(60, active=0, pending=0, blocked=0, desired=NODES)
    failed = {node["nodeName"]: node["reason"] for node in found["status"]["failedNodes"]}
    assert set(failed.values()) <= {"OutcomeUnknown"}
    if point.resource == "pods" and when == "before":
        assert failed, "nobody can know whether these Pods were created"
    if point.resource == "configmaps" and when == "before" and len(point.lives) == 1:
        assert not failed, "nothing was intended yet"
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == {name: 1 for name in names if name not in failed}

    again = dict.fromkeys(failed, "2026-01-01T00:00:00Z")
    await task.annotate(rerun_nodes=json.dumps(again))
    await task.counts(60, active=0, pending=0, failed=0, succeeded=NODES)
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            Point("patch", "daemontasks", (1, 1), "status"), id="storing the tick", marks=pytest.mark.slow
        ),
        pytest.param(Point("create", "pods", (1, 2), parallelism=2), id="creating Pods for it"),
        # Two at a time: all at once, one create of the shard may record them all.
        pytest.param(
            Point("patch", "configmaps", parallelism=2),
            id="recording what ran for it",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_killed_while_it_acts_on_a_tick(
    point: Point, cluster: Cluster, admin: Admin, tmp_path: Path
) -> None:
    """Every node runs for the tick, none twice, and nothing starts before the tick is stored."""
    await both(survive_tick, point, cluster, admin, tmp_path)


async def survive_tick(place: Rollouts, point: Point, when: When) -> None:
    """The years' missed tick, with its crashes."""
    names = await place.nodes.add(NODES)
    operator, proxy = await place.operator()
    spec = {} if point.parallelism is None else {"parallelism": point.parallelism}
    task = await place.task(schedule=YEARLY, **spec)
    await task.condition("Ready", reason="AwaitingSchedule")
    await asyncio.to_thread(operator.kill9)
    await last_seen_years_ago(place.admin, place.namespace, task.name)
    for life, nth in enumerate(point.lives):
        await live_until(point, nth, when, operator, proxy)
        if life == 0 and point.resource == "daemontasks":
            stored = when == "after"
            told = (await task.get())["status"]["lastScheduleTime"]
            assert (told == this_year()) is stored, "the first that is written is the tick"
            assert await task.pods() == []
    await asyncio.to_thread(operator.start)

    done = await place.converged(task, succeeded=NODES)
    assert done["status"]["lastScheduleTime"] == this_year()
    assert {pod["metadata"]["annotations"][AT] for pod in await task.pods()} == {this_year()}
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys(names, 1)


async def both(story: Story, point: Point, cluster: Cluster, admin: Admin, folder: Path) -> None:
    """The story with its deaths before the API server sees the request, and with those after it."""

    async def one(when: When) -> None:
        async with rollouts(cluster, admin, folder) as place:
            await story(place, point, when)

    await together([one("before"), one("after")])


async def live_until(point: Point, nth: int, when: When, operator: OperatorProcess, proxy: ApiProxy) -> None:
    """One life of the operator, from its start to its death at the nth request of the sort."""
    dead = threading.Event()
    with proxy.fault(point.match(nth), killing(operator, when, dead)):
        await asyncio.to_thread(operator.start)
        assert await asyncio.to_thread(dead.wait, 60), f"no {point} to be killed at"


def killing(operator: OperatorProcess, when: When, dead: threading.Event) -> Action:
    """kill -9 around the request; the API server executes it only in the case `after`."""

    def kill(_: object) -> None:
        operator.kill9()
        dead.set()

    return Run(run_before=kill, forward=False) if when == "before" else Run(run_after=kill)
