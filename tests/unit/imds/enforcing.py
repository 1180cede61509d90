"""What the tests of Enforce's decisions start from: instances that differ by their hop limit."""

from typing import Any, Final

from caretaker.api.imds import CanaryStatus, Options
from caretaker.api.times import format_time
from caretaker.imds.enforce import Desk, Found
from caretaker.imds.judge import Case, Seen, judge
from caretaker.imds.merge import Claim, merge
from caretaker.imds.place import Place

ME: Final = "p"
HERE: Final = "eu-west-1"
WALL: Final = 1_800_000_000.0
GENERATION: Final = 3
GOOD: Final = Options(2, "required", "enabled")
BAD: Final = Options(1, "required", "enabled")
MINE: Final = Claim(ME, 100, Options(2, "required"))


def found(
    number: int,
    options: Options = BAD,
    *others: Claim,
    region: str = HERE,
    ready: bool = True,
    unasked: str = "",
    mine: Claim = MINE,
    **seen: Any,
) -> Found:
    """One node with its instance, i-NUMBER, as judged for the policy ME."""
    name, here = f"i-{number}", Seen(options, **{"unfit_tags": True, **seen})
    wanted = merge([mine, *others])
    own = frozenset(field for field, _ in mine.options.given())
    verdict = judge(Case(Place(name, region), here, wanted, ME, own, unasked))
    return Found(f"n{number}", name, region, ready, here, verdict, wanted)


def desk(**more: Any) -> Desk:
    """A policy that may open the hop limit, whose canary has passed, with much that is free."""
    at = format_time(WALL)
    passed = CanaryStatus(GENERATION, ("i-0",), "Passed", at, at)
    given = {
        "allowed": ("HopLimit",),
        "canary": passed,
        "free": {HERE: 50},
        "cap": 50,
        "now": 1_000.0,
        **more,
    }
    return Desk(ME, GENERATION, wall=WALL, **given)


def canary(phase: str, *instances: str, since: float = WALL, generation: int = GENERATION) -> CanaryStatus:
    """As status has it."""
    at = format_time(since)
    return CanaryStatus(generation, instances, phase, at, at)  # type: ignore[arg-type]
