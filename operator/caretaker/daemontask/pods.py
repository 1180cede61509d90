"""The Pod of a run: its name, its body, the revision of its template.

Pure. Input: the template and the key of one run; output: the body of one POST.
"""

import re
from typing import Any, Final

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import FormerRevision, Spec, Status
from caretaker.api.hashing import digest, h10
from caretaker.api.objects import Pod, WireMeta
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask.bulk import cost_of
from caretaker.daemontask.node_eligibility import default_tolerations
from caretaker.daemontask.normal import normalised

# A pod of ours must not keep the cluster autoscaler from removing its node.
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
NEVER_SEEN: Final = Status()
_NAME_PART: Final = 40
_SEQ_PART: Final = 11


class Start(msgspec.Struct, frozen=True, gc=False):
    """One run to create: everything that differs between the Pods of a task."""

    node_name: str
    node_uid: str
    seq: int
    attempt: int
    run_key: str
    nonce: str
    boot_id: str
    trigger: str
    tick: int = 0  # of the schedule, in seconds since the epoch; 0 = of none


def revision_of(spec: Spec, status: Status = NEVER_SEEN) -> str:
    """The template's revision. Neither knobs outside `template` nor meaningless parts of it change it."""
    return revisions_of(spec, status)[0]


def revisions_of(
    spec: Spec, status: Status, hashes: tuple[str, str] | None = None
) -> tuple[str, FormerRevision | None]:
    """(the revision, the record in status of one that an older version gave). Older versions hashed the
    template as it was written: its records, Pods and run keys have that name, and it keeps it. `hashes`:
    hashes_of() the template, if they are known."""
    (meant, written), former = hashes or hashes_of(spec.template), status.former_revision
    if former is not None and former.template == meant:
        return former.revision, former
    if status.current_revision == written != meant:
        return written, FormerRevision(meant, written)
    return meant, former


def hashes_of(template: dict[str, Any]) -> tuple[str, str]:
    """(hash of the normalised template, hash of the template as written). Takes up to 40 ms."""
    return _hash(normalised(template)), _hash(template)


def _hash(template: dict[str, Any]) -> str:
    return h10(msgspec.json.encode(template, order="sorted").decode())


def run_key(task_uid: str, revision: str, node_uid: str, nonce: str, boot_id: str, tick: int = 0) -> str:
    """The key of a run; boot_id is empty unless reboots trigger runs, tick 0 unless a schedule does."""
    return h10(task_uid, revision, node_uid, nonce, boot_id, *([str(tick)] if tick else ()))


def tick_of(pod: Pod) -> int:
    """The tick that a run was started for; 0 for one without."""
    return int(parse_time(pod.annotations.get(names.POD_SCHEDULED_AT)) or 0)


def pod_name(task: str, task_uid: str, node_uid: str, seq: int) -> str:
    """`<task, cut to 40 or less, dots to dashes>-<h10(task UID, node UID)>-<seq>`, at most 63 characters.

    Any second creator for the node arrives at the same name, even with another run key.
    """
    most = _NAME_PART - max(len(str(seq)) - _SEQ_PART, 0)
    return f"{task[:most].replace('.', '-').rstrip('-')}-{h10(task_uid, node_uid)}-{seq}"


def owner_reference(task: WireMeta) -> dict[str, Any]:
    """The owner reference, for the garbage collector. It blocks no deletion, so no right on finalizers of the
    task is needed."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "DaemonTask",
        "name": task.name,
        "uid": task.uid,
        "controller": True,
    }


def build(task: WireMeta, spec: Spec, revision: str, start: Start) -> dict[str, Any]:
    """The body of the POST that starts this run."""
    return _body(task, spec, revision, start, _pod_spec(spec, start.node_name, start.run_key, start.attempt))


class PodEncoder:
    """Makes the bodies of build() for many runs: the parts that all runs share are encoded once."""

    def __init__(self, task: WireMeta, spec: Spec, revision: str) -> None:
        self._task, self._spec, self._revision = task, spec, revision
        # A placeholder that occurs nowhere else: no template contains its own hash.
        mark = digest(msgspec.json.encode(spec.template).decode()).hex()
        encoded = msgspec.json.encode(_pod_spec(spec, f"{mark}0", f"{mark}1", f"{mark}2"))
        self._parts = re.split(rf"{mark}([012])".encode(), encoded)
        # Bytes of a Pod as it is sent, about.
        self.size = len(encoded) + len(msgspec.json.encode(spec.template.get("metadata")))

    def body(self, start: Start) -> dict[str, Any]:
        """The same as build(), with the Pod's spec encoded."""
        values = [
            msgspec.json.encode(text)[1:-1] for text in (start.node_name, start.run_key, str(start.attempt))
        ]
        parts = list(self._parts)
        parts[1::2] = [values[int(place)] for place in parts[1::2]]
        return _body(self._task, self._spec, self._revision, start, msgspec.Raw(b"".join(parts)))


def pod_cost(task: WireMeta, spec: Spec, revision: str) -> int:
    """The bytes that a Pod counts: see cost_of()."""
    return cost_of(PodEncoder(task, spec, revision).size, spec.template)


def _pod_spec(spec: Spec, node_name: str, run_key: str, attempt: int | str) -> dict[str, Any]:
    pod_spec: dict[str, Any] = dict(spec.template.get("spec") or {})
    pod_spec["restartPolicy"] = pod_spec.get("restartPolicy") or "Never"
    if spec.active_deadline_seconds is not None and pod_spec.get("activeDeadlineSeconds") is None:
        pod_spec["activeDeadlineSeconds"] = spec.active_deadline_seconds
    pod_spec["affinity"] = _pin(pod_spec.get("affinity") or {}, node_name)
    pod_spec["tolerations"] = [*(pod_spec.get("tolerations") or ()), *default_tolerations(pod_spec)]
    for group in ("initContainers", "containers"):
        if pod_spec.get(group):
            pod_spec[group] = [_with_env(c, run_key, attempt) for c in pod_spec[group]]
    return pod_spec


def _body(
    task: WireMeta, spec: Spec, revision: str, start: Start, pod_spec: dict[str, Any] | msgspec.Raw
) -> dict[str, Any]:
    template_meta: dict[str, Any] = spec.template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(task.name, task.uid, start.node_uid, start.seq),
            "namespace": task.namespace,
            "labels": {
                **(template_meta.get("labels") or {}),
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_TASK: task.name,
                names.LABEL_NODE_HASH: h10(start.node_name),
                names.LABEL_REVISION: revision,
            },
            "annotations": {
                SAFE_TO_EVICT: "true",
                **(template_meta.get("annotations") or {}),
                names.POD_NODE_NAME: start.node_name,
                names.POD_NODE_UID: start.node_uid,
                names.POD_RUN_KEY: start.run_key,
                names.POD_NONCE: start.nonce,
                names.POD_BOOT_ID: start.boot_id,
                names.POD_TRIGGER: start.trigger,
                names.POD_ATTEMPT: str(start.attempt),
                names.POD_SEQ: str(start.seq),
                **({names.POD_SCHEDULED_AT: format_time(start.tick)} if start.tick else {}),
            },
            "ownerReferences": [owner_reference(task)],
        },
        "spec": pod_spec,
    }


def _pin(affinity: dict[str, Any], node_name: str) -> dict[str, Any]:
    """The template's affinity, narrowed to one node by name, as DaemonSet pods are.

    A label cannot say it: hostname labels may differ from the node's name, repeat or be absent.
    """
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    field = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    wanted: list[dict[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    # matchFields takes one requirement on metadata.name; the planner has already checked the template's.
    terms = [{**term, "matchFields": [field]} for term in wanted if term or not required]
    # One term is enough, and a template that names its nodes has one for each: all the same now.
    if any(not term.get("matchExpressions") for term in terms):
        terms = [{"matchFields": [field]}]
    return {
        **affinity,
        "nodeAffinity": {
            **node_affinity,
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        },
    }


def _with_env(container: dict[str, Any], run_key: str, attempt: int | str) -> dict[str, Any]:
    own = container.get("env") or []
    taken = {variable.get("name") for variable in own}
    ours: list[dict[str, Any]] = [
        {"name": names.ENV_NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": names.ENV_RUN_KEY, "value": run_key},
        {"name": names.ENV_ATTEMPT, "value": str(attempt)},
    ]
    # Ours come first, so that the template's variables may refer to them.
    return {**container, "env": [*(v for v in ours if v["name"] not in taken), *own]}
