"""The run that a node needs, and whether its ledger entry satisfies it.

Pure: (task, node, its ledger entry) -> trigger, run key; and with AtMostOnce, the entry in place of one that
cannot be read.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from caretaker.api.objects import Node, Pod
from caretaker.daemontask.decision import DecisionInput
from caretaker.daemontask.intents import UNREADABLE, covered
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry, Result
from caretaker.daemontask.node_eligibility import Eligibility
from caretaker.daemontask.pod_failure_policy import NODE_REBOOT, entry_for
from caretaker.daemontask.pods import run_key
from caretaker.daemontask.referenced_data import change_of

RETRY: Final = "Retry"
NO_PODS: Final[Mapping[str, Pod]] = {}


def nonce_of(inputs: DecisionInput, node: Node, entry: Entry | None) -> str:
    """The latest forced re-run that this node has to answer. It never goes back: removing the
    annotation, as a GitOps sync may, re-runs nothing."""
    asked = max(inputs.rerun_at, inputs.rerun_nodes.get(node.name, ""))
    return max(asked, entry.nonce) if entry is not None else asked


def trigger_of(inputs: DecisionInput, node: Node, entry: Entry | None) -> str:
    """Why the node needs a run; empty when its last one is still good."""
    if entry is None:
        return "NewNode"
    if nonce_of(inputs, node, entry) != entry.nonce:
        return "Rerun"
    differs = entry.revision != inputs.revision
    if differs and (change := change_of(inputs.spec.rerun_on, entry.revision, inputs.revision)):
        return change
    if inputs.tick and entry.tick != inputs.tick:
        return "Schedule"
    if (
        NODE_REBOOT in inputs.spec.rerun_on
        and node.boot_id
        and entry.boot_id
        and node.boot_id != entry.boot_id
    ):
        return NODE_REBOOT
    return RETRY if entry.result == RETRY else ""


def is_retry(inputs: DecisionInput, entry: Entry, trigger: str) -> bool:
    """Whether the run that the node needs is another attempt at the one that its entry is about."""
    return entry.result == RETRY and entry.revision == inputs.revision and trigger in (RETRY, NODE_REBOOT)


def begun(inputs: DecisionInput) -> DecisionInput:
    """The same for the last tick that can have had runs: a made-up record is of that tick."""
    return msgspec.structs.replace(inputs, tick=inputs.stored)


def key_of(inputs: DecisionInput, node: Node, nonce: str) -> str:
    """The run key of a run that would start now."""
    boot_id = node.boot_id if NODE_REBOOT in inputs.spec.rerun_on else ""
    return run_key(inputs.task_uid, inputs.revision, node.uid, nonce, boot_id, inputs.tick)


def is_broken(inputs: DecisionInput, node: Node) -> bool:
    """AtMostOnce: whether the node's entry cannot be read, so that its run may have been."""
    return inputs.spec.at_most_once and node.name in inputs.corrupt


def in_place(
    inputs: DecisionInput, node: Node, eligibility: Eligibility, pods: Mapping[str, Pod]
) -> Entry | None:
    """The entry in place of a broken one; None while there is nothing to say.

    The Pod of the due run shows how the run ended. Until it has ended the broken entry stands, and nothing
    starts. No other Pod proves it: that of the due run may be gone, or the view may be too old to show it.
    Nor does a Pod that another one followed: its run is due again, then.

    The Pods that the node has had are unknown, too, and an old view may show any of them later, as live or as
    ended. So the entry's seq is beyond all theirs, as if they were recorded; and no name is used twice.
    """
    last = max(pods.values(), key=lambda pod: pod.seq, default=None)
    seq = max(inputs.version, last.seq if last is not None else 0)
    answer = _entry_from(inputs, node, last) if last is not None else None
    if last is not None and answer is not None and not trigger_of(begun(inputs), node, answer):
        beyond = last.seq if seq > last.seq else 0
        return msgspec.structs.replace(answer, seq=seq, pod_seq=beyond) if last.terminal else None
    return _unknown(inputs, node, seq) if eligibility.kind != "excluded" else None


def _entry_from(inputs: DecisionInput, node: Node, pod: Pod) -> Entry | None:
    if pod.terminal:
        return entry_for(inputs, pod, node, None)
    return covered(inputs.spec, [pod], None)


def are_past(inputs: DecisionInput, node: Node, pods: Mapping[str, Pod]) -> bool:
    """Whether all have ended, and the last one is of a run before the one that is due. A reboot makes no
    other run of it: the Pod's result counts."""
    last = max(pods.values(), key=lambda pod: pod.seq)
    if not all(pod.terminal for pod in pods.values()):
        return False
    answer = entry_for(inputs, last, node, None)
    return trigger_of(begun(inputs), node, answer) not in ("", RETRY, NODE_REBOOT)


def _unknown(inputs: DecisionInput, node: Node, seq: int) -> Entry:
    """The content of a broken entry is unknown, so the run that is due is not repeated."""
    entry = made_up(inputs, node, "Failed", OUTCOME_UNKNOWN)
    return msgspec.structs.replace(entry, seq=seq, message=UNREADABLE)


def made_up(inputs: DecisionInput, node: Node, result: Result, reason: str) -> Entry:
    """An entry for the due run of the node, made without a Pod."""
    nonce, inputs = nonce_of(inputs, node, None), begun(inputs)
    return Entry(
        node_uid=node.uid,
        revision=inputs.revision,
        run_key=key_of(inputs, node, nonce),
        result=result,
        seq=0,
        nonce=nonce,
        boot_id=node.boot_id,
        tick=inputs.tick,
        finished_at=int(inputs.now),
        reason=reason,
    )
