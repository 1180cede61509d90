"""A bucket, a queue, a gateway and an API server in memory, and two operators that run the real planner.

What the doubles do is what the services promise and no more: the queue delivers at least once, in any order;
the gateway evicts nothing when a call follows another within the interval; an answer may be lost after the
call took effect, and a process may die between any two steps. The judge is `lost()`: an event whose message
is gone and that nothing on record will refresh.

In place of the gateway there may be a service that knows a call by its claim's id ("http"), or the API
server, where a call makes a Job that ends by and by ("job"). Both apply a claim once, and want it the same
each time.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from caretaker.api.names import REFRESH_AT, REFRESH_FOLDERS
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Filter, RequestsStatus, TargetStatus
from caretaker.api.times import format_micros, stamp_after
from caretaker.s3refresh import resource
from caretaker.s3refresh.annotation_requests import Place, RefreshRequests, read_requests, recorded
from caretaker.s3refresh.debounce import CALL_SECONDS, NOT_MADE, UNKNOWN, Claim, TargetState
from caretaker.s3refresh.envelope import Completion, ObjectEvent
from caretaker.s3refresh.folders import EMPTY, EVERYTHING, Scope, of_tree
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.snapshot import Discovery, End, Message, Plan, PlanInput, Result
from caretaker.s3refresh.targets.payload import payload_of
from caretaker.s3refresh.timing import TargetTracker
from testing.scopes import covers, of_key

SHARE = Share(id="share-1", arn="arn:share-1", bucket="bucket", group="gateway-1")
EPOCH = 1_800_000_000.0
SOME = 1e-6  # no two moments are the same


def parts(scope: Scope) -> list[Scope]:
    """Each folder and each tree alone."""
    if scope.all:
        return [scope]
    single = [Scope(folders=frozenset((name,))) for name in scope.folders]
    return [*single, *(Scope(trees=frozenset((name,))) for name in scope.trees)]


@dataclass
class Sent:
    """A message in the queue."""

    message: Message
    copies: int = 1


@dataclass
class Call:
    """A call that a process has made; it takes effect at most once, and may be answered after that."""

    claim: Claim
    begun: float
    effect: bool = False
    notification: str = ""  # of an effect whose end is told


@dataclass
class Job:
    """Made by a call to the API server, known by its claim's id; it refreshes what was there by then."""

    scope: Scope
    made: float
    succeeded: bool | None = None  # None: it runs


@dataclass
class World:
    """Times are seconds since the start; each operator's wall clock has a skew of its own."""

    options: DebounceOptions
    kind: Literal["gateway", "http", "job"] = "gateway"
    now: float = 0.0
    version: int = 0
    stored: bytes = b""  # status.targets, as JSON: what the API server has
    queue: dict[int, Sent] = field(default_factory=dict)
    written: list[tuple[Scope, float]] = field(default_factory=list)  # (what an event made stale, when)
    message_of: dict[int, int] = field(default_factory=dict)  # index in `written` -> message
    refreshed: list[tuple[Scope, float]] = field(default_factory=list)
    calls: list[tuple[float, Scope]] = field(default_factory=list)
    last_call: float = -1e9
    told: dict[str, bytes] = field(default_factory=dict)  # claim id -> what the service was told
    applied: dict[str, float] = field(default_factory=dict)  # claim id -> when it took effect
    settled: set[str] = field(default_factory=set)  # claims whose outcome some process has learnt
    jobs: dict[str, Job] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    requests: RequestsStatus | None = None  # status.requests, written together with `stored`
    asked: dict[int, tuple[str, str]] = field(default_factory=dict)  # index in `written` -> (folder, time)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def targets(self, wall: float) -> tuple[TargetState, ...]:
        """The record, read as an operator with this clock reads it."""
        found = msgspec.json.decode(self.stored or b"[]", type=tuple[TargetStatus, ...])
        return tuple(resource.decode_target(one, wall) for one in found)

    def put(self, key: str) -> None:
        """An object is written, and its event sent; without a key the event does not name it."""
        self.now += SOME
        number = next(self.numbers)
        event = ObjectEvent("ObjectCreated", "bucket", key)
        self.queue[number] = Sent(Message(number, events=(event,)))
        self.message_of[len(self.written)] = number
        self.written.append((of_key(key) if key else EVERYTHING, self.now))

    def ask(self, folder: str, *, by_hand: bool) -> None:
        """A person asks, for everything if there is no folder: with the command; or by hand, where `date`
        has whole seconds, dropping the folders of others."""
        self.now += SOME
        taken, new = self.requests or RequestsStatus(), self.new_requests()
        marks = msgspec.json.decode(self.annotations.get(REFRESH_FOLDERS, "{}"), type=dict[str, str])
        earlier = [self.annotations.get(REFRESH_AT, ""), *marks.values(), taken.refresh_at or ""]
        now = EPOCH + self.now
        stamp = format_micros(int(now)) if by_hand else stamp_after(now, [*earlier, taken.folders_at or ""])
        last = (taken.folders_at if folder else taken.refresh_at) or ""
        again = (folder, stamp) in self.asked.values() or stamp < last or (not folder and stamp == last)
        if folder:
            kept = {} if by_hand else {one: at for one, at in marks.items() if Place("", one) in new.places}
            dropped = {place.folder for place in new.places} - {*kept, folder}
            for index in [index for index, (one, _) in self.asked.items() if one in dropped]:
                self.asked[index], self.written[index] = ("", ""), (EMPTY, self.now)
            self.annotations[REFRESH_FOLDERS] = msgspec.json.encode({**kept, folder: stamp}).decode()
        else:
            self.annotations[REFRESH_AT] = stamp
        if not again:
            self.asked[len(self.written)] = folder, stamp
            self.written.append((of_tree(folder) if folder else EVERYTHING, self.now))
        self.version += 1

    def new_requests(self) -> RefreshRequests:
        """Those that were not taken."""
        return read_requests(WireMeta(annotations=self.annotations), self.requests, EPOCH + self.now)

    def untaken(self, index: int) -> bool:
        """Whether the event is still in the queue, or the request in an annotation alone."""
        if index not in self.asked:
            return self.message_of[index] in self.queue
        folder, stamp = self.asked[index]
        if folder:
            return Place("", folder) in self.new_requests().places
        return ((self.requests or RequestsStatus()).refresh_at or "") < stamp

    def unfinished(self) -> list[tuple[Scope, float]]:
        """Requests that were taken, and that no refresh has followed."""
        taken = [self.written[index] for index in self.asked if not self.untaken(index)]
        return [(scope, at) for scope, at in taken if not all(self.is_fresh(one, at) for one in parts(scope))]

    def take_effect(self, call: Call) -> None:
        """The gateway accepts the call: it lists now what it has to, unless the last call is too fresh."""
        self.now += SOME
        call.effect = True
        if self.kind != "gateway":
            self._apply(call)
            return
        call.notification = f"n{next(self.numbers)}"
        assert self.now - self.last_call >= self.options.min_interval, "the gateway would ignore it"
        self.refreshed.append((call.claim.request.scope, self.now))
        self.last_call = self.now
        self.calls.append((self.now, call.claim.request.scope))
        number = next(self.numbers)
        completion = Completion(call.notification, SHARE.arn)
        self.queue[number] = Sent(Message(number, completions=(completion,)))

    def _apply(self, call: Call) -> None:
        """Once for each claim id."""
        claim, scope = call.claim, call.claim.request.scope
        call.notification = claim.id if self.kind == "job" else ""
        payload = payload_of(SHARE, claim)
        assert self.told.setdefault(claim.id, payload) == payload, "the same id for another call"
        if claim.id in self.applied:
            return
        self.applied[claim.id] = self.now
        self.calls.append((self.now, scope))
        if self.kind == "job":
            self.jobs[claim.id] = Job(scope, self.now)
        else:
            self.refreshed.append((scope, self.now))

    def end_job(self, name: str, *, succeeded: bool) -> None:
        """A Job that has failed, or was deleted, counts for nothing."""
        job = self.jobs[name]
        job.succeeded = succeeded
        if succeeded:
            self.refreshed.append((job.scope, job.made))

    def ends(self) -> list[int]:
        """The completion events of refreshes."""
        return [number for number, sent in self.queue.items() if sent.message.completions]

    def running(self) -> list[str]:
        """The Jobs that have not ended."""
        return [name for name, job in self.jobs.items() if job.succeeded is None]

    def lost(self) -> list[tuple[Scope, float]]:
        """Events that nothing holds and nothing has refreshed."""
        held = [found for target in self.targets(EPOCH) for found in self._on_record(target)]
        return [
            (scope, at)
            for index, (scope, at) in enumerate(self.written)
            if not self.untaken(index)
            and not all(
                any(at <= to and covers(have, one) for have, to in held) or self.is_fresh(one, at)
                for one in parts(scope)
            )
        ]

    def is_fresh(self, one: Scope, at: float) -> bool:
        """Whether the gateway has listed the folder, or the tree, since."""
        return any(when >= at and covers(scope, one) for scope, when in reversed(self.refreshed))

    def all_fresh(self) -> bool:
        """Nothing is left to do."""
        return all(self.is_fresh(one, at) for scope, at in self.written for one in parts(scope))

    def waiting(self) -> int:
        """The number of dirty folders and trees in the record."""
        held = [scope for target in self.targets(EPOCH) for scope, _ in self._on_record(target)]
        return sum(len(scope.folders) + len(scope.trees) + scope.all for scope in held)

    def _on_record(self, target: TargetState) -> list[tuple[Scope, float]]:
        """(what will be refreshed, whatever happens, for events until when): what waits; a claim, which is
        executed or merged back; a Job, which succeeds or makes its folders wait again."""
        held = []
        waits = [one for one in (target.dirty, target.dirty and target.dirty.later) if one is not None]
        held += [(one.scope, self.now) for one in waits]
        if (claim := target.claim) is not None:
            held.append((claim.request.scope, self.applied.get(claim.id, self.now)))
        if (in_flight := target.in_flight) is not None and in_flight.notification_id in self.jobs:
            job = self.jobs[in_flight.notification_id]
            held.append((job.scope, job.made))
        return held


class Operator:
    """One process: what it has received, the pass under way, the calls that it makes."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self.world = world
        self.name = name
        self.skew = skew
        self.crash()

    def crash(self) -> None:
        """Everything volatile is gone. Calls that were sent are with the gateway."""
        self.inbox: dict[int, Message] = {}
        self.results: list[Result] = []
        self.calls: list[Call] = []
        self.tracker = TargetTracker()
        self.begun: tuple[PlanInput, Plan, int, bytes] | None = None

    @property
    def wall(self) -> float:
        """This machine's clock."""
        return EPOCH + self.world.now + self.skew

    def receive(self, number: int) -> None:
        """A message, perhaps not for the first time."""
        if number in self.world.queue:
            self.inbox[number] = self.world.queue[number].message

    def begin(self) -> None:
        """Gather and plan: inputs first, then the read that proves what is on record."""
        world = self.world
        world.now += SOME
        messages, results = tuple(self.inbox.values()), tuple(self.results)
        targets = world.targets(self.wall)
        snapshot = PlanInput(
            targets=targets,
            first=not world.stored,
            discovery=Discovery(complete=True, shares=(SHARE,)),
            filter=Filter(),
            options=world.options,
            owner=self.name,
            pass_id=f"{self.name}-{next(world.numbers)}",
            now=self.wall,
            resync_on_start=False,
            idempotent=world.kind != "gateway",
            requests=read_requests(WireMeta(annotations=dict(world.annotations)), world.requests, self.wall),
            messages=messages,
            results=results,
            ends=tuple(
                End(name, "" if job.succeeded else "JobFailed")
                for name, job in world.jobs.items()
                if job.succeeded is not None
            ),
            running=frozenset(call.claim.id for call in self.calls)
            | frozenset(result.claim_id for result in results),
            times=self.tracker.times(targets, world.now),
            jitter=0.5,
        )
        self.tracker.update(targets, world.now)
        self.begun = (snapshot, plan(snapshot), world.version, world.stored)

    def finish(self, *, dies: bool = False) -> None:
        """Write, if nobody else has; then delete messages and make calls, unless it dies in between."""
        if self.begun is None:
            return
        (snapshot, made, version, read), self.begun = self.begun, None
        if not self._write(snapshot, made, version, read):
            return
        if dies:
            self.crash()
            return
        self.tracker.record_events(made.matches.found, self.world.now)
        self.tracker.update(made.targets, self.world.now)
        for number in (*made.done, *made.unclaimed):
            self.inbox.pop(number, None)
            self.world.queue.pop(number, None)
        self.results = [result for result in self.results if result not in snapshot.results]
        self.calls += [Call(claim, self.world.now) for _, claim in made.calls]

    def _write(self, snapshot: PlanInput, made: Plan, version: int, read: bytes) -> bool:
        targets = [resource.encode_target(target, made.phases[target.id]) for target in made.targets]
        after = msgspec.json.encode(targets)
        taken = None if made.requested is None else snapshot.requests
        if after == read and taken is None and version != self.world.version:
            return True  # read after the messages came: that is proof enough, whatever happened since
        if version != self.world.version:
            return False
        self._check(msgspec.json.decode(read or b"[]", type=list[TargetStatus]), made)
        before, busy = self.world.requests, any(target.requested for target in made.targets)
        requests = recorded(before, taken, self.wall, busy=busy)
        changed = (after, requests) != (read, before)
        self.world.stored, self.world.requests = after, requests
        self.world.version += changed
        if requests is not None and requests.done_at and requests != before:
            assert not self.world.unfinished(), "told to be done"
        return True

    def _check(self, before: list[TargetStatus], made: Plan) -> None:
        """A claim that can be made again is given up only when its outcome is known."""
        held = {target.claim.id for target in made.targets if target.claim is not None}
        for one in before:
            if self.world.kind != "gateway" and one.claim is not None and one.claim.id not in held:
                assert one.claim.id in self.world.settled, "given up, though it may have taken effect"

    def answer(self, call: Call, outcome: str) -> None:
        """A call ends: accepted (perhaps without an id), refused, unknown or not even begun, within
        CALL_SECONDS."""
        if outcome == "unmade" and not call.effect:
            code = NOT_MADE
        elif outcome == "refused" and not call.effect:
            code = "InvalidGatewayRequestException"
        elif outcome == "unknown":
            code = "Timeout" if self.world.kind == "gateway" else UNKNOWN
            self.world.now = max(self.world.now, call.begun + CALL_SECONDS)
        else:
            code = ""
            if not call.effect:
                self.world.take_effect(call)
        if code != UNKNOWN and not (code == NOT_MADE and call.claim.attempt > 1):
            self.world.settled.add(call.claim.id)
        self.calls.remove(call)
        unnamed = outcome == "unnamed" and self.world.kind == "gateway"
        name = "" if code or unnamed else call.notification
        self.results.append(Result("share-1", call.claim.id, name, code, code and "no", unnamed))


def under_load(world: World, operator: Operator, keys: Iterable[str], step: float = 10.0) -> Iterator[float]:
    """One operator runs without faults, while these objects change one after the other. Yields the age of the
    folder that has been stale for the longest."""
    stale: list[tuple[Scope, float]] = []
    for key in keys:
        world.put(key)
        scope, at = world.written[-1]
        stale += [(one, at) for one in parts(scope)]
        world.refreshed.clear()
        until(world, operator, lambda: False, step, step=step)
        yield max(world.now - since for _, since in stale)
        stale = [(one, since) for one, since in stale if not world.is_fresh(one, since)]


def until(
    world: World, operator: Operator, done: Callable[[], bool], seconds: float, step: float = 1.0
) -> bool:
    """Whether it comes to that with one operator at work and nothing going wrong. It looks every `step`
    seconds."""
    end = world.now + seconds
    while world.now < end:
        for number in list(world.queue):
            operator.receive(number)
        operator.begin()
        operator.finish()
        for call in list(operator.calls):
            operator.answer(call, "accepted")
        for name in world.running():
            world.end_job(name, succeeded=True)
        if done():
            return True
        world.now += step
    return False
