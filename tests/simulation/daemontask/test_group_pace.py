"""How long two tasks of an exclusive group take, beside one after the other."""

import os
from typing import Any

import pytest

from simulation.daemontask.group import GROUP, GroupWorld, Task
from simulation.daemontask.world import virtual_time

NODES = int(os.environ.get("GROUP_NODES", "200"))
SECONDS = 30.0  # that a run takes


class Plain(Task):
    """Without the notes of other judges, which take long with many nodes."""

    def _note(self) -> None:
        return

    def held(self, *, live: bool = False) -> set[str]:  # noqa: ARG002
        return {pod.node_uid for pod in self.live()}


class Large(GroupWorld):
    made_of = Plain

    def run_for_a_second(self) -> None:
        """Pods begin at once and end after SECONDS; every pass that is due runs."""
        for pod in [self.first.record(one) for one in self.first.pods.values()]:
            if not pod.terminal:
                self.first.bind(pod.name)
                if self.clock.now >= pod.created + SECONDS:
                    self.first.run(pod.name, "Succeeded")
        for _ in range(10):
            for what in ("nodes", "pods"):
                self.leader.deliver(what, 1 << 30)
            if not self.leader.run_due():
                break
        self.clock.now += 1.0

    def time_of_all(self) -> float:
        """Virtual seconds until every task has succeeded everywhere."""
        began, nodes = self.clock.now, len(self.first.nodes)
        while any(task.status.succeeded < nodes for task in self.tasks.values()):
            self.run_for_a_second()
        return self.clock.now - began


def elapsed(nodes: int, specs: dict[str, Any]) -> tuple[float, GroupWorld]:
    with virtual_time() as clock:
        world = Large(clock, nodes, specs)
        try:
            return world.time_of_all(), world
        finally:
            world.close()


@pytest.mark.slow
@pytest.mark.parametrize("group", [{"parallelism": "10%"}, {}], ids=["a width of the group", "none"])
def test_two_tasks_of_a_group_take_no_longer_than_one_after_the_other(group: dict[str, Any]) -> None:
    """GROUP_NODES=1000 for the figure of the spec."""
    member = {"parallelism": "10%", "exclusive": {"group": GROUP, **group}}
    alone, _ = elapsed(NODES, {"a": member})
    together, world = elapsed(NODES, {"a": member, "b": member})
    print(f"{NODES} nodes: {together:.0f} s, one after the other {2 * alone:.0f} s; most {world.most}")
    assert together <= 1.1 * 2 * alone
    assert world.both == 0
