"""What the tests of Enforce's decisions start from: instances that differ by their hop limit."""

import math
from typing import Any, Final

from caretaker.api.imds import (
    CanaryStatus,
    ChangedGroup,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    Options,
    PassedChange,
)
from caretaker.api.times import format_time
from caretaker.imds.checks import CheckInput, ObservedInstance, check
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput, Group
from caretaker.imds.instance_ref import InstanceRef
from caretaker.imds.merge import PolicyOptions, merge

ME: Final = "p"
HERE: Final = "eu-west-1"
WALL: Final = 1_800_000_000.0
GENERATION: Final = 3
GOOD: Final = Options(2, "required", "enabled")
BAD: Final = Options(1, "required", "enabled")
MINE: Final = PolicyOptions(ME, 100, Options(2, "required"))
GROUP: Final = ("EKSManagedNodegroup", "a")
HOP: Final = "httpPutResponseHopLimit"
RAISE: Final = FieldChange(HOP, "1", "2")
LOWER: Final = FieldChange(HOP, "2", "1")
CLOSE: Final = FieldChange("httpTokens", "optional", "required")
READY_SINCE: Final = WALL - 86_400.0


def found(
    number: int,
    options: Options = BAD,
    *others: PolicyOptions,
    region: str = HERE,
    ready: bool = True,
    unasked: str = "",
    mine: PolicyOptions = MINE,
    group: Group = GROUP,
    ready_since: float = READY_SINCE,
    provable: bool = True,
    cordoned: bool = False,
    **observed: Any,
) -> CheckedInstance:
    """One node with its instance, i-NUMBER, as judged for the policy ME; read just now."""
    name, here = f"i-{number}", ObservedInstance(options, **{"unfit_tags": True, "at": math.inf, **observed})
    wanted = merge([mine, *others])
    own = frozenset(field for field, _ in mine.options.given())
    result = check(CheckInput(InstanceRef(name, region), here, wanted, ME, own, unasked))
    node = (f"n{number}", name, region, ready, here, result, wanted)
    return CheckedInstance(*node, group=group, ready_since=ready_since, provable=provable, cordoned=cordoned)


def passed(change: FieldChange, group: Group = GROUP, **more: Any) -> PassedChange:
    """As status has it."""
    return PassedChange(*group, change.field, change.before, change.after, format_time(WALL), **more)


def canaries(*groups: GroupCanary, stood: tuple[PassedChange, ...] = ()) -> CanaryStatus:
    """As status has them."""
    at = format_time(WALL)
    names = tuple(one.instance for group in groups for one in group.instances)
    phase = min((one.phase for one in groups), default="Passed")
    return CanaryStatus(GENERATION, names, phase, at, at, groups, stood)


def changed(number: int, *, at: float = WALL, **more: Any) -> ChangedInstance:
    """An instance that may have been sent a change, on a Node that is Ready as found() has it."""
    given = {"ready_since": format_time(READY_SINCE), **more}
    return ChangedInstance(f"i-{number}", f"n{number}", format_time(at), **given)


def canary(
    phase: str,
    *numbers: int,
    since: float = WALL,
    changes: tuple[FieldChange, ...] = (RAISE,),
    group: Group = GROUP,
    **more: Any,
) -> GroupCanary:
    """As status has it."""
    at, applied = format_time(since), phase != "Changing"
    ones = tuple(changed(number, at=since, **{"applied": applied, **more}) for number in numbers)
    return GroupCanary(*group, changes, ones, phase, at, at)  # type: ignore[arg-type]


def watched(
    *ones: ChangedInstance, changes: tuple[FieldChange, ...] = (RAISE,), group: Group = GROUP
) -> tuple[ChangedGroup, ...]:
    """As status has them."""
    return (ChangedGroup(*group, changes, ones),)


def inputs(**more: Any) -> EnforceInput:
    """A policy that may raise the hop limit and require tokens, whose canaries have passed for both, with
    much that is free."""
    given = {
        "loosening": ("HopLimit",),
        "tightening": ("Tokens",),
        "options": {HOP: 2, "httpTokens": "required"},
        "canary": canaries(stood=(passed(RAISE), passed(CLOSE))),
        "free": {HERE: 50},
        "cap": 50,
        "now": 1_000.0,
        **more,
    }
    return EnforceInput(ME, GENERATION, wall=WALL, **given)
