"""Why a policy changes no instance, by all that it would change. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.imds.cases import Case, gated_alone
from caretaker.imds.drift import TOKENS, closed_to_pods, requires_tokens
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput

_WAY_OUT: Final = "give it credentials by IRSA or EKS Pod Identity, and remove that flag"


def would_cut(field: str, where: str = "") -> tuple[str, str]:
    """(reason, message) of an option that cuts the operator off from its own credentials."""
    return Reason.WOULD_CUT_CREDENTIALS, (
        f"spec.options.{field} would cut the operator off from IMDS, where it may get its credentials "
        f"(--aws-instance-identity){where}: {_WAY_OUT}"
    )


def cuts_own(cases: Sequence[Case], inputs: EnforceInput) -> tuple[str, str] | None:
    """(reason, message) if tokens become required behind hop limit 1: the operator's Pod may be there, and
    has only IMDSv1, which no hop limit stops."""
    if not inputs.own_identity:
        return None
    cut = [case.checked for case in cases if _is_cut(case)]
    if not cut:
        return None
    return would_cut(
        TOKENS,
        f" on {len(cut)} node(s) with hop limit 1, such as {cut[0].node} ({cut[0].instance}), whose pods "
        "have IMDSv1 alone",
    )


def _is_cut(case: Case) -> bool:
    observed = case.checked.observed
    if observed is None or observed.options.http_endpoint == "disabled":
        return False
    return requires_tokens(case.changes) and closed_to_pods(observed.options, case.changes)


def too_wide(every: Sequence[CheckedInstance], inputs: EnforceInput) -> tuple[str, str] | None:
    """(reason, message) if more differ than spec.safety.maxDriftPercent."""
    states = Counter(one.result.state for one in every)
    checked = states["compliant"] + states["drifted"] + states["pending"]
    drifted = sum(one.result.state == "drifted" and not gated_alone(one, inputs) for one in every)
    if drifted * 100 <= inputs.max_drift_percent * checked:
        return None
    return Reason.DRIFT_TOO_WIDE, (
        f"{drifted} of {checked} instances differ; spec.safety.maxDriftPercent allows "
        f"{inputs.max_drift_percent} %. No instance is changed. Check spec.selector and spec.options, then "
        "raise maxDriftPercent"
    )
