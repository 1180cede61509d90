"""The Pod of a run: its name, its body, the revision of its template.

Pure. Input: the template and the key of one run; output: the body of one POST.

The revision is that of a template without meaningless parts, as the API server would store it. Parts that
tools add and take away (nulls, empty objects and lists, zeros, defaults that are spelt out, other words for a
quantity) are removed. Parts that may mean something stay, and so do unknown ones. Equal results make equal
Pods.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import FormerRevision, Spec, Status, gate_of
from caretaker.api.hashing import digest, h10
from caretaker.api.objects import Pod, WireMeta
from caretaker.api.podtypes import STRUCTS
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask.bulk import cost_of
from caretaker.daemontask.node_eligibility import default_tolerations
from caretaker.daemontask.referenced_data import template_part

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
    """(the revision of the template, the record in status of one that an older version gave). Older versions
    hashed the template as it was written: its records, Pods and run keys have that name, and it keeps it.
    `hashes`: hashes_of() the template, if they are known."""
    (meant, written), former = hashes or hashes_of(spec.template), status.former_revision
    if former is not None and former.template == meant:
        return former.revision, former
    if template_part(status.current_revision) == written != meant:
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


def owner_reference(task: str, task_uid: str) -> dict[str, Any]:
    """The owner reference, for the garbage collector. It blocks no deletion, so no right on finalizers of the
    task is needed."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "DaemonTask",
        "name": task,
        "uid": task_uid,
        "controller": True,
    }


def build(task: WireMeta, spec: Spec, revision: str, start: Start) -> dict[str, Any]:
    """The body of the POST that starts this run."""
    pod_spec = _pod_spec(spec, gate_of(task, spec), start.node_name, start.run_key, start.attempt)
    return _body(task, spec, revision, start, pod_spec)


class PodEncoder:
    """Makes the bodies of build() for many runs: the parts that all runs share are encoded once."""

    def __init__(self, task: WireMeta, spec: Spec, revision: str) -> None:
        self._task, self._spec, self._revision = task, spec, revision
        # A placeholder that occurs nowhere else: no template contains its own hash.
        mark = digest(msgspec.json.encode(spec.template).decode()).hex()
        of_gate = gate_of(task, spec)
        encoded = msgspec.json.encode(_pod_spec(spec, of_gate, f"{mark}0", f"{mark}1", f"{mark}2"))
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


def _pod_spec(spec: Spec, gate: str, node_name: str, run_key: str, attempt: int | str) -> dict[str, Any]:
    pod_spec: dict[str, Any] = dict(spec.template.get("spec") or {})
    pod_spec["restartPolicy"] = pod_spec.get("restartPolicy") or "Never"
    if spec.active_deadline_seconds is not None and pod_spec.get("activeDeadlineSeconds") is None:
        pod_spec["activeDeadlineSeconds"] = spec.active_deadline_seconds
    pod_spec["affinity"] = _pin(pod_spec.get("affinity") or {}, node_name)
    ours = default_tolerations(pod_spec, gate, drains=spec.drain is not None)
    pod_spec["tolerations"] = [*(pod_spec.get("tolerations") or ()), *ours]
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
                **({names.POD_EXCLUSIVE: spec.exclusive.group} if spec.exclusive is not None else {}),
                **({names.POD_SCHEDULED_AT: format_time(start.tick)} if start.tick else {}),
            },
            "ownerReferences": [owner_reference(task.name, task.uid)],
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


# ---------------------------------------------------------------- the template of a revision

# Pointers whose empty object means nothing; for pointers Go distinguishes an empty value from none.
_EMPTY: Final = frozenset(
    {
        ("Affinity", "nodeAffinity"),
        ("Affinity", "podAffinity"),
        ("Affinity", "podAntiAffinity"),
        ("Container", "lifecycle"),
        ("Container", "securityContext"),
        ("PodSpec", "affinity"),
        ("PodSpec", "dnsConfig"),
        ("PodSpec", "securityContext"),
        ("SecurityContext", "capabilities"),
    }
)
# Kubernetes' defaults (pkg/apis/core/v1/defaults.go) that depend on nothing else. A v1 default never changes.
_DEFAULTS: Final[Mapping[tuple[str, str], Any]] = {
    ("ConfigMapVolumeSource", "defaultMode"): 0o644,
    ("Container", "terminationMessagePath"): "/dev/termination-log",
    ("Container", "terminationMessagePolicy"): "File",
    ("ContainerPort", "protocol"): "TCP",
    ("DownwardAPIVolumeSource", "defaultMode"): 0o644,
    ("HTTPGetAction", "path"): "/",
    ("HTTPGetAction", "scheme"): "HTTP",
    ("HostPathVolumeSource", "type"): "",
    ("ObjectFieldSelector", "apiVersion"): "v1",
    ("PodSpec", "dnsPolicy"): "ClusterFirst",
    ("PodSpec", "enableServiceLinks"): True,
    ("PodSpec", "schedulerName"): "default-scheduler",
    ("PodSpec", "terminationGracePeriodSeconds"): 30,
    ("Probe", "failureThreshold"): 3,
    ("Probe", "periodSeconds"): 10,
    ("Probe", "successThreshold"): 1,
    ("Probe", "timeoutSeconds"): 1,
    ("ProjectedVolumeSource", "defaultMode"): 0o644,
    ("SecretVolumeSource", "defaultMode"): 0o644,
    ("ServiceAccountTokenProjection", "expirationSeconds"): 3600,
}
_ZEROS: Final[Mapping[str, Any]] = {"str": "", "bool": False, "num": 0}
_QUANTITY: Final = re.compile(
    r"([+-]?)([0-9]{0,20})(?:\.([0-9]{0,20}))?(?:[eE]([+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE]?))"
)
_DECIMAL: Final = ("E", "P", "T", "G", "M", "k", "", "m", "u", "n")
_BINARY: Final = ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki", "")
_EXPONENT: Final = ("e18", "e15", "e12", "e9", "e6", "e3", "", "e-3", "e-6", "e-9")
_NANO: Final = 10**9
_SCALES: Final = {  # of a quantity of one, in 10^-9
    **{suffix: 1000 ** (9 - place) for place, suffix in enumerate(_DECIMAL)},
    **{suffix: _NANO * 1024 ** (6 - place) for place, suffix in enumerate(_BINARY)},
}
_DECIMALS: Final = tuple((mark, _SCALES[mark]) for mark in _DECIMAL)
_BINARIES: Final = tuple((mark, _SCALES[mark]) for mark in _BINARY)
_EXPONENTS: Final = tuple(zip(_EXPONENT, (scale for _, scale in _DECIMALS), strict=True))
# A map with more quantities is not normalised: it would take too long.
_QUANTITIES: Final = 32


def normalised(template: dict[str, Any]) -> dict[str, Any]:
    """The template's meaning, for its revision alone. It must not be used for the Pod itself."""
    return _struct("PodTemplateSpec", template)


def _struct(name: str, found: dict[str, Any]) -> dict[str, Any]:
    fields, kept = STRUCTS[name], {}
    for key, value in found.items():
        code = fields.get(key)
        if code is None:
            kept[key] = value  # of a newer Kubernetes, or a slip
        elif value is not None:
            meant = _meant(code, value)
            if not _says_nothing(name, key, code, meant):
                kept[key] = meant
    return kept


def _says_nothing(name: str, key: str, code: str, value: Any) -> bool:
    place = (name, key)
    if place in _DEFAULTS and _same(value, _DEFAULTS[place]):
        return True
    if value or place == ("PodSpec", "overhead"):
        return False  # the API server's admission refuses an empty overhead, too
    if isinstance(value, dict | list):
        is_of_type = isinstance(value, list) == code.startswith("[]")
        return (not code.startswith("*") and is_of_type) or place in _EMPTY
    return code in _ZEROS and _same(value, _ZEROS[code])


def _same(value: Any, other: Any) -> bool:
    """Go takes neither false for 0 nor 1 for true."""
    return type(value) is type(other) and bool(value == other)


def _meant(code: str, value: Any) -> Any:
    """The value of a field or of an item, which stands."""
    code = code.removeprefix("*")
    if code.startswith("[]") and isinstance(value, list):
        code = code[2:].removeprefix("*")
        if code in STRUCTS:  # a template may have 90,000 empty ones
            return [_struct(code, item) if item and isinstance(item, dict) else item for item in value]
        return value if code in _ZEROS else [_meant(code, item) for item in value]
    if code.startswith("{}") and isinstance(value, dict):
        if len(value) > _QUANTITIES:
            return value
        code = code[2:]
        return {key: _meant(code, item) for key, item in value.items()}
    if code in STRUCTS and isinstance(value, dict):
        return _struct(code, value)
    return _quantity(value) if code == "quantity" else value


def _quantity(value: Any) -> Any:
    """`1` for 1, `1000m` and `1.0`. A value that is no quantity, or none that is stored exactly, stays as it
    is."""
    found = _QUANTITY.fullmatch(str(value)) if type(value) in (str, int) else None
    if found is None or not (found[2] or found[3]):
        return value
    sign, whole, part, exponent, suffix = found.groups(default="")
    scale = _SCALES[suffix] if not exponent else _NANO * 10 ** max(int(exponent), 0)
    amount, left = divmod(int(whole + part) * scale, 10 ** (len(part) + max(-int(exponent or 0), 0)))
    if left or amount >= 2**63 * _NANO:
        return value
    if not amount:
        return "0"
    marks = _EXPONENTS if exponent else _DECIMALS
    if suffix.endswith("i") and amount >= 1024 * _NANO:
        marks = _BINARIES
    for mark, scale in marks:
        if not amount % scale:
            return f"{sign.replace('+', '')}{amount // scale}{mark}"
    return value
