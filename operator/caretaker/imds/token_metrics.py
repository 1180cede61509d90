"""The readings of CloudWatch for spec.tokenGate: MetadataNoToken before tokens are required, and
MetadataNoTokenRejected of the canaries that require them.

Inputs: CloudWatch, the candidates of a policy (token_gate.py), its canaries. I/O only. Each metric of a call
is charged: instances are read at most once in READ_SECONDS, canaries once in CANARY_SECONDS of their soak,
and nothing is read where nothing is to be changed. After an error the rest is read later; until then the gate
is shut. status has the time of the last reading, so that a new process does not read earlier.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.imds import MAX_GROUPS, GroupCanary, TokenGateStatus
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
from caretaker.imds.token_gate import HOUR, Held, TokenCandidate, Use, Window
from caretaker.kube.errors import ApiError

SERVICE: Final = "cloudwatch"
NAMESPACE: Final = "AWS/EC2"
NO_TOKEN: Final = "MetadataNoToken"  # noqa: S105 - a name
# Between two readings of a canary: with basic monitoring a data point stands for five minutes.
CANARY_SECONDS: Final = 300.0

_UNREAD: Final[Held] = (Reason.IMDSV1_WAITING, "CloudWatch is read again once the breaker is closed")


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
    held: Mapping[str, Held] = {}
    rejected: Mapping[str, tuple[float, float]] = {}
    problem: AwsError | ApiError | None = None
    wake: float | None = None


def gated(inputs: StatusInput, gate: GateResult | None, *, operator: bool = True) -> StatusInput:
    """With the gate's part of status."""
    if gate is None:
        return inputs
    problems = (problem_of(gate.problem, operator),) if gate.problem is not None else ()
    return msgspec.structs.replace(inputs, token_gate=gate.status, gate_problems=problems)


class _State:
    """The memory of a policy. `cleared`: instances that the last reading found quiet; `uses`: those of the
    reading under way, which ends at `end`; `asked`: its metrics; `last`: the last result, which status may
    not have yet."""

    def __init__(self) -> None:
        self.reading, self.canaries = SharedRead(), SharedRead()
        self.cleared: frozenset[str] = frozenset()
        self.uses: dict[str, Use] = {}
        self.end = 0.0
        self.asked = 0
        self.rejected: dict[str, tuple[float, float]] = {}
        self.last: TokenGateStatus | None = None


class TokenGates:
    """The gates of all policies. `operator`: it is the operator that asks; `scale`: for tests."""

    def __init__(
        self,
        cloudwatch: Callable[[ClientKey], CloudWatch],
        metrics: PolicyMetrics | None = None,
        scale: float = 1.0,
        *,
        operator: bool = True,
    ) -> None:
        self._cloudwatch = cloudwatch
        self._metrics = metrics
        self._scale = scale
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
        state = self._states.setdefault(mine.meta.name, _State())
        days, now, before = mine.spec.token_gate.days, given.now, state.last or mine.status.token_gate
        end, groups = token_gate.end_of(now), token_gate.by_group(given.every)
        quiet = token_gate.quiet_groups(before)
        windows = {g: token_gate.window_of(ones, end, days, quiet=g in quiet) for g, ones in groups.items()}
        wait = token_gate.wait(before, now, self._scale)
        series = list(_series(groups, windows, end))
        due, complete = bool(series) and not wait, False
        if due and mine.status.breaker is None:
            complete = await self._renew(mine, state, series, end)
        status, problem = before or TokenGateStatus(), state.reading.problem if due else None
        if complete:
            found = {
                g: token_gate.group_status(g, ones, windows[g], state.uses, end) for g, ones in groups.items()
            }
            state.cleared = token_gate.cleared(state.uses)
            status, wait = (
                TokenGateStatus(format_time(now), state.asked),
                token_gate.READ_SECONDS * self._scale,
            )
            state.end = 0.0
        else:
            found = token_gate.unread(groups, windows, before, now + wait)
        status = msgspec.structs.replace(status, groups=token_gate.kept(before, found, given.groups))
        state.last = status
        status = msgspec.structs.replace(status, groups=status.groups[:MAX_GROUPS])
        held = token_gate.held_of(given.every, found, state.cleared)
        if due and not complete:  # the last reading is too old
            refusal = self._refusal(problem) if problem is not None else _UNREAD
            held = {one.instance: refusal for one in given.every}
        failure = await self._canaries(mine, state, given)
        wakes = [wait] if series and wait else []
        for shared in (state.reading, state.canaries):
            wakes += [shared.again_at - time.monotonic()] if shared.problem is not None else []
        wakes += [CANARY_SECONDS * self._scale] if state.rejected else []
        wake = min(wakes, default=None)
        return GateResult(status, held, dict(state.rejected), problem or failure, wake)

    def _refusal(self, problem: AwsError | ApiError) -> Held:
        more = advice(problem) if self._operator else ""
        if isinstance(problem, AwsError) and problem.access_denied:
            return Reason.ACCESS_DENIED, f"{problem}{more}"
        if isinstance(problem, AwsError) and problem.no_identity:
            return Reason.NO_IDENTITY, f"{problem}{more}"
        return Reason.IMDSV1_USE_UNKNOWN, f"CloudWatch could not be read, and is read again soon: {problem}"

    # ---------------------------------------------------------------- before tokens are required

    async def _renew(self, mine: ParsedPolicy, state: _State, every: Sequence["_Series"], end: float) -> bool:
        """Read all series. Those that an attempt of this hour has read are kept. Whether all are read."""
        if time.monotonic() < state.reading.again_at:
            return False
        if state.end != end:
            state.uses, state.end, state.asked = {}, end, 0
        left = [one for one in every if one.of.instance not in state.uses]
        try:
            for some in _calls(left, end):
                asked = _Asked(some[0].of.region, NO_TOKEN, HOUR, some[0].start, end)
                points = await self._points(mine, state, asked, [one.of.instance for one in some])
                for one in some:
                    found = points[one.of.instance]
                    state.uses[one.of.instance] = token_gate.use_of(one.of, found, one.start, end)
        except AwsError as error:
            state.reading.done(error, self._scale)
            return False
        state.reading.done(None, self._scale)
        return True

    # ---------------------------------------------------------------- canaries

    async def _canaries(
        self, mine: ParsedPolicy, state: _State, given: GateInput
    ) -> AwsError | ApiError | None:
        """Read the rejected calls of canaries since their change. Why they could not be read."""
        canaries = mine.status.canary.groups if mine.status.canary is not None else ()
        sent = {
            one.instance: _five(parse_time(one.at) or given.now)
            for group in canaries
            if soaks_tokens(group)
            for one in group.instances
            if one.instance in given.regions
        }
        state.rejected = {name: found for name, found in state.rejected.items() if name in sent}
        fresh = given.now - CANARY_SECONDS * self._scale
        old = [name for name in sorted(sent) if state.rejected.get(name, (-math.inf, 0.0))[0] <= fresh]
        if not old:
            return None
        if time.monotonic() < state.canaries.again_at:
            return state.canaries.problem
        try:
            for region in sorted({given.regions[name] for name in old}):
                for some in batched([name for name in old if given.regions[name] == region], MOST_QUERIES):
                    start = min(sent[name] for name in some)
                    end = _five(given.now) + CANARY_SECONDS
                    asked = _Asked(region, REJECTED, CANARY_SECONDS, start, end)
                    points = await self._points(mine, state, asked, some)
                    for name in some:
                        count = sum(value for at, value in points[name] if at >= sent[name])
                        state.rejected[name] = given.now, count
        except AwsError as error:
            state.canaries.done(error, self._scale)
            return error
        state.canaries.done(None, self._scale)
        return None

    # ---------------------------------------------------------------- calls

    async def _points(
        self, mine: ParsedPolicy, state: _State, asked: "_Asked", names: Sequence[str]
    ) -> dict[str, list[tuple[float, float]]]:
        """Instance -> its data points, of all pages."""
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
            state.asked += len(names) if asked.metric == NO_TOKEN else 0
            if self._metrics is not None:
                self._metrics.requested(len(names))
            for result in page["MetricDataResults"]:
                if (name := ids.get(result["Id"])) is not None:
                    states[name] = result.get("StatusCode", "")
                    given = zip(result.get("Timestamps", ()), result.get("Values", ()), strict=False)
                    points[name] += [(at.timestamp(), value) for at, value in given]
        for name in names:
            _complete(name, states.get(name, "no result"))
        return points


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
            yield from (_Series(one, token_gate.began(one, start)) for one in token_gate.judged(ones, end))


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


def _complete(instance: str, code: str) -> None:
    """Raises AwsError for a series that CloudWatch did not return whole. Lost data are no zeros."""
    if code == "Complete":
        return
    denied = code == "Forbidden"
    message = f"the data of {instance} are not complete"
    kind = ErrorClass.ACCESS_DENIED if denied else ErrorClass.TRANSIENT
    raise AwsError(kind, code or "?", message, service=SERVICE, operation="GetMetricData")


def _five(seconds: float) -> float:
    return math.floor(seconds / CANARY_SECONDS) * CANARY_SECONDS
