"""The conditions of an IMDSPolicy; their meanings stand in docs/operations.md.

Pure: (StatusInput, Plan) -> conditions. Drift does not make Ready False: the policy does its work, and
Compliant reports the drift. An unknown state is never called compliant.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionState, ConditionStatus
from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import Summary, TokenGateStatus
from caretaker.aws.errors import ErrorClass
from caretaker.imds.enforce import Enforced
from caretaker.imds.launching import ENFORCES
from caretaker.imds.plan import Plan
from caretaker.imds.resource import ParsedPolicy
from caretaker.imds.verify import Verified

SHOWN: Final = 3
_DIFFER: Final = "nodes that come will not be as they should"
# Reasons of Ready=False that end only by an action of the user.
STALLING: Final = frozenset(
    (
        *(Reason.INVALID_SPEC, Reason.NOT_GRANTED, Reason.CONFLICT, Reason.BREAKER_OPEN),
        *(Reason.DRIFT_TOO_WIDE, Reason.BLOCKED_BY_ACCOUNT_POLICY, Reason.WOULD_CUT_CREDENTIALS),
        *(Reason.LOOSENING_NOT_ALLOWED, Reason.TIGHTENING_NOT_ALLOWED, Reason.HOP_LIMIT_TOO_LOW),
        *(Reason.TAG_KEYS_UNFIT, Reason.FIGHTING, Reason.NOT_PROBEABLE, Reason.IMDSV1_IN_USE),
        *(Reason.SET_BUT_UNREACHABLE, Reason.STILL_REACHABLE, Reason.SLOW, Reason.PROBE_UNAVAILABLE),
    )
)
_DENIED: Final = {
    ErrorClass.ACCESS_DENIED.value: Reason.ACCESS_DENIED,
    ErrorClass.NO_IDENTITY.value: Reason.NO_IDENTITY,
    Reason.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
}


class Problem(msgspec.Struct, frozen=True):
    """Why a region could not be described: the error's class, and its message."""

    code: str
    message: str


class StatusInput(msgspec.Struct, frozen=True):
    """One policy, now. `refusal`: (reason, message) of why nothing is done for it."""

    read: ParsedPolicy
    refusal: tuple[str, str] | None = None
    problems: tuple[Problem, ...] = ()
    scanned: str | None = None  # when EC2 was last asked for all
    asked: bool = False  # it has answered for every region that has nodes of this policy
    probe_problem: str = ""  # why the probe's task could not be used
    refused: tuple[str, str] | None = None  # (reason, message) of why nothing may be changed
    source_problems: tuple[Problem, ...] = ()  # why sources of future nodes could not be read
    gate_problems: tuple[Problem, ...] = ()  # why spec.tokenGate could not be read
    token_gate: TokenGateStatus | None = None


def conditions_of(inputs: StatusInput, plan: Plan, problem: str = "") -> Iterable[Condition]:
    """Every condition of the kind; the abnormal ones only while True. `problem`: why the probe's task could
    not be written."""
    generation = inputs.read.meta.generation

    def condition(kind: str, status: ConditionStatus, reason: str, message: str) -> Condition:
        return Condition(kind, status, reason, message, observed_generation=generation)

    status, reason, message = _ready(inputs, plan)
    yield condition(c.READY, status, reason, message)
    yield condition(c.PERMISSION_OK, *_permission(inputs))
    yield condition(c.COMPLIANT, *_compliant(inputs, plan))
    if (sources := _sources(inputs, plan)) is not None:
        yield condition(c.SOURCES_COMPLIANT, *sources)
    if status != "True" and reason != Reason.NO_MATCHING_NODES:
        yield condition(c.STALLED if reason in STALLING else c.RECONCILING, "True", reason, message)
    if plan.conflicts:
        yield condition(c.CONFLICTED, "True", Reason.CONFLICT, _conflict(plan))
    if plan.enforced is not None:
        yield condition(c.ENFORCING, *_enforcing(plan.enforced))
        if plan.enforced.slowed:
            text = "EC2 throttled changes; they are sent more slowly for some minutes"
            yield condition(c.THROTTLED, "True", Reason.THROTTLED, text)
    if plan.verified is not None:
        yield condition(c.VERIFIED, *_verified(plan.verified, problem or inputs.probe_problem))
    if plan.slow_and_open:
        text = (
            f"{plan.slow_and_open} node(s) have hop limit 1 and optional tokens: their pods wait seconds for "
            "IMDSv2, and then get IMDSv1"
        )
        yield condition(c.SLOW_AND_OPEN, "True", Reason.HOP_LIMIT_ONE, text)
    if inputs.read.spec is not None and inputs.read.spec.suspend:
        yield condition(
            c.SUSPENDED, "True", Reason.SUSPENDED, "spec.suspend is true: the policy is not evaluated"
        )


def _ready(inputs: StatusInput, plan: Plan) -> ConditionState:
    if inputs.refusal is not None:
        return "False", *inputs.refusal
    if inputs.read.spec is not None and inputs.read.spec.suspend:
        return "True", Reason.SUSPENDED, "Suspended; its options keep their precedence over other policies"
    if plan.conflicts:
        return "False", Reason.CONFLICT, _conflict(plan)
    if inputs.problems:
        first = inputs.problems[0]
        return "False", _DENIED.get(first.code, Reason.NOT_ASKED), _messages(inputs.problems)
    state = _at_work(plan)
    return (_about_nothing(plan.summary) or state) if state[0] == "True" else state


def _at_work(plan: Plan) -> ConditionState:
    if plan.enforced is not None:
        return _enforced(plan.enforced, plan.summary)
    found = plan.summary
    return "True", Reason.AUDITED, f"{found.nodes - found.unknown} node(s) are looked at{_unread(found)}"


def _no_instance(found: Summary) -> str:
    """Why the policy selects no instance, as with a typing error in its selector: it must not look compliant.
    "" = it selects some."""
    if not found.nodes:
        return "spec.selector means no node of the cluster"
    if found.nodes == found.skipped + found.gone:
        return f"none of {found.nodes} node(s) is an EC2 instance that can be held; see exceptions"
    return ""


def _about_nothing(found: Summary) -> ConditionState | None:
    """Not Ready: there is no instance, or nothing is known of any, although EC2 answers."""
    if message := _no_instance(found):
        return "False", Reason.NO_MATCHING_NODES, message
    if not found.unknown or found.unknown < found.nodes - found.skipped - found.gone:
        return None
    why = f"EC2's responses lack all {found.unknown} instance(s), their options or their tags; see exceptions"
    return "False", Reason.NOT_ASKED, why


def _unread(found: Summary) -> str:
    return f"; {found.unknown} could not be looked at" if found.unknown else ""


def _enforced(enforced: Enforced, found: Summary) -> ConditionState:
    """Blocking reasons are reported before progress."""
    trouble = None if enforced.hold else _trouble(enforced)
    if trouble is not None:
        return "False", *trouble
    if not enforced.hold and enforced.phase == Reason.CHANGING and _only_failing(enforced):
        return _failing(found)
    rests = enforced.phase == Reason.ENFORCED or (enforced.blocked and not enforced.left + enforced.pending)
    if enforced.hold or not rests:
        return "False", enforced.phase, enforced.message
    if enforced.blocked:
        # A wait that ends by itself comes last: a person acts on the others.
        _, first = min(enforced.blocked, key=lambda one: one[1].reason == Reason.IMDSV1_WAITING)
        rest = len({instance for instance, why in enforced.blocked})
        message = f"spec.options.{first.change.field} is not changed on {rest} instance(s): {first.message}"
        return "False", first.reason, message
    if found.failed:
        return _failing(found)
    return "True", Reason.ENFORCED, f"{found.compliant} node(s) are held{_unread(found)}"


def _only_failing(enforced: Enforced) -> bool:
    """Whether only changes that failed before are left."""
    return enforced.left == enforced.failing and not enforced.pending


def _failing(found: Summary) -> ConditionState:
    message = f"{found.failed} instance(s) could not be changed; see exceptions"
    return "False", Reason.INSTANCES_FAILING, message


def _trouble(enforced: Enforced) -> tuple[str, str] | None:
    """A problem that needs the user while the other instances are being changed."""
    if enforced.account_blocked:
        count, first = len(enforced.account_blocked), enforced.account_blocked[0]
        message = f"{count} instance(s) wait for the next resync: {first}"
        return Reason.BLOCKED_BY_ACCOUNT_POLICY, message
    if enforced.fighting:
        message = (
            f"another client keeps reverting {enforced.fighting} instance(s); each is skipped for an hour"
        )
        return Reason.FIGHTING, message
    return None


def _enforcing(enforced: Enforced) -> ConditionState:
    return "False" if enforced.hold else "True", enforced.phase, enforced.message


def _verified(verified: Verified, problem: str) -> ConditionState:
    if problem:
        return "Unknown", Reason.PROBE_UNAVAILABLE, f"the DaemonTask of the probe: {problem}"
    status: dict[bool | None, ConditionStatus] = {True: "True", False: "False", None: "Unknown"}
    return status[verified.proved], verified.reason, verified.message


def _permission(inputs: StatusInput) -> ConditionState:
    denied = [p for p in _every(inputs) if p.code in _DENIED]
    if denied:
        return "False", _DENIED[denied[0].code], _messages(denied)
    if inputs.refused is not None:
        is_denied = inputs.refused[0] in _DENIED.values()
        return "False" if is_denied else "Unknown", *inputs.refused
    if inputs.problems:
        return "Unknown", Reason.NOT_ASKED, _messages(inputs.problems)
    if not inputs.asked:
        no_match = (Reason.NO_MATCHING_NODES, "EC2 was not asked, since no node is an instance of it")
        return "Unknown", *(_unseen(inputs) or no_match)
    return "True", Reason.PERMITTED, "EC2 answers"


def _every(inputs: StatusInput) -> tuple[Problem, ...]:
    return *inputs.problems, *inputs.source_problems, *inputs.gate_problems


def _compliant(inputs: StatusInput, plan: Plan) -> ConditionState:
    found = plan.summary
    if (unseen := _unseen(inputs)) is not None:
        return "Unknown", *unseen
    if found.drifted or found.failed:
        fields = ", ".join(f"{field} of {count}" for field, count in sorted(plan.drift.items()))
        return (
            "False",
            Reason.DRIFTED,
            f"{found.drifted + found.failed} of {found.nodes} node(s) differ: {fields}",
        )
    if found.unknown:
        return "Unknown", Reason.UNKNOWN, f"{found.unknown} of {found.nodes} node(s) could not be looked at"
    return _undrifted(found)


def _undrifted(found: Summary) -> ConditionState:
    if found.pending:
        return "Unknown", Reason.PENDING, f"a change of {found.pending} node(s) is not applied yet"
    if message := _no_instance(found):
        return "Unknown", Reason.NO_MATCHING_NODES, message
    return "True", Reason.COMPLIANT, f"{found.compliant} of {found.nodes} node(s) are as they should be"


def _sources(inputs: StatusInput, plan: Plan) -> ConditionState | None:
    """None: no group's source is known of."""
    found = plan.sources
    if not found.groups:
        return None
    if failing := [f"{kind}/{name}" for (kind, name), s in found.groups.items() if s.state == "LaunchesFail"]:
        fail = f"launches of {_some(failing)} fail: {ENFORCES}"
        rest = [name for name in found.wrong if not name.endswith(": LaunchesFail")]
        return "False", Reason.LAUNCHES_FAIL, fail + (f"; {_DIFFER}: {_some(rest)}" if rest else "")
    if found.wrong:
        return "False", Reason.SOURCES_DRIFTED, f"{_DIFFER}: {_some(found.wrong)}"
    if found.unknown:
        why = "; ".join(filter(None, (_some(found.unknown), _messages(inputs.source_problems))))
        return "Unknown", Reason.SOURCES_UNKNOWN, f"what launches these is not known: {why}"
    return (
        "True",
        Reason.SOURCES_COMPLIANT,
        f"the sources of {len(found.groups)} group(s) are as they should be",
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _unseen(inputs: StatusInput) -> tuple[str, str] | None:
    """Why nothing is read."""
    if inputs.refusal is not None:
        return inputs.refusal
    if inputs.read.spec is not None and inputs.read.spec.suspend:
        return Reason.SUSPENDED, "the policy is suspended and not evaluated"
    return None


def _conflict(plan: Plan) -> str:
    return "; ".join(
        f"spec.options.{field}: {_some(names)} want different values with equal priority: give one of "
        "them another"
        for field, names in plan.conflicts
    )


def _messages(problems: Iterable[Problem]) -> str:
    every = [problem.message for problem in problems]
    more = f"; and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return "; ".join(every[:SHOWN]) + more
