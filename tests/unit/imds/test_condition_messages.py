"""The whole messages of the conditions. Their status and reasons: test_status.py."""

from collections import Counter

import pytest

from caretaker.api.imds import Summary
from caretaker.imds.conditions import Problem, StatusInput, conditions_of
from caretaker.imds.enforce import Enforced
from caretaker.imds.plan import Plan
from caretaker.imds.safety_checks import Blocked
from caretaker.imds.source_checks import Findings
from caretaker.imds.verify import Verified
from unit.imds.states import BAD, CASES, CONFLICT, DENIED, ENFORCES, sourced, view


def told(seen: StatusInput, plan: Plan, problem: str = "") -> dict[str, str]:
    return {one.type: one.message for one in conditions_of(seen, plan, problem)}


WELL = {
    "Ready": "3 node(s) are looked at",
    "PermissionOK": "EC2 answers",
    "Compliant": "3 of 3 node(s) are as they should be",
}
ALLOW = "ec2:DescribeInstances: denied; allow ec2:DescribeInstances"
ABOUT = "what launches these is not known: AutoScalingGroup/a"
NOBODY = "spec.selector means no node of the cluster"
GONE = "none of 3 node(s) is an EC2 instance that can be held; see exceptions"
NOT_ASKED = "EC2 was not asked, since no node is an instance of it"
LACKING = "EC2's responses lack all {} instance(s), their options or their tags; see exceptions"
RIVALS = "spec.options.httpTokens: a, b want different values with equal priority: give one of them another"
MESSAGES = {
    "sources are as they should be": {
        **WELL,
        "SourcesCompliant": "the sources of 1 group(s) are as they should be",
    },
    "a source that is not leaves the nodes compliant": {
        **WELL,
        "SourcesCompliant": "nodes that come will not be as they should: AutoScalingGroup/a: EKSOwned",
    },
    "a source whose launches the account refuses": {
        **WELL,
        "SourcesCompliant": "launches of AutoScalingGroup/a fail: the account enforces IMDSv2 "
        "(HttpTokensEnforced); nodes that come will not be as they should: AutoScalingGroup/b: Drifted",
    },
    "a source that is nothing to look at": {**WELL, "SourcesCompliant": f"{ABOUT}: Unsupported"},
    "sources may not be looked at, the nodes were": {
        **WELL,
        "PermissionOK": ALLOW,
        "SourcesCompliant": f"{ABOUT}: Unknown; {ALLOW}",
    },
    "all is well": WELL,
    "drift does not make it unready": {
        **WELL,
        "Compliant": "1 of 3 node(s) differ: httpPutResponseHopLimit of 1",
    },
    "no node is meant": {"Ready": NOBODY, "PermissionOK": NOT_ASKED, "Compliant": NOBODY},
    "no node that is meant is an instance": {"Ready": GONE, "PermissionOK": NOT_ASKED, "Compliant": GONE},
    "what could not be asked is never compliant": {
        "Ready": ALLOW,
        "PermissionOK": ALLOW,
        "Compliant": "1 of 3 node(s) could not be looked at",
        "Reconciling": ALLOW,
    },
    "some could not be looked at": {
        **WELL,
        "Ready": "2 node(s) are looked at; 1 could not be looked at",
        "Compliant": "1 of 3 node(s) could not be looked at",
    },
    "none could be looked at": {
        **WELL,
        "Ready": LACKING.format(2),
        "Compliant": "2 of 3 node(s) could not be looked at",
        "Reconciling": LACKING.format(2),
    },
    "a change that is not applied yet": {**WELL, "Compliant": "a change of 1 node(s) is not applied yet"},
    "a conflict needs a hand": {
        "Ready": RIVALS,
        "PermissionOK": "EC2 answers",
        "Compliant": "1 of 1 node(s) are as they should be",
        "Stalled": RIVALS,
        "Conflicted": RIVALS,
    },
    "suspended": {
        "Ready": "Suspended; its options keep their precedence over other policies",
        "PermissionOK": "the policy is suspended and not evaluated",
        "Compliant": "the policy is suspended and not evaluated",
        "Suspended": "spec.suspend is true: the policy is not evaluated",
    },
    "a spec that cannot be read": dict.fromkeys(
        ("Ready", "PermissionOK", "Compliant", "Stalled"), "spec.options: no"
    ),
    "the worst pair": {
        "Ready": "1 node(s) are looked at",
        "PermissionOK": "EC2 answers",
        "Compliant": "1 of 1 node(s) are as they should be",
        "SlowAndOpen": "1 node(s) have hop limit 1 and optional tokens: their pods wait seconds for IMDSv2, "
        "and then get IMDSv1",
    },
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_was_found_is_told(name: str) -> None:
    seen, plan, _ = CASES[name]
    assert told(seen, plan) == MESSAGES[name]


FAILING = "1 instance(s) could not be changed; see exceptions"
HELD_BACK = "spec.options.httpTokens is not changed on 1 instance(s): add Tokens"


@pytest.mark.parametrize(
    ("name", "ready", "enforcing"),
    [
        ("stopped by BreakerOpen", "why", "why"),
        ("busy with Changing", "x", "x"),
        ("all is as it should be", "3 node(s) are held", ""),
        ("some could not be looked at", "2 node(s) are held; 1 could not be looked at", ""),
        ("none could be looked at", LACKING.format(4), ""),
        ("only what was refused is left", FAILING, ""),
        ("what was never applied is left", FAILING, ""),
        ("an opening change is not allowed", HELD_BACK, ""),
        ("the account forbids some", "1 instance(s) wait for the next resync: no", ""),
        (
            "somebody sets some back",
            "another client keeps reverting 1 instance(s); each is skipped for an hour",
            "",
        ),
    ],
)
def test_what_enforce_does_is_told(name: str, ready: str, enforcing: str) -> None:
    enforced, summary, *_ = ENFORCES[name]
    messages = told(view(), Plan(summary=summary, enforced=enforced))
    assert (messages["Ready"], messages["Enforcing"]) == (ready, enforcing)
    also = messages.keys() & {"Stalled", "Reconciling"}
    assert [messages[one] for one in also] == ([ready] if also else [])


def test_an_instance_with_two_changes_that_are_not_made_is_counted_once() -> None:
    (_, blocked), *_ = ENFORCES["an opening change is not allowed"][0].blocked
    hop = Blocked(ENFORCES["a hop limit is too low"][0].blocked[0][1].change, "HopLimitTooLow", "needs 3")
    enforced = Enforced(blocked=(("i-1", blocked), ("i-1", hop), ("i-2", hop)))
    ready = told(view(), Plan(summary=BAD, enforced=enforced))["Ready"]
    assert ready == "spec.options.httpTokens is not changed on 2 instance(s): add Tokens"


def test_a_wait_that_ends_by_itself_comes_last() -> None:
    (used,) = ENFORCES["IMDSv1 is used"][0].blocked
    (waits,) = ENFORCES["the gate says IMDSv1Waiting"][0].blocked
    for blocked in ((waits, used), (used, waits)):
        messages = told(view(), Plan(summary=BAD, enforced=Enforced(blocked=blocked)))
        assert "Stalled" in messages, "the alert leaves IMDSv1Waiting out"


def test_options_that_differ_are_told_in_order_with_all_nodes_that_do() -> None:
    drift = Counter({"httpTokens": 2, "httpEndpoint": 1})
    plan = Plan(summary=Summary(nodes=9, drifted=2, failed=1), drift=drift)
    assert told(view(), plan)["Compliant"] == "3 of 9 node(s) differ: httpEndpoint of 1, httpTokens of 2"


def problems(count: int) -> tuple[Problem, ...]:
    return tuple(Problem("Transient", f"p{n}") for n in range(count))


@pytest.mark.parametrize(("count", "message"), [(1, "p0"), (3, "p0; p1; p2"), (4, "p0; p1; p2; and 1 more")])
def test_three_problems_are_named(count: int, message: str) -> None:
    seen = view(problems=problems(count))
    messages = told(seen, Plan(summary=Summary(nodes=1, unknown=1)))
    assert (messages["Ready"], messages["PermissionOK"]) == (message, message)


@pytest.mark.parametrize(("count", "names"), [(3, "g0, g1, g2"), (5, "g0, g1, g2 and 2 more")])
def test_three_groups_are_named(count: int, names: str) -> None:
    every = tuple(f"g{n}" for n in range(count))
    groups = sourced("Compliant").sources.groups
    for more, said in (
        ({"wrong": every}, f"nodes that come will not be as they should: {names}"),
        ({"unknown": every}, f"what launches these is not known: {names}"),
    ):
        plan = Plan(summary=Summary(nodes=1, compliant=1), sources=Findings(groups, **more))
        assert told(view(), plan)["SourcesCompliant"] == said


def test_each_option_in_conflict_is_told() -> None:
    plan = Plan(conflicts=(*CONFLICT.conflicts, ("httpEndpoint", ("c", "d"))))
    ends = "want different values with equal priority: give one of them another"
    ready = told(view(), plan)["Ready"]
    assert ready == f"spec.options.httpTokens: a, b {ends}; spec.options.httpEndpoint: c, d {ends}"


@pytest.mark.parametrize(
    ("proved", "problems", "expected"),
    [
        (True, ("", ""), "True Proved: all"),
        (False, ("", ""), "False Proved: all"),
        (None, ("", ""), "Unknown Proved: all"),
        (True, ("no task", ""), "Unknown ProbeUnavailable: the DaemonTask of the probe: no task"),
        (True, ("", "no read"), "Unknown ProbeUnavailable: the DaemonTask of the probe: no read"),
        (True, ("no task", "no read"), "Unknown ProbeUnavailable: the DaemonTask of the probe: no task"),
    ],
)
def test_what_probes_found_is_told(proved: bool | None, problems: tuple[str, str], expected: str) -> None:
    plan = Plan(summary=Summary(nodes=1, compliant=1), verified=Verified({}, {}, "Proved", "all", proved))
    made = conditions_of(view(probe_problem=problems[1]), plan, problems[0])
    (verified,) = (one for one in made if one.type == "Verified")
    assert f"{verified.status} {verified.reason}: {verified.message}" == expected


def test_what_slows_down_changes_is_told() -> None:
    plan = Plan(summary=BAD, enforced=Enforced(slowed=True))
    assert told(view(), plan)["Throttled"] == (
        "EC2 throttled changes; they are sent more slowly for some minutes"
    )


@pytest.mark.parametrize(
    ("refused", "status"), [("AccessDenied", "False"), ("NoIdentity", "False"), ("NotAsked", "Unknown")]
)
def test_why_nothing_may_be_changed_is_told(refused: str, status: str) -> None:
    made = conditions_of(view(refused=(refused, "why")), Plan(summary=BAD, enforced=Enforced()))
    (permission,) = (one for one in made if one.type == "PermissionOK")
    assert (permission.status, permission.reason, permission.message) == (status, refused, "why")


def test_the_first_denial_is_told_though_other_problems_come_before() -> None:
    seen = view(problems=(Problem("Transient", "slow"), DENIED), asked=False)
    made = {one.type: one for one in conditions_of(seen, Plan(summary=Summary(nodes=1, unknown=1)))}
    assert (made["PermissionOK"].reason, made["PermissionOK"].message) == ("AccessDenied", ALLOW)
    assert (made["Ready"].reason, made["Ready"].message) == ("NotAsked", f"slow; {ALLOW}")
