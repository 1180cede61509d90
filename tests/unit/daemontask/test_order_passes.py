"""Passes over tasks that depend on each other: reads before a start, and the end of memory."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from caretaker.api import names
from caretaker.api.objects import Node, Pod, WireMeta
from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.dependencies import Dependencies, Dependency, identity_of
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.plan import plan
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.client import PartialObjectMetadata
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import UID, entry, node, pod, progress, snapshot, task

FIRST, TASK = (Key("DaemonTask", "default", name) for name in ("first", "task"))
META = WireMeta(name="first", namespace="default", uid="first-uid", generation=3)
A = node("a")
DONE = progress(done=[A], identity=identity_of(META))


class Server:
    """The metadata of the other tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, WireMeta | ApiError] = {"first": META}
        self.asked: list[str] = []

    async def get(self, path: str, of: type = dict, **_: Any) -> Any:
        name = path.rsplit("/", 1)[-1]
        assert path == f"/apis/caretaker.dev/v1alpha1/namespaces/default/daemontasks/{name}"
        assert of is PartialObjectMetadata
        self.asked.append(name)
        found = self.tasks.get(name, ApiError(404, "NotFound", "gone"))
        if isinstance(found, ApiError):
            raise found
        return PartialObjectMetadata(found)


class KnownLedger:
    """One that stands as it was read."""

    loaded = True

    async def current(self, _: object) -> bool:
        return True


class Passes(DaemonTaskKind):
    """The kind; a snapshot that it takes anew is `newer`."""

    def __init__(self) -> None:
        self.server, self.keys = Server(), list[str]()
        handlers = WatchHandlers(Store[Node](), Store[Pod](), lambda key, **_: self.keys.append(key.name))
        client: Any = self.server
        super().__init__(client, handlers, DaemonTaskMetrics(CollectorRegistry()))
        ledger: Any = KnownLedger()
        handlers.task_states.of(TASK, UID).ledger.shards = ledger
        self.order = handlers.order
        self.newer = snapshot(task(), [])
        self.order.took(TASK, ("first",), None)
        self.order.took(FIRST, (), DONE)
        self.keys.clear()

    async def gather(self, key: Key, raw: object = None) -> Snapshot | None:
        """No read."""
        assert (key, raw) == (TASK, None)
        return self.newer

    def recheck_of(self, found: Snapshot) -> Snapshot | None:
        return asyncio.run(self.recheck(found, plan(found)))


def seen(*of: Any, name: str = "first", **more: Any) -> Snapshot:
    return snapshot(*of, dependencies=Dependencies((Dependency(name, DONE),)), **more)


STARTS = seen(task(), [A])
REPLACES = seen(task(concurrency_policy="Replace"), [A], [pod(A, revision="old")])


@pytest.mark.parametrize("found", [STARTS, REPLACES], ids=["starts", "replaces"])
@pytest.mark.parametrize(
    "now",
    [
        pytest.param(replace(META, generation=4), id="edited"),
        pytest.param(replace(META, uid="other"), id="made again"),
        pytest.param(replace(META, annotations={names.RERUN_AT: "2026-01-01T00:00:00Z"}), id="asked again"),
        pytest.param(ApiError(404, "NotFound", "gone"), id="deleted"),
    ],
)
def test_a_task_that_has_changed_since_its_pass_lets_nothing_begin(
    found: Snapshot, now: WireMeta | ApiError
) -> None:
    of = Passes()
    of.server.tasks["first"] = now
    assert of.recheck_of(found) is of.newer
    assert of.order.of(TASK, ["first"]).each[0].fault == "NotRead"
    assert of.keys == ["first"]


@pytest.mark.parametrize("found", [STARTS, REPLACES], ids=["starts", "replaces"])
def test_a_task_that_is_as_its_pass_has_read_it_is_read_once(found: Snapshot) -> None:
    of = Passes()
    of.server.tasks["first"] = replace(META, annotations={"example.com/note": "x"}, resource_version="9")
    assert of.recheck_of(found) is None
    assert of.server.asked == ["first"]
    assert of.keys == []


def test_no_answer_lets_nothing_begin() -> None:
    of = Passes()
    of.server.tasks["first"] = ApiError(503, "", "no answer")
    with pytest.raises(ApiError, match="no answer"):
        of.recheck_of(STARTS)


def test_a_pass_that_begins_nothing_reads_no_other_task() -> None:
    of = Passes()
    assert of.recheck_of(seen(task(), [A], [], {"a": entry(A)})) is None
    assert of.server.asked == []


def test_a_batch_of_starts_costs_one_read_of_each_other_task() -> None:
    of = Passes()
    nodes = [node(f"n{number}") for number in range(100)]
    others = replace(DONE, done={one.uid: "" for one in nodes})
    each = tuple(Dependency(name, others) for name in ("first", "more"))
    of.server.tasks["more"] = META
    assert of.recheck_of(snapshot(task(), nodes, dependencies=Dependencies(each))) is None
    assert of.server.asked == ["first", "more"]


def test_what_is_known_of_other_tasks_ends_with_the_leadership() -> None:
    of = Passes()
    asyncio.run(of.stop())
    assert not of.order.awaited(FIRST)
    assert of.order.of(TASK, ["first"]).each[0].fault == "NotRead"


def test_a_task_that_is_gone_is_missing() -> None:
    of = Passes()
    asyncio.run(of.forget(FIRST))
    assert of.order.of(TASK, ["first"]).each[0].fault == "NotFound"
    assert of.keys == ["task"]
