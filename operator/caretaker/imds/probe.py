"""The verification probe as a DaemonTask, and the findings in its ledger, by node.

Pure: chosen nodes -> the body of the DaemonTask `caretaker-imds-probe`; its ledger's ConfigMaps -> a finding
for each node. One task serves all policies. It runs on the chosen nodes alone, once, and again where a mark
asks for it; nothing else makes it run, so that a policy's edits cost no packets. docs/imds-probe.md describes
the probe and its verdicts.

The ledger is read as documented (docs/spec/daemontask.md): the kinds know nothing of each other's code.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from caretaker.api import names
from caretaker.api.objects import Node
from caretaker.api.times import normalise_time
from caretaker.imds.instance_ref import instance_ref_of

TASK_NAME: Final = "caretaker-imds-probe"
# As the probe writes them: its own package shares no code with this one, a test compares the two.
RESULTS: Final[tuple[dict[str, str], ...]] = (
    {"name": "verdict", "type": "Text"},
    {"name": "latencyMs", "type": "Number", "unit": "ms"},
    {"name": "neededHops", "type": "Number", "unit": "hops"},
    {"name": "imdsv1", "type": "Text"},
    {"name": "instanceId", "type": "Text"},
)
# Selects the ConfigMaps that findings() reads.
LEDGER_SELECTOR: Final = f"{names.LABEL_LEDGER},{names.LABEL_TASK}={TASK_NAME}"

EMULATED: Final = "Emulated"
# The run failed or has no result: nothing is known of the node.
UNKNOWN: Final = "Unknown"

_NOBODY: Final = 65534
_RUN_SECONDS: Final = 60  # the probe takes at most 14
_START_SECONDS: Final = 600
_KEPT_SECONDS: Final = 300  # so that its log can be read
_AT_ONCE: Final = 20
# Bytes of all terms that name nodes, and of all marks: a template may have 256 KiB, and so may annotations.
_ROOM: Final = 128 * 1024


class Finding(msgspec.Struct, frozen=True, gc=False):
    """The finding of the last probe of a node.

    verdict  of the probe, or EMULATED where another instance answered, or UNKNOWN
    at       when it ended, seconds since the epoch
    mark     the re-run that it answers, as normalise_time() writes it; "" = none was asked for
    """

    verdict: str
    at: float
    mark: str = ""
    latency_ms: float | None = None
    needed_hops: int | None = None
    imdsv1: Literal["Open", "Closed"] | None = None
    detail: str = ""  # why it is UNKNOWN, or the server that answered


class ProbeState(msgspec.Struct, frozen=True):
    """The state of the task and its ledger, by node. `marks`: the re-runs that it asks for; `problem`: why it
    could not be read, or written the last time; "" = it could; `before`: stored results that
    count in the place of findings."""

    findings: Mapping[str, Finding] = {}
    marks: Mapping[str, str] = {}
    problem: str = ""
    before: Mapping[str, Finding] = {}

    @property
    def counting(self) -> dict[str, Finding]:
        """The results that count."""
        return {**self.findings, **self.before}


def task(
    namespace: str,
    image: str,
    marks: Mapping[str, str],
    *,
    mode: Literal["IPv4", "IPv6"] = "IPv4",
    tokenless: bool = True,
) -> dict[str, Any] | None:
    """The DaemonTask that probes these nodes; None when there are none: then there should be no task.

    marks: name of each chosen node (Ready, or its Pod waits) -> when its last re-run was asked for, RFC 3339;
    "" = the first run will do. tokenless: it also asks without a token, which EC2 counts as use of IMDSv1.
    """
    if not marks:
        return None
    asked = {name: mark for name, mark in sorted(marks.items()) if mark}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "DaemonTask",
        "metadata": {
            "name": TASK_NAME,
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
            "annotations": {names.RERUN_NODES: msgspec.json.encode(asked).decode()},
        },
        "spec": {
            "rerunOn": [],
            "parallelism": _AT_ONCE,
            "backoffLimit": 1,
            # A node that cannot be probed is a finding of that node, never a reason to stop.
            "failurePolicy": {"maxFailedNodes": "100%", "action": "Continue"},
            "activeDeadlineSeconds": _RUN_SECONDS,
            "progressDeadlineSeconds": _START_SECONDS,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "results": [dict(result) for result in RESULTS],
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": TASK_NAME}},
                "spec": _pod(image, sorted(marks), mode, tokenless),
            },
        },
    }


def fitting(marks: Mapping[str, str], first: Collection[str], found: Mapping[str, Finding]) -> dict[str, str]:
    """Of these nodes and their marks (of normalise_time's form) as many as one task has room for: `first`,
    then those whose probe is waited for, the longest first; an answered probe stays in the ledger when the
    task does not name its node any more."""

    def order(node: str) -> tuple[bool, bool, str, str]:
        finding = found.get(node)
        done = finding is not None and finding.mark >= marks[node]
        return done, node not in first, "" if done else marks[node], node

    kept: dict[str, str] = {}
    left = _ROOM
    for node in sorted(marks, key=order):
        left -= len(node) + _TERM
        if left < 0:
            break
        kept[node] = marks[node]
    return kept


def needs_write(current: Any, wanted: Any) -> bool:
    """Whether the stored object lacks a field of the wanted one. Fields of the API server do not count.

    Both as JSON. Lists are compared item by item: of those here the server adds and sorts none.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(current, Mapping):
            return True
        return any(key not in current or needs_write(current[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(current, list) or len(current) != len(wanted):
            return True
        return any(needs_write(have, want) for have, want in zip(current, wanted, strict=True))
    return bool(current != wanted)


def findings(shards: Iterable[Mapping[str, str]], nodes: Mapping[str, Node]) -> dict[str, Finding]:
    """The finding of each node, by name; one that was not probed yet, or was replaced since, is left out.

    shards: the `data` of the task's ledger ConfigMaps. nodes: by name.
    """
    last: dict[str, _Entry] = {}
    for data in shards:
        for name, text in data.items():
            entry = _read(text)
            node = nodes.get(name)
            if entry is None or node is None or entry.node_uid != node.uid:
                continue
            if name not in last or entry.seq > last[name].seq:
                last[name] = entry
    return {
        name: _finding(entry, instance_ref_of(nodes[name]).instance) for name, entry in sorted(last.items())
    }


def answered(finding: Finding | None, mark: str) -> bool:
    """Whether the finding is at least as new as the re-run that was asked for by `mark`."""
    return finding is not None and finding.mark >= normalise_time(mark)


class _Entry(msgspec.Struct, rename="camel"):
    """The part of a ledger entry that is read here."""

    node_uid: str = msgspec.field(name="nodeUID")
    result: str
    seq: int
    finished_at: float = 0.0
    nonce: str = ""
    reason: str = ""
    message: str = ""
    results: dict[str, Any] = {}


class _ProbeResults(msgspec.Struct, rename="camel"):
    """The results of a probe."""

    verdict: str
    latency_ms: float | None = None
    needed_hops: int | None = None
    imdsv1: Literal["Open", "Closed"] | None = None
    instance_id: str = ""


def _read(text: str) -> _Entry | None:
    """One that cannot be read counts as not run, as for DaemonTask itself."""
    try:
        return msgspec.json.decode(text, type=_Entry)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _finding(entry: _Entry, instance: str) -> Finding:
    if entry.result != "Succeeded":
        why = ": ".join(part for part in (entry.reason, entry.message) if part)
        return Finding(UNKNOWN, entry.finished_at, entry.nonce, detail=why or "the probe failed")
    try:
        results = msgspec.convert(entry.results, _ProbeResults)
    except msgspec.ValidationError as error:
        why = f"the probe reported nothing of use: {error}"
        return Finding(UNKNOWN, entry.finished_at, entry.nonce, detail=why)
    if results.instance_id and instance and results.instance_id != instance:
        why = f"it reports instance {results.instance_id}, the node is {instance}"
        return Finding(EMULATED, entry.finished_at, entry.nonce, detail=why)
    return Finding(
        results.verdict,
        entry.finished_at,
        entry.nonce,
        results.latency_ms,
        results.needed_hops,
        results.imdsv1,
    )


def _pod(image: str, nodes: list[str], mode: str, tokenless: bool) -> dict[str, Any]:
    """In the Pod network, like those whose view it takes; without any right."""
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "affinity": {"nodeAffinity": _affinity(nodes)},
        # A taint or a cordon is no reason not to look at a node that a policy holds.
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "probe",
                "image": image,
                "command": ["python3", "-m", "caretaker_probe"],
                "env": [
                    {"name": "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "value": mode},
                    *([] if tokenless else [{"name": "CARETAKER_PROBE_IMDSV1", "value": "off"}]),
                ],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "32Mi"},
                    "limits": {"memory": "64Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
            }
        ],
    }


# Bytes by which a node's term is longer than its name; its mark takes less.
_TERM: Final = 80


def _affinity(nodes: list[str]) -> dict[str, Any]:
    """By name, since hostname labels may differ from it. A field takes one value, so it is a term a node."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in nodes
    ]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
