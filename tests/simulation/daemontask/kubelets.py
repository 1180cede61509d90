"""A cluster in memory whose machines are real ones: deletions take time, kubelets have clocks of their own,
reject Pods, and an admission policy may refuse the Pods of one node or all of them.

Like cluster.py it holds no opinion on what an operator should do.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from caretaker.api import names
from caretaker.api.objects import CRASH_LOOP, Pod, WireNode, WirePod
from caretaker.api.times import format_time
from caretaker.kube.errors import ApiError
from simulation.daemontask.cluster import PODS, Clock, SimCluster, newer

GRACE: Final = 30
BEGIN: Final = 1_800_000_000.0  # in 2027: a kubelet may be ten years behind

Phase = Literal["Succeeded", "Failed"]


class SlowCluster(SimCluster):
    """`refused`: nodes whose Pods an admission policy refuses (`closed`: everybody's); `rejecting`: nodes
    whose kubelets reject them; `bad`: revisions whose runs fail; `kept`: names of Pods that a finalizer
    keeps."""

    def __init__(self, clock: Clock, **spec: Any) -> None:
        self.refused: set[str] = set()
        self.closed = False
        self.rejecting: set[str] = set()
        self.bad: set[str] = set()
        self.kept: set[str] = set()
        # Node UID -> since when it is not Ready, in truth, and the version that told it.
        self.unready: dict[str, tuple[float, int]] = {}
        self.on_run: list[Callable[[Pod], None]] = []  # its containers are created
        self.on_end: list[Callable[[Pod], None]] = []
        self.on_refusal: list[Callable[[str], None]] = []  # with the node's name
        self.on_change: list[Callable[[], None]] = []
        clock.now = max(clock.now, BEGIN)
        super().__init__(clock, **spec)

    # ---------------------------------------------------------------- nodes and kubelets

    def outcome(self, pod: Pod, wish: Phase) -> Phase:
        """How a run ends: a bad template's never well."""
        return "Failed" if pod.labels[names.LABEL_REVISION] in self.bad else wish

    def run(self, name: str, wish: Phase) -> None:
        """The scheduler, and the kubelet from the beginning of the Pod to its end."""
        pod = self.record(self.pods[name])
        if pod.deletion:
            self.let_go(name)
        elif pod.annotations[names.POD_NODE_NAME] in self.rejecting and not pod.node_name:
            self.reject(name)
        else:
            self.bind(name)
            self.pull(name)
            self.finish(name, self.outcome(pod, wish))

    def pull(self, name: str) -> None:
        """The image of a Pod that was stuck is there."""
        pod = self.pods[name]
        if pod.spec.node_name and pod.status.phase == "Pending":
            self._set_pod(pod, pod.spec.node_name, "Running")

    def reject(self, name: str, reason: str = "OutOfcpu") -> None:
        """The kubelet's admission refuses the Pod: no container of it is ever created."""
        pod = self.pods[name]
        target = pod.record().annotations[names.POD_NODE_NAME]
        if pod.spec.node_name or pod.metadata.deletion_timestamp or target not in self.nodes:
            return
        status = {"phase": "Failed", "reason": reason, "message": "Pod was rejected by the kubelet"}
        self._put_pod(pod, target, status)
        self._tell(self.pods[name], self.on_end)

    def crash(self, name: str, restarts: int) -> None:
        """Its container has failed once more than it was restarted."""
        self.bind(name)
        pod = self.pods[name]
        if pod.status.phase == "Running":
            waiting = {"name": "main", "restartCount": restarts, "state": {"waiting": {"reason": CRASH_LOOP}}}
            told = {"phase": "Running", "containerStatuses": [waiting]}
            self._put_pod(pod, pod.spec.node_name, told)

    def let_go(self, name: str) -> None:
        """The kubelet of a Pod that is being deleted ends it; then, another time, it is gone."""
        pod = self.pods[name]
        if pod.metadata.deletion_timestamp is None:
            return
        if pod.status.phase == "Running":
            self.finish(name, "Failed")
        elif name not in self.kept:
            self.drop_pod(name)

    def delete_pod(self, name: str) -> WirePod:
        """As the API server does: what no node has, or what has ended, goes at once, unless a finalizer
        keeps it; the kubelet has to let go of the rest."""
        pod = self.pods[name]
        bound = bool(pod.spec.node_name) and not self.record(pod).terminal
        if name not in self.kept and not bound:
            return self.drop_pod(name)
        if pod.metadata.deletion_timestamp is not None:
            return pod
        grace = GRACE if bound else 0
        meta = msgspec.structs.replace(
            pod.metadata,
            deletion_timestamp=format_time(self.clock.now + grace),
            deletion_grace_period_seconds=grace,
        )
        return self._put(msgspec.structs.replace(pod, metadata=meta))

    # ---------------------------------------------------------------- people

    def refuse(self, node: str, *, refused: bool = True) -> None:
        (self.refused.add if refused else self.refused.discard)(node)

    def new_template(self, *, bad: bool) -> None:
        self.edit(template=True)
        if bad:
            self.bad.add(self.revision)
            self._note()

    # ---------------------------------------------------------------- the API

    def create(self, path: str, body: Mapping[str, Any], wanted: Any) -> Any:
        if path == PODS:
            node = body["metadata"]["annotations"][names.POD_NODE_NAME]
            if self.closed or node in self.refused:
                for judge in self.on_refusal:
                    judge(node)
                words = f"ValidatingAdmissionPolicy 'deny' denied request: no Pods on {node}"
                raise ApiError(403, "Forbidden", words, verb="POST", path=path)
        return super().create(path, body, wanted)

    # ---------------------------------------------------------------- inside

    def _put(self, pod: WirePod) -> WirePod:
        changed: WirePod = newer(pod, self._next())
        self.pods[pod.metadata.name] = changed
        self.pod_log.append(("put", self.version, changed))
        self._note()
        return changed

    def _set_pod(self, pod: WirePod, node: str, phase: str, state: dict[str, Any] | None = None) -> None:
        super()._set_pod(pod, node, phase, state)
        changed = self.pods[pod.metadata.name]
        if phase == "Running":
            self._tell(changed, self.on_run)
        elif phase in ("Succeeded", "Failed"):
            self._tell(changed, self.on_end)

    def _tell(self, pod: WirePod, judges: list[Callable[[Pod], None]]) -> None:
        for judge in judges:
            judge(self.record(pod))

    def _set_node(self, node: WireNode, *, boot_id: str, ready: bool) -> None:
        if ready:
            self.unready.pop(node.metadata.uid, None)
        else:
            self.unready.setdefault(node.metadata.uid, (self.clock.now, self.version + 1))
        super()._set_node(node, boot_id=boot_id, ready=ready)

    def _note(self) -> None:
        super()._note()
        for judge in self.on_change:
            judge()
