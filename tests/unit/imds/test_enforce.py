"""What Enforce changes now, gate by gate."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import BreakerStatus, Options
from caretaker.api.times import format_time, parse_time
from caretaker.imds.enforce import (
    BATCH,
    PASS_SECONDS,
    POLL_SECONDS,
    READY_SECONDS,
    Enforced,
    enforce,
    told,
)
from caretaker.imds.hands import Hand, failed, sent
from caretaker.imds.merge import Claim
from unit.imds.enforcing import BAD, GENERATION, GOOD, HERE, WALL, canary, desk, found

CALL = {"HttpPutResponseHopLimit": 2, "HttpTokens": "required", "HttpEndpoint": "enabled"}
FAILED = failed(Hand(options=CALL), 990.0, "InternalError", "no luck")


def written(made: Enforced) -> list[str]:
    return [write.instance for write in made.writes]


def many(count: int, **more: Any) -> list[Any]:
    return [found(number, **more) for number in range(1, count + 1)]


# ---------------------------------------------------------------- who is changed


def test_what_differs_is_changed_with_every_option_that_is_won() -> None:
    made = enforce([found(1), found(2, GOOD)], desk())
    (write,) = made.writes
    assert (write.instance, write.region, dict(write.options)) == ("i-1", HERE, CALL)
    assert (made.left, made.phase, made.ahead) == (1, "Changing", ((HERE, "i-1"),))


def test_nothing_is_left_where_all_is_as_it_should_be() -> None:
    made = enforce([found(1, GOOD)], desk())
    assert (made.phase, made.writes, made.wake, made.hands) == ("Enforced", (), None, {})


def test_a_pending_instance_is_not_touched_before_its_timeout_and_once_after() -> None:
    one = found(1, GOOD, pending=True)
    hands = {"i-1": sent(Hand(), 900.0, CALL)}
    early = enforce([one], desk(hands=hands, now=1_019.9))
    assert (early.writes, early.pending, early.wake) == ((), 1, POLL_SECONDS)
    late = enforce([one], desk(hands=hands, now=1_020.0))
    assert written(late) == ["i-1"]
    again = {"i-1": sent(hands["i-1"], 1_020.0, CALL)}
    assert written(enforce([one], desk(hands=again, now=1_139.0))) == []
    over = enforce([one], desk(hands=again, now=1_140.0))
    assert (over.writes, over.hands["i-1"].trouble[0], over.pending) == ((), "NotApplied", 0)
    after = enforce([one], desk(hands=dict(over.hands), now=1_150.0))
    assert (after.writes, after.pending, after.phase, after.wake) == ((), 0, "Enforced", None)


def test_what_another_policy_has_sent_is_not_sent_again_by_this_one() -> None:
    one = found(1, GOOD, pending=True)
    followed = enforce([one], desk(others={"i-1"}))
    assert (followed.hands, followed.pending) == ({}, 1)
    seen = enforce([one], desk(now=500.0))
    assert written(enforce([one], desk(hands=dict(seen.hands), now=1_000.0))) == ["i-1"], (
        "but what a process has sent that is no more"
    )


def test_what_differs_while_another_change_is_pending_waits_for_it() -> None:
    made = enforce([found(1, pending=True)], desk())
    assert (made.writes, made.left, made.pending, made.phase) == ((), 0, 1, "Changing")


def test_a_stopped_instance_is_changed_and_not_waited_for() -> None:
    made = enforce([found(1, state="stopped", pending=True)], desk())
    assert written(made) == ["i-1"]
    assert enforce([found(1, GOOD, state="stopped", pending=True)], desk()).phase == "Enforced"


def test_failing_ones_come_last_and_wait_for_their_backoff() -> None:
    later = enforce(many(3), desk(hands={"i-1": FAILED}))
    assert written(later) == ["i-2", "i-3"]
    again = enforce(many(3), desk(hands={"i-1": FAILED}, now=1_020.0))
    assert written(again) == ["i-2", "i-3", "i-1"]


@pytest.mark.parametrize(
    ("more", "count"), [({"cap": 2}, 2), ({"free": {HERE: 3}}, 3), ({"cap": 0}, 0), ({"free": {}}, 0)]
)
def test_no_more_are_changed_than_are_free(more: dict[str, Any], count: int) -> None:
    made = enforce(many(9), desk(**more))
    assert len(made.writes) == count
    assert made.left == 9


def test_a_pass_changes_so_many_and_reads_ahead() -> None:
    made = enforce(many(300), desk(cap=1_000, free={HERE: 1_000}))
    assert (len(made.writes), len(made.ahead)) == (BATCH, 200)


def test_a_region_that_is_used_up_holds_up_no_other() -> None:
    far = "us-east-1"
    every = [found(1), found(2, region=far), found(3), found(4, region=far)]
    assert written(enforce(every, desk(free={HERE: 0, far: 1}))) == ["i-2"]
    assert written(enforce(every, desk(free={HERE: 1, far: 1}))) == ["i-1", "i-2"]


def test_each_policy_sends_its_own_options_and_the_losers_nothing() -> None:
    tokens = Claim("q", 200, Options(http_tokens="required"))
    made = enforce([found(1, Options(1, "optional", "enabled"), tokens)], desk())
    assert [dict(w.options) for w in made.writes] == [
        {"HttpPutResponseHopLimit": 2, "HttpEndpoint": "enabled"}
    ]
    loses = enforce([found(1, BAD, Claim("q", 200, Options(3)))], desk())
    assert (loses.writes, loses.phase) == ((), "Enforced")


# ---------------------------------------------------------------- what is held


def test_a_held_change_is_told_and_the_others_are_made() -> None:
    made = enforce([found(1, Options(1, "optional", "enabled"))], desk(allowed=()))
    assert [dict(w.options) for w in made.writes] == [{"HttpTokens": "required", "HttpEndpoint": "enabled"}]
    assert [(one, why.reason) for one, why in made.held] == [("i-1", "LooseningNotAllowed")]


def test_what_is_only_held_is_no_reversal_and_nothing_to_change() -> None:
    hands = {"i-1": Hand(sent_at=10.0, landed=True, options=CALL)}
    made = enforce([found(1)], desk(allowed=(), hands=hands))
    assert (made.left, made.phase, made.fighting, made.hands) == (0, "Enforced", 0, {})
    assert len(made.held) == 1


def test_three_reversals_leave_it_alone_and_a_spec_edited_three_times_does_not() -> None:
    hand = Hand(sent_at=10.0, landed=True, options=CALL, reversals=(700.0, 800.0))
    fought = enforce([found(1)], desk(hands={"i-1": hand}))
    assert (fought.fighting, written(fought)) == (1, [])
    assert fought.hands["i-1"].not_before == 1_000.0 + 3_600.0
    edited = msgspec.structs.replace(hand, options={**CALL, "HttpPutResponseHopLimit": 1})
    changed = enforce([found(1)], desk(hands={"i-1": edited}))
    assert (changed.fighting, written(changed)) == (0, ["i-1"])


def test_what_the_account_blocks_is_told_while_it_differs() -> None:
    hand = failed(Hand(options=CALL), 990.0, "BlockedByAccountPolicy", "no", wait=86_400.0)
    assert enforce([found(1)], desk(hands={"i-1": hand})).blocked == ("no",)
    assert enforce([found(1, GOOD)], desk(hands={"i-1": hand})).blocked == ()
    other = found(1, mine=Claim("p", 100, Options(2)))
    assert written(enforce([other], desk(hands={"i-1": hand}))) == ["i-1"], "another call may be allowed"


def test_failures_are_told_in_place_of_drift() -> None:
    one = found(1)
    assert told(one, None) is one
    assert told(one, FAILED).verdict.state == "failed"
    assert (told(one, FAILED).verdict.reason, told(one, FAILED).verdict.message) == (
        "InternalError",
        "no luck",
    )
    fighting = Hand(reversals=(1.0, 2.0, 3.0))
    assert told(one, fighting).verdict.reason == "Fighting"
    assert told(found(1, GOOD), fighting).verdict.state == "compliant"


# ---------------------------------------------------------------- the canary


def test_before_the_canary_is_chosen_nothing_else_is_changed() -> None:
    made = enforce(many(5), desk(canary=None))
    assert (written(made), made.phase) == (["i-1"], "CanaryChanging")
    assert made.canary is not None
    assert (made.canary.instances, made.canary.phase) == (("i-1",), "Changing")
    none = enforce(many(5), desk(canary=None, canary_instances=0))
    assert (len(none.writes), none.canary) == (5, None)


def test_while_it_soaks_nothing_is_changed() -> None:
    every = [found(1, GOOD), *many(5)[1:]]
    made = enforce(every, desk(canary=canary("Soaking", "i-1", since=WALL - 60)))
    assert (made.writes, made.phase) == ((), "CanarySoaking")
    assert made.wake == 61.0
    passed = enforce(every, desk(canary=canary("Soaking", "i-1", since=WALL - 121)))
    assert (len(passed.writes), passed.canary and passed.canary.phase) == (4, "Passed")


@pytest.mark.parametrize("more", [{"ready": False}, {"state": "stopped"}, {"state": "pending"}])
def test_a_canary_is_an_instance_that_runs_on_a_ready_node(more: dict[str, Any]) -> None:
    made = enforce([found(1, **more), found(2)], desk(canary=None))
    assert written(made) == ["i-2"]
    none = enforce([found(1, **more)], desk(canary=None))
    assert (none.writes, none.phase, none.canary) == ((), "CanaryChanging", None)
    assert none.wake == READY_SECONDS


def test_a_canary_whose_node_is_not_ready_does_not_soak() -> None:
    made = enforce([found(1, GOOD, ready=False), found(2)], desk(canary=canary("Changing", "i-1")))
    assert made.canary == canary("Changing", "i-1")
    assert (made.writes, made.wake) == ((), READY_SECONDS)


def test_what_is_not_known_of_a_canary_replaces_it_by_no_other() -> None:
    soaking = canary("Soaking", "i-1")
    made = enforce([found(1, GOOD, unasked="EC2 is away"), found(2)], desk(canary=soaking))
    assert made.canary is not None
    assert (made.canary.instances, made.writes) == (("i-1",), ())
    blind = enforce([found(2)], desk(canary=soaking, blind=True))
    assert blind.canary is not None
    assert (blind.canary.instances, blind.writes) == (("i-1",), ())
    gone = enforce([found(2)], desk(canary=soaking))
    assert written(gone) == ["i-2"]


def test_a_canary_that_fails_holds_up_the_others() -> None:
    made = enforce(many(3), desk(canary=canary("Changing", "i-1"), hands={"i-1": FAILED}))
    assert (made.writes, made.wake) == ((), 20.0)


# ---------------------------------------------------------------- what stops it


def test_a_missing_permission_stops_it() -> None:
    made = enforce(many(2), desk(stopped=("AccessDenied", "no")))
    assert (made.writes, made.hold, made.phase, made.message) == ((), True, "AccessDenied", "no")


def test_the_breaker_opens_after_so_many_failures_in_a_row() -> None:
    assert enforce(many(2), desk(failures=4)).breaker is None
    made = enforce(many(2), desk(failures=5, last_failure="i-1: no luck"))
    assert made.breaker == BreakerStatus(GENERATION, 5, format_time(WALL), "i-1: no luck")
    assert (made.writes, made.phase, made.hold) == ((), "BreakerOpen", True)
    assert "caretaker resume imdspolicy" in made.message


OPENED = WALL - 600.0


@pytest.mark.parametrize(
    ("generation", "resumed", "closed"),
    [
        (GENERATION, 0.0, False),
        (GENERATION, OPENED - 1, False),
        (GENERATION, OPENED, False),
        (GENERATION, OPENED + 1, True),
        (GENERATION, WALL + 10**6, True),
        (GENERATION - 1, 0.0, True),
    ],
)
def test_an_open_breaker_stays_so_until_a_new_spec_or_a_later_resume(
    generation: int, resumed: float, closed: bool
) -> None:
    before = BreakerStatus(generation, 5, format_time(OPENED), "x")
    made = enforce(many(2), desk(breaker=before, resumed_at=resumed, failures=9))
    assert (made.breaker is None, made.closed, bool(made.writes)) == (closed, closed, closed)


def test_what_was_resumed_in_the_future_does_not_keep_the_next_breaker_from_standing() -> None:
    for resumed in (WALL + 0.5, WALL + 31_536_000.25):
        opened = enforce(many(2), desk(failures=5, resumed_at=resumed)).breaker
        assert opened is not None
        again = enforce(many(2), desk(breaker=opened, resumed_at=resumed))
        assert (again.breaker, again.writes) == (opened, ())
        mended = desk(breaker=opened, resumed_at=(parse_time(opened.opened_at) or 0.0) + 0.1)
        assert enforce(many(2), mended).closed


@pytest.mark.parametrize(("percent", "stops"), [(50, True), (74, True), (75, False), (100, False)])
def test_too_much_drift_is_not_touched(percent: int, stops: bool) -> None:
    every = [found(1), found(2), found(3), found(4, GOOD), found(5, unasked="away")]
    made = enforce(every, desk(max_drift_percent=percent))
    assert ((made.phase == "DriftTooWide"), bool(made.writes)) == (stops, not stops)


def test_drift_that_nobody_would_change_stops_nothing() -> None:
    assert enforce(many(3), desk(allowed=(), max_drift_percent=1)).phase == "Enforced"


def test_gates_are_told_in_order() -> None:
    all_of_them = {"stopped": ("AccessDenied", "no"), "failures": 5, "max_drift_percent": 1}
    assert enforce(many(3), desk(**all_of_them)).phase == "AccessDenied"
    del all_of_them["stopped"]
    assert enforce(many(3), desk(**all_of_them)).phase == "BreakerOpen"
    del all_of_them["failures"]
    assert enforce(many(3), desk(**all_of_them)).phase == "DriftTooWide"


# ---------------------------------------------------------------- when it looks again


@pytest.mark.parametrize(
    ("more", "wake"),
    [
        ({"cap": 0, "wait": 7.5}, 7.5),
        ({"cap": 0, "wait": 0.5}, PASS_SECONDS),
        ({"hands": {"i-1": FAILED}}, 20.0),
        ({}, POLL_SECONDS),
        ({"max_drift_percent": 1, "cap": 50}, None),
        ({"failures": 9, "hands": {"i-1": FAILED}}, None),
        ({"hands": {"i-1": msgspec.structs.replace(FAILED, not_before=1_000.01)}}, 0.1),
    ],
)
def test_it_looks_again_when_something_is_due(more: dict[str, Any], wake: float | None) -> None:
    made = enforce([found(1), found(2, GOOD)], desk(**more))
    assert made.wake == (None if wake is None else pytest.approx(wake))


def test_the_soak_is_waited_for_in_scaled_time() -> None:
    soaking = canary("Soaking", "i-1", since=WALL)
    made = enforce([found(1, GOOD), found(2)], desk(canary=soaking, canary_soak=5.0, tick=0.05))
    assert made.wake == pytest.approx(6.0 / 0.05)
