"""The status after a pass, and the events about it. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Event
from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import (
    MAX_COMMAND,
    MAX_COMMANDS,
    ExceptionStatus,
    GroupStatus,
    PlanStatus,
    ScanStatus,
    Spec,
    Status,
)
from caretaker.imds.conditions import SHOWN, StatusInput, conditions_of
from caretaker.imds.enforce import Enforced
from caretaker.imds.plan import Plan
from caretaker.imds.remediation import bounded
from caretaker.imds.source_checks import MAX_MESSAGE

_REPORTED: Final = (c.READY, c.PERMISSION_OK, c.COMPLIANT, c.VERIFIED, c.SOURCES_COMPLIANT)
_GOOD: Final = ((c.COMPLIANT, Reason.COMPLIANT), (c.SOURCES_COMPLIANT, Reason.SOURCES_COMPLIANT))
_TOO_LONG: Final = "; the commands are too long to stand here: caretaker plan -f prints them"
# Phases of Enforce without a fault.
_PROGRESS: Final = frozenset((Reason.CANARY_CHANGING, Reason.CANARY_SOAKING, Reason.CHANGING))


def status_of(inputs: StatusInput, plan: Plan, now: str, problem: str = "") -> Status:
    """The status to write; equal to the one that stands when nothing has changed, whenever that was asked."""
    before = inputs.read.status
    counted = inputs.refusal is None and not (inputs.read.spec is not None and inputs.read.spec.suspend)
    enforced = plan.enforced or Enforced()
    made = Status(
        observed_generation=inputs.read.meta.generation,
        conditions=c.merge(before.conditions, conditions_of(inputs, plan, problem), now),
        summary=plan.summary if counted else before.summary,
        groups=_bounded(plan.groups) if counted else before.groups,
        groups_omitted=plan.groups_omitted if counted else before.groups_omitted,
        exceptions=_since(before.exceptions, plan.exceptions, now) if counted else before.exceptions,
        exceptions_omitted=plan.exceptions_omitted if counted else before.exceptions_omitted,
        plan=_to_change(plan) if counted else before.plan,
        canary=enforced.canary if counted else before.canary,
        changed=enforced.changed if counted else before.changed,
        breaker=enforced.breaker if counted else before.breaker,
        unexpected=plan.unexpected if counted else before.unexpected,
        token_gate=inputs.token_gate if counted else before.token_gate,
        last_scan=before.last_scan,
    )
    if made == before:
        return before
    return msgspec.structs.replace(made, last_scan=ScanStatus(inputs.scanned))


def _to_change(plan: Plan) -> PlanStatus:
    """Of an audit: the changes that Enforce would make."""
    left = plan.enforced.left if plan.enforced is not None else plan.summary.drifted
    return PlanStatus(left, plan.sources.launch_templates, plan.sources.node_classes)


def _bounded(groups: Sequence[GroupStatus]) -> tuple[GroupStatus, ...]:
    """With the commands that fit into a resource."""
    commands = bounded([one.source.mend if one.source else "" for one in groups], MAX_COMMAND, MAX_COMMANDS)
    return tuple(map(_with_command, groups, commands))


def _with_command(group: GroupStatus, command: str) -> GroupStatus:
    if group.source is None or group.source.mend == command:
        return group
    message = group.source.message[: MAX_MESSAGE - len(_TOO_LONG)] + _TOO_LONG
    return msgspec.structs.replace(
        group, source=msgspec.structs.replace(group.source, mend=command, message=message)
    )


def _since(
    before: Iterable[ExceptionStatus], found: Iterable[ExceptionStatus], now: str
) -> tuple[ExceptionStatus, ...]:
    """The exceptions, each with the time when it began."""
    earlier = {_same(entry): entry.since for entry in before}
    return tuple(msgspec.structs.replace(entry, since=earlier.get(_same(entry)) or now) for entry in found)


def _spec_events(spec: Spec | None) -> Iterator[Event]:
    """Warnings about a spec that opens more than it needs."""
    if spec is None or (spec.options.http_put_response_hop_limit or 0) < 2:
        return
    if spec.options.http_tokens != "required":
        message = (
            "spec.options: with a hop limit of 2 or more pods reach IMDSv1 as well, unless httpTokens is "
            "required: add it here if no other policy has it for these nodes"
        )
        yield Event("Warning", Reason.IMDSV1_OPEN, message)


def _passed(before: Status, after: Status) -> Iterator[Event]:
    """The event for groups whose canary has just passed."""
    earlier = before.canary.passed if before.canary is not None else ()
    new = [one for one in (after.canary.passed if after.canary is not None else ()) if one not in earlier]
    if not new:
        return
    every = dict.fromkeys(f"{one.kind}/{one.name}" if one.name else "nodes without a group" for one in new)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    message = f"Canary of {', '.join(list(every)[:SHOWN])}{more} passed; changing the remaining instances"
    yield Event("Normal", Reason.CANARY_PASSED, message)


def _same(entry: ExceptionStatus) -> ExceptionStatus:
    return msgspec.structs.replace(entry, since=None)


def events_of(before: Status, after: Status, spec: Spec | None) -> Sequence[Event]:
    """Transitions: conditions that turn False, and dangers of their own."""
    events = list(_spec_events(spec)) if before.observed_generation != after.observed_generation else []
    for one in _REPORTED:
        now, was = c.find(after.conditions, one), c.find(before.conditions, one)
        if now is not None and now.status == "False" and (was is None or was.reason != now.reason):
            goes_well = now.reason in _PROGRESS
            events.append(Event("Normal" if goes_well else "Warning", now.reason, now.message))
    events += _passed(before, after)
    slow = c.find(after.conditions, c.SLOW_AND_OPEN)
    if slow is not None and c.find(before.conditions, c.SLOW_AND_OPEN) is None:
        events.append(Event("Warning", c.SLOW_AND_OPEN, slow.message))
    for kind, reason in _GOOD:
        done, was = c.find(after.conditions, kind), c.find(before.conditions, kind)
        if done is not None and done.reason == reason and was is not None and was.status == "False":
            events.append(Event("Normal", reason, done.message))
    return list({(event.reason, event.message): event for event in events}.values())
