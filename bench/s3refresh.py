"""S3AggregatedRefresh: 100,000 events, then single ones on 20 resources; beside a bare boto3 loop.

Real API server and operator process at its true pace, SQS by ElasticMQ, Storage Gateway by its double. The
events are in the queue before the operator reads it, so that every batch is full. All of it shares the
machine: CPU seconds are the operator's own, times are everybody's.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from awsdoubles.elasticmq import ElasticMq
from awsdoubles.envelopes import Wiring
from awsdoubles.gateway.control import Control
from awsdoubles.gateway.server import StorageGateway
from awsdoubles.ministack import MiniStack
from awsdoubles.sqsproxy.calls import CallLog
from awsdoubles.sqsproxy.proxy import SqsProxy
from awsdoubles.stack import environment
from bench import s3events
from bench.figures import Figure
from bench.parts import Usage, cluster, percentile, say, writes
from bench.s3cost import costs
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testing.operator import OperatorProcess, Samples
from testing.refreshing import PLURAL, Refresh, operator

BUCKET: Final = "bench"
NAMESPACE: Final = "default"
EVENTS: Final = 100_000
FOLDERS: Final = 20
NODES: Final = 3  # so that the watch of nodes hears something
BARE_EVENTS: Final = 20_000
HEAP_MIB: Final = 1024
RESOURCES: Final = 20
ROUNDS: Final = 3
QUIET: Final = 2.0  # seconds; of the resources that get single events
GAP: Final = 0.5  # between two single events
INTERVAL: Final = 60.0  # the floor of debounce.minInterval
IDLE_SECONDS: Final = 60
TIMEOUT: Final = 900.0


class Doubles(msgspec.Struct, frozen=True):
    """AWS, as the operator sees it."""

    wiring: Wiring
    control: Control
    env: dict[str, str]
    sqs_url: str


async def run() -> list[Figure]:
    """All figures."""
    with _doubles() as doubles:
        found = await asyncio.to_thread(_bare, doubles)
        async with cluster(NODES) as (made, admin):
            async with _operator(made, doubles.env) as process:
                storm = await _storm(admin, process, doubles)
            # 2,200 where the bare loop has 4,183 (docs/benchmarks.md) are 0.53 of it.
            share = storm[0].value / found[0].value
            found += [
                *storm,
                Figure("events per CPU second, the operator / the bare loop", share, "x", ">= 0.53"),
            ]
            # It changes nothing and tells when a message was handed over.
            with SqsProxy(doubles.sqs_url, own_waits=False) as sqs:
                env = {**doubles.env, "AWS_ENDPOINT_URL_SQS": sqs.url}
                async with _operator(made, env) as process:
                    found += await _many(admin, process, doubles, sqs.calls)
    return found


@contextmanager
def _doubles() -> Iterator[Doubles]:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        with (
            MiniStack(where) as s3,
            ElasticMq(where, heap_mib=HEAP_MIB) as sqs,
            StorageGateway(s3.url) as gateway,
        ):
            wiring = Wiring(s3.url, sqs_url=sqs.url)
            wiring.bucket(BUCKET)
            env = environment(s3.url, gateway.url, sqs.url)
            yield Doubles(wiring, gateway.control, env, sqs.url)
            wiring.close()


@asynccontextmanager
async def _operator(of: Cluster, env: dict[str, str]) -> AsyncIterator[OperatorProcess]:
    """At its true pace, with its Lease."""
    with tempfile.TemporaryDirectory() as folder:
        made = operator(of.kubeconfig, Path(folder), env, "bench", time_scale=1.0, leader_elect=True)
        with made as process:
            yield process


# ---------------------------------------------------------------- the bare loop


def _bare(doubles: Doubles) -> list[Figure]:
    queue = doubles.wiring.queue("bare").url
    found = []
    for threads in (1, 8):
        s3events.send(queue, _bodies(BARE_EVENTS))
        done = s3events.bare(queue, threads)
        assert done.events == BARE_EVENTS
        say(f"bare boto3, {threads} threads: {done.cpu:.1f} CPU s, {done.seconds:.1f} s")
        name = f"events per CPU second, bare boto3 loop, {threads} thread(s)"
        found.append(Figure(name, done.events / done.cpu, "/s"))
    return found


def _bodies(count: int) -> Iterator[str]:
    """Events of files in FOLDERS folders, one after the other."""
    return (s3events.body(BUCKET, f"in/2026/{n % FOLDERS:02d}/{n}.csv", n) for n in range(count))


# ---------------------------------------------------------------- 100,000 events


async def _storm(admin: Admin, process: OperatorProcess, doubles: Doubles) -> list[Figure]:
    """One resource as its defaults make it. Suspended while the queue fills: its clients are made by then."""
    share = doubles.control.add_share(doubles.control.add_gateway(), bucket=BUCKET)
    queue = doubles.wiring.queue("storm").url
    resource = await _create(admin, "storm", queue, share, {})
    await resource.condition("Ready", reason="Consuming")
    await resource.edit(suspend=True)
    await resource.condition("Ready", reason="Suspended")
    # The poll that it left behind would take ten messages with it, for as long as their visibility timeout.
    await _until(lambda: process.metric("caretaker_aws_long_polls") == 0)
    started = time.monotonic()
    await asyncio.to_thread(s3events.send, queue, _bodies(EVENTS))
    say(f"{EVENTS} events sent in {time.monotonic() - started:.0f} s")
    before, usage = process.metrics(), Usage(process.pid)
    await resource.edit(suspend=False)
    await _deleted(process, doubles, queue, before)
    cpu, seconds = usage.cpu_seconds(), usage.seconds()
    drained = process.metrics()
    say(f"{EVENTS} events consumed in {seconds:.0f} s, {cpu:.1f} CPU s")
    await resource.condition("CaughtUp", timeout=TIMEOUT)
    after = process.metrics()
    refreshes = doubles.control.refreshes(share)
    folders = sorted(name for one in refreshes for name in one["folders"])
    assert len(set(folders)) == FOLDERS + 3, folders  # /, in, in/2026
    sqs = _gain(before, drained, "caretaker_aws_requests_total", 'service="sqs"')
    say(f"{len(refreshes)} refresh(es) of {len(folders)} folders, {sqs:.0f} SQS requests")
    return [
        Figure("events per CPU second, the operator", EVENTS / cpu, "/s", ">= 2200"),
        Figure("events per second, the operator and all else on this machine", EVENTS / seconds, "/s"),
        Figure(
            f"etcd writes for {EVENTS:,} events, to CaughtUp", writes(after) - writes(before), "", "<= 100"
        ),
        Figure("SQS requests per event", sqs / EVENTS, "", "<= 0.21"),
        Figure(f"refreshes for {EVENTS:,} events", len(refreshes), "", "= 1"),
        Figure("RSS after them", usage.rss(), "MiB"),
        *costs(sqs / EVENTS),
    ]


async def _deleted(process: OperatorProcess, doubles: Doubles, queue: str, before: Samples) -> None:
    """Once all events are on record and the queue is empty. A look at the metrics is the operator's work,
    too: not more than one in two seconds."""
    series = 'caretaker_s3refresh_events_total{result="Matched"}'
    await _until(lambda: process.metrics().get(series, 0) - before.get(series, 0) >= EVENTS, 2.0)
    await _until(lambda: not _left(doubles, queue), 0.2)


def _left(doubles: Doubles, queue: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = doubles.wiring.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


async def _until(holds: Callable[[], bool], every: float = 1.0) -> None:
    """Look again and again; `holds` blocks."""
    async with asyncio.timeout(TIMEOUT):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(every)


# ---------------------------------------------------------------- 20 resources


async def _many(admin: Admin, process: OperatorProcess, doubles: Doubles, received: CallLog) -> list[Figure]:
    """Idle, then single events. A gateway for each: turns are not what is measured."""
    await admin.delete(path(PLURAL, NAMESPACE, "storm"))
    control, pairs, resources = doubles.control, [], []
    for number in range(RESOURCES):
        share = control.add_share(control.add_gateway(), bucket=BUCKET)
        queue = doubles.wiring.queue(f"single-{number}").url
        pairs.append((queue, share))
        debounce = {"quietPeriod": f"{QUIET:g}s"}
        resources.append(await _create(admin, f"single-{number}", queue, share, debounce))
    for resource in resources:
        await resource.condition("Ready", reason="Consuming")
    await asyncio.sleep(5)
    before, usage = writes(process.metrics()), Usage(process.pid)
    await asyncio.sleep(IDLE_SECONDS)
    found = [
        Figure(f"RSS with {RESOURCES} resources polling", usage.rss(), "MiB", "<= 180"),
        Figure("CPU of one core in an idle minute", usage.cpu_share(), "%", "<= 1"),
        Figure("writes in that minute, the Lease apart", writes(process.metrics()) - before, "", "= 0"),
    ]
    late: list[float] = []
    for number in range(ROUNDS):
        late += await _round(number, pairs, doubles, received)
        say(f"round {number + 1}: last event -> call, p50 {1000 * percentile(late, 0.5):.0f} ms")
        if number + 1 < ROUNDS:
            await asyncio.sleep(INTERVAL + 5)
    what = f"event received -> RefreshCache beyond quietPeriod {QUIET:g} s"
    return [
        *found,
        Figure(f"{what}, p50", 1000 * percentile(late, 0.5), "ms", note=f"{len(late)} windows of one event"),
        Figure(f"{what}, p99", 1000 * percentile(late, 0.99), "ms", "<= 500"),
    ]


async def _round(
    number: int, pairs: list[tuple[str, str]], doubles: Doubles, received: CallLog
) -> list[float]:
    """One event to each queue; the seconds by which each share's call came later than it might have."""
    began = time.time()
    for queue, _ in pairs:
        body = s3events.body(BUCKET, f"round/{number}/a.csv", number)
        await asyncio.to_thread(doubles.wiring.sqs.send_message, QueueUrl=queue, MessageBody=body)
        await asyncio.sleep(GAP)

    def called() -> dict[str, float]:
        calls = doubles.control.calls("RefreshCache")
        return {call["input"]["FileShareARN"]: call["at"] for call in calls if call["at"] > began}

    await _until(lambda: len(called()) == len(pairs))
    given = {call.queue: call.at + call.seconds for call in received.all("ReceiveMessage") if call.messages}
    at = called()
    return [at[share] - given[queue.rsplit("/", 1)[1]] - QUIET for queue, share in pairs]


# ---------------------------------------------------------------- parts


async def _create(admin: Admin, name: str, queue: str, share: str, debounce: dict[str, str]) -> Refresh:
    body: dict[str, Any] = {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": "S3AggregatedRefresh",
        "metadata": {"name": name},
        "spec": {
            "aws": {"region": "eu-west-1"},
            "source": {"sqs": {"queueURL": queue}},
            "debounce": debounce,
            "resync": {"onStart": False},
            "target": {"storageGateway": {"shares": {"fileShareARNs": [share]}}},
        },
    }
    await admin.create(path(PLURAL, NAMESPACE), body)
    return Refresh(admin, NAMESPACE, name)


def _gain(before: Samples, after: Samples, name: str, *labels: str) -> float:
    """What the series of a counter with these labels gained."""
    return sum(
        value - before.get(series, 0.0)
        for series, value in after.items()
        if series.startswith(f"{name}{{") and all(label in series for label in labels)
    )
