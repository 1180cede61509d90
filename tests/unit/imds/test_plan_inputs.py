"""What a pass hands on: to the sources of future nodes, to Enforce and to the probes."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import (
    CanaryStatus,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    GroupTerm,
    LabelSelector,
    Options,
    PassedChange,
    Selector,
)
from caretaker.api.times import format_micros, parse_time
from caretaker.imds.launching import LaunchSnapshot, ScalingGroup, Template, TemplateRef, Version
from caretaker.imds.plan import Plan, Policy
from caretaker.imds.probe import Finding, ProbeState
from caretaker.imds.verify import Probing
from unit.imds.test_plan import (
    ENFORCING,
    HOP,
    SINCE,
    TWO,
    WINDOWS,
    enforced,
    member,
    node,
    planned,
    probed,
    written,
)

HERE = "eu-west-1"
LAUNCHERS = (TemplateRef("lt-1", "$Latest"),)
LAUNCHING = LaunchSnapshot(
    {(HERE, name): ScalingGroup(name, LAUNCHERS) for name in ("spot", "web", "far")},
    {(HERE, "lt-1"): Template("lt-1", {1: Version(1, {"HttpPutResponseHopLimit": 1})}, 1, 1, "")},
)
SPOT, DIFFERS = ("AutoScalingGroup", "spot"), "httpPutResponseHopLimit is 1, should be 2"


def term(name: str) -> Selector:
    return Selector(groups=(GroupTerm("AutoScalingGroup", (name,)),))


def test_sources_are_judged_by_the_nodes_of_all_policies() -> None:
    members = [member(node(n), Options(2), group=group) for n, group in ((1, "spot"), (2, "web"))]
    mine = Policy("two", 100, Options(2), term("spot"))
    other = Policy("three", 100, Options(3), term("web"))
    alone = planned(members, mine, launching=LAUNCHING).sources
    assert [(name, one.state, one.message) for name, one in alone.groups.items()] == [
        (SPOT, "Drifted", DIFFERS)
    ]
    assert alone.groups[SPOT].mend
    both = planned(members, mine, other, launching=LAUNCHING)
    assert both.sources.groups[SPOT].message == (
        f"{DIFFERS}; other nodes from this source need another {HOP}: give this group its own source"
    )
    assert [one.source for one in both.groups] == [both.sources.groups[SPOT]]


def test_what_another_policy_wins_is_not_asked_of_a_source() -> None:
    members = [member(node(1), Options(2), group="spot")]
    higher = Policy("three", 200, Options(3), Selector())
    made = planned(members, TWO, higher, launching=LAUNCHING).sources
    assert made.groups[SPOT].state == "Compliant"


def test_the_tags_of_an_instance_tell_its_source() -> None:
    one = member(node(1, group="apps"), Options(2), template="lt-1", version="1")
    source = planned([one], launching=LAUNCHING).sources.groups["EKSManagedNodegroup", "apps"]
    assert (source.state, source.launch_template, source.version) == ("EKSOwned", "lt-1", "1")


def test_a_node_of_another_policy_has_its_source_only_where_its_instance_can_be_read() -> None:
    """Instances of EKS Auto Mode have none, though their labels name a node group."""
    labels = {"eks.amazonaws.com/sourceLaunchTemplateId": "lt-1"}
    both = node(1, {**labels, "mine": ""}, group="apps"), node(2, labels, group="apps")
    mine = Policy("two", 100, Options(2), Selector(LabelSelector({"mine": ""})))
    other = Policy("three", 100, Options(3), Selector(exclude=LabelSelector({"mine": ""})))
    told = {
        managed: planned(
            [member(both[0], Options(1)), member(both[1], Options(3), managed=managed)],
            *(mine, other),
            launching=LAUNCHING,
        ).sources.groups["EKSManagedNodegroup", "apps"]
        for managed in (False, True)
    }
    assert "other nodes from this source" in told[False].message
    assert "other nodes from this source" not in told[True].message


def test_a_node_that_is_skipped_has_no_source() -> None:
    far = member(node(1, provider="aws:///us-east-1a/i-00000001"), Options(2), group="far")
    assert planned([far], launching=LAUNCHING, region=HERE).sources.groups == {}


def test_a_conflict_on_one_node_is_told_whatever_comes_after() -> None:
    rival = Policy("three", 100, Options(3), term("spot"))
    members = [member(node(1), Options(2), group="spot"), member(node(2), Options(2))]
    assert planned(members, TWO, rival).conflicts == ((HOP, ("three", "two")),)


def test_a_change_that_has_passed_is_made_on_the_others() -> None:
    stood = PassedChange("", "", HOP, "1", "2", SINCE)
    status = CanaryStatus(1, (), "Passed", SINCE, SINCE, (), (stood,))
    members = [member(node(n), Options(1)) for n in (1, 2, 3)]
    assert written(enforced(members, canary=status, canary_instances=1)) == 3


def soaks(
    options: Options,
    known: ProbeState,
    *,
    phase: Any = "Soaking",
    since: str = SINCE,
    applied: bool = True,
    **more: Any,
) -> Plan:
    """A canary that was chosen at SINCE, and has been in this phase `since`."""
    ready = "1970-01-01T00:00:00Z"
    one = ChangedInstance("i-00000001", "n001", SINCE, applied=applied, ready_since=ready)
    group = GroupCanary("", "", (FieldChange(HOP, "1", "2"),), (one,), phase, SINCE, since)
    status = CanaryStatus(1, ("i-00000001",), phase, SINCE, since, (group,))
    inputs = msgspec.structs.replace(ENFORCING, canary=status, canary_instances=1, **more)
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)
    ready = member(msgspec.structs.replace(node(1), ready=True), options)
    return planned(
        [ready, member(node(2))], mine, enforce_input=inputs, probing=Probing(), now=1e9, probe_state=known
    )


@pytest.mark.parametrize(("on_failure", "reason"), [("Restore", "CanaryUnreachable"), ("Keep", "")])
def test_what_a_probe_finds_of_a_canary_fails_it(on_failure: Any, reason: str) -> None:
    mark = format_micros(1e9 - 50.0)
    known = ProbeState({"n001": Finding("Blocked", 1e9 - 40.0, mark)}, {"n001": mark})
    made = soaks(Options(2), known, on_failure=on_failure)
    assert made.enforced is not None
    assert made.verified is not None
    breaker = made.enforced.breaker
    assert (breaker.reason if breaker is not None else "") == reason
    if breaker is not None:
        assert breaker.message == (
            "instance i-00000001 (node n001) has the change, and failed the probe: a pod does not reach IMDS "
            "(Blocked)"
        )


def test_a_canary_that_cannot_be_probed_is_named() -> None:
    windows = member(msgspec.structs.replace(node(1, WINDOWS), ready=True), Options(2))
    one = ChangedInstance("i-00000001", "n001", SINCE, applied=True, ready_since="1970-01-01T00:00:00Z")
    group = GroupCanary("", "", (FieldChange(HOP, "1", "2"),), (one,), "Soaking", SINCE, SINCE)
    status = CanaryStatus(1, ("i-00000001",), "Soaking", SINCE, SINCE, (group,))
    inputs = msgspec.structs.replace(ENFORCING, canary=status, canary_instances=1, canary_soak=60.0)
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)
    left = member(node(2), Options(1))
    made = planned([windows, left], mine, enforce_input=inputs, probing=Probing(), now=1e9).enforced
    assert made is not None
    assert made.phase == "NotProbeable"
    assert "cannot be probed: its operating system is windows" in made.message


@pytest.mark.parametrize("verdict", ["EndpointDisabled", "Reachable"])
def test_a_canary_whose_endpoint_another_policy_disables_is_not_proved(verdict: str) -> None:
    """A disabled endpoint shows nothing of another change, and an older result may not hold."""
    one = ChangedInstance("i-00000001", "n001", SINCE, applied=True, ready_since="1970-01-01T00:00:00Z")
    group = GroupCanary("", "", (FieldChange(HOP, "1", "2"),), (one,), "Soaking", SINCE, SINCE)
    status = CanaryStatus(1, ("i-00000001",), "Soaking", SINCE, SINCE, (group,))
    inputs = msgspec.structs.replace(ENFORCING, canary=status, canary_instances=1, canary_soak=60.0)
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)
    closed = Policy("off", 100, Options(http_endpoint="disabled"), Selector(), enforces=True)
    ready = msgspec.structs.replace(node(1), ready=True)
    members = [member(ready, Options(2, http_endpoint="disabled")), member(node(2), Options(1))]
    made = planned(
        members,
        *(mine, closed),
        enforce_input=inputs,
        probing=Probing(),
        now=1e9,
        probe_state=asked(90.0, verdict),
    ).enforced
    assert made is not None
    assert made.canary is not None
    assert (made.phase, made.canary.passed) == ("NotProbeable", ())
    assert made.message.startswith(
        "Canary i-00000001 has soaked, and cannot be probed: its metadata endpoint is disabled, so a probe "
    )


def asked(seconds: float, verdict: str = "Blocked") -> ProbeState:
    """The result of a probe that was requested so many seconds after SINCE."""
    at = (parse_time(SINCE) or 0.0) + seconds
    return ProbeState({"n001": Finding(verdict, at + 0.5, format_micros(at))}, {"n001": format_micros(at)})


@pytest.mark.parametrize(("after", "counts"), [(-50.0, False), (0.9, False), (1.0, True), (30.0, True)])
def test_a_result_of_this_canary_counts_though_its_soak_began_anew(after: float, counts: bool) -> None:
    made = soaks(Options(2), asked(after), since="2001-09-09T01:46:00Z")
    assert made.verified is not None
    assert bool(made.verified.faults) is counts


@pytest.mark.parametrize(
    ("phase", "applied", "counts"),
    [("Changing", True, True), ("Changing", False, False), ("Failed", True, False)],
)
def test_a_result_from_before_a_change_counts_for_a_canary_that_has_it(
    phase: str, applied: bool, counts: bool
) -> None:
    changed = {"i-00000001": (parse_time(SINCE) or 0.0) + 60.0}
    made = soaks(Options(2), asked(30.0), phase=phase, applied=applied, changed=changed)
    assert made.verified is not None
    assert bool(made.verified.faults) is counts
    assert not made.verified.first, "it does not soak yet"


def test_a_result_from_before_a_change_does_not_count_for_what_is_no_canary() -> None:
    changed = {"i-00000001": (parse_time(SINCE) or 0.0) + 60.0}
    inputs = msgspec.structs.replace(ENFORCING, changed=changed)
    ready = member(msgspec.structs.replace(node(1), ready=True), Options(2))
    made = planned(
        [ready], enforce_input=inputs, probing=Probing(), now=1e9, probe_state=asked(30.0)
    ).verified
    assert made is not None
    assert not made.faults
    assert made.message == "0 of 1 node(s) have been probed"


def test_of_nodes_that_are_no_canaries_some_are_probed_and_none_first() -> None:
    members = [member(msgspec.structs.replace(node(n), ready=True), Options(2)) for n in range(5)]
    made = planned(members, probing=Probing(per_group=3), now=1e9).verified
    assert made is not None
    assert (set(made.marks), made.first) == ({"n000", "n001", "n002"}, frozenset())


@pytest.mark.parametrize(("after", "again"), [(0.9, True), (1.0, False), (1.5, False)])
def test_a_probe_that_was_asked_for_after_the_change_is_not_asked_for_again(
    after: float, again: bool
) -> None:
    since = parse_time(SINCE) or 0.0
    mark = format_micros(since + after)
    known = ProbeState({"n001": Finding("Reachable", since + 5.0, mark)}, {"n001": mark})
    assert (probed(Options(2, "required"), known)["n001"] != mark) is again


def test_what_is_set_is_told_beside_what_a_probe_found() -> None:
    ready = member(msgspec.structs.replace(node(1), ready=True), Options(2))
    known = ProbeState({"n001": Finding("HopLimited", 1e9 - 5.0, "", None, 3)})
    plan = planned([ready], probing=Probing(), now=1e9, probe_state=known)
    assert [(one.node, one.instance) for one in plan.unexpected] == [("n001", "i-00000001")]
    made = plan.verified
    assert made is not None
    assert made.message == (
        "1 of 1 probed node(s) have an unexpected result; n001: a pod does not reach IMDS (HopLimited, and "
        "needs hop limit 3); the hop limit is set to 2"
    )


@pytest.mark.parametrize(("ipv6", "proved"), [("enabled", None), ("disabled", True)])
def test_a_pod_that_may_reach_it_over_ipv6_is_not_proved_to_be_blocked(
    ipv6: Any, proved: bool | None
) -> None:
    options = Options(2, http_endpoint="enabled", http_protocol_ipv6=ipv6)
    ready = member(msgspec.structs.replace(node(1), ready=True), options)
    known = ProbeState({"n001": Finding("Blocked", 1e9 - 5.0, "", 3.0, 2)})
    probing = Probing(expect="PodBlocked")
    made = planned([ready], probing=probing, now=1e9, probe_state=known).verified
    assert made is not None
    assert (made.proved, "over IPv6" in made.message) == (proved, proved is None)


def test_where_a_policy_disables_the_endpoint_nothing_may_reach_it() -> None:
    ready = member(msgspec.structs.replace(node(1), ready=True), Options(2, http_endpoint="disabled"))
    off = Policy("off", 100, Options(http_endpoint="disabled"), Selector())
    known = ProbeState({"n001": Finding("Reachable", 1e9 - 5.0, "", 3.0, 2)})
    made = planned([ready], TWO, off, probing=Probing(), now=1e9, probe_state=known).verified
    assert made is not None
    assert (made.reason, made.proved) == ("StillReachable", False)
