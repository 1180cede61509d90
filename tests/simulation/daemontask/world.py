"""A cluster in memory, two operators without election, and the judge of what they do to it.

The judge looks at every Pod that is created or deleted, on what is true at that moment: never two live Pods
for a node; no run that nothing asked for since the pass began; no recorded success runs again, and none is
deleted unrecorded. With AtMostOnce nothing is created without an intent, and no run of which a node has had a
Pod, whatever became of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from caretaker.api import names
from caretaker.api.objects import Pod
from caretaker.daemontask import apply, controller, pod_control, shards, task_state, watch_handlers
from caretaker.daemontask.intents import is_open, was_unreadable
from caretaker.runtime import controller as loop_controller
from simulation.daemontask.cluster import Clock, SimCluster
from simulation.daemontask.kubelets import Phase, SlowCluster
from simulation.daemontask.operator import SimOperator, StepLoop

DAY = 86_400.0
CLOCKS = (-3650 * DAY, -DAY, -90.0, 0.0, 0.0, 0.0, 90.0, DAY, 3650 * DAY)  # of kubelets, seconds ahead
NODES = ("a", "b")
ROUNDS = 150  # of converge(): more than the longest backoffs and deadlines together


class SimWorld:
    """`operators` are numbered; `acting` is the one whose calls are let go."""

    made_of: ClassVar[type[SimCluster]] = SimCluster
    nodes: ClassVar[tuple[str, ...]] = NODES
    replicas: ClassVar[int] = 2
    round_seconds: ClassVar[float] = 30.0  # of converge()

    def __init__(self, clock: Clock, **spec: Any) -> None:
        self.clock = clock
        self.loop = StepLoop()
        spec = {
            "rerunOn": ["TemplateChange", "NodeReboot"],
            "backoffLimit": 1,
            "ttlSecondsAfterFinished": 0,
            **spec,
        }
        self.cluster = self.made_of(clock, **spec)
        self.cluster.on_create.append(self.judge)
        self.cluster.on_delete.append(self.judge_delete)
        self.cluster.on_bind.append(self.note_placed)
        self.placed: set[tuple[str, str]] = set()  # (node UID, run key) of every Pod that a node has got
        for name in self.nodes:
            self.cluster.add_node(name)
        self.operators = [SimOperator(self.cluster, self.loop) for _ in range(self.replicas)]
        self.acting = self.operators[0]
        self.harmed = False  # somebody has put an older ledger in the place of a newer one
        self.clock_set = -1  # the cluster's version when somebody set the operators' clock

    def close(self) -> None:
        for one in self.operators:
            one.crash(0)
        self.loop.close()

    # ------------------------------------------------------------ what may happen

    def act(self, who: int) -> SimOperator:
        """The operator that acts from now on."""
        self.acting = self.operators[who]
        return self.acting

    def whole_pass(self, who: int, *, nodes: bool = True, pods: bool = True) -> None:
        """After all events of the watches that do not lag."""
        one = self.act(who)
        for what, arrives in (("nodes", nodes), ("pods", pods)):
            if arrives:
                one.deliver(what, len(self.cluster.node_log) + len(self.cluster.pod_log))
        one.begin()
        one.finish()

    def run_pods(self, phase: Phase = "Succeeded") -> None:
        """The scheduler and the kubelets do their work."""
        for name in sorted(self.cluster.pods):
            self.cluster.bind(name)
            self.cluster.finish(name, phase)

    def live_pods(self) -> list[str]:
        return [
            name for name, pod in sorted(self.cluster.pods.items()) if not self.cluster.record(pod).terminal
        ]

    def set_clock(self, seconds: float) -> None:
        """Somebody sets the operators' clock; no time passes."""
        self.clock.now += seconds
        self.clock_set = self.cluster.version

    def let_time_pass(self, seconds: float) -> None:
        """Calls whose time is over fail."""
        self.clock.now += seconds
        for one in self.operators:
            one.expire()

    # ------------------------------------------------------------ the judge

    def judge(self, pod: Pod) -> None:
        same = [p for p in map(self.cluster.record, self.cluster.pods.values()) if p.node_uid == pod.node_uid]
        # An operator whose clock was set may give up an intent while its Pod is on its way, and start anew.
        apart = self.cluster.spec.at_most_once and self.clock_set >= self.acting.began
        assert apart or all(p.terminal for p in same), f"a second live Pod for {pod.node_uid}"
        key = pod.annotations[names.POD_RUN_KEY]
        name = pod.annotations[names.POD_NODE_NAME]
        entry = self.cluster.entries().get(name)
        if self.cluster.spec.at_most_once:
            renewed = (pod.node_uid, key, pod.seq) in self.cluster.renewed  # its template came back
            assert renewed or (pod.node_uid, key) not in self.placed, f"{key} of {pod.node_uid} may run twice"
            assert (pod.node_uid, key, pod.seq) in self.cluster.intended, "no intent"
            # A request under way cannot be called back by whoever gives its intent up meanwhile: one whose
            # clock jumps, or that finds it corrupt.
            mine = entry is not None and (entry.run_key, entry.seq) == (key, pod.seq) and bool(entry.intent)
            late = mine or (entry is not None and was_unreadable(entry))
            assert entry is None or is_open(entry) or late, f"{entry} lets nothing start"
        if entry is not None and entry.node_uid == pod.node_uid:
            assert (entry.run_key, entry.result) != (key, "Succeeded"), "a recorded success runs again"
        recorded = entry.ended if entry is not None and entry.node_uid == pod.node_uid else 0
        succeeded = [p for p in same if p.phase == "Succeeded" and p.seq > recorded]
        # A create under way when the entry is broken finds none, but what had been recorded was. No key runs
        # twice under AtMostOnce, see above.
        broken = self.is_broken(name)
        unrecorded = [p.name for p in succeeded if not (broken and p.uid in self.cluster.recorded)]
        assert not unrecorded, f"{unrecorded} succeeded and is not recorded"
        asked = self.cluster.last_needed(pod.node_uid)
        assert asked >= self.acting.began, f"{pod.node_uid} has needed no run since the pass began"

    def note_placed(self, pod: Pod) -> None:
        """A node gets the Pod, and may run it."""
        self.placed.add((pod.node_uid, pod.annotations[names.POD_RUN_KEY]))

    def is_broken(self, node: str) -> bool:
        """Whether the node's entry may say less than it did, so that nothing starts before somebody
        decides."""
        return self.cluster.spec.at_most_once and (self.harmed or self.cluster.is_corrupt(node))

    def judge_delete(self, pod: Pod) -> None:
        node = self.cluster.nodes.get(pod.annotations[names.POD_NODE_NAME])
        if pod.phase != "Succeeded" or node is None or node.metadata.uid != pod.node_uid:
            return
        entry = self.cluster.entries().get(node.metadata.name)
        recorded = entry.ended if entry is not None and entry.node_uid == pod.node_uid else 0
        broken = self.is_broken(node.metadata.name)
        known = pod.seq <= recorded or (broken and pod.uid in self.cluster.recorded)
        assert known, f"{pod.name} succeeded and is deleted before it is recorded"

    def converge(self) -> None:
        """The chaos ends, one operator is left: every node gets recorded, then nothing is written."""
        self.end_chaos()
        self.settle_until(self.converged)
        for _ in range(5):  # what TTL takes
            self.clock.now += 60
            self.settle()
        writes = self.cluster.writes
        self.settle()
        assert self.cluster.writes == writes, "writes although nothing is left to do"
        assert not self.cluster.unequal, self.cluster.unequal[0]

    def end_chaos(self) -> None:
        """What is due stays due, but nothing comes due any more, nor is held."""
        while len(self.operators) > 1:
            self.operators.pop().crash(0)
        for name in list(self.cluster.nodes):
            self.cluster.set_ready(name, True)
        self.cluster.edit(
            suspend=False, budgets=[], schedule="0 0 1 1 *" if self.cluster.spec.schedule else None
        )

    def settle_until(self, done: Callable[[], bool]) -> None:
        """Time passes, as much as it takes."""
        for _ in range(ROUNDS):
            self.settle()
            if done():
                return
            self.clock.now += self.round_seconds
        raise AssertionError((self.cluster.entries(), list(self.cluster.pods.values())))

    def settle(self) -> None:
        """Everything that is under way arrives; one pass runs."""
        self.act(0).finish()
        self.run_pods()
        self.cluster.collect()
        self.whole_pass(0)

    def converged(self) -> bool:
        entries = self.cluster.entries()
        nodes = list(map(self.cluster.record, self.cluster.nodes.values()))
        stale = [node for node in nodes if self.cluster.needs_run(node, entries.get(node.name))]
        return not stale and not self.live_pods()


class SlowWorld(SimWorld):
    """One whose deletions take time, and whose kubelets have clocks of their own."""

    made_of: ClassVar[type[SimCluster]] = SlowCluster
    cluster: SlowCluster

    def run_pods(self, phase: Phase = "Succeeded") -> None:
        for name in sorted(self.cluster.pods):
            self.cluster.run(name, phase)

    def end_chaos(self) -> None:
        self.cluster.kept.clear()
        super().end_chaos()


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """The controller's modules read this clock instead of the machine's."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (apply, controller, task_state, pod_control, shards, watch_handlers, loop_controller):
            patch.setattr(module, "time", clock)
        yield clock


Make = Callable[..., SimWorld]  # with fields of a spec
