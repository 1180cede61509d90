"""Any interleaving of watch, lists and our own writes: the Store converges and never goes back in time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.api.objects import Pod
from caretaker.kube.store import Key, Store
from testing.examples import examples

NAMES = ("a", "b")


def key(name: str) -> Key:
    return ("ns", name)


class Cluster:
    """An API server's history of two names, our store, and all that is still on its way to it."""

    def __init__(self) -> None:
        self.version = 0
        self.uids = 0
        self.objects: dict[str, tuple[Pod, int]] = {}
        self.events: list[tuple[str, Pod, int]] = []  # not yet delivered by the watch
        self.answers: list[tuple[str, Pod, int]] = []  # to our own writes, not yet delivered
        self.listing: tuple[list[tuple[Pod, int]], int] | None = None
        self.store: Store[Pod] = Store()
        self.shown: dict[str, int] = {}  # uid -> the newest version that was told
        self.gone: set[str] = set()
        self.store.subscribe(self.told)
        self.store.replace_all([], 0)

    def told(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self.gone.add(old.uid)
            return
        assert new.uid not in self.gone, "a deleted object came back"
        assert int(new.message) > self.shown.get(new.uid, 0), "a record went back in time"
        self.shown[new.uid] = int(new.message)

    def write(self, name: str, *, ours: bool) -> None:
        """Create or change an object; its version is its message."""
        self.version += 1
        if name in self.objects:
            kind, uid = "MODIFIED", self.objects[name][0].uid
        else:
            self.uids += 1
            kind, uid = "ADDED", f"uid-{self.uids}"
        pod = Pod(name, "ns", uid, "owner", {}, {}, 0.0, message=str(self.version))
        self.objects[name] = (pod, self.version)
        self.record(kind, pod, ours=ours)

    def delete(self, name: str, *, ours: bool) -> None:
        if name in self.objects:
            self.version += 1
            pod, _ = self.objects.pop(name)
            self.record("DELETED", pod, ours=ours)

    def record(self, kind: str, pod: Pod, *, ours: bool) -> None:
        self.events.append((kind, pod, self.version))
        if ours:
            self.answers.append((kind, pod, self.version))

    def watch(self) -> None:
        """Deliver one event; none comes while a list is under way."""
        if self.events and self.listing is None:
            kind, pod, version = self.events.pop(0)
            if kind == "DELETED":
                self.store.remove(key(pod.name), pod.uid, version)
            else:
                self.store.apply(pod, version)

    def answer(self, index: int, *, bare: bool) -> None:
        """Deliver one of the answers, in whatever order; a delete's may be without a version."""
        if not self.answers:
            return
        kind, pod, version = self.answers.pop(index % len(self.answers))
        if kind == "DELETED":
            self.store.observe_delete(key(pod.name), pod.uid, 0 if bare else version)
            held = self.store.get("ns", pod.name)
            assert held is None or held.uid != pod.uid, "our own delete is not visible"
        else:
            self.store.observe_write(pod, version)
            assert self.store.version_of(key(pod.name)) >= version or pod.uid in self.gone_by_now(
                pod, version
            )

    def gone_by_now(self, pod: Pod, version: int) -> set[str]:
        current = self.objects.get(pod.name)
        return {pod.uid} if current is None or current[1] > version else set()

    def list_or_deliver(self) -> None:
        if self.listing is None:
            self.listing = (list(self.objects.values()), self.version)
            return
        items, version = self.listing
        self.listing = None
        self.events = [event for event in self.events if event[2] > version]
        self.store.replace_all(items, version)

    def settle(self) -> None:
        if self.listing is not None:
            self.list_or_deliver()
        while self.events:
            self.watch()


OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("answer"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("watch"), st.none(), st.none()),
    st.tuples(st.just("list"), st.none(), st.none()),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(OPERATIONS, min_size=20, max_size=80))
def test_every_history_converges_without_going_back(operations: list[tuple[str, object, bool]]) -> None:
    cluster = Cluster()
    for operation, what, flag in operations:
        match operation:
            case "write":
                cluster.write(str(what), ours=flag)
            case "delete":
                cluster.delete(str(what), ours=flag)
            case "answer":
                cluster.answer(int(str(what)), bare=flag)
            case "watch":
                cluster.watch()
            case "list":
                cluster.list_or_deliver()
    cluster.settle()
    assert dict(cluster.store.records) == {key(n): pod for n, (pod, _) in cluster.objects.items()}
    for name, (_, version) in cluster.objects.items():
        assert cluster.store.version_of(key(name)) == version
