"""DaemonTask's ECS target beside the function of 2017: calls and milliseconds for the same events, and
dollars.

One double of ECS, one file of events of ten clusters. *The function* is made anew from what the article
"Extending ECS Auto-scaling for under $2/month with Lambda" says of it: a client for each invocation, an
invocation for each event; DescribeServices, no such service: end; DescribeClusters, the same number: end;
UpdateService. *Ours* is the operator as a process at its true pace, with a real API server, the events
through SQS (MiniStack).
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import boto3

from awsdoubles.clients import KEY, REGION
from awsdoubles.ecs.control import Control, arns, send
from awsdoubles.ecs.server import Ecs
from awsdoubles.envelopes import Queue, Wiring
from awsdoubles.ministack import MiniStack
from awsdoubles.stack import environment
from bench import ecscost
from bench.figures import Figure
from bench.parts import cluster, percentile, say
from testbed.admin import Admin, Json, path
from testing.operator import OperatorProcess
from testing.refreshing import grants

CLUSTERS: Final = [f"c{number}" for number in range(10)]
INSTANCES: Final = 20  # in each
FLAPS: Final = 5  # of each instance, as in an hour
JOINS: Final = 20  # one after another, beside the flaps
SERVICE: Final = "agent"
NAMESPACE: Final = "caretaker-system"
PAUSE: Final = 1.3  # seconds between two joins: each has its look
TIMEOUT: Final = 120.0
LOOK_SECONDS: Final = 0.002


async def run() -> list[Figure]:
    """All figures."""
    with Ecs() as ecs:
        function = await asyncio.to_thread(_function, ecs)
    async with cluster(0) as (made, admin):
        with tempfile.TemporaryDirectory() as folder, Ecs() as ecs, MiniStack(Path(folder)) as sqs:
            wiring = Wiring(sqs.url)
            queue = wiring.queue("ecs-instances", max_receives=None)
            env = environment(sqs.url, sqs.url, ecs_url=ecs.url)
            args = grants(Path(folder))
            with OperatorProcess(made.kubeconfig, "bench", env=env, args=args) as process:
                ours = await _ours(admin, ecs.control, process, wiring, queue)
            wiring.close()
    return [*ours, *function, *ecscost.costs()]


def _prepared(control: Control) -> None:
    """Ten clusters that run the service, each in step."""
    for name in CLUSTERS:
        control.add_cluster(name)
        control.put_service(name, SERVICE, desired=INSTANCES)
        control.register(name, INSTANCES)


def _flaps(control: Control) -> list[Json]:
    """An hour's: each agent disconnects and connects some times."""
    found: list[Json] = []
    for number in range(FLAPS):
        for name in CLUSTERS:
            found += control.flap(name, connected=bool(number % 2))
    random.Random(0).shuffle(found)
    return found


def _joined(control: Control, number: int) -> tuple[str, Json]:
    """One more container instance."""
    name = CLUSTERS[number % len(CLUSTERS)]
    return name, control.register(name)[0]


# ---------------------------------------------------------------- the function


def handler(event: Json, url: str) -> None:
    """The function: one invocation."""
    client = boto3.client(
        "ecs",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=KEY,
    )
    at = event["detail"]["clusterArn"]
    found = client.describe_services(cluster=at, services=[SERVICE])
    if not found["services"]:
        return
    count = client.describe_clusters(clusters=[at])["clusters"][0]["registeredContainerInstancesCount"]
    if found["services"][0]["desiredCount"] != count:
        client.update_service(cluster=at, service=SERVICE, desiredCount=count)


def _function(ecs: Ecs) -> list[Figure]:
    control = ecs.control
    _prepared(control)
    flaps = _flaps(control)
    handler(flaps[0], ecs.url)  # the first one loads botocore's descriptions, as a cold start does
    control.clear_calls()
    flapped = _timed(flaps, ecs.url)
    calls = len(control.calls())
    control.clear_calls()
    joined = _timed((_joined(control, number)[1] for number in range(JOINS)), ecs.url)
    changes = len(control.calls())
    say(f"the function: {calls} calls for {len(flaps)} flaps, {changes} for {JOINS} joins")
    return [
        Figure("calls for an event of an agent, the function", calls / len(flaps), ""),
        Figure("calls for a change, the function", changes / JOINS, ""),
        Figure("an event of an agent, the function, p50", percentile(flapped, 0.5), "ms"),
        Figure("event -> UpdateService answered, the function, p50", percentile(joined, 0.5), "ms"),
        Figure("event -> UpdateService answered, the function, p99", percentile(joined, 0.99), "ms"),
    ]


def _timed(events: Iterable[Json], url: str) -> list[float]:
    """Milliseconds of each invocation."""
    found = []
    for event in events:
        began = time.perf_counter()
        handler(event, url)
        found.append((time.perf_counter() - began) * 1000)
    return found


# ---------------------------------------------------------------- ours


async def _ours(
    admin: Admin, control: Control, process: OperatorProcess, wiring: Wiring, queue: Queue
) -> list[Figure]:
    _prepared(control)
    aws = {"region": REGION}
    body = {"ecs": {"aws": aws, "service": SERVICE, "events": {"sqsQueueURL": queue.url}}}
    task = {"apiVersion": "caretaker.dev/v1alpha1", "kind": "DaemonTask", "metadata": {"name": "agents"}}
    await admin.create(path("daemontasks", NAMESPACE), {**task, "spec": body})
    await admin.wait_for(path("daemontasks", NAMESPACE, "agents"), _in_step, TIMEOUT)
    flaps = _flaps(control)
    control.clear_calls()
    seen, cpu, began = _heard(process), _cpu(process), time.monotonic()
    await asyncio.to_thread(send, wiring.sqs, queue.url, flaps)
    while _heard(process) - seen < len(flaps):
        assert time.monotonic() - began < TIMEOUT
        await asyncio.sleep(0.1)
    spent = (_cpu(process) - cpu) * 1000 / len(flaps)
    calls = len(control.calls())
    control.clear_calls()
    latencies = [await _followed(control, wiring, queue, number) for number in range(JOINS)]
    changes = len(control.calls())
    say(f"ours: {calls} calls for {len(flaps)} flaps, {changes} for {JOINS} joins")
    merged = await _burst(control, wiring, queue)
    return [
        Figure("calls for an event of an agent, ours", calls / len(flaps), "", "= 0"),
        Figure("calls for a change, ours", changes / JOINS, "", "<= 3"),
        Figure(f"calls for {len(CLUSTERS)} clusters with 10 joins each at once, ours", merged, ""),
        Figure("CPU for an event of an agent, ours, SQS included", spent, "ms"),
        Figure("event sent -> UpdateService, ours, p50", percentile(latencies, 0.5), "ms"),
        Figure(
            "event sent -> UpdateService, ours, p99",
            percentile(latencies, 0.99),
            "ms",
            "<= 1500",
            "1,000 ms of it merging",
        ),
    ]


async def _followed(control: Control, wiring: Wiring, queue: Queue, number: int) -> float:
    """Milliseconds from the sending of a join's event until UpdateService was asked for."""
    since = len(control.calls("UpdateService"))
    _, event = _joined(control, number)
    sent = time.time()
    await asyncio.to_thread(send, wiring.sqs, queue.url, [event])
    while len(found := control.calls("UpdateService")) == since:
        assert time.time() - sent < TIMEOUT
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.sleep(PAUSE)
    return float((found[-1]["at"] - sent) * 1000)


async def _burst(control: Control, wiring: Wiring, queue: Queue) -> int:
    """Calls until ten clusters have followed ten joins each, whose events come at once."""
    control.clear_calls()
    events = [event for name in CLUSTERS for event in control.register(name, 10)]
    random.Random(1).shuffle(events)
    await asyncio.to_thread(send, wiring.sqs, queue.url, events)
    began = time.monotonic()
    while not all(_even(control, name) for name in CLUSTERS):
        assert time.monotonic() - began < TIMEOUT
        await asyncio.sleep(0.1)
    await asyncio.sleep(2 * PAUSE)
    assert len(set(arns(events))) == len(events)
    return len(control.calls())


def _even(control: Control, name: str) -> bool:
    return int(control.service(name, SERVICE)["desired"]) == len(control.instances(name))


def _heard(process: OperatorProcess) -> float:
    return process.metric("caretaker_daemontask_ecs_messages_total", result="Event")


def _cpu(process: OperatorProcess) -> float:
    return process.metric("process_cpu_seconds_total")


def _in_step(found: Json) -> bool:
    status: dict[str, Any] = found.get("status") or {}
    ready = {c["type"]: c.get("reason") for c in status.get("conditions", ())}
    heard = ready.get("QueueReachable") == "Reachable"
    return heard and ready.get("Ready") == "InStep"
