"""What one tenant can do to the operator and to the others, by inputs that are let through.

Real API server and operator process at its true pace, SQS by ElasticMQ, Storage Gateway by its double. A
tenant has a DaemonTask and some S3AggregatedRefreshes: they are timed while nothing else happens, and again
under each attack of another one. All of it shares the machine, and so do the attackers: the API server's part
of a large object is in the others' times, too.
"""

import asyncio
import contextlib
import itertools
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from botocore.exceptions import ClientError

from bench import s3events, s3refresh
from bench.daemontask import Joins
from bench.figures import Figure
from bench.parts import Usage, cluster, percentile, quantile, say, succeeded, task
from bench.s3refresh import BUCKET, Doubles
from fuzz.inputs import UNITS
from fuzz.samples import S3
from testbed.admin import Admin, path
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.operator import OperatorProcess, Samples
from testing.refreshing import Refresh

NODES: Final = 100
JOINS: Final = 10  # nodes that join, one after the other, for a figure
EVENTS: Final = 10  # single events, each to a resource of its own: a share is refreshed once a minute
QUIET: Final = 2.0  # seconds of debounce.quietPeriod
KEYS: Final = 1000
LEVELS: Final = 500
MIB: Final = 1 << 20
SPEC: Final = 250 * 1024  # bytes of a template
TASKS: Final = 8  # small ones, or as many with as many annotations as there may be
SMALL: Final = f"{TASKS} small tasks"
SETTLE: Final = 65.0  # the largest loop lag is of the last minute
LOOK: Final = 0.1
LAG_LOOKS: Final = 200  # looks between two readings of the largest loop lag, which is of the last minute
CROWD_SECONDS: Final = 60.0
LAG: Final = "caretaker_loop_lag_seconds"
LAG_MAX: Final = "caretaker_loop_lag_max_seconds"
# What a message may consist of (Amazon SQS API reference, SendMessage).
CARRIED: Final = re.compile(r"[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


class Place(msgspec.Struct, frozen=True):
    """What an attack works with."""

    made: Cluster
    admin: Admin
    process: OperatorProcess
    doubles: Doubles
    resources: list[tuple[str, str]]  # (queue, share) of the tenant's


class Times(msgspec.Struct, frozen=True):
    """Of the tenant who attacks nobody: seconds."""

    join: float  # node Ready -> Pod, the median
    event: float  # event sent -> refresh, the median


class Health:
    """The operator as its probes and its metrics show it, from now on."""

    def __init__(self, process: OperatorProcess) -> None:
        self._process = process
        self._usage = Usage(process.pid)
        self.slowest = self.rss = self.lag = self.lag_p99 = 0.0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look all the time."""
        before = await asyncio.to_thread(self._process.metrics)
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
            self.lag_p99 = quantile(before, await self._read_lag(), LAG, 0.99)

    async def _read_lag(self) -> Samples:
        samples = await asyncio.to_thread(self._process.metrics)
        self.lag = max(self.lag, samples[LAG_MAX])
        return samples

    async def _look(self) -> None:
        for look in itertools.count(1):
            if look % LAG_LOOKS == 0:
                with contextlib.suppress(OSError):  # a crowd of scrapers leaves no connection
                    await self._read_lag()
            began = time.monotonic()
            with contextlib.suppress(OSError):  # unanswered in 30 s: that long it took
                await asyncio.to_thread(self._process.healthz, 30.0)
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.rss = max(self.rss, self._usage.rss())
            await asyncio.sleep(LOOK)


async def run() -> list[Figure]:
    """All figures."""
    found: list[Figure] = []
    with s3refresh._doubles() as doubles:
        async with (
            cluster(NODES, 5000, 5000) as (made, admin),
            s3refresh._operator(made, doubles.env) as process,
        ):
            place = await _tenant(made, admin, process, doubles)
            await asyncio.sleep(SETTLE)
            quiet, rss = await _timed(place, "quiet"), _rss(process)
            await asyncio.sleep(SETTLE)  # a share is refreshed once a minute
            found += [
                Figure("nothing else: node Ready -> Pod, median", 1000 * quiet.join, "ms"),
                Figure("nothing else: event -> refresh, median", quiet.event, "s"),
                Figure("nothing else: RSS", rss, "MiB"),
            ]
            for name, attack in ATTACKS.items():
                found += await _under(place, name, attack, quiet)
            small, _ = await _during(place, "small", _small_tasks)
            await _clean(place)
            found.append(Figure(f"{SMALL}: node Ready -> Pod / quiet", small.join / quiet.join, "x"))
            found += await _under(place, "annotated tasks", _annotated_tasks, small, SMALL)
    return found


async def _under(
    place: Place, name: str, attack: "Attack", usual: Times, than: str = "quiet"
) -> list[Figure]:
    """The figures of one attack. The memory of attacks before is no part of it."""
    health, rss = Health(place.process), _rss(place.process)
    async with health.watched():
        times, note = await _during(place, name.partition(" ")[0], attack)
    lag, p99 = 1000 * health.lag, 1000 * health.lag_p99
    say(f"{name}: lag {lag:.0f} ms, p99 {p99:.0f} ms, /healthz {1000 * health.slowest:.0f} ms; {note}")
    await _clean(place)
    return [
        Figure(f"{name}: loop lag max", lag, "ms", "<= 250", note),
        Figure(f"{name}: loop lag p99", p99, "ms", "<= 50"),
        Figure(f"{name}: /healthz max", 1000 * health.slowest, "ms", "<= 500"),
        Figure(f"{name}: RSS above quiet", health.rss - rss, "MiB", "<= 40"),
        Figure(f"{name}: node Ready -> Pod / {than}", times.join / usual.join, "x", "<= 1.5"),
        Figure(f"{name}: event -> refresh / {than}", times.event / usual.event, "x", "<= 1.5"),
    ]


async def _during(place: Place, name: str, attack: "Attack") -> tuple[Times, str]:
    """(the times of the other tenant while it goes on, its note)."""
    attacking = asyncio.ensure_future(attack(place))
    times = await _timed(place, name)
    return times, await attacking


def _rss(process: OperatorProcess) -> float:
    return Usage(process.pid).rss()


# ---------------------------------------------------------------- the tenant who is timed


async def _tenant(made: Cluster, admin: Admin, process: OperatorProcess, doubles: Doubles) -> Place:
    await admin.create(path("daemontasks", "default"), task("joins", ttlSecondsAfterFinished=0))
    await succeeded(admin, "joins")
    resources = []
    for number in range(EVENTS):
        share = doubles.control.add_share(doubles.control.add_gateway(), bucket=BUCKET)
        queue = doubles.wiring.queue(f"tenant-{number}").url
        debounce = {"quietPeriod": f"{QUIET:g}s"}
        one = await s3refresh._create(admin, f"tenant-{number}", queue, share, debounce)
        await one.condition("Ready", reason="Consuming")
        resources.append((queue, share))
    return Place(made, admin, process, doubles, resources)


async def _timed(place: Place, name: str) -> Times:
    joins, events = await asyncio.gather(_joins(place, name), _events(place, name))
    return Times(percentile(joins, 0.5), percentile(events, 0.5))


async def _joins(place: Place, name: str) -> list[float]:
    found = []
    async with Joins(place.admin) as joins:
        for number in range(JOINS):
            (node,) = await place.made.add_nodes(1, f"{name}-joins", first=number, wait=False)
            found.append(await joins.latency(node))
            await asyncio.sleep(1)
    return found


async def _events(place: Place, name: str) -> list[float]:
    control, sent, began = place.doubles.control, {}, time.time()
    for number, (queue, share) in enumerate(place.resources):
        body = s3events.body(BUCKET, f"{name}/{number}/a.csv", number)
        sent[share] = time.time()
        await asyncio.to_thread(place.doubles.wiring.sqs.send_message, QueueUrl=queue, MessageBody=body)
        await asyncio.sleep(0.5)

    def called() -> dict[str, float]:
        calls = control.calls("RefreshCache")
        return {call["input"]["FileShareARN"]: call["at"] for call in calls if call["at"] > began}

    await s3refresh._until(lambda: sent.keys() <= called().keys())
    return [called()[share] - at for share, at in sent.items()]


# ---------------------------------------------------------------- attacks


async def _keys(place: Place) -> str:
    """Events of objects that lie deep."""
    keys = (f"{number:x}/{'a/' * (LEVELS - 1)}"[:1000] + f"f{number % 1000}" for number in range(KEYS))
    return await _sent(place, [s3events.body(BUCKET, key, number) for number, key in enumerate(keys)])


async def _messages(place: Place) -> str:
    """A message of each alphabet, in one of S3 where it says its version, and by itself."""
    most = await asyncio.to_thread(_largest, place)
    return f"{await _sent(place, bodies(most))} of up to {most >> 10} KiB"


def bodies(most: int) -> list[str]:
    """Of these messages; `most` bytes at most."""
    found = []
    for unit in filter(CARRIED.fullmatch, UNITS):
        said = unit * (most // 2 // len(json.dumps(unit)))
        record: dict[str, Any] = {**S3["Records"][0], "eventVersion": said}
        found += [said, json.dumps({"Records": [record]})]
    return found


def _largest(place: Place) -> int:
    """Bytes of a message: what SQS lets through, or what its double does."""
    queue = place.doubles.wiring.queue("largest").url
    try:
        place.doubles.wiring.sqs.send_message(QueueUrl=queue, MessageBody="a" * MIB)
    except ClientError:
        return MIB // 4
    return MIB


async def _sent(place: Place, bodies: list[str]) -> str:
    """Send them to a queue of the attacker's, and wait until none of them is there for the first time."""
    name = f"attack-{time.monotonic_ns()}"
    share = place.doubles.control.add_share(place.doubles.control.add_gateway(), bucket=BUCKET)
    queue = place.doubles.wiring.queue(name).url
    await s3refresh._create(place.admin, name, queue, share, {})
    await Refresh(place.admin, "default", name).condition("Ready", reason="Consuming")
    sqs = place.doubles.wiring.sqs

    def send() -> None:
        for body in bodies:
            sqs.send_message(QueueUrl=queue, MessageBody=body)

    def visible() -> int:
        asked = ["ApproximateNumberOfMessages"]
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=asked)["Attributes"]
        return int(found[asked[0]])

    await asyncio.to_thread(send)
    await s3refresh._until(lambda: not visible())
    return f"{len(bodies)} messages"


async def _specs(place: Place) -> str:
    """DaemonTasks as large as they may be: terms, tolerations, variables. Most select the nodes that join."""
    url = path("daemontasks", "default")
    for name, spec in SPECS.items():
        body = task(f"attack-{name}")
        body["spec"]["template"]["spec"] |= spec
        await place.admin.create(url, body)
    await asyncio.sleep(SETTLE / 2)
    for name in SPECS:  # a template that changes runs anew everywhere
        patch = {"spec": {"template": {"metadata": {"labels": {"round": "2"}}}}}
        await place.admin.patch(path("daemontasks", "default", f"attack-{name}"), patch)
    await asyncio.sleep(SETTLE / 2)
    return ", ".join(SPECS)


async def _small_tasks(place: Place, annotations: dict[str, str] | None = None) -> str:
    """DaemonTasks that anybody may have."""
    for number in range(TASKS):
        body = task(f"attack-{number}")
        body["metadata"]["annotations"] = annotations or {}
        await place.admin.create(path("daemontasks", "default"), body)
    await asyncio.sleep(SETTLE)
    return f"{TASKS} tasks"


async def _annotated_tasks(place: Place) -> str:
    """As many, with as many annotations as there may be: the times are compared with those of the small
    ones."""
    return await _small_tasks(place, _annotations())


def _annotations() -> dict[str, str]:
    """As many as the API server lets through, 256 KiB; each resembles a known one."""
    return {f"caretaker.dev/rerun-node{number:x}": "" for number in range(9000)}


def _filled(make: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as fit into a template."""
    found, size, number = [], 0, 0
    while size < SPEC:
        found.append(make(number))
        size += len(json.dumps(found[-1], separators=(",", ":"))) + 1
        number += 1
    return found[:-1]


def _required(terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


SPECS: Final = {
    "terms": _required(
        [
            *_filled(lambda number: {"matchExpressions": [{"key": f"k{number:x}", "operator": "Exists"}]}),
            {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "Exists"}]},
        ]
    ),
    "empty": _required([{}] * (SPEC // 3 - 100)),
    "tolerations": {"tolerations": _filled(lambda number: {"key": "k", "value": f"{number:x}"})},
    "env": {
        "containers": [
            {"name": "main", "image": "test:1", "env": _filled(lambda number: {"name": f"V{number:x}"})}
        ]
    },
}


async def _crowd(place: Place) -> str:
    """Scrapers, and connections that never ask, at the lowest priority: they would be on other machines."""
    ports = (str(place.process.metrics_port), str(place.process.health_port))
    crowd = await asyncio.create_subprocess_exec(
        "nice",
        *("-n", "19"),
        sys.executable,
        *("-m", "bench.crowd"),
        *ports,
        f"{CROWD_SECONDS:g}",
        stdout=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
    )
    told, _ = await crowd.communicate()
    scrapes, kept = (int(word) for word in told.split() or (0, 0))
    return f"{scrapes} scrapes answered, {kept} connections kept"


Attack = Callable[[Place], Awaitable[str]]
ATTACKS: Final[dict[str, Attack]] = {
    "keys of 500 levels": _keys,
    "messages of each alphabet": _messages,
    "specs of 250 KiB": _specs,
    "crowd of scrapers and connections": _crowd,
}


async def _clean(place: Place) -> None:
    """What the attacker made goes, and so does the largest loop lag."""
    for plural in ("daemontasks", "s3aggregatedrefreshes"):
        for one in await place.admin.list(path(plural, "default")):
            if (name := one["metadata"]["name"]).startswith("attack-"):
                await place.admin.delete(path(plural, "default", name))
    await asyncio.sleep(SETTLE)
