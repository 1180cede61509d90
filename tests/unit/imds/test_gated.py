"""Enforce with spec.tokenGate: tokens that stay optional, and canaries whose IMDSv1 is rejected."""

from typing import Any

import msgspec
import pytest

from caretaker.api.conditions import BreakerReason
from caretaker.api.imds import FieldChange, Options
from caretaker.api.times import format_time
from caretaker.imds.cases import gated_alone
from caretaker.imds.enforce import Enforced, enforce
from caretaker.imds.merge import PolicyOptions
from unit.imds.enforcing import CLOSE, GOOD, HOP, ME, RAISE, WALL, canaries, canary, found, inputs, passed

OPEN = Options(2, "optional", "enabled")
BOTH = Options(1, "optional", "enabled")
LOWER = FieldChange(HOP, "2", "1")
WHY = ("IMDSv1InUse", "EKSManagedNodegroup/a: 1 of 2 instances used IMDSv1 in the last 7 days: i-1")


def decided(*options: Options, **more: Any) -> Enforced:
    return enforce([found(number, each) for number, each in enumerate(options)], inputs(**more))


def test_tokens_that_are_held_back_stay_optional_and_other_options_are_set() -> None:
    made = decided(OPEN, BOTH, BOTH, tokens_held={"i-0": WHY, "i-1": WHY})
    writes = {write.instance: dict(write.options) for write in made.writes}
    assert writes.keys() == {"i-1", "i-2"}
    assert writes["i-1"] == {"HttpPutResponseHopLimit": 2}
    assert writes["i-2"]["HttpTokens"] == "required"
    blocked = {name: (why.change.field, why.reason, why.message) for name, why in made.blocked}
    assert blocked == dict.fromkeys(("i-0", "i-1"), ("httpTokens", *WHY))


def test_the_gate_holds_back_neither_opening_nor_what_is_not_allowed() -> None:
    opens = inputs(options={HOP: 2}, tokens_held={"i-0": WHY})
    assert len(enforce([found(0, Options(1, "required", "enabled"))], opens).writes) == 1
    made = decided(OPEN, tokens_held={"i-0": WHY}, tightening=())
    assert [why.reason for _, why in made.blocked] == ["TighteningNotAllowed"]


def test_the_hop_limit_is_lowered_only_once_tokens_are_required() -> None:
    """A pod behind it would fall back to IMDSv1, and the gate would never open."""
    lower = PolicyOptions(ME, 100, Options(1, "required"))
    given = {"tightening": ("HopLimit", "Tokens"), "options": {HOP: 1, "httpTokens": "required"}}
    passes = canaries(stood=(passed(CLOSE), passed(LOWER)))
    held = inputs(tokens_held={"i-0": WHY}, canary=passes, **given)
    made = enforce([found(0, OPEN, mine=lower)], held)
    assert made.writes == ()
    assert {(why.change.field, why.reason) for _, why in made.blocked} == {
        ("httpTokens", WHY[0]),
        (HOP, WHY[0]),
    }
    assert any("not lowered before tokens are required; EKS" in why.message for _, why in made.blocked)
    free = enforce([found(0, OPEN, mine=lower)], inputs(canary=passes, **given))
    assert [dict(write.options) for write in free.writes] == [
        {"HttpPutResponseHopLimit": 1, "HttpTokens": "required"}
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_instances_with_the_same_differences_only_the_held_one_waits(order: tuple[int, int]) -> None:
    same = found(0, OPEN).result
    every = [msgspec.structs.replace(found(number, OPEN), result=same) for number in order]
    made = enforce(every, inputs(tokens_held={"i-0": WHY}))
    assert [write.instance for write in made.writes] == ["i-1"]
    assert [name for name, _ in made.blocked] == ["i-0"]


def test_instances_that_only_the_gate_holds_are_not_too_much_drift() -> None:
    given = [found(0, BOTH), *(found(number, OPEN) for number in range(1, 10))]
    held = {f"i-{number}": WHY for number in range(10)}
    made = enforce(given, inputs(tokens_held=held, max_drift_percent=10))
    assert (made.phase, [dict(write.options) for write in made.writes]) == (
        "Changing",
        [{"HttpPutResponseHopLimit": 2}],
    )
    assert enforce(given, inputs(max_drift_percent=10)).phase == "DriftTooWide"
    assert enforce(given, inputs(tokens_held=held, max_drift_percent=9)).phase == "DriftTooWide"


def test_a_difference_of_another_policy_is_drift_all_the_same() -> None:
    held = inputs(tokens_held={"i-0": WHY})
    assert gated_alone(found(0, OPEN), held)
    assert not gated_alone(found(0, BOTH, PolicyOptions("other", 50, Options(2))), held)
    assert not gated_alone(found(1, OPEN), held)


def test_without_the_gate_tokens_are_required() -> None:
    assert [write.instance for write in decided(OPEN).writes] == ["i-0"]


def soaking(rejected: dict[str, tuple[float, float]] | None, **more: Any) -> Enforced:
    """i-1 has been soaking for longer than its 15 minutes; i-2 waits."""
    stands = canaries(canary("Soaking", 1, since=WALL - 1_000.0, changes=(CLOSE,)), stood=(passed(RAISE),))
    given = {"canary": stands, "soaks": {("EKSManagedNodegroup", "a"): (format_time(WALL - 1_000.0), 0.0)}}
    return enforce([found(1, GOOD), found(2, OPEN)], inputs(rejected=rejected, **{**given, **more}))


def test_a_canary_passes_once_cloudwatch_was_read_after_its_soak() -> None:
    for rejected in ({}, {"i-1": (WALL - 500.0, 0.0)}):
        made = soaking(rejected)
        assert made.canary is not None
        assert [one.phase for one in made.canary.groups] == ["Soaking"]
        assert made.breaker is None
        assert "waits for a new reading of CloudWatch (MetadataNoTokenRejected)" in made.message
    for read in (None, {"i-1": (WALL, 0.0)}):
        made = soaking(read)
        assert [write.instance for write in made.writes] == ["i-2"], read


def test_a_canary_of_another_change_does_not_wait_for_cloudwatch() -> None:
    stands = canaries(canary("Soaking", 1, since=WALL - 1_000.0))
    made = enforce([found(1, GOOD), found(2)], inputs(rejected={}, canary=stands))
    assert [write.instance for write in made.writes] == ["i-2"]


@pytest.mark.parametrize("on_failure", ["Keep", "Restore"])
def test_a_rejected_call_of_a_canary_opens_the_breaker(on_failure: str) -> None:
    made = soaking({"i-1": (WALL - 500.0, 3.0)}, on_failure=on_failure)
    assert made.breaker is not None
    assert (made.breaker.reason, made.breaker.instance) == (BreakerReason.CANARY_REJECTED, "i-1")
    assert "EC2 rejected IMDSv1 3 times (MetadataNoTokenRejected)" in made.breaker.message
    writes = {write.instance: dict(write.options) for write in made.writes}
    back = {"i-1": {"HttpTokens": "optional"}}
    assert writes == (back if on_failure == "Restore" else {})
    assert made.canary is not None
    assert [one.phase for one in made.canary.groups] == ["Failed"]


def test_a_rejection_that_was_accepted_with_the_resume_fails_no_other_canary() -> None:
    failed = soaking({"i-1": (WALL - 500.0, 3.0)})
    assert failed.breaker is not None
    given = {"canary": failed.canary, "breaker": failed.breaker, "resumed_at": WALL + 1.0, "soaks": {}}
    made = enforce([found(1, GOOD), found(2, OPEN)], inputs(rejected={}, **given))
    assert made.breaker is None
    assert [write.instance for write in made.writes] == ["i-2"], "the next canary"
    assert msgspec.to_builtins(made.changed)[0]["instances"][0]["instance"] == "i-1", "it is watched"
