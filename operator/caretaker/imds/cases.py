"""An instance with the changes that this policy may make, and the state of its last attempt. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import FieldChange, ec2_name
from caretaker.imds.change_attempts import NEW, ChangeAttempt, advance, drifted, not_applied, overdue, refused
from caretaker.imds.checks import OWN_SECONDS, ObservedInstance, State
from caretaker.imds.drift import HOP_LIMIT, TOKENS, OptionChange, change_of
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput
from caretaker.imds.safety_checks import Blocked, blocked, parameters

_Allowed = tuple[tuple[FieldChange, ...], tuple[Blocked, ...]]


class Case(msgspec.Struct, frozen=True, gc=False):
    """`state`: of the changes that this policy may make; `attempt`: the last one; `changes`: allowed ones;
    `blocked`: the others; `again`: parameters of the call that repeats a pending change."""

    checked: CheckedInstance
    state: State
    attempt: ChangeAttempt
    changes: tuple[FieldChange, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    again: Mapping[str, Any] = {}

    @property
    def waits(self) -> bool:
        """Whether EC2 has accepted a change and may still apply it."""
        if self.state == "pending":
            return self.attempt.trouble[0] != Reason.NOT_APPLIED
        return self.state == "drifted" and _under_way(self.checked)

    @property
    def fit(self) -> bool:
        """Whether it is eligible as a canary: running, on a Ready Node, and a probe can verify the change."""
        one = self.checked
        runs = one.observed is not None and one.observed.state == "running"
        return one.ready and one.provable and runs

    def due(self, inputs: EnforceInput) -> float:
        """Seconds until its call may be made: after its backoff, and a reading that confirms its group."""
        later, since = self.attempt.not_before - inputs.now, inputs.ungrouped_at(self.checked)
        return max(later, since - inputs.fresh_since + OWN_SECONDS) if since else later

    def changes_now(self, inputs: EnforceInput) -> bool:
        """Whether a call is to be made, now or after its backoff. A pending change is sent once more, after
        pendingTimeout."""
        if self.state == "drifted":
            return not _under_way(self.checked)
        late = overdue(self.attempt, inputs.now, inputs.pending_timeout)
        return self.state == "pending" and late and not self.attempt.resent

    def options(self, me: str, changes: Iterable[FieldChange]) -> Mapping[str, Any]:
        """Parameters of the call for these changes, or of the one that repeats a pending change."""
        if self.state == "pending":
            return self.again
        observed = self.checked.observed
        assert observed is not None  # noqa: S101 - an instance that was not seen has no changes
        leave = {why.change.field for why in self.blocked}
        leave |= self.checked.desired.keys() - {change.field for change in changes}
        return parameters(self.checked.desired, me, leave, observed)


def concerns(one: CheckedInstance, inputs: EnforceInput) -> bool:
    """Whether Enforce has to consider the instance; most are compliant and without an attempt."""
    return one.result.state in ("drifted", "pending") or one.instance in inputs.attempts


class Cases:
    """The cases of a pass. The allowed changes are computed once for all instances of a group with the same
    differences."""

    def __init__(self, inputs: EnforceInput) -> None:
        self._inputs = inputs
        canaries = inputs.canary.groups if inputs.canary is not None else ()
        # Fields of the last change of an instance, by status: a canary's is later than those being watched.
        self._changed = {
            one.instance: {change.field for change in group.changes}
            for group in (*inputs.watched, *canaries)
            for one in group.instances
        }
        # While the breaker is open, refused calls may be those that write previous values back.
        self._failed = _failed(inputs) if inputs.breaker is not None else frozenset[str]()
        self._known: dict[tuple[object, ...], _Allowed] = {}

    def of(self, one: CheckedInstance) -> Case:
        """See Case."""
        state, attempt, inputs = one.result.state, attempt_of(self._inputs, one), self._inputs
        stay: tuple[Blocked, ...] = ()
        backs_off = one.instance in self._failed and refused(attempt)
        if one.observed is not None and state == "drifted":
            free, stay = self._allowed(one, one.observed)
            if free:
                after = attempt if backs_off else _drifted(one, one.observed, attempt, free, inputs)
                return Case(one, state, after, free, stay)
            # no change is left that this policy may make
            state = "pending" if _under_way(one) else "compliant"
        if not backs_off or state != "compliant":
            attempt = advance(
                attempt, state, inputs.now, inputs.pending_timeout, others=one.instance in inputs.others
            )
        again = self._again(one, attempt, stay) if state == "pending" else {}
        if state == "pending" and not again and overdue(attempt, inputs.now, inputs.pending_timeout):
            # Another client may have sent it: report it, and do not send it again.
            attempt = not_applied(attempt, inputs.now, inputs.pending_timeout)
        return Case(one, state, attempt, (), stay, again)

    def _again(
        self, one: CheckedInstance, attempt: ChangeAttempt, stay: tuple[Blocked, ...]
    ) -> Mapping[str, Any]:
        """Parameters of the fields that were sent, as far as the policy still wins them; of others, another
        client may have changed the values since the read."""
        assert one.observed is not None  # noqa: S101 - an instance that was not seen is not pending
        known = self._changed.get(one.instance, set())
        fields = {name for name in one.desired if ec2_name(name) in attempt.options} or known
        leave = (one.desired.keys() - fields) | {why.change.field for why in stay}
        return parameters(one.desired, self._inputs.me, leave, one.observed)

    def _allowed(self, one: CheckedInstance, observed: ObservedInstance) -> _Allowed:
        """(allowed changes, blocked ones)."""
        gate = self._inputs.tokens_held.get(one.instance)
        alike = (id(one.result.changes), one.group, one.region, observed.unfit_tags, gate)
        if alike not in self._known:
            mine = [change for change in one.result.changes if change.policy == self._inputs.me]
            stay = [why for change in mine if (why := _blocked(change, one, observed, self._inputs))]
            kept = {why.change.field for why in stay}
            free = tuple(change_of(change) for change in mine if change.field not in kept)
            self._known[alike] = free, tuple(stay)
        return self._known[alike]


def _failed(inputs: EnforceInput) -> frozenset[str]:
    """The instances of failed canaries."""
    canaries = inputs.canary.groups if inputs.canary is not None else ()
    return frozenset(one.instance for group in canaries if group.phase == "Failed" for one in group.instances)


def attempt_of(inputs: EnforceInput, one: CheckedInstance) -> ChangeAttempt:
    """The last attempt that the process remembers."""
    return inputs.attempts.get(one.instance) or NEW


def with_failure(checked: CheckedInstance, attempt: ChangeAttempt | None) -> CheckedInstance:
    """With the state failed in place of drifted, if the last attempt failed."""
    if attempt is None or checked.result.state not in ("drifted", "pending"):
        return checked
    reason, message = attempt.trouble
    if attempt.fighting:
        reason, message = (
            Reason.FIGHTING,
            f"another client reverted it {len(attempt.reversals)} times in an hour",
        )
    if not reason:
        return checked
    result = msgspec.structs.replace(checked.result, state="failed", reason=reason, message=message)
    return msgspec.structs.replace(checked, result=result)


def _blocked(
    change: OptionChange, one: CheckedInstance, observed: ObservedInstance, inputs: EnforceInput
) -> Blocked | None:
    needed = inputs.needed.get(one.group, 0)
    if change.field == HOP_LIMIT and needed > change.desired:
        kind, name = one.group
        message = (
            f"pods of {kind}/{name} need hop limit {needed}, as measured by the probe: set spec.options."
            f"{HOP_LIMIT} to {needed}, or exclude the group"
        )
        return Blocked(change, Reason.HOP_LIMIT_TOO_LOW, message)
    if change.desired == "optional" and (message := inputs.enforced.get(one.region, "")):
        return Blocked(change, Reason.BLOCKED_BY_ACCOUNT_POLICY, message)
    if why := blocked(change, observed, inputs.loosening, inputs.tightening):
        return why
    return _gated(change, one, inputs)


def _gated(change: OptionChange, one: CheckedInstance, inputs: EnforceInput) -> Blocked | None:
    """Whether spec.tokenGate holds the change back: with tokens still optional, a pod behind a hop limit that
    is too low for it falls back to IMDSv1, and the gate would never open."""
    if (gate := inputs.tokens_held.get(one.instance)) is None:
        return None
    if change.field == TOKENS and change.desired == "required":
        return Blocked(change, *gate)
    if change.field == HOP_LIMIT and change.tightens:
        reason, message = gate
        return Blocked(change, reason, f"it is not lowered before tokens are required; {message}")
    return None


def gated_alone(one: CheckedInstance, inputs: EnforceInput) -> bool:
    """Whether spec.tokenGate holds back everything in which the instance differs."""
    mine = [change for change in one.result.changes if change.policy == inputs.me]
    every = len(mine) == len(one.result.changes)
    return bool(mine) and every and all(_gated(change, one, inputs) for change in mine)


def _drifted(
    one: CheckedInstance,
    observed: ObservedInstance,
    attempt: ChangeAttempt,
    free: Collection[FieldChange],
    inputs: EnforceInput,
) -> ChangeAttempt:
    """Advanced with the parameters that would be sent now, to compare them with those sent before."""
    if attempt is NEW:  # as of thousands of instances
        return attempt
    if not attempt.options:
        return drifted(attempt, inputs.now, {}, ())
    fields = [change.field for change in free]
    options = parameters(one.desired, inputs.me, one.desired.keys() - set(fields), observed)
    return drifted(attempt, inputs.now, options, [*map(ec2_name, fields)])


def _under_way(one: CheckedInstance) -> bool:
    return one.observed is not None and one.observed.under_way
