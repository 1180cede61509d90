"""1,000 SQS and 1,000 EC2 calls: through aws/, with a client for each call, and with boto3's defaults.

All three run in this process, one after the other and three times over, against one TLS endpoint in a
process of its own on loopback, with CALLERS callers that each wait for one answer before the next call; boto3
has a thread for each of them, ours share 16. Making the clients counts. Round trips cost next to nothing
here: on a network each connection opened costs two to three more of them.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import boto3
import msgspec

from bench.awsdouble import ANSWER_SECONDS
from bench.figures import Figure
from bench.parts import percentile, say
from caretaker.aws.calls import Aws
from caretaker.aws.identity import ClientKey
from caretaker.aws.services import Rate
from caretaker.aws.session import Options
from testbed import pki
from testbed.paths import CHECKOUT

CALLS: Final = 1000  # to each service
CALLERS: Final = 40  # half of them call SQS, half EC2; more than a pool of boto3 holds by default
ROUNDS: Final = 3
REGION: Final = "eu-west-1"
QUEUE: Final = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
OPERATIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "sqs": ("get_queue_attributes", {"QueueUrl": QUEUE, "AttributeNames": ["All"]}),
    "ec2": ("describe_instances", {}),
}


class Run(msgspec.Struct):
    """One way of calling: seconds for all, the 99th percentile of a call in ms, counts of the endpoint."""

    seconds: float
    p99: float
    accepted: int
    most_open: int


class Endpoint:
    """The double, from outside."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.port = int(self._line())

    def counts(self) -> dict[str, int]:
        """Since the last time."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


async def run() -> list[Figure]:
    """All figures."""
    ways = {"ours": _ours, "a client per call": _client_per_call, "boto3's defaults": _defaults}
    found: dict[str, list[Run]] = {name: [] for name in ways}
    with _endpoint() as endpoint:
        for number in range(ROUNDS):
            for name, way in ways.items():
                endpoint.counts()
                seconds, latencies = await way()
                counts = endpoint.counts()
                assert counts["requests"] == 2 * CALLS
                p99 = 1000 * percentile(latencies, 0.99)
                found[name].append(Run(seconds, p99, counts["accepted"], counts["most_open"]))
                say(f"round {number + 1}, {name}: {seconds:.1f} s, {counts['accepted']} connections opened")
    return _figures(found)


def _figures(found: dict[str, list[Run]]) -> list[Figure]:
    threads = Options().threads
    most = max(r.most_open for r in found["ours"])
    figures = [Figure(f"connections open at a time, ours, {threads} threads", most, "", f"<= {threads}")]
    what = f"{CALLS:,} SQS and {CALLS:,} EC2 calls"
    for name, runs in found.items():
        figures += [
            Figure(f"connections opened for {what}, {name}", max(r.accepted for r in runs), ""),
            Figure(f"wall time, {name}, median of {ROUNDS}", statistics.median(r.seconds for r in runs), "s"),
            Figure(f"call p99, {name}, median of {ROUNDS}", statistics.median(r.p99 for r in runs), "ms"),
        ]
    ours = statistics.median(r.seconds for r in found["ours"])
    note = f"answers after {1000 * ANSWER_SECONDS:g} ms"
    for name in list(found)[1:]:
        ratio = statistics.median(r.seconds for r in found[name]) / ours
        figures.append(Figure(f"wall time, {name} / ours", ratio, "x", note=note))
    return figures


@contextlib.contextmanager
def _endpoint() -> Iterator[Endpoint]:
    """The double, and an environment that leads every client there."""
    with tempfile.TemporaryDirectory() as folder:
        made = pki.write(Path(folder) / "pki")
        command = [sys.executable, "-m", "bench.awsdouble"]
        process = subprocess.Popen(
            [*command, str(made.server_certificate), str(made.server_key)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=CHECKOUT,
            text=True,
        )
        before = dict(os.environ)
        try:
            endpoint = Endpoint(process)
            for name in [n for n in os.environ if n.startswith("AWS_")]:
                del os.environ[name]
            os.environ |= {
                "AWS_ACCESS_KEY_ID": "bench",
                "AWS_SECRET_ACCESS_KEY": "bench",
                "AWS_CA_BUNDLE": str(made.ca),
                "AWS_ENDPOINT_URL": f"https://localhost:{endpoint.port}",
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            }
            yield endpoint
        finally:
            os.environ.clear()
            os.environ.update(before)
            process.communicate(timeout=10)  # ends with its stdin


# ---------------------------------------------------------------- the three ways


async def _ours() -> tuple[float, list[float]]:
    unlimited = Rate(1e6, 1e6)  # token buckets would be measured, not connections
    latencies: list[float] = []
    started = time.monotonic()
    async with Aws(rates={"sqs": unlimited, "ec2": unlimited}) as aws:

        async def caller(service: str) -> None:
            target, (operation, params) = ClientKey(service, REGION), OPERATIONS[service]
            for _ in range(2 * CALLS // CALLERS):
                began = time.monotonic()
                await aws.call(target, operation, **params)
                latencies.append(time.monotonic() - began)

        await asyncio.gather(*(caller(("sqs", "ec2")[n % 2]) for n in range(CALLERS)))
        return time.monotonic() - started, latencies


async def _client_per_call() -> tuple[float, list[float]]:
    """As in a function that begins with boto3.client(...); a session for each thread, which is kept."""
    local = threading.local()

    def call(service: str) -> None:
        if not hasattr(local, "session"):
            local.session = boto3.Session(region_name=REGION)
        operation, params = OPERATIONS[service]
        getattr(local.session.client(service), operation)(**params)

    return await _in_threads(call, time.monotonic())


async def _defaults() -> tuple[float, list[float]]:
    """One client for each service, no setting touched: pools of 10 connections for any number of threads."""
    started = time.monotonic()
    session = boto3.Session(region_name=REGION)
    clients = {service: session.client(service) for service in OPERATIONS}

    def call(service: str) -> None:
        operation, params = OPERATIONS[service]
        getattr(clients[service], operation)(**params)

    return await _in_threads(call, started)


async def _in_threads(call: Callable[[str], None], started: float) -> tuple[float, list[float]]:
    latencies: list[float] = []

    def caller(service: str) -> None:
        for _ in range(2 * CALLS // CALLERS):
            began = time.monotonic()
            call(service)
            latencies.append(time.monotonic() - began)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(CALLERS) as pool:
        services = (("sqs", "ec2")[n % 2] for n in range(CALLERS))
        await asyncio.gather(*(loop.run_in_executor(pool, caller, service) for service in services))
    return time.monotonic() - started, latencies
