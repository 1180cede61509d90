"""No change without evidence: the clocks, readings and probe results on which a pass relies are lost, wrong or
late. The judge of world/judge.py looks at every change that is sent."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from unit.imds.test_incidents import SPEC, A
from unit.imds.world.world import World

FAST: Final[dict[str, Any]] = SPEC | {"safety": SPEC["safety"] | {"maxChangesPerMinute": 60}}


def right(world: World) -> bool:
    """Whether all have what the policy asks for."""
    wanted = world.cluster.policy("p").options().items()
    return all(wanted <= world.instance_of(node).last.options.items() for node in world.cluster.nodes)


@pytest.fixture
def world() -> Iterator[World]:
    made = World({A: {}})
    for _ in range(12):
        made.join(A, team="x")
    made.ec2.applies_in = 3.0
    yield made
    made.close()


@pytest.mark.parametrize(
    ("options", "soak"), [({"httpPutResponseHopLimit": 2}, 120.0), ({"httpEndpoint": "disabled"}, 1_800.0)]
)
@pytest.mark.parametrize("ahead", [180.0, 3_600.0])
@pytest.mark.parametrize("stands_by", [False, True])
def test_the_clock_of_the_next_leader_does_not_end_a_soak(
    world: World, options: dict[str, Any], soak: float, ahead: float, stands_by: bool
) -> None:
    world.apply("p", **FAST | {"options": options})
    world.run(60.0)
    assert world.ready("p") == "CanarySoaking"
    if stands_by:
        world.operator.change_leader()
    else:
        world.operator.restart()
    world.clock.jump(ahead)
    world.run(soak - 5.0, until=lambda: bool(world.judge.sends))
    assert (world.ready("p"), world.judge.sends) == ("CanarySoaking", [])
    world.run(soak, until=lambda: right(world))
    assert right(world), "a change of leader costs one soak at most"
