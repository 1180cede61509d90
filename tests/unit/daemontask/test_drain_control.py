"""How often the Pods of nodes are listed, and how many are evicted."""

import time
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.daemontask import Drain
from caretaker.daemontask import drain_control
from caretaker.daemontask.decision import DrainView
from caretaker.daemontask.drain_control import EVICTIONS, LOOKS, DrainControl
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.plan import plan
from caretaker.daemontask.task_state import TaskState
from caretaker.kube.errors import ApiError
from unit.daemontask.build import NOW, UID, node, planned, snapshot, task

MARK = f"default/task/{UID}/1970-01-12T13:45:40Z"
BUDGET = "The disruption budget web needs 1 healthy pods and has 1 currently"


class Api:
    """Nodes with so many Pods each; evictions have this answer."""

    def __init__(self, pods: int, refusal: ApiError | None = None) -> None:
        self.pods = pods
        self.refusal = refusal
        self.fault: ApiError | None = None  # of lists
        self.cached: list[bool] = []
        self.listed: list[str] = []
        self.evicted: list[str] = []

    async def list(self, path: str, kind: type[Any], *, params: dict[str, str]) -> tuple[list[Any], str]:
        assert path == "/api/v1/pods"
        self.cached.append("resourceVersion" in params)
        if self.fault is not None:
            raise self.fault
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
    control = DrainControl(client, DaemonTaskMetrics(CollectorRegistry()))
    cordoned = [node(f"n{number:03}", unschedulable=True, cordon=MARK) for number in range(nodes)]
    of = task(drain=Drain(), parallelism="100%")
    found = snapshot(of, cordoned)
    state = TaskState(UID)
    reports = planned(of, cordoned).drains
    for _ in range(passes):
        await control.drain(found.task, reports, state)
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
    (view,) = state.drains.views.values()
    assert (view.empty, view.message) == (False, f"Pod n/p0 stays: {BUDGET}")
    assert not view.fault


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ApiError(404, "NotFound"), id="it is gone"),
        pytest.param(ApiError(409, "Conflict", "the UID in the precondition"), id="another has its name"),
    ],
)
async def test_a_pod_that_is_not_there_is_no_refusal(error: ApiError) -> None:
    (view,) = (await looked(Api(1, error), 1)).drains.views.values()
    assert "stays" not in view.message
    assert view.next > NOW


class Node:
    """Looks at one node, at moments of the test's choice."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch, **drain: Any) -> None:
        self.api, self.now, self.state = api, NOW, TaskState(UID)
        monkeypatch.setattr(time, "time", lambda: self.now)
        client: Any = api
        self.control = DrainControl(client, DaemonTaskMetrics(CollectorRegistry()))
        self.task = task(drain=Drain(**drain), parallelism=1)

    async def look(self, seconds: float) -> DrainView:
        self.now += seconds
        of = node("n", unschedulable=True, cordon=MARK)
        found = snapshot(self.task, [of], now=self.now, drains=dict(self.state.drains.views))
        self.control._turn = 0.0
        await self.control.drain(found.task, plan(found).drains, self.state)
        return self.state.drains.views[of.uid]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ApiError(403, "Forbidden", 'cannot list resource "pods"'), id="no right"),
        pytest.param(ApiError(429, "TooManyRequests", "too many requests"), id="throttled"),
        pytest.param(ApiError(503), id="unavailable"),
        pytest.param(ApiError(0, "Timeout"), id="no answer"),
    ],
)
@pytest.mark.parametrize("step", ["list", "evict"])
async def test_the_clock_stands_while_the_api_server_is_at_fault(
    error: ApiError, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Node(Api(1), monkeypatch, timeout_seconds=60)
    first = (await on.look(0)).first
    on.api.fault, on.api.refusal = (error, None) if step == "list" else (None, error)
    for _ in range(10):
        seen = await on.look(40)
        assert seen.fault
    assert seen.looked - seen.first < 60
    on.api.fault, on.api.refusal = None, ApiError(429, "TooManyRequests", "no", causes=(("", BUDGET),))
    assert not (await on.look(40)).fault
    assert seen.first > first


async def test_at_the_deadline_nothing_more_is_evicted_and_the_last_refusal_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = ApiError(429, "TooManyRequests", "no", causes=(("", BUDGET),))
    on = Node(Api(1, refusal), monkeypatch, timeout_seconds=60)
    await on.look(0)
    await on.look(30)
    seen = await on.look(30)
    assert (len(on.api.evicted), BUDGET in seen.message) == (2, True)
    made = planned(
        on.task, [node("n", unschedulable=True, cordon=MARK)], now=on.now, drains=on.state.drains.views
    )
    assert made.records["n"].reason == "DrainTimeout"


async def test_that_a_node_is_empty_is_read_from_the_store_and_the_rest_from_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = Node(Api(1), monkeypatch)
    await on.look(0)
    await on.look(5)
    on.api.pods = 0
    assert (await on.look(5)).empty
    assert on.api.cached == [False, True, True, False]
    await on.look(31)
    assert on.api.cached[4:] == [False], "it was empty: the cache proves nothing"


async def test_no_eviction_is_sent_when_the_time_of_the_pass_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain_control, "SECONDS", -1.0)
    on = Node(Api(9), monkeypatch)
    await on.look(0)
    assert len(on.api.evicted) == 1, "one is, or none would ever go"


async def test_of_more_pods_than_a_look_evicts_the_next_look_tries_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = Node(Api(120, ApiError(429, "TooManyRequests", "no", causes=(("", BUDGET),))), monkeypatch)
    for _ in range(4):
        await on.look(5)
    assert len(set(on.api.evicted)) == 120


async def test_looks_of_all_tasks_share_their_rate() -> None:
    api: Any = Api(0)
    control = DrainControl(api, DaemonTaskMetrics(CollectorRegistry()))
    for _ in range(3):
        cordoned = [node(f"n{number:03}", unschedulable=True, cordon=MARK) for number in range(30)]
        found = snapshot(task(drain=Drain(), parallelism="100%"), cordoned)
        drained = await control.drain(found.task, plan(found).drains, TaskState(UID))
        assert drained.next_at > time.time()
    assert len(api.listed) == LOOKS


async def test_the_api_server_says_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = ApiError(429, "TooManyRequests", "no", causes=(("", BUDGET),), retry_after=25.0)
    on = Node(Api(1, slow), monkeypatch)
    assert (await on.look(0)).next == on.now + 25.0


@pytest.mark.parametrize("timeout", [1, 3, 10, 30, 60])
@pytest.mark.parametrize("step", ["list", "evict"])
async def test_a_fault_fails_no_attempt_however_short_its_time_is(
    timeout: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ApiError(403, "Forbidden", 'cannot create resource "pods/eviction"')
    on = Node(Api(1), monkeypatch, timeout_seconds=timeout)
    on.api.fault, on.api.refusal = (error, None) if step == "list" else (None, error)
    seen = await on.look(0)
    for _ in range(20):
        of = node("n", unschedulable=True, cordon=MARK)
        made = planned(on.task, [of], now=on.now, drains=on.state.drains.views)
        assert not made.records
        seen = await on.look(max(seen.next - on.now, 0.0))
        assert (seen.fault, seen.denied) != ("", False)
    on.api.fault, on.api.refusal = None, None
    on.api.evicted.clear()
    await on.look(30)
    assert on.api.evicted, "it goes on"


WEBHOOK = 'admission webhook "w.kubevirt.io" denied the request: Eviction triggered evacuation of VMI'


async def test_a_webhook_that_answers_429_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    on = Node(Api(1, ApiError(429, "TooManyRequests", WEBHOOK)), monkeypatch, timeout_seconds=60)
    seen = await on.look(0)
    assert (seen.fault, "evacuation" in seen.message) == ("", True)
    for _ in range(2):
        await on.look(30)
    made = planned(
        on.task, [node("n", unschedulable=True, cordon=MARK)], now=on.now, drains=on.state.drains.views
    )
    assert "evacuation" in made.records["n"].message


@pytest.mark.parametrize("status", [429, 503])
async def test_answers_of_overload_to_evictions_stop_the_clock_for_a_bounded_time(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Node(Api(1, ApiError(status, "", "come back later")), monkeypatch, timeout_seconds=60)
    seen = await on.look(0)
    while seen.fault or seen.looked < seen.first + 60:
        seen = await on.look(30)
    assert 660 <= on.now - NOW <= 750
    made = planned(
        on.task, [node("n", unschedulable=True, cordon=MARK)], now=on.now, drains=on.state.drains.views
    )
    assert "come back later" in made.records["n"].message
