"""Nodes are opened beside the rest of a pass, and neither holds up the other."""

import asyncio
import time

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from caretaker.api.objects import Pod
from caretaker.daemontask.apply import Applier, Controls
from caretaker.daemontask.cordon_control import CordonControl
from caretaker.daemontask.drain_control import DrainControl
from caretaker.daemontask.gate_control import GateControl
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.plan import plan
from caretaker.daemontask.pod_control import PodControl
from caretaker.daemontask.shards import Shards
from caretaker.daemontask.status_input import Outcome
from caretaker.kube.errors import ApiError
from caretaker.kube.store import Store
from simulation.daemontask.gates import BUSY, OTHER, POLICY, SHUT, Gates, shut
from unit.daemontask.build import UID, entry, failed, node, snapshot, succeeded


class Pass:
    """What Applier does about a plan; the API server knows nodes, Pods that it deletes, and ledgers."""

    def __init__(self, gates: Gates, *pods: Pod) -> None:
        server, self.gates = gates.server, gates
        by_node = {one.name: entry(one) for one in gates.server.nodes.values() if not pods}
        self.found = snapshot(gates.task, list(server.nodes.values()), list(pods), by_node)
        shards = Shards(server, "default", "task", UID)  # type: ignore[arg-type]
        shards.loaded = True
        gates.state.ledger.shards = shards
        metrics = DaemonTaskMetrics(CollectorRegistry())
        controls = Controls(
            pods=PodControl(server, Store[Pod]()),  # type: ignore[arg-type]
            gates=GateControl(server, gates.store),  # type: ignore[arg-type]
            cordons=CordonControl(server, gates.store),  # type: ignore[arg-type]
            drains=DrainControl(server, metrics),  # type: ignore[arg-type]
        )
        self.applier = Applier(controls, metrics)

    def run(self) -> Outcome:
        return asyncio.run(self.applier.apply(self.found, plan(self.found), self.gates.state))


def test_the_outcome_tells_of_nodes_that_were_opened_and_of_others() -> None:
    gates = Gates(shut("a", "b"))
    gates.refuse(POLICY, "a")
    before = time.time()
    outcome = Pass(gates).run()
    assert (outcome.opened, outcome.unopened) == ({"b"}, {"a": POLICY.message})
    assert 1.0 <= outcome.open_at - before < 3.0
    assert not outcome.more


def test_a_node_that_has_changed_is_looked_at_again_at_once() -> None:
    gates = Gates(shut("a"))
    gates.refuse(BUSY)
    gates.server.reads = {"a": node("a", taints=(OTHER, SHUT))}
    assert 0.0 < Pass(gates).run().open_at <= time.time()


def test_where_reboots_count_a_node_is_opened_for_its_boot_alone() -> None:
    gates = Gates(shut("a", boot_id="boot-a"))
    gates.task = msgspec.structs.replace(
        gates.task, spec=msgspec.structs.replace(gates.task.spec, rerun_on=("NodeReboot",))
    )
    Pass(gates).run()
    step = {"op": "test", "path": "/status/nodeInfo/bootID", "value": "boot-a"}
    assert [step in sent for sent in gates.server.sent] == [True]


def test_a_node_is_opened_though_its_success_cannot_be_recorded() -> None:
    gates = Gates(shut("a"))
    done = Pass(gates, succeeded(shut("a")[0]))
    with pytest.raises(ApiError, match="boom"):
        done.run()
    assert gates.server.nodes["a"].taints == ()


def test_pods_are_deleted_before_a_slow_node_is_open() -> None:
    gates, order = Gates(shut("a")), list[str]()
    deleted = asyncio.Event()

    async def pause(what: str) -> None:
        if what.startswith("delete"):
            order.append("delete")
            deleted.set()
        else:
            await asyncio.wait_for(deleted.wait(), 5.0)
            order.append("open")

    gates.server.pause = pause
    of = Pass(gates)
    made = msgspec.structs.replace(plan(of.found), deletes=(failed(shut("a")[0]),))
    asyncio.run(of.applier.apply(of.found, made, gates.state))
    assert order == ["delete", "open"]
