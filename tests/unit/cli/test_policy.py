"""What plan and status of an IMDSPolicy make of its conditions."""

import msgspec
import pytest

from caretaker.api.conditions import Condition
from caretaker.api.imds import (
    Canary,
    CanaryStatus,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    GroupStatus,
    Safety,
    SourceStatus,
    Status,
)
from caretaker.api.objects import WireMeta
from caretaker.cli.imds.plan import enforce_input, enforce_lines, faults_of
from caretaker.cli.imds.status import advice, as_text, canaries, sources
from caretaker.cli.manifest import read as manifest
from caretaker.imds.enforce import Enforced
from caretaker.imds.enforce_input import EnforceInput
from caretaker.imds.resource import RawPolicy, read

POLICY = """\
apiVersion: caretaker.dev/v1alpha1
kind: IMDSPolicy
metadata: {name: workers}
spec:
  options:
    httpPutResponseHopLimit: 2
"""
CLASH = "spec.options.httpPutResponseHopLimit: a, workers want different values with equal priority"


def encoded(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def test_a_conflict_is_a_fault_of_the_file_once_and_at_its_line() -> None:
    (document,) = manifest("policy.yaml", POLICY).documents
    stalled = [Condition(kind, "True", "Conflict", CLASH) for kind in ("Stalled", "Conflicted")]
    status = Status(conditions=[Condition("Ready", "False", "Conflict", CLASH), *stalled])
    assert faults_of(document, status) == [f"policy.yaml:6: {CLASH}"]


@pytest.mark.parametrize("reason", ["AccessDenied", "NoIdentity", "NotAsked"])
def test_what_is_refused_to_whoever_asks_is_no_fault_of_the_file(reason: str) -> None:
    (document,) = manifest("policy.yaml", POLICY).documents
    assert faults_of(document, Status(conditions=[Condition("Ready", "False", reason, "denied")])) == []


# What a process learns by its flags or while it runs, or needs after a failure: a plan is that of one that
# has just started.
LEARNT = {
    *("now", "fresh_since", "options", "on_failure", "stop_after", "resumed_at", "watched", "soaks"),
    *("inherited", "believed_since", "breaker", "attempts", "others", "failures", "last_failure", "denied"),
    *("first", "cap", "wait", "slowed", "stopped", "changed", "proved", "faulty", "unprobed", "asked_ahead"),
    *("unproved", "needed", "enforced", "by_tag", "held", "instances", "tokens_held"),
    *("rejected", "own_identity"),
}


def test_plan_gives_enforce_all_that_it_does_not_learn_while_it_runs() -> None:
    safety = {
        "allowLoosening": ["Tokens"],
        "allowTightening": ["HopLimit"],
        "canary": {"instances": 3, "soak": "77m"},
        "maxDriftPercent": 37,
    }
    verification = {"expect": "PodBlocked"}
    spec = {
        "options": {"httpTokens": "required"},
        "safety": safety,
        "pendingTimeout": "7m",
        "verification": verification,
    }
    status = Status(canary=CanaryStatus(1, (), "Changing", AT, AT, ()))
    raw = RawPolicy(WireMeta(name="workers", generation=4), encoded(spec), encoded(status))
    given = enforce_input(read(raw), {"eu-west-1"}, 5.0)
    bare = EnforceInput("", 0, 0.0, 0.0)
    same = {name for name in EnforceInput.__struct_fields__ if getattr(given, name) == getattr(bare, name)}
    assert same == LEARNT, "caretaker plan copies a field, or it is one of LEARNT"


@pytest.mark.parametrize("reason", ["CanaryChanging", "CanarySoaking", "Changing"])
def test_status_tells_once_how_far_a_change_is(reason: str) -> None:
    message = "Canary i-0a soaks until 12:02:01, then the remaining instances are changed"
    conditions = [
        Condition("Ready", "False", reason, message),
        Condition("Reconciling", "True", reason, message),
        Condition("Enforcing", "True", reason, message),
    ]
    status = encoded(Status(conditions=conditions))
    found = read(RawPolicy(metadata=WireMeta(name="workers"), status=status))
    lines = as_text(found, wide=False, now=0.0)
    assert [line for line in lines if message in line] == [f"  Ready: {reason}: {message}"]


def told(name: str, *conditions: Condition) -> list[str]:
    status = encoded(Status(observed_generation=0, conditions=list(conditions)))
    return as_text(read(RawPolicy(metadata=WireMeta(name=name), status=status)), wide=False, now=0.0)


def test_a_policy_of_no_node_is_told_what_to_do_and_not_to_see_to_ec2() -> None:
    nobody = "NoMatchingNodes"
    lines = told(
        "workers",
        Condition("Ready", "False", nobody, "spec.selector means no node of the cluster"),
        Condition("PermissionOK", "Unknown", nobody, "EC2 was not asked, since no node is an instance of it"),
        Condition("Compliant", "Unknown", nobody, "spec.selector means no node of the cluster"),
    )
    assert lines[1:] == [
        "  Ready=False: NoMatchingNodes",
        "  Ready: NoMatchingNodes: spec.selector means no node of the cluster",
        "    -> see below why nodes are skipped; if none is listed, correct spec.selector, unless such nodes "
        "are to come",
    ]


@pytest.mark.parametrize("reason", ["AccessDenied", "NoIdentity", "NotAsked", "PermissionDenied"])
def test_plan_advises_whoever_asks_and_status_whoever_runs_the_operator(reason: str) -> None:
    status, plan = advice(enforces=False), advice(enforces=False, plan=True)
    assert ("you" in plan[reason], "you" in status[reason]) == (True, False)
    assert plan["Drifted"] == status["Drifted"]


@pytest.mark.parametrize("reason", ["Drifted", "HopLimitOneTokensOptional"])
@pytest.mark.parametrize("plan", [False, True])
def test_nobody_is_sent_past_the_guards_of_a_policy_that_changes_instances_itself(
    reason: str, plan: bool
) -> None:
    assert "Enforce changes the instances" in advice(enforces=True, plan=plan)[reason]
    assert "Enforce" not in advice(enforces=False, plan=plan)[reason]


AT = "2026-01-01T12:00:00Z"
RAISE = FieldChange("httpPutResponseHopLimit", "1", "2")
CLOSE = FieldChange("httpTokens", "optional", "required")


def canary(name: str, *changes: FieldChange, count: int = 1, phase: str = "Soaking") -> GroupCanary:
    ones = tuple(ChangedInstance(f"i-{n}", f"n{n}", AT) for n in range(count))
    kind = "EKSManagedNodegroup" if name else ""
    return GroupCanary(kind, name, changes, ones, phase, AT, AT)  # type: ignore[arg-type]


def test_status_shows_the_canary_of_each_group() -> None:
    made = CanaryStatus(
        1, (), "Changing", AT, AT, (canary("a", RAISE, CLOSE, count=5), canary("", RAISE, phase="Failed"))
    )
    status = encoded(Status(canary=made))
    lines = as_text(read(RawPolicy(metadata=WireMeta(name="workers"), status=status)), wide=False, now=0.0)
    assert [line.split("  ")[0] for line in lines[-3:]] == [
        "CANARY OF",
        "EKSManagedNodegroup/a",
        "nodes without a group",
    ]
    change = "httpPutResponseHopLimit 1 -> 2, httpTokens optional -> required"
    assert change in lines[-2]
    assert lines[-2].endswith(f"Soaking  {AT}  i-0 (n0), i-1 (n1), i-2 (n2) and 2 more")
    assert "Failed" in lines[-1]
    assert canaries(None) == []
    assert canaries(msgspec.structs.replace(made, groups=())) == []


def test_plan_tells_the_canary_of_each_group_and_how_long_it_stands() -> None:
    groups = (canary("a", RAISE), canary("b", CLOSE), *(canary(f"c{n}", RAISE) for n in range(4)))
    made = Enforced(left=9, canary=CanaryStatus(1, (), "Changing", AT, AT, groups))
    lines = enforce_lines(made, Safety(), enforces=True)
    assert lines[0] == "Enforce would change 9 instances in about 9s, plus the time of the canaries"
    assert lines[1] == (
        "  canary of EKSManagedNodegroup/a: i-0 (n0): httpPutResponseHopLimit 1 -> 2; the remaining "
        "instances 2m after it is applied"
    )
    assert lines[2].endswith("the remaining instances 15m after it is applied")
    assert lines[6:] == ["  and canaries of 1 more groups"]
    nobody = enforce_lines(Enforced(left=9), Safety(), enforces=True)
    assert "there is no canary yet" in nobody[1]
    assert len(enforce_lines(Enforced(left=9), Safety(canary=Canary(0)), enforces=True)) == 1


def test_a_compliant_source_that_relies_on_the_account_says_so() -> None:
    note = "not set, the account's default: httpTokens required"
    groups = [
        GroupStatus("AutoScalingGroup", name, source=SourceStatus("Compliant", message=message))
        for name, message in (("spot", note), ("apps", ""))
    ]
    assert sources(groups)[-1] == f"AutoScalingGroup/spot: {note}"
