"""The action for a condition of an IMDSPolicy. Pure."""

from collections.abc import Iterable
from typing import Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition
from caretaker.api.conditions import PolicyReason as Reason
from caretaker.cli import diagnostics

_POSITIVE: Final = frozenset(
    {c.READY, c.PERMISSION_OK, c.COMPLIANT, c.ENFORCING, c.VERIFIED, c.SOURCES_COMPLIANT},
)
_NORMAL: Final = frozenset(
    {
        *(Reason.AUDITED, Reason.PERMITTED, Reason.COMPLIANT, Reason.ENFORCED),
        *(Reason.PROVED, Reason.PROBING),
    }
)

ADVICE: Final = {
    Reason.SUSPENDED: "set spec.suspend to false to have it look again",
    Reason.INVALID_SPEC: "correct the field that is named and apply again",
    Reason.NOT_GRANTED: (
        "grant it to the operator's namespace in the Helm value aws.identities, or in the file of "
        "--aws-identities and restart the operator"
    ),
    Reason.CONFLICT: "give one of the policies another spec.priority, or take the option out of it",
    Reason.ACCESS_DENIED: "allow the action to the identity that is named; it is tried again by itself",
    Reason.NO_IDENTITY: "give the operator credentials that do not come from IMDS, or set spec.aws.roleARN",
    Reason.NOT_ASKED: "see that the operator reaches EC2; it is tried again by itself",
    Reason.NO_MATCHING_NODES: (
        "see below why nodes are skipped; if none is listed, correct spec.selector, unless such nodes are to "
        "come"
    ),
    Reason.UNKNOWN: "see PermissionOK and Ready",
    Reason.DRIFTED: "change the instances and what launches them; each is listed below",
    Reason.PENDING: "wait: EC2 applies it",
    Reason.HOP_LIMIT_ONE: "raise the hop limit to 2 where pods use IMDS, or set httpTokens to required",
    Reason.LOOSENING_NOT_ALLOWED: "add it to spec.safety.allowLoosening, or remove the option",
    Reason.TIGHTENING_NOT_ALLOWED: "add it to spec.safety.allowTightening, or remove the option",
    Reason.HOP_LIMIT_TOO_LOW: "raise the hop limit to the value in the message, or exclude the group",
    Reason.NODE_NOT_READY: (
        "find out why the Node is not Ready; changes go on when it is Ready, and the breaker opens if it is "
        "deleted"
    ),
    Reason.TAG_KEYS_UNFIT: "remove instanceMetadataTags from spec.options",
    Reason.DRIFT_TOO_WIDE: "check spec.selector and spec.options, then raise spec.safety.maxDriftPercent",
    Reason.BREAKER_OPEN: "find the cause and fix it, then run caretaker resume imdspolicy NAME",
    Reason.INSTANCES_FAILING: "see the exceptions below; the changes are retried automatically",
    Reason.BLOCKED_BY_ACCOUNT_POLICY: "change the rule of the account, or remove the option",
    Reason.FIGHTING: "find the other client: CloudTrail records ModifyInstanceMetadataOptions",
    Reason.NOT_PROBEABLE: "use a policy without spec.verification.probe for the group in the message",
    Reason.WOULD_CUT_CREDENTIALS: "give the operator IRSA or Pod Identity, not --aws-instance-identity",
    Reason.SET_BUT_UNREACHABLE: "see docs/imds-probe.md for the verdict; it names the hop limit it needs",
    Reason.STILL_REACHABLE: "lower the hop limit to 1, or block 169.254.169.254 by a network policy",
    Reason.SLOW: "look for a proxy between pods and IMDS, and at the node's load",
    Reason.NOT_PROVED: "caretaker status daemontask caretaker-imds-probe in the operator's namespace",
    Reason.PROBE_UNAVAILABLE: "install DaemonTask, or give the operator's role its verbs",
    Reason.THROTTLED: "wait: it recovers by itself",
    Reason.SOURCES_DRIFTED: "run the commands that are listed below, or change what owns the sources",
    Reason.SOURCES_UNKNOWN: "see PermissionOK, and the sources below",
    Reason.PERMISSION_DENIED: "give the operator's role the verb that is named",
}

# For a policy that changes instances itself: a change by hand would bypass its safety checks.
_OF_ENFORCE: Final = {
    Reason.DRIFTED: "Enforce changes the instances; Ready shows what it waits for",
    Reason.HOP_LIMIT_ONE: (
        "set httpPutResponseHopLimit: 2 if pods use IMDS, or httpTokens: required, in spec.options; then "
        "Enforce changes the instances"
    ),
}

# For plan: AWS refused the user, and not the operator.
_OF_PLAN: Final = {
    Reason.ACCESS_DENIED: "have the action allowed to you, or ask with another identity: AWS_PROFILE=...",
    Reason.NO_IDENTITY: diagnostics.CREDENTIALS_ADVICE,
    Reason.NOT_ASKED: "see that you reach EC2 from here",
    Reason.PERMISSION_DENIED: "have the verb that is named granted to you in the cluster",
}


def abnormal_conditions(conditions: Iterable[Condition]) -> list[Condition]:
    """The conditions that report a problem or wait for a person, each reason once."""
    return list(diagnostics.abnormal_conditions(conditions, _POSITIVE, _NORMAL).values())


def advice(reason: str, *, enforces: bool = False) -> str:
    """One line; empty where there is nothing to do."""
    own = _OF_ENFORCE.get(reason) if enforces else None
    return own or ADVICE.get(reason, "")


def advice_of_plan(reason: str, *, enforces: bool = False) -> str:
    """The same for a user who has called EC2 with their own credentials."""
    return _OF_PLAN.get(reason) or advice(reason, enforces=enforces)
