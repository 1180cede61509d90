"""What planners are given beside the input of a recipe: nodes, instances, shares."""

from typing import Any, Final

import msgspec

from caretaker.api.daemontask import DaemonTask
from caretaker.api.objects import Node
from caretaker.api.s3refresh import Filter
from caretaker.daemontask import plan as task_plan
from caretaker.daemontask.facts import Outcome
from caretaker.daemontask.fit import NodeFit
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import status_of
from caretaker.imds import plan as policy_plan
from caretaker.imds.inventory import seen_of
from caretaker.imds.place import place_of
from caretaker.s3refresh import plan as refresh_plan
from caretaker.s3refresh.debounce import Pace
from caretaker.s3refresh.envelope import Parsed
from caretaker.s3refresh.match import Share

NODES: Final = 100
NOW: Final = 1.8e9
_LABELS: Final = {"kubernetes.io/os": "linux", "eks.amazonaws.com/nodegroup": "apps-1"}


def _node(number: int) -> Node:
    return Node(
        *(f"n{number}", f"u{number}", _LABELS),
        provider_id=f"aws:///eu-west-1a/i-{number:08x}",
        ready=True,
    )


_NODES: Final = {node.name: node for node in map(_node, range(NODES))}


def task(of: DaemonTask) -> Snapshot:
    """A pass over these nodes, whose verdicts are known."""
    fit = NodeFit(of.spec.template)
    for node in _NODES.values():
        fit.verdict(node)
    return Snapshot(of, "r", fit, _NODES, {}, Ledger({}), NOW)


def planned_task(snapshot: Snapshot) -> Any:
    """The plan and what status says of it."""
    plan = task_plan.plan(snapshot)
    return status_of(snapshot, plan, Outcome())


def policy(of: policy_plan.Policy, instance: Any) -> Any:
    """The plan of one policy over these nodes, which are all alike."""
    seen, group = seen_of(instance, 1.0), (("EKSManagedNodegroup", "apps-1"),)
    members = [policy_plan.Member(node, place_of(node), seen, group) for node in _NODES.values()]
    return policy_plan.plan(policy_plan.Snapshot(of.name, [of], members, now=NOW))


def refresh(parsed: Parsed, shares: dict[str, list[Share]]) -> Any:
    """The plan for one message."""
    message = refresh_plan.Message(0, tuple(parsed.events), tuple(parsed.completions))
    known = tuple(share for some in shares.values() for share in some)
    found = refresh_plan.Shares(complete=True, known=known)
    snapshot = refresh_plan.Snapshot((), False, found, Filter(), Pace(), "o", "p", NOW, messages=(message,))
    return msgspec.json.encode(refresh_plan.plan(snapshot).targets)
