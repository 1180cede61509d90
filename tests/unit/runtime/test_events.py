"""The event recorder: what is posted, what is not posted again, and what never disturbs a pass."""

import logging
from typing import Any

import msgspec
import pytest

from caretaker.api.conditions import Event, ObjectRef
from caretaker.kube.errors import ApiError, NotLeader
from caretaker.obs.log import JsonFormatter
from caretaker.runtime.events import REMEMBERED, EventRecorder

TASK = ObjectRef("caretaker.dev/v1alpha1", "DaemonTask", "ns", "t", "uid-1")
DONE = Event("Normal", "RolloutComplete", "20 nodes succeeded")
NOON = 1763640000.0  # begins a window of ten minutes


class Api:
    """Keeps events as the API server does: a name is taken once. Fails as told."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls = 0
        self.error: Exception | None = None

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        key = (path, body["metadata"]["name"])
        if key in self.events:
            raise ApiError(409, "AlreadyExists", "taken")
        self.events[key] = body
        return body

    @property
    def messages(self) -> list[str]:
        return [body["message"] for body in self.events.values()]


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(api: Api, clock: Clock) -> EventRecorder:
    return EventRecorder(api, identity="pod-1", clock=clock)


async def test_an_event_is_what_kubectl_describe_shows(api: Api, recorder: EventRecorder) -> None:
    await recorder.post(TASK, [DONE])
    (((path, name), body),) = api.events.items()
    assert path == "/api/v1/namespaces/ns/events"
    assert name.startswith("t.")
    assert body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "ns"},
        "involvedObject": {
            "apiVersion": "caretaker.dev/v1alpha1",
            "kind": "DaemonTask",
            "namespace": "ns",
            "name": "t",
            "uid": "uid-1",
        },
        "type": "Normal",
        "reason": "RolloutComplete",
        "message": "20 nodes succeeded",
        "firstTimestamp": "2025-11-20T12:00:00Z",
        "lastTimestamp": "2025-11-20T12:00:00Z",
        "count": 1,
        "source": {"component": "caretaker"},
        "reportingComponent": "caretaker",
        "reportingInstance": "pod-1",
    }


@pytest.mark.parametrize(
    ("second", "later", "posted"),
    [
        pytest.param(DONE, 0, 1, id="the same at once is posted once"),
        pytest.param(DONE, 599, 1, id="the same within ten minutes is posted once"),
        pytest.param(DONE, 600, 2, id="the same after ten minutes is news"),
        pytest.param(Event("Normal", "RolloutComplete", "21"), 0, 2, id="another message is news"),
        pytest.param(Event("Normal", "Resumed", DONE.message), 0, 2, id="another reason is news"),
        pytest.param(DONE, -3600, 2, id="a clock that was set back silences nothing"),
    ],
)
async def test_repetition(
    api: Api, clock: Clock, recorder: EventRecorder, second: Event, later: float, posted: int
) -> None:
    await recorder.post(TASK, [DONE])
    clock.now += later
    await recorder.post(TASK, [second])
    assert len(api.events) == posted


async def test_what_is_posted_is_logged_too(
    recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Events are gone after an hour."""
    caplog.set_level(logging.INFO)
    await recorder.post(TASK, [DONE])
    await recorder.post(TASK, [DONE])
    assert caplog.messages == ["RolloutComplete: 20 nodes succeeded"]


async def test_trouble_of_a_resource_is_none_of_the_operators_and_can_be_found(
    recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await recorder.post(TASK, [DONE, Event("Warning", "RunFailed", "x")])
    lines = [msgspec.json.decode(JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["level"], line["event"]) for line in lines] == [("info", "Normal"), ("info", "Warning")]


async def test_another_object_of_the_same_name_is_another_matter(api: Api, recorder: EventRecorder) -> None:
    await recorder.post(TASK, [DONE])
    await recorder.post(ObjectRef(TASK.api_version, TASK.kind, "ns", "t", "uid-2"), [DONE])
    assert len(api.events) == 2


async def test_a_restarted_process_does_not_repeat_its_predecessor(
    api: Api, clock: Clock, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    await recorder.post(TASK, [DONE])
    clock.now += 300
    await EventRecorder(api, identity="pod-2", clock=clock).post(TASK, [DONE])
    assert len(api.events) == 1
    assert caplog.records == []


@pytest.mark.parametrize("status", [0, 403, 404, 422, 429, 500])
async def test_a_failed_post_is_logged_and_the_next_event_still_goes(
    api: Api, recorder: EventRecorder, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    api.error = ApiError(status, "Because", "no")
    with caplog.at_level(logging.WARNING):
        await recorder.post(TASK, [DONE, Event("Warning", "RunFailed", "x")])
    assert api.calls == 2
    assert ["RolloutComplete" in caplog.messages[0], "RunFailed" in caplog.messages[1]] == [True, True]
    api.error = None
    await recorder.post(TASK, [DONE])
    assert api.messages == [DONE.message]


async def test_without_the_lease_nothing_is_posted_nor_said(
    api: Api, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    api.error = NotLeader()
    await recorder.post(TASK, [DONE, Event("Warning", "RunFailed", "x")])
    assert api.calls == 1
    assert caplog.records == []
    api.error = None
    await recorder.post(TASK, [DONE])
    assert api.messages == [DONE.message]


@pytest.mark.parametrize(
    ("message", "posted"),
    [
        pytest.param("x" * 1024, "x" * 1024, id="1024 bytes stay whole"),
        pytest.param("x" * 1025, "x" * 1021 + "...", id="one more is cut"),
        pytest.param("é" * 600, "é" * 510 + "...", id="a character is never halved"),
        pytest.param("\udcff", "?", id="what is no UTF-8 is replaced"),
    ],
)
async def test_a_long_message_is_cut(api: Api, recorder: EventRecorder, message: str, posted: str) -> None:
    await recorder.post(TASK, [Event("Normal", "R", message)])
    assert api.messages == [posted]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a" * 253, id="the longest name there is"),
        pytest.param("a" * 219 + "." + "b" * 33, id="a name cut after a dot"),
    ],
)
async def test_an_events_name_fits_a_dns_subdomain(api: Api, recorder: EventRecorder, name: str) -> None:
    await recorder.post(ObjectRef("v1", "Node", "", name, "u"), [DONE])
    (((path, event_name), body),) = api.events.items()
    assert len(event_name) <= 253
    assert ".." not in event_name
    assert path == "/api/v1/namespaces/default/events"
    assert body["metadata"]["namespace"] == "default"


async def test_memory_is_bounded(api: Api, clock: Clock, recorder: EventRecorder) -> None:
    await recorder.post(TASK, (Event("Normal", "R", str(n)) for n in range(REMEMBERED + 1)))
    api.events.clear()
    await recorder.post(TASK, [Event("Normal", "R", str(REMEMBERED))])
    assert api.events == {}
    await recorder.post(TASK, [Event("Normal", "R", "0")])
    assert api.messages == ["0"]
