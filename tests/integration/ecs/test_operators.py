"""Operators that are killed, that are two, that may do less; tasks of namespaces that were granted less."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from awsdoubles.ecs.server import Ecs
from caretaker.api.times import format_time
from caretaker.daemontask.ecs.plan import MERGE_SECONDS
from testbed.admin import Admin
from testbed.cluster import Cluster
from testing.aws import Aws
from testing.ecstasks import SOON, TIME_SCALE, EcsTasks
from testing.imds import NOWHERE
from testing.operator import OperatorProcess
from testing.refreshing import ALL, LOOPBACK, grants

Start = Callable[..., OperatorProcess]
CLUSTERS: Final = [f"c{number}" for number in range(10)]
ROUNDS: Final = 4
EVERYTHING = {**ALL, "ownIdentity": True}


@pytest.fixture
def start(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Start an operator of this name, with these grants."""
    made: list[OperatorProcess] = []

    def started(name: str, *entries: dict[str, Any], **how: Any) -> OperatorProcess:
        folder = tmp_path / name
        folder.mkdir()
        args = (*grants(folder, *(entries or (EVERYTHING,))), *LOOPBACK, *how.pop("args", ()))
        given = {"namespace": namespace, "time_scale": TIME_SCALE, "env": NOWHERE, **how}
        made.append(OperatorProcess(cluster.kubeconfig, name, args=args, **given))
        return made[-1].start()

    yield started
    for process in made:
        process.kill9()
        process.assert_clean_logs()


@pytest.fixture
async def own(admin: Admin, namespace: str, aws: Aws, ecs: Ecs) -> AsyncIterator[EcsTasks]:
    """This test's own doubles, and no operator yet."""
    made = EcsTasks(admin, namespace, aws, ecs.control, {"ecs": ecs.url, "sqs": aws.url})
    yield made
    await made.clear()


async def test_killed_at_any_time_it_goes_on(start: Start, own: EcsTasks) -> None:
    operator = start("one", leader_elect=False)
    own.cluster(instances=1)
    task = await own.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    for round_ in range(1, 6):
        await own.send(own.control.register("prod", 2))
        if round_ % 2:  # before, within and after the look
            await own.until(lambda: bool(own.control.calls()))
        own.control.clear_calls()
        operator.kill9()
        operator.start()
        await task.clusters({"prod": 1 + 2 * round_})
        assert own.desired() == 1 + 2 * round_


async def test_while_it_was_away_events_were_lost(start: Start, own: EcsTasks) -> None:
    operator = start("one", leader_elect=False)
    own.cluster(instances=1)
    task = await own.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    operator.kill9()
    own.control.register("prod", 4)
    operator.start()
    await task.clusters({"prod": 5})
    # Times that the process before has written stay.
    assert (await task.get())["status"]["ecs"][0]["lastUpdateTime"]


@pytest.mark.slow
async def test_after_a_change_of_leader_one_throttled_look_takes_nothing_back(
    start: Start, own: EcsTasks
) -> None:
    operator = start("one", leader_elect=False)
    names = ["lab", "prod"]
    for name in names:
        own.cluster(name, instances=1)
    task = await own.create()
    await task.clusters(dict.fromkeys(names, 1))
    ready = await task.condition("Ready", "True", "InStep")
    operator.kill9()
    await own.until(lambda: format_time(time.time()) > ready["lastTransitionTime"])  # it is of whole seconds
    own.control.clear_calls()
    own.control.throttle(operation="DescribeServices", cluster="prod")
    operator.start()
    # Of lab one to read the task definition, and one to count; the same of prod after the one that failed.
    await own.until(lambda: own.operations().count("DescribeServices") == 5)
    await own.send(own.control.register("prod"))
    await task.clusters({"lab": 1, "prod": 2})
    assert own.control.faults()[-1]["used"] == 1
    assert await task.condition("Ready", "True", "InStep") == {
        **ready,
        "message": "desiredCount is the number of container instances in 2 clusters, 3 altogether",
    }, "it was never False meanwhile"


@pytest.mark.slow
async def test_ten_clusters_that_scale_at_once_are_looked_at_once_for_all_that_comes_together(
    start: Start, own: EcsTasks
) -> None:
    start("one", leader_elect=False, time_scale=1.0)
    for name in CLUSTERS:
        own.cluster(name, instances=2)
    task = await own.create()  # every cluster that runs the service
    await task.clusters(dict.fromkeys(CLUSTERS, 2))
    await task.condition("QueueReachable")
    await asyncio.sleep(
        MERGE_SECONDS
    )  # the work queue holds no pass back any more, which would merge as well
    own.control.clear_calls()
    began = time.monotonic()
    for number in range(ROUNDS):
        events = [event for name in CLUSTERS for event in own.control.register(name)]
        random.Random(number).shuffle(events)
        await own.send(events)
        await own.drained()  # each round is heard by itself
    seconds = time.monotonic() - began
    await task.clusters(dict.fromkeys(CLUSTERS, 2 + ROUNDS))
    assert [own.desired(name) for name in CLUSTERS] == [2 + ROUNDS] * len(CLUSTERS)
    looks = Counter(call["input"]["cluster"] for call in own.control.calls("DescribeServices"))
    assert set(looks) == {call["input"]["cluster"] for call in own.control.calls("UpdateService")}
    # One for the first event and those of the next second; one more for each second that they went on coming.
    most = 1 + int(seconds / MERGE_SECONDS)
    assert set(looks.values()) <= set(range(1, most + 1)), f"events came for {seconds:.2f} s"
    assert len(own.operations()) <= 3 * len(CLUSTERS) * most


@pytest.mark.slow
async def test_two_operators_one_of_which_stands_still_converge(
    start: Start, own: EcsTasks, namespace: str
) -> None:
    args = ("--operator-namespace", namespace)
    first, second = start("one", args=args), start("two", args=args)
    own.cluster(instances=1)
    task = await own.create(clusters=["prod"], resyncSeconds=SOON)
    await task.clusters({"prod": 1})
    for expected in (3, 5, 7):
        leader = first if first.metric("caretaker_leader") else second
        leader.pause()
        await own.send(own.control.register("prod", 2))
        await task.clusters({"prod": expected})
        leader.resume()
        await own.until(lambda: first.metric("caretaker_leader") + second.metric("caretaker_leader") == 1)
        assert own.desired() == expected


async def test_a_standby_asks_nothing(start: Start, own: EcsTasks, namespace: str) -> None:
    # Unscaled: who stood still for a scaled Lease's 0.75 s would be a standby that has asked.
    how: dict[str, Any] = {"args": ("--operator-namespace", namespace), "time_scale": 1.0}
    first, second = start("one", **how), start("two", **how)
    own.cluster(instances=1)
    task = await own.create(clusters=["prod"])
    await task.clusters({"prod": 1})
    standby = second if first.metric("caretaker_leader") else first
    assert not [s for s in standby.metrics() if s.startswith("caretaker_aws_requests_total")]
    assert standby.metric("caretaker_aws_long_polls") == 0


async def test_deleted_the_desired_count_stays_and_no_finalizer_holds_it(start: Start, own: EcsTasks) -> None:
    operator = start("one", leader_elect=False)
    own.cluster(instances=3)
    task = await own.create(clusters=["prod"], resyncSeconds=SOON)
    found = await task.clusters({"prod": 3})
    assert "finalizers" not in found["metadata"]
    await own.until(lambda: operator.metric("caretaker_ready", name=task.name) == 1)
    await task.delete()
    await own.admin.wait_gone(task.url)
    # The operator hears of it later: a resync that is due before that may still count the next instance.
    await own.until(lambda: operator.metric("caretaker_ready", name=task.name) == 0)
    own.made.clear()
    own.control.register("prod")
    # Another task's resyncs show how much time has passed.
    other = await own.create("other", clusters=["prod"], service="none", resyncSeconds=SOON)
    await other.condition("Ready", "False", "ServiceNotFound")
    own.control.clear_calls()
    await own.until(lambda: own.operations().count("DescribeServices") >= 3)
    assert {call["input"]["services"][0] for call in own.control.calls()} == {"none"}
    assert own.desired() == 3


async def test_what_a_namespace_was_not_granted_is_refused_before_anything_is_asked(
    start: Start, own: EcsTasks, namespace: str
) -> None:
    mine = {
        "namespaces": [namespace],
        "endpointURLs": ["*"],
        "ownIdentity": True,
        "queueARNs": ["arn:aws:sqs:*:*:mine"],
    }
    start("one", mine, leader_elect=False)
    own.cluster(instances=1)
    task = await own.create(clusters=["prod"])
    told = await task.condition("Ready", "False", "NotGranted")
    assert "spec.ecs.events.sqsQueueURL: namespace" in told["message"]
    role = "arn:aws:iam::111122223333:role/other"
    other = await own.create("role", clusters=["prod"], aws={"roleARN": role})
    told = await other.condition("Stalled", "True", "NotGranted")
    assert "spec.ecs.aws.roleARN" in told["message"]
    assert own.control.calls() == []


async def test_without_the_kind_nothing_is_done(start: Start, own: EcsTasks) -> None:
    start("none", leader_elect=False, args=("--kinds", "s3aggregatedrefreshes"))
    own.cluster(instances=1)
    task = await own.create(clusters=["prod"])
    operator = start("other", leader_elect=False)
    await task.clusters({"prod": 1})
    assert operator.metric("caretaker_daemontask_ecs_looks_total", result="Updated") == 1
    await asyncio.to_thread(operator.terminate)
