"""The gate before tokens are required: the groups in which IMDSv1 is still used, by CloudWatch.

Pure. Inputs: instances whose tokens are to be required, and AWS/EC2 MetadataNoToken of each by the hour. No
data is not zero. A group is quiet if each of its running instances has data in 95 % of its hours, all of them
0, within a window that

    has the last `days` days, in which at least one instance of the group ran all the time, and
    has the boot of one of them: much of IMDSv1's use is at boot. EC2 reports the last start (LaunchTime). If
    none is younger, the window begins with the youngest, at most 63 days ago.

Uses count in the whole window: a stop and a start changes no program. Data of an instance that is younger
are required from its start on; the first hour may be short, and lack data. A quiet group stays so for
instances that join, until one of the group uses IMDSv1: one without data is held back alone. The record holds
for the `days` of its reading, and for fewer.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import TokenGateGroup, TokenGateState, TokenGateStatus
from caretaker.api.times import format_time, parse_time
from caretaker.imds.checks import ENDED
from caretaker.imds.drift import TOKENS
from caretaker.imds.enforce_input import Group
from caretaker.imds.plan import Desired, Member, PlanInput

HOUR: Final = 3600.0
DAY: Final = 86400.0
MAX_DAYS: Final = 63
# CloudWatch has data of an instance some minutes late.
LATE_SECONDS: Final = 900.0
# Between two readings: CloudWatch charges for each metric.
READ_SECONDS: Final = 4 * HOUR
COVERED: Final = 0.95
SHOWN: Final = 5  # instances in a message

REASONS: Final[Mapping[TokenGateState, str]] = {
    "Quiet": Reason.IMDSV1_WAITING,  # of an instance that was not judged yet
    "InUse": Reason.IMDSV1_IN_USE,
    "Waiting": Reason.IMDSV1_WAITING,
    "Unknown": Reason.IMDSV1_USE_UNKNOWN,
}
TokenHold = tuple[str, str]  # (reason, message) of a group that the gate holds


class TokenCandidate(msgspec.Struct, frozen=True, gc=False):
    """An instance whose tokens are to be required. `launched`: its last start, Unix seconds; 0 = unknown;
    `state`: EC2's."""

    instance: str
    region: str
    group: Group
    launched: float
    state: str

    @property
    def runs(self) -> bool:
        """Whether it has data."""
        return self.state == "running"


class Use(msgspec.Struct, frozen=True, gc=False):
    """IMDSv1 of one instance. `hours`: those with data, of `of`; `last`: Unix seconds of the last use;
    `start`: of the window that was read."""

    hours: int
    of: int
    count: float = 0.0
    last: float = 0.0
    start: float = 0.0

    @property
    def covered(self) -> bool:
        """Whether enough hours have data."""
        return self.hours >= COVERED * self.of


class Window(msgspec.Struct, frozen=True):
    """The hours of a group that are read, from `start` on; None: none is, for the reason in `message`."""

    start: float | None
    state: TokenGateState = "Quiet"
    message: str = ""


def candidates(me: str, members: Iterable[Member], desired: Iterable[Desired]) -> Iterator[TokenCandidate]:
    """The instances that the policy wants to require tokens and that do not yet."""
    for member, (mine, fields) in zip(members, desired, strict=True):
        wanted, observed = fields.get(TOKENS), member.observed
        if not mine or observed is None or wanted is None or member.ref.skipped or observed.managed:
            continue
        if wanted.value != "required" or wanted.policy != me or wanted.rivals:
            continue
        if observed.options.http_tokens != "required" and observed.state not in ENDED:
            group = member.groups[0] if member.groups else ("", "")
            yield TokenCandidate(
                member.ref.instance, member.ref.region, group, observed.launched, observed.state
            )


def by_group(every: Iterable[TokenCandidate]) -> dict[Group, list[TokenCandidate]]:
    """The candidates of each group."""
    groups: dict[Group, list[TokenCandidate]] = {}
    for one in every:
        groups.setdefault(one.group, []).append(one)
    return groups


def end_of(now: float) -> float:
    """The end of the last hour whose data are there."""
    return math.floor((now - LATE_SECONDS) / HOUR) * HOUR


def judged(ones: Iterable[TokenCandidate], end: float) -> list[TokenCandidate]:
    """Those that ran for a whole hour before `end`."""
    return [one for one in ones if one.runs and hours_of(one, -math.inf, end)]


def hours_of(one: TokenCandidate, start: float, end: float) -> int:
    """The whole hours in which it ran."""
    first = max(start, math.ceil(one.launched / HOUR) * HOUR)
    return max(int((end - first) // HOUR), 0)


def window_of(ones: Sequence[TokenCandidate], end: float, days: int, *, quiet: bool) -> Window:
    """The window of a group. `quiet`: an earlier reading had all days and a boot."""
    start = end - days * DAY
    every = judged(ones, end)
    if quiet:
        return Window(start if every else None, message="an earlier reading found no use of IMDSv1")
    if not every:
        return Window(None, "Waiting", "no instance has run for a whole hour yet")
    oldest, youngest = min(one.launched for one in every), max(one.launched for one in every)
    if oldest > start:
        return Window(
            *(None, "Waiting"),
            f"no instance has run for {_days(days)} yet; the oldest one does at "
            f"{format_time(math.ceil(oldest / HOUR) * HOUR + days * DAY + LATE_SECONDS)}",
        )
    if youngest >= start:
        return Window(start)
    if youngest >= end - MAX_DAYS * DAY:
        return Window(math.floor(youngest / HOUR) * HOUR)
    return Window(
        *(None, "Unknown"),
        f"no instance was started in the last {MAX_DAYS} days, so no boot is observed: replace one, or stop "
        "and start it",
    )


def use_of(one: TokenCandidate, points: Iterable[tuple[float, float]], start: float, end: float) -> Use:
    """`points`: (Unix seconds of the hour's begin, sum) of the metric. Uses before its last start count, too:
    the programs are the same."""
    hours, count, last = 0, 0.0, 0.0
    for at, value in points:
        if start <= at < end:
            hours += at >= one.launched
            count += value
            last = max(last, at) if value > 0 else last
    return Use(hours, hours_of(one, start, end), count, last)


def group_status(
    ones: Sequence[TokenCandidate],
    window: Window,
    uses: Mapping[str, Use],
    end: float,
    *,
    quiet: bool = False,
) -> TokenGateGroup:
    """The finding of a reading. `ones`: the candidates of one group, not empty; `quiet`: an earlier reading
    found the group quiet; then only a use ends that."""
    kind, name = ones[0].group
    if window.start is None:
        return TokenGateGroup(kind, name, window.state, len(ones), message=window.message)
    every = [(one, uses[one.instance]) for one in judged(ones, end) if one.instance in uses]
    using = sorted(((use.last, one.instance) for one, use in every if use.count > 0), reverse=True)
    days = _days(round((end - window.start) / DAY))
    if using:
        are = f"{len(using)} of {len(every)} instances used IMDSv1 in the last {days}"
        message = f"{are}: {_some([name for _, name in using])}; last at {format_time(using[0][0])}"
        return TokenGateGroup(kind, name, "InUse", len(every), len(using), message)
    message = f"none of {len(every)} instances used IMDSv1 in the last {days}"
    if short := [one.instance for one, use in every if not use.covered]:
        lacks = (
            f"CloudWatch has data of less than {COVERED:.0%} of the hours of {len(short)} of {len(every)} "
            f"instances in the last {days}: {_some(short)}"
        )
        if not quiet:
            return TokenGateGroup(kind, name, "Unknown", len(every), message=lacks)
        message = f"{message}; {lacks}"
    return TokenGateGroup(kind, name, "Quiet", len(every), message=message)


def wait(before: TokenGateStatus | None, now: float) -> float:
    """Seconds until CloudWatch may be read again. A time from a clock that was ahead does not count."""
    at = parse_time(before.read_at) if before is not None else None
    age = now - at if at is not None else -1.0
    return max(READ_SECONDS - age, 0.0) if age >= 0 else 0.0


def anew(before: TokenGateStatus | None, days: int) -> TokenGateStatus | None:
    """The record of earlier readings; None: there is none, or it is of fewer days."""
    return before if before is not None and days <= before.days else None


def shut_input(read: PlanInput, statuses: Iterable[TokenGateStatus | None]) -> PlanInput:
    """With the groups in which required tokens are held back, by the status of any policy."""
    groups = (one for status in statuses if status is not None for one in status.groups)
    held = frozenset((one.kind, one.name) for one in groups if one.state != "Quiet")
    return msgspec.structs.replace(read, launching=msgspec.structs.replace(read.launching, tokens_shut=held))


def quiet_groups(before: TokenGateStatus | None) -> set[Group]:
    """Those that an earlier reading found quiet."""
    return {(one.kind, one.name) for one in (before.groups if before else ()) if one.state == "Quiet"}


def cleared(uses: Mapping[str, Use]) -> frozenset[str]:
    """Instances without use of IMDSv1."""
    return frozenset(name for name, use in uses.items() if use.covered and not use.count)


def unread(
    groups: Mapping[Group, Sequence[TokenCandidate]],
    windows: Mapping[Group, Window],
    before: TokenGateStatus | None,
    refused: Mapping[Group, TokenHold],
    next_at: float,
) -> dict[Group, TokenGateGroup]:
    """The groups between two readings. `refused`: those that cannot be read now."""
    known = {(one.kind, one.name): one for one in (before.groups if before is not None else ())}
    found: dict[Group, TokenGateGroup] = {}
    for group, ones in groups.items():
        window, last = windows[group], known.get(group)
        if window.start is None and window.state != "Quiet":
            found[group] = TokenGateGroup(*group, window.state, len(ones), message=window.message)
        elif group in refused and (last is None or last.state != "Quiet"):
            reason, message = refused[group]
            state: TokenGateState = "Waiting" if reason == Reason.IMDSV1_WAITING else "Unknown"
            found[group] = TokenGateGroup(*group, state, len(ones), message=message)
        elif last is not None and last.state != "Waiting":
            found[group] = last
        else:
            message = f"CloudWatch is read after {format_time(next_at)}"
            found[group] = TokenGateGroup(*group, "Waiting", len(ones), message=message)
    return found


def held_of(
    every: Iterable[TokenCandidate], groups: Mapping[Group, TokenGateGroup], cleared: Collection[str]
) -> dict[str, TokenHold]:
    """Instances whose tokens stay optional for now. `cleared`: those that the last reading found quiet. A
    stopped one follows its group; one that is about to run does not."""
    joined = "the instance is judged with the next reading of CloudWatch"
    why = {
        group: (REASONS[one.state], f"{name_of(group)}: {joined if one.state == 'Quiet' else one.message}")
        for group, one in groups.items()
    }
    return {
        one.instance: why[one.group]
        for one in every
        if groups[one.group].state != "Quiet" or (one.state != "stopped" and one.instance not in cleared)
    }


def kept(
    before: TokenGateStatus | None, found: Mapping[Group, TokenGateGroup], exist: Collection[Group]
) -> tuple[TokenGateGroup, ...]:
    """With the quiet groups in which nothing is to be changed: they stay quiet for instances that join."""
    rest = [
        one
        for one in (before.groups if before is not None else ())
        if one.state == "Quiet" and (one.kind, one.name) not in found and (one.kind, one.name) in exist
    ]
    return tuple(sorted([*found.values(), *rest], key=lambda one: (one.kind, one.name)))


def name_of(group: Group) -> str:
    """`EKSManagedNodegroup/apps`."""
    return f"{group[0]}/{group[1]}" if group[1] else "nodes without a group"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count} days"
