"""Random histories of tasks that depend on each other: edits, re-runs, reboots, restarts, deletions.

The operator's plan and TaskOrder run against true tasks, ledgers and Pods. A pass reads a task, and changes
happen before its writes. The judge compares each start with the truth at that moment. In the end no task gets
a pass but by an event, and every task has succeeded on every node.
"""

import random
from typing import Any, Final

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import DaemonTask, DependsOn, Spec, Status
from caretaker.api.objects import Node, Pod, WireMeta
from caretaker.daemontask.dependencies import identity_of, names_of
from caretaker.daemontask.ledger import Entry, Ledger
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.pods import Start, revision_of
from caretaker.daemontask.run_triggers import RETRY
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.task_order import TaskOrder
from caretaker.runtime.work_queue import Key
from testing.examples import SEED, examples
from unit.daemontask.build import node

NODES: Final = ("x", "y", "z")
TASKS: Final = "abcd"
POOLS: Final = ({}, {}, {"pool": "1"})
STEPS: Final = 120


def key(name: str) -> Key:
    return Key("DaemonTask", "default", name)


class TrueTask:
    """A task as the API server has it, with its ledger and its Pods."""

    def __init__(self, name: str, serial: int, spec: Spec) -> None:
        self.meta = WireMeta(name=name, namespace="default", uid=f"{name}-{serial}", generation=1)
        self.spec = spec
        self.entries: dict[str, Entry] = {}
        self.pods: dict[str, dict[str, Pod]] = {}

    def edit(self, **changes: Any) -> None:
        self.spec = msgspec.structs.replace(self.spec, **changes)
        self.meta = msgspec.structs.replace(self.meta, generation=self.meta.generation + 1)

    def ask_again(self, at: str) -> None:
        self.meta = msgspec.structs.replace(self.meta, annotations={names.RERUN_AT: at})

    def snapshot(self, nodes: dict[str, Node], now: float, **more: Any) -> Snapshot:
        return Snapshot(
            task=DaemonTask(self.meta, self.spec, Status()),
            revision=revision_of(self.spec),
            eligibility_rules=EligibilityRules(self.spec.template),
            nodes=dict(nodes),
            pods={uid: dict(pods) for uid, pods in self.pods.items()},
            ledger=Ledger(dict(self.entries), shards=1, since=dict.fromkeys(self.entries, 0.0)),
            now=now,
            **more,
        )


class History:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000_000.0
        self.serial = 0
        self.nodes = {name: self.new_node(name) for name in NODES}
        self.tasks: dict[str, TrueTask] = {}
        self.queue: dict[Key, None] = {}
        self.order = TaskOrder(self.event)
        self.gathered: dict[str, tuple[Snapshot, Plan]] = {}  # passes under way
        self.starts = 0

    def event(self, of: Key) -> None:
        self.queue[of] = None

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def new_node(self, name: str) -> Node:
        labels = {"kubernetes.io/os": "linux", "pool": str(self.random.randrange(2))}
        boot = f"boot-{self.number()}"
        return node(name, uid=f"{name}-{self.number()}", boot_id=boot, labels=labels, ready_since=0.0)

    # ---------------------------------------------------------------- what happens

    def template(self) -> dict[str, Any]:
        container = {"name": "main", "image": f"test:{self.random.randrange(3)}"}
        return {"spec": {"containers": [container], "nodeSelector": self.random.choice(POOLS)}}

    def some(self, name: str) -> tuple[DependsOn, ...]:
        """Seldom a circle."""
        others = TASKS[: TASKS.index(name)] if self.random.random() < 0.9 else TASKS.replace(name, "")
        chosen = self.random.sample(others, self.random.randrange(min(len(others), 2) + 1))
        return tuple(DependsOn(other) for other in chosen)

    def create(self, name: str) -> None:
        rerun_on = self.random.choice([("TemplateChange",), ("TemplateChange", "NodeReboot")])
        parallelism = self.random.choice([None, 1])
        concurrency = self.random.choice(["Forbid", "Replace"])
        spec = Spec(self.template(), rerun_on=rerun_on, parallelism=parallelism, backoff_limit=1)
        spec = msgspec.structs.replace(spec, concurrency_policy=concurrency)
        spec = msgspec.structs.replace(spec, depends_on=self.some(name))
        self.tasks[name] = TrueTask(name, self.number(), spec)
        self.event(key(name))

    def touch(self) -> None:
        """A user changes a task."""
        name = self.random.choice(TASKS)
        task, what = self.tasks.get(name), self.random.random()
        if task is None:
            self.create(name)
        elif what < 0.15:
            del self.tasks[name]
        elif what < 0.5:
            task.edit(template=self.template())
        elif what < 0.7:
            task.edit(depends_on=self.some(name))
        elif what < 0.75:
            task.edit(suspend=not task.spec.suspend)
        else:
            task.ask_again(f"2026-01-01T00:00:{self.number() % 60:02}Z")
        if self.random.random() < 0.7:  # else the event comes late
            self.event(key(name))

    def change_node(self) -> None:
        name = self.random.choice(NODES)
        if self.random.random() < 0.5:
            self.nodes[name] = self.new_node(name)
        else:
            boot = f"boot-{self.number()}"
            self.nodes[name] = msgspec.structs.replace(self.nodes[name], boot_id=boot)
        for of in self.tasks:  # the event reaches all, and passes under way are of a node that is gone
            self.event(key(of))
        self.gathered.clear()

    def finish_pods(self, *, well: bool = False) -> None:
        for name, task in self.tasks.items():
            for uid, pods in task.pods.items():
                for pod in pods.values():
                    if not pod.terminal and (well or self.random.random() < 0.6):
                        phase = "Succeeded" if well or self.random.random() < 0.8 else "Failed"
                        task.pods[uid] = {**pods, pod.name: replaced(pod, phase, self.now)}
                        self.event(key(name))

    def restart(self) -> None:
        self.order.clear()
        self.gathered.clear()
        for name in self.tasks:
            self.event(key(name))

    # ---------------------------------------------------------------- the operator

    def gather(self, name: str) -> None:
        task = self.tasks.get(name)
        if task is None:
            self.order.drop(key(name))
            self.gathered.pop(name, None)
            return
        of = task.snapshot(
            self.nodes,
            self.now,
            dependencies=self.order.of(key(name), names_of(task.spec)),
            awaited=self.order.awaited(key(name)),
        )
        self.gathered[name] = of, plan(of)

    def finish(self, name: str) -> None:
        """recheck() and before() of a pass."""
        of, made = self.gathered.pop(name)
        task = self.tasks.get(name)
        if task is None or task.meta.uid != of.task.metadata.uid:
            return
        for one in of.dependencies.each if made.launch.starts or made.launch.replaced else ():
            if one.progress is not None:
                other = self.tasks.get(one.name)
                if other is None or identity_of(other.meta) != one.progress.identity:
                    self.order.outdated(key(one.name), one.progress)
                    self.event(key(name))
                    return
        self.order.took(key(name), names_of(of.task.spec), made.progress)
        task.entries |= made.records
        for pod in made.launch.replaced:
            self.judge(of, of.nodes[pod.annotations[names.POD_NODE_NAME]])
        for pod in made.deletes:
            task.pods.get(pod.node_uid, {}).pop(pod.name, None)
        for start in made.launch.starts:
            if not self.is_retry(of, start):
                self.judge(of, of.nodes[start.node_name])
            self.starts += 1
            task.pods.setdefault(start.node_uid, {})[f"{name}-{start.seq}"] = new_pod(of, start, self.now)
        if made.records or made.deletes or made.more or (made.wake and made.wake <= self.now):
            self.event(key(name))

    def is_retry(self, of: Snapshot, start: Start) -> bool:
        entry = of.ledger.entries.get(start.node_name)
        return start.trigger == RETRY and entry is not None and entry.attempts + entry.disruptions > 0

    def judge(self, of: Snapshot, where: Node) -> None:
        """Each task that comes first is done on the node, by the truth of now."""
        for name in names_of(of.task.spec):
            other = self.tasks.get(name)
            assert other is not None, f"{of.task.metadata.name} begins without {name}"
            if EligibilityRules(other.spec.template).check(where).kind == "excluded":
                continue
            found = plan(other.snapshot({where.name: where}, self.now))
            assert found.nodes.counts["succeeded"] == 1, f"{of.task.metadata.name} begins before {name}"
            assert not found.records, f"{name} is not on record"

    def step(self) -> None:
        what = self.random.random()
        if what < 0.45 and self.queue:
            self.begin(self.random.choice(list(self.queue)))
        elif what < 0.75 and self.gathered:
            self.finish(self.random.choice(list(self.gathered)))
        elif what < 0.87:
            self.finish_pods()
        elif what < 0.94:
            self.touch()
        elif what < 0.97:
            self.change_node()
        elif what < 0.98:
            self.restart()
        self.now += self.random.choice([0.0, 1.0, 30.0])

    def begin(self, of: Key) -> None:
        if of.name not in self.gathered:
            self.queue.pop(of, None)
            self.gather(of.name)

    # ---------------------------------------------------------------- the end

    def settle(self) -> None:
        """No circle, no missing task; passes under way end. Only events bring passes."""
        for name in TASKS:
            if name not in self.tasks:
                self.create(name)
            before = TASKS[: TASKS.index(name)]
            task = self.tasks[name]
            left = tuple(one for one in task.spec.depends_on if one.name in before)
            task.edit(depends_on=left, suspend=False)
            self.event(key(name))
        for name in list(self.gathered):
            self.finish(name)
        for _ in range(200):
            while self.queue:
                of = next(iter(self.queue))
                self.begin(of)
                if of.name in self.gathered:
                    self.finish(of.name)
            self.now += 700.0  # longer than any backoff
            self.finish_pods(well=True)
            for name, task in self.tasks.items():
                self.again(name, task)
            if not self.queue:
                return
        raise AssertionError("no end")

    def again(self, name: str, task: TrueTask) -> None:
        """A user asks for another run where one has failed; backoffs of retries end."""
        results = {entry.result for entry in task.entries.values()}
        if "Failed" in results:
            number = self.number()
            task.ask_again(f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z")
            self.event(key(name))
        elif RETRY in results and plan(task.snapshot(self.nodes, self.now)).launch.starts:
            self.event(key(name))


def replaced(pod: Pod, phase: str, now: float) -> Pod:
    return msgspec.structs.replace(pod, phase=phase, finished=now)


def new_pod(of: Snapshot, start: Start, now: float) -> Pod:
    name = of.task.metadata.name
    return Pod(
        name=f"{name}-{start.seq}",
        namespace="default",
        uid=f"{of.task.metadata.uid}-{start.node_uid}-{start.seq}",
        owner_uid=of.task.metadata.uid,
        labels={names.LABEL_TASK: name, names.LABEL_REVISION: of.revision},
        annotations={
            names.POD_NODE_NAME: start.node_name,
            names.POD_NODE_UID: start.node_uid,
            names.POD_RUN_KEY: start.run_key,
            names.POD_BOOT_ID: start.boot_id,
            names.POD_SEQ: str(start.seq),
            names.POD_NONCE: start.nonce,
            names.POD_TRIGGER: start.trigger,
        },
        created=now,
        node_name=start.node_name,
        phase="Running",
    )


@pytest.mark.parametrize("seed", range(SEED, SEED + examples(500)))
def test_whatever_happens_no_run_begins_out_of_order_and_all_end(seed: int) -> None:
    history = History(seed)
    for name in TASKS:
        history.create(name)
    for _ in range(STEPS):
        history.step()
    history.settle()
    assert history.starts
    for name, task in history.tasks.items():
        counts = plan(task.snapshot(history.nodes, history.now)).nodes.counts
        left = {state: n for state, n in counts.items() if n and state not in ("succeeded", "excluded")}
        assert not left, f"{name}: {left}"
