"""Any history of failures, refusals, dead nodes, slow deletions and wrong clocks keeps within the limits.

As in test_model.py hypothesis chooses what happens between any two API calls; here to seven nodes, in shards
of two or three, under one operator at a time. The judges are world.py and limits.py.
"""

import json
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from caretaker.api import names
from caretaker.api.times import format_time
from caretaker.daemontask import ledger
from simulation.daemontask.cluster import Clock
from simulation.daemontask.kubelets import Phase
from simulation.daemontask.limits import Limits
from simulation.daemontask.test_model import OneOperator, number, tried
from simulation.daemontask.world import CLOCKS, SlowWorld, virtual_time

NODES = tuple("abcdefg")
BUDGETS: tuple[list[dict[str, Any]], ...] = (
    [],
    [],
    [{"nodes": 1}],
    [{"nodes": "30%"}],
    [{"nodes": "0", "schedule": "*/2 * * * *", "duration": "1m"}],
    [{"nodes": 3}, {"nodes": 1, "schedule": "*/2 * * * *", "duration": "1m"}],
)

node = st.sampled_from(NODES)
widths = st.sampled_from([None, 1, 2, 3, "10%", "30%", "100%"])
policies = st.builds(
    lambda most, action: {"maxFailedNodes": most, "action": action},
    st.sampled_from([0, 0, 1, 2, "20%"]),
    st.sampled_from(["Pause", "Pause", "Fail", "Continue"]),
)


class Fleet(SlowWorld):
    """Seven nodes, one operator and the judge of limits."""

    nodes: ClassVar[tuple[str, ...]] = NODES
    replicas: ClassVar[int] = 1
    round_seconds: ClassVar[float] = 120.0

    def __init__(self, clock: Clock, **spec: Any) -> None:
        super().__init__(clock, **spec)
        self.limits = Limits(self.cluster, lambda: self.acting)

    def end_chaos(self) -> None:
        """What is refused or rejected stays so at first, and must hold up no other node. From now on runs
        succeed, unless the template is bad: nodes that were failing hold up none for good."""
        self.cluster.closed = False
        super().end_chaos()
        self.settle()
        self.settle_until(self.converged_or_shut)
        self.cluster.refused.clear()
        self.cluster.rejecting.clear()

    def converged_or_shut(self) -> bool:
        """Whether every node that can run is done. Permanent obstacles of the others are removed."""
        if self.limits.may_stop():
            self.cluster.edit(failurePolicy={"action": "Continue"})
        return self.converged(but=self.cluster.refused | self.cluster.rejecting)

    def converged(self, but: set[str] | frozenset[str] = frozenset()) -> bool:
        """Whether every node is done, `but` those."""
        entries = self.cluster.entries()
        wanted = [wire.record() for name, wire in self.cluster.nodes.items() if name not in but]
        stale = [one for one in wanted if self.cluster.needs_run(one, entries.get(one.name))]
        live = {
            self.cluster.pods[name].record().annotations[names.POD_NODE_NAME] for name in self.live_pods()
        }
        return not stale and not live - but


class Limited(OneOperator):
    """One task with limits; one operator leads at a time."""

    once: ClassVar[bool] = False
    world: Fleet

    @initialize(
        shard=st.sampled_from([2, 3]),
        width=widths,
        budgets=st.sampled_from(BUDGETS),
        policy=policies,
        retries=st.integers(0, 6),
        rest=st.sampled_from([0, 0, 30]),
        clocks=st.tuples(*[st.sampled_from(CLOCKS)] * len(NODES)),
        bad=st.booleans(),
    )
    def begin(
        self,
        shard: int,
        width: Any,
        budgets: list[dict[str, Any]],
        policy: dict[str, Any],
        retries: int,
        rest: int,
        clocks: tuple[float, ...],
        bad: bool,
    ) -> None:
        patch = self.time.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(ledger, "SHARD_NODES", shard)
        spec = {"parallelism": width, "budgets": budgets, "failurePolicy": policy, "minSuccessSeconds": rest}
        spec |= {"rerunOn": ["TemplateChange"], "progressDeadlineSeconds": 300}
        spec |= {"runGuarantee": "AtMostOnce", "backoffLimit": 0} if self.once else {"backoffLimit": retries}
        self.world = Fleet(self.time.enter_context(virtual_time()), **spec)
        self.cluster = self.world.cluster
        self.cluster.ahead.update(zip(NODES, clocks, strict=True))
        self.cluster.new_template(bad=bad)

    # ------------------------------------------------------------ the operator

    @rule(pods=st.booleans())
    def run_a_whole_pass(self, pods: bool) -> None:
        self.world.whole_pass(0, pods=pods)

    @rule()
    def lose_the_lease_and_get_it_back(self) -> None:
        self.world.act(0).depose()

    @rule(what=st.sampled_from(["nodes", "pods"]), count=st.integers(1, 6))
    def deliver_some_events(self, what: str, count: int) -> None:
        self.world.operators[0].deliver(what, count)

    # ------------------------------------------------------------ the nodes

    @rule(phase=st.sampled_from(["Succeeded", "Succeeded", "Failed"]))
    def run_all_pods(self, phase: Phase) -> None:
        self.world.run_pods(phase)

    @rule()
    def begin_all_pods(self) -> None:
        """They are seen to run, and go on."""
        self.world.whole_pass(0)
        for name in self.world.live_pods():
            self.cluster.bind(name)
        self.world.whole_pass(0)

    @rule(which=number, kept=st.booleans(), seconds=st.sampled_from([1, 31, 62, 301]))
    def wait_for_a_pod_to_go(self, which: int, kept: bool, seconds: int) -> None:
        """Its kubelet does not let go of it meanwhile."""
        self.delete_a_live_pod(which, kept)
        for _ in range(2):
            self.world.whole_pass(0)
            self.world.let_time_pass(seconds)
        self.world.whole_pass(0)

    @rule(which=number, how=st.sampled_from(["not ready", "rejecting"]), seconds=st.sampled_from([1, 31]))
    def let_a_run_take_its_node_down(self, which: int, how: str, seconds: int) -> None:
        """A run ends by a disruption; then its node is NotReady for a while, or its kubelet rejects Pods."""
        live = self.world.live_pods()
        if not live:
            return
        name = live[which % len(live)]
        target = self.cluster.pods[name].record().annotations[names.POD_NODE_NAME]
        if target not in self.cluster.nodes:
            return
        for step in (self.cluster.bind, self.cluster.delete_pod, self.cluster.let_go):
            if name in self.cluster.pods:
                step(name)
        self.world.whole_pass(0)
        if how == "rejecting":
            self.cluster.rejecting.add(target)
        else:
            self.cluster.set_ready(target, False)
        for _ in range(3):
            self.world.let_time_pass(seconds)
            self.world.whole_pass(0)
            for live_one in self.world.live_pods():
                self.cluster.run(live_one, "Succeeded")

    @rule(which=number, what=st.sampled_from(["bind", "stick", "pull", "run", "fail", "reject"]))
    def run_one_pod(self, which: int, what: str) -> None:
        live = self.world.live_pods()
        if not live:
            return
        name = live[which % len(live)]
        if what in ("run", "fail"):
            self.cluster.run(name, "Succeeded" if what == "run" else "Failed")
        elif what != "stick" or not self.cluster.pods[name].spec.node_name:
            getattr(self.cluster, what)(name)

    @rule(phase=st.sampled_from(["Succeeded", "Failed"]), seconds=st.sampled_from([1, 10, 40]))
    def work_for_a_while(self, phase: Phase, seconds: int) -> None:
        """A few rounds in which nothing else happens."""
        for _ in range(3):
            self.world.whole_pass(0)
            self.world.run_pods(phase)
            self.world.let_time_pass(seconds)
        self.world.whole_pass(0)

    @rule(which=node, what=st.sampled_from(["join", "replace", "remove", "ready", "not ready"]))
    def change_a_node(self, which: str, what: str) -> None:
        if what in ("join", "replace"):
            if (what == "join") == (which not in self.cluster.nodes):
                self.cluster.add_node(which)
        elif which not in self.cluster.nodes:
            return
        elif what == "remove":
            self.cluster.remove_node(which)
            self.cluster.collect()
        else:
            self.cluster.set_ready(which, what == "ready")

    @rule(which=node, what=st.sampled_from(["refused", "rejecting"]), on=st.booleans())
    def shut_a_node(self, which: str, what: str, on: bool) -> None:
        shut: set[str] = getattr(self.cluster, what)
        (shut.add if on else shut.discard)(which)

    @rule(closed=st.booleans())
    def shut_the_namespace(self, closed: bool) -> None:
        self.cluster.closed = closed

    # ------------------------------------------------------------ people and time

    @rule(bad=st.booleans())
    def change_the_template(self, bad: bool) -> None:
        self.cluster.new_template(bad=bad)

    @rule()
    def bring_the_former_template_back(self) -> None:
        self.cluster.edit(template=-1)

    @rule(width=widths, budgets=st.sampled_from(BUDGETS), policy=policies)
    def change_the_limits(self, width: Any, budgets: list[dict[str, Any]], policy: dict[str, Any]) -> None:
        self.cluster.edit(parallelism=width, budgets=budgets, failurePolicy=policy)

    @rule(suspend=st.booleans(), policy=st.sampled_from(["Forbid", "Replace"]))
    def change_the_task(self, suspend: bool, policy: str) -> None:
        self.cluster.edit(suspend=suspend, concurrencyPolicy=policy)

    @rule(which=st.none() | node)
    def run_again(self, which: str | None) -> None:
        self.world.clock.now += 1
        at = format_time(self.world.clock.now)
        if which is None:
            self.cluster.annotate(names.RERUN_AT, at)
        else:
            told = json.loads(self.cluster.annotations.get(names.RERUN_NODES, "{}"))
            self.cluster.annotate(names.RERUN_NODES, json.dumps({**told, which: at}))

    @rule()
    def resume(self) -> None:
        self.world.clock.now += 1
        self.cluster.annotate(names.RESUME_AT, format_time(self.world.clock.now))

    @rule(which=number, kept=st.booleans())
    def delete_a_live_pod(self, which: int, kept: bool) -> None:
        live = self.world.live_pods()
        if live:
            name = live[which % len(live)]
            if kept:
                self.cluster.kept.add(name)
            self.cluster.delete_pod(name)

    @rule(which=number)
    def delete_a_recorded_pod(self, which: int) -> None:
        found = sorted(n for n, pod in self.cluster.pods.items() if pod.metadata.uid in self.cluster.recorded)
        ended = [name for name in found if self.cluster.pods[name].record().terminal]
        if ended:
            self.cluster.delete_pod(ended[which % len(ended)])

    @rule(seconds=st.sampled_from([1, 6, 31, 60, 301]))
    def let_time_pass(self, seconds: int) -> None:
        self.world.let_time_pass(seconds)


class LimitedOnce(Limited):
    """The same of runs that are never repeated."""

    once: ClassVar[bool] = True


TestLimits = tried(Limited)
TestLimitsOnce = tried(LimitedOnce)
