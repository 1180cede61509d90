"""Which nodes are probed, when again, and what that proves."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import (
    MAX_UNEXPECTED,
    CanaryStatus,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    Options,
    Selector,
    UnexpectedResult,
)
from caretaker.api.objects import Node
from caretaker.api.times import format_micros, format_time
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.drift import OptionChange
from caretaker.imds.enforce_input import EnforceInput
from caretaker.imds.evidence import Evidence, evidence, unproved
from caretaker.imds.instance_ref import instance_ref_of
from caretaker.imds.plan import Member, Plan, PlanInput, Policy, plan
from caretaker.imds.probe import UNKNOWN, Finding, ProbeState
from caretaker.imds.verify import Candidate, Probing, Verified, passed_probe, required, unprovable, verify

NOW = 1_800_000_000.0
DAY, AGAIN = 86400.0, 600.0
PROBING = Probing(per_group=2)
APPS = ("EKSManagedNodegroup", "apps")
HERE = Candidate("a", (APPS,), fit=True, hop_limit=2)


def seen(ago: float = 60.0, verdict: str = "Reachable", asked: float | None = None, **more: Any) -> Finding:
    """`asked`: so long ago by its mark; None = it answers none."""
    mark = format_micros(NOW - asked) if asked is not None else ""
    return Finding(verdict, NOW - ago, mark, **{"latency_ms": 3.0, "needed_hops": 2, **more})


def evaluated(
    candidate: Candidate = HERE, finding: Finding | None = None, mark: str = "", **probing: Any
) -> Verified:
    asks = msgspec.structs.replace(PROBING, **probing)
    found = {candidate.node: finding} if finding is not None else {}
    marks = {candidate.node: mark} if mark else {}
    return verify(asks, [candidate], ProbeState(found, marks), NOW)


CANARY = msgspec.structs.replace(HERE, needed=True)
LATE = msgspec.structs.replace(HERE, changed=NOW - 100)
SHUT = {"verdict": "HopLimited", "latency_ms": None}


@pytest.mark.parametrize(
    ("candidate", "finding", "again"),
    [
        pytest.param(HERE, seen(), False, id="as it should be, and fresh"),
        pytest.param(HERE, seen(DAY), True, id="as old as the interval"),
        pytest.param(LATE, seen(99, asked=101), True, id="asked for before the last change"),
        pytest.param(LATE, seen(-99), True, id="asked for by no mark, by a node whose clock is ahead"),
        pytest.param(LATE, seen(101, asked=99), False, id="newer, by a node whose clock is behind"),
        pytest.param(HERE, seen(-9 * DAY, asked=DAY), True, id="as old as the interval, by a clock ahead"),
        pytest.param(HERE, seen(-9 * DAY, asked=DAY - 1), False, id="fresh, by a clock ahead"),
        pytest.param(HERE, seen(9 * DAY, asked=DAY - 1), False, id="fresh, by a clock behind"),
        pytest.param(HERE, seen(9 * DAY, asked=DAY), True, id="as old as the interval, by a clock behind"),
        pytest.param(HERE, seen(AGAIN - 1, UNKNOWN), False, id="failed just now"),
        pytest.param(HERE, seen(AGAIN, UNKNOWN), True, id="failed a while ago"),
        pytest.param(
            HERE, seen(AGAIN, **SHUT), True, id="too small a hop limit, though it is large enough now"
        ),
        pytest.param(HERE, seen(AGAIN, **SHUT, needed_hops=3), False, id="too small a hop limit"),
        pytest.param(
            HERE, seen(AGAIN, needed_hops=3), True, id="reachable, though the hop limit is too small now"
        ),
        pytest.param(HERE, seen(AGAIN, "Blocked"), False, id="not as expected, and nobody waits"),
        pytest.param(CANARY, seen(AGAIN - 1, "Blocked"), False, id="a canary's, not as expected just now"),
        pytest.param(CANARY, seen(AGAIN, "Blocked"), True, id="a canary's, not as expected a while ago"),
        pytest.param(CANARY, seen(AGAIN), False, id="a canary's, as expected"),
    ],
)
def test_when_a_node_is_probed_again(candidate: Candidate, finding: Finding, again: bool) -> None:
    found = evaluated(candidate, finding)
    assert (found.marks["a"] > finding.mark, found.waiting) == (again, again)


@pytest.mark.parametrize(
    ("finding", "proved"),
    [(seen(DAY, "Blocked"), False), (seen(DAY + AGAIN, "Blocked"), None), (seen(), None), (None, None)],
)
def test_a_node_that_is_not_fit_is_not_probed_and_an_unexpected_result_counts(
    finding: Finding | None, proved: bool | None
) -> None:
    found = evaluated(msgspec.structs.replace(HERE, fit=False, counts=True), finding)
    assert (found.proved, found.marks, found.wake) == (proved, {}, None)


def test_a_node_that_is_not_fit_takes_no_place_of_another() -> None:
    unfit = Candidate("b", (APPS,), fit=False, counts=True)
    findings = {"a": seen(), "b": seen(DAY + AGAIN, "Blocked")}
    found = verify(Probing(per_group=1), [HERE, unfit], ProbeState(findings), NOW)
    assert (found.proved, found.marks.keys()) == (True, {"a"})


def test_a_canary_always_gets_a_mark() -> None:
    """The first run of a node answers none, and so could be from before its change."""
    candidate = msgspec.structs.replace(CANARY, changed=NOW - 5)
    first = evaluated(candidate)
    assert first.marks == {"a": format_micros(NOW)}
    assert evaluated(candidate, None, first.marks["a"]).marks == first.marks
    assert first.first == {"a"}
    assert evaluated(HERE).marks == {"a": ""}


@pytest.mark.parametrize("ahead", [0.5, 30.0, 3600.0])
def test_a_mark_of_a_clock_that_is_ahead_proves_nothing_until_then(ahead: float) -> None:
    """The operator cannot order it and the change; it waits, and requests no other probe."""
    candidate = msgspec.structs.replace(CANARY, changed=NOW - 5)
    finding = seen(1, asked=-ahead)
    found = evaluated(candidate, finding, finding.mark)
    assert (found.reason, found.marks) == ("Probing", {"a": finding.mark})
    assert not passed_probe(PROBING, candidate, finding, NOW)
    assert passed_probe(PROBING, candidate, finding, NOW + ahead)
    assert found.wake == pytest.approx(ahead, abs=1e-3)


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        pytest.param(seen(asked=99, **SHUT, needed_hops=3), "SetButUnreachable", id="unexpected"),
        pytest.param(seen(asked=100, **SHUT, needed_hops=3), "SetButUnreachable", id="as it was chosen"),
        pytest.param(seen(asked=101, **SHUT, needed_hops=3), "Probing", id="from before it was a canary"),
        pytest.param(seen(asked=99), "Probing", id="as expected: it has to be proved again"),
        pytest.param(seen(asked=99, **SHUT), "Probing", id="the hop limit is large enough now"),
        pytest.param(seen(asked=99, verdict=UNKNOWN), "Probing", id="a probe that failed says nothing"),
    ],
)
def test_an_unexpected_result_of_a_canary_counts_though_its_soak_began_anew(
    finding: Finding, reason: str
) -> None:
    candidate = msgspec.structs.replace(CANARY, changed=NOW - 5, began=NOW - 100)
    found = evaluated(candidate, finding)
    assert (found.reason, found.proved) == (reason, False if reason == "SetButUnreachable" else None)
    assert found.marks["a"] > finding.mark, "and it is probed again"


def test_a_change_by_a_clock_that_is_ahead_is_asked_for_once() -> None:
    candidate = msgspec.structs.replace(CANARY, changed=NOW + 20)
    first = evaluated(candidate, seen(50))
    assert first.marks["a"] >= format_micros(NOW + 20)
    assert evaluated(candidate, seen(50), first.marks["a"]).marks == first.marks


@pytest.mark.parametrize(
    ("finding", "proves"),
    [
        pytest.param(seen(asked=4), True, id="asked for after the change"),
        pytest.param(seen(asked=5), True, id="asked for as it was seen"),
        pytest.param(seen(asked=5.001), False, id="asked for before it was seen"),
        pytest.param(seen(-60), False, id="by the node's clock alone"),
        pytest.param(seen(asked=4, needed_hops=3), False, id="contradicts the hop limit"),
        pytest.param(seen(asked=4, verdict="Blocked"), False, id="not as expected"),
        pytest.param(None, False, id="none"),
    ],
)
def test_what_a_canary_stands_by(finding: Finding | None, proves: bool) -> None:
    candidate = msgspec.structs.replace(CANARY, changed=NOW - 5)
    assert passed_probe(PROBING, candidate, finding, NOW) == proves


def test_what_contradicts_the_hop_limit_is_no_proof_and_no_fault() -> None:
    found = evaluated(HERE, seen(needed_hops=3))
    assert (found.reason, found.proved, found.faults) == ("NotProved", None, {})
    assert "contradicts the hop limit 2 that is set" in found.message
    limited = seen(**SHUT, imdsv1="Closed")
    assert evaluated(HERE, limited, expect="PodBlocked").reason == "NotProved"
    assert evaluated(HERE, limited).reason == "SetButUnreachable", "reported until it is made again"


V1 = {"latency_ms": None, "needed_hops": 3}


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        pytest.param(
            seen(verdict="HopLimited", imdsv1="Closed", **V1), "Proved", id="limited, and v1 closed"
        ),
        pytest.param(
            seen(verdict="HopLimited", imdsv1="Open", **V1), "StillReachable", id="limited, v1 open"
        ),
        pytest.param(seen(verdict="HopLimited", **V1), "NotProved", id="limited, v1 not learned"),
        pytest.param(seen(verdict="Blocked"), "Proved", id="no connection at all"),
        pytest.param(seen(verdict="Refused"), "Proved", id="nobody listens"),
        pytest.param(seen(verdict="EndpointDisabled"), "Proved", id="all is refused"),
        pytest.param(seen(verdict="Forbidden"), "NotProved", id="a token is refused, v1 not asked for"),
        pytest.param(seen(verdict="Proxied", imdsv1="Open"), "StillReachable", id="a proxy gives it"),
        pytest.param(seen(verdict="Silent", imdsv1="Open"), "StillReachable", id="no token, and v1 open"),
        pytest.param(seen(verdict="Silent"), "StillReachable", id="somebody takes connections"),
        pytest.param(seen(verdict="Unexpected"), "StillReachable", id="whatever it is"),
        pytest.param(seen(), "StillReachable", id="with a token"),
    ],
)
def test_a_pod_is_blocked_only_if_it_gets_nothing_without_a_token_either(
    finding: Finding, reason: str
) -> None:
    candidate = msgspec.structs.replace(HERE, hop_limit=1)
    found = evaluated(candidate, finding, expect="PodBlocked")
    assert found.reason == reason
    asks = msgspec.structs.replace(PROBING, expect="PodBlocked")
    assert passed_probe(asks, candidate, finding, NOW) == (reason == "Proved")


@pytest.mark.parametrize("expect", ["PodReachable", "PodBlocked"])
def test_where_the_endpoint_is_to_be_disabled_nothing_may_reach_it(expect: str) -> None:
    candidate = msgspec.structs.replace(HERE, shut=True)
    assert evaluated(candidate, seen(verdict="EndpointDisabled"), expect=expect).reason == "Proved"
    assert evaluated(candidate, seen(), expect=expect).reason == "StillReachable"
    doubt = evaluated(candidate, seen(verdict="Forbidden"), expect=expect)
    assert (doubt.reason, doubt.proved, doubt.faults, doubt.unexpected) == ("NotProved", None, {}, ())
    assert "it is unknown whether a pod reaches IMDSv1 (Forbidden)" in doubt.message


def test_over_ipv6_the_probe_learns_nothing() -> None:
    candidate = msgspec.structs.replace(HERE, ipv6=True)
    asks = msgspec.structs.replace(PROBING, expect="PodBlocked")
    for finding in (seen(verdict="Blocked"), seen(verdict="HopLimited", imdsv1="Closed")):
        made = evaluated(candidate, finding, expect="PodBlocked")
        assert (made.reason, made.faults) == ("NotProved", {})
        assert "it is unknown whether a pod reaches IMDS over IPv6" in made.message
        assert not passed_probe(asks, candidate, finding, NOW)
    for finding in (seen(), seen(verdict="HopLimited", imdsv1="Open")):
        assert evaluated(candidate, finding, expect="PodBlocked").reason == "StillReachable"
    assert evaluated(candidate, seen()).reason == "Proved"


def test_a_node_on_which_the_probe_cannot_run_is_left_out_and_told() -> None:
    candidates = [Candidate("a", (APPS,), fit=True, unprobed="its operating system is windows")]
    candidates += [Candidate(name, (APPS,), fit=True) for name in "bcd"]
    made = verify(PROBING, candidates, ProbeState({"b": seen(), "c": seen()}), NOW)
    assert sorted(made.marks) == ["b", "c"]
    assert made.reason == "Proved"
    assert made.message.endswith("; 1 node(s) cannot be probed, a: its operating system is windows")


def test_what_is_not_as_expected_is_among_the_chosen_and_made_again() -> None:
    """It stops all changes, so it is probed again."""
    candidates = [Candidate(name, (APPS,), fit=True) for name in "abcd"]
    found = {"a": seen(), "b": seen(verdict=UNKNOWN), "c": seen(), "d": seen(verdict="Blocked")}
    made = verify(PROBING, candidates, ProbeState(found), NOW)
    assert sorted(made.marks) == ["a", "d"]
    assert made.faults == {"d": "a pod does not reach IMDS (Blocked, and needs hop limit 2)"}
    late = [msgspec.structs.replace(candidate, changed=NOW - 5) for candidate in candidates]
    assert verify(PROBING, late, ProbeState(found), NOW).faults == {}, "of before the change"
    failed = verify(PROBING, candidates, ProbeState({"b": found["b"]}), NOW)
    assert (failed.faults, failed.reason) == ({}, "NotProved"), "a probe that failed has found nothing"


@pytest.mark.parametrize(
    "candidate", [HERE, msgspec.structs.replace(HERE, shut=True)], ids=["blocked", "shut"]
)
def test_a_limited_pod_of_which_imdsv1_was_not_learned_is_no_unexpected_result(candidate: Candidate) -> None:
    """Nor does it count until the next one where a soak begins anew, or take the place of others."""
    one = msgspec.structs.replace(candidate, hop_limit=1)
    limited = seen(verdict="HopLimited", **V1)
    for imdsv1, faults in (
        (None, {}),
        ("Closed", {}),
        ("Open", {"a": "a pod reaches IMDSv1, without a token (HopLimited)"}),
    ):
        finding = msgspec.structs.replace(limited, imdsv1=imdsv1)
        assert evaluated(one, finding, expect="PodBlocked").faults == faults
    canary = msgspec.structs.replace(one, needed=True, changed=NOW - 5, began=NOW - 100)
    assert (
        evaluated(canary, seen(asked=99, verdict="HopLimited", **V1), expect="PodBlocked").reason == "Probing"
    )
    others = [msgspec.structs.replace(one, node=name) for name in "abc"]
    asks = msgspec.structs.replace(PROBING, per_group=1, expect="PodBlocked")
    good = seen(verdict="EndpointDisabled")
    assert sorted(verify(asks, others, ProbeState({"a": good, "b": limited}), NOW).marks) == ["a"]


def test_the_hop_limit_that_a_group_needs_is_known_whatever_is_set() -> None:
    late = {"fit": False, "changed": NOW - 5}
    candidates = [
        Candidate("a", (APPS,), **late),
        Candidate("b", (APPS,), fit=True),
        Candidate("c", (APPS,), **late),
    ]
    candidates += [Candidate("d", (), fit=True), Candidate("e", (), fit=True)]
    found = {"a": seen(), "b": seen(needed_hops=None), "c": seen(2 * DAY, needed_hops=3)}
    found["d"] = seen(verdict="HopLimited", needed_hops=4)
    found["e"] = seen(needed_hops=1)
    assert required(PROBING, candidates, found, NOW) == {APPS: 2, ("", ""): 4}
    assert required(PROBING, candidates[-1:], found, NOW) == {("", ""): 1}
    two = [Candidate(name, (APPS,), fit=True) for name in "ab"]
    assert required(PROBING, two, {"a": seen(needed_hops=3), "b": seen()}, NOW) == {APPS: 3}
    none = {"d": seen(needed_hops=0)}
    assert required(PROBING, candidates, none, NOW) == {("", ""): 0}


ENABLED, DISABLED = (
    ObservedInstance(Options(2, http_endpoint="enabled")),
    ObservedInstance(Options(2, http_endpoint="disabled")),
)


@pytest.mark.parametrize(
    ("unprobed", "here", "field", "provable"),
    [
        pytest.param("", ENABLED, "httpTokens", True, id="any"),
        pytest.param("", None, "httpTokens", True, id="nothing is known"),
        pytest.param("windows", ENABLED, "httpTokens", False, id="the probe cannot run"),
        pytest.param("", DISABLED, "httpTokens", False, id="nothing to be seen of it"),
        pytest.param("", DISABLED, "httpEndpoint", True, id="it is about that"),
        pytest.param("", DISABLED, "httpTokens httpEndpoint", True, id="it is about that, too"),
    ],
)
def test_whether_a_probe_could_prove_a_change(
    unprobed: str, here: ObservedInstance | None, field: str, provable: bool
) -> None:
    changes = [OptionChange(one, "a", "b", "p") for one in field.split()]
    assert bool(unprovable(unprobed, here, changes)) != provable


def test_a_re_run_that_was_asked_for_is_not_asked_for_again() -> None:
    first = evaluated(CANARY, seen(AGAIN, "Blocked"))
    later = evaluated(CANARY, seen(AGAIN, "Blocked"), first.marks["a"])
    assert (later.marks, later.waiting) == (first.marks, True)


@pytest.mark.parametrize(
    ("candidate", "finding", "reason"),
    [
        pytest.param(HERE, seen(DAY), "Proved", id="only aged: it counts until the next one"),
        pytest.param(HERE, seen(DAY + AGAIN), "Probing", id="the next one does not come"),
        pytest.param(LATE, seen(99, asked=101), "Probing", id="asked for before a change"),
        pytest.param(HERE, seen(-9 * DAY, asked=DAY), "Proved", id="only aged, by a clock ahead"),
        pytest.param(HERE, seen(-9 * DAY, asked=DAY + AGAIN), "Probing", id="far too old, by a clock ahead"),
        pytest.param(HERE, seen(AGAIN, UNKNOWN, detail="ImagePullBackOff"), "NotProved", id="failed"),
        pytest.param(HERE, None, "Probing", id="never"),
    ],
)
def test_what_was_found_counts_until_the_next_is_there(
    candidate: Candidate, finding: Finding | None, reason: str
) -> None:
    found = evaluated(candidate, finding)
    assert (found.reason, found.waiting) == (reason, True)


@pytest.mark.parametrize(
    ("candidate", "finding", "seconds"),
    [
        pytest.param(HERE, seen(60), DAY - 60, id="as it should be: the interval"),
        pytest.param(HERE, seen(60, UNKNOWN), AGAIN - 60, id="failed"),
        pytest.param(CANARY, seen(60, "Blocked"), AGAIN - 60, id="a canary waits for it"),
        pytest.param(HERE, seen(-9 * DAY, asked=60), DAY - 60, id="by the mark, where the clock is ahead"),
        pytest.param(HERE, seen(0, asked=60), DAY, id="just made"),
        pytest.param(HERE, seen(60, asked=-30), DAY, id="by a mark ahead, where nothing was changed"),
        pytest.param(HERE, None, None, id="never"),
    ],
)
def test_when_to_look_whether_one_is_due(
    candidate: Candidate, finding: Finding | None, seconds: float | None
) -> None:
    assert evaluated(candidate, finding).wake == seconds


def test_the_interval_bounds_how_soon_a_doubtful_one_is_made_again() -> None:
    assert evaluated(HERE, seen(300, UNKNOWN), interval=300.0).waiting
    assert not evaluated(HERE, seen(299, UNKNOWN), interval=300.0).waiting


def test_some_of_each_group_and_those_that_are_known_first() -> None:
    other = ("KarpenterNodePool", "default")
    candidates = [Candidate(name, (APPS,), fit=True) for name in "abcd"]
    candidates += [
        Candidate("e", (other,), fit=True),
        Candidate("f", (), fit=True),
        Candidate("g", (), fit=False),
    ]
    found = {"c": seen(), "d": seen(verdict="Blocked")}
    made = verify(PROBING, candidates, ProbeState(found), NOW)
    assert sorted(made.marks) == ["c", "d", "e", "f"]
    assert made.groups[APPS][1].probed == 2
    assert made.groups.keys() == {APPS}, "of no group, or not yet known"
    assert (made.reason, made.proved) == ("SetButUnreachable", False)


def test_a_canary_is_probed_beside_those_of_its_group() -> None:
    candidates = [Candidate(name, (APPS,), fit=True) for name in "abcd"]
    candidates += [Candidate("z", (APPS,), fit=True, needed=True)]
    made = verify(PROBING, candidates, ProbeState({"a": seen(), "b": seen()}), NOW)
    assert sorted(made.marks) == ["a", "z"], "and one of those"
    one = msgspec.structs.replace(PROBING, per_group=1)
    assert sorted(verify(one, candidates, ProbeState(), NOW).marks) == ["z"]
    assert sorted(verify(one, candidates[:-1], ProbeState(), NOW).marks) == ["a"]


def test_an_unexpected_result_counts_however_few_nodes_of_its_group_are_probed() -> None:
    """As after an edit of `expect`: it was expected, and the canary is the one node that is probed."""
    one = msgspec.structs.replace(PROBING, per_group=1, expect="PodBlocked")
    candidates = [Candidate("a", (APPS,), fit=True), Candidate("z", (APPS,), fit=True, needed=True)]
    candidates += [Candidate("b", (APPS,), fit=True)]
    made = verify(
        one, candidates, ProbeState({"a": seen(), "b": seen(verdict="Blocked", imdsv1="Closed")}), NOW
    )
    assert sorted(made.marks) == ["a", "z"]
    assert (made.reason, [candidate.node for candidate, _ in made.unexpected]) == ("StillReachable", ["a"])


def test_a_mark_of_somebody_else_is_kept() -> None:
    """`caretaker rerun daemontask caretaker-imds-probe --nodes a`."""
    mark = format_micros(NOW - 5)
    found = evaluated(HERE, seen(), mark)
    assert (found.marks, found.waiting, found.reason) == ({"a": mark}, True, "Proved")


def node(instance: str) -> Node:
    return Node(instance, instance, {}, provider_id=f"aws:///eu-west-1a/{instance}", ready=True)


def running(found: Node, hops: int) -> Member:
    return Member(found, instance_ref_of(found), ObservedInstance(Options(hops), state="running"), ())


def test_a_canary_passes_only_by_a_probe_that_was_asked_for_after_it_was_seen_applied() -> None:
    ready = node("i-00000001")
    first, second = running(ready, 2), running(node("i-00000002"), 1)
    since, epoch = format_time(NOW - 600), "1970-01-01T00:00:00Z"
    one = ChangedInstance("i-00000001", ready.name, since, applied=True, ready_since=epoch)
    change = FieldChange("httpPutResponseHopLimit", "1", "2")
    soaks = GroupCanary("", "", (change,), (one,), "Soaking", since, since)
    canary = CanaryStatus(1, ("i-00000001",), "Soaking", since, since, (soaks,))
    inputs = EnforceInput(
        "two", 1, now=5.0, wall=NOW, canary=canary, loosening=("HopLimit",), free={"eu-west-1": 9}
    )
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)

    def made(asked: float | None, **told: Any) -> Plan:
        finding = seen(asked=asked, **told)
        known = ProbeState({ready.name: finding}, {ready.name: finding.mark})
        return plan(
            PlanInput(
                "two",
                [mine],
                [first, second],
                enforce_input=inputs,
                probing=PROBING,
                probe_state=known,
                now=NOW,
            )
        )

    for asked in (None, 601, 599.5):
        old = made(asked)
        assert old.verified is not None
        assert old.verified.marks[ready.name] > format_micros(NOW - 1)
        assert old.enforced is not None
        assert (old.enforced.phase, old.enforced.canary, old.enforced.writes) == (
            *("CanarySoaking", canary),
            (),
        )
        assert "waits for its probe" in old.enforced.message
    bad = made(300, **SHUT)
    assert bad.enforced is not None
    assert (bad.enforced.phase, bad.enforced.hold, bad.enforced.writes) == ("SetButUnreachable", True, ())
    fresh = made(300)
    assert fresh.enforced is not None
    assert (fresh.enforced.phase, len(fresh.enforced.writes)) == ("Changing", 1)
    ahead = made(-60)
    assert ahead.enforced is not None
    assert ahead.enforced.canary is not None
    assert ahead.enforced.canary.since == format_time(NOW + 60), "it may be from before the soak"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        pytest.param({"verdict": "HopLimited"}, "", id="it was not learned whether IMDSv1 is closed"),
        pytest.param({"verdict": UNKNOWN}, "", id="the probe failed"),
        pytest.param({"verdict": "HopLimited", "imdsv1": "Open"}, "CanaryUnreachable", id="IMDSv1 is open"),
        pytest.param({"verdict": "Reachable"}, "CanaryUnreachable", id="reachable"),
    ],
)
def test_a_canary_that_is_to_be_restored_fails_only_by_a_result(told: dict[str, Any], reason: str) -> None:
    ready = node("i-00000001")
    since, epoch = format_time(NOW - 600), "1970-01-01T00:00:00Z"
    one = ChangedInstance("i-00000001", ready.name, since, applied=True, ready_since=epoch)
    change = FieldChange("httpPutResponseHopLimit", "2", "1")
    soaks = GroupCanary("", "", (change,), (one,), "Soaking", since, since)
    canary = CanaryStatus(1, ("i-00000001",), "Soaking", since, since, (soaks,))
    inputs = EnforceInput(
        "two", 1, now=5.0, wall=NOW, canary=canary, tightening=("HopLimit",), on_failure="Restore"
    )
    mine = Policy("two", 100, Options(1), Selector(), enforces=True)
    known = ProbeState({ready.name: seen(asked=300, **{**V1, **told})})
    asks = msgspec.structs.replace(PROBING, expect="PodBlocked")
    members = [running(ready, 1), running(node("i-00000002"), 2)]
    made = plan(
        PlanInput("two", [mine], members, enforce_input=inputs, probing=asks, probe_state=known, now=NOW)
    ).enforced
    assert made is not None
    assert (made.breaker.reason if made.breaker is not None else "") == reason
    assert made.phase == ("BreakerOpen" if reason else "CanarySoaking")


def test_a_finding_that_counts_and_is_not_as_expected_stops_every_batch() -> None:
    ready = node("i-00000001")
    members = [running(ready, 2), *(running(node(f"i-0000000{n}"), 1) for n in range(2, 6))]
    inputs = EnforceInput(
        "two", 1, now=5.0, wall=NOW, loosening=("HopLimit",), free={"eu-west-1": 9}, canary_instances=0
    )
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)

    def writes(finding: Finding, **probing: Any) -> int:
        asks = msgspec.structs.replace(PROBING, **probing)
        known = ProbeState({ready.name: finding})
        made = plan(
            PlanInput("two", [mine], members, enforce_input=inputs, probing=asks, probe_state=known, now=NOW)
        )
        assert made.enforced is not None
        return len(made.enforced.writes)

    assert writes(seen()) == 4
    assert writes(seen(verdict="Blocked")) == 0
    assert writes(seen(verdict="Blocked"), expect="Any") == 4
    assert writes(seen(verdict=UNKNOWN)) == 4


def test_a_hop_limit_that_is_too_low_for_a_group_is_held() -> None:
    labels = {"eks.amazonaws.com/nodegroup": "apps"}
    nodes = [msgspec.structs.replace(node(f"i-0000000{n}"), labels=labels) for n in (1, 2)]
    members = [
        Member(one, instance_ref_of(one), ObservedInstance(Options(hops), state="running"), (APPS,))
        for one, hops in zip(nodes, (2, 3), strict=True)
    ]
    inputs = EnforceInput(
        "two", 1, now=5.0, wall=NOW, tightening=("HopLimit",), free={"eu-west-1": 9}, canary_instances=0
    )
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)
    finding = {nodes[0].name: seen(needed_hops=3)}
    for expect, reason in (("PodReachable", ["HopLimitTooLow"]), ("Any", [])):
        asks = msgspec.structs.replace(PROBING, expect=expect)
        found = PlanInput(
            "two",
            [mine],
            members,
            enforce_input=inputs,
            probing=asks,
            probe_state=ProbeState(finding),
            now=NOW,
        )
        made = plan(found)
        assert made.enforced is not None
        assert [why.reason for _, why in made.enforced.blocked][:1] == reason


WINDOWS = Node(
    "a", "a", {"kubernetes.io/os": "windows"}, provider_id="aws:///eu-west-1a/i-00000001", ready=True
)


@pytest.mark.parametrize("shut", [False, True], ids=["Windows", "its endpoint is disabled"])
def test_what_a_probe_cannot_prove_is_no_canary_and_told(shut: bool) -> None:
    """It would hold up all others for ever. Without a probe any will do."""
    first = running(msgspec.structs.replace(WINDOWS, labels={}) if shut else WINDOWS, 1)
    if shut:
        first = msgspec.structs.replace(
            first, observed=ObservedInstance(Options(1, http_endpoint="disabled"), state="running")
        )
    other = running(node("i-00000002"), 1)
    inputs = EnforceInput("two", 1, now=5.0, wall=NOW, loosening=("HopLimit",), free={"eu-west-1": 9})
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)
    asked = plan(PlanInput("two", [mine], [first, other], enforce_input=inputs, probing=PROBING, now=NOW))
    assert asked.enforced is not None
    assert asked.enforced.canary is not None
    assert asked.enforced.canary.instances == ("i-00000002",)
    told = {one.instance: (one.reason, one.message) for one in asked.exceptions}
    assert told["i-00000001"][0] == "NotProbeable"
    assert "not eligible as a canary" in told["i-00000001"][1]
    unasked = plan(PlanInput("two", [mine], [first, other], enforce_input=inputs, now=NOW))
    assert unasked.enforced is not None
    assert unasked.enforced.canary is not None
    assert unasked.enforced.canary.instances == ("i-00000001",)
    assert {one.reason for one in unasked.exceptions} == {"Drifted"}


def test_an_endpoint_that_nobody_wants_disabled_is_not_probed() -> None:
    found = running(node("i-00000001"), 2)
    off = msgspec.structs.replace(
        found, observed=ObservedInstance(Options(2, http_endpoint="disabled"), state="running")
    )
    mine = Policy("two", 100, Options(2), Selector())
    made = plan(PlanInput("two", [mine], [off], probing=PROBING, now=NOW)).verified
    assert made is not None
    assert made.marks == {}
    assert "its metadata endpoint is disabled, although no policy disables it" in made.message
    closed = Policy("off", 100, Options(http_endpoint="disabled"), Selector())
    made = plan(PlanInput("two", [mine, closed], [off], probing=PROBING, now=NOW)).verified
    assert made is not None
    assert made.marks == {"i-00000001": ""}
    rival = Policy("on", 100, Options(http_endpoint="enabled"), Selector())
    made = plan(PlanInput("two", [mine, closed, rival], [off], probing=PROBING, now=NOW)).verified
    assert made is not None
    assert made.marks == {}, "what two policies contest is what none of them asks for"


# ---------------------------------------------------------------- unexpected results in status

FIRST = msgspec.structs.replace(HERE, instance="i-1")
ASKED = format_micros(NOW - 90)
STORED = UnexpectedResult("a", "i-1", "HopLimited", format_time(NOW - 60), ASKED, 4.0, 3, "Closed")
OLD = msgspec.structs.replace(STORED, at=format_time(NOW - DAY - AGAIN), mark="")
REMEMBERED = Finding("HopLimited", NOW - 60, ASKED, 4.0, 3, "Closed")
SHUT_OUT = UnexpectedResult("a", "i-1", "Blocked", format_time(NOW - 60), format_micros(NOW - 50), 3.0, 2)


def known(
    *candidates: Candidate, stored: tuple[UnexpectedResult, ...] = (STORED,), **found: Finding
) -> Evidence:
    return evidence(PROBING, candidates, ProbeState(found), stored, NOW)


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        pytest.param({}, STORED, id="there is no other"),
        pytest.param({"a": seen(asked=91)}, STORED, id="an older one"),
        pytest.param({"a": seen(verdict=UNKNOWN, asked=50)}, STORED, id="a newer one that says nothing"),
        pytest.param({"b": seen(asked=50)}, STORED, id="of another node"),
        pytest.param({"a": seen(asked=90)}, None, id="of the same request"),
        pytest.param({"a": seen(asked=50)}, None, id="a newer one, as expected"),
        pytest.param({"a": seen(verdict="Blocked", asked=50)}, SHUT_OUT, id="a newer one, unexpected"),
    ],
)
def test_a_stored_result_counts_until_there_is_a_newer_one(
    found: dict[str, Finding], kept: UnexpectedResult | None
) -> None:
    made = known(FIRST, **found)
    assert made.unexpected == ((kept,) if kept is not None else ())
    assert made.probe_state.before == ({"a": REMEMBERED} if kept is STORED else {})
    assert made.probe_state.findings == found
    assert made.verified is not None
    assert made.verified.proved is (kept is None)
    message, last = made.verified.message, "; the last result counts until the node is probed again"
    assert message.startswith("1 ")
    assert message.endswith(last) is (kept is STORED)
    assert known(FIRST, stored=(), **found).unexpected == ((SHUT_OUT,) if kept is SHUT_OUT else ())


@pytest.mark.parametrize(
    ("candidate", "stored", "kept"),
    [
        pytest.param(None, STORED, True, id="its Node may come back"),
        pytest.param(None, OLD, False, id="too old"),
        pytest.param(msgspec.structs.replace(FIRST, fit=False), STORED, True, id="its Node is not Ready"),
        pytest.param(msgspec.structs.replace(FIRST, instance="i-2"), STORED, False, id="of another instance"),
    ],
)
def test_a_stored_result_that_stops_nothing_is_kept_while_its_node_may_come_back(
    candidate: Candidate | None, stored: UnexpectedResult, kept: bool
) -> None:
    other = msgspec.structs.replace(FIRST, node="b")
    made = known(*([candidate] if candidate is not None else ()), other, stored=(stored,))
    assert made.unexpected == ((stored,) if kept else ())
    assert made.verified is not None
    assert not made.verified.faults


@pytest.mark.parametrize(("asked", "seconds"), [(None, 90), (100, 90), (90, 90), (50, 50)])
def test_the_request_of_a_stored_result_is_not_repeated(asked: float | None, seconds: float) -> None:
    marks = {"a": format_micros(NOW - asked)} if asked is not None else {}
    made = evidence(PROBING, [FIRST], ProbeState(marks=marks), [STORED], NOW)
    assert made.probe_state.marks == {"a": format_micros(NOW - seconds)}


@pytest.mark.parametrize(("expect", "shut"), [("PodBlocked", False), ("PodReachable", True)])
def test_a_newer_result_that_did_not_learn_whether_imdsv1_is_closed_replaces_none(
    expect: Any, shut: bool
) -> None:
    reached = msgspec.structs.replace(STORED, verdict="Reachable", imdsv1=None)
    limited = ProbeState({"a": seen(verdict="HopLimited", asked=50)})
    asks, candidate = Probing(expect=expect), msgspec.structs.replace(FIRST, shut=shut)
    assert evidence(asks, [candidate], limited, [reached], NOW).unexpected == (reached,)


def test_without_a_probe_no_stored_result_counts() -> None:
    state = ProbeState({"a": seen(verdict="Blocked")})
    assert evidence(None, [FIRST], state, [STORED], NOW) == Evidence(state)


def test_stored_results_are_bounded_by_the_names_of_their_nodes() -> None:
    many = [
        msgspec.structs.replace(STORED, node=f"n{number:03d}")
        for number in reversed(range(MAX_UNEXPECTED + 1))
    ]
    made = known(FIRST, stored=tuple(many))
    assert [one.node for one in made.unexpected] == [f"n{number:03d}" for number in range(MAX_UNEXPECTED)]


@pytest.mark.parametrize(
    ("problem", "proved", "expected"),
    [
        ("", True, ("", "")),
        ("", None, ("", "")),
        ("", False, ("Slow", "a pod waits")),
        (
            "denied",
            False,
            (
                "ProbeUnavailable",
                "the DaemonTask of the probe: denied. No instance is changed until the probe can be used, or "
                "spec.verification.probe is false",
            ),
        ),
    ],
)
def test_why_the_probe_allows_no_change(problem: str, proved: bool | None, expected: tuple[str, str]) -> None:
    found = Verified({}, {}, "Slow", "a pod waits", proved)
    assert unproved(ProbeState(problem=problem), found) == expected
