"""What a policy tells of its probes, whole: the condition Verified, and what was measured of each group."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import ProbeStatus
from caretaker.imds.probe import EMULATED, UNKNOWN, Finding, ProbeState
from caretaker.imds.verify import Candidate, verify
from unit.imds.test_verify import APPS, CANARY, HERE, NOW, PROBING, evaluated, seen

ONE = "1 of 1 probed node(s) have an unexpected result; a: "
BLOCKED: dict[str, Any] = {"expect": "PodBlocked"}
ANY: dict[str, Any] = {"expect": "Any"}
LIMITED: dict[str, Any] = {"verdict": "HopLimited", "latency_ms": None, "needed_hops": 3}
WITHOUT = {"hop_limit": None}
SHUT = {"shut": True}
REACHES = "a pod reaches IMDSv1, without a token (HopLimited)"


@pytest.mark.parametrize(
    ("candidate", "finding", "probing", "expected", "message"),
    [
        pytest.param(
            {}, seen(), {}, "Proved True", "1 node(s) were probed from inside a pod", id="all is well"
        ),
        pytest.param({}, None, {}, "Probing None", "0 of 1 node(s) have been probed", id="not probed yet"),
        pytest.param(
            {"fit": False}, None, {}, "Probing None", "there is no node to probe", id="nobody is fit"
        ),
        pytest.param(
            {},
            seen(**LIMITED),
            {},
            "SetButUnreachable False",
            f"{ONE}a pod does not reach IMDS (HopLimited, and needs hop limit 3); the hop limit is set to 2",
            id="too low a hop limit",
        ),
        pytest.param(
            WITHOUT,
            seen(verdict="Blocked", needed_hops=None),
            {},
            "SetButUnreachable False",
            f"{ONE}a pod does not reach IMDS (Blocked)",
            id="blocked, and no hop limit is known",
        ),
        pytest.param(
            {},
            seen(latency_ms=200.6),
            {},
            "Slow False",
            f"{ONE}a pod waits 201 ms for IMDS",
            id="a pod waits",
        ),
        pytest.param(
            {},
            seen(latency_ms=200.0),
            {},
            "Proved True",
            "1 node(s) were probed from inside a pod",
            id="just in time",
        ),
        pytest.param(
            {},
            seen(latency_ms=None),
            {},
            "Proved True",
            "1 node(s) were probed from inside a pod",
            id="no time was measured",
        ),
        pytest.param(
            {},
            seen(verdict=UNKNOWN, detail="it failed"),
            {},
            "NotProved None",
            f"{ONE}Unknown: it failed",
            id="the probe failed",
        ),
        pytest.param(
            {},
            seen(verdict=EMULATED, detail="another"),
            ANY,
            "NotProved None",
            f"{ONE}Emulated: another",
            id="another instance answers",
        ),
        pytest.param(
            {},
            seen(verdict="Blocked"),
            ANY,
            "Proved True",
            "1 node(s) were probed from inside a pod",
            id="whatever it is",
        ),
        pytest.param(
            {},
            seen(**LIMITED, imdsv1="Open"),
            BLOCKED,
            "StillReachable False",
            ONE + REACHES,
            id="IMDSv1 is open",
        ),
        pytest.param(
            {},
            seen(**LIMITED, imdsv1="Open"),
            SHUT,
            "StillReachable False",
            ONE + REACHES,
            id="IMDSv1 is open though the endpoint is disabled",
        ),
        pytest.param(
            {},
            seen(**LIMITED),
            BLOCKED,
            "NotProved None",
            f"{ONE}it is unknown whether a pod reaches IMDSv1 (HopLimited)",
            id="IMDSv1 was not learned",
        ),
        pytest.param(
            {},
            seen(),
            BLOCKED,
            "StillReachable False",
            f"{ONE}a pod reaches IMDS (Reachable)",
            id="a token comes",
        ),
        pytest.param(
            {},
            seen(needed_hops=3),
            {},
            "NotProved None",
            "1 of 1 probed node(s) have no valid result; a: Reachable with 3 needed hops contradicts the hop "
            "limit 2 that is set; the node is probed again",
            id="it contradicts the hop limit",
        ),
        pytest.param(
            WITHOUT,
            seen(needed_hops=3),
            {},
            "Proved True",
            "1 node(s) were probed from inside a pod",
            id="no hop limit is known",
        ),
    ],
)
def test_what_one_node_tells(
    candidate: dict[str, Any], finding: Finding | None, probing: dict[str, Any], expected: str, message: str
) -> None:
    asks = {name: value for name, value in probing.items() if name != "shut"}
    here = msgspec.structs.replace(HERE, **candidate, shut="shut" in probing)
    made = evaluated(here, finding, **asks)
    assert (f"{made.reason} {made.proved}", made.message) == (expected, message)
    wrong = {"a": message.removeprefix(ONE).partition("; ")[0]}
    assert made.faults == (wrong if expected.endswith("False") else {})


def of(names: str, found: dict[str, Finding], **more: Any) -> Any:
    candidates = [Candidate(name, (APPS,), fit=True, hop_limit=2, **more) for name in names]
    return verify(msgspec.structs.replace(PROBING, per_group=9), candidates, ProbeState(found), NOW)


def test_the_first_of_several_is_told_and_how_many_there_are() -> None:
    bad, doubt = seen(verdict="Blocked"), seen(needed_hops=3)
    unexpected = of("abcd", {"a": seen(), "b": bad, "c": bad, "d": doubt})
    assert unexpected.message == (
        "2 of 4 probed node(s) have an unexpected result; b: a pod does not reach IMDS (Blocked, and needs "
        "hop limit 2); the hop limit is set to 2"
    )
    doubts = of("abcd", {"a": seen(), "b": doubt, "c": doubt})
    assert doubts.message == (
        "2 of 3 probed node(s) have no valid result; b: Reachable with 3 needed hops contradicts the hop "
        "limit 2 that is set; the node is probed again"
    )
    assert of("abcd", {"a": seen()}).message == "1 of 4 node(s) have been probed"
    assert of("ab", {"a": seen(), "b": seen()}).message == "2 node(s) were probed from inside a pod"


def test_nodes_that_cannot_be_probed_are_told_by_the_first_name() -> None:
    candidates = [Candidate(name, (APPS,), fit=True, unprobed=f"why {name}") for name in "cab"]
    made = verify(PROBING, candidates, ProbeState(), NOW)
    assert made.message == "there is no node to probe; 3 node(s) cannot be probed, a: why a"
    assert (made.wake, made.waiting, made.groups, made.marks) == (None, False, {}, {})


def test_what_was_measured_of_a_group_is_told() -> None:
    times = [float(n) for n in range(1, 21)]
    found = {chr(96 + n): seen(latency_ms=time, needed_hops=n % 3) for n, time in enumerate(times, 1)}
    found["y"] = seen(verdict="Blocked", latency_ms=None, needed_hops=None)
    asks, candidates = (
        msgspec.structs.replace(PROBING, per_group=99),
        [Candidate(name, (APPS,), True) for name in found],
    )
    assert verify(asks, candidates, ProbeState(found), NOW).groups == {
        APPS: (2, ProbeStatus(probed=21, reachable=20, p95_milliseconds=19.0))
    }


@pytest.mark.parametrize(
    ("times", "p95"), [((), None), ((3.14159,), 3.1), ((1.0, 9.0), 9.0), ((9.0, 1.0, 5.0), 9.0)]
)
def test_the_slowest_of_few_is_the_95th_percentile(times: tuple[float, ...], p95: float | None) -> None:
    found = {name: seen(latency_ms=time, needed_hops=None) for name, time in zip("abc", times, strict=False)}
    found["z"] = seen(latency_ms=None, needed_hops=None)
    groups = of("abcz", found).groups
    assert groups == {APPS: (None, ProbeStatus(len(found), len(found), p95))}


def test_a_node_of_two_groups_counts_in_both() -> None:
    other = ("AutoScalingGroup", "asg")
    candidate = Candidate("a", (APPS, other), fit=True)
    made = verify(PROBING, [candidate], ProbeState({"a": seen()}), NOW)
    told = (2, ProbeStatus(1, 1, 3.0))
    assert made.groups == {APPS: told, other: told}


def test_a_canary_that_is_not_probed_yet_is_waited_for() -> None:
    made = evaluated(CANARY)
    assert (made.reason, made.waiting, made.wake, made.first) == ("Probing", True, None, {"a"})
