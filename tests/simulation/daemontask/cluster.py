"""A cluster in memory for the model test: nodes, Pods, one DaemonTask and its ledger.

Inputs: requests as the operator's client words them, and what nodes, kubelets and people do. It answers as
the API server does (uids, resourceVersions, preconditions, 404 and 409), holds no opinion on what an operator
should do, and remembers for the judge (test_model.py) when each node last needed a run.
"""

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import Spec, Status
from caretaker.api.objects import Node, Pod, WireMeta, WireNode, WirePod
from caretaker.api.times import format_time, normalise_time, parse_time
from caretaker.daemontask.controller import RawTask
from caretaker.daemontask.intents import is_open, was_unreadable
from caretaker.daemontask.ledger import SHARD_NODES, Entry, decode_entry, encode_entry, merge
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.shard import WireConfigMap
from caretaker.kube.errors import ApiError

NAMESPACE, TASK, TASK_UID = "default", "task", "task-uid"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONFIGMAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
# The judge looks at the whole ledger and the spec after every write.
decoded = lru_cache(maxsize=1 << 14)(decode_entry)
read_spec = lru_cache(maxsize=64)(msgspec.json.Decoder(Spec).decode)
TASKS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/daemontasks"

Change = tuple[Literal["put", "gone"], int, Any]  # what happened, resourceVersion, the wire object


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = perf_counter = thread_time = time


class SimCluster:
    """The truth. `version` is etcd's revision; node_log and pod_log are what watches tell."""

    task_name, task_uid = TASK, TASK_UID

    def __init__(self, clock: Clock, **spec: Any) -> None:
        self.clock = clock
        self.version = 1
        self.writes = 0
        self.shard_writes = 0
        self.unequal: list[tuple[Plan, Plan]] = []  # plans that remembering changed, and what they should be
        self.nodes: dict[str, WireNode] = {}
        self.ahead: dict[str, float] = {}  # node name -> how many seconds its kubelet's clock is ahead
        self.conditions: dict[str, dict[str, tuple[str, float]]] = {}  # node UID -> type -> (status, since)
        self.pods: dict[str, WirePod] = {}
        self.configmaps: dict[str, WireConfigMap] = {}
        self.node_log: list[Change] = []
        self.pod_log: list[Change] = []
        self.recorded: set[str] = set()  # UIDs of Pods that the ledger has had, whatever became of it
        self._records: dict[str, tuple[Any, Any]] = {}  # resourceVersion -> (wire object, its record)
        self._standing: dict[str, Entry] = {}  # node UID -> its last entry
        self.intended: set[tuple[str, str, int]] = set()  # (node UID, run key, seq) of every intent
        self.renewed: set[tuple[str, str, int]] = set()  # those that follow a run of another template
        self._needed: dict[str, int] = {}  # node uid -> version at which it last needed a run
        self.on_create: list[Callable[[Pod], None]] = []
        self.on_bind: list[Callable[[Pod], None]] = []
        self.on_delete: list[Callable[[Pod], None]] = []  # by a request, not by drop_pod
        self._serial = itertools.count(1)
        self.template_number = 0
        self._spec = {"template": self._template(), **spec}
        self.status = Status()
        self.generation = 1
        self.annotations: dict[str, str] = {}
        self.task_version = 1

    @property
    def task_path(self) -> str:
        return f"{TASKS}/{self.task_name}"

    # ---------------------------------------------------------------- what happens to it

    def add_node(self, name: str) -> None:
        """A machine joins, or a new one takes the name."""
        if name in self.nodes:
            self.remove_node(name)
        meta = WireMeta(name=name, uid=f"{name}-{next(self._serial)}", labels={"kubernetes.io/os": "linux"})
        meta.creation_timestamp = format_time(self.clock.now)
        node = WireNode(meta)
        self._set_node(node, boot_id=f"boot-{next(self._serial)}", ready=True)

    def remove_node(self, name: str) -> None:
        """The Node goes; its bound Pods are for the garbage collector (collect)."""
        node = self.nodes.pop(name)
        self.node_log.append(("gone", self._next(), node))
        self._note()

    def reboot(self, name: str) -> None:
        self._set_node(self.nodes[name], boot_id=f"boot-{next(self._serial)}", ready=True)

    def set_ready(self, name: str, ready: bool) -> None:
        self._set_node(self.nodes[name], boot_id=self.record(self.nodes[name]).boot_id, ready=ready)

    def set_condition(self, name: str, kind: str, status: str) -> None:
        """A problem detector reports a condition."""
        self.conditions.setdefault(self.nodes[name].metadata.uid, {})[kind] = status, self.clock.now
        found = self.record(self.nodes[name])
        self._set_node(self.nodes[name], boot_id=found.boot_id, ready=found.ready)

    def collect(self) -> None:
        """The Pod garbage collector: Pods bound to nodes that are gone."""
        for name, pod in list(self.pods.items()):
            if pod.spec.node_name and pod.spec.node_name not in self.nodes:
                self.drop_pod(name)

    def bind(self, name: str) -> None:
        """The scheduler and the kubelet: to the node that its affinity names, if there is one. The API server
        binds no Pod that is being deleted."""
        pod = self.pods[name]
        target = pod.record().annotations[names.POD_NODE_NAME]
        free = not (pod.spec.node_name or pod.metadata.deletion_timestamp)
        if free and target in self.nodes:
            for judge in self.on_bind:
                judge(self.record(pod))
            self._set_pod(pod, target, "Running")

    def stick(self, name: str) -> None:
        """A node gets it, and one of its images cannot be pulled; its init containers may have run."""
        self.bind(name)
        pod = self.pods[name]
        if pod.spec.node_name:
            self._set_pod(pod, pod.spec.node_name, "Pending", {"waiting": {"reason": "ImagePullBackOff"}})

    def finish(self, name: str, phase: Literal["Succeeded", "Failed"]) -> None:
        """The containers end."""
        pod = self.pods[name]
        if pod.status.phase == "Running":
            self._set_pod(pod, pod.spec.node_name, phase)

    def drop_pod(self, name: str) -> WirePod:
        """The Pod is deleted, by whomever."""
        pod = newer(self.pods.pop(name), self._next())
        self.pod_log.append(("gone", self.version, pod))
        self._note()
        return pod

    def delete_pod(self, name: str) -> WirePod:
        """A request to delete it. Here it goes at once; kubelets.py takes its time."""
        return self.drop_pod(name)

    def time_of(self, node: str) -> float:
        """What the clock of the node's kubelet shows."""
        return self.clock.now + self.ahead.get(node, 0.0)

    def corrupt(self, node: str) -> None:
        """Somebody edits the node's ledger entry by hand, and badly."""
        for name, shard in self.configmaps.items():
            if node in (shard.data or {}):
                data = {**(shard.data or {}), node: "{"}
                self.configmaps[name] = newer(WireConfigMap(shard.metadata, data), self._next())
                self._note()

    def fill(self, name: str, beyond: int = 0) -> None:
        """A shard gets as many entries as fit, or so many more, of nodes that are gone."""
        shard = self.configmaps[name]
        data = dict(shard.data or {})
        text = encode_entry(Entry(node_uid="gone", revision="r", run_key="k", result="Succeeded", seq=1))
        data.update({f"gone-{number}": text for number in range(SHARD_NODES + beyond - len(data))})
        self.configmaps[name] = newer(WireConfigMap(shard.metadata, data), self._next())

    def lose(self, name: str) -> None:
        """Somebody deletes a shard."""
        del self.configmaps[name]
        self._next()
        self._note()

    def restore(self, copy: WireConfigMap) -> None:
        """Somebody puts a shard back as it was (`kubectl replace --force`)."""
        meta = msgspec.structs.replace(copy.metadata, uid=f"uid-{next(self._serial)}")
        self.configmaps[meta.name] = newer(WireConfigMap(meta, copy.data), self._next())
        self._note()

    def cut(self, name: str, nodes: Collection[str] | None = None) -> None:
        """Somebody takes these entries out of a shard, or all."""
        shard = self.configmaps[name]
        data = {
            key: text for key, text in (shard.data or {}).items() if nodes is not None and key not in nodes
        }
        self.configmaps[name] = newer(WireConfigMap(shard.metadata, data), self._next())
        self._note()

    def take_figures(self, name: str) -> None:
        """A shard as an operator leaves it that does not count its writes."""
        shard = self.configmaps[name]
        meta = msgspec.structs.replace(shard.metadata, annotations=None)
        self.configmaps[name] = newer(WireConfigMap(meta, shard.data), self._next())

    def take_labels(self, name: str) -> None:
        """Somebody removes the labels of a shard."""
        shard = self.configmaps[name]
        self.configmaps[name] = newer(WireConfigMap(_labelled(shard.metadata, {}), shard.data), self._next())
        self._note()

    def take_name(self, name: str) -> None:
        """Somebody makes a ConfigMap of the name of a shard."""
        body = {"metadata": {"name": name}, "data": {"theirs": "x"}}
        self.create(CONFIGMAPS, body, WireConfigMap)

    def edit(self, **spec: Any) -> None:
        """Somebody edits the task; `template=True` stands for the next template, -1 for the one before."""
        if step := spec.pop("template", False):
            self.template_number = max(self.template_number + int(step), 0)
            spec["template"] = self._template()
        self._spec.update(spec)
        self.generation += 1
        self.task_version = self._next()
        self._note()

    def edit_raw(self, **spec: Any) -> dict[str, Any]:
        """As edit(), with what may not be readable. Returns what stood there."""
        before = {name: self._spec[name] for name in spec}
        self._spec.update(spec)
        self.generation += 1
        self.task_version = self._next()
        return before

    def annotate(self, key: str, value: str) -> None:
        self.annotations = {**self.annotations, key: value}
        self.task_version = self._next()
        self._note()

    # ---------------------------------------------------------------- what it knows

    def record(self, wire: Any) -> Any:
        """What an operator reads of a Node or Pod, worked out once for each: what was handed out never
        changes."""
        version = wire.metadata.resource_version
        known = self._records.get(version)
        if known is None or known[0] is not wire:
            known = self._records[version] = (wire, wire.record())
        return known[1]

    @property
    def spec(self) -> Spec:
        return read_spec(msgspec.json.encode(self._spec))

    @property
    def revision(self) -> str:
        """That of the template."""
        return _revision_of(msgspec.json.encode(self._spec["template"]))

    def is_corrupt(self, node: str) -> bool:
        """Whether the node has an entry that cannot be read, and none that can."""
        texts = [shard.data[node] for shard in self.configmaps.values() if shard.data and node in shard.data]
        return bool(texts) and not any(isinstance(decoded(text), Entry) for text in texts)

    def entries(self) -> dict[str, Entry]:
        """The ledger as it stands."""
        shards = []
        for shard in self.configmaps.values():
            found = {name: decoded(text) for name, text in (shard.data or {}).items()}
            shards.append({name: entry for name, entry in found.items() if isinstance(entry, Entry)})
        return merge(shards)

    def last_needed(self, node_uid: str) -> int:
        """The last version at which the node needed a run; now, for one that is gone: nobody is harmed."""
        node = next((self.record(n) for n in self.nodes.values() if n.metadata.uid == node_uid), None)
        if node is None or self.needs_run(node, self.entries().get(node.name)):
            return self.version
        return self._needed.get(node_uid, 0)

    def needed_now(self, node_uid: str) -> None:
        """The node may need a run, by what an operator cannot know better."""
        self._needed[node_uid] = self.version

    def rerun_of(self, node: str) -> str:
        """The last time for which somebody asked for a run of the node; empty = never."""
        single = json.loads(self.annotations.get(names.RERUN_NODES, "{}"))
        return max(normalise_time(self.annotations.get(names.RERUN_AT)), normalise_time(single.get(node)))

    def needs_run(self, node: Node, entry: Entry | None) -> bool:
        """Whether the node's last record is out of date."""
        spec, tick = self.spec, 0.0
        if spec.schedule is not None:
            tick = parse_time(self.status.last_schedule_time) or 0.0
        if entry is None or entry.node_uid != node.uid:
            return spec.schedule is None or bool(tick or self.annotations.get(names.RERUN_AT))
        if entry.result == "Retry" or (tick and entry.tick != tick):
            return True
        return (
            self.rerun_of(node.name) > entry.nonce
            or ("TemplateChange" in spec.rerun_on and entry.revision != self.revision)
            or ("NodeReboot" in spec.rerun_on and entry.boot_id != node.boot_id)
        )

    # ---------------------------------------------------------------- the API

    def get(self, path: str, wanted: Any) -> Any:
        if path == self.task_path:
            meta = WireMeta(
                name=self.task_name,
                namespace=NAMESPACE,
                uid=self.task_uid,
                resource_version=str(self.task_version),
                generation=self.generation,
                annotations=self.annotations,
            )
            spec, status = (msgspec.Raw(msgspec.json.encode(part)) for part in (self._spec, self.status))
            return RawTask(meta, spec, status)
        collection, _, name = path.rpartition("/")
        found = self._collection(collection).get(name)
        if found is None:
            raise ApiError(404, "NotFound", name, path=path)
        return (
            found
            if wanted is type(found)
            else msgspec.convert({"metadata": found.metadata}, wanted, from_attributes=True)
        )

    def list_shards(self) -> tuple[list[WireConfigMap], str]:
        """Those that the labels select."""
        wanted = {names.LABEL_LEDGER, names.LABEL_TASK}
        listed = [one for one in self.configmaps.values() if wanted <= (one.metadata.labels or {}).keys()]
        return listed, str(self.version)

    def list_pods(self, selector: str) -> tuple[list[WirePod], str]:
        """Those with the labels of `name=value,name in (value,value)`."""
        asked = re.findall(r"([^,=\s]+)(?:=([^,]*)| in \(([^)]*)\))", selector)
        wanted = {name: {one} if one else set(many.split(",")) for name, one, many in asked}
        found = (
            pod
            for pod in self.pods.values()
            if all(pod.record().labels.get(name) in values for name, values in wanted.items())
        )
        return list(found), str(self.version)

    def create(self, path: str, body: Mapping[str, Any], wanted: Any) -> Any:
        if path not in (PODS, CONFIGMAPS):
            return {}  # Events
        collection, name = self._collection(path), body["metadata"]["name"]
        if name in collection:
            raise ApiError(409, "AlreadyExists", name, path=path)
        self._note()  # until now; the write may say otherwise
        made = msgspec.json.decode(msgspec.json.encode(body), type=WirePod if path == PODS else WireConfigMap)
        made.metadata.uid = f"uid-{next(self._serial)}"
        made.metadata.creation_timestamp = format_time(self.clock.now)
        made = newer(made, self._next())
        if isinstance(made, WirePod):
            for judge in self.on_create:
                judge(made.record())
            self.pod_log.append(("put", self.version, made))
        collection[name] = made
        self.writes += 1
        self.shard_writes += path == CONFIGMAPS
        self._note()
        return made if isinstance(made, WirePod) else msgspec.convert(made, wanted, from_attributes=True)

    def patch(self, path: str, body: Mapping[str, Any], wanted: Any) -> Any:
        if path == f"{self.task_path}/status":
            if body["metadata"]["resourceVersion"] != str(self.task_version):
                raise ApiError(409, "Conflict", "the task has changed", path=path)
            self.status, self.task_version = body["status"], self._next()
            self.writes += 1
            self._note()  # a tick may have been stored
            return {}
        name = path.rpartition("/")[2]
        shard = self.configmaps.get(name)
        if shard is None:
            raise ApiError(404, "NotFound", name, path=path)
        meta = body["metadata"]
        if (meta["uid"], meta["resourceVersion"]) != (shard.metadata.uid, shard.metadata.resource_version):
            raise ApiError(409, "Conflict", "the shard has changed", path=path)
        self._note()  # until now; the write may say otherwise
        merged = {**(shard.data or {}), **body["data"]}
        data = {key: value for key, value in merged.items() if value is not None}
        labels = {**(shard.metadata.labels or {}), **meta.get("labels", {})}
        marks = {**(shard.metadata.annotations or {}), **meta.get("annotations", {})}
        changed = msgspec.structs.replace(shard.metadata, labels=labels, annotations=marks)
        self.configmaps[name] = newer(WireConfigMap(changed, data), self._next())
        self.writes += 1
        self.shard_writes += 1
        self._note()
        return msgspec.convert(self.configmaps[name], wanted, from_attributes=True)

    def delete(self, path: str, body: Mapping[str, Any]) -> WirePod:
        name = path.rpartition("/")[2]
        pod = self.pods.get(name)
        if pod is None:
            raise ApiError(404, "NotFound", name, path=path)
        wanted = body["preconditions"]
        if wanted["uid"] != pod.metadata.uid:
            raise ApiError(409, "Conflict", "the UID in the precondition differs", path=path)
        if wanted.get("resourceVersion", pod.metadata.resource_version) != pod.metadata.resource_version:
            raise ApiError(409, "Conflict", "the ResourceVersion in the precondition differs", path=path)
        for judge in self.on_delete:
            judge(self.record(pod))
        self.writes += 1
        return self.delete_pod(name)

    # ---------------------------------------------------------------- inside

    def _collection(self, path: str) -> dict[str, Any]:
        return {PODS: self.pods, CONFIGMAPS: self.configmaps, "/api/v1/nodes": self.nodes}[path]

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _template(self) -> dict[str, Any]:
        image = f"busybox:{self.template_number}"
        return {"spec": {"containers": [{"name": "main", "image": image}]}}

    def _set_node(self, node: WireNode, *, boot_id: str, ready: bool) -> None:
        before = self.record(node)
        since = before.ready_since
        if (before.ready, before.boot_id) != (ready, boot_id):  # a kubelet that is not heard of tells nothing
            since = self.time_of(node.metadata.name) if ready else self.clock.now
        status = {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "lastTransitionTime": format_time(since),
                },
                *(
                    {"type": kind, "status": state, "lastTransitionTime": format_time(at)}
                    for kind, (state, at) in self.conditions.get(node.metadata.uid, {}).items()
                ),
            ],
            "nodeInfo": {"bootID": boot_id},
        }
        body = {"metadata": node.metadata, "status": status}
        changed = newer(msgspec.convert(body, WireNode, from_attributes=True), self._next())
        self.nodes[node.metadata.name] = changed
        self.node_log.append(("put", self.version, changed))
        self._note()

    def _set_pod(self, pod: WirePod, node: str, phase: str, state: dict[str, Any] | None = None) -> None:
        if phase in ("Succeeded", "Failed"):
            end = {"exitCode": int(phase == "Failed"), "finishedAt": format_time(self.time_of(node))}
            state = {"terminated": end}
        told = {"containerStatuses": [{"name": "main", "state": state}]} if state else {}
        self._put_pod(pod, node, {"phase": phase, **told})

    def _put_pod(self, pod: WirePod, node: str, status: dict[str, Any]) -> None:
        status = {"startTime": pod.status.start_time or format_time(self.time_of(node)), **status}
        body = {"metadata": pod.metadata, "spec": {"nodeName": node}, "status": status}
        changed = newer(msgspec.convert(body, WirePod, from_attributes=True), self._next())
        self.pods[pod.metadata.name] = changed
        self.pod_log.append(("put", self.version, changed))
        self._note()

    def _note(self) -> None:
        entries = self.entries()
        self.recorded.update(entry.pod_uid for entry in entries.values())
        # An entry speaks for all up to its seq that had ended when it was written, though it may be broken
        # while a delete is under way. What ends later it cannot know. But once an entry stands in place of a
        # broken one, a Pod of an earlier run tells nothing, whenever it ends.
        new = {e.node_uid: e for e in entries.values() if self._standing.get(e.node_uid) != e}
        for pod in (self.record(wire) for wire in self.pods.values()) if new else ():
            said = new.get(pod.node_uid)
            if said is not None and pod.seq <= said.ended and (pod.terminal or _is_followed(pod, said)):
                self.recorded.add(pod.uid)
        self._standing.update((entry.node_uid, entry) for entry in entries.values())
        for entry in entries.values():
            if is_open(entry):
                intended = (entry.node_uid, entry.run_key, entry.seq)
                self.intended.add(intended)
                if entry.before is not None and entry.before.revision != entry.revision:
                    self.renewed.add(intended)
        for name, node in self.nodes.items():
            record = self.record(node)
            if self.needs_run(record, entries.get(name)):
                self._needed[record.uid] = self.version


@lru_cache(maxsize=64)
def _revision_of(template: bytes) -> str:
    return revision_of(Spec(template=msgspec.json.decode(template)))


def _is_followed(pod: Pod, entry: Entry) -> bool:
    """Whether the entry stands in place of one that could not be read, and is of a later run than the Pod."""
    in_place = bool(entry.pod_seq) or was_unreadable(entry)
    return in_place and pod.annotations[names.POD_RUN_KEY] != entry.run_key


def _labelled(meta: WireMeta, labels: dict[str, str]) -> WireMeta:
    return msgspec.structs.replace(meta, labels=labels)


def newer(item: Any, version: int) -> Any:
    """A copy with this resourceVersion: what was handed out or logged before must not change."""
    meta = msgspec.structs.replace(item.metadata, resource_version=str(version))
    return msgspec.structs.replace(item, metadata=meta)
