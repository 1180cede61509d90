"""Leader election: when the leader dies, hangs or is stopped, the standby goes on where it was.

Lease times are those of production times SCALE where the test kills; where it stops cleanly they are not
scaled, since a clean stop must not wait for any of them.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.apicalls import Call
from testing.apiproxy import ApiProxy
from testing.faults import Answer, Delay, Match, Stall
from testing.operator import NEW_INTERPRETER, OperatorProcess
from testing.roles import METRIC as MISSING
from testing.rollouts import Rollouts, fresh_image, rollouts, until
from testing.world import Task

SCALE = 0.4  # a loaded machine stalls a leader for seconds, which must not cost it the Lease
DURATION, RETRY = 15 * SCALE, 2 * SCALE
SLACK = 4.0  # seconds, below DURATION: the standby's second look, and a loaded machine
NODES = 6
TERMS = 4200

Replica = tuple[OperatorProcess, ApiProxy]


@pytest.fixture
async def place(cluster: Cluster, admin: Admin, tmp_path: Path) -> AsyncIterator[Rollouts]:
    async with rollouts(cluster, admin, tmp_path) as made:
        yield made


async def replicas(place: Rollouts, scale: float = SCALE, **how: Any) -> tuple[Replica, Replica]:
    """(the leader, the standby), the standby's caches filled. Each with hashes of its own: what one wrote in
    an order of sets, the other would write in another."""
    how = {"command": NEW_INTERPRETER, **how}
    leader = await place.operator("leader", leader_elect=True, time_scale=scale, **how)
    await until(lambda: leads(leader))
    standby = await place.operator("standby", leader_elect=True, time_scale=scale, **how)
    await until(lambda: standby[0].readyz()[0] == 200)
    return leader, standby


def leads(replica: Replica) -> bool:
    return replica[0].metric("caretaker_leader") == 1


def told_of_resources(operator: OperatorProcess) -> list[str]:
    """The series that name a resource."""
    return [series for series in operator.metrics() if re.search(r'[{,]name="', series)]


def creates(proxy: ApiProxy) -> list[Call]:
    """The Pods that this operator asked for, dry runs excepted."""
    return [c for c in proxy.ledger.writes() if (c.verb, c.resource) == ("create", "pods")]


def is_work(call: Call) -> bool:
    return call.is_write and call.resource != "leases"


async def took_over(place: Rollouts, standby: Replica, since: float) -> float:
    """How long after `since` (time.time) the standby took the Lease; it has worked by then, too."""
    _, proxy = standby
    await asyncio.to_thread(proxy.ledger.wait, lambda c: is_work(c) and c.time >= since, 1, 60)
    spec = (await place.admin.get(path("leases", place.namespace, "test")))["spec"]
    assert spec["holderIdentity"] == "standby"
    return datetime.fromisoformat(spec["acquireTime"]).timestamp() - since


async def test_killed_leader_is_followed_within_the_lease(place: Rollouts) -> None:
    await place.nodes.add(NODES)
    (leader, _), standby = await replicas(place)
    task = await place.task(parallelism=1)
    await task.ledger_when(bool)
    assert standby[1].ledger.writes() == [], "a standby writes nothing"
    killed = time.time()
    await asyncio.to_thread(leader.kill9)
    assert await took_over(place, standby, killed) <= DURATION + RETRY + SLACK
    await place.converged(task, succeeded=NODES)
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys(place.nodes.names, 1)


@pytest.mark.slow
async def test_standby_with_a_stale_cache_repeats_nothing(place: Rollouts) -> None:
    """Runs that were finished, recorded and deleted while the standby's watches stood still."""
    names = await place.nodes.add(NODES)
    (leader, _), (operator, standby) = await replicas(place)
    task = await place.task(parallelism=3, ttlSecondsAfterFinished=0)
    await place.converged(task, succeeded=NODES)
    stood_still = time.time()
    of_old = Match(verb="watch", where=lambda call: call.time < stood_still)
    standby.add(of_old, Stall())
    await task.edit(template=place.template(image=fresh_image()))
    await place.converged(task, succeeded=NODES)
    await task.pods_when(lambda pods: not pods)
    leader.pause()  # it would create the new node's Pod before it is killed
    (late,) = await place.nodes.add(1, wait=False)
    await asyncio.to_thread(leader.kill9)
    # It has planned once it creates the Pod of the node that it had not heard of.
    await asyncio.to_thread(standby.ledger.wait, lambda c: c.resource == "pods" and is_work(c), 1, 60)
    await place.converged(task, succeeded=NODES + 1)
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == {late: 1, **dict.fromkeys(names, 2)}
    assert len(creates(standby)) == 1
    assert operator.running


@pytest.mark.slow
async def test_clean_stop_hands_over_at_once(place: Rollouts) -> None:
    """With the real Lease times, in the middle of a rollout whose writes are slow."""
    await place.nodes.add(NODES)
    (leader, first), standby = await replicas(place, scale=1.0)
    first.add(Match(verb="create", resource="pods"), Delay(before_seconds=1.0))
    task = await place.task(parallelism=2)
    await asyncio.to_thread(first.ledger.wait, lambda c: c.resource == "pods" and is_work(c), 1, 60)
    stopped = time.time()
    await asyncio.to_thread(leader.terminate)  # fails unless it ends with 0 within 10 s
    ended = time.time()
    found = await place.admin.get(path("leases", place.namespace, "test"))
    assert found["spec"].get("holderIdentity") != "leader", "released"
    assert ended - stopped < 10
    *_, release = first.ledger.calls(lambda call: call.is_write and call.resource == "leases")
    assert await took_over(place, standby, release.time) <= RETRY / SCALE + SLACK
    await place.converged(task, succeeded=NODES)
    await place.history.check(backoff_limit=0)


async def test_leader_that_hung_writes_nothing_when_it_wakes(place: Rollouts) -> None:
    await place.nodes.add(NODES)
    (leader, first), standby = await replicas(place)
    no_right = 'events is forbidden: User "x" cannot create resource "events" in API group ""'
    first.add(Match(verb="create", resource="events"), Answer(403, "Forbidden", no_right))
    task = await place.task(parallelism=1)
    await task.ledger_when(bool)
    await until(lambda: leader.metric(MISSING, verb="create", resource="events") == 1)
    leader.pause()
    hung = time.time()
    assert await took_over(place, standby, hung) <= DURATION + RETRY + SLACK
    woken = time.time()
    leader.resume()
    await place.converged(task, succeeded=NODES)
    await until(lambda: not leads((leader, first)))
    assert leads(standby)
    # What it told of the task is for the new leader to tell.
    await until(lambda: not told_of_resources(leader))
    assert told_of_resources(standby[0])
    # Nor is what it was refused missing any more, as far as anybody knows.
    await until(lambda: leader.metric(MISSING, verb="create", resource="events") == 0)
    # One that the guard had let pass when the process was stopped, before its first byte, is sent when it
    # goes on. No process can close that gap; the API server refuses it, since the new leader has worked.
    assert [c for c in first.ledger.writes(since=woken) if is_work(c) and c.code < 300] == []
    await place.history.check(backoff_limit=0)


@pytest.mark.slow
async def test_leader_that_cannot_renew_goes_on_when_it_can_again(place: Rollouts) -> None:
    """One replica, which loses the Lease while Pods end, again and again, and takes it back itself."""
    names = await place.nodes.add(NODES)
    leader, proxy = await place.operator("leader", leader_elect=True, time_scale=SCALE)
    await until(lambda: leads((leader, proxy)))
    task = await place.task(parallelism=1)
    for count in (1, 2, 3):
        await task.ledger_when(lambda entries, count=count: len(entries) >= count)
        refusal = proxy.add(Match(verb="patch", resource="leases"), Answer(503, "ServiceUnavailable"))
        await until(lambda: not leads((leader, proxy)))
        refusal.remove()
        await until(lambda: leads((leader, proxy)))
    await place.converged(task, succeeded=NODES)
    await task.edit(template=place.template(image=fresh_image()))
    await place.converged(task, succeeded=NODES)
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys(names, 2)


@pytest.mark.slow
async def test_leader_that_has_read_nothing_yet_gives_the_lease_up_at_once(place: Rollouts) -> None:
    """No pass has begun, so none is waited for; the real Lease times, of which one would be noticed."""
    leader, proxy = await place.operator("leader", leader_elect=True, time_scale=1.0, start=False)
    with proxy.fault(Match(verb="list", resource="nodes"), Delay(before_seconds=60)):
        await asyncio.to_thread(leader.start)
        await until(lambda: leads((leader, proxy)))
        began = time.monotonic()
        await asyncio.to_thread(leader.terminate)
        assert time.monotonic() - began < 3
    assert place.history.pods.runs_per_node() == {}


@pytest.mark.slow
async def test_api_server_restarts_in_the_middle_of_a_rollout(place: Rollouts) -> None:
    await place.nodes.add(NODES)
    one, other = await replicas(place)
    task = await place.task(parallelism=1, ttlSecondsAfterFinished=0)
    for count, hard in ((2, False), (4, True)):
        await task.ledger_when(lambda entries, count=count: len(entries) >= count)
        await asyncio.to_thread(place.cluster.restart_apiserver, hard=hard)
    await place.converged(task, succeeded=NODES)
    await place.history.check(backoff_limit=0)
    assert place.history.pods.runs_per_node() == dict.fromkeys(place.nodes.names, 1)
    await until(lambda: leads(one) != leads(other))


@pytest.mark.slow
async def test_sigterm_ends_a_standby_at_once_and_changes_nothing(place: Rollouts) -> None:
    (leader, proxy), (standby, _) = await replicas(place)
    began = time.monotonic()
    await asyncio.to_thread(standby.terminate)
    assert time.monotonic() - began < 5
    assert leads((leader, proxy))
    task: Task = await place.task()
    (name,) = await place.nodes.add(1)
    await place.converged(task, succeeded=1)
    assert place.history.pods.runs_per_node() == {name: 1}


def terms(count: int) -> dict[str, Any]:
    """A nodeAffinity of so many terms, of which the last alone matches."""
    keys = [*(f"k{number:x}" for number in range(count)), "kubernetes.io/hostname"]
    listed = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in keys]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}}


@pytest.mark.slow
async def test_templates_with_thousands_of_terms_do_not_cost_the_lease(place: Rollouts) -> None:
    """Lease times are not scaled. The lag of the loop has a target in `make bench BENCH=attacks`."""
    await place.nodes.add(3)
    leader, standby = await replicas(place, scale=1.0)
    before = leader[0].metrics()
    template = place.template()
    template["spec"]["affinity"] = terms(TERMS)
    tasks = [await place.task(name, template=template) for name in ("one", "two", "three")]
    for task in tasks:
        await place.converged(task, succeeded=3)
    after = leader[0].metrics()
    short, passes = (
        after[series] - before.get(series, 0)
        for series in (
            'caretaker_pass_cpu_seconds_bucket{kind="DaemonTask",le="0.25"}',
            'caretaker_pass_cpu_seconds_count{kind="DaemonTask"}',
        )
    )
    assert 0 < short == passes
    spec = (await place.admin.get(path("leases", place.namespace, "test")))["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("leader", 0)
    assert not [line for line in leader[0].logs + standby[0].logs if line["msg"] == "not leading"]
