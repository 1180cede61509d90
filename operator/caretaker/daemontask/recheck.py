"""What a pass reads again, from the API server, before steps that cannot be undone.

Pure: (spec, nodes or Pods, ledger, Plan) -> names of nodes. controller.recheck() reads them.
"""

from collections.abc import Mapping

from caretaker.api import names
from caretaker.api.daemontask import Spec
from caretaker.api.objects import Node
from caretaker.daemontask.decision import PodsByNode
from caretaker.daemontask.intents import is_made_up
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.plan import Plan
from caretaker.daemontask.pod_failure_policy import BACKOFF_LIMIT_EXCEEDED, NODE_REBOOT, REBOOT_LOOP


def doubtful(spec: Spec, nodes: Mapping[str, Node], ledger: Ledger, plan: Plan) -> set[str]:
    """Names of nodes about which the view may be older than the ledger and the Pods, which another operator
    may have written; a read from the API server decides.

    The plan starts or records there because of a UID or a boot ID that the ledger does not have or cannot
    show, or because it takes the node for cordoned by the task; or deletes a Pod of a node that it does not
    know.
    """
    rebooting = NODE_REBOOT in spec.rerun_on
    entries, found = ledger.entries, set[str]()
    for name in {*plan.records, *(start.node_name for start in plan.launch.starts)}:
        node, entry, record = nodes.get(name), entries.get(name), plan.records.get(name)
        other = (
            node is not None
            and entry is not None
            and (entry.node_uid != node.uid or (rebooting and entry.boot_id != node.boot_id))
        )
        drained = node is not None and bool(node.cordon)
        unreported = record is not None and (record.boot_absorbed or name in ledger.corrupt)
        if other or unreported or drained:
            found.add(name)
    for pod in plan.deletes:
        name = pod.annotations.get(names.POD_NODE_NAME, "")
        node = nodes.get(name)
        if name and (node is None or node.uid != pod.node_uid):
            found.add(name)
    return found


def unlisted(pods: PodsByNode, ledger: Ledger, plan: Plan) -> dict[str, str]:
    """Node name -> UID of the nodes where a Pod matters that the view may not show.

    It matters to a start where the ledger does not know the node's last Pod, or knows that it may live on:
    the next Pod has another name, so the API server would not refuse it. It matters to a record in place of a
    broken or lost entry: a newer Pod of the same run decides its result, and one of another run outdates it.
    """
    records = plan.records.items()
    found = {name: record.node_uid for name, record in records if _is_forgotten(ledger, name)}
    for start in plan.launch.starts:
        entry = ledger.entries.get(start.node_name)
        if entry is not None and entry.node_uid != start.node_uid:
            continue
        if _is_forgotten(ledger, start.node_name) or (entry is not None and _may_be_outlived(pods, entry)):
            found[start.node_name] = start.node_uid
    return found


def _is_forgotten(ledger: Ledger, name: str) -> bool:
    """Whether the node may have had an entry that is broken or lost."""
    return name in ledger.corrupt or (
        ledger.lost > 0 and (name not in ledger.entries or name in ledger.older)
    )


def _may_be_outlived(pods: PodsByNode, entry: Entry) -> bool:
    """Whether a Pod may live that this entry, of the same node, does not wait for. One with an intent was
    given up: nothing starts while its Pod is expected."""
    if entry.pod_seq or entry.intent or is_made_up(entry):
        return True
    seen = (pod.uid for pod in pods.get(entry.node_uid, {}).values())
    return entry.reason in (BACKOFF_LIMIT_EXCEEDED, REBOOT_LOOP) and entry.pod_uid not in seen
