"""What a node is asked to have run, and whether its ledger entry answers that.

Pure: (task, node, its ledger entry) -> trigger, run key.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from caretaker.api.daemontask import Spec
from caretaker.api.objects import Node, Pod
from caretaker.daemontask.fit import Verdict
from caretaker.daemontask.intents import UNREADABLE
from caretaker.daemontask.judge import NODE_REBOOT
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry
from caretaker.daemontask.pods import run_key

NO_PODS: Final[Mapping[str, Pod]] = {}


class View(msgspec.Struct, frozen=True):
    """Everything about the task that a node's decision reads."""

    task_uid: str
    spec: Spec
    revision: str
    rerun_at: str  # RFC 3339, normalised to UTC; empty = never asked
    rerun_nodes: Mapping[str, str]
    now: float
    seq_skips: Mapping[str, int]  # node UID -> names taken by foreign Pods
    vanished: Mapping[str, float]  # node UID -> not before; its Pod was deleted by somebody else
    tick: int = 0  # of the schedule, that nodes run for; 0 = of none
    stored: int = 0  # the one before, where `tick` is only being stored; else the same
    awaited: bool = False  # the schedule's first tick is still to come
    backoff_scale: float = 1.0  # 1 but in tests
    namesakes: Mapping[str, Pod] = NO_PODS  # node UID -> live Pod of an earlier task, or node, of its name
    corrupt: Mapping[str, str] = {}  # node name -> why its ledger entry cannot be read
    version: int = 0  # of the ledger; see Ledger
    unstarted: Mapping[str, str] = {}  # node UID -> token of an intent that is known to have run nothing
    waiting_since: float = 0.0  # when the rollout began: nothing is late for what was before


def nonce_of(view: View, node: Node, entry: Entry | None) -> str:
    """The latest forced re-run that this node has to answer. It never goes back: removing the
    annotation, as a GitOps sync may, re-runs nothing."""
    asked = max(view.rerun_at, view.rerun_nodes.get(node.name, ""))
    return max(asked, entry.nonce) if entry is not None else asked


def trigger_of(view: View, node: Node, entry: Entry | None) -> str:
    """Why the node needs a run; empty when its last one is still good."""
    if entry is None:
        return "NewNode"
    if nonce_of(view, node, entry) != entry.nonce:
        return "Rerun"
    if entry.revision != view.revision and "TemplateChange" in view.spec.rerun_on:
        return "TemplateChange"
    if view.tick and entry.tick != view.tick:
        return "Schedule"
    if NODE_REBOOT in view.spec.rerun_on and node.boot_id and entry.boot_id and node.boot_id != entry.boot_id:
        return NODE_REBOOT
    return "Retry" if entry.result == "Retry" else ""


def begun(view: View) -> View:
    """The same, of the last tick that anybody can have run for: whose record is made up was of that one."""
    return msgspec.structs.replace(view, tick=view.stored)


def key_of(view: View, node: Node, nonce: str) -> str:
    """The run key of a run that would start now."""
    boot_id = node.boot_id if NODE_REBOOT in view.spec.rerun_on else ""
    return run_key(view.task_uid, view.revision, node.uid, nonce, boot_id, view.tick)


def unreadable(view: View, node: Node, verdict: Verdict, pods: Mapping[str, Pod]) -> Entry | None:
    """AtMostOnce: what an entry says that cannot be read, nobody knows, so its run is not repeated.

    Which Pods the node has had, nobody knows either, and an old view may show any of them later, as live or
    as ended. So its seq is beyond all of theirs, as if they were recorded; and no name is given twice.
    """
    if not view.spec.at_most_once or node.name not in view.corrupt or verdict.kind == "excluded":
        return None
    nonce, view = nonce_of(view, node, None), begun(view)
    return Entry(
        node_uid=node.uid,
        revision=view.revision,
        run_key=key_of(view, node, nonce),
        result="Failed",
        seq=max(view.version, max((pod.seq for pod in pods.values()), default=0)),
        nonce=nonce,
        boot_id=node.boot_id,
        tick=view.tick,
        finished_at=int(view.now),
        reason=OUTCOME_UNKNOWN,
        message=UNREADABLE,
    )
