"""The alerts about IMDSPolicies."""

from typing import Final

from testing.alertcases.notation import POD, Case, Cases, condition, series

POLICY: Final = {**POD, "name": "workers"}
READY_POLICY: Final = series("caretaker_ready", POLICY, kind="IMDSPolicy")


def policy(what: str, reason: str) -> str:
    """An IMDSPolicy's condition."""
    return condition("IMDSPolicy", POLICY, what, reason)


def drifted(state: str) -> str:
    """A policy's nodes."""
    return series("caretaker_imds_nodes", POLICY, state=state)


CASES: Final[Cases] = {
    "IMDSPolicyNotReady": {
        "EC2 cannot be asked": Case({policy("Ready", "NotAsked"): "0x40"}, "31m", {"name": "workers"}),
        "one refusal after the other": Case(
            {policy("Ready", "NotAsked"): "0x15 stale", policy("Ready", "AccessDenied"): "_x15 0x40"},
            "31m",
            {"name": "workers"},
        ),
        "it means no node": Case({policy("Ready", "NoMatchingNodes"): "0x40"}, "31m", {"name": "workers"}),
        "a canary soaks for long": Case({policy("Ready", "CanarySoaking"): "0x90"}, "80m"),
        "IMDSv1 has not been observed for all days": Case({policy("Ready", "IMDSv1Waiting"): "0x90"}, "80m"),
        "IMDSv1 is used": Case({policy("Ready", "IMDSv1InUse"): "0x40"}, "31m", {"name": "workers"}),
        "instances are changed, a few a minute": Case({policy("Ready", "Changing"): "0x90"}, "80m"),
        "it enforces": Case({policy("Ready", "Enforced"): "1x90"}, "80m"),
    },
    "IMDSPolicyEnforceStopped": {
        "the breaker is open": Case(
            {policy("Enforcing", "BreakerOpen"): "0x20"}, "6m", {"name": "workers", "reason": "BreakerOpen"}
        ),
        "too much has drifted": Case(
            {policy("Enforcing", "DriftTooWide"): "0x20"}, "6m", {"name": "workers", "reason": "DriftTooWide"}
        ),
        "it changes instances": Case({policy("Enforcing", "Changing"): "1x20"}, "15m"),
        "an audit": Case({policy("Ready", "Audited"): "1x20"}, "15m"),
    },
    "IMDSPolicyFighting": {
        "something sets instances back": Case(
            {policy("Ready", "Fighting"): "0x20"}, "6m", {"name": "workers"}
        ),
        "it holds them": Case({policy("Ready", "Enforced"): "1x20"}, "15m"),
    },
    "IMDSPolicySlowAndOpen": {
        "hop limit 1 with optional tokens": Case(
            {policy("SlowAndOpen", "HopLimitOneTokensOptional"): "1x30"}, "16m", {"name": "workers"}
        ),
        "the condition is False": Case({policy("SlowAndOpen", "HopLimitOneTokensOptional"): "0x30"}, "20m"),
        "it was mended": Case(
            {policy("SlowAndOpen", "HopLimitOneTokensOptional"): "1x10 stale", READY_POLICY: "1x30"}, "16m"
        ),
    },
    "IMDSPolicyDrifted": {
        "for an hour": Case({drifted("drifted"): "2x80"}, "61m", {"name": "workers"}),
        "they wait for spec.tokenGate": Case(
            {drifted("drifted"): "2x80", policy("Ready", "IMDSv1Waiting"): "0x80"}, "70m"
        ),
        "all are compliant": Case({drifted("drifted"): "0x80", drifted("compliant"): "9x80"}, "70m"),
    },
    "IMDSPolicyLaunchesFail": {
        "a template with optional tokens": Case(
            {policy("SourcesCompliant", "LaunchesFail"): "0x20"}, "16m", {"name": "workers"}
        ),
        "sources differ otherwise": Case({policy("SourcesCompliant", "SourcesDrifted"): "0x20"}, "16m"),
        "tokens are required by now": Case(
            {
                policy("SourcesCompliant", "LaunchesFail"): "0x10 stale",
                policy("SourcesCompliant", "SourcesCompliant"): "_x10 1x20",
            },
            "16m",
        ),
    },
    "IMDSPolicyInstancesFailing": {
        "one fails": Case({drifted("failed"): "1x40"}, "31m", {"name": "workers"}),
        "it succeeded at last": Case({drifted("failed"): "1x20 0x20"}, "31m"),
    },
    "IMDSPolicyThrottled": {
        "for long": Case({policy("Throttled", "RequestLimitExceeded"): "1x40"}, "31m", {"name": "workers"}),
        "the condition is False": Case({policy("Throttled", "RequestLimitExceeded"): "0x40"}, "35m"),
        "for some minutes": Case({policy("Throttled", "RequestLimitExceeded"): "1x10 stale"}, "31m"),
    },
    "IMDSPolicyNotVerified": {
        "pods get no token": Case(
            {policy("Verified", "SetButUnreachable"): "0x20"},
            "16m",
            {"name": "workers", "reason": "SetButUnreachable"},
        ),
        "the probe is under way": Case({policy("Verified", "Probing"): "-1x20"}, "16m"),
        "proved": Case({policy("Verified", "Proved"): "1x20"}, "16m"),
    },
}
