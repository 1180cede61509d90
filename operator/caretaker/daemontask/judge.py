"""How a finished Pod counts, and the ledger entry that says so.

Pure. Input: a terminal Pod, the entry its node has, the spec; output: the node's next entry. Rules:
batch/v1 Job's podFailurePolicy; without one, a Pod that was disrupted or deleted is not counted. Kubelet
rejections are never counted. Uncounted retries are bounded. With AtMostOnce every failure is the last: a
rejection too, since a kubelet that restarts rejects Pods that ran in the same words (k8s#105523, k8s#123859).
"""

from typing import Final, Literal

import msgspec
from msgspec.json import encode as json_encode

from caretaker.api import names
from caretaker.api.daemontask import FailureRule, OnExitCodes, PodFailurePolicy, Spec
from caretaker.api.objects import Node, Pod
from caretaker.daemontask import results
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry
from caretaker.daemontask.pods import run_key, tick_of

MAX_DISRUPTIONS: Final = 10
OWN_REBOOT_SECONDS: Final = 600.0
REBOOT_WINDOW: Final = 6 * 3600.0
MAX_REBOOT_RUNS: Final = 3
# Bytes in a ledger entry: 1,000 of them with the longest node names stay below the 1 MiB of a ConfigMap.
_MESSAGE: Final = 200
_REASON: Final = 64

NODE_REBOOT: Final = "NodeReboot"

Count = Literal["Ignore", "Count", "FailIndex", "FailJob"]


def entry_for(task_uid: str, spec: Spec, pod: Pod, node: Node, before: Entry | None, now: float) -> Entry:
    """The entry that records this terminal Pod after `before` (None, or an entry of the same node UID)."""
    marks = pod.annotations
    key, boot_id = marks.get(names.POD_RUN_KEY, ""), marks.get(names.POD_BOOT_ID, "")
    same = before if before is not None and before.run_key == key else None
    if same is not None and same.result == "Succeeded":
        # The run has succeeded; this Pod was one too many, and only the next name follows from it.
        return msgspec.structs.replace(same, seq=pod.seq)
    entry = Entry(
        node_uid=pod.node_uid,
        revision=pod.labels.get(names.LABEL_REVISION, ""),
        run_key=key,
        result="Succeeded",
        seq=pod.seq,
        pod_uid=pod.uid,
        nonce=marks.get(names.POD_NONCE, ""),
        boot_id=boot_id,
        tick=max(tick_of(pod), 0),
        attempts=same.attempts if same else 0,
        # A success has no use for them, and in a shard its results need their room.
        disruptions=same.disruptions if same and pod.phase == "Failed" else 0,
        started_at=int(pod.created),
        finished_at=int(pod.finished),
        reboot_runs=reboot_runs(marks.get(names.POD_TRIGGER, ""), int(pod.created), before, same is not None),
    )
    if pod.phase == "Failed":
        entry = _failed(entry, pod, spec)
    elif spec.results:
        values, fault = results.read(spec.results, pod)
        entry = msgspec.structs.replace(entry, results=values, fault=fault)
    return absorb_own_reboot(task_uid, spec, entry, node, now, began=pod.created)


def absorb_own_reboot(
    task_uid: str, spec: Spec, entry: Entry, node: Node, now: float, began: float | None = None
) -> Entry:
    """The entry with the node's boot ID, when the reboot since is the run's own; else as it is.

    A task that reboots its node (`reboot; exit 0`, or killed by the reboot) must not run again for that.
    When the node rebooted: the Ready condition's last change, where that is later than the run's end;
    during the run, where `began` is given (a Pod recorded only now) and Ready last changed after it; else
    now, since a quick reboot need not show in the Ready condition.
    """
    if NODE_REBOOT not in spec.rerun_on or entry.boot_absorbed:
        return entry
    if not entry.boot_id or not node.boot_id or entry.boot_id == node.boot_id:
        return entry
    ended = float(entry.finished_at)
    if node.ready_since > ended:
        rebooted = node.ready_since
    elif began is not None and node.ready_since >= began:
        rebooted = ended
    else:
        rebooted = now
    if rebooted > ended + OWN_REBOOT_SECONDS:
        return entry
    key = run_key(task_uid, entry.revision, entry.node_uid, entry.nonce, node.boot_id, entry.tick)
    return msgspec.structs.replace(entry, run_key=key, boot_id=node.boot_id, boot_absorbed=True)


def reboot_loop(entry: Entry, now: float) -> bool:
    """Whether reboots have already started as many runs as they may within the window."""
    return sum(1 for at in entry.reboot_runs if now - at < REBOOT_WINDOW) >= MAX_REBOOT_RUNS


def reboot_runs(trigger: str, at: int, before: Entry | None, same: bool) -> tuple[int, ...]:
    """When reboots started runs, with the run that this trigger started at this time. `same`: `before` is
    of that run too."""
    runs = before.reboot_runs if before is not None else ()
    if trigger == NODE_REBOOT and not same:
        runs = (*runs, at)
    return runs[-MAX_REBOOT_RUNS:]


def _failed(entry: Entry, pod: Pod, spec: Spec) -> Entry:
    count = _count(pod, spec.pod_failure_policy)
    attempts = entry.attempts + (count != "Ignore")
    disruptions = entry.disruptions + (count == "Ignore")
    reason, message, exit_code = _cause(pod)
    final = count in ("FailIndex", "FailJob") or attempts > spec.backoff_limit
    if spec.at_most_once:
        final, reason, message = True, *_known_cause(reason, message)
    elif disruptions > MAX_DISRUPTIONS:
        final, message, reason = True, f"last: {reason}. {message}", "TooManyDisruptions"
    return msgspec.structs.replace(
        entry,
        result="Failed" if final else "Retry",
        attempts=attempts,
        disruptions=disruptions,
        reason=_cut(reason, _REASON),
        message=_cut(message, _MESSAGE),
        exit_code=exit_code,
        fail_task=count == "FailJob",
    )


def _cause(pod: Pod) -> tuple[str, str, int | None]:
    """(reason, message, exit code) a person would name: the first container that failed, else the Pod's."""
    # A native sidecar is an init container that is killed once the containers have ended, for their cause.
    end = min((e for e in pod.ends if e.exit_code != 0), key=lambda e: e.init, default=None)
    if not pod.reason and _killed_by_deletion(pod):
        return "Deleted", "the Pod was deleted while it ran", end.exit_code if end else None
    if pod.reason:  # Evicted, DeadlineExceeded, OutOfcpu, NodeAffinity ...: the kubelet's own word
        return pod.reason, pod.message, end.exit_code if end else None
    if end is not None:
        return (
            end.reason or "Error",
            end.message or f"container {end.name} exited {end.exit_code}",
            end.exit_code,
        )
    disrupted = next((c for c in pod.conditions if c[0] == "DisruptionTarget" and c[1] == "True"), None)
    return (disrupted[2] if disrupted and disrupted[2] else "PodFailed"), pod.message, None


def _known_cause(reason: str, message: str) -> tuple[str, str]:
    """The kubelet's word for containers that it found no trace of, after a reboot for one, is no end."""
    if reason == "ContainerStatusUnknown":
        return OUTCOME_UNKNOWN, f"{reason}: {message}"
    return reason, message


def _cut(text: str, most: int) -> str:
    """The first characters, so many that JSON writes them in at most `most` bytes."""
    told = "".join(c if c.isprintable() else " " for c in text[:most]).strip()
    while len(json_encode(told)) > most + len('""'):
        told = told[:-1]
    return told


def _count(pod: Pod, policy: PodFailurePolicy | None) -> Count:
    if _kubelet_rejected(pod):
        return "Ignore"
    if policy is not None and policy.rules:
        return next((rule.action for rule in policy.rules if _rule_matches(rule, pod)), "Count")
    disrupted = _has_condition(pod, "DisruptionTarget", "True") or _killed_by_deletion(pod)
    return "Ignore" if disrupted else "Count"


def _killed_by_deletion(pod: Pod) -> bool:
    """Somebody deleted the Pod while it ran: the kubelet kills the containers and says Failed first. Told in
    whole seconds, so that a Pod which failed just before counts as killed too."""
    return bool(pod.deletion) and pod.finished >= pod.deletion_asked


def _kubelet_rejected(pod: Pod) -> bool:
    """The kubelet's admission refused the Pod: nothing of it ran."""
    refused = pod.reason.startswith("OutOf") or pod.reason in ("NodeAffinity", "UnexpectedAdmissionError")
    return refused and not pod.ends


def _rule_matches(rule: FailureRule, pod: Pod) -> bool:
    if rule.on_exit_codes is not None:
        return _exit_codes_match(rule.on_exit_codes, pod)
    return any(_has_condition(pod, wanted.type, wanted.status) for wanted in rule.on_pod_conditions)


def _exit_codes_match(wanted: OnExitCodes, pod: Pod) -> bool:
    """batch/v1: containers that exited 0 are left out, for NotIn too."""
    codes = [
        e.exit_code for e in pod.ends if e.exit_code != 0 and wanted.container_name in (None, "", e.name)
    ]
    if wanted.operator == "In":
        return any(code in wanted.values for code in codes)
    return any(code not in wanted.values for code in codes)


def _has_condition(pod: Pod, kind: str, status: str) -> bool:
    return any(c[0] == kind and c[1] == status for c in pod.conditions)
