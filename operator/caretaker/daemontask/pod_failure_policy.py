"""How a finished Pod counts, and the ledger entry that says so.

Pure. Input: a terminal Pod, or one that has used up its retries in place, the entry its node has, the spec;
output: the node's next entry. Rules: batch/v1 Job's podFailurePolicy; without one, a Pod that was disrupted
or deleted is not counted. Uncounted retries are bounded. A Pod of which the kubelet created no container is
a rejection: never counted, and tried again without end. With AtMostOnce every failure is the last: a
rejection too, since a kubelet that restarts rejects Pods that ran in the same words (k8s#105523, k8s#123859).

Times of another machine prove no order: they are clamped into [created, now] here, and a time ahead is of a
wrong clock.
"""

from typing import Final, Literal

import msgspec
from msgspec.json import encode as json_encode

from caretaker.api import names
from caretaker.api.daemontask import FailureRule, OnExitCodes, PodFailurePolicy, Spec
from caretaker.api.objects import CONTAINER_LOST, ContainerEnd, Node, Pod
from caretaker.api.times import past
from caretaker.daemontask import results
from caretaker.daemontask.decision import DecisionInput
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
BACKOFF_LIMIT_EXCEEDED: Final = "BackoffLimitExceeded"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
REBOOT_LOOP: Final = "RebootLoop"

Count = Literal["Ignore", "Count", "FailIndex", "FailJob"]


def entry_for(inputs: DecisionInput, pod: Pod, node: Node, before: Entry | None) -> Entry:
    """The entry that records the end of this Pod's run after `before` (None, or an entry of the same node
    UID): it is terminal, or has used up its retries."""
    spec, now, marks = inputs.spec, inputs.now, pod.annotations
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
        failing_since=same.failing_since if same and pod.phase != "Succeeded" else 0,
        # A success has no use for them, and in a shard its results need their room.
        disruptions=same.disruptions if same and pod.phase != "Succeeded" else 0,
        started_at=int(pod.created),
        finished_at=int(min(pod.finished, now) if pod.terminal else now),
        reboot_runs=reboot_runs(marks.get(names.POD_TRIGGER, ""), int(pod.created), before, same is not None),
    )
    if pod.phase != "Succeeded":
        entry = _unsuccessful(entry, pod, spec, same)
        if entry.result == "Failed" and not spec.at_most_once and _rebooted_since(spec, entry, node):
            entry = msgspec.structs.replace(entry, result="Retry")  # the reboot asks for a run in any case
    elif spec.results:
        values, fault = results.read(spec.results, pod)
        entry = msgspec.structs.replace(entry, results=values, fault=fault)
    return absorb_own_reboot(inputs, entry, node, began=pod.created)


def absorb_own_reboot(inputs: DecisionInput, entry: Entry, node: Node, began: float | None = None) -> Entry:
    """The entry with the node's boot ID, when the reboot since is the run's own; else as it is.

    A task that reboots its node (`reboot; exit 0`, or killed by the reboot) must not run again for that: so
    says spec.rebootsNode. With AtMostOnce a reboot may also have cut off a run that did not succeed.
    When the node rebooted: the Ready condition's last change, where that is later than the run's end;
    during the run, where `began` is given (a Pod recorded only now) and Ready last changed after it; else
    now, since a quick reboot need not show in the Ready condition.
    """
    spec, now = inputs.spec, inputs.now
    may_be_own = spec.reboots_node or (spec.at_most_once and entry.result == "Failed")
    if not may_be_own or entry.boot_absorbed or not _rebooted_since(spec, entry, node):
        return entry
    ended, ready_since = float(entry.finished_at), past(node.ready_since, now)
    if ready_since > ended:
        rebooted = ready_since
    elif began is not None and ready_since >= began:
        rebooted = ended
    else:
        rebooted = now
    if rebooted > ended + OWN_REBOOT_SECONDS:
        return entry
    key = run_key(inputs.task_uid, entry.revision, entry.node_uid, entry.nonce, node.boot_id, entry.tick)
    return msgspec.structs.replace(entry, run_key=key, boot_id=node.boot_id, boot_absorbed=True)


def _rebooted_since(spec: Spec, entry: Entry, node: Node) -> bool:
    """Whether the node has rebooted since the run began, and that matters."""
    comparable = bool(entry.boot_id and node.boot_id)
    return NODE_REBOOT in spec.rerun_on and comparable and entry.boot_id != node.boot_id


def reboot_loop(entry: Entry, now: float) -> bool:
    """Whether reboots have already started as many runs as they may within the window."""
    return sum(1 for at in entry.reboot_runs if abs(now - at) < REBOOT_WINDOW) >= MAX_REBOOT_RUNS


def dated(entry: Entry, now: float) -> Entry:
    """The entry, ended now if it says that it will end."""
    return entry if entry.finished_at <= now else msgspec.structs.replace(entry, finished_at=int(now))


def used_up(spec: Spec, pod: Pod) -> bool:
    """Whether this live Pod's containers have failed, and were started again, more often than backoffLimit
    allows: batch/v1 ends the run then, though the kubelet would go on."""
    return not (pod.terminal or pod.deletion) and pod.failures > spec.backoff_limit


def was_used_up(entry: Entry, pod: Pod) -> bool:
    """Whether the entry says so of this Pod."""
    return entry.reason == BACKOFF_LIMIT_EXCEEDED and entry.pod_uid == pod.uid


def reboot_runs(trigger: str, at: int, before: Entry | None, same: bool) -> tuple[int, ...]:
    """When reboots started runs, with the run that this trigger started at this time. `same`: `before` is
    of that run too."""
    runs = before.reboot_runs if before is not None else ()
    if trigger == NODE_REBOOT and not same:
        runs = (*runs, at)
    return runs[-MAX_REBOOT_RUNS:]


def _unsuccessful(entry: Entry, pod: Pod, spec: Spec, same: Entry | None) -> Entry:
    """With the outcome of a run that did not succeed. `same`: the entry before, if it is of the same run."""
    if not pod.terminal:
        return _over_limit(entry, pod, spec)
    if _kubelet_rejected(pod):
        return _rejected(entry, pod, spec, same)
    return _failed(entry, pod, spec)


def _rejected(entry: Entry, pod: Pod, spec: Spec, same: Entry | None) -> Entry:
    """Nothing of it ran: attempts and disruptions stay. `started_at` is when the first one in a row was
    rejected, however long its Pod waited before."""
    row = same if same is not None and same.rejections else None
    return msgspec.structs.replace(
        entry,
        result="Failed" if spec.at_most_once else "Retry",
        rejections=1 + (row.rejections if row is not None else 0),
        started_at=row.started_at if row is not None else entry.finished_at,
        reason=_cut(pod.reason or "Rejected", _REASON),
        message=_cut(pod.message, _MESSAGE),
    )


def _over_limit(entry: Entry, pod: Pod, spec: Spec) -> Entry:
    """The entry of a Pod that is still alive: the Pod is deleted once this is recorded."""
    last = pod.crash
    cause = "" if last is None else f"; last: {last.reason or 'Error'}, {_words(last)}"
    return msgspec.structs.replace(
        entry,
        result="Failed",
        attempts=entry.attempts + pod.failures,
        reason=BACKOFF_LIMIT_EXCEEDED,
        message=_cut(f"failed {pod.failures} times, backoffLimit is {spec.backoff_limit}{cause}", _MESSAGE),
        exit_code=last.exit_code if last is not None else None,
    )


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
        failing_since=entry.failing_since or (entry.finished_at if attempts else 0),
        reason=_cut(reason, _REASON),
        message=_cut(message, _MESSAGE),
        exit_code=exit_code,
        fail_task=count == "FailJob",
    )


def _cause(pod: Pod) -> tuple[str, str, int | None]:
    """(reason, message, exit code) a person would name: the first container that failed, else the Pod's."""
    # A native sidecar is an init container that is killed once the containers have ended, for their cause.
    end = min((e for e in pod.ends if e.exit_code != 0), key=lambda e: e.init, default=None)
    if _killed_by_deletion(pod):
        return "Deleted", "the Pod was deleted while it ran", end.exit_code if end else None
    if pod.reason:  # Evicted, DeadlineExceeded, OutOfcpu, NodeAffinity ...: the kubelet's own word
        return pod.reason, pod.message, end.exit_code if end else None
    if end is not None:
        return end.reason or "Error", _words(end), end.exit_code
    disrupted = next((c for c in pod.conditions if c[0] == "DisruptionTarget" and c[1] == "True"), None)
    return (disrupted[2] if disrupted and disrupted[2] else "PodFailed"), pod.message, None


def _words(end: ContainerEnd) -> str:
    return end.message or f"container {end.name} exited {end.exit_code}"


def _known_cause(reason: str, message: str) -> tuple[str, str]:
    """The kubelet's word for containers that it found no trace of, after a reboot for one, is no end."""
    if reason == CONTAINER_LOST:
        return OUTCOME_UNKNOWN, f"{reason}: {message}"
    return reason, message


def _cut(text: str, most: int) -> str:
    """The first characters, so many that JSON writes them in at most `most` bytes."""
    shown = "".join(c if c.isprintable() else " " for c in text[:most]).strip()
    while len(json_encode(shown)) > most + len('""'):
        shown = shown[:-1]
    return shown


def cut_message(text: str) -> str:
    """As much of it as an entry has room for."""
    return _cut(text, _MESSAGE)


def _count(pod: Pod, policy: PodFailurePolicy | None) -> Count:
    if policy is not None and policy.rules:
        return next((rule.action for rule in policy.rules if _rule_matches(rule, pod)), "Count")
    disrupted = _has_condition(pod, "DisruptionTarget", "True") or _killed_by_deletion(pod)
    return "Ignore" if disrupted else "Count"


def _killed_by_deletion(pod: Pod) -> bool:
    """The Pod was deleted while it ran: the kubelet kills the containers and says Failed first, without
    a reason. The result of a Pod whose end was seen before stays (task_state.py), independent of clocks."""
    return bool(pod.deletion) and not pod.reason


def _kubelet_rejected(pod: Pod) -> bool:
    """The kubelet ended the Pod before it created any container: nothing of it ran. No reason is excepted.

    A Pod that it refuses has no container statuses; in one that it evicts while images are pulled,
    containers wait, or are given up without a trace. Not so where the author's own deadline ended it, nor
    where a deletion or the Pod garbage collector did: these may not have heard of containers that its
    kubelet has begun.
    """
    if pod.reason == DEADLINE_EXCEEDED:
        return False
    if pod.failures or pod.crash is not None or any(end.created for end in pod.ends):
        return False
    others = pod.deletion or _has_condition(pod, "DisruptionTarget", "True")
    return bool(pod.reason) or not (pod.ends or others)


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
