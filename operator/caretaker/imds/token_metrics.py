"""The readings of CloudWatch for spec.tokenGate: MetadataNoToken before tokens are required, and
MetadataNoTokenRejected of the canaries that require them.

Inputs: CloudWatch, the candidates of a policy (token_gate.py), its canaries. I/O only. Each metric of a call
is charged: instances are read at most once in READ_SECONDS, canaries once in CANARY_SECONDS of their soak,
and nothing is read where nothing is to be changed. Each region has its own errors. After one the rest is read
later, to the same end; until then the gate is shut for the groups that are not read whole. Series that
CloudWatch does not return whole are asked for MOST_TRIES times in a reading. status has the time at which the
last reading began, so that a new process does not read earlier.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import MAX_GROUPS, GroupCanary, TokenGateGroup, TokenGateStatus
from caretaker.api.times import format_time, parse_time
from caretaker.aws.cloudwatch import MOST_DATAPOINTS, MOST_QUERIES, CloudWatch
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.identity import ClientKey
from caretaker.aws.pages import batched, pages
from caretaker.imds import token_gate
from caretaker.imds.conditions import StatusInput
from caretaker.imds.drift import requires_tokens
from caretaker.imds.enforce_input import Group
from caretaker.imds.gather import advice, problem_of
from caretaker.imds.inventory import SharedRead
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.plan import PlanInput
from caretaker.imds.resource import ParsedPolicy, user_of
from caretaker.imds.soak import REJECTED
from caretaker.imds.token_gate import HOUR, TokenCandidate, TokenHold, Use, Window
from caretaker.kube.errors import ApiError

SERVICE: Final = "cloudwatch"
NAMESPACE: Final = "AWS/EC2"
NO_TOKEN: Final = "MetadataNoToken"  # noqa: S105 - a name
# With basic monitoring a data point stands for five minutes.
PERIOD_SECONDS: Final = 300.0
# Between two readings of a canary.
CANARY_SECONDS: Final = 300.0
MOST_TRIES: Final = 5

_UNREAD: Final[TokenHold] = (Reason.IMDSV1_WAITING, "CloudWatch is read again once the breaker is closed")


class GateInput(msgspec.Struct, frozen=True):
    """`every`: instances whose tokens are to be required; `regions`: instance -> region; `groups`: those that
    have Nodes; `now`: Unix seconds."""

    every: Sequence[TokenCandidate]
    regions: Mapping[str, str]
    groups: frozenset[Group]
    now: float


def gate_input(read: PlanInput, now: float) -> GateInput:
    """Of a policy whose desired options are computed."""
    every = tuple(token_gate.candidates(read.me, read.members, read.desired))
    regions = {one.ref.instance: one.ref.region for one in read.members if one.ref.region}
    groups = frozenset(one.groups[0] if one.groups else ("", "") for one in read.members)
    return GateInput(every, regions, groups, now)


class GateResult(msgspec.Struct, frozen=True):
    """`held`: instance -> why its tokens stay optional; `rejected`: instance of a canary -> (when it was
    read, number of rejected calls); `problem`: why CloudWatch could not be read; `wake`: seconds until it is
    read next, None = not by time."""

    status: TokenGateStatus | None = None
    held: Mapping[str, TokenHold] = {}
    rejected: Mapping[str, tuple[float, float]] = {}
    problem: AwsError | ApiError | None = None
    wake: float | None = None


def gated(inputs: StatusInput, gate: GateResult | None, *, operator: bool = True) -> StatusInput:
    """With the gate's part of status."""
    if gate is None:
        return inputs
    problems = (problem_of(gate.problem, operator),) if gate.problem is not None else ()
    return msgspec.structs.replace(inputs, token_gate=gate.status, gate_problems=problems)


class _Reading:
    """A reading from `since` on, Unix seconds, up to `end`, 0 = none. `done`: groups that are read whole;
    `tries` by instance; `asked`: metrics; `cleared`: instances that it found quiet."""

    def __init__(self, since: float = 0.0, end: float = 0.0) -> None:
        self.since, self.end, self.asked = since, end, 0
        self.uses: dict[str, Use] = {}
        self.done: dict[Group, TokenGateGroup] = {}
        self.tries = Counter[str]()
        self.cleared: frozenset[str] = frozenset()

    def under_way(self, now: float, seconds: float) -> bool:
        """Whether the reading that began has been charged, and goes on to the same end."""
        return bool(self.end and self.asked) and 0 <= now - self.since < seconds

    def lacks(self, every: Iterable["_Series"]) -> list["_Series"]:
        """Those that this reading has not read yet from their start on; a window may grow meanwhile."""
        known = ((one, self.uses.get(one.of.instance)) for one in every)
        return [one for one, use in known if use is None or use.start > one.start]

    def find(self, group: Group, ones: Sequence[TokenCandidate], window: Window, *, quiet: bool) -> None:
        """The group is read whole."""
        self.done[group] = token_gate.group_status(ones, window, self.uses, self.end, quiet=quiet)
        uses = {one.instance: self.uses[one.instance] for one in ones if one.instance in self.uses}
        self.cleared |= token_gate.cleared(uses)


class _State:
    """The memory of a policy. `last`: the last status, which the cluster may not have yet; `rejected`,
    `heard`: of canaries."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.regions: dict[str, SharedRead] = {}
        self.canaries: dict[str, SharedRead] = {}
        self.rejected: dict[str, tuple[float, float]] = {}
        self.heard: dict[str, float] = {}
        self.last: TokenGateStatus | None = None
        self.reading = _Reading()

    def problem(self, regions: Iterable[str]) -> AwsError | ApiError | None:
        """Why one of these was not read."""
        known = (self.regions[name].problem for name in sorted(set(regions)) if name in self.regions)
        return next((one for one in known if one is not None), None)


class TokenGates:
    """The gates of all policies. `operator`: it is the operator that asks."""

    def __init__(
        self,
        cloudwatch: Callable[[ClientKey], CloudWatch],
        metrics: PolicyMetrics | None = None,
        *,
        operator: bool = True,
    ) -> None:
        self._cloudwatch = cloudwatch
        self._metrics = metrics
        self._operator = operator
        self._states: dict[str, _State] = {}

    def forget(self, name: str) -> None:
        """The policy is gone, or has no gate."""
        self._states.pop(name, None)

    def clear(self) -> None:
        """Another process may lead from now on."""
        self._states.clear()

    async def read(self, mine: ParsedPolicy, given: GateInput) -> GateResult:
        """The gate of a policy that has one, by the last reading or a new one."""
        assert mine.spec is not None  # noqa: S101 - the caller has checked
        assert mine.spec.token_gate is not None  # noqa: S101 - the caller has checked
        state = self._states.get(mine.meta.name)
        if state is None or state.uid != mine.meta.uid:
            state = self._states[mine.meta.name] = _State(mine.meta.uid)
        days, now, seconds = mine.spec.token_gate.days, given.now, token_gate.READ_SECONDS
        before = token_gate.anew(state.last or mine.status.token_gate, days)
        if before is None:
            state.reading = _Reading()
        wait, goes_on = token_gate.wait(before, now), state.reading.under_way(now, seconds)
        end = state.reading.end if goes_on else token_gate.end_of(now)
        groups = token_gate.by_group(given.every)
        quiet = token_gate.quiet_groups(before)
        windows = {g: token_gate.window_of(ones, end, days, quiet=g in quiet) for g, ones in groups.items()}
        series = list(_series(groups, windows, end))
        due, left = bool(series) and (goes_on or not wait), list[_Series]()
        reads = due and mine.status.breaker is None
        if reads and not goes_on:
            state.reading = _Reading(now, end)
        if due:
            left = [one for one in series if one.of.group not in state.reading.done]
        if reads:
            await self._renew(mine, state, left, end)
            partial = {one.of.group for one in state.reading.lacks(left)}
            for group in {one.of.group for one in left} - partial:
                state.reading.find(group, groups[group], windows[group], quiet=group in quiet)
            left = [one for one in left if one.of.group in partial]
        problem = state.problem(one.of.region for one in (left or series))
        # The last reading of these is too old.
        refused = {
            group: self._refusal(state.problem(one.region for one in groups[group])) if reads else _UNREAD
            for group in {one.of.group for one in left}
        }
        status = before or TokenGateStatus(days=days)
        if reads and state.reading.asked:
            begun, asked = state.reading.since, state.reading.asked
            status, wait = TokenGateStatus(format_time(begun), asked, days), begun + seconds - now
        found = token_gate.unread(groups, windows, before, refused, now + wait)
        found |= {group: one for group, one in state.reading.done.items() if due and group in groups}
        status = msgspec.structs.replace(status, groups=token_gate.kept(before, found, given.groups))
        state.last = status
        status = msgspec.structs.replace(status, groups=status.groups[:MAX_GROUPS])
        held = token_gate.held_of(given.every, found, state.reading.cleared)
        held |= {one.instance: refused[one.group] for one in given.every if one.group in refused}
        if reads and not left:
            state.reading.end, state.reading.done = 0.0, {}
        failure = await self._canaries(mine, state, given)
        wakes = [wait] if series and wait > 0 else []
        regions = {one.of.region for one in left} if reads else set[str]()
        waits = [one for name, one in state.regions.items() if name in regions]
        again = [one.again_at - time.monotonic() for one in (*waits, *state.canaries.values()) if one.problem]
        wakes += [seconds for seconds in again if seconds > 0]
        wakes += [CANARY_SECONDS] if state.heard else []
        wake = min(wakes, default=None)
        return GateResult(status, held, dict(state.rejected), problem or failure, wake)

    def _refusal(self, problem: AwsError | ApiError | None) -> TokenHold:
        if problem is None:
            return _UNREAD
        more = advice(problem) if self._operator else ""
        if isinstance(problem, AwsError) and problem.access_denied:
            return Reason.ACCESS_DENIED, f"{problem}{more}"
        if isinstance(problem, AwsError) and problem.no_identity:
            return Reason.NO_IDENTITY, f"{problem}{more}"
        return Reason.IMDSV1_USE_UNKNOWN, f"CloudWatch could not be read, and is read again soon: {problem}"

    # ---------------------------------------------------------------- before tokens are required

    async def _renew(self, mine: ParsedPolicy, state: _State, every: Sequence["_Series"], end: float) -> None:
        """Read the series that this reading has not read yet, region by region."""
        left = state.reading.lacks(every)
        for region in sorted({one.of.region for one in left}):
            shared = state.regions.setdefault(region, SharedRead())
            if time.monotonic() < shared.again_at:
                continue
            problem: AwsError | None = None
            try:
                for some in _calls([one for one in left if one.of.region == region], end):
                    problem = await self._some(mine, state, some, end) or problem
            except AwsError as error:
                problem = error
            shared.done(problem)

    async def _some(
        self, mine: ParsedPolicy, state: _State, some: Sequence["_Series"], end: float
    ) -> AwsError | None:
        """Read the series of one call. Why some are not whole; after MOST_TRIES they have no data."""
        asked, charged = _Asked(some[0].of.region, NO_TOKEN, HOUR, some[0].start, end), state.reading.asked
        points: Mapping[str, list[tuple[float, float]]] = {}
        problems: Mapping[str, AwsError] = {}
        try:
            points, problems = await self._points(mine, state, asked, [one.of.instance for one in some])
        finally:
            for one in some:
                name = one.of.instance
                state.reading.tries[name] += state.reading.asked > charged
                whole = name in points and name not in problems
                if whole or state.reading.tries[name] >= MOST_TRIES:
                    use = token_gate.use_of(one.of, points.get(name, ()), one.start, end)
                    hours = use.hours if whole else 0
                    state.reading.uses[name] = msgspec.structs.replace(use, hours=hours, start=one.start)
        return next(iter(problems.values()), None)

    # ---------------------------------------------------------------- canaries

    async def _canaries(
        self, mine: ParsedPolicy, state: _State, given: GateInput
    ) -> AwsError | ApiError | None:
        """Read the rejected calls of canaries since they were chosen: a Node that is not Ready for a moment
        sets the time of the change anew. Why they could not be read."""
        canaries = mine.status.canary.groups if mine.status.canary is not None else ()
        sent = {
            one.instance: _five(parse_time(group.started_at) or parse_time(one.at) or given.now)
            for group in canaries
            if soaks_tokens(group)
            for one in group.instances
            if one.instance in given.regions
        }
        state.rejected = {name: found for name, found in state.rejected.items() if name in sent}
        state.heard = {name: at for name, at in state.heard.items() if name in sent}
        fresh = given.now - CANARY_SECONDS
        old = [name for name in sorted(sent) if state.heard.get(name, -math.inf) <= fresh]
        regions = {given.regions[name] for name in sent}
        state.canaries = {name: state.canaries.get(name, SharedRead()) for name in sorted(regions)}
        for region, shared in state.canaries.items():
            its = [name for name in old if given.regions[name] == region]
            if not its or time.monotonic() < shared.again_at:
                continue
            problem: AwsError | None = None
            try:
                for some in batched(its, MOST_QUERIES):
                    start = min(sent[name] for name in some)
                    end = _five(given.now) + PERIOD_SECONDS
                    asked = _Asked(region, REJECTED, PERIOD_SECONDS, start, end)
                    points, problems = await self._points(mine, state, asked, some)
                    problem = next(iter(problems.values()), problem)
                    for name in some:
                        state.heard[name] = given.now
                        if name not in problems:
                            count = sum(value for at, value in points[name] if at >= sent[name])
                            state.rejected[name] = given.now, count
            except AwsError as error:
                problem = error
            shared.done(problem)
        return next((one.problem for one in state.canaries.values() if one.problem is not None), None)

    # ---------------------------------------------------------------- calls

    async def _points(
        self, mine: ParsedPolicy, state: _State, asked: "_Asked", names: Sequence[str]
    ) -> tuple[dict[str, list[tuple[float, float]]], dict[str, AwsError]]:
        """Instance -> its data points, of all pages; and why those of some are not whole."""
        assert mine.spec is not None  # noqa: S101 - the caller has checked
        client_key = ClientKey.of(mine.spec.aws.within(asked.region), SERVICE, user=user_of(""))
        ids = {f"m{number}": name for number, name in enumerate(names)}
        points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        states: dict[str, str] = {}
        async for page in pages(
            self._cloudwatch(client_key).get_metric_data,
            MetricDataQueries=[_query(one, asked, name) for one, name in ids.items()],
            StartTime=datetime.fromtimestamp(asked.start, UTC),
            EndTime=datetime.fromtimestamp(asked.end, UTC),
            ScanBy="TimestampAscending",
            MaxDatapoints=MOST_DATAPOINTS,
        ):
            state.reading.asked += len(names) if asked.metric == NO_TOKEN else 0
            if self._metrics is not None:
                self._metrics.requested(len(names))
            for result in page["MetricDataResults"]:
                if (name := ids.get(result["Id"])) is not None:
                    states[name] = result.get("StatusCode", "")
                    given = zip(result.get("Timestamps", ()), result.get("Values", ()), strict=False)
                    points[name] += [(at.timestamp(), value) for at, value in given]
        lost = {name: states.get(name, "no result") for name in names}
        return points, {name: _lost(name, code) for name, code in lost.items() if code != "Complete"}


class _Series(msgspec.Struct, frozen=True, gc=False):
    """The hours of one instance, from `start` on."""

    of: TokenCandidate
    start: float


class _Asked(msgspec.Struct, frozen=True):
    """The request of a call. Times are Unix seconds."""

    region: str
    metric: str
    period: float
    start: float
    end: float


def soaks_tokens(canary: GroupCanary) -> bool:
    """Whether it soaks with tokens that it requires."""
    return canary.phase == "Soaking" and requires_tokens(canary.changes)


def _series(
    groups: Mapping[Group, Sequence[TokenCandidate]], windows: Mapping[Group, Window], end: float
) -> Iterator[_Series]:
    for group, ones in groups.items():
        if (start := windows[group].start) is not None:
            yield from (_Series(one, start) for one in token_gate.judged(ones, end))


def _calls(every: Sequence[_Series], end: float) -> Iterator[list[_Series]]:
    """The series of each call: of one region, the longest first."""
    some: list[_Series] = []
    for one in sorted(every, key=lambda one: (one.of.region, one.start, one.of.instance)):
        first = some[0] if some else one
        points = (len(some) + 1) * math.ceil((end - first.start) / HOUR)
        if some and (
            first.of.region != one.of.region or points > MOST_DATAPOINTS or len(some) >= MOST_QUERIES
        ):
            yield some
            some = []
        some.append(one)
    if some:
        yield some


def _query(name: str, asked: _Asked, instance: str) -> Mapping[str, Any]:
    dimensions = [{"Name": "InstanceId", "Value": instance}]
    metric = {"Namespace": NAMESPACE, "MetricName": asked.metric, "Dimensions": dimensions}
    return {"Id": name, "MetricStat": {"Metric": metric, "Period": int(asked.period), "Stat": "Sum"}}


def _lost(instance: str, code: str) -> AwsError:
    """Of a series that CloudWatch did not return whole. Lost data are no zeros."""
    denied = code == "Forbidden"
    message = f"the data of {instance} are not complete"
    kind = ErrorClass.ACCESS_DENIED if denied else ErrorClass.TRANSIENT
    return AwsError(kind, code or "?", message, service=SERVICE, operation="GetMetricData")


def _five(seconds: float) -> float:
    return math.floor(seconds / PERIOD_SECONDS) * PERIOD_SECONDS
