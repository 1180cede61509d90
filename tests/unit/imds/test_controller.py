"""When an IMDSPolicy is looked at again, and what is not even tried."""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.conditions import find
from caretaker.api.grants import Grants
from caretaker.api.imds import ChangedGroup, ChangedInstance, FieldChange, Options, ProbeStatus, Spec, Status
from caretaker.api.objects import Node, WireMeta
from caretaker.aws.services import Rate
from caretaker.imds import controller as module
from caretaker.imds.conditions import StatusInput
from caretaker.imds.controller import ControllerOptions, IMDSPolicyKind, Snapshot
from caretaker.imds.enforce import Enforced
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.plan import Plan, PlanInput
from caretaker.imds.resource import ParsedPolicy
from caretaker.imds.verify import Verified
from caretaker.imds.watch_handlers import WatchHandlers
from caretaker.kube.store import Store
from caretaker.runtime.work_queue import Key
from testing.clock import Clock

SEEN = Snapshot(
    StatusInput(ParsedPolicy(WireMeta(name="p"), Status(), Spec(Options(2)))), PlanInput("p", (), ())
)
NOTHING: dict[tuple[str, str], tuple[int | None, ProbeStatus]] = {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def kind(
    add: Callable[[Key], None] = lambda _: None,
    add_after: Callable[[Key, float], None] = lambda *_: None,
    **options: Any,
) -> IMDSPolicyKind:
    """Without anybody to talk to."""
    nobody: Any = SimpleNamespace(ec2_writer=None)
    queue: Any = SimpleNamespace(add=add, add_after=add_after)
    given = ControllerOptions(Grants.default("ops"), "ops", Rate(2.0, 40.0), **options)
    watched = WatchHandlers(Store(), queue)
    return IMDSPolicyKind(nobody, nobody, watched, PolicyMetrics(CollectorRegistry()), given)


def probing(*, waiting: bool, wake: float | None = None) -> Plan:
    return Plan(verified=Verified({"a": ""}, NOTHING, "Probing", "0 of 1", None, waiting, wake))


def delays(made: IMDSPolicyKind, clock: Clock, seconds: Collection[float]) -> list[float | None]:
    found = []
    for one in seconds:
        clock.now = 1000.0 + one
        found.append(made.requeue(SEEN, probing(waiting=True), "").delay)
    return found


def test_a_probe_that_does_not_come_is_looked_for_less_and_less(clock: Clock) -> None:
    made = kind()
    assert delays(made, clock, (0, 10, 80, 3600)) == [5.0, 5.0, 20.0, 60.0]
    made.requeue(SEEN, probing(waiting=False), "")
    assert delays(made, clock, (4000,)) == [5.0], "the next one anew"


@pytest.mark.parametrize(("wake", "delay"), [(300.0, 300.0), (86400.0, 900.0), (-5.0, 1.0), (None, 900.0)])
def test_a_probe_that_is_to_be_made_again_is_not_left_to_the_resync(wake: float | None, delay: float) -> None:
    assert kind().requeue(SEEN, probing(waiting=False, wake=wake), "").delay == delay


@pytest.mark.usefixtures("clock")
def test_a_probe_that_cannot_be_made_is_not_looked_for_each_5_s() -> None:
    made = kind()
    assert made.requeue(SEEN, probing(waiting=True), "404").delay == 15.0
    unread = msgspec.structs.replace(
        SEEN, status_input=msgspec.structs.replace(SEEN.status_input, probe_problem="404")
    )
    assert made.requeue(unread, probing(waiting=True), "").delay == 15.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, ""),
        ({"watched": "ops"}, ""),
        ({"watched": "other"}, "--namespace"),
        ({"daemontasks": False}, "--kinds"),
    ],
    ids=["everything is served", "its own namespace", "another namespace alone", "no DaemonTasks"],
)
async def test_an_operator_that_would_not_run_the_probe_says_so(options: dict[str, Any], told: str) -> None:
    made = kind(**options)
    if not told:
        with pytest.raises(AttributeError):  # it asks
            await made.before(SEEN, probing(waiting=True))
        return
    said = await made.before(SEEN, probing(waiting=True))
    verified = find(made.status(SEEN, probing(waiting=True), said).conditions, "Verified")
    assert verified is not None
    assert (verified.status, verified.reason) == ("Unknown", "ProbeUnavailable")
    assert told in verified.message


async def test_a_node_that_was_changed_is_looked_at_as_soon_as_its_readiness_changes() -> None:
    added: list[Key] = []
    made = kind(add=added.append, daemontasks=False)
    one = ChangedInstance("i-1", "n1", "2026-01-01T00:00:00Z")
    changed = (ChangedGroup("", "", (FieldChange("httpTokens", "optional", "required"),), (one,)),)
    policy_state: Any = SimpleNamespace(
        keep=None, only=lambda _: None, soaking=lambda *_: None, land=lambda *_: None
    )
    seen = msgspec.structs.replace(SEEN, plan_input=None, policy_state=policy_state)
    await made.before(seen, Plan(enforced=Enforced(changed=changed)))
    nodes = {name: Node(name, name, {}, provider_id="", ready=True, ready_since=5.0) for name in ("n1", "n2")}
    away = {name: msgspec.structs.replace(node, ready=False) for name, node in nodes.items()}
    made._watched._node_changed(nodes["n2"], away["n2"])
    made._watched._node_changed(nodes["n1"], msgspec.structs.replace(nodes["n1"], labels={"a": "b"}))
    assert added == [], "not watched, or as Ready as before"
    made._watched._node_changed(nodes["n1"], away["n1"])
    made._watched._node_changed(away["n1"], msgspec.structs.replace(nodes["n1"], ready_since=9.0))
    made._watched._node_changed(nodes["n1"], None)
    assert [key.name for key in added] == ["p", "p", "p"]
    await made.before(seen, Plan(enforced=Enforced()))
    made._watched._node_changed(nodes["n1"], away["n1"])
    assert len(added) == 3


@pytest.mark.usefixtures("clock")
def test_an_instance_that_was_not_told_is_asked_for_again_soon() -> None:
    lost = msgspec.structs.replace(SEEN, lost=True)
    assert kind().requeue(lost, Plan(), "").delay == 10.0


@pytest.mark.parametrize("missed", [True, False])
async def test_an_event_in_the_first_pass_of_a_policy_brings_another_one(missed: bool) -> None:
    later: list[Key] = []
    made = kind(add_after=lambda key, _: later.append(key), daemontasks=False)
    node = Node("n1", "n1", {}, provider_id="", ready=True, ready_since=5.0)
    made._watched._node_changed(None, node)
    read = msgspec.structs.replace(SEEN, plan_input=None, events=1)
    if missed:
        made._watched._node_changed(None, msgspec.structs.replace(node, name="n2", uid="n2"))
    await made.before(read, Plan())
    assert later == [Key("IMDSPolicy", "", "p")] * missed
    await made.before(read, Plan())
    assert len(later) == missed, "only the first pass could miss one"


async def test_other_policies_look_again_when_one_goes_that_no_pass_has_completed() -> None:
    added: list[Key] = []
    made = kind(added.append, daemontasks=False)
    gone = Key("IMDSPolicy", "", "gone")
    await made.before(msgspec.structs.replace(SEEN, plan_input=None), Plan())
    added.clear()
    await made.forget(gone)
    assert [key.name for key in added] == ["p"]
