"""The histories of test_model.py, of a task that refers to data which changes, goes and may not be read;
and histories of bad data under a canary, with one operator.
"""

import itertools
from collections import defaultdict
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule

from caretaker.api import names
from caretaker.api.objects import Pod
from simulation.daemontask.cluster import Clock
from simulation.daemontask.data import MAP, SECRET, DataCluster, DataWorld, data_time
from simulation.daemontask.test_model import AtMostOnce, Model, OneOperator, tried

path = st.sampled_from([MAP, SECRET])


class ByData(Model):
    """Two operators without election, two nodes, one task with a ConfigMap and a Secret."""

    world: DataWorld
    cluster: DataCluster

    def make(self) -> None:
        self.world = DataWorld(self.time.enter_context(data_time()), **self.spec)
        self.cluster = self.world.cluster

    def set_the_clock(self, seconds: int) -> None:
        """Not here: the one clock is the monotonic one, too."""

    @rule(which=path, value=st.sampled_from("012"))
    def edit_the_data(self, which: str, value: str) -> None:
        """Or its metadata alone, or it is created."""
        self.cluster.put(which, value)

    @rule(which=path)
    def delete_the_object(self, which: str) -> None:
        self.cluster.take(which)

    @rule(which=path)
    def delete_it_and_make_it_again(self, which: str) -> None:
        if which in self.cluster.objects:
            value = self.cluster.objects[which].data["v"]
            self.cluster.take(which)
            self.cluster.put(which, value)

    @rule(which=path, denied=st.booleans())
    def take_or_give_the_right_to_get_it(self, which: str, denied: bool) -> None:
        self.cluster.deny(which, denied=denied)

    @rule(count=st.sampled_from([2, 2, 1, 0]))
    def refer_to_other_data(self, count: int) -> None:
        self.cluster.refer(count)


class AtMostOnceByData(AtMostOnce, ByData):
    """No run of the same data is placed twice, unless other data was wanted between."""

    spec: ClassVar[dict[str, Any]] = AtMostOnce.spec


class Careful(DataWorld):
    """Five nodes, two at a time, of which one is the canary."""

    nodes: ClassVar[tuple[str, ...]] = tuple("abcde")
    replicas: ClassVar[int] = 1

    def __init__(self, clock: Clock) -> None:
        canary = {"nodes": 1, "soakSeconds": 60}
        super().__init__(clock, canary=canary, parallelism=2, backoffLimit=0)
        self.hit = defaultdict[str, set[str]](set)  # bad revision -> nodes that have run it
        self.cluster.on_create.append(self.judge_width)
        self.cluster.on_run.append(self.judge_radius)

    def judge_width(self, pod: Pod) -> None:
        live = self.live_pods()
        assert len(live) < 2, f"{pod.name} is one more than {live}"

    def judge_radius(self, pod: Pod) -> None:
        if self.cluster.is_bad(pod):
            hit = self.hit[pod.labels[names.LABEL_REVISION]]
            hit.add(pod.node_uid)
            assert len(hit) == 1, f"bad data reaches {hit}"


class BadData(OneOperator):
    """Data with which every run fails comes again and again, each time other; the former data comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.world: Careful = Careful(self.time.enter_context(data_time()))
        self.cluster: DataCluster = self.world.cluster
        self.numbers = itertools.count()

    @rule(which=path, bad=st.booleans(), value=st.sampled_from("01"))
    def edit_the_data(self, which: str, bad: bool, value: str) -> None:
        self.cluster.put(which, f"bad-{next(self.numbers)}" if bad else value)

    @rule(which=path)
    def delete_the_object(self, which: str) -> None:
        self.cluster.take(which)

    @rule(which=path, denied=st.booleans())
    def take_or_give_the_right_to_get_it(self, which: str, denied: bool) -> None:
        self.cluster.deny(which, denied=denied)

    @rule(policy=st.sampled_from(["Forbid", "Replace"]))
    def change_the_policy(self, policy: str) -> None:
        self.cluster.edit(concurrencyPolicy=policy)

    @rule(seconds=st.sampled_from([1, 31, 61]), passes=st.integers(1, 8))
    def work(self, seconds: int, passes: int) -> None:
        for _ in range(passes):
            self.world.run_pods()
            self.world.whole_pass(0)
            self.world.let_time_pass(seconds)

    @rule(nodes=st.booleans(), pods=st.booleans())
    def run_a_whole_pass(self, nodes: bool, pods: bool) -> None:
        self.world.whole_pass(0, nodes=nodes, pods=pods)

    @rule()
    def run_the_pods(self) -> None:
        self.world.run_pods()

    @rule(seconds=st.sampled_from([1, 6, 31, 61]))
    def let_time_pass(self, seconds: int) -> None:
        self.world.let_time_pass(seconds)


TestByData = tried(ByData)
TestAtMostOnceByData = tried(AtMostOnceByData)
TestBadData = tried(BadData)
