"""caretaker status of an S3AggregatedRefresh on a real API server: what it tells, and when a watch ends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.admin import Admin, Json, path
from testbed.cluster import Cluster
from testing import s3refreshes
from testing.apiproxy import ApiProxy
from testing.cli import Cli, Said
from testing.refreshing import PLURAL, TIMEOUT, Refreshing


@pytest.fixture
def watched(cluster: Cluster) -> Iterator[ApiProxy]:
    with ApiProxy(cluster.kubeconfig, "cli") as proxy:
        yield proxy


@pytest.fixture
def cli(watched: ApiProxy, namespace: str, tmp_path: Path) -> Cli:
    return Cli(watched.write_kubeconfig(tmp_path / "kubeconfig"), namespace)


class Alone:
    """A resource whose status the test writes: no operator is there."""

    def __init__(self, admin: Admin, namespace: str, name: str = "r") -> None:
        self._admin = admin
        self._name = name
        self._collection = path(PLURAL, namespace)
        self.url = f"{self._collection}/{name}"

    async def create(self, **spec: Any) -> Json:
        body = {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "S3AggregatedRefresh",
            "metadata": {"name": self._name},
            "spec": s3refreshes.refresh(**spec),
        }
        return await self._admin.create(self._collection, body)

    async def says(self, *conditions: tuple[str, str, str], **status: Any) -> Json:
        """Write status, as of the spec that stands."""
        told = [
            {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": "why",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind, value, reason in conditions
        ]
        body = {"status": {"observedGeneration": 1, "conditions": told, **status}}
        return await self._admin.patch(f"{self.url}/status", body)


@pytest.fixture
async def alone(admin: Admin, namespace: str) -> Alone:
    made = Alone(admin, namespace)
    await made.create()
    return made


WAITING = {
    "id": "share-1",
    "phase": "Due",
    "dirty": {"since": "2026-01-01T00:00:00Z", "folders": ["/", "in"]},
    "last": {
        "requestedAt": "2025-12-31T23:00:00Z",
        "acceptedAt": "2025-12-31T23:00:01Z",
        "completedAt": "2025-12-31T23:00:06Z",
        "durationSeconds": 5,
        "folders": 3,
        "result": "Succeeded",
    },
}
CAUGHT_UP = (("Ready", "True", "Consuming"), ("CaughtUp", "True", "UpToDate"))
BEHIND = (("Ready", "True", "Consuming"), ("CaughtUp", "False", "Waiting"))


async def test_each_target_has_its_record_and_its_next_call(
    alone: Alone, cli: Cli, watched: ApiProxy
) -> None:
    before = await alone.says(
        *BEHIND, targets=[WAITING], queue={"visible": 3, "inFlight": 1, "dlqVisible": 0, "checkedAt": None}
    )
    said = await cli("status", "s3aggregatedrefresh", "r", "-o", "json")
    assert (said.code, said.err) == (0, "")
    (target,) = said.json["targets"]
    assert target.pop("next") == {
        "why": "Turn",
        "message": "it waits for its turn at the gateway",
        "at": "2026-01-01T00:10:00Z",
        "latest": False,
        "notBefore": None,
        "folders": ["in", "/"],
        "recursive": False,
    }
    (stored,) = before["status"]["targets"]
    assert {key: value for key, value in target.items() if value is not None} == stored
    assert said.json["queue"]["visible"] == 3
    assert watched.ledger.writes() == []


async def test_people_get_a_table(alone: Alone, cli: Cli) -> None:
    await alone.says(("Ready", "False", "QueueNotFound"), ("CaughtUp", "False", "Waiting"), targets=[WAITING])
    said = await cli("status", "s3ar/r")
    assert said.code == 0
    assert said.lines[0] == f"S3AggregatedRefresh {cli.namespace}/r: 1 target, 1 Due"
    assert "  Ready: QueueNotFound: why" in said.lines
    assert "    -> create the queue, or correct spec.source.sqs.queueURL" in said.lines
    assert said.lines[-1].split()[:5] == ["share-1", "Due", "2:", "in,", "/"]
    assert said.lines[-1].endswith("it waits for its turn at the gateway")


async def until_watching(watched: ApiProxy, watching: "asyncio.Task[Said]") -> None:
    async with asyncio.timeout(TIMEOUT):
        while watched.open_watches() < 1:
            assert not watching.done(), watching.result()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(CAUGHT_UP, 0, id="caught up"),
        pytest.param((("Ready", "False", "NotGranted"), ("Stalled", "True", "NotGranted")), 1, id="stalled"),
    ],
)
async def test_a_watch_ends_when_nothing_is_left_to_do(
    end: tuple[tuple[str, str, str], ...], code: int, alone: Alone, cli: Cli, watched: ApiProxy
) -> None:
    await alone.says(*BEHIND, targets=[WAITING])
    watching = asyncio.create_task(cli("status", "s3ar/r", "--watch", "-o", "json"))
    await until_watching(watched, watching)
    await alone.says(*end, targets=[{**WAITING, "phase": "Clean", "dirty": None}])
    said = await asyncio.wait_for(watching, TIMEOUT)
    assert (said.code, said.err) == (code, "")
    states = [msgspec.json.decode(line) for line in said.lines]
    assert [state["targets"][0]["phase"] for state in states][-1] == "Clean"
    assert [call.resource for call in watched.ledger.calls() if call.verb == "list"] == [PLURAL]
    assert watched.ledger.writes() == []


async def test_a_resource_deleted_under_a_watch_is_told(
    alone: Alone, admin: Admin, cli: Cli, watched: ApiProxy
) -> None:
    await alone.says(*BEHIND)
    watching = asyncio.create_task(cli("status", "s3ar/r", "--watch"))
    await until_watching(watched, watching)
    await admin.delete(alone.url)
    said = await asyncio.wait_for(watching, TIMEOUT)
    assert said.code == 1
    assert "S3AggregatedRefresh r was deleted" in said.err


@pytest.mark.slow
async def test_a_refresh_that_fails_is_told_and_a_watch_sees_it_mended(
    shared: Refreshing, cli: Cli, watched: ApiProxy
) -> None:
    source, control = shared.aws.source(), shared.control
    share = shared.share(source.bucket)
    name = share.rpartition("/")[2]
    control.fault("refuse", count=None)
    resource = await shared.create(source.queue)
    await resource.condition("Ready")
    await asyncio.to_thread(shared.aws.put, source.bucket, "in/2026/a")
    await resource.when(lambda r: any(t.get("failure") for t in r["status"]["targets"]))
    said = await cli("status", f"s3ar/{resource.name}", "-o", "json", namespace=shared.namespace)
    (target,) = said.json["targets"]
    assert (target["id"], target["failure"]["code"]) == (name, "InvalidGatewayRequestException")
    held = target["dirty"] or target["claim"]
    assert set(held["folders"]) == {"in/2026", "in", "/"}
    following = cli("status", f"s3ar/{resource.name}", "--watch", namespace=shared.namespace)
    watching = asyncio.create_task(following)
    await until_watching(watched, watching)
    control.clear_faults()
    said = await asyncio.wait_for(watching, 2 * TIMEOUT)
    assert (said.code, said.err) == (0, "")
    assert said.lines[-1].startswith(f"{name}  Clean")
    assert "3 folders" in said.lines[-1]
    await asyncio.to_thread(control.wait_fresh, share)
