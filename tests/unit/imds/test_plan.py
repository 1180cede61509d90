"""What a pass finds: results counted by state and group, what is listed, who conflicts."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from caretaker.api.imds import (
    MAX_EXCEPTIONS,
    MAX_GROUPS,
    CanaryStatus,
    ChangedGroup,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    GroupStatus,
    GroupTerm,
    LabelSelector,
    Options,
    ProbeStatus,
    Requirement,
    Selector,
    Summary,
)
from caretaker.api.objects import Node
from caretaker.api.times import format_micros, parse_time
from caretaker.imds.change_attempts import ChangeAttempt, failed
from caretaker.imds.checks import ObservedInstance
from caretaker.imds.enforce_input import EnforceInput
from caretaker.imds.instance_ref import InstanceRef, instance_ref_of
from caretaker.imds.launching import LaunchSnapshot
from caretaker.imds.plan import Member, Plan, PlanInput, Policy, desired, plan
from caretaker.imds.probe import Finding, ProbeState
from caretaker.imds.verify import Probing

HOP = "httpPutResponseHopLimit"
SINCE = "2001-09-09T01:45:00Z"  # 100 s ago
TWO = Policy("two", 100, Options(2), Selector())


def node(
    number: int, labels: dict[str, str] | None = None, *, group: str = "", provider: str | None = None
) -> Node:
    labels = {**(labels or {}), **({"eks.amazonaws.com/nodegroup": group} if group else {})}
    provider_id = f"aws:///eu-west-1a/i-{number:08x}" if provider is None else provider
    return Node(f"n{number:03d}", f"u{number}", labels, provider_id=provider_id)


def member(found: Node, options: Options | None = None, **seen: object) -> Member:
    ref: InstanceRef = instance_ref_of(found)
    here = None if options is None else ObservedInstance(options, **seen)  # type: ignore[arg-type]
    tagged = (("AutoScalingGroup", here.group),) if here is not None and here.group else ()
    return Member(found, ref, here, (*ref.groups, *tagged))


def planned(members: Iterable[Member], *policies: Policy, me: str = "two", **more: object) -> Plan:
    return plan(PlanInput(me, policies or (TWO,), list(members), **more))  # type: ignore[arg-type]


def test_each_node_is_counted_once_and_in_its_groups() -> None:
    made = planned(
        [
            member(node(1, group="a"), Options(2)),
            member(node(2, group="a"), Options(1), group="asg"),
            member(node(3, group="b"), Options(2), pending=True),
            member(node(4)),
            member(node(5, provider="")),
        ]
    )
    assert made.summary == Summary(nodes=5, compliant=1, drifted=1, pending=1, gone=1, skipped=1)
    assert [msgspec.structs.replace(one, source=None) for one in made.groups] == [
        GroupStatus("AutoScalingGroup", "asg", 1, 0, 1),
        GroupStatus("EKSManagedNodegroup", "a", 2, 1, 1),
        GroupStatus("EKSManagedNodegroup", "b", 1, 0, 0),
    ]
    assert [(e.node, e.reason, e.field, e.current, e.desired) for e in made.exceptions] == [
        ("n002", "Drifted", HOP, "1", "2"),
        ("n003", "Pending", "", "", ""),
        ("n004", "InstanceNotFound", "", "", ""),
        ("n005", "NoProviderID", "", "", ""),
    ]
    assert made.drift == {HOP: 1}


def test_what_is_not_meant_is_not_counted() -> None:
    mine = Policy("two", 100, Options(2), Selector(exclude=LabelSelector({"imds": "unmanaged"})))
    made = planned([member(node(1, {"imds": "unmanaged"}), Options(1)), member(node(2), Options(2))], mine)
    assert made.summary == Summary(nodes=1, compliant=1)


def test_what_is_wanted_may_be_found_out_beforehand_in_pieces() -> None:
    mine = Policy("two", 100, Options(2), Selector(exclude=LabelSelector({"imds": "unmanaged"})))
    other = Policy("other", 200, Options(3), Selector(LabelSelector({"kind": "other"})))
    labels: list[dict[str, str]] = [{}, {"imds": "unmanaged"}, {"kind": "other"}]
    members = [member(node(n, some, group="a"), Options(1 + n % 2)) for n, some in enumerate(labels * 2)]
    found = PlanInput("two", (mine, other), members)
    before = msgspec.structs.replace(found, desired=list(desired(found)))
    assert [mine for mine, _ in before.desired] == [True, False, True] * 2
    assert plan(before) == plan(found)


def test_a_group_that_only_a_tag_names_is_meant() -> None:
    spot = Policy("two", 100, Options(2), Selector(groups=(GroupTerm("AutoScalingGroup", ("spot-*",)),)))
    made = planned([member(node(1), Options(1), group="spot-1"), member(node(2), Options(1))], spot)
    assert made.summary == Summary(nodes=1, drifted=1)


def test_a_policy_that_loses_an_option_tells_the_nodes_and_is_not_drifted_by_it() -> None:
    three = Policy("three", 200, Options(3), Selector(groups=(GroupTerm("EKSManagedNodegroup", ("b",)),)))
    members = [member(node(1, group="a"), Options(2)), member(node(2, group="b"), Options(3))]
    assert planned(members, TWO, three).summary == Summary(nodes=2, compliant=2, overridden=1)
    assert planned(members, TWO, three, me="three").summary == Summary(nodes=1, compliant=1)


def test_a_conflict_names_the_rivals_for_both() -> None:
    three = Policy("three", 100, Options(3), Selector())
    for me in ("two", "three"):
        made = planned([member(node(1), Options(1))], TWO, three, me=me)
        assert made.conflicts == ((HOP, ("three", "two")),)
        assert made.summary == Summary(nodes=1, compliant=1)


def test_a_region_that_could_not_be_asked_is_unknown_and_one_that_is_not_meant_is_skipped() -> None:
    members = [
        member(node(1), Options(2)),
        member(node(2, provider="aws:///us-east-1a/i-0abc1234"), Options(2)),
    ]
    made = planned(members, unasked={"us-east-1": "denied"})
    assert made.summary == Summary(nodes=2, compliant=1, unknown=1)
    assert made.exceptions[0].message == "denied"
    only = planned(members, region="eu-west-1", unasked={"us-east-1": "denied"})
    assert only.summary == Summary(nodes=2, compliant=1, skipped=1)
    assert only.exceptions[0].reason == "OtherRegion"


def test_the_worst_pair_is_counted_whatever_the_policy_asks_for() -> None:
    tags = Policy("two", 100, Options(instance_metadata_tags="disabled"), Selector())
    slow = Options(1, "optional", "enabled", "disabled", "disabled")
    made = planned([member(node(1), slow), member(node(2), Options(2, "optional", "enabled"))], tags)
    assert made.slow_and_open == 1


def test_what_is_listed_is_bounded_and_what_differs_comes_first() -> None:
    members = [member(node(n, provider="")) for n in range(30)]
    members += [member(node(n), Options(1, "optional")) for n in range(100, 130)]
    both = Policy("two", 100, Options(2, "required"), Selector())
    made = planned(members, both)
    assert len(made.exceptions) == MAX_EXCEPTIONS
    assert {entry.reason for entry in made.exceptions} == {"Drifted"}
    assert made.exceptions_omitted == 90 - MAX_EXCEPTIONS
    assert made.drift == {HOP: 30, "httpTokens": 30}


def calls_of(options: Options) -> int:
    """How many functions one plan calls, with as many nodes that differ in all of these options."""
    members = [member(node(n, group="a"), Options(1, "optional", "disabled", "enabled")) for n in range(300)]
    policy, count = Policy("two", 100, options, Selector()), 0

    def called(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        planned(members, policy)
    finally:
        sys.setprofile(None)
    return count


def test_what_nodes_have_alike_costs_once_and_what_is_not_listed_nothing() -> None:
    # Whether another policy wins a field is looked up for each node: three times more here.
    assert calls_of(Options(2, "required", "enabled", "disabled")) < calls_of(Options(2)) + 4 * 300


ENFORCING = EnforceInput("two", 1, now=1_000.0, wall=1e9, loosening=("HopLimit",), canary_instances=0, cap=9)


def enforced(members: list[Member], *others: Policy, **more: object) -> Plan:
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)
    inputs = msgspec.structs.replace(ENFORCING, free={"eu-west-1": 9, "us-east-1": 9}, **more)
    return planned(members, mine, *others, enforce_input=inputs)


def written(made: Plan) -> int:
    return len(made.enforced.writes) if made.enforced is not None else 0


def three(name: str, **more: Any) -> Policy:
    return Policy(name, 200, Options(3), Selector(), **more)


def test_an_audit_takes_no_part_in_what_enforce_writes() -> None:
    ours = [member(node(1), Options(1))]
    assert written(enforced(ours, three("audit"))) == 1
    made = enforced(ours, three("enforces", enforces=True))
    assert (written(made), made.summary.overridden) == (0, 1)
    audit = planned(ours, TWO, three("enforces", enforces=True))
    assert (audit.summary.overridden, audit.enforced) == (1, None)


def test_a_conflict_between_policies_that_enforce_writes_nothing() -> None:
    rival = Policy("three", 100, Options(3), Selector(), enforces=True)
    made = enforced([member(node(1), Options(1))], rival)
    assert (written(made), made.conflicts) == (0, ((HOP, ("three", "two")),))
    audit = msgspec.structs.replace(rival, enforces=False)
    assert written(enforced([member(node(1), Options(1))], audit)) == 1


def test_a_policy_for_another_region_wins_nothing_here() -> None:
    far = node(2, provider="aws:///us-east-1a/i-00000002")
    both = [member(node(1), Options(1)), member(far, Options(1))]
    made = enforced(both, three("far", enforces=True, region="us-east-1"))
    assert made.enforced is not None
    assert [write.region for write in made.enforced.writes] == ["eu-west-1"]
    assert made.summary.overridden == 1
    audit = planned(both, TWO, three("far", region="us-east-1"))
    assert audit.summary == Summary(nodes=2, compliant=1, drifted=1, overridden=1)


def test_optional_tokens_are_not_sent_in_the_regions_whose_account_refuses_them() -> None:
    """Of the same kind and group, and the same for the rest."""
    far = node(2, provider="aws:///us-east-1a/i-00000002")
    both = [member(one, Options(2, "required")) for one in (node(1), far)]
    loose = Policy("two", 100, Options(2, "optional"), Selector(), enforces=True)
    inputs = msgspec.structs.replace(ENFORCING, loosening=("Tokens",), free={"eu-west-1": 9, "us-east-1": 9})
    for refusing, other in (("eu-west-1", "us-east-1"), ("us-east-1", "eu-west-1")):
        launching = LaunchSnapshot(refusals={refusing: "no way", other: ""})
        made = planned(both, loose, enforce_input=inputs, launching=launching)
        assert made.enforced is not None
        assert [write.region for write in made.enforced.writes] == [other]
        assert [why.message for _, why in made.enforced.blocked] == ["no way"]


def test_one_of_which_no_tags_are_told_is_unknown_beside_its_like_and_is_sent_nothing() -> None:
    """A higher policy may have it, by a tag that EC2 does not tell."""
    dind = Policy("dind", 200, Options(3), Selector(groups=(GroupTerm("AutoScalingGroup", ("dind",)),)), True)
    members = [member(node(1), Options(3), group="dind"), *(member(node(n), Options(1)) for n in (2, 3, 4))]
    members[1:] = [
        msgspec.structs.replace(one, observed=msgspec.structs.replace(one.observed, **told))
        for one, told in zip(members[1:], ({}, {"tagged": False}, {"lost": True}), strict=True)
    ]
    made = enforced(members, msgspec.structs.replace(dind, enforces=True))
    assert made.summary == Summary(nodes=4, compliant=1, drifted=1, unknown=2, overridden=1)
    assert made.enforced is not None
    assert [write.instance for write in made.enforced.writes] == [members[1].ref.instance]


def test_one_that_no_description_has_told_is_pending_beside_its_like() -> None:
    members = [member(node(1), Options(2)), member(node(2), Options(2), confirmed=False)]
    assert planned(members).summary == Summary(nodes=2, compliant=1, pending=1)


def test_what_failed_is_told_in_place_of_drift() -> None:
    attempt = failed(ChangeAttempt(), 990.0, "InternalError", "no luck")
    members = [member(node(n, group="a"), Options(1)) for n in (1, 2)]
    made = enforced(members, attempts={"i-00000001": attempt})
    assert made.summary == Summary(nodes=2, drifted=1, failed=1)
    assert [(one.nodes, one.compliant, one.drifted) for one in made.groups] == [(2, 0, 2)]
    assert [(e.node, e.reason, e.message) for e in made.exceptions] == [
        ("n001", "InternalError", "no luck"),
        ("n002", "Drifted", ""),
    ]


def test_a_canary_stands_while_a_region_cannot_be_asked() -> None:
    at = "2001-01-01T00:00:00Z"
    one = ChangedInstance("i-0000000f", "n015", at, applied=True, ready_since="1970-01-01T00:00:00Z")
    change = FieldChange(HOP, "1", "2")
    soaks = GroupCanary("AutoScalingGroup", "asg", (change,), (one,), "Soaking", at, at)
    soaking = CanaryStatus(1, ("i-0000000f",), "Soaking", at, at, (soaks,))
    far = msgspec.structs.replace(node(15, provider="aws:///us-east-1a/i-0000000f"), ready=True)
    spot = Selector(groups=(GroupTerm("AutoScalingGroup", ("asg",)),))
    mine = Policy("two", 100, Options(2), spot, enforces=True)
    more = {"canary": soaking, "canary_instances": 1}
    inputs = msgspec.structs.replace(ENFORCING, free={"eu-west-1": 9}, **more)
    ours = [
        member(msgspec.structs.replace(found, ready=True), Options(1), group="asg")
        for found in (node(1), node(2))
    ]
    # Which group it is of is known by its tags alone, and those cannot be asked for.
    blind = planned([*ours, member(far)], mine, enforce_input=inputs, unasked={"us-east-1": "away"})
    assert blind.enforced is not None
    assert (blind.enforced.canary, blind.enforced.breaker, written(blind)) == (soaking, None, 0)
    gone = planned(ours, mine, enforce_input=inputs)
    assert gone.enforced is not None
    assert (gone.enforced.breaker and gone.enforced.breaker.reason, written(gone)) == ("CanaryLost", 0)


def test_a_change_counts_in_the_first_group_of_its_node() -> None:
    ready = msgspec.structs.replace(node(1, group="a"), ready=True, ready_since=7.0)
    made = enforced([member(ready, Options(1), group="asg")], canary_instances=1)
    assert made.enforced is not None
    assert made.enforced.canary is not None
    (group,) = made.enforced.canary.groups
    assert (group.kind, group.name) == ("EKSManagedNodegroup", "a")
    assert group.instances[0].ready_since == "1970-01-01T00:00:07Z"


def test_what_is_held_is_told_by_option_with_the_mend() -> None:
    mine = Policy("two", 100, Options(2, "required"), Selector(), enforces=True)
    inputs = msgspec.structs.replace(ENFORCING, loosening=(), free={"eu-west-1": 9})
    made = planned([member(node(1), Options(1, "optional"))], mine, enforce_input=inputs)
    assert [(e.reason, e.field) for e in made.exceptions] == [
        ("LooseningNotAllowed", HOP),
        ("TighteningNotAllowed", "httpTokens"),
    ]
    assert "allowLoosening" in made.exceptions[0].message
    assert "allowTightening" in made.exceptions[1].message


def test_nodes_are_told_apart_by_every_label_that_any_selector_reads() -> None:
    def term(key: str) -> LabelSelector:
        return LabelSelector(match_expressions=(Requirement(key, "Exists"),))

    mine = Policy("two", 100, Options(2), Selector(exclude=LabelSelector({"imds": "unmanaged"})))
    other = three("three", region="eu-west-1")
    other = msgspec.structs.replace(other, selector=Selector(node_selector=term("gpu")))
    labels = ({}, {"imds": "unmanaged"}, {"gpu": "a"}, {"gpu": "b", "free": "x"}, {"imds": "managed"})
    members = [member(node(n, one), Options(1)) for n, one in enumerate(labels)]
    made = planned(members, mine, other)
    assert made.summary == Summary(nodes=4, compliant=2, drifted=2, overridden=2)
    assert [entry.node for entry in made.exceptions] == ["n000", "n004"]


def test_what_is_known_of_an_instance_tells_it_apart_from_those_that_are_alike() -> None:
    kinds: tuple[dict[str, object], ...] = ({}, {"pending": True}, {"managed": True}, {"state": "terminated"})
    members = [member(node(n), Options(2), **kind) for n, kind in enumerate(kinds)]
    made = planned([*members, member(node(9))])
    assert made.summary == Summary(nodes=5, compliant=1, pending=1, skipped=1, gone=2)


def probed(options: Options, known: ProbeState | None = None, **more: Any) -> Mapping[str, str]:
    """The marks of a canary that soaks since SINCE."""
    one = ChangedInstance("i-00000001", "n001", SINCE, applied=True, ready_since="1970-01-01T00:00:00Z")
    change = FieldChange("httpTokens", "optional", "required")
    soaks = GroupCanary("", "", (change,), (one,), "Soaking", SINCE, SINCE)
    status = CanaryStatus(1, ("i-00000001",), "Soaking", SINCE, SINCE, (soaks,))
    mine = Policy("two", 100, Options(2, "required"), Selector(), enforces=True)
    given = {"canary": status, "canary_instances": 1, "tightening": ("Tokens",), **more}
    inputs = msgspec.structs.replace(ENFORCING, **given)
    held = member(msgspec.structs.replace(node(1), ready=True), options, at=math.inf)
    made = planned(
        [held],
        mine,
        enforce_input=inputs,
        probing=Probing(),
        now=inputs.wall,
        probe_state=known or ProbeState(),
    )
    assert made.verified is not None
    return made.verified.marks


def test_a_canary_is_probed_though_another_difference_of_it_is_held() -> None:
    """Else it would wait for its probe for ever."""
    assert probed(Options(3, "required")).keys() == {"n001"}


def test_a_canary_is_probed_once_more_after_it_was_seen_applied() -> None:
    """A finding from before that time may be of the former options."""
    since = parse_time(SINCE) or 0.0
    between = format_micros(since - 30.0)
    early = ProbeState({"n001": Finding("Reachable", since - 20.0, between)}, {"n001": between})
    marks = probed(Options(2, "required"), early, changed={"i-00000001": since - 60.0})
    assert marks["n001"] > format_micros(since + 1.0)


def exceptions(made: Plan) -> list[tuple[str, str, str, str, str, str, str]]:
    return [(e.node, e.reason, e.instance, e.field, e.current, e.desired, e.message) for e in made.exceptions]


def test_what_is_told_of_a_node() -> None:
    members = [
        member(node(1), Options(None, "optional")),
        member(node(2), Options(2, "required"), lost=True),
        member(node(3), Options(2, "required")),
    ]
    both = Policy("two", 100, Options(2, "required"), Selector())
    assert exceptions(planned(members, both)) == [
        ("n001", "Drifted", "i-00000001", HOP, "unknown", "2", ""),
        ("n001", "Drifted", "i-00000001", "httpTokens", "optional", "required", ""),
        (
            *("n002", "InstanceNotTold", "i-00000002", "", "", ""),
            "EC2's response lacks the instance or its options; EC2 is asked again",
        ),
    ]


def test_a_message_is_bounded() -> None:
    long = failed(ChangeAttempt(), 990.0, "InternalError", "x" * 2000)
    made = enforced([member(node(1), Options(1))], attempts={"i-00000001": long})
    assert exceptions(made) == [("n001", "InternalError", "i-00000001", HOP, "1", "2", "x" * 1024)]
    unasked = planned([member(node(1), Options(1))], unasked={"eu-west-1": "y" * 2000})
    assert exceptions(unasked) == [("n001", "NotAsked", "i-00000001", "", "", "", "y" * 1024)]


def test_differences_are_counted_by_group() -> None:
    both = Policy("two", 100, Options(2, "required"), Selector())
    members = [
        member(node(1, group="a"), Options(1, "required"), group="asg"),
        member(node(2, group="a"), Options(1, "optional")),
        member(node(3, group="b"), Options(None, "required")),
        member(node(4), Options(1, "required")),
    ]
    hop, tokens = (HOP, "1", "2"), ("httpTokens", "optional", "required")
    assert planned(members, both).differences == {
        ("EKSManagedNodegroup", "a"): {hop: 2, tokens: 1},
        ("AutoScalingGroup", "asg"): {hop: 1},
        ("EKSManagedNodegroup", "b"): {(HOP, "unknown", "2"): 1},
    }


def test_nodes_that_differ_in_several_ways_are_counted_together() -> None:
    hops = (1, 1, 3, 2)
    made = planned([member(node(n, group="a"), Options(hop)) for n, hop in enumerate(hops)])
    assert [(one.nodes, one.compliant, one.drifted) for one in made.groups] == [(4, 1, 3)]
    assert made.drift == {HOP: 3}


def test_groups_are_bounded_and_the_others_counted() -> None:
    def groups(count: int) -> Plan:
        return planned([member(node(n, group=f"g{n:04d}"), Options(2)) for n in range(count)])

    fits, many = groups(MAX_GROUPS), groups(MAX_GROUPS + 3)
    assert (len(fits.groups), fits.groups_omitted, fits.exceptions_omitted) == (MAX_GROUPS, 0, 0)
    assert (len(many.groups), many.groups_omitted) == (MAX_GROUPS, 3)


@pytest.mark.parametrize(
    ("options", "seen", "slow"),
    [
        (Options(1, "optional"), {}, 1),
        (Options(1, "optional"), {"pending": True}, 1),
        (Options(2, "optional"), {}, 0),
        (Options(1, "optional"), {"state": "terminated"}, 0),
        (Options(1, "optional"), {"managed": True}, 0),
        (Options(1, "optional"), {"lost": True}, 0),
    ],
)
@pytest.mark.parametrize("wanted", [1, 2])
def test_the_worst_pair_is_counted_of_what_was_looked_at(
    options: Options, seen: dict[str, object], slow: int, wanted: int
) -> None:
    mine = Policy("two", 100, Options(wanted), Selector())
    assert planned([member(node(1), options, **seen)], mine).slow_and_open == slow


def test_a_conflict_of_others_is_theirs_to_tell() -> None:
    tokens = [Policy(n, 50, Options(None, t), Selector()) for n, t in (("a", "optional"), ("b", "required"))]  # type: ignore[arg-type]
    made = planned([member(node(1), Options(2))], TWO, *tokens)
    assert made.conflicts == ()


WINDOWS = {"kubernetes.io/os": "windows"}
CANNOT = "not eligible as a canary, because a probe cannot verify its change: "


def test_why_one_is_no_canary_is_told() -> None:
    members = [
        member(node(1, WINDOWS), Options(1)),
        member(node(2), Options(1, http_endpoint="disabled")),
        member(node(3), Options(1)),
        member(node(4, WINDOWS), Options(2)),
    ]
    drifted = [
        (f"n00{n}", reason, f"i-0000000{n}", HOP, "1", "2", said)
        for n, reason, said in (
            (1, "NotProbeable", f"{CANNOT}its operating system is windows"),
            (
                2,
                "NotProbeable",
                f"{CANNOT}its metadata endpoint is disabled, so a probe finds the same before and after",
            ),
            (3, "Drifted", ""),
        )
    ]
    assert exceptions(planned(members, probing=Probing(), now=1e9)) == drifted
    assert [e.reason for e in planned(members).exceptions] == ["Drifted"] * 3


def test_what_probes_measured_is_told_by_group() -> None:
    ready = [msgspec.structs.replace(node(n, group=g), ready=True) for n, g in ((1, "a"), (2, "b"))]
    members = [member(one, Options(3)) for one in ready]
    mine = Policy("two", 100, Options(3), Selector())
    found = ProbeState({"n001": Finding("Reachable", 1e9 - 5.0, "", 3.0, 2)})
    made = planned(members, mine, probing=Probing(), now=1e9, probe_state=found)
    assert [(g.name, g.required_hop_limit, g.probe) for g in made.groups] == [
        ("a", 2, ProbeStatus(1, 1, 3.0)),
        ("b", None, None),
    ]
    assert made.verified is not None
    assert made.verified.message == "1 of 2 node(s) have been probed"


@pytest.mark.parametrize(
    ("ready", "options", "policies", "told"),
    [
        (True, Options(2, http_endpoint="enabled"), (), "0 of 1 node(s) have been probed"),
        (False, Options(2, http_endpoint="enabled"), (), "there is no node to probe"),
        (True, Options(1, http_endpoint="enabled"), (), "there is no node to probe"),
        (
            *(True, Options(2, http_endpoint="disabled"), ()),
            "there is no node to probe; 1 node(s) cannot be probed, n001: its metadata endpoint is disabled, "
            "although no policy disables it",
        ),
        (
            *(True, Options(2, http_endpoint="disabled"), ("disabled",)),
            "0 of 1 node(s) have been probed",
        ),
        (
            *(True, Options(2, http_endpoint="disabled"), ("disabled", "enabled")),
            "there is no node to probe; 1 node(s) cannot be probed, n001: its metadata endpoint is disabled, "
            "although no policy disables it",
        ),
    ],
)
def test_which_nodes_are_probed(ready: bool, options: Options, policies: Any, told: str) -> None:
    one = member(msgspec.structs.replace(node(1), ready=ready), options)
    others = [Policy(end, 50, Options(http_endpoint=end), Selector()) for end in policies]
    made = planned([one], TWO, *others, probing=Probing(), now=1e9)
    assert made.verified is not None
    assert made.verified.message == told


@pytest.mark.parametrize(
    ("options", "told", "proved"),
    [
        pytest.param(Options(2), {"tagged": False}, False, id="without tags"),
        pytest.param(Options(3), {"tagged": False}, None, id="without tags, and it differs"),
        pytest.param(Options(), {"lost": True}, False, id="without options"),
        pytest.param(Options(3), {"lost": True}, None, id="without options, and it differed before"),
        pytest.param(None, {}, False, id="not at all"),
    ],
)
def test_an_unexpected_result_counts_while_it_is_unknown_whether_the_instance_differs(
    options: Options | None, told: Any, proved: bool | None
) -> None:
    one = member(msgspec.structs.replace(node(1), ready=True), options, **told)
    known = ProbeState({"n001": Finding("HopLimited", 1e9 - 5.0, "", None, 9)})
    unasked = {} if options is not None else {"eu-west-1": "it does not answer"}
    made = planned([one], TWO, probing=Probing(), now=1e9, probe_state=known, unasked=unasked)
    assert (made.summary.unknown, made.verified and made.verified.proved) == (1, proved)


def test_an_instance_that_the_policy_no_longer_selects_is_judged_as_it_is() -> None:
    """It was changed, and is watched while it has a Node."""
    one = ChangedInstance("i-00000001", "n001", SINCE, applied=True)
    group = ChangedGroup("", "", (FieldChange(HOP, "1", "2"),), (one,))
    mine = Policy("two", 100, Options(2), Selector(exclude=LabelSelector({"imds": "no"})), enforces=True)
    inputs = msgspec.structs.replace(ENFORCING, watched=(group,), canary_instances=1)
    gone = member(node(1, {"imds": "no"}), Options(2), state="terminated")
    for members, reason in (([gone], "InstanceLost"), ([], "InstanceLost")):
        made = planned(members, mine, enforce_input=inputs).enforced
        assert made is not None
        assert made.breaker is not None
        assert made.breaker.reason == reason
    stays = planned([member(node(1, {"imds": "no"}), Options(2))], mine, enforce_input=inputs)
    assert stays.summary == Summary()
    assert stays.enforced is not None
    assert stays.enforced.breaker is None
