"""Builders for planner tables: a task, nodes, Pods and ledger entries with sensible defaults."""

from collections.abc import Iterable
from typing import Any

import msgspec

from caretaker.api import names
from caretaker.api.daemontask import DaemonTask, Spec, Status, drainer_of, gate_of
from caretaker.api.objects import ContainerEnd, Node, Pod, Taint, WireMeta
from caretaker.daemontask.decision import DecisionInput
from caretaker.daemontask.dependencies import Progress
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.pods import pod_name, revision_of, run_key
from caretaker.daemontask.snapshot import Snapshot

NOW = 1_000_000.0
UID = "task-uid"
TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
REVISION = revision_of(Spec(template=TEMPLATE))


def node(name: str = "a", **changes: Any) -> Node:
    """A Ready Linux node."""
    return msgspec.structs.replace(
        Node(
            name=name,
            uid=f"uid-{name}",
            labels={"kubernetes.io/os": "linux", "kubernetes.io/hostname": name},
            boot_id=f"boot-{name}",
            ready=True,
            ready_since=NOW - 86400,
        ),
        **changes,
    )


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Taint:
    return Taint(key, effect, value)


def pod(
    of: Node, seq: int = 1, *, revision: str = REVISION, marks: dict[str, str] | None = None, **changes: Any
) -> Pod:
    """A running, bound Pod of the task on that node."""
    return msgspec.structs.replace(
        Pod(
            name=pod_name("task", UID, of.uid, seq),
            namespace="default",
            uid=f"pod-{of.name}-{seq}",
            owner_uid=UID,
            labels={names.LABEL_TASK: "task", names.LABEL_REVISION: revision},
            annotations={
                names.POD_NODE_NAME: of.name,
                names.POD_NODE_UID: of.uid,
                names.POD_RUN_KEY: run_key(UID, revision, of.uid, "", ""),
                names.POD_BOOT_ID: of.boot_id,
                names.POD_SEQ: str(seq),
                names.POD_NONCE: "",
                **(marks or {}),
            },
            created=NOW - 60,
            node_name=of.name,
            phase="Running",
        ),
        **changes,
    )


def succeeded(of: Node, seq: int = 1, **changes: Any) -> Pod:
    return pod(of, seq, **{"phase": "Succeeded", "finished": NOW - 5, **changes})


def failed(of: Node, seq: int = 1, exit_code: int = 1, **changes: Any) -> Pod:
    ends = (ContainerEnd("main", exit_code, "Error"),)
    return pod(of, seq, **{"phase": "Failed", "finished": NOW - 5, "ends": ends, **changes})


def entry(of: Node, result: str = "Succeeded", **changes: Any) -> Entry:
    """A recorded run of the current revision."""
    return msgspec.structs.replace(
        Entry(
            node_uid=of.uid,
            revision=REVISION,
            run_key=run_key(UID, REVISION, of.uid, "", ""),
            result=result,  # type: ignore[arg-type]
            seq=1,
            pod_uid=f"pod-{of.name}-1",
            boot_id=of.boot_id,
            finished_at=int(NOW - 3600),
        ),
        **changes,
    )


def task(
    *,
    annotations: dict[str, str] | None = None,
    status: Status | None = None,
    template: Any = None,
    **spec: Any,
) -> DaemonTask:
    meta = WireMeta(name="task", namespace="default", uid=UID, generation=1, annotations=annotations)
    return DaemonTask(meta, Spec(template=template or TEMPLATE, **spec), status or Status())


def decision_input(**spec: Any) -> DecisionInput:
    """Of a task with this spec."""
    return DecisionInput(UID, task(**spec).spec, REVISION, NOW)


def snapshot(
    of: DaemonTask,
    nodes: list[Node],
    pods: list[Pod] | None = None,
    entries: dict[str, Entry] | None = None,
    **changes: Any,
) -> Snapshot:
    index: dict[str, dict[str, Pod]] = {}
    for p in pods or ():
        index.setdefault(p.node_uid, {})[p.name] = p
    base = Snapshot(
        task=of,
        revision=REVISION if of.spec.template is TEMPLATE else revision_of(of.spec),
        eligibility_rules=EligibilityRules(
            of.spec.template,
            gate_of(of.metadata, of.spec),
            drainer_of(of.metadata, of.spec),
            of.spec.health_conditions,
        ),
        nodes={n.name: n for n in nodes},
        pods=index,
        ledger=Ledger(
            entries=entries or {}, shards=1 if entries else 0, since=dict.fromkeys(entries or {}, 0.0)
        ),
        now=NOW,
    )
    return msgspec.structs.replace(base, **changes)


def progress(
    *, done: Iterable[Node] = (), failed: Iterable[Node] = (), waiting: Iterable[Node] = (), **changes: Any
) -> Progress:
    """That of another task, which selects every node."""
    found = Progress(
        identity=("other-uid", 1, ()),
        rules=EligibilityRules(TEMPLATE),
        done={one.uid: "" for one in done},
        failed=frozenset(one.uid for one in failed),
        unfinished=frozenset(one.uid for one in waiting),
    )
    return msgspec.structs.replace(found, **changes)


def planned(*args: Any, **kwargs: Any) -> Plan:
    return plan(snapshot(*args, **kwargs))


def states(result: Plan) -> dict[str, int]:
    """The states that any node is in."""
    return {state: count for state, count in result.nodes.counts.items() if count}


def started(result: Plan) -> list[str]:
    return sorted(start.node_name for start in result.launch.starts)
