"""The Store never goes back in time, and tells its subscribers each change once."""

from collections.abc import Callable

import msgspec
import pytest

from caretaker.api.names import POD_NODE_UID
from caretaker.api.objects import Pod
from caretaker.kube.store import PodIndex, Store


def pod(name: str = "a", uid: str = "", phase: str = "Pending", owner: str = "task", node: str = "n1") -> Pod:
    return Pod(
        name=name,
        namespace="ns",
        uid=uid or f"uid-{name}",
        owner_uid=owner,
        labels={},
        annotations={POD_NODE_UID: node},
        created=0.0,
        phase=phase,
    )


class Watched:
    """A store, and what it told: ("a", "Pending", "Running"), None for absent."""

    def __init__(self) -> None:
        self.store: Store[Pod] = Store()
        self.told: list[tuple[str, str | None, str | None]] = []
        self.store.subscribe(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        name = (old or new).name  # type: ignore[union-attr]
        self.told.append((name, old and old.phase, new and new.phase))

    def phases(self) -> dict[str, str]:
        return {record.name: record.phase for record in self.store.values()}


Step = Callable[[Store[Pod]], object]


def listed(version: int, *items: tuple[Pod, int]) -> Step:
    return lambda store: store.replace_all(items, version)


def event(record: Pod, version: int) -> Step:
    return lambda store: store.apply(record, version)


def deleted(record: Pod, version: int) -> Step:
    return lambda store: store.remove(("ns", record.name), record.uid, version)


def wrote(record: Pod, version: int) -> Step:
    return lambda store: store.observe_write(record, version)


def removed_by_us(record: Pod, version: int = 0) -> Step:
    return lambda store: store.observe_delete(("ns", record.name), record.uid, version)


RUNNING, DONE = pod(phase="Running"), pod(phase="Succeeded")
SECOND = pod(uid="uid-second")

CASES: dict[str, tuple[list[Step], dict[str, str], list[tuple[str, str | None, str | None]]]] = {
    "a first list is told as new objects": (
        [listed(5, (pod("a"), 3), (pod("b"), 4))],
        {"a": "Pending", "b": "Pending"},
        [("a", None, "Pending"), ("b", None, "Pending")],
    ),
    "an event changes a record": (
        [listed(5, (pod(), 3)), event(RUNNING, 6)],
        {"a": "Running"},
        [("a", None, "Pending"), ("a", "Pending", "Running")],
    ),
    "an event that changes nothing that is read is not told": (
        [listed(5, (pod(), 3)), event(pod(), 6), event(pod(), 7)],
        {"a": "Pending"},
        [("a", None, "Pending")],
    ),
    "what a re-list lacks was deleted unseen and is told as gone": (
        [listed(5, (pod("a"), 3), (pod("b"), 4)), listed(9, (pod("b"), 4))],
        {"b": "Pending"},
        [("a", None, "Pending"), ("b", None, "Pending"), ("a", "Pending", None)],
    ),
    "a re-list tells what changed meanwhile and nothing else": (
        [listed(5, (pod("a"), 3), (pod("b"), 4)), listed(9, (RUNNING, 8), (pod("b"), 4), (pod("c"), 7))],
        {"a": "Running", "b": "Pending", "c": "Pending"},
        [
            ("a", None, "Pending"),
            ("b", None, "Pending"),
            ("a", "Pending", "Running"),
            ("c", None, "Pending"),
        ],
    ),
    "our own write is visible before the watch tells of it": (
        [listed(5), wrote(pod(), 6)],
        {"a": "Pending"},
        [("a", None, "Pending")],
    ),
    "the echo of our own write is not told": (
        [listed(5), wrote(pod(), 6), event(pod(), 6)],
        {"a": "Pending"},
        [("a", None, "Pending")],
    ),
    "a watch event older than our own write is ignored": (
        [listed(5, (pod(), 3)), wrote(DONE, 8), event(RUNNING, 7)],
        {"a": "Succeeded"},
        [("a", None, "Pending"), ("a", "Pending", "Succeeded")],
    ),
    "a watch event newer than our own write is believed": (
        [listed(5), wrote(pod(), 6), event(pod(), 6), event(RUNNING, 7)],
        {"a": "Running"},
        [("a", None, "Pending"), ("a", "Pending", "Running")],
    ),
    "an answer that comes after the watch told more is ignored": (
        [listed(5), event(pod(), 6), event(RUNNING, 7), wrote(pod(), 6)],
        {"a": "Running"},
        [("a", None, "Pending"), ("a", "Pending", "Running")],
    ),
    "an answer that comes after the watch told of the deletion resurrects nothing": (
        [listed(5), event(pod(), 6), deleted(pod(), 7), wrote(pod(), 6)],
        {},
        [("a", None, "Pending"), ("a", "Pending", None)],
    ),
    "an object created by us stays through a list that is older": (
        [listed(5), wrote(pod(), 8), listed(7)],
        {"a": "Pending"},
        [("a", None, "Pending")],
    ),
    "an object patched by us stays as patched through a list that is older": (
        [listed(5, (pod(), 3)), wrote(DONE, 8), listed(7, (pod(), 3))],
        {"a": "Succeeded"},
        [("a", None, "Pending"), ("a", "Pending", "Succeeded")],
    ),
    "an object created by us and absent from a newer list was deleted": (
        [listed(5), wrote(pod(), 8), listed(9)],
        {},
        [("a", None, "Pending"), ("a", "Pending", None)],
    ),
    "an object deleted by us is gone at once": (
        [listed(5, (pod(), 3)), removed_by_us(pod(), 8)],
        {},
        [("a", None, "Pending"), ("a", "Pending", None)],
    ),
    "an event older than our own delete resurrects nothing": (
        [listed(5, (pod(), 3)), removed_by_us(pod(), 8), event(RUNNING, 7), deleted(pod(), 8)],
        {},
        [("a", None, "Pending"), ("a", "Pending", None)],
    ),
    "an older re-list does not resurrect what we deleted": (
        [listed(5, (pod(), 3)), removed_by_us(pod(), 8), listed(7, (pod(), 3)), deleted(pod(), 8)],
        {},
        [("a", None, "Pending"), ("a", "Pending", None)],
    ),
    "a delete answered without a version holds against an older list too": (
        [listed(5, (pod(), 3)), removed_by_us(pod()), listed(7, (pod(), 3)), event(RUNNING, 8)],
        {},
        [("a", None, "Pending"), ("a", "Pending", None)],
    ),
    "the name of a deleted object may be taken by another": (
        [listed(5, (pod(), 3)), removed_by_us(pod(), 8), event(SECOND, 9)],
        {"a": "Pending"},
        [("a", None, "Pending"), ("a", "Pending", None), ("a", None, "Pending")],
    ),
    "another object of the same name is told as gone, then new": (
        [listed(5, (pod(), 3)), listed(9, (SECOND, 8))],
        {"a": "Pending"},
        [("a", None, "Pending"), ("a", "Pending", None), ("a", None, "Pending")],
    ),
    "the late deletion of a predecessor leaves our own successor alone": (
        [listed(5, (pod(), 3)), wrote(SECOND, 8), deleted(pod(), 7), event(SECOND, 8)],
        {"a": "Pending"},
        [("a", None, "Pending"), ("a", "Pending", None), ("a", None, "Pending")],
    ),
    "a late answer about a predecessor resurrects nothing": (
        [
            listed(5, (pod(), 3)),
            wrote(SECOND, 9),
            removed_by_us(SECOND, 10),
            wrote(RUNNING, 7),
            deleted(pod(), 8),
        ],
        {},
        [("a", None, "Pending"), ("a", "Pending", None), ("a", None, "Pending"), ("a", "Pending", None)],
    ),
    "a list from a restored etcd is believed as it stands": (
        [listed(500, (pod("a"), 300)), wrote(pod("b"), 600), listed(50, (RUNNING, 40)), event(DONE, 51)],
        {"a": "Succeeded"},
        [
            ("a", None, "Pending"),
            ("b", None, "Pending"),
            ("a", "Pending", "Running"),
            ("b", "Pending", None),
            ("a", "Running", "Succeeded"),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_store_holds_and_tells(case: str) -> None:
    steps, held, told = CASES[case]
    watched = Watched()
    for step in steps:
        step(watched.store)
    assert watched.phases() == held
    assert watched.told == told


def test_versions_stand_beside_the_records() -> None:
    store: Store[Pod] = Store()
    store.replace_all([(pod(), 3)], 5)
    store.apply(pod(), 8)
    assert store.version_of(("ns", "a")) == 8
    assert store.version_of(("ns", "b")) == 0
    assert store.get("ns", "a") is store.records["ns", "a"]
    assert len(store) == 1


def test_synced_is_set_by_the_first_list_even_an_empty_one() -> None:
    store: Store[Pod] = Store()
    store.observe_write(pod(), 4)
    assert not store.synced.is_set()
    store.replace_all([], 5)
    assert store.synced.is_set()


def test_last_contact_follows_the_clock() -> None:
    now = 10.0
    store: Store[Pod] = Store(clock=lambda: now)
    assert store.last_contact == 10.0
    now = 25.0
    store.touch()
    assert store.last_contact == 25.0


def test_deletes_are_not_remembered_for_ever() -> None:
    store: Store[Pod] = Store()
    store.replace_all([(pod(f"p{i}"), 1) for i in range(100)], 5)
    for i in range(100):
        store.observe_delete(("ns", f"p{i}"), f"uid-p{i}", 10 + i if i % 2 else 0)
    for version in (200, 300):
        store.replace_all([], version)
    # Nothing but the memory of a delete stops an event from bringing an object back.
    for i in range(100):
        store.apply(pod(f"p{i}"), 301 + i)
    assert len(store) == 100


class TestPodIndex:
    def test_holds_the_pods_of_each_owner_by_node(self) -> None:
        store: Store[Pod] = Store()
        store.replace_all([(pod("early"), 1)], 2)
        index = PodIndex(store)
        store.apply(pod("a", node="n2"), 3)
        store.apply(pod("b", owner="other"), 4)
        store.apply(pod("c", owner=""), 5)
        assert {node: set(pods) for node, pods in index.pods_of("ns", "task").items()} == {
            "n1": {"early"},
            "n2": {"a"},
        }
        assert index.pods_of("ns", "nobody") == {}
        assert set(index.owners()) == {("ns", "task"), ("ns", "other")}

    def test_a_pod_elsewhere_is_not_the_owners_whatever_it_says(self) -> None:
        store: Store[Pod] = Store()
        index = PodIndex(store)
        store.apply(pod("a"), 1)
        store.apply(msgspec.structs.replace(pod("a", phase="Succeeded", node="n1"), namespace="other"), 2)
        assert index.pods_of("ns", "task")["n1"]["a"].phase == "Pending"
        store.remove(("other", "a"), "uid-a", 3)
        assert list(index.pods_of("ns", "task")["n1"]) == ["a"]

    def test_follows_changes_and_forgets_what_is_gone(self) -> None:
        store: Store[Pod] = Store()
        index = PodIndex(store)
        store.apply(pod("a"), 1)
        store.apply(pod("a", phase="Running"), 2)
        assert index.pods_of("ns", "task")["n1"]["a"].phase == "Running"
        store.remove(("ns", "a"), "uid-a", 3)
        assert index.pods_of("ns", "task") == {}
        assert list(index.owners()) == []

    def test_moves_a_pod_whose_owner_or_node_changed(self) -> None:
        store: Store[Pod] = Store()
        index = PodIndex(store)
        store.apply(pod("a"), 1)
        store.apply(pod("a", owner="new", node="n9"), 2)
        store.apply(pod("a", uid="uid-next", owner="new", node="n9"), 3)
        assert index.pods_of("ns", "task") == {}
        assert index.pods_of("ns", "new")["n9"]["a"].uid == "uid-next"

    def test_looking_for_a_node_without_pods_changes_nothing(self) -> None:
        store: Store[Pod] = Store()
        index = PodIndex(store)
        store.apply(pod("a"), 1)
        with pytest.raises(KeyError):
            index.pods_of("ns", "task")["n2"]
        assert list(index.pods_of("ns", "task")) == ["n1"]
