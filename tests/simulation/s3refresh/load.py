"""A gateway under load in virtual time: the real planner, memory and limiter, over hours in seconds.

The gateway takes one refresh at a time, refuses what is too many, and evicts nothing when a call follows
another of the share within a minute. The judge knows of each folder since when it is stale: a refresh that
takes effect makes fresh what it names, as of the moment when it was accepted.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from caretaker.api.s3refresh import Filter, TargetStatus
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import resource
from caretaker.s3refresh.concurrency import ConcurrencyLimiter, Demand, busy_of, calls_of, waiting_of
from caretaker.s3refresh.debounce import Claim, TargetState
from caretaker.s3refresh.envelope import Completion, ObjectEvent
from caretaker.s3refresh.folders import EMPTY, Scope
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.snapshot import Discovery, Message, PlanInput, Result
from caretaker.s3refresh.timing import TargetTracker, wanting_of
from testing.scopes import covers, of_key

EPOCH = 1_800_000_000.0
INTERVAL = 60.0  # within which a gateway ignores a second call for a share
ANSWER = 0.3  # seconds from a call to its answer
PATCH = 0.03  # from a plan to its record
LOOK = 5.0  # between two passes of a resource that waits for a slot
GATEWAY = "gateway"
BAD = "InvalidGatewayRequestException"


@dataclass
class Site:
    """The simulated state of one share."""

    share: Share
    stale: dict[str, float] = field(default_factory=dict)  # folder -> since when
    called: float = -1e9
    calls: list[tuple[float, Scope]] = field(default_factory=list)
    worst: float = 0.0  # seconds for which a folder was stale, at most


class Gateway:
    """`takes`: seconds of a refresh; `refuses`: folders that no call may name."""

    def __init__(self, takes: Callable[[Scope], float], refuses: Iterable[str] = ()) -> None:
        self.sites: dict[str, Site] = {}
        self.refused = 0
        self.busy_until = 0.0
        self._takes = takes
        self._refuses = frozenset(refuses)

    def change(self, site: Site, key: str, now: float) -> ObjectEvent:
        """An object changes; without a key the event does not name it."""
        found = of_key(key, site.share.prefix) if key else EMPTY
        for name in (*found.folders, *found.trees):
            site.stale.setdefault(name, now)
        return ObjectEvent("ObjectCreated", site.share.bucket, key)

    def call(self, site: Site, claim: Claim, now: float) -> tuple[str, float]:
        """(code of the refusal or "", when the refresh ends)."""
        if self._refuses.intersection(claim.request.folders):
            self.refused += 1
            return BAD, now
        if now < self.busy_until:
            self.refused += 1
            return "TooManyRefreshes", now
        scope = claim.request.scope
        took = self._takes(scope)
        self.busy_until = now + took
        site.calls.append((now, scope))
        if now - site.called >= INTERVAL:
            self._refresh(site, scope, now)
        site.called = now
        return "", now + took

    def _refresh(self, site: Site, scope: Scope, now: float) -> None:
        for name, since in list(site.stale.items()):
            if covers(scope, Scope(folders=frozenset((name,)))):
                site.worst = max(site.worst, now - since)
                del site.stale[name]


class Resource:
    """One S3AggregatedRefresh with these shares, in an operator that never fails."""

    def __init__(self, load: "Load", name: str, shares: list[Share]) -> None:
        self.key = Key("S3AggregatedRefresh", "ns", name)
        self.shares = {share.id: share for share in shares}
        self.inbox: list[Message] = []
        self.results: list[Result] = []
        self.running: set[str] = set()
        self.wake = 0.0
        self._load = load
        self._tracker = TargetTracker()
        self._stored = [resource.encode_target(TargetState(share.id), "Clean") for share in shares]
        self._passes = itertools.count(1)

    def run_pass(self, now: float) -> None:
        """A pass, as in controller.py."""
        load, options = self._load, self._load.options
        wall = EPOCH + now
        targets = tuple(resource.decode_target(_as_stored(one), wall) for one in self._stored)
        messages, results = tuple(self.inbox), tuple(self.results)
        busy = busy_of(targets, self.shares, options.assume_after, wall)
        snapshot = PlanInput(
            targets=targets,
            first=False,
            discovery=Discovery(complete=True, shares=tuple(self.shares.values())),
            filter=Filter(),
            options=options,
            owner="me",
            pass_id=f"{self.key.name}-{next(self._passes)}",
            now=wall,
            messages=messages,
            results=results,
            running=frozenset(self.running),
            times=self._tracker.times(targets, now),
            free=load.limiter.free(
                self.key, {GATEWAY: 1 - busy.get(GATEWAY, 0)}, now, assume_after=options.assume_after
            ),
            rivals=load.limiter.rivals(self.key, [GATEWAY]),
            jitter=0.5,
        )
        made = plan(snapshot)
        self._tracker.update(targets, now)
        calls = calls_of(made.targets, self.shares, options.assume_after, wall, now)
        waiting = waiting_of(made, self.shares, wall)
        wanting = wanting_of(made.targets, self.shares)
        demand = Demand(calls, waiting, wanting)
        load.limiter.note(self.key, demand, now, lambda: load.soon(self, load.now))
        self._stored = [resource.encode_target(target, made.phases[target.id]) for target in made.targets]
        load.limiter.recorded(self.key)
        self.inbox, self.results = [], []
        self.running -= {result.claim_id for result in results}
        self._tracker.record_events(made.matches.found, now)
        self._tracker.update(made.targets, now + PATCH)
        for share, claim in made.calls:
            self.running.add(claim.id)
            load.at(now + PATCH, self._call, share, claim)
        delays = [max(made.wake - wall, 0.02)] if made.wake else []
        delays += [LOOK] if waiting else []
        load.soon(self, now + min(delays, default=600.0))

    def _call(self, now: float, share: Share, claim: Claim) -> None:
        load = self._load
        code, ends = load.gateway.call(load.gateway.sites[share.id], claim, now)
        done = Result(share.id, claim.id, "" if code else claim.id, code, code and "no", refused=code == BAD)
        load.at(now + ANSWER, self._answer, done)
        if load.options.tracked and not code:
            load.at(ends + ANSWER, self._end, Completion(claim.id, share.arn))

    def _answer(self, now: float, result: Result) -> None:
        self.results.append(result)
        self._load.soon(self, now)

    def _end(self, now: float, completion: Completion) -> None:
        self.inbox.append(Message(self._load.number(), completions=(completion,)))
        self._load.soon(self, now)


def _as_stored(status: TargetStatus) -> TargetStatus:
    return msgspec.json.decode(msgspec.json.encode(status), type=TargetStatus)


class Load:
    """Shares at one gateway, each of a resource of its own unless `together`."""

    def __init__(
        self,
        shares: int,
        options: DebounceOptions,
        takes: Callable[[Scope], float],
        *,
        together: bool = True,
        refuses: Iterable[str] = (),
    ) -> None:
        self.now = 0.0
        self.options = options
        self.limiter = ConcurrencyLimiter()
        self.gateway = Gateway(takes, refuses)
        self._todo: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._numbers = itertools.count(1)
        every = [Share(f"s{n}", f"arn:s{n}", f"b{n}", group=GATEWAY) for n in range(shares)]
        for share in every:
            self.gateway.sites[share.id] = Site(share)
        groups = [every] if together else [[share] for share in every]
        self.resources = [Resource(self, f"r{n}", some) for n, some in enumerate(groups)]

    def number(self) -> int:
        """Ask for a pass, after a message or another input."""
        return next(self._numbers)

    def at(self, when: float, do: Callable[..., None], *what: object) -> None:
        """Schedule an action."""
        heapq.heappush(self._todo, (when, self.number(), do, what))

    def soon(self, resource: Resource, when: float) -> None:
        """Schedule a pass, unless an earlier one is scheduled."""
        if not self.now < resource.wake <= when:
            resource.wake = when
            self.at(when, self._pass, resource)

    def _pass(self, now: float, resource: Resource) -> None:
        if resource.wake == now:
            resource.wake = 0.0
            resource.run_pass(now)

    def put(self, now: float, share: str, keys: Iterable[str]) -> None:
        """Objects change, one message each."""
        site = self.gateway.sites[share]
        resource = next(one for one in self.resources if share in one.shares)
        events = [self.gateway.change(site, key, now) for key in keys]
        resource.inbox += [Message(self.number(), (event,)) for event in events]
        self.soon(resource, now)

    @property
    def sites(self) -> list[Site]:
        """The state of each share."""
        return list(self.gateway.sites.values())

    def oldest(self) -> float:
        """The longest time for which any folder was, or is, stale."""
        stale = (self.now - since for site in self.sites for since in site.stale.values())
        return max(*(site.worst for site in self.sites), *stale, 0.0)

    def run(self, until: float) -> None:
        """Run everything that is scheduled until this time."""
        while self._todo and self._todo[0][0] <= until:
            self.now, _, do, what = heapq.heappop(self._todo)
            do(self.now, *what)
        self.now = until


def every(
    load: Load, seconds: float, share: str, keys: Callable[[int], list[str]], until: float, begin: float = 0.0
) -> None:
    """Let these objects change every `seconds`."""
    for turn in range(int((until - begin) / seconds)):
        load.at(begin + turn * seconds, load.put, share, keys(turn))
