"""The operator as the demo runs it: a process of its own, started as a user would start it.

Inputs: a kubeconfig and a folder for its log and its record. It must not reach into the operator: what the
demo tells of it comes from its /metrics and its commands.
"""

import asyncio
import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from testbed.paths import CHECKOUT
from testbed.processes import Processes

NAME: Final = "operator"
NAMESPACE: Final = "caretaker-system"
DEMO_NAMESPACE: Final = "default"
START_SECONDS: Final = 180.0
STOP_SECONDS: Final = 10.0
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class OperatorError(Exception):
    """The operator did not start, or a command of it failed; the message has its own words."""


class Operator:
    """`caretaker run`, with its log in `folder`/logs/operator.log."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        # Not tied to us: it is stopped by its record, also by a later `down`.
        self._processes = Processes(folder / NAME, end_with_parent=False)
        self._kubeconfig = kubeconfig
        self._grants = folder / "grants.json"
        self.doubles: dict[str, str] = {}  # variables that lead it to the doubles of AWS
        self.log = self._processes.log(NAME)
        self.metrics_url = ""

    async def start(self) -> None:
        """Return once it leads."""
        self.log.unlink(missing_ok=True)
        grant = {
            "namespaces": [DEMO_NAMESPACE],
            "imdsPolicies": True,
            "ownIdentity": True,
            "queueARNs": ["*"],
            "targetARNs": ["*"],
        }
        self._grants.write_text(json.dumps({"identities": [grant]}))
        arguments = [
            "run",
            "--aws-identities",
            str(self._grants),
            "--metrics-port",
            "0",
            "--health-port",
            "0",
            "--bind-host",
            "127.0.0.1",
        ]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._processes.start(NAME, [*_program(), *arguments], self._environment())
        ready = await self._logged("ready")
        self.metrics_url = _metrics_url(ready)
        await self._logged("leading")

    def stop(self) -> None:
        """SIGTERM; it finishes its pass and releases its Lease."""
        self._processes.stop(grace=STOP_SECONDS)

    def running(self) -> bool:
        """Whether it runs, whoever started it."""
        return bool(self._processes.running())

    def tail(self) -> str:
        """The last lines of its log."""
        return self._processes.log_tail(NAME)

    def listening(self) -> str:
        """The address of the /metrics of an operator that somebody else starts here; "" until it has one."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        ready = next((found for line in lines if (found := _record(line)).get("msg") == "ready"), None)
        return _metrics_url(ready) if ready else ""

    async def command(self, *arguments: str) -> str:
        """Run another `caretaker` command; what it printed."""
        process = await asyncio.create_subprocess_exec(
            *_program(),
            *arguments,
            env={**os.environ, **self._environment()},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:  # interrupted
                process.kill()
        if process.returncode:
            raise OperatorError(f"caretaker {' '.join(arguments)}: {said.decode().strip()}")
        return said.decode().strip()

    async def writes(self) -> int:
        """Write requests that it has sent so far, answered or not; those for its Lease left out."""
        text = await asyncio.to_thread(self._scrape)
        return int(
            sum(
                sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == "caretaker_api_requests_total"
                and sample.labels["verb"] in WRITES
                and sample.labels["resource"] != "leases"
            )
        )

    def _scrape(self) -> str:
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            return str(answer.read().decode())

    async def _logged(self, message: str) -> dict[str, Any]:
        """The first record with that message."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in self.log.read_text().splitlines():
                record = _record(line)
                if record.get("msg") == message:
                    return record
            if self._processes.dead():
                raise OperatorError(f"the operator ended:\n{self.tail()}")
            await asyncio.sleep(0.05)
        raise OperatorError(f"the operator did not log {message!r} in {START_SECONDS:.0f} s:\n{self.tail()}")

    def _environment(self) -> dict[str, str]:
        """Settings of the user's own shell must not reach the demo's operator."""
        own = {name: "" for name in os.environ if name.startswith("CARETAKER_")}
        return {
            **own,
            "KUBECONFIG": str(self._kubeconfig),
            "PYTHONPATH": str(CHECKOUT / "operator"),
            "PYTHONUNBUFFERED": "1",
            **self.doubles,
        }


def _program() -> list[str]:
    return [sys.executable, "-m", "caretaker"]


def _metrics_url(ready: dict[str, Any]) -> str:
    return f"http://127.0.0.1:{ready['metrics_port']}/metrics"


def _record(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
