"""Conditions, status and events of an IMDSPolicy."""

import msgspec
import pytest

from caretaker.api.conditions import find
from caretaker.api.imds import (
    MAX_COMMAND,
    MAX_COMMANDS,
    BreakerStatus,
    CanaryStatus,
    ChangedGroup,
    ChangedInstance,
    ExceptionStatus,
    FieldChange,
    GroupStatus,
    Options,
    PassedChange,
    PlanStatus,
    SourceStatus,
    Spec,
    Status,
    Summary,
    UnexpectedResult,
)
from caretaker.imds.conditions import StatusInput
from caretaker.imds.enforce import Enforced
from caretaker.imds.plan import Plan
from caretaker.imds.source_checks import MAX_MESSAGE, Findings
from caretaker.imds.status import events_of, status_of
from caretaker.imds.verify import Verified
from unit.imds.states import (
    BAD,
    CASES,
    CONFLICT,
    DENIED,
    DRIFT,
    ENFORCES,
    GOOD,
    LATER,
    NOW,
    SCANNED,
    hold,
    sourced,
    view,
)


@pytest.mark.parametrize(("seen", "plan", "expected"), CASES.values(), ids=CASES.keys())
def test_conditions(seen: StatusInput, plan: Plan, expected: dict[str, str]) -> None:
    made = status_of(seen, plan, NOW)
    assert {x.type: f"{x.status} {x.reason}" for x in made.conditions} == expected
    assert {(x.observed_generation, x.last_transition_time) for x in made.conditions} == {(4, NOW)}


def test_a_conflict_names_the_option_the_policies_and_the_mend() -> None:
    ready = find(status_of(view(), CONFLICT, NOW).conditions, "Ready")
    assert ready is not None
    assert ready.message == (
        "spec.options.httpTokens: a, b want different values with equal priority: give one of them another"
    )


def test_a_second_look_that_finds_the_same_writes_nothing() -> None:
    once = status_of(view(), DRIFT, NOW)
    assert once.last_scan.at == SCANNED
    again = msgspec.structs.replace(view(once), scanned=LATER)
    assert status_of(again, DRIFT, LATER) is once


def test_since_stays_while_a_node_differs_in_the_same_way() -> None:
    once = status_of(view(), DRIFT, NOW)
    both = (*DRIFT.exceptions, ExceptionStatus("m", "Drifted", "i-2", "httpTokens", "optional", "required"))
    later = status_of(view(once), msgspec.structs.replace(DRIFT, exceptions=both), LATER)  # type: ignore[type-var]
    assert [(e.node, e.since) for e in later.exceptions] == [("n", NOW), ("m", LATER)]


def test_while_nothing_is_looked_at_what_was_found_stays() -> None:
    once = status_of(view(), DRIFT, NOW)
    later = status_of(view(once, spec=Spec(Options(2), suspend=True)), Plan(), LATER)
    assert (later.summary, later.exceptions) == (once.summary, once.exceptions)


def test_what_is_wrong_with_sources_is_told_by_group_and_cause() -> None:
    many = tuple(f"AutoScalingGroup/{n}: Drifted" for n in "abcde")
    found = msgspec.structs.replace(sourced("Drifted").sources, wrong=many)
    told = find(status_of(view(), Plan(sources=found), NOW).conditions, "SourcesCompliant")
    assert told is not None
    assert told.message.endswith(": ".join(["should", ", ".join(many[:3])]) + " and 2 more")
    unknown = status_of(view(source_problems=(DENIED,)), sourced("Unknown"), NOW)
    told = find(unknown.conditions, "SourcesCompliant")
    assert told is not None
    assert "AutoScalingGroup/a: Unknown; ec2:DescribeInstances: denied" in told.message


def test_a_command_that_does_not_fit_is_left_out_whole_and_told() -> None:
    def group(number: int, size: int) -> GroupStatus:
        return GroupStatus("AutoScalingGroup", f"g{number}", source=SourceStatus("Drifted", mend="x" * size))

    long = status_of(view(), Plan(groups=(group(1, MAX_COMMAND), group(2, MAX_COMMAND + 1))), NOW)
    assert [len(one.source.mend) for one in long.groups if one.source] == [MAX_COMMAND, 0]
    assert long.groups[1].source is not None
    assert "caretaker plan -f" in long.groups[1].source.message
    many = status_of(view(), Plan(groups=tuple(group(number, MAX_COMMAND) for number in range(100))), NOW)
    assert sum(len(one.source.mend) for one in many.groups if one.source) == MAX_COMMANDS
    assert status_of(view(many), Plan(groups=tuple(group(n, MAX_COMMAND) for n in range(100))), LATER) is many


def test_events_tell_when_sources_drift_and_when_they_are_mended() -> None:
    good = status_of(view(), sourced("Compliant"), NOW)
    bad = status_of(view(good), sourced("Drifted"), LATER)
    assert [(e.type, e.reason) for e in events_of(good, bad, None)] == [("Warning", "SourcesDrifted")]
    again = status_of(view(bad), sourced("Compliant"), LATER)
    assert [(e.type, e.reason) for e in events_of(bad, again, None)] == [("Normal", "SourcesCompliant")]
    assert events_of(Status(), good, None) == []


def test_events_are_transitions() -> None:
    new, bad = Status(), status_of(view(), DRIFT, NOW)
    assert [(e.type, e.reason) for e in events_of(new, bad, None)] == [("Warning", "Drifted")]
    assert events_of(bad, bad, None) == []
    good = status_of(view(bad), GOOD, LATER)
    assert [(e.type, e.reason) for e in events_of(bad, good, None)] == [("Normal", "Compliant")]
    slow = status_of(view(good), Plan(summary=GOOD.summary, slow_and_open=2), LATER)
    assert [(e.type, e.reason) for e in events_of(good, slow, None)] == [("Warning", "SlowAndOpen")]
    assert events_of(slow, slow, None) == []
    denied = status_of(view(good, problems=(DENIED,)), Plan(summary=Summary(nodes=3, unknown=3)), LATER)
    assert [e.reason for e in events_of(good, denied, None)] == ["AccessDenied"], (
        "once, though two conditions say so"
    )


@pytest.mark.parametrize(
    ("enforced", "summary", "ready", "enforcing", "also"), ENFORCES.values(), ids=ENFORCES.keys()
)
def test_conditions_of_enforce(
    enforced: Enforced, summary: Summary, ready: str, enforcing: str, also: str
) -> None:
    made = status_of(view(), Plan(summary=summary, enforced=enforced), NOW)
    told = {x.type: f"{x.status} {x.reason}" for x in made.conditions}
    assert (told["Ready"], told["Enforcing"]) == (ready, enforcing)
    assert {"Stalled", "Reconciling"} & told.keys() == ({also} if also else set())
    assert made.plan.instances == enforced.left


def test_a_refused_change_is_told_as_a_permission_and_throttling_apart() -> None:
    denied = view(refused=("AccessDenied", "allow it"))
    made = status_of(denied, Plan(summary=BAD, enforced=Enforced(slowed=True)), NOW)
    told = {x.type: f"{x.status} {x.reason}" for x in made.conditions}
    assert told["PermissionOK"] == "False AccessDenied"
    assert told["Throttled"] == "True RequestLimitExceeded"
    away = status_of(view(refused=("NotAsked", "no answer")), Plan(summary=BAD, enforced=Enforced()), NOW)
    assert find(away.conditions, "Throttled") is None
    permission = find(away.conditions, "PermissionOK")
    assert permission is not None
    assert (permission.status, permission.reason) == ("Unknown", "NotAsked")


CANARY = CanaryStatus(4, ("i-1",), "Soaking", NOW, NOW)
BREAKER = BreakerStatus(4, 5, NOW, "x")
CHANGED = (
    ChangedGroup(
        *("", ""), (FieldChange("httpTokens", "optional", "required"),), (ChangedInstance("i-1", "n", NOW),)
    ),
)


UNEXPECTED = (UnexpectedResult("n", "i-1", "Blocked", NOW),)


def test_what_enforce_keeps_stands_while_it_is_suspended_and_ends_with_enforce() -> None:
    enforced = Enforced(canary=CANARY, changed=CHANGED, breaker=BREAKER)
    once = status_of(view(), Plan(summary=BAD, enforced=enforced, unexpected=UNEXPECTED), NOW)
    assert (once.canary, once.changed, once.breaker) == (CANARY, CHANGED, BREAKER)
    assert once.unexpected == UNEXPECTED
    suspended = status_of(view(once, spec=Spec(Options(2), mode="Enforce", suspend=True)), Plan(), LATER)
    assert (suspended.canary, suspended.changed, suspended.breaker) == (CANARY, CHANGED, BREAKER)
    assert suspended.unexpected == UNEXPECTED
    audits = status_of(view(suspended), Plan(summary=BAD), LATER)
    assert (audits.canary, audits.changed, audits.breaker, audits.unexpected) == (None, (), None, ())


def test_progress_is_no_warning_and_a_canary_that_passed_is_told_once() -> None:
    soaking = Plan(summary=BAD, enforced=Enforced(phase="CanarySoaking", left=1, canary=CANARY))
    once = status_of(view(), soaking, NOW)
    assert [(e.type, e.reason) for e in events_of(Status(), once, None)] == [
        ("Normal", "CanarySoaking"),
        ("Warning", "Drifted"),
    ]
    stood = tuple(PassedChange("AutoScalingGroup", name, "f", "1", "2", LATER) for name in "abcdd")
    passed = msgspec.structs.replace(CANARY, phase="Passed", passed=stood)
    goes_on = Plan(summary=BAD, enforced=Enforced(phase="Changing", left=1, canary=passed))
    later = status_of(view(once), goes_on, LATER)
    assert [(e.type, e.reason) for e in events_of(once, later, None)] == [
        ("Normal", "Changing"),
        ("Normal", "CanaryPassed"),
    ]
    assert events_of(once, later, None)[1].message == (
        "Canary of AutoScalingGroup/a, AutoScalingGroup/b, AutoScalingGroup/c and 1 more passed; changing "
        "the remaining instances"
    )
    assert events_of(later, later, None) == []
    stopped = status_of(view(later), Plan(summary=BAD, enforced=hold("BreakerOpen")), LATER)
    assert [(e.type, e.reason) for e in events_of(later, stopped, None)] == [("Warning", "BreakerOpen")]


@pytest.mark.parametrize(
    ("stood", "named"),
    [
        ((("", ""),), "nodes without a group"),
        ((("KarpenterNodePool", "a"), ("", "")), "KarpenterNodePool/a, nodes without a group"),
        (tuple(("G", name) for name in "abc"), "G/a, G/b, G/c"),
        (tuple(("G", name) for name in "abcdef"), "G/a, G/b, G/c and 3 more"),
    ],
)
def test_groups_whose_canary_passed_are_named(stood: tuple[tuple[str, str], ...], named: str) -> None:
    known = PassedChange("G", "known", "f", "1", "2", NOW)
    before = Status(canary=msgspec.structs.replace(CANARY, passed=(known,)))
    every = (known, *(PassedChange(*group, "f", "1", "2", LATER) for group in stood))
    after = Status(canary=msgspec.structs.replace(CANARY, passed=every))
    said = f"Canary of {named} passed; changing the remaining instances"
    for status, events in ((before, [("Normal", "CanaryPassed", said)]), (after, [])):
        assert [(e.type, e.reason, e.message) for e in events_of(status, after, None)] == events
    assert events_of(after, Status(), None) == []


def test_what_an_event_tells_is_what_the_condition_tells() -> None:
    bad = status_of(view(), DRIFT, NOW)
    good = status_of(view(bad), msgspec.structs.replace(GOOD, slow_and_open=1), LATER)  # type: ignore[type-var]
    for before, after, kinds in ((Status(), bad, ["Compliant"]), (bad, good, ["SlowAndOpen", "Compliant"])):
        told = [find(after.conditions, kind) for kind in kinds]
        assert [e.message for e in events_of(before, after, None)] == [one.message for one in told if one]


def test_one_that_was_never_told_false_tells_no_success() -> None:
    unknown = status_of(view(), Plan(summary=Summary(nodes=1, unknown=1)), NOW)
    assert events_of(unknown, status_of(view(unknown), GOOD, LATER), None) == []


def test_all_that_a_pass_finds_is_in_status() -> None:
    plan = Plan(
        summary=BAD,
        groups=(GroupStatus("AutoScalingGroup", "a", 3),),
        groups_omitted=1,
        exceptions=DRIFT.exceptions,
        exceptions_omitted=2,
        sources=Findings(launch_templates=3, node_classes=4),
    )
    once = status_of(view(), plan, NOW)
    assert (once.groups, once.groups_omitted, once.exceptions_omitted) == (plan.groups, 1, 2)
    assert once.plan == PlanStatus(BAD.drifted, 3, 4)
    assert (once.observed_generation, once.summary) == (4, BAD)
    suspended = view(once, spec=Spec(Options(2), suspend=True))
    refused = view(once, spec=None, refusal=("InvalidSpec", "no"))
    for seen in (suspended, refused):
        later = status_of(seen, Plan(), LATER)
        stays = (later.groups, later.groups_omitted, later.exceptions, later.exceptions_omitted, later.plan)
        assert stays == (once.groups, 1, once.exceptions, 2, once.plan)
        assert (later.summary, later.last_scan.at) == (BAD, SCANNED)
    held = status_of(view(), msgspec.structs.replace(plan, enforced=Enforced(left=7)), NOW)  # type: ignore[type-var]
    assert held.plan == PlanStatus(7, 3, 4)


def test_why_a_task_cannot_be_written_is_told_before_why_it_cannot_be_read() -> None:
    plan = Plan(summary=BAD, verified=Verified({}, {}, "Proved", "all", True))
    told = find(status_of(view(probe_problem="unread"), plan, NOW, "unwritten").conditions, "Verified")
    assert told is not None
    assert told.message == "the DaemonTask of the probe: unwritten"
    told = find(status_of(view(), plan, NOW).conditions, "Verified")
    assert told is not None
    assert (told.status, told.message) == ("True", "all")


def test_a_message_gives_way_to_the_note_that_a_command_is_too_long() -> None:
    note = "; the commands are too long to stand here: caretaker plan -f prints them"
    for message, kept in (("short", "short"), ("x" * MAX_MESSAGE, "x" * (MAX_MESSAGE - len(note)))):
        source = SourceStatus("Drifted", "lt-1", message=message, mend="x" * (MAX_COMMAND + 1))
        group = GroupStatus("AutoScalingGroup", "a", 3, source=source)
        (made,) = status_of(view(), Plan(groups=(group,)), NOW).groups
        shown = msgspec.structs.replace(source, message=kept + note, mend="")
        assert made == msgspec.structs.replace(group, source=shown)


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (Options(2), True),
        (Options(2, "optional"), True),
        (Options(2, "required"), False),
        (Options(1), False),
        (Options(http_tokens="optional"), False),
    ],
)
def test_a_spec_that_opens_imdsv1_to_pods_is_warned_of_once(options: Options, warned: bool) -> None:
    made = status_of(view(spec=Spec(options)), GOOD, NOW)
    events = [(e.type, e.reason, e.message) for e in events_of(Status(), made, Spec(options))]
    said = (
        "spec.options: with a hop limit of 2 or more pods reach IMDSv1 as well, unless httpTokens is "
        "required: add it here if no other policy has it for these nodes"
    )
    assert events == ([("Warning", "IMDSv1ReachableFromPods", said)] if warned else [])
    assert events_of(made, made, Spec(options)) == []
