"""How many Pods are created at a time."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from caretaker.api.objects import WirePod
from caretaker.aws.services import Rate
from caretaker.daemontask import bulk
from caretaker.daemontask.plan import plan
from caretaker.daemontask.pod_control import CREATE_BYTES, CREATE_CONCURRENCY, PodControl
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.store import Store
from unit.daemontask.build import UID, node, snapshot, task


class Api:
    """Accepts every Pod, after some turns of the event loop."""

    def __init__(self) -> None:
        self.under_way = self.most = 0

    async def create(self, _: str, body: dict[str, Any], wanted: type[WirePod]) -> WirePod:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        self.under_way -= 1
        meta = body["metadata"]
        return msgspec.convert({"metadata": {**meta, "uid": meta["name"], "resourceVersion": "9"}}, wanted)


@pytest.mark.parametrize(
    ("size", "most"),
    [
        pytest.param(10, CREATE_CONCURRENCY, id="small ones"),
        pytest.param(CREATE_BYTES // 5, 4, id="large ones: as many as their bytes let"),
        pytest.param(CREATE_BYTES * 2, 1, id="one at a time, however large"),
    ],
)
async def test_of_large_pods_fewer_are_created_at_a_time(
    size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses that arrive together block the event loop. The concurrency that smaller Pods have reached
    does not apply to large ones."""
    monkeypatch.setattr(bulk, "BYTES", Rate(1e9, 1e9))
    template = {"spec": {"containers": [{"name": "main", "args": ["x" * size]}]}}
    of, nodes = task(template=template), [node(f"n{number:03}") for number in range(200)]
    api, state = Api(), TaskState(UID)
    state.ledger.confirmed, state.creation.width = time.monotonic(), CREATE_CONCURRENCY
    client: Any = api
    seen = snapshot(of, nodes)
    created, complete = await PodControl(client, Store()).start(of, seen.revision, plan(seen).launch, state)
    assert (len(created), complete) == (200, True)
    assert api.most == most


@pytest.mark.parametrize(("ahead", "created"), [(-1.0, 0), (60.0, 3)])
async def test_no_start_is_begun_from_the_boundary_on(ahead: float, created: int) -> None:
    """Of a budget, or the deadline of the rollout."""
    of, nodes, state = task(), [node(name) for name in "abc"], TaskState(UID)
    state.ledger.confirmed = time.monotonic()
    client: Any = Api()
    seen = snapshot(of, nodes)
    launch = msgspec.structs.replace(plan(seen).launch, boundary=time.time() + ahead)
    found = await PodControl(client, Store()).start(of, seen.revision, launch, state)
    assert (len(found[0]), found[1]) == (created, created > 0)
