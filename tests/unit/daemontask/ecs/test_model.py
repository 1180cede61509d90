"""Random histories of a cluster whose events are lost, repeated, late and reordered, on virtual time.

Promises: desiredCount is the number of container instances one resync after the last change, and a minute
where more than half of them are gone; no look that an event asks for takes more than three calls; agents that
connect and tasks that start cost nothing, not even where the service may not run; no single answer takes more
than half of the desired count away.
"""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caretaker.daemontask.ecs.check import PendingDecrease, ServiceState
from caretaker.daemontask.ecs.instances import Instances, Notice
from caretaker.daemontask.ecs.plan import CONFIRM_SECONDS, backoff, plan
from caretaker.daemontask.ecs.snapshot import ClusterState
from testing.examples import examples
from unit.daemontask.ecs.build import CLOCK, INSTANCE, Account, snapshot, spec

RESYNC = 300.0
STEPS = (
    *("join", "leave", "drain", "undrain", "flap", "wait", "throttle", "restart"),
    *("join_elsewhere", "flap_elsewhere", "crash", "blink"),
)


class World:
    """One operator, one cluster. What happens in the cluster makes events, of which some arrive."""

    def __init__(self, counts: str, chance: random.Random, *, lossy: bool = True) -> None:
        self.spec = spec("prod", count_instances=counts)
        self.account = Account()
        self.clock = CLOCK
        self.looks: list[tuple[int, bool]] = []  # calls of each, whether it was an event's
        self._lossy = lossy
        self._chance = chance
        self._versions: dict[str, int] = {}
        self._late: list[Notice] = []
        self._throttled = 0
        self._stale = False
        self._dropped = 0.0  # when more than half were found to be gone first
        self.taken: list[
            tuple[int, int, float]
        ] = []  # desired counts before and after, seconds since the drop
        self.restart()

    def restart(self) -> None:
        self.known = ClusterState()
        self.instances = Instances(self.spec.count_instances)

    # ------------------------------------------------------------ the cluster

    def join(self) -> None:
        name = f"{INSTANCE}/prod/{len(self._versions)}"
        self.account.active.add(name)
        self._tell(name, "ACTIVE")

    def leave(self) -> None:
        if name := self._any(self.account.active | self.account.draining):
            self.account.active.discard(name)
            self.account.draining.discard(name)
            self._tell(name, "INACTIVE")

    def drain(self) -> None:
        if name := self._any(self.account.active):
            self.account.active.discard(name)
            self.account.draining.add(name)
            self._tell(name, "DRAINING")

    def undrain(self) -> None:
        if name := self._any(self.account.draining):
            self.account.draining.discard(name)
            self.account.active.add(name)
            self._tell(name, "ACTIVE")

    def flap(self) -> None:
        if name := self._any(self.account.active):
            self._tell(name, "ACTIVE")

    def join_elsewhere(self) -> None:
        name = f"{INSTANCE}/prod/{len(self._versions)}"
        self.account.elsewhere.add(name)
        self._tell(name, "ACTIVE")

    def flap_elsewhere(self) -> None:
        if name := self._any(self.account.elsewhere):
            self._tell(name, "ACTIVE")

    def crash(self) -> None:
        """All but a few leave at once."""
        while len(self.account.active) > 2:
            self.leave()

    def blink(self) -> None:
        """The next answer of a look has no container instances at all."""
        self._stale = True

    def _any(self, names: set[str]) -> str:
        return self._chance.choice(sorted(names)) if names else ""

    def _tell(self, name: str, status: str) -> None:
        self._versions[name] = version = self._versions.get(name, 0) + 1
        notice = Notice("eu-west-1", "prod", name, status, version)
        if not self._lossy:
            self.hear(notice)
            return
        for _ in range(self._chance.choice((0, 1, 1, 1, 2))):
            if self._chance.random() < 0.3:
                self._late.append(notice)
            else:
                self.hear(notice)

    # ----------------------------------------------------------- the operator

    def hear(self, notice: Notice) -> None:
        if self.instances.changed(notice):
            self.known = msgspec.structs.replace(self.known, dirty=self.known.dirty or self.clock)

    def wait(self, seconds: float = 0.0) -> None:
        """Time passes; what is late arrives in any order."""
        end = self.clock + (seconds or self._chance.choice((0.3, 2.0, 40.0, 400.0)))
        self._chance.shuffle(self._late)
        while self._late and self._chance.random() < 0.7:
            self.hear(self._late.pop())
        while True:
            made = plan(msgspec.structs.replace(snapshot(self.spec, {"prod": self.known}), clock=self.clock))
            if made.checks:
                self._look()
            elif made.wake is not None and made.wake <= end:
                self.clock = made.wake
            else:
                break
        self.clock = end

    def throttle(self) -> None:
        self._throttled = self._chance.randrange(1, 4)

    def _look(self) -> None:
        since, before = self.known.dirty, len(self.account.calls)
        self.known = msgspec.structs.replace(self.known, dirty=0.0, checked=self.clock)
        if self._throttled:
            self._throttled -= 1
            failures = self.known.failures + 1
            retry = self.clock + backoff(failures, transient=True)
            self.known = msgspec.structs.replace(self.known, failures=failures, retry=retry, dirty=since)
            return
        self.instances.begin()
        service = self._seen(learn=not since and not self.instances.complete)
        if service.arns is not None:
            self.instances.learn(service.arns, service.counts)
        if service.was is not None:
            drop = self.known.service.decrease if self.known.service is not None else None
            self.taken.append((service.was, service.desired or 0, self.clock - self._dropped if drop else 0))
        confirm = 0.0
        if service.decrease is not None:
            confirm = self.clock + CONFIRM_SECONDS if service.decrease.new else self.known.confirm
            self._dropped = confirm - CONFIRM_SECONDS
        self.known = msgspec.structs.replace(
            self.known, service=service, failures=0, retry=0.0, confirm=confirm
        )
        self.looks.append((len(self.account.calls) - before, bool(since)))

    def _seen(self, *, learn: bool) -> ServiceState:
        drop = self.known.service.decrease if self.known.service is not None else None
        there = self.account
        real = there.active, there.draining, there.elsewhere
        if self._stale:
            there.active, there.draining, there.elsewhere = set(), set(), set()
        found = there.look(
            counts=self.spec.count_instances,
            learn=learn,
            max_decrease_percent=self.spec.max_decrease_percent,
            decrease=PendingDecrease(drop.counted, old=self.clock >= self.known.confirm)
            if drop is not None
            else None,
        )
        there.active, there.draining, there.elsewhere = real
        self._stale = False
        return found

    @property
    def counted(self) -> int:
        more = self.account.draining | self.account.elsewhere
        return len(self.account.active) + (len(more) if self.spec.count_instances == "Registered" else 0)

    @property
    def desired(self) -> int:
        assert self.account.service is not None
        return int(self.account.service["desiredCount"])


@settings(max_examples=examples(600), deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=60),
    counts=st.sampled_from(("Registered", "Active")),
    seed=st.integers(0, 2**32),
)
def test_any_history_converges_within_a_resync(steps: list[str], counts: str, seed: int) -> None:
    world = World(counts, random.Random(seed))
    for step in steps:
        getattr(world, step)()
    # The last backoff; a minute until what is gone is confirmed, and another one where less was gone at
    # first. An answer that is out of date may hide a change for one resync more.
    world.wait((2 if "blink" in steps else 1) * RESYNC + 2 * CONFIRM_SECONDS + 20)
    assert world.desired == world.counted
    for before, after, seconds in world.taken:
        assert before - after <= max(before // 2, 1) or seconds >= CONFIRM_SECONDS
    assert all(calls <= 3 for calls, by_event in world.looks if by_event)


@settings(max_examples=examples(300), deadline=None)
@given(
    steps=st.lists(st.sampled_from(("join", "leave", "drain", "undrain", "flap")), max_size=40),
    counts=st.sampled_from(("Registered", "Active")),
    seed=st.integers(0, 2**32),
)
def test_without_losses_a_change_is_followed_after_the_merging(
    steps: list[str], counts: str, seed: int
) -> None:
    world = World(counts, random.Random(seed), lossy=False)
    world.wait(1)
    for step in steps:
        getattr(world, step)()
        world.wait(1.5)
        assert world.desired == world.counted


@pytest.mark.parametrize("counts", ["Registered", "Active"])
def test_a_storm_of_agents_that_flap_costs_nothing(counts: str) -> None:
    world = World(counts, random.Random(1), lossy=False)
    for _ in range(50):
        world.join()
        world.join_elsewhere()
    world.wait(40)
    before = len(world.account.calls)
    for _ in range(1000):
        world.flap()
        world.flap_elsewhere()
        world.wait(0.01)
    assert world.account.calls[before:] == []


def test_a_storm_of_changes_is_one_look_a_second() -> None:
    world = World("Registered", random.Random(1), lossy=False)
    world.wait(1)
    before = len(world.looks)
    for _ in range(100):
        world.join()
        world.wait(0.05)
    world.wait(2)
    assert world.desired == 100
    assert len(world.looks) - before <= 6, "five seconds of changes"
