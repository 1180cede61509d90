"""Any interleaving of events, lagging caches, lost answers, crashes and two operators keeps the promises.

The controller's own code runs against a cluster in memory; hypothesis chooses what happens next, between any
two API calls.
"""

from contextlib import ExitStack
from typing import Any, ClassVar, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from caretaker.api import names
from caretaker.api.times import format_time
from simulation.daemontask.kubelets import Phase
from simulation.daemontask.world import CLOCKS, NODES, SimWorld, SlowWorld, virtual_time
from testing.examples import examples

operator = st.integers(0, 1)
number = st.integers(0, 7)


class Model(RuleBasedStateMachine):
    """Two operators without election, two nodes, one task."""

    spec: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.time = ExitStack()
        self.make()

    def make(self) -> None:
        self.world = SlowWorld(self.time.enter_context(virtual_time()), **self.spec)
        self.cluster = self.world.cluster

    @initialize(clocks=st.tuples(*[st.sampled_from(CLOCKS)] * len(NODES)))
    def set_the_kubelets_clocks(self, clocks: tuple[float, ...]) -> None:
        self.cluster.ahead.update(zip(NODES, clocks, strict=True))

    # ------------------------------------------------------------ the operators

    @rule(who=operator, nodes=st.booleans(), pods=st.booleans())
    def run_a_whole_pass(self, who: int, nodes: bool, pods: bool) -> None:
        self.world.whole_pass(who, nodes=nodes, pods=pods)

    @rule(who=operator, calls=st.integers(0, 12), which=number)
    def run_part_of_a_pass(self, who: int, calls: int, which: int) -> None:
        """It begins, or goes on; anything may happen before it does so again."""
        one = self.world.act(who)
        one.begin()
        for _ in range(calls):
            one.answer(which)

    @rule(who=operator, which=number, executed=st.booleans())
    def lose_a_call(self, who: int, which: int, executed: bool) -> None:
        if executed:
            self.world.act(who).answer(which, lose_reply=True)
        else:
            self.world.act(who).refuse(which, 503)

    @rule(who=operator, executed=st.integers(0, 7))
    def kill_and_restart(self, who: int, executed: int) -> None:
        one = self.world.act(who)
        one.crash(executed)
        one.start()

    @rule(who=operator, what=st.sampled_from(["nodes", "pods"]), count=st.integers(1, 6))
    def deliver_some_events(self, who: int, what: str, count: int) -> None:
        self.world.operators[who].deliver(what, count)

    # ------------------------------------------------------------ the nodes

    @rule(phase=st.sampled_from(["Succeeded", "Succeeded", "Failed"]))
    def finish_all_pods(self, phase: Phase) -> None:
        self.world.run_pods(phase)

    @rule(which=number, phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def run_one_pod(self, which: int, phase: Phase | Literal["Running"]) -> None:
        live = self.world.live_pods()
        if live:
            self.cluster.bind(live[which % len(live)])
            if phase != "Running":
                self.cluster.finish(live[which % len(live)], phase)

    @rule(which=number, restarts=st.sampled_from([None, 0, 1, 2]))
    def reject_a_pod_or_restart_its_container(self, which: int, restarts: int | None) -> None:
        """Nothing of it ran; or a container failed once more than it was restarted."""
        live = self.world.live_pods()
        if live and restarts is None:
            self.cluster.reject(live[which % len(live)])
        elif live and restarts is not None:
            self.cluster.crash(live[which % len(live)], restarts)

    @rule(which=st.sampled_from(NODES), ahead=st.sampled_from([0.0, -3600.0, 3600.0, -3e8, 3e8]))
    def set_the_clock_of_a_kubelet(self, which: str, ahead: float) -> None:
        self.cluster.ahead[which] = ahead

    @rule(does=st.booleans())
    def say_whether_the_task_reboots_its_node(self, does: bool) -> None:
        self.cluster.edit(rebootsNode=does)

    @rule(
        which=st.sampled_from(NODES),
        what=st.sampled_from(["reboot", "replace", "remove", "ready", "not ready"]),
    )
    def change_a_node(self, which: str, what: str) -> None:
        if what == "replace":
            self.cluster.add_node(which)
        elif which not in self.cluster.nodes:
            return
        elif what == "reboot":
            self.cluster.reboot(which)
        elif what == "remove":
            self.cluster.remove_node(which)
            self.cluster.collect()
        else:
            self.cluster.set_ready(which, what == "ready")

    # ------------------------------------------------------------ people and time

    @rule(what=st.sampled_from(["template", "former template", "rerun", "suspend", "resume"]))
    def change_the_task(self, what: str) -> None:
        if what.endswith("template"):
            self.cluster.edit(template=1 if what == "template" else -1)
        elif what == "rerun":
            self.world.clock.now += 1
            self.cluster.annotate(names.RERUN_AT, format_time(self.world.clock.now))
        else:
            self.cluster.edit(suspend=what == "suspend")

    @rule(
        schedule=st.sampled_from([None, "* * * * *", "*/2 * * * *"]),
        deadline=st.sampled_from([None, 10]),
        policy=st.sampled_from(["Forbid", "Replace"]),
    )
    def change_the_schedule(self, schedule: str | None, deadline: int | None, policy: str) -> None:
        self.cluster.edit(schedule=schedule, startingDeadlineSeconds=deadline, concurrencyPolicy=policy)

    @rule(
        budget=st.sampled_from(
            [[], [{"nodes": 1}], [{"nodes": "0", "schedule": "*/2 * * * *", "duration": "1m"}]]
        )
    )
    def change_the_budgets(self, budget: list[dict[str, Any]]) -> None:
        self.cluster.edit(budgets=budget)

    @rule(which=number, kept=st.booleans())
    def delete_a_live_pod(self, which: int, kept: bool) -> None:
        """Its kubelet may take its time, and a finalizer may keep what is left of it."""
        live = self.world.live_pods()
        if live:
            if kept:
                self.cluster.kept.add(live[which % len(live)])
            self.cluster.delete_pod(live[which % len(live)])

    @rule()
    def lift_the_finalizers(self) -> None:
        self.cluster.kept.clear()

    @rule()
    def take_the_labels_of_the_ledger(self) -> None:
        """While status says that there is one: before that an operator that starts does not miss it, until it
        has something to write."""
        if self.cluster.status.ledger.shards:
            for name in self.cluster.configmaps:
                self.cluster.take_labels(name)

    @rule(seconds=st.sampled_from([1, 6, 31, 60]))
    def let_time_pass(self, seconds: int) -> None:
        self.world.let_time_pass(seconds)

    @rule(who=operator)
    def let_a_tick_come_and_its_runs_end(self, who: int) -> None:
        if self.cluster.spec.schedule is None:
            self.cluster.edit(schedule="* * * * *")
        self.world.let_time_pass(60)
        for _ in range(2):  # the tick is stored, the runs begin
            self.world.whole_pass(who)
        self.world.run_pods()
        self.world.whole_pass(who)

    @rule(seconds=st.sampled_from([-90, -20, 90]))
    def set_the_clock(self, seconds: int) -> None:
        """Forth or back; the calls under way go on."""
        self.world.set_clock(seconds)

    @rule(which=number)
    def delete_a_finished_pod(self, which: int) -> None:
        """As somebody does who clears up: recorded or not."""
        ended = sorted(self.cluster.pods.keys() - set(self.world.live_pods()))
        if ended:
            self.cluster.drop_pod(ended[which % len(ended)])

    def teardown(self) -> None:
        with self.time:
            try:
                self.world.converge()
            finally:
                self.world.close()


class OneOperator(RuleBasedStateMachine):
    """One operator at a time; each call is answered, lost or refused. Subclasses make the world."""

    world: SimWorld

    def __init__(self) -> None:
        super().__init__()
        self.time = ExitStack()

    @rule(calls=st.integers(0, 12), which=number)
    def run_part_of_a_pass(self, calls: int, which: int) -> None:
        one = self.world.act(0)
        one.begin()
        for _ in range(calls):
            one.answer(which)

    @rule(which=number, executed=st.booleans())
    def lose_a_call(self, which: int, executed: bool) -> None:
        if executed:
            self.world.act(0).answer(which, lose_reply=True)
        else:
            self.world.act(0).refuse(which, 503)

    @rule(executed=st.integers(0, 7))
    def hand_over(self, executed: int) -> None:
        """The operator is killed; another one takes over once its calls have arrived or are lost."""
        one = self.world.act(0)
        one.crash(executed)
        one.start()

    def teardown(self) -> None:
        with self.time:
            if not hasattr(self, "world"):
                return
            try:
                self.world.converge()
            finally:
                self.world.close()


class AtLeastOnce(Model):
    """Runs are repeated until one succeeds."""


class AtMostOnce(Model):
    """No run key of a node is ever placed twice: the judge of world.py sees to it."""

    spec: ClassVar[dict[str, Any]] = {"runGuarantee": "AtMostOnce", "backoffLimit": 0}

    @rule(who=operator, which=number)
    def refuse_a_call(self, who: int, which: int) -> None:
        """By a quota, say: it is known not to have been executed."""
        self.world.act(who).refuse(which, 403)

    @rule(who=operator)
    def lose_the_lease_and_get_it_back(self, who: int) -> None:
        self.world.act(who).depose()

    @rule(which=st.sampled_from(NODES))
    def corrupt_an_entry(self, which: str) -> None:
        self.cluster.corrupt(which)

    def teardown(self) -> None:
        last = self.world.act(0)  # an entry that was edited by hand is noticed by whom it surprises
        last.crash(0)
        last.start()
        super().teardown()


def tried(model: type[RuleBasedStateMachine]) -> Any:
    """The test of a model."""
    test = model.TestCase
    test.settings = settings(
        max_examples=examples(60),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return test


TestModel = tried(AtLeastOnce)
TestAtMostOnce = tried(AtMostOnce)
