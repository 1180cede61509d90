"""The verification probe's DaemonTask on a real API server: who is probed, when again, what is told."""

import json
from typing import Any

import msgspec

from caretaker.api.objects import Node, WireNode
from caretaker.api.times import stamp_after
from caretaker.imds.probe import LEDGER_SELECTOR, TASK_NAME, findings, needs_write, task
from caretaker_probe.classify import Answer, NoAnswer, Observation, classify
from testbed.admin import Json, path
from testing.kubelet import Outcome, measured
from testing.world import Task, World

SEEN = Observation(
    needed_hops=2,
    token=Answer(200, "token", "EC2ws"),
    instance=Answer(200, "i-0123456789abcdef0", "EC2ws"),
    without=Answer(401, server="EC2ws"),
)


def told(seen: Observation) -> Outcome:
    """A run of the probe that saw this."""
    return measured(json.dumps(classify(seen).as_json()))


async def apply(world: World, **marks: str) -> Json:
    """As IMDSPolicy's controller would: nothing when nothing differs. Returns what stands then."""
    wanted = task(world.namespace, "test:1", marks)
    url = path("daemontasks", world.namespace, TASK_NAME)
    current = await world.admin.find(url)
    if current is None:
        assert wanted is not None
        return await world.admin.create(path("daemontasks", world.namespace), wanted)
    if needs_write(current, wanted):
        assert wanted is not None
        return await world.admin.patch(url, wanted)
    return current


async def known(world: World, names: list[str]) -> dict[str, Any]:
    """The findings by node, of what is in the cluster."""
    nodes: dict[str, Node] = {}
    for name in names:
        nodes[name] = msgspec.convert(await world.node(name), WireNode).record()
    shards = await world.admin.list(path("configmaps", world.namespace), labels=LEDGER_SELECTOR)
    return findings([shard.get("data") or {} for shard in shards], nodes)


async def test_chosen_nodes_are_probed_once_and_again_when_asked(world: World) -> None:
    names = await world.join(3)
    good, limited, other = names
    world.kubelet.script(good, told(SEEN))
    world.kubelet.script(
        limited, told(Observation(needed_hops=2, token=NoAnswer("timeout"), without=SEEN.without))
    )
    await world.taint(limited, "NoSchedule")
    made = await apply(world, **{good: "", limited: ""})
    probe: Task = world.handle(TASK_NAME)
    found = await probe.done(2)
    assert sorted(node for node, _ in world.kubelet.ran) == sorted([good, limited])
    first = await known(world, names)
    assert {name: (f.verdict, f.needed_hops) for name, f in first.items()} == {
        good: ("Reachable", 2),
        limited: ("HopLimited", 2),
    }
    figures = {result["name"]: result for result in found["status"]["results"]}
    assert figures["verdict"]["values"] == [
        {"value": "HopLimited", "nodes": 1},
        {"value": "Reachable", "nodes": 1},
    ]
    assert (figures["latencyMs"]["count"], figures["neededHops"]["max"]) == (1, 2)
    assert found["status"]["resultErrors"] == []
    again = await apply(world, **{good: "", limited: ""})
    assert again["metadata"]["generation"] == made["metadata"]["generation"], "nothing to write"
    # The policy has raised the limit: that node again, and one more is chosen.
    world.kubelet.default = told(SEEN)
    mark = stamp_after(2_000_000_000.0, ())
    await apply(world, **{good: "", limited: mark, other: ""})
    await probe.ledger_when(lambda entries: other in entries and entries[limited].get("nonce") == mark)
    await probe.done(3)
    assert {name: f.verdict for name, f in (await known(world, names)).items()} == dict.fromkeys(
        names, "Reachable"
    )
    assert sorted(node for node, _ in world.kubelet.ran) == sorted([good, limited, limited, other])
