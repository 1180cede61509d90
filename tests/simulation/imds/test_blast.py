"""How far a change that kills reaches: 300 instances in five groups, each kind of harm, in one group or in
all. Nothing outside the canaries is changed to it, and no group loses more than its canary."""

from collections import Counter
from typing import Any, Final

import pytest

from simulation.imds.truth import WORDS, Group
from simulation.imds.world import World
from testing.examples import examples

pytestmark = pytest.mark.random
GROUPS: Final[list[Group]] = [
    ("EKSManagedNodegroup", "a"),
    ("EKSManagedNodegroup", "b"),
    ("KarpenterNodePool", "c"),
    ("AutoScalingGroup", "d"),
    ("", ""),
]
LAUNCHED: Final = {"HttpPutResponseHopLimit": 2, "HttpTokens": "optional", "HttpEndpoint": "enabled"}
HARM: Final[dict[str, tuple[str, Any, dict[str, Any]]]] = {
    "endpoint disabled": ("HttpEndpoint", "disabled", {"httpEndpoint": "disabled"}),
    "hop limit 1 under Pods": ("HttpPutResponseHopLimit", 1, {"httpPutResponseHopLimit": 1}),
    "tokens required with clients of v1": ("HttpTokens", "required", {"httpTokens": "required"}),
    "a harmless option beside it": (
        "HttpPutResponseHopLimit",
        1,
        {"httpTokens": "required", "httpPutResponseHopLimit": 1},
    ),
}
QUICK: Final = ("hop limit 1 under Pods", "endpoint disabled")
EACH: Final = examples(300, 7) // len(GROUPS)
DAY: Final = 86_400.0


def world(canary: int, options: dict[str, Any], **more: Any) -> World:
    made = World(dict.fromkeys(GROUPS, LAUNCHED))
    for number in range(EACH * len(GROUPS)):
        made.join(GROUPS[number % len(GROUPS)])
    safety = {
        "allowTightening": WORDS,
        "canary": {"instances": canary, "soak": "2m"},
        "maxChangesPerMinute": 600,
    }
    made.apply("p", mode="Enforce", options=options, safety=safety, **more)
    return made


@pytest.mark.parametrize("canary", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "where",
    [
        pytest.param(GROUPS, id="all groups"),
        pytest.param(GROUPS[2:3], id="one group", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "harm", [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in HARM]
)
def test_what_kills_a_canary_reaches_nobody_else(harm: str, where: list[Group], canary: int) -> None:
    name, value, options = HARM[harm]
    made = world(canary, options)
    made.harmful.update((group, name, value) for group in where)
    try:
        made.run(3 * 3_600.0)
        lost = Counter(made.judge.group(one) for one in made.ec2.instances.values() if not one.runs)
        outside = [instance for instance, as_canary in made.judge.harmed if not as_canary]
        breaker = made.cluster.status("p").breaker
        assert not outside
        assert sum(lost.values()) > 0
        assert all(0 < count <= canary for count in lost.values()), lost
        assert breaker is not None
        assert any(one.name in breaker.message for one in made.ec2.instances.values() if not one.runs)
        # It survives its process, and a night.
        reached = len(made.judge.harmed)
        made.operator.restart()
        made.run(DAY / 2)
        assert len(made.judge.harmed) == reached
        assert made.cluster.status("p").breaker is not None
    finally:
        made.close()


def test_the_rest_follows_once_nothing_kills() -> None:
    made = world(1, {"httpTokens": "required"})
    made.harmful.add((GROUPS[0], "HttpTokens", "required"))
    try:
        made.run(3_600.0)
        made.heal()
        made.resume("p")
        made.run(4 * 3_600.0)
        running = [one for one in made.ec2.instances.values() if one.runs]
        assert all(one.last.options["HttpTokens"] == "required" for one in running)
    finally:
        made.close()
