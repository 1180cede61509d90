"""A cluster in memory with the objects of spec.dataRefs, and the judge of runs by their data.

An operator starts runs by the data as of FRESH_SECONDS before its pass began, and no older: its runs are held
to that. The judge of world.py looks at all else.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import DaemonTask, DataRef, Spec
from caretaker.api.objects import Node, Pod, WireMeta
from caretaker.daemontask import data_reader, referenced_data
from caretaker.daemontask.data_reader import FRESH_SECONDS, DataReader
from caretaker.daemontask.ledger import Entry
from caretaker.kube.errors import ApiError
from caretaker.kube.transport import Request
from simulation.daemontask.cluster import CONFIGMAPS, NAMESPACE, TASK, TASK_UID, Clock, SimCluster
from simulation.daemontask.kubelets import Phase, SlowCluster
from simulation.daemontask.world import SlowWorld, virtual_time

SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
MAP, SECRET = f"{CONFIGMAPS}/profile", f"{SECRETS}/token"
REFS: Final = [{"kind": "ConfigMap", "name": "profile"}, {"kind": "Secret", "name": "token"}]
ON_DATA: Final[dict[str, Any]] = {
    "dataRefs": REFS,
    "rerunOn": ["TemplateChange", "NodeReboot", "ReferencedDataChange"],
}
WITHOUT_DATA: Final[dict[str, Any]] = {"dataRefs": [], "rerunOn": ["TemplateChange", "NodeReboot"]}


class DataObject(msgspec.Struct, frozen=True):
    metadata: WireMeta
    data: dict[str, str]

    def answer(self, accept: str) -> bytes:
        """As the API server sends it."""
        metadata_only = "PartialObjectMetadata" in accept
        return msgspec.json.encode({"metadata": self.metadata} if metadata_only else self)


class DataCluster(SlowCluster):
    """`objects`: by path."""

    def __init__(self, clock: Clock, **spec: Any) -> None:
        self.objects: dict[str, DataObject] = {}
        self.denied: set[str] = set()  # paths that the operator may not get
        # path -> since when it has which value; "" = none
        self.shown: dict[str, list[tuple[float, str]]] = {}
        self.known: dict[str, tuple[str, ...]] = {}  # the part of a revision -> the values of its objects
        self.referred = 1  # the version at which spec.dataRefs was edited last
        super().__init__(clock, **{**spec, **ON_DATA})
        for path in (MAP, SECRET):
            self.put(path, "0")

    # ---------------------------------------------------------------- what happens to it

    def put(self, path: str, value: str) -> None:
        """A user creates the object, or edits it."""
        old = self.objects.get(path)
        uid = f"uid-{next(self._serial)}" if old is None else old.metadata.uid
        self._note()
        meta = WireMeta(name=path.rpartition("/")[2], uid=uid, resource_version=str(self._next()))
        self.objects[path] = DataObject(meta, {"v": value})
        self._tell_data(path)

    def take(self, path: str) -> None:
        """A user deletes it."""
        self._note()
        if self.objects.pop(path, None) is not None:
            self._next()
        self._tell_data(path)

    def deny(self, path: str, *, denied: bool) -> None:
        """A user takes the operator's right to get it, or gives it back."""
        self._note()
        (self.denied.add if denied else self.denied.discard)(path)
        self._next()
        self._tell_data(path)

    def refer(self, count: int) -> None:
        """A user edits spec.dataRefs: so many objects."""
        self._note()
        self.edit(**({**ON_DATA, "dataRefs": REFS[:count]} if count else WITHOUT_DATA))
        self.referred = self.version

    def outcome(self, pod: Pod, wish: Phase) -> Phase:
        """How a run ends: with bad data never well."""
        return "Failed" if self.is_bad(pod) else super().outcome(pod, wish)

    # ---------------------------------------------------------------- its knowledge

    def is_bad(self, pod: Pod) -> bool:
        """Whether its run fails by its data."""
        part = pod.labels[names.LABEL_REVISION].partition("-")[2]
        return any(value.startswith("bad") for value in self.known.get(part, ()))

    def recent(self, path: str, since: float) -> set[str]:
        """The values that it had at any time since then."""
        shown = self.shown[path]
        ends = [at for at, _ in shown[1:]] + [self.clock.now]
        return {value for (_, value), end in zip(shown, ends, strict=True) if end >= since}

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the objects that the task refers to."""
        return (MAP, SECRET)[: len(self.spec.data_refs)]

    @property
    def part(self) -> str:
        """The data as it is."""
        return part_of(*(self.shown[path][-1][1] for path in self.paths))

    def needs_run(self, node: Node, entry: Entry | None) -> bool:
        if entry is None:
            return super().needs_run(node, entry)
        template, _, part = entry.revision.partition("-")
        if super().needs_run(node, msgspec.structs.replace(entry, revision=template)):
            return True
        return "ReferencedDataChange" in self.spec.rerun_on and self.readable and part != self.part

    @property
    def readable(self) -> bool:
        return all(self.shown[path][-1][1] for path in self.paths)

    # ---------------------------------------------------------------- the API

    def get(self, path: str, wanted: Any) -> Any:
        if path not in self.shown:
            return super().get(path, wanted)
        if path in self.denied:
            raise ApiError(403, "Forbidden", path, verb="GET", path=path)
        if path not in self.objects:
            raise ApiError(404, "NotFound", path, path=path)
        return self.objects[path].answer(wanted)

    # ---------------------------------------------------------------- inside

    def _tell_data(self, path: str) -> None:
        there = path in self.objects and path not in self.denied
        value = self.objects[path].data["v"] if there else ""
        self.shown.setdefault(path, []).append((self.clock.now, value))
        self._note()

    def _note(self) -> None:
        if len(self.shown) == len(REFS):  # else it is being made
            super()._note()


class DataWorld(SlowWorld):
    """One whose task refers to a ConfigMap and a Secret."""

    made_of: ClassVar[type[SimCluster]] = DataCluster
    cluster: DataCluster

    def judge(self, pod: Pod) -> None:
        self.judge_data(pod)
        entry = self.cluster.entries().get(pod.annotations[names.POD_NODE_NAME])
        if entry is not None and entry.node_uid == pod.node_uid and self._may_differ(entry):
            self.cluster.needed_now(pod.node_uid)
        super().judge(pod)

    def judge_data(self, pod: Pod) -> None:
        """It has data that the operator may have read last, of objects that it could read then."""
        if self.cluster.referred > self.acting.began:
            return
        part = pod.labels[names.LABEL_REVISION].partition("-")[2]
        if not self.cluster.spec.data_refs:
            assert not part, f"{pod.name} has data, and the task refers to none"
            return
        recent = [self.cluster.recent(path, self._since) for path in self.cluster.paths]
        parts = self._parts()
        assert part in parts, f"{pod.name} has other data than {recent}"
        self.cluster.known[part] = parts[part]

    @property
    def _since(self) -> float:
        return self.acting.began_at - FRESH_SECONDS

    def _parts(self) -> dict[str, tuple[str, ...]]:
        """All data that the operator may have read last, by its part of the revision."""
        recent = [self.cluster.recent(path, self._since) - {""} for path in self.cluster.paths]
        return {part_of(*values): values for values in itertools.product(*recent)}

    def _may_differ(self, entry: Entry) -> bool:
        """Whether the run on record had other data than the operator may have read."""
        if "ReferencedDataChange" not in self.cluster.spec.rerun_on:
            return False
        return bool(self._parts().keys() - {entry.revision.partition("-")[2]})

    def end_chaos(self) -> None:
        super().end_chaos()
        for path in (MAP, SECRET):
            self.cluster.deny(path, denied=False)
            there = self.cluster.objects.get(path)
            if there is None or there.data["v"].startswith("bad"):
                self.cluster.put(path, "9")


async def _at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    """Instead of a thread."""
    return work(*arguments)


class _Instant:
    """A client of objects with these values, whose answers are there at once."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    async def call(self, request: Request) -> bytes:
        meta = WireMeta(name=request.path.rpartition("/")[2])
        return DataObject(meta, {"v": self._values[request.path]}).answer(request.accept)


@cache
def part_of(*values: str) -> str:
    """The data part of a revision, of the values of MAP and SECRET, or of MAP alone."""
    refs = tuple(msgspec.convert(REFS[: len(values)], list[DataRef]))
    meta = WireMeta(name=TASK, namespace=NAMESPACE, uid=TASK_UID)
    reader = DataReader(_Instant(dict(zip((MAP, SECRET), values, strict=False))))  # type: ignore[arg-type]
    read = reader.fetch(DaemonTask(meta, Spec(template={}, data_refs=refs)))
    while True:
        try:
            read.send(None)
        except StopIteration as done:
            return str(done.value.part)


@contextmanager
def data_time() -> Iterator[Clock]:
    """virtual_time(), also for reads of data."""
    with virtual_time() as clock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_reader, "time", clock)
        patch.setattr(data_reader, "asyncio", SimpleNamespace(**{**vars(asyncio), "to_thread": _at_once}))
        patch.setattr(referenced_data, "_COST", {"n": 2, "r": 1, "p": 1})
        part_of.cache_clear()
        yield clock
