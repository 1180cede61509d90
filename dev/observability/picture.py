"""Draws docs/images/dashboard.svg: the dashboard's expressions on the data of a real run.

    uv sync --group pictures
    PYTHONPATH=dev .venv/bin/python -m observability.picture

It runs the demo (a real control plane, doubles of AWS, an operator as a process), has a Prometheus built from
its Go module scrape that operator every second, goes on with re-runs and uploads for some minutes,
asks Prometheus for every expression of panels.py and draws what it answers. Grafana is not involved: the
look is ours, the data are not. It leaves nothing running.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from awsdoubles.clients import client
from awsdoubles.stack import Stack
from observability.drawing import Graph, draw
from observability.panel import plain
from observability.panels import ROWS
from observability.prometheus import Prometheus
from testbed.demo_operator import Operator
from testbed.demo_place import Embedded
from testbed.demo_refresh import BUCKET
from testbed.paths import CHECKOUT, STATE

LABELS: Final = {"job": "caretaker", "namespace": "caretaker-system", "pod": "caretaker-0"}
START_SECONDS: Final = 600.0  # of the demo, until its operator answers
ROUND_SECONDS: Final = 30.0
OBJECTS: Final = 120


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="observability.picture", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=5, help=f"of load after the demo, {ROUND_SECONDS:g} s each"
    )
    parser.add_argument("--out", type=Path, default=CHECKOUT / "docs" / "images" / "dashboard.svg")
    options = parser.parse_args(arguments)
    folder = STATE / "picture"
    demo = [sys.executable, "-m", "testbed.demo", "--folder", str(folder)]
    log = folder / "operator" / "logs" / "operator.log"
    log.unlink(missing_ok=True)
    shown = subprocess.Popen(demo, env={**os.environ, "KEEP": "1"})
    try:
        operator = Operator(folder, Embedded(folder, keep=True).kubeconfig)
        url = _metrics_url(operator, shown)
        with Prometheus(folder / "prometheus", url, LABELS) as prometheus:
            since = time.time()
            if shown.wait():
                return 1
            asyncio.run(_work(operator, Stack(folder).variables(), options.rounds))
            span = since + 5, time.time()
            draw(_rows(prometheus, *span), *span, options.out)
    finally:
        if shown.poll() is None:
            shown.terminate()
            shown.wait()
        subprocess.run([*demo, "down"], check=False)
    print(f"drawn: {options.out}, {options.out.stat().st_size / 1024:.0f} KiB")
    return 0


def _metrics_url(operator: Operator, demo: "subprocess.Popen[bytes]") -> str:
    """Where the demo's operator listens, once it does."""
    deadline = time.monotonic() + START_SECONDS
    while demo.poll() is None and time.monotonic() < deadline:
        if url := operator.listening():
            return url
        time.sleep(0.2)
    raise SystemExit("the demo's operator did not start")


async def _work(operator: Operator, variables: dict[str, str], rounds: int) -> None:
    """Re-runs on all nodes, and uploads."""
    s3 = client("s3", variables["AWS_ENDPOINT_URL_S3"])
    try:
        for number in range(rounds):
            until = time.monotonic() + ROUND_SECONDS
            await operator.command("rerun", "daemontask", "hello", "-n", "default")
            for key in range(OBJECTS):
                await asyncio.to_thread(s3.put_object, Bucket=BUCKET, Key=f"round-{number}/{key}", Body=b"x")
            await asyncio.sleep(max(until - time.monotonic(), 0))
    finally:
        s3.close()


def _rows(prometheus: Prometheus, since: float, until: float) -> dict[str, list[Graph]]:
    """Every panel with what Prometheus answers."""
    return {
        title: [
            Graph(
                panel,
                [(legend, prometheus.series(plain(query), since, until)) for query, legend in panel.queries],
            )
            for panel in panels
        ]
        for title, panels in ROWS.items()
    }


if __name__ == "__main__":
    sys.exit(main())
