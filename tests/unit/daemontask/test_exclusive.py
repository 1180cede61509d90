"""spec.exclusive: where a task of a group may begin, and the offers of the registry of a process."""

from typing import Any

import pytest
from msgspec.structs import replace

from caretaker.api.daemontask import DaemonTask, Drain, Exclusive
from caretaker.api.names import POD_EXCLUSIVE
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.dependencies import Dependencies, Dependency
from caretaker.daemontask.exclusion import OFFER_SECONDS, Exclusion
from caretaker.daemontask.exclusive import view_of
from caretaker.daemontask.group_view import GroupView, Hold, Holding, Other
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.snapshot import Snapshot
from caretaker.kube.store import PodIndex, Store
from caretaker.runtime.work_queue import Key
from unit.daemontask.build import NOW, entry, node, planned, pod, progress, snapshot, started, task

A, B, C, D = (node(name) for name in "abcd")
KERNEL = Exclusive("kernel")


def others(*found: Other) -> GroupView:
    return view_of("task", found)


def holds(*nodes: Node, width: int | None = None, idle: tuple[Node, ...] = (), **fields: Any) -> Other:
    """A task that runs on these nodes, and is in backoff on those `idle`."""
    slots = frozenset(of.uid for of in (*nodes, *idle))
    busy = frozenset(of.uid for of in nodes)
    return Other(
        fields.pop("name", "other"), Holding({u: u in busy for u in slots}, slots, busy, width), **fields
    )


def one_of(width: int) -> Exclusive:
    return Exclusive("kernel", width)


RETRY = entry(A, "Retry", attempts=1, finished_at=int(NOW - 60))
STARTS: dict[str, tuple[Exclusive, GroupView, list[str]]] = {
    "a node that another task holds waits, the others go on": (KERNEL, others(holds(A)), ["b", "c"]),
    "nothing starts before every task of the group is read": (KERNEL, others(Other("x", read=False)), []),
    "the width counts the nodes of all tasks": (one_of(2), others(holds(A)), ["b"]),
    "a full group lets nothing start": (one_of(1), others(holds(D)), []),
    "the smallest width counts": (one_of(3), others(holds(D, width=1)), []),
    "a node in backoff takes a place in the group": (one_of(1), others(holds(idle=(D,))), []),
    "a place that another task has waited for longer is left to it": (
        one_of(2),
        others(holds(D), Other("x", turn=True, until=NOW + 9)),
        [],
    ),
    "a node that was offered to another task waits": (
        KERNEL,
        others(Other("x", offered=frozenset({A.uid}), until=NOW + 9)),
        ["b", "c"],
    ),
}


@pytest.mark.parametrize(("exclusive", "view", "nodes"), STARTS.values(), ids=STARTS)
def test_a_task_begins_where_its_group_allows_it(
    exclusive: Exclusive, view: GroupView, nodes: list[str]
) -> None:
    result = planned(task(exclusive=exclusive), [A, B, C], exclusion=view)
    chosen = started(result)
    assert chosen == nodes or (len(nodes) == 1 == len(chosen) and chosen[0] in "bc")


@pytest.mark.parametrize(
    ("view", "starts"),
    [
        pytest.param(others(holds(idle=(A,), name="zebra")), ["a"], id="the first by name goes first"),
        pytest.param(others(holds(idle=(A,), name="alpha")), [], id="the second waits"),
        pytest.param(others(holds(A, name="zebra")), [], id="a Pod goes before a retry"),
    ],
)
def test_of_two_tasks_that_hold_a_node_one_goes_on(view: GroupView, starts: list[str]) -> None:
    """As after an edit: a task joined the group while it ran."""
    result = planned(task(exclusive=KERNEL), [A], entries={"a": RETRY}, exclusion=view)
    assert started(result) == starts
    assert [report.node.name for report in result.nodes.holders] == ["a"]


def test_retries_that_hold_more_places_than_there_are_go_one_by_one() -> None:
    view = others(holds(idle=(B,)), Other("x", turn=True, until=NOW + 9))
    result = planned(task(exclusive=one_of(1)), [A], entries={"a": RETRY}, exclusion=view)
    assert started(result) == ["a"]


ON_REBOOT: dict[str, Any] = {"parallelism": 1, "rerun_on": ("TemplateChange", "NodeReboot")}


def after_first(of: DaemonTask, where: Node) -> Snapshot:
    """The task is to retry on a node where another task has to run first."""
    first = Dependencies((Dependency("first", progress(waiting=[where])),))
    return replace(snapshot(of, [where], entries={"a": RETRY}), dependencies=first)


HELD: dict[str, tuple[Snapshot, dict[str, bool]]] = {
    "a Pod": (snapshot(task(exclusive=KERNEL), [A], [pod(A)]), {A.uid: True}),
    "a Pod that is being deleted": (
        snapshot(task(exclusive=KERNEL), [A], [pod(A, deletion=NOW, deletion_asked=NOW)]),
        {A.uid: True},
    ),
    "a Pod on a node that is lost": (
        snapshot(
            task(exclusive=KERNEL), [replace(A, ready=False, ready_since=NOW - 9000)], [pod(A, created=0)]
        ),
        {A.uid: True},
    ),
    "a retry": (snapshot(task(exclusive=KERNEL), [A], entries={"a": RETRY}), {A.uid: False}),
    "used up retries hold nothing": (
        snapshot(task(exclusive=KERNEL), [A], entries={"a": entry(A, "Failed")}),
        {},
    ),
    "a suspended task lets go of its retries": (
        snapshot(task(exclusive=KERNEL, suspend=True), [A, B], [pod(B)], {"a": RETRY}),
        {B.uid: True},
    ),
    "a cordon after a failure": (
        snapshot(
            task(exclusive=KERNEL, parallelism=1, drain=Drain()),
            [replace(A, unschedulable=True, cordon="default/task/task-uid/1")],
            entries={"a": entry(A, "Failed")},
        ),
        {A.uid: False},
    ),
    "a retry that waits for another task since a reboot holds nothing": (
        after_first(task(exclusive=KERNEL, **ON_REBOOT), replace(A, boot_id="another")),
        {},
    ),
    "a cordon does, though the run waits for another task": (
        after_first(
            task(exclusive=KERNEL, drain=Drain(on_failure="KeepCordoned"), **ON_REBOOT),
            replace(A, boot_id="another", unschedulable=True, cordon="default/task/task-uid/1"),
        ),
        {A.uid: False},
    ),
}


@pytest.mark.parametrize(("of", "held"), HELD.values(), ids=HELD)
def test_what_a_task_holds(of: Snapshot, held: dict[str, bool]) -> None:
    result = plan(replace(of, exclusion=GroupView()))
    assert result.holding is not None
    assert dict(result.holding.nodes) == held


@pytest.mark.parametrize(("parallelism", "width"), [("50%", None), (3, 3)])
def test_a_percentage_of_no_node_does_not_narrow_the_group(parallelism: int | str, width: int | None) -> None:
    of = task(exclusive=Exclusive("kernel", parallelism))
    result = planned(of, [], exclusion=GroupView())
    assert result.holding is not None
    assert result.holding.width == width


def test_a_node_that_rebooted_while_it_was_watched_goes_before_an_offer_of_it() -> None:
    """The other task waits for its slot: neither would begin."""
    of = task(exclusive=KERNEL, min_success_seconds=600, rerun_on=("TemplateChange", "NodeReboot"))
    view = GroupView(held={A.uid: Hold("other", always=False)})
    done = {"a": entry(A, finished_at=int(NOW - 60))}
    assert started(planned(of, [replace(A, boot_id="another")], [], done, exclusion=view)) == ["a"]


def test_a_node_that_waits_holds_no_slot_and_says_for_whom() -> None:
    view = GroupView(held={A.uid: Hold("other", always=True)})
    result = planned(task(exclusive=KERNEL, parallelism=1), [A, B], exclusion=view)
    (waiting,) = result.nodes.kept_out
    assert (waiting.node.name, waiting.decision.reason) == ("a", "HeldByGroup")
    assert waiting.decision.message == "waiting for DaemonTask other"
    assert started(result) == ["b"]


# ---------------------------------------------------------------- the registry

NODES = {of.name: of for of in (A, B, C)}


class Place:
    """A registry, with the passes that it asks for."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.pods: Store[Pod] = Store()
        self.registry = Exclusion(PodIndex(self.pods), NODES, self._enqueue)
        self.pods.subscribe(self.registry.pod_changed)
        self.registry.listed("default", [])

    def _enqueue(self, key: Key, *, urgent: bool = False) -> None:
        assert urgent
        self.woken.append(key.name)

    def joined(self, name: str, exclusive: Exclusive = KERNEL) -> "Member":
        return Member(self, name, exclusive)


class Member:
    def __init__(self, place: Place, name: str, exclusive: Exclusive) -> None:
        self.place, self.key, self.exclusive = place, Key("DaemonTask", "default", name), exclusive
        place.registry.note(self.key, name, exclusive.group)

    def look(self, *nodes: Node, pods: tuple[Pod, ...] = (), now: float = NOW, **spec: Any) -> Plan:
        """Its pass up to the plan."""
        self.place.registry.expire("default", now)
        view = self.place.registry.view(self.key, (), now)
        return planned(task(exclusive=self.exclusive, **spec), [*nodes], [*pods], exclusion=view)

    def run(self, *nodes: Node, now: float = NOW, **fields: Any) -> list[str]:
        """A whole pass; the names of the nodes that it starts."""
        found = self.place.registry.claim(self.key, self.look(*nodes, now=now, **fields), (), now)
        return started(found)


def test_of_two_passes_at_a_time_one_reserves_the_node() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    plans = first.look(A), second.look(A)
    assert started(place.registry.claim(first.key, plans[0], (), NOW)) == ["a"]
    late = place.registry.claim(second.key, plans[1], (), NOW)
    assert started(late) == []
    assert late.more


def test_a_task_that_joins_is_read_before_the_others_go_on() -> None:
    place = Place()
    first = place.joined("a")
    second = place.joined("b")
    assert first.run(A) == []
    second.run()
    assert place.woken == ["a"]
    assert first.run(A) == ["a"]


def test_a_node_that_is_let_go_is_offered_to_those_that_wait() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    assert first.run(A) == ["a"]
    assert second.run(A) == []
    first.run()
    assert place.woken[-1] == "b"
    assert first.run(A) == [], "it is the turn of b"
    assert second.run(A) == ["a"]


def test_an_offer_that_is_not_taken_up_ends() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    first.run(A), second.run(A)
    first.run()
    assert first.run(A) == []
    assert first.run(A, now=NOW + OFFER_SECONDS) == ["a"]


def test_a_group_of_one_node_takes_turns() -> None:
    place = Place()
    tasks = [place.joined(name, one_of(1)) for name in "abc"]
    for of in tasks:
        of.run()
    running, turns = tasks[0], []
    for of in tasks:
        of.run(A, B, C)
    for _ in range(6):
        turns.append(running.key.name)
        assert running.run(A, B, C) == [], "it has ended, and others wait"
        began = [of for of in tasks if of.run(A, B, C)]
        assert len(began) == 1
        running = began[0]
    assert sorted(turns[:3]) == sorted(turns[3:]) == ["a", "b", "c"]


def test_a_create_without_an_answer_holds_its_node() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    claimed = place.registry.claim(first.key, first.look(A), (), NOW)
    place.registry.settled(first.key, claimed, lambda _: False, {A.uid}, NOW)
    first.run()
    assert second.run(A) == []
    view = place.registry.view(first.key, (), NOW)
    assert view is not None
    assert NOW + 30 <= view.wake <= NOW + 32
    first.run(now=NOW + 40)
    assert not place.registry.knows("default"), "the watch may be late with the Pod"
    assert second.run(A, now=NOW + 40) == ["a"]


def test_a_start_that_made_nothing_lets_go_at_once() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    claimed = place.registry.claim(first.key, first.look(A), (), NOW)
    assert second.run(A) == []
    place.registry.settled(first.key, claimed, lambda _: False, (), NOW)
    assert place.woken[-1] == "b"
    assert second.run(A) == ["a"]


def test_the_pods_of_a_deleted_task_hold_their_nodes_until_they_are_gone() -> None:
    place = Place()
    second = place.joined("b")
    gone = pod(A, owner_uid="gone", marks={POD_EXCLUSIVE: "kernel"})
    place.pods.apply(gone, 5)
    assert second.run(A, B) == ["b"]
    assert second.look(A).nodes.kept_out[0].decision.message == "waiting for DaemonTask task"
    place.pods.remove(("default", gone.name), gone.uid, 6)
    assert place.woken == ["b"]
    assert second.run(A) == ["a"]


def test_groups_do_not_reach_beyond_a_namespace_or_another_group() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b", Exclusive("other"))
    far = Key("DaemonTask", "far", "c")
    place.registry.note(far, "c", "kernel")
    assert first.run(A) == ["a"]
    assert second.run(A) == ["a"]
    view = place.registry.view(far, (), NOW)
    assert view is not None
    assert (view.held, view.unread) == ({}, ())


def test_a_task_that_leaves_its_group_holds_nothing_for_it() -> None:
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    first.run(A), second.run(A)
    place.registry.note(first.key, "a", "")
    assert place.woken[-1] == "b"
    assert second.run(A) == ["a"]


def test_a_deleted_task_that_joined_late_holds_its_nodes_until_its_pods_are_gone() -> None:
    """Its Pods were created before, without the annotation."""
    place = Place()
    first, second = place.joined("a"), place.joined("b")
    first.run(), second.run()
    live = pod(A, owner_uid="a")
    place.pods.apply(live, 5)
    place.registry.forget(first.key)
    assert second.run(A) == []
    place.pods.remove(("default", live.name), live.uid, 6)
    assert second.run(A) == ["a"]


def test_a_process_that_leads_again_reads_the_groups_again() -> None:
    place = Place()
    first = place.joined("a")
    assert first.run(A) == ["a"]
    place.registry.clear()
    assert not place.registry.knows("default")
    place.registry.listed(
        "default", [(first.key, "a", "kernel"), (Key("DaemonTask", "default", "b"), "b", "kernel")]
    )
    assert place.woken == ["a", "b"]
    assert first.run(A) == [], "b has not been read"
