"""Every state of an IMDSPolicy that conditions tell apart, by a sentence: tables for whoever reads them."""

from collections import Counter

import msgspec

from caretaker.api.imds import ExceptionStatus, Options, SourceState, SourceStatus, Spec, Status, Summary
from caretaker.api.objects import WireMeta
from caretaker.imds.conditions import Problem, StatusInput
from caretaker.imds.drift import OptionChange
from caretaker.imds.enforce import Enforced
from caretaker.imds.plan import Plan
from caretaker.imds.resource import ParsedPolicy
from caretaker.imds.safety_checks import Blocked
from caretaker.imds.source_checks import WRONG, Findings

NOW, LATER, SCANNED = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2025-12-31T23:59:00Z"
SPEC = Spec(Options(2))
GOOD = Plan(summary=Summary(nodes=3, compliant=3))
DRIFT = Plan(
    summary=Summary(nodes=3, compliant=2, drifted=1),
    exceptions=(ExceptionStatus("n", "Drifted", "i-1", "httpPutResponseHopLimit", "1", "2"),),
    drift=Counter({"httpPutResponseHopLimit": 1}),
)
CONFLICT = Plan(summary=Summary(nodes=1, compliant=1), conflicts=(("httpTokens", ("a", "b")),))
DENIED = Problem("AccessDenied", "ec2:DescribeInstances: denied; allow ec2:DescribeInstances")
DOWN = Problem("Transient", "ec2:DescribeInstances: Unreachable")


NEW = Status()


def view(status: Status = NEW, **more: object) -> StatusInput:
    given = {"spec": SPEC, **more}
    read = ParsedPolicy(WireMeta(name="p", generation=4), status, given.pop("spec"))  # type: ignore[arg-type]
    given.setdefault("asked", not given.get("problems"))
    return StatusInput(read, scanned=SCANNED, **given)  # type: ignore[arg-type]


SOURCE = ("AutoScalingGroup", "a")


def sourced(*states: SourceState, **more: object) -> Plan:
    said = {state: f"AutoScalingGroup/{name}: {state}" for name, state in zip("ab", states, strict=False)}
    return Plan(
        summary=Summary(nodes=3, compliant=3),
        sources=Findings(
            {(SOURCE[0], name): SourceStatus(state) for name, state in zip("ab", states, strict=False)},
            wrong=tuple(said[state] for state in states if state in WRONG),
            unknown=tuple(said[state] for state in states if state not in WRONG | {"Compliant"}),
        ),
        **more,  # type: ignore[arg-type]
    )


WELL = {"Ready": "True Audited", "PermissionOK": "True Permitted", "Compliant": "True Compliant"}
NOBODY = {
    "Ready": "False NoMatchingNodes",
    "PermissionOK": "Unknown NoMatchingNodes",
    "Compliant": "Unknown NoMatchingNodes",
}
ENFORCED = {"Enforcing": "True Enforced"}
CASES = {
    "sources are as they should be": (
        view(),
        sourced("Compliant"),
        {**WELL, "SourcesCompliant": "True SourcesCompliant"},
    ),
    "a source that is not leaves the nodes compliant": (
        view(),
        sourced("EKSOwned"),
        {**WELL, "SourcesCompliant": "False SourcesDrifted"},
    ),
    "a source whose launches the account refuses": (
        view(),
        sourced("LaunchesFail", "Drifted"),
        {**WELL, "SourcesCompliant": "False LaunchesFail"},
    ),
    "a source that is nothing to look at": (
        view(),
        sourced("Unsupported"),
        {**WELL, "SourcesCompliant": "Unknown SourcesUnknown"},
    ),
    "sources may not be looked at, the nodes were": (
        view(source_problems=(DENIED,)),
        sourced("Unknown"),
        {**WELL, "PermissionOK": "False AccessDenied", "SourcesCompliant": "Unknown SourcesUnknown"},
    ),
    "EC2NodeClasses may not be listed": (
        view(source_problems=(Problem("PermissionDenied", "cannot list"),)),
        sourced("Unknown"),
        {**WELL, "PermissionOK": "False PermissionDenied", "SourcesCompliant": "Unknown SourcesUnknown"},
    ),
    "sources could not be asked for": (
        view(source_problems=(DOWN,)),
        sourced("Unknown"),
        {**WELL, "SourcesCompliant": "Unknown SourcesUnknown"},
    ),
    "all is well": (
        view(),
        GOOD,
        {"Ready": "True Audited", "PermissionOK": "True Permitted", "Compliant": "True Compliant"},
    ),
    "drift does not make it unready": (
        view(),
        DRIFT,
        {"Ready": "True Audited", "PermissionOK": "True Permitted", "Compliant": "False Drifted"},
    ),
    "no node is meant": (view(asked=False), Plan(), NOBODY),
    "no node that is meant is an instance": (
        view(asked=False),
        Plan(summary=Summary(nodes=3, skipped=2, gone=1)),
        NOBODY,
    ),
    "one of those that are meant is an instance": (view(), Plan(summary=Summary(3, 1, skipped=2)), WELL),
    "Enforce has nobody to hold": (view(asked=False), Plan(enforced=Enforced()), {**NOBODY, **ENFORCED}),
    "what could not be asked is never compliant": (
        view(problems=(DENIED,)),
        Plan(summary=Summary(nodes=3, compliant=2, unknown=1)),
        {
            "Ready": "False AccessDenied",
            "PermissionOK": "False AccessDenied",
            "Compliant": "Unknown Unknown",
            "Reconciling": "True AccessDenied",
        },
    ),
    "what differs is told though not all could be asked": (
        view(problems=(DOWN,)),
        Plan(summary=Summary(nodes=3, drifted=2, unknown=1)),
        {
            "Ready": "False NotAsked",
            "PermissionOK": "Unknown NotAsked",
            "Compliant": "False Drifted",
            "Reconciling": "True NotAsked",
        },
    ),
    "some could not be looked at": (
        view(),
        Plan(summary=Summary(nodes=3, compliant=2, unknown=1)),
        {**WELL, "Compliant": "Unknown Unknown"},
    ),
    "none could be looked at": (
        view(),
        Plan(summary=Summary(nodes=3, unknown=2, gone=1)),
        {**WELL, "Ready": "False NotAsked", "Compliant": "Unknown Unknown", "Reconciling": "True NotAsked"},
    ),
    "a change that is not applied yet": (
        view(),
        Plan(summary=Summary(nodes=3, compliant=2, pending=1)),
        {"Ready": "True Audited", "PermissionOK": "True Permitted", "Compliant": "Unknown Pending"},
    ),
    "a conflict needs a hand": (
        view(),
        CONFLICT,
        {
            "Ready": "False Conflict",
            "PermissionOK": "True Permitted",
            "Compliant": "True Compliant",
            "Stalled": "True Conflict",
            "Conflicted": "True Conflict",
        },
    ),
    "suspended": (
        view(spec=Spec(Options(2), suspend=True), asked=False),
        Plan(),
        {
            "Ready": "True Suspended",
            "PermissionOK": "Unknown Suspended",
            "Compliant": "Unknown Suspended",
            "Suspended": "True Suspended",
        },
    ),
    "refused": (
        view(refusal=("NotGranted", "spec.aws.roleARN: no"), asked=False),
        Plan(),
        {
            "Ready": "False NotGranted",
            "PermissionOK": "Unknown NotGranted",
            "Compliant": "Unknown NotGranted",
            "Stalled": "True NotGranted",
        },
    ),
    "a spec that cannot be read": (
        view(spec=None, refusal=("InvalidSpec", "spec.options: no"), asked=False),
        Plan(),
        {
            "Ready": "False InvalidSpec",
            "PermissionOK": "Unknown InvalidSpec",
            "Compliant": "Unknown InvalidSpec",
            "Stalled": "True InvalidSpec",
        },
    ),
    "there are no credentials": (
        view(problems=(Problem("NoIdentity", "no credentials"),)),
        Plan(summary=Summary(nodes=1, unknown=1)),
        {
            "Ready": "False NoIdentity",
            "PermissionOK": "False NoIdentity",
            "Compliant": "Unknown Unknown",
            "Reconciling": "True NoIdentity",
        },
    ),
    "the worst pair": (
        view(),
        Plan(summary=Summary(nodes=1, compliant=1), slow_and_open=1),
        {
            "Ready": "True Audited",
            "PermissionOK": "True Permitted",
            "Compliant": "True Compliant",
            "SlowAndOpen": "True HopLimitOneTokensOptional",
        },
    ),
}


def hold(phase: str) -> Enforced:
    return Enforced(phase=phase, message="why", hold=True, left=3)


BAD = Summary(nodes=3, compliant=2, drifted=1)
STOPS = [
    ("BreakerOpen", "Stalled"),
    ("DriftTooWide", "Stalled"),
    ("NotProbeable", "Stalled"),
    ("SetButUnreachable", "Stalled"),
    ("StillReachable", "Stalled"),
    ("Slow", "Stalled"),
    ("ProbeUnavailable", "Stalled"),
    ("NodeNotReady", "Reconciling"),
    ("WouldCutOwnCredentials", "Stalled"),
    ("AccessDenied", "Reconciling"),
    ("NoIdentity", "Reconciling"),
    ("NotAsked", "Reconciling"),
]
_BLOCKED = Blocked(
    OptionChange("httpTokens", "required", "optional", "p", "Tokens"), "LooseningNotAllowed", "add Tokens"
)
_CLOSES = Blocked(
    OptionChange("httpTokens", "optional", "required", "p", tightens="Tokens"),
    "TighteningNotAllowed",
    "add Tokens",
)
_LOW = Blocked(OptionChange("httpPutResponseHopLimit", 1, 2, "p", "HopLimit"), "HopLimitTooLow", "needs 3")
_USED = Blocked(_CLOSES.change, "IMDSv1InUse", "1 of 2 instances used IMDSv1 in the last 7 days: i-1")
_UNFIT = Blocked(
    OptionChange("instanceMetadataTags", "disabled", "enabled", "p", "Tags"), "TagKeysUnfit", "no"
)
ENFORCES = {
    **{
        f"stopped by {reason}": (hold(reason), BAD, f"False {reason}", f"False {reason}", kind)
        for reason, kind in STOPS
    },
    **{
        f"busy with {phase}": (
            *(Enforced(phase=phase, message="x", left=2, pending=1), BAD, f"False {phase}", f"True {phase}"),
            "Reconciling",
        )
        for phase in ("CanaryChanging", "CanarySoaking", "Changing")
    },
    "all is as it should be": (
        Enforced(),
        Summary(nodes=3, compliant=3),
        "True Enforced",
        "True Enforced",
        "",
    ),
    "some could not be looked at": (
        *(Enforced(), Summary(nodes=4, compliant=2, unknown=1, skipped=1), "True Enforced", "True Enforced"),
        "",
    ),
    "none could be looked at": (
        *(Enforced(), Summary(nodes=4, unknown=4), "False NotAsked", "True Enforced"),
        "Reconciling",
    ),
    "only what was refused is left": (
        Enforced(phase="Changing", left=1, failing=1),
        Summary(nodes=3, compliant=2, failed=1),
        "False InstancesFailing",
        "True Changing",
        "Reconciling",
    ),
    "what was never applied is left": (
        Enforced(),
        Summary(nodes=3, compliant=2, failed=1),
        "False InstancesFailing",
        "True Enforced",
        "Reconciling",
    ),
    "what failed is left among others": (
        Enforced(phase="Changing", left=2, failing=1),
        Summary(nodes=3, compliant=1, drifted=1, failed=1),
        "False Changing",
        "True Changing",
        "Reconciling",
    ),
    "an opening change is not allowed": (
        Enforced(blocked=(("i-1", _BLOCKED),)),
        BAD,
        "False LooseningNotAllowed",
        "True Enforced",
        "Stalled",
    ),
    "a closing change is not allowed": (
        Enforced(blocked=(("i-1", _CLOSES),)),
        BAD,
        "False TighteningNotAllowed",
        "True Enforced",
        "Stalled",
    ),
    "a hop limit is too low": (
        Enforced(blocked=(("i-1", _LOW),)),
        BAD,
        "False HopLimitTooLow",
        "True Enforced",
        "Stalled",
    ),
    "IMDSv1 is used": (
        Enforced(blocked=(("i-1", _USED),)),
        BAD,
        "False IMDSv1InUse",
        "True Enforced",
        "Stalled",
    ),
    **{
        f"the gate says {reason}": (
            Enforced(blocked=(("i-1", msgspec.structs.replace(_USED, reason=reason)),)),
            BAD,
            f"False {reason}",
            "True Enforced",
            "Reconciling",
        )
        for reason in ("IMDSv1Waiting", "IMDSv1UseUnknown", "AccessDenied")
    },
    "tags are unfit": (
        Enforced(blocked=(("i-1", _UNFIT),)),
        BAD,
        "False TagKeysUnfit",
        "True Enforced",
        "Stalled",
    ),
    "an opening change waits until all else is done": (
        Enforced(phase="Changing", left=1, blocked=(("i-1", _BLOCKED),)),
        BAD,
        "False Changing",
        "True Changing",
        "Reconciling",
    ),
    "an opening change waits until all is applied": (
        Enforced(phase="Changing", pending=1, blocked=(("i-1", _BLOCKED),)),
        BAD,
        "False Changing",
        "True Changing",
        "Reconciling",
    ),
    "an opening change does not wait for the last canary": (
        Enforced(phase="CanarySoaking", blocked=(("i-1", _BLOCKED),)),
        BAD,
        "False LooseningNotAllowed",
        "True CanarySoaking",
        "Stalled",
    ),
    "the last canary soaks": (
        Enforced(phase="CanarySoaking"),
        Summary(nodes=3, compliant=3),
        "False CanarySoaking",
        "True CanarySoaking",
        "Reconciling",
    ),
    "the account forbids some": (
        Enforced(phase="Changing", left=1, account_blocked=("no",)),
        BAD,
        "False BlockedByAccountPolicy",
        "True Changing",
        "Stalled",
    ),
    "somebody sets some back": (
        Enforced(phase="Changing", left=1, fighting=1),
        BAD,
        "False Fighting",
        "True Changing",
        "Stalled",
    ),
    "what stops all is told before what is left alone": (
        Enforced(phase="BreakerOpen", hold=True, fighting=1, account_blocked=("no",)),
        BAD,
        "False BreakerOpen",
        "False BreakerOpen",
        "Stalled",
    ),
}
