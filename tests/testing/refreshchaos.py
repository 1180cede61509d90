"""Random things that happen to operators, SQS, the gateway and the API server while S3 events come.

Inputs: a place with two replicas, its resources and shares; a seed. The choice of what happens follows from
the seed alone; how it interleaves with the operators is the machine's. Every fault ends by itself or with
`end()`, which leaves a world in which all can be refreshed.
"""

import asyncio
import dataclasses
import math
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import aiohttp

from awsdoubles.sqsproxy import rules as sqs
from testbed.admin import ApiError, Json
from testing import faults as api
from testing.refreshing import Refresh
from testing.refreshplace import Place, Replica
from testing.stepkills import POINTS, Kill, arm
from testing.witness import PLURAL, STATUS_WRITES

SHORT: Final = 0.5  # seconds that no Lease is lost in
SPELLS: Final = (SHORT, SHORT, 2.0, 5.0)  # seconds
DISTURB_EVERY: Final = 10.0  # seconds between two events that may end a leadership
ARMED_SECONDS: Final = 30.0  # a kill waits so long for its point before another one takes its place
MOST_PENDING: Final = 6  # faults that wait for a call
PAUSES: Final = (0.1, 0.5, 1.0)

DELETE, RECEIVE, AGAIN = "DeleteMessageBatch", "ReceiveMessage", "ChangeMessageVisibilityBatch"
SQS_FAULTS: Final[tuple[tuple[sqs.Match, sqs.Action], ...]] = (
    (sqs.Match(DELETE, chance=0.5), sqs.NotDeleted()),
    (sqs.Match(DELETE, chance=0.5), sqs.StaleSucceeds()),
    (sqs.Match(DELETE, chance=0.5), sqs.LoseReply()),
    (sqs.Match(DELETE), sqs.FailEntries(3)),
    (sqs.Match(DELETE), sqs.Slow(1.0)),
    (sqs.Match(AGAIN), sqs.LoseReply()),
    (sqs.Match(RECEIVE), sqs.Duplicate()),
    (sqs.Match(RECEIVE), sqs.Duplicate(2, at_once=True)),
    (sqs.Match(RECEIVE), sqs.Reorder(5)),
    (sqs.Match(RECEIVE, chance=0.3), sqs.LoseReply()),
    (sqs.Match(RECEIVE), sqs.EmptyReceive()),
    (sqs.Match(RECEIVE, chance=0.5), sqs.Slow(1.0)),
    (sqs.Match(chance=0.5), sqs.Fail()),
    (sqs.Match(chance=0.3), sqs.Fail(500, "InternalError")),
)
GATEWAY_FAULTS: Final[tuple[dict[str, Any], ...]] = (
    {"action": "refuse"},
    {"action": "refuse", "count": 4},
    {"action": "refuse", "status": 500, "code": "InternalServerError"},
    {"action": "refuse", "status": 400, "code": "ThrottlingException"},
    {"action": "refuse", "operation": "ListFileShares", "count": 2},
    {"action": "refuse", "operation": "DescribeNFSFileShares", "count": 2},
    {"action": "delay", "seconds": 0.5},
    {"action": "delay", "seconds": 4.0},  # longer than the operator waits
    {"action": "lose_reply"},
    {"action": "lose_reply", "count": 2},
    {"action": "early_completion"},
    {"action": "no_completion"},
    {"action": "duplicate_completion"},
    {"action": "slow_refresh", "seconds": 3.0},
    {"action": "slow_refresh", "seconds": 20.0},
)
READS: Final = api.Match(verb="get", resource=PLURAL)
API_FAULTS: Final[tuple[tuple[api.Match, api.Action], ...]] = (
    (STATUS_WRITES, api.LoseReply()),
    (STATUS_WRITES, api.Reset()),
    (STATUS_WRITES, api.Answer(500, "InternalError")),
    (STATUS_WRITES, api.Answer(409, "Conflict")),
    (STATUS_WRITES, api.Answer(429, "TooManyRequests", retry_after=1)),
    (STATUS_WRITES, api.Delay(before_seconds=3.0)),  # executed when the operator has given up
    (STATUS_WRITES, api.Delay(after_seconds=0.7)),
    (READS, api.Delay(after_seconds=0.7)),
    (READS, api.Reset()),
)

Act = Callable[[], Awaitable[str | None]]
Undo = Callable[[], Awaitable[object]]


class RefreshChaos:
    """One thing after the other, until the time is over."""

    def __init__(self, place: Place, resources: list[Refresh], shares: list[str], seed: int) -> None:
        self.happened: list[str] = []
        self._place = place
        self._resources = resources
        self._shares = shares
        self._random = random.Random(seed)
        self._struck = 0  # kills by hand
        self._kills: list[Kill] = []  # armed, now or before
        self._undos: list[tuple[float, Undo]] = []  # when what is to be taken back
        self._sqs_rules: list[sqs.Rule] = []
        self._api_rules: list[api.Rule] = []
        self._gateway_faults: list[Json] = []  # as they stood when the chaos ended
        self._began = self._disturbed = time.monotonic()
        self._acts: list[tuple[int, Act]] = [
            (12, self.arm_kill),
            (4, self.kill),
            (1, self.stop),
            (1, self.hang),
            (1, self.cut_off),
            (1, self.break_watches),
            (1, self.restart_api_server),
            (5, self.fail_api),
            (9, self.fail_sqs),
            (9, self.fail_gateway),
            (2, self.lose_share),
            (2, self.suspend),
        ]

    async def run(self, seconds: float) -> None:
        """Let things happen for so long."""
        until = self._began + seconds
        weights = [weight for weight, _ in self._acts]
        while time.monotonic() < until:
            ((_, act),) = self._random.choices(self._acts, weights)
            try:
                await self._undo(time.monotonic())
                what = await act()
            except (ApiError, aiohttp.ClientError) as error:  # the API server has just been restarted
                what = f"{act.__name__} failed: {error}"
            if what is not None:
                self._note(what)
            await asyncio.sleep(self._random.choice(PAUSES))
            self._one_strike()
            await self._revive()

    async def end(self) -> None:
        """Everything is mended, and both replicas run."""
        await self._undo(math.inf)
        self._gateway_faults = await asyncio.to_thread(self._place.control.faults)
        await asyncio.to_thread(self._place.control.clear_faults)
        for rule in self._api_rules:
            rule.remove()
        self._disarm()
        await self._revive()
        self._note("the chaos ends")

    def summary(self) -> str:
        """What was done."""
        applied: Counter[str] = Counter()
        for rule in self._sqs_rules:
            applied[f"sqs {type(rule.action).__name__}"] += rule.applied
        for fault in self._api_rules:
            applied[f"api {type(fault.action).__name__}"] += len(fault.hits)
        for told in self._gateway_faults:
            applied[f"gateway {told['action']}"] += told["used"]
        kills = self._struck + sum(kill.struck for kill in self._kills)
        shown = ", ".join(f"{name} {count}" for name, count in sorted(applied.items()) if count)
        return f"{kills} kills, {len(self.happened)} acts, {applied.total()} faults applied: {shown}"

    # ------------------------------------------------------------ operators

    async def arm_kill(self) -> str | None:
        """Of whoever comes to that point first; what is armed gets some time to be reached."""
        at, when = self._random.choice(POINTS)
        waiting = [kill for kill in self._kills if not kill.struck]
        fresh = any(time.monotonic() - kill.at < ARMED_SECONDS for kill in waiting)
        if fresh or not self._may_disturb():
            return None
        self._disarm()
        self._kills += [arm(replica, at, when) for replica in self._place.replicas]
        return f"who comes to it is to be killed {when} {at}"

    async def kill(self) -> str | None:
        replica = self._a_replica()
        if not self._may_disturb() or not replica.process.running:
            return None
        await asyncio.to_thread(replica.kill9)
        self._struck += 1
        return f"{replica.process.name} is killed"

    async def stop(self) -> str | None:
        """In order, as a rollout of the operator does."""
        replica = self._a_replica()
        if not self._may_disturb():
            return None
        self._send(replica, signal.SIGTERM)
        return f"{replica.process.name} is stopped"

    async def hang(self) -> str | None:
        replica, seconds = self._a_replica(), self._random.choice(SPELLS)
        if seconds > SHORT and not self._may_disturb():
            return None
        self._send(replica, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._send(replica, signal.SIGCONT)
        return f"{replica.process.name} stood still for {seconds:g} s"

    def _send(self, replica: Replica, number: signal.Signals) -> None:
        with replica.life:
            if replica.process.running:
                replica.process.signal(number)

    def _disarm(self) -> None:
        for kill in self._kills:
            kill.disarm()

    def _one_strike(self) -> None:
        """Every replica was armed, and one that is struck is enough."""
        struck = [kill.at for kill in self._kills[-len(self._place.replicas) :] if kill.struck]
        if struck:
            self._disarm()
            self._disturbed = max(self._disturbed, *struck)

    def _may_disturb(self) -> bool:
        """Whether leadership may end: where it does so all the time, no call is ever made."""
        now = time.monotonic()
        if now - self._disturbed < DISTURB_EVERY:
            return False
        self._disturbed = now
        return True

    # ------------------------------------------------------------ the API server

    async def cut_off(self) -> str | None:
        replica, seconds = self._a_replica(), self._random.choice(SPELLS)
        silent = self._random.random() < 0.5
        if seconds > SHORT and not self._may_disturb():
            return None
        with replica.api.partition(silent=silent):
            await asyncio.sleep(seconds)
        return f"{replica.process.name} was cut off for {seconds:g} s{', in silence' if silent else ''}"

    async def break_watches(self) -> str:
        replica = self._a_replica()
        how = self._random.choice((replica.api.cut_watches, replica.api.send_watch_error))
        count = await asyncio.to_thread(how)
        return f"{how.__name__}: {count} watches of {replica.process.name}"

    async def restart_api_server(self) -> str | None:
        hard = self._random.random() < 0.5
        if not self._may_disturb():
            return None
        await asyncio.to_thread(self._place.cluster.restart_apiserver, hard=hard)
        return f"the API server was {'killed' if hard else 'stopped'} and started"

    async def fail_api(self) -> str:
        replica, (match, action) = self._a_replica(), self._random.choice(API_FAULTS)
        times = self._random.randrange(1, 4)
        self._api_rules.append(replica.api.add(dataclasses.replace(match, times=times), action))
        return f"{times} times {action} on a {match.verb} of {replica.process.name}"

    # ------------------------------------------------------------ AWS

    async def fail_sqs(self) -> str:
        (match, action), seconds = self._random.choice(SQS_FAULTS), self._random.choice((2.0, 5.0, 10.0))
        rule = self._place.sqs.add(match, action)
        self._sqs_rules.append(rule)
        self._later(seconds, partial(asyncio.to_thread, rule.remove))
        return f"for {seconds:g} s {action} on {match.operation}, chance {match.chance:g}"

    async def fail_gateway(self) -> str | None:
        how = self._random.choice(GATEWAY_FAULTS)
        told = await asyncio.to_thread(self._place.control.faults)
        if sum(one["used"] < one["count"] for one in told) >= MOST_PENDING:
            return None
        await asyncio.to_thread(self._place.control.fault, **how)
        return f"the gateway: {how}"

    async def lose_share(self) -> str:
        share, seconds = self._random.choice(self._shares), self._random.choice(SPELLS)
        set_status = self._place.control.set_status
        await asyncio.to_thread(set_status, share, "UNAVAILABLE")
        self._later(seconds, partial(asyncio.to_thread, set_status, share, "AVAILABLE"))
        return f"{share} is UNAVAILABLE for {seconds:g} s"

    async def suspend(self) -> str:
        resource, seconds = self._random.choice(self._resources), self._random.choice(SPELLS)
        await resource.edit(suspend=True)
        self._later(seconds, partial(resource.edit, suspend=False))
        return f"{resource.name} is suspended for {seconds:g} s"

    # ------------------------------------------------------------ inside

    async def _revive(self) -> None:
        for replica in self._place.replicas:
            if await asyncio.to_thread(replica.revive):
                self._note(f"{replica.process.name} starts")

    def _later(self, seconds: float, undo: Undo) -> None:
        self._undos.append((time.monotonic() + seconds, undo))

    async def _undo(self, now: float) -> None:
        due = [one for one in self._undos if one[0] <= now]
        for one in due:
            await one[1]()
            self._undos.remove(one)

    def _a_replica(self) -> Replica:
        return self._random.choice(self._place.replicas)

    def _note(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {what}"
        self.happened.append(line)
        print(line, flush=True)
