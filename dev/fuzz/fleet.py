"""5,000 nodes, and what is known of them: ledger entries, Pods, instances.

Pure. They differ as those of a large cluster do: a planner meets each of its cases hundreds of times. Names
end in a hexadecimal number, as recipes make them that repeat a name.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import Result
from caretaker.api.imds import Options
from caretaker.api.objects import ContainerEnd, Node, Pod, Taint
from caretaker.daemontask.ledger import Entry
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.instance_ref import NODEGROUP, instance_ref_of
from caretaker.imds.plan import Member
from caretaker.imds.probe import Finding

NODES: Final = 5000
NOW: Final = 1.8e9
TICK: Final = 1799981700  # the last of the sample's schedule
REVISION: Final = "r"
_GROUPS: Final = 100
_UNPLACED: Final = {
    "phase": "Pending",
    "node_name": "",
    "unschedulable": "m",
    "unschedulable_since": NOW - 900,
}
_FAILED: Final = {
    "phase": "Failed",
    "finished": NOW - 5,
    "ends": (ContainerEnd("main", 1, "Error", "m" * 100),),
}
# By the last digit of a node's number: its Pods, as (seq, fields), and fields of its entry; None: no entry.
_RUNS: Final[tuple[tuple[tuple[tuple[int, dict[str, Any]], ...], dict[str, Any] | None], ...]] = (
    ((), {}),
    ((), {}),
    ((), {"result": "Failed", "reason": "Error", "message": "m" * 100, "fail_task": True}),
    ((), {"result": "Retry", "attempts": 2, "failing_since": int(NOW) - 9000}),
    ((), {"revision": "before"}),
    ((), None),
    (((3, {"phase": "Succeeded", "finished": NOW - 3600}),), {}),
    (((2, _FAILED), (3, _FAILED), (4, {})), {"result": "Retry", "attempts": 2}),
    (((4, _FAILED),), {"revision": "before"}),  # its end is still to be recorded
    (((1, _UNPLACED),), None),
)
_OPTIONS: Final = (
    Options(1, "optional", "enabled", "enabled", "enabled"),
    Options(2, "required", "enabled", "disabled", "disabled"),
    Options(1, "optional", "disabled", "disabled", "disabled"),
    Options(3, "required", "enabled", "disabled", "enabled"),
)


# Another one, with many labels and taints.
NODE: Final = Node(
    "n",
    "u",
    {"kubernetes.io/os": "linux", "cores": "8", **{f"a{i}": f"{i}" for i in range(60)}},
    tuple(Taint(f"t{i}", "NoSchedule", f"{i}") for i in range(30)),
    ready=True,
)


def _node(number: int) -> Node:
    return Node(
        f"n{number:x}",
        f"u{number}",
        {"kubernetes.io/os": "linux", NODEGROUP: f"apps-{number % _GROUPS:x}"},
        unschedulable=number % 70 == 1,
        provider_id=f"aws:///eu-west-1a/i-0123456789{number:x}",
        boot_id=f"b{number}",
        ready=number % 70 != 2,
        ready_since=NOW - 7200,
    )


BY_NAME: Final = {node.name: node for node in map(_node, range(NODES))}


@cache
def pods() -> dict[str, dict[str, Pod]]:
    """Node UID -> Pod name -> Pod, of one task."""
    found = {}
    for number, node in enumerate(BY_NAME.values()):
        own = [_pod(node, seq, fields) for seq, fields in _RUNS[number % 10][0]]
        if own:
            found[node.uid] = {pod.name: pod for pod in own}
    return found


def _pod(node: Node, seq: int, fields: Mapping[str, Any]) -> Pod:
    marks = {
        names.POD_NODE_NAME: node.name,
        names.POD_NODE_UID: node.uid,
        names.POD_RUN_KEY: "k",
        names.POD_BOOT_ID: node.boot_id,
        names.POD_SEQ: f"{seq}",
    }
    labels = {names.LABEL_TASK: "a", names.LABEL_REVISION: REVISION}
    name, uid = f"a-{node.name}-{seq}", f"p-{node.name}-{seq}"
    pod = Pod(name, "ns", uid, "u", labels, marks, NOW - 7200, node_name=node.name, phase="Running")
    return msgspec.structs.replace(pod, **fields)


def entries(told: tuple[Result, ...]) -> dict[str, Entry]:
    """By node name. Who succeeded told of these results, and no two the same."""
    found = {}
    for number, node in enumerate(BY_NAME.values()):
        fields = _RUNS[number % 10][1]
        if fields is not None:
            values = {one.name: number * 0.5 if one.type == "Number" else f"{number}" for one in told}
            entry = Entry(node.uid, REVISION, "k", "Succeeded", 3, boot_id=node.boot_id, tick=TICK)
            fields = {"finished_at": int(NOW) - 9000, "results": values, **fields}
            found[node.name] = msgspec.structs.replace(entry, **fields)
    return found


@cache
def members() -> list[Member]:
    """The nodes' instances. Not two neighbours have the same options, and hardly any what a policy wants."""
    found = []
    for number, node in enumerate(BY_NAME.values()):
        ref, seen = (
            instance_ref_of(node),
            ObservedInstance(_OPTIONS[number % len(_OPTIONS)], at=1.0, group=f"g{number % 300}"),
        )
        found.append(Member(node, ref, seen, (*ref.groups, ("AutoScalingGroup", seen.group))))
    return found


@cache
def findings() -> dict[str, Finding]:
    """What the probe found, by node name."""
    return {name: Finding("Reachable", NOW - 60, "", 1.0, 2, "Open") for name in BY_NAME}
