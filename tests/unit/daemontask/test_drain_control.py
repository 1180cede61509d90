"""How often the Pods of nodes are listed, and how many are evicted."""

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.daemontask import Drain
from caretaker.daemontask.drain import due
from caretaker.daemontask.drain_control import EVICTIONS, LOOKS, DrainControl
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from unit.daemontask.build import NOW, UID, node, planned, snapshot, task

MARK = f"default/task/{UID}/1970-01-12T13:45:40Z"
BUDGET = "The disruption budget web needs 1 healthy pods and has 1 currently"


class Api:
    """Nodes with so many Pods each; evictions have this answer."""

    def __init__(self, pods: int, refusal: ApiError | None = None) -> None:
        self.pods = pods
        self.refusal = refusal
        self.listed: list[str] = []
        self.evicted: list[str] = []

    async def list(self, path: str, kind: type[Any], *, params: dict[str, str]) -> tuple[list[Any], str]:
        assert path == "/api/v1/pods"
        self.listed.append(params["fieldSelector"])
        owner = {"kind": "ReplicaSet", "uid": "o", "controller": True}
        found = [
            {"metadata": {"name": f"p{number}", "namespace": "n", "uid": "u", "ownerReferences": [owner]}}
            for number in range(self.pods)
        ]
        return [msgspec.convert(one, kind) for one in found], "1"

    async def create(self, path: str, _: dict[str, Any]) -> None:
        self.evicted.append(path)
        if self.refusal is not None:
            raise self.refusal


async def looked(api: Api, nodes: int, passes: int = 1) -> TaskState:
    client: Any = api
    control = DrainControl(client, Store(), DaemonTaskMetrics(CollectorRegistry()), 1.0)
    cordoned = [node(f"n{number:03}", unschedulable=True, cordon=MARK) for number in range(nodes)]
    of = task(drain=Drain(), parallelism="100%")
    found = snapshot(of, cordoned)
    state = TaskState(UID)
    reports = due(found, planned(of, cordoned).nodes.holders)
    for _ in range(passes):
        await control.drain(found, reports, state)
    return state


async def test_of_many_nodes_a_few_are_listed_in_a_second() -> None:
    api = Api(0)
    await looked(api, 100, passes=5)
    assert len(api.listed) == LOOKS
    assert api.listed[0] == "spec.nodeName=n000"


async def test_of_many_pods_some_are_evicted_in_a_pass() -> None:
    api = Api(80)
    await looked(api, 10)
    assert 0 < len(api.evicted) <= EVICTIONS


async def test_a_refusal_names_the_pod_and_the_disruption_budget() -> None:
    refusal = ApiError(429, "TooManyRequests", "Cannot evict pod", causes=(("", BUDGET),))
    state = await looked(Api(1, refusal), 1)
    (view,) = state.drains.values()
    assert (view.empty, view.message) == (False, f"Pod n/p0 stays: {BUDGET}")
    assert not view.denied


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ApiError(404, "NotFound"), id="it is gone"),
        pytest.param(ApiError(409, "Conflict", "the UID in the precondition"), id="another has its name"),
    ],
)
async def test_a_pod_that_is_not_there_is_no_refusal(error: ApiError) -> None:
    (view,) = (await looked(Api(1, error), 1)).drains.values()
    assert "stays" not in view.message
    assert view.next > NOW
