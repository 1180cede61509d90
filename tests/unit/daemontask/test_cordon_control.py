"""No node is cordoned before its Pod is admissible and evictions are allowed; an unanswered cordon counts."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.daemontask import Drain
from caretaker.api.objects import Node, Pod, WireNode
from caretaker.daemontask.apply import Applier, Controls
from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.cordon_control import RIGHTS_SECONDS, CordonControl
from caretaker.daemontask.drain_control import DrainControl
from caretaker.daemontask.gate_control import GateControl
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.plan import plan
from caretaker.daemontask.pod_control import PodControl
from caretaker.daemontask.shards import Shards
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.task_state import TaskState
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import UID, snapshot, task

MARK = "caretaker.dev/cordoned-by"
CORDONED = f"default/task/{UID}/1970-01-12T13:45:40Z"
QUOTA = ApiError(403, "Forbidden", 'pods "p" is forbidden: exceeded quota')
LOST = ApiError(0, "Timeout", "no answer")


class Server:
    """Nodes with resourceVersions; creates and patches have the answers that a test sets."""

    def __init__(self, *names: str) -> None:
        self.nodes = {name: {"unschedulable": False, "mark": "", "version": 1} for name in names}
        self.asked: list[str] = []
        self.dry_run: ApiError | None = None
        self.patches: list[ApiError | None] = []  # the answers of the next ones; then they succeed
        self.late: list[tuple[str, Mapping[str, Any]]] = []  # requests that may still be executed
        self.rights = {"patch": True, "list": True, "create": True}
        self.reads: ApiError | None = None

    def wire(self, name: str) -> WireNode:
        of = self.nodes[name]
        meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(of["version"])}
        body = {
            "metadata": {**meta, "annotations": {MARK: of["mark"]} if of["mark"] else {}},
            "spec": {"unschedulable": of["unschedulable"]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        return msgspec.convert(body, WireNode)

    async def create(self, at: str, body: Any, kind: Any, params: Any = None) -> Any:
        if at.endswith("selfsubjectaccessreviews"):
            attributes = body["spec"]["resourceAttributes"]
            self.asked.append(f"may {attributes['verb']}")
            return msgspec.convert({"status": {"allowed": self.rights[attributes["verb"]]}}, kind)
        assert params == {"dryRun": "All"}, "no Pod is created"
        self.asked.append("dry run")
        if self.dry_run is not None:
            raise self.dry_run
        return b""

    async def patch(self, at: str, body: Mapping[str, Any], _: object) -> WireNode:
        name = at.rsplit("/", 1)[1]
        self.asked.append(f"patch {name}")
        if (error := self.patches.pop(0) if self.patches else None) is not None:
            self.late.append((name, body))
            raise error
        self.execute(name, body)
        return self.wire(name)

    def execute(self, name: str, body: Mapping[str, Any]) -> None:
        of, meta = self.nodes[name], body["metadata"]
        if meta["resourceVersion"] != str(of["version"]):
            raise ApiError(409, "Conflict", "the object has been modified")
        of["mark"], of["version"] = meta["annotations"][MARK] or "", of["version"] + 1
        of["unschedulable"] = bool(body.get("spec", {}).get("unschedulable", of["unschedulable"]))

    async def list(self, *_: Any, **__: Any) -> Any:
        raise ApiError(403, "Forbidden", 'cannot list resource "pods"')

    async def get(self, at: str, _: object) -> WireNode:
        if self.reads is not None:
            raise self.reads
        return self.wire(at.rsplit("/", 1)[1])


class Passes:
    """Passes of a task that drains one node at a time."""

    def __init__(self, *names: str) -> None:
        self.server, self.store, self.state = Server(*names), Store[Node](), TaskState(UID)
        for name in names:
            self.store.observe_write(self.server.wire(name).record(), 1)
        client: Any = self.server
        self.control = CordonControl(client, self.store)

    def run(self, **spec: Any) -> float:
        """Returns when to try again."""
        refused = self.state.pacing.refused_pods
        self.state.drains.cordons = msgspec.structs.replace(self.state.drains.cordons, until=0.0)
        found = snapshot(
            task(**{"drain": Drain(), "parallelism": 1, **spec}),
            list(self.store.values()),
            refused=refused.by_node,
            refused_until=refused.until,
            deprioritised=dict(self.state.order.deprioritised),
            cordons=self.state.drains.cordons,
        )
        return self.cordon(found)

    def cordon(self, found: Snapshot) -> float:
        """Returns when to try again."""
        cordons = plan(found).launch.cordons
        return asyncio.run(self.control.cordon(found.task, found.revision, found.nodes, cordons, self.state))

    @property
    def cordoned(self) -> list[str]:
        return [name for name, of in self.server.nodes.items() if of["mark"]]


def test_the_rights_and_the_pod_are_checked_before_the_cordon() -> None:
    of = Passes("a")
    assert not of.run()
    assert of.server.asked == ["may patch", "may list", "may create", "dry run", "patch a"]
    assert of.cordoned == ["a"]


@pytest.mark.parametrize(
    ("right", "words"),
    [
        ("patch", 'cannot patch resource "nodes"'),
        ("list", 'cannot list resource "pods"'),
        ("create", 'cannot create resource "pods/eviction"'),
    ],
)
def test_without_a_right_nothing_is_cordoned_and_the_right_is_named(right: str, words: str) -> None:
    of = Passes("a", "b")
    of.server.rights[right] = False
    assert of.run()
    assert not of.cordoned
    assert words in of.state.drains.cordons.message
    of.server.rights[right] = True
    of.run()
    assert of.state.drains.cordons.message == ""
    assert len(of.cordoned) == 1


def test_a_refused_pod_cordons_no_node_however_often_it_is_tried() -> None:
    of = Passes(*"abcdef")
    of.server.dry_run = QUOTA
    for _ in range(30):
        of.run()
    assert not of.cordoned
    assert "exceeded quota" in next(iter(of.state.pacing.refused_pods.by_node.values())).message
    assert not [one for one in of.server.asked if one.startswith("patch")]
    of = Passes("a")
    of.server.dry_run = QUOTA
    of.run()
    of.server.dry_run = None
    uid = "uid-a"
    assert uid in of.state.pacing.refused_pods.by_node
    found = snapshot(task(drain=Drain(), parallelism=1), list(of.store.values()))
    of.cordon(found)
    assert uid not in of.state.pacing.refused_pods.by_node


@pytest.mark.parametrize(
    "error", [LOST, ApiError(500, "", "etcd"), ApiError(504, "Timeout", "slow"), ApiError(408, "", "")]
)
def test_a_cordon_without_an_answer_lets_no_other_node_be_cordoned(error: ApiError) -> None:
    of = Passes("a", "b", "c")
    of.server.patches = [error]
    of.run()
    assert of.run(suspend=True), "the pass asks to be repeated"
    of.server.patches = [error]
    of.run()
    assert len(of.server.late) == 2
    name, body = of.server.late[0]
    of.server.execute(name, body)
    of.run()
    of.run()
    assert of.cordoned == [name]
    assert not of.state.drains.cordons.unsure


def test_after_a_failure_the_next_cordon_waits() -> None:
    of = Passes("a", "b")
    of.server.patches = [ApiError(403, "Forbidden", "a policy keeps it")]
    until = of.run()
    found = snapshot(
        task(drain=Drain(), parallelism=1), list(of.store.values()), cordons=of.state.drains.cordons
    )
    assert of.cordon(found) == until
    assert not of.cordoned


def test_the_late_request_is_dead_once_the_node_was_written_by_others() -> None:
    of = Passes("a", "b")
    of.server.patches = [LOST]
    of.run()
    (name, body) = of.server.late[0]
    of.server.reads = ApiError(503)
    of.run(suspend=True)
    assert of.state.drains.cordons.unsure
    of.server.reads = None
    of.run(suspend=True)
    assert of.state.drains.cordons.unsure, "as it was: the request may still come"
    of.server.nodes[name]["version"] = 9
    of.run(suspend=True)
    assert not of.state.drains.cordons.unsure
    with pytest.raises(ApiError):
        of.server.execute(name, body)


def test_a_node_whose_cordon_is_refused_goes_behind_the_others_and_is_told() -> None:
    of = Passes("a", "b")
    of.server.patches = [ApiError(403, "Forbidden", "a policy keeps it")]
    of.run()
    assert "a policy keeps it" in of.state.drains.cordons.message
    assert not of.state.creation.refusal, "no Pod was refused"
    of.run()
    assert of.cordoned == [name for name in ("a", "b") if name != of.server.late[0][0]]


def marked(busy: bool) -> list[str]:
    of = Passes("a", "b")
    for name in ("a", "b"):
        of.server.nodes[name].update(mark=CORDONED, unschedulable=True, version=2)
        of.store.observe_write(of.server.wire(name).record(), 2)

    def goes_on(task_uid: str, node_uid: str) -> bool:
        return busy and (task_uid, node_uid) == (UID, "uid-a")

    asyncio.run(of.control.release_all(Key("DaemonTask", "default", "task"), goes_on))
    return of.cordoned


def test_the_cordons_of_a_task_that_is_gone_end_with_its_runs() -> None:
    assert marked(busy=False) == []
    assert marked(busy=True) == ["a"]


def test_a_node_that_has_changed_since_the_plan_is_not_cordoned() -> None:
    of = Passes("a")
    found = snapshot(task(drain=Drain(), parallelism=1), list(of.store.values()))
    of.server.nodes["a"].update(unschedulable=True, version=2)
    of.store.observe_write(of.server.wire("a").record(), 2)  # a person was quicker, and the store knows
    of.cordon(found)
    assert not of.cordoned
    assert of.state.creation.again, "another plan sees the node as it is"


def test_a_node_that_is_gone_is_forgotten() -> None:
    of = Passes("a")
    of.server.patches = [ApiError(404, "NotFound", "gone")]
    of.server.reads = ApiError(404, "NotFound", "gone")
    of.run()
    assert not list(of.store.values())
    of = Passes("a")
    of.server.nodes["a"].update(mark=CORDONED, unschedulable=True, version=2)
    of.store.observe_write(of.server.wire("a").record(), 2)
    of.server.patches = [ApiError(404, "NotFound", "gone")]
    asyncio.run(of.control.release_all(Key("DaemonTask", "default", "task"), lambda *_: False))


def test_an_uncordon_that_is_refused_is_told_and_holds_up_no_other() -> None:
    of = Passes("a", "b")
    for name in ("a", "b"):
        of.server.nodes[name].update(mark=CORDONED, unschedulable=True, version=2)
        of.store.observe_write(of.server.wire(name).record(), 2)
    of.server.patches = [QUOTA]
    nodes = list(of.store.values())
    asyncio.run(of.control.release(nodes, of.state))
    assert of.cordoned == [nodes[0].name]
    assert list(of.state.drains.unreleased.by_node) == [nodes[0].uid]
    asyncio.run(of.control.release(nodes[:1], of.state))
    assert (of.cordoned, dict(of.state.drains.unreleased.by_node)) == ([], {})


@pytest.mark.parametrize("task_lives", [True, False])
def test_a_cordon_that_a_person_set_after_ours_ended_stays_and_the_mark_goes(task_lives: bool) -> None:
    of = Passes("a")
    handlers = WatchHandlers(of.store, Store[Pod](), lambda *_, **__: None)
    for version, unschedulable in ((2, True), (3, False), (4, True)):
        of.server.nodes["a"].update(mark=CORDONED, unschedulable=unschedulable, version=version)
        of.store.observe_write(of.server.wire("a").record(), version)
    client: Any = of.server
    control = CordonControl(client, of.store, handlers.ended)
    if task_lives:
        asyncio.run(control.release([handlers.nodes["a"]], of.state))
    else:
        asyncio.run(control.release_all(Key("DaemonTask", "default", "task"), lambda *_: False))
    assert (of.server.nodes["a"]["mark"], of.server.nodes["a"]["unschedulable"]) == ("", True)


def test_a_right_that_is_missing_at_an_eviction_is_looked_for_again() -> None:
    of = Passes("a")
    of.run()
    assert asyncio.run(of.control.denied(of.state)) is False
    of.server.rights["create"] = False
    assert asyncio.run(of.control.denied(of.state)) is True
    assert of.state.drains.cordons.denied
    of.server.rights["create"] = True
    of.server.nodes["a"].update(mark="", unschedulable=False, version=9)
    of.store.observe_write(of.server.wire("a").record(), 9)
    of.run()
    assert (of.state.drains.cordons.denied, of.cordoned) == (False, ["a"])


def test_rights_are_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    of = Passes("a", "b")
    of.run()
    asked = of.server.asked.count("may create")
    clock[0] += RIGHTS_SECONDS - 1
    of.run(parallelism=2)
    assert of.server.asked.count("may create") == asked
    of.server.nodes["b"].update(mark="", unschedulable=False, version=9)
    of.store.observe_write(of.server.wire("b").record(), 9)
    clock[0] += 2
    of.run(parallelism=2)
    assert of.server.asked.count("may create") == asked + 1


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")])
def test_a_webhook_refuses_the_cordon_whatever_its_code(status: int, reason: str) -> None:
    of = Passes("a")
    of.server.patches = [ApiError(status, reason, 'admission webhook "w" denied the request: no')]
    of.run()
    assert "admission webhook" in of.state.drains.cordons.message
    assert not of.state.creation.again
    assert of.store.get("", "a") is not None


def test_a_cordon_that_is_invalid_is_not_planned_again_at_once() -> None:
    of = Passes("a")
    of.server.patches = [ApiError(422, "Invalid", "no")]
    of.run()
    assert not of.state.creation.again


def apply(of: Passes) -> Outcome:
    """A whole pass."""
    client: Any = of.server
    metrics = DaemonTaskMetrics(CollectorRegistry())
    of.state.ledger.shards = Shards(client, "default", "task", UID)
    controls = Controls(
        pods=PodControl(client, Store[Pod]()),
        gates=GateControl(client, of.store),
        cordons=of.control,
        drains=DrainControl(client, metrics),
    )
    applier = Applier(controls, metrics)
    found = snapshot(
        task(drain=Drain(), parallelism=1),
        list(of.store.values()),
        drains=dict(of.state.drains.views),
        cordons=of.state.drains.cordons,
        now=time.time(),
    )
    return asyncio.run(applier.apply(found, plan(found), of.state))


def test_a_pod_that_is_accepted_after_a_refusal_ends_the_refusal() -> None:
    of = Passes("a")
    of.server.dry_run = ApiError(403, "Forbidden", 'cannot create resource "pods"')
    assert apply(of).refusal is not None
    of.server.dry_run = None
    assert (apply(of).refusal, of.cordoned) == (None, ["a"])


@pytest.mark.parametrize("granted", [True, False])
def test_a_node_is_given_back_where_the_right_to_drain_was_taken_away(granted: bool) -> None:
    of = Passes("a")
    apply(of)
    assert of.cordoned == ["a"]
    of.server.rights["list"] = granted
    outcome = apply(of)
    assert "cannot be drained" in outcome.undrained
    assert outcome.more is not granted
    apply(of)
    assert of.cordoned == (["a"] if granted else []), "a single refusal is no lack of the right"
    apply(of)
    assert of.cordoned == (["a"] if granted else [])


def test_before_a_cordon_the_ledger_is_read_again() -> None:
    of = Passes("a")
    client: Any = of.server
    handlers = WatchHandlers(of.store, Store[Pod](), lambda *_, **__: None)
    kind = DaemonTaskKind(client, handlers, DaemonTaskMetrics(CollectorRegistry()))
    found = snapshot(task(drain=Drain(), parallelism=1), list(of.store.values()))
    state = handlers.task_states.of(Key("DaemonTask", "default", "task"), UID)
    state.ledger.shards = Shards(client, "default", "task", UID)
    of.server.reads = ApiError(503, "", "the ledger cannot be read")
    made = plan(found)
    assert made.launch.cordons
    with pytest.raises(ApiError, match="the ledger cannot be read"):
        asyncio.run(kind.recheck(found, made))
