"""The API server and the cluster behind it: policies, Nodes with all that was ever true of them, and the
DaemonTask of the probe with whoever runs it.

Node conditions carry the times of foreign clocks. A probe measures the truth at one moment and is read at a
later one.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from caretaker.api import names
from caretaker.api.imds import Status
from caretaker.api.objects import Node, WireMeta
from caretaker.api.times import format_micros, format_time, normalise_time
from caretaker.imds.resource import RawPolicy
from caretaker.kube.errors import ApiError
from simulation.imds.clock import Clock, Loop
from simulation.imds.ec2 import Instance
from simulation.imds.truth import Asked

Watcher = Callable[[Node | None, Node | None], None]
DOWN: Final = ApiError(503, "ServiceUnavailable")


class Measured(msgspec.Struct):
    """A probe's result with its true time; `shown`: when the operator can read it."""

    at: float
    shown: float
    verdict: str
    needed: int
    open: bool  # IMDSv1
    instance: str
    asked: float = 0.0
    lost: float = math.inf  # when its ledger was deleted


class Cluster:
    """`instance(node)` is the truth that a probe meets."""

    def __init__(self, clock: Clock, loop: Loop) -> None:
        self._clock, self._loop = clock, loop
        self._versions = 0
        self.policies: dict[str, RawPolicy] = {}
        self._asked: dict[str, tuple[msgspec.Raw, Asked]] = {}  # as decoded
        self.nodes: dict[str, Node] = {}
        self.labels: dict[str, dict[str, str]] = {}  # of all that there ever were
        self.ready: dict[str, list[tuple[float, bool]]] = defaultdict(list)  # by node, since when
        self.joined: dict[str, float] = {}  # node -> when
        self.removed: dict[str, float] = {}
        self.shared: dict[str, float] = {}  # instance -> until when several Nodes named it; inf = they do
        self.skews: dict[str, float] = {}  # of the clock in a node's conditions
        self.watchers: list[Watcher] = []
        self.instance: Callable[[str], Instance]  # of a Node
        self.used: Callable[[str, bool], None] = lambda *_: None  # the probe's task; whether it was refused
        self.tasks: dict[str, dict[str, Any]] = {}
        self.ledgers: dict[str, dict[str, dict[str, Any]]] = {}  # task's uid -> node -> entry
        self.measured: dict[str, list[Measured]] = defaultdict(list)
        self.calm()

    def calm(self) -> None:
        """Probes are quick, and a Pod is one hop from IMDS; the operator may use their task."""
        self.refused: dict[str, ApiError] = {}  # by verb on the task, or "configmaps"
        self.probe_takes, self.probe_told = 5.0, 0.0  # seconds until it measures, and from there
        self.needs = 1  # hops from a Pod
        self.needs_of: dict[str, int] = {}  # nodes from which it is farther

    # ------------------------------------------------------------ Nodes

    def put_node(self, node: Node) -> None:
        """As the API server has it; a change of readiness is stamped by a foreign clock."""
        before, now = self.nodes.get(node.name), self._clock.now
        if before is None or before.ready != node.ready:
            self.ready[node.name].append((now, node.ready))
            since = int(1_800_000_000 + now + self.skews.get(node.name, 0.0))
            node = msgspec.structs.replace(node, ready_since=float(since))
        self.nodes[node.name] = node
        self.labels[node.name] = node.labels
        for changed in list(self.watchers):
            changed(before, node)
        if before is None:
            self.joined[node.name] = now
            self._share(node.provider_id)
            for task in list(self.tasks):
                self._run_probes(task)

    def set_ready(self, name: str, ready: bool) -> None:
        """If the node is there."""
        if name in self.nodes:
            self.put_node(msgspec.structs.replace(self.nodes[name], ready=ready))

    def flap(self, name: str) -> None:
        """NotReady for a moment that no watch shows: only lastTransitionTime changes."""
        node, now = self.nodes[name], self._clock.now
        if node.ready:
            self.ready[name] += [(now, False), (now, True)]
            since = max(node.ready_since + 1, int(1_800_000_000 + now + self.skews.get(name, 0.0)))
            self.nodes[name] = msgspec.structs.replace(node, ready_since=float(since))
            for changed in list(self.watchers):
                changed(node, self.nodes[name])

    def remove_node(self, name: str) -> None:
        """It is deleted."""
        if name in self.nodes:
            self.removed[name] = self._clock.now
            node = self.nodes.pop(name)
            self._share(node.provider_id)
            for changed in list(self.watchers):
                changed(node, None)

    def named(self, instance: str) -> list[str]:
        """The Nodes that name an instance."""
        return [name for name, one in self.nodes.items() if one.provider_id.endswith(f"/{instance}")]

    def _share(self, provider_id: str) -> None:
        instance = provider_id.rsplit("/", 1)[-1]
        if len(self.named(instance)) > 1:
            self.shared[instance] = math.inf
        elif instance in self.shared:
            self.shared[instance] = min(self.shared[instance], self._clock.now)

    def ready_throughout(self, name: str, since: float) -> bool:
        """Whether it was Ready from then to now, without a break."""
        log = self.ready[name]
        return bool(log) and name in self.nodes and log[-1][1] and log[-1][0] <= since

    # ------------------------------------------------------------ policies

    def asked(self) -> list[Asked]:
        """All, as their authors have written them."""
        return [self.policy(name) for name in self.policies]

    def policy(self, name: str) -> Asked:
        """One."""
        raw = self.policies[name]
        known = self._asked.get(name)
        if known is None or known[0] is not raw.spec:
            known = self._asked[name] = raw.spec, Asked(name, raw.metadata.uid, msgspec.json.decode(raw.spec))
        return known[1]

    def status(self, name: str) -> Status:
        """As it stands."""
        return msgspec.json.decode(self.policies[name].status, type=Status)

    def apply(self, name: str, spec: Mapping[str, Any]) -> None:
        """Create it or change what is named of its spec."""
        before = self.policies.get(name)
        whole = {**(msgspec.json.decode(before.spec) if before else {}), **spec}
        meta = before.metadata if before else WireMeta(name=name, uid=f"{name}-{self._version()}")
        if before is None or whole != msgspec.json.decode(before.spec):
            meta = msgspec.structs.replace(meta, generation=meta.generation + 1)
        status = before.status if before else msgspec.Raw(b"{}")
        self._put(name, meta, msgspec.Raw(msgspec.json.encode(whole)), status)

    def resume(self, name: str, at: float) -> None:
        """`caretaker resume`."""
        raw = self.policies[name]
        stamp = {names.RESUME_AT: format_time(at)}
        self._put(name, msgspec.structs.replace(raw.metadata, annotations=stamp), raw.spec, raw.status)

    def store(self, name: str, uid: str, version: str, status: Any) -> None:
        """The one patch of a status."""
        raw = self.policies.get(name)
        if raw is None:
            raise ApiError(404, "NotFound")
        if raw.metadata.uid != uid or raw.metadata.resource_version != version:
            raise ApiError(409, "Conflict")
        merged = _merged(msgspec.json.decode(raw.status), msgspec.json.decode(msgspec.json.encode(status)))
        self._put(name, raw.metadata, raw.spec, msgspec.Raw(msgspec.json.encode(merged)))

    def _put(self, name: str, meta: WireMeta, spec: msgspec.Raw, status: msgspec.Raw) -> None:
        meta = msgspec.structs.replace(meta, resource_version=self._version())
        self.policies[name] = RawPolicy(meta, spec, status)

    def _version(self) -> str:
        self._versions += 1
        return str(self._versions)

    # ------------------------------------------------------------ requests of the operator

    def get(self, path: str) -> Any:
        """One object."""
        name = path.rsplit("/", 1)[1]
        if "/daemontasks/" in path:
            self._refuse("get")
        found: Any = self.tasks.get(name) if "/daemontasks/" in path else self.policies.get(name)
        if found is None:
            raise ApiError(404, "NotFound")
        return msgspec.json.decode(msgspec.json.encode(found)) if isinstance(found, dict) else found

    def list(self, path: str, kind: Any) -> list[Any]:
        """All of a kind."""
        if path.endswith("/imdspolicies"):
            return list(self.policies.values())
        if path.endswith("/configmaps"):
            self._refuse("configmaps")
            shards = [
                {"metadata": {"ownerReferences": [{"uid": uid}]}, "data": self._told(ledger)}
                for uid, ledger in self.ledgers.items()
            ]
            return [msgspec.convert(one, kind) for one in shards]
        if path.endswith("/daemontasks"):
            return [msgspec.convert(one, kind) for one in self.tasks.values()]
        raise ApiError(404, "NotFound")  # Karpenter is not installed

    def write(self, verb: str, path: str, body: Any) -> None:
        """Of DaemonTasks."""
        self._refuse(verb)
        name = body["metadata"]["name"] if verb == "create" else path.rsplit("/", 1)[1]
        there = self.tasks.get(name)
        if (verb == "create") == (there is not None):
            raise ApiError(409, "AlreadyExists") if there else ApiError(404, "NotFound")
        if verb == "delete":
            self._lose(self.tasks.pop(name))
            return
        if there is not None:
            meta, given = there["metadata"], body["metadata"]
            if given.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
                raise ApiError(409, "Conflict")
            body = {**there, "spec": {**there["spec"], **body.get("spec", {})}, "metadata": {**meta, **given}}
        uid = there["metadata"]["uid"] if there is not None else f"task-{self._version()}"
        meta = {**body["metadata"], "uid": uid, "resourceVersion": self._version()}
        self.tasks[name] = msgspec.json.decode(msgspec.json.encode({**body, "metadata": meta}))
        self._run_probes(name)

    def _refuse(self, what: str) -> None:
        self.used(what, what in self.refused)
        if what in self.refused:
            raise self.refused[what]

    # ------------------------------------------------------------ the probe

    def lose_task(self) -> None:
        """It is deleted, and its ledger with it."""
        for task in self.tasks.values():
            self._lose(task)
        self.tasks.clear()

    def _lose(self, task: dict[str, Any]) -> None:
        for known in self.ledgers.pop(task["metadata"]["uid"], {}).values():
            for run in known["runs"]:
                run["found"].lost = self._clock.now

    def rerun(self, wall: float) -> None:
        """`caretaker rerun`: all nodes of the tasks once more."""
        for name, task in list(self.tasks.items()):
            terms = task["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            nodes = [
                term["matchFields"][0]["values"][0]
                for term in terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            ]
            marks = msgspec.json.encode(dict.fromkeys(nodes, format_micros(wall))).decode()
            annotations = {"annotations": {names.RERUN_NODES: marks}}
            self.write("patch", f"/daemontasks/{name}", {"metadata": annotations})

    def _told(self, ledger: Mapping[str, dict[str, Any]]) -> dict[str, str]:
        told = {}
        for node, entries in ledger.items():
            shown = [one for one in entries["runs"] if one["shown"] <= self._clock.now]
            if shown:
                told[node] = msgspec.json.encode(shown[-1]["entry"]).decode()
        return told

    def _run_probes(self, name: str) -> None:
        """Once on each node that it names, and again for each mark."""
        task = self.tasks[name]
        uid = task["metadata"]["uid"]
        ledger = self.ledgers.setdefault(uid, {})
        annotation = task["metadata"].get("annotations", {}).get(names.RERUN_NODES, "{}")
        marks = {node: normalise_time(mark) for node, mark in msgspec.json.decode(annotation).items()}
        affinity = task["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        for node in [term["matchFields"][0]["values"][0] for term in terms]:
            known = ledger.setdefault(node, {"asked": None, "runs": [], "uid": ""})
            its = self.nodes[node].uid if node in self.nodes else known["uid"]
            if its != known["uid"]:  # another Node of the name
                known["asked"], known["uid"] = None, its
            mark = marks.get(node, "")
            if known["asked"] is None or mark > known["asked"]:
                known["asked"] = mark
                run = self._run(uid, node, mark, self._clock.now)
                self._loop.at(self._clock.now + self.probe_takes, run)

    def _run(self, uid: str, name: str, mark: str, asked: float) -> Callable[[], None]:
        def run() -> None:
            node, known = self.nodes.get(name), self.ledgers.get(uid, {}).get(name)
            if known is None:
                return  # its task was deleted, and its Pod with it
            if node is None or not node.ready:  # its Pod waits
                if node is not None:
                    self._loop.at(self._clock.now + 30.0, run)
                return
            earlier = [one["entry"] for one in known["runs"] if one["entry"]["nodeUID"] == node.uid]
            if earlier and mark < earlier[-1]["nonce"]:
                return  # a node has one Pod at a time: an earlier run never ends after a later one
            found = self._measure(name)
            found.asked = asked
            entry = {
                "nodeUID": node.uid,
                "result": "Succeeded",
                "seq": len(known["runs"]) + 1,
                "finishedAt": 1_800_000_000.0 + found.at + self.skews.get(name, 0.0),
                "nonce": mark,
                "results": {
                    "verdict": found.verdict,
                    "latencyMs": 1.0,
                    "neededHops": found.needed,
                    "imdsv1": "Open" if found.open else "Closed",
                    "instanceId": found.instance,
                },
            }
            known["runs"].append({"shown": found.shown, "entry": entry, "found": found})
            self.measured[name].append(found)

        return run

    def _measure(self, name: str) -> Measured:
        one, now = self.instance(name), self._clock.now
        options = (
            one.last.options if not one.pending(now) else (one.then(one.last.at - 1e-6) or one.last).options
        )
        needed = self.needs_of.get(name, self.needs)
        verdict = "Reachable" if options["HttpPutResponseHopLimit"] >= needed else "HopLimited"
        verdict = "EndpointDisabled" if options["HttpEndpoint"] == "disabled" else verdict
        is_open = options["HttpTokens"] == "optional" and verdict != "EndpointDisabled"
        return Measured(now, now + self.probe_told, verdict, needed, is_open, one.name)


def _merged(before: Any, patch: Any) -> Any:
    """A merge patch (RFC 7396), as the API server applies it."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
