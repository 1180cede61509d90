"""The next state of canaries and watched instances, as status has it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from caretaker.api.imds import (
    MAX_CANARY,
    MAX_PASSED,
    CanaryStatus,
    ChangedGroup,
    ChangedInstance,
    FieldChange,
    GroupCanary,
    PassedChange,
)
from caretaker.api.times import format_time
from caretaker.imds.enforce_input import CheckedInstance, EnforceInput, Group

_ORDER: Final = ("Failed", "Changing", "Soaking")

GroupChange = tuple[Group, tuple[FieldChange, ...]]


class Fault(msgspec.Struct, frozen=True):
    """The cause of an open breaker."""

    reason: str
    instance: str
    node: str
    message: str


def fault_of(reason: str, one: ChangedInstance, message: str) -> Fault:
    """One of a changed instance."""
    return Fault(reason, one.instance, one.node, f"instance {one.instance} (node {one.node}) {message}")


class Record(msgspec.Struct, frozen=True):
    """The next state, for status.

    faults   failures since the last pass
    unready  instances whose Nodes are NotReady since the change: see change_state.unready
    stale    instances to read again before a canary passes or a watch ends
    unreported  changed instances whose state is unknown, because EC2's response lacks them or their tags
    """

    canaries: Mapping[Group, GroupCanary] = {}
    passed: Mapping[tuple[Group, FieldChange], PassedChange] = {}
    changed: tuple[ChangedGroup, ...] = ()
    faults: tuple[Fault, ...] = ()
    unready: tuple[ChangedInstance, ...] = ()
    stale: tuple[CheckedInstance, ...] = ()
    unreported: tuple[CheckedInstance, ...] = ()


class Findings(msgspec.Struct, frozen=True):
    """Lists that grow while the next state is built: see Record."""

    faults: list[Fault] = []
    unready: list[ChangedInstance] = []
    stale: list[CheckedInstance] = []
    unreported: list[CheckedInstance] = []


def status(record: Record, inputs: EnforceInput) -> CanaryStatus | None:
    """status.canary; None = there is no canary, and no change has passed."""
    before, running = inputs.canary, [record.canaries[group] for group in sorted(record.canaries)]
    passed = tuple(record.passed.values())[-MAX_PASSED:]
    if not running and not passed:
        return None
    stamp = format_time(inputs.wall)
    if running:
        phase = min((one.phase for one in running), key=_ORDER.index)
        names = tuple(one.instance for group in running for one in group.instances)[:MAX_CANARY]
        started, since = min(one.started_at for one in running), max(one.since for one in running)
        return CanaryStatus(inputs.generation, names, phase, started, since, tuple(running), passed)
    if before is not None and before.phase == "Passed":
        return msgspec.structs.replace(before, generation=inputs.generation, groups=(), passed=passed)
    names, started = (before.instances, before.started_at) if before is not None else ((), stamp)
    return CanaryStatus(inputs.generation, names, "Passed", started, stamp, (), passed)


def chosen(one: CheckedInstance, inputs: EnforceInput) -> ChangedInstance:
    """An instance whose change will be sent."""
    ready_since = token(one) if one.ready else ""
    return ChangedInstance(one.instance, one.node, format_time(inputs.wall), ready_since=ready_since)


def together(groups: Iterable[ChangedGroup]) -> tuple[ChangedGroup, ...]:
    """Merge groups with the same changes; of duplicate instances the last one counts."""
    by: dict[tuple[str, str, tuple[FieldChange, ...]], dict[str, ChangedInstance]] = {}
    for group in groups:
        by.setdefault((group.kind, group.name, group.changes), {}).update(
            (one.instance, one) for one in group.instances
        )
    return tuple(ChangedGroup(*key, tuple(some.values())) for key, some in by.items() if some)


def token(one: CheckedInstance) -> str:
    """See ChangedInstance.ready_since."""
    return format_time(one.ready_since)
