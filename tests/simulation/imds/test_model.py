"""Whatever EC2, nodes, people and the operator's own end do: a change reaches nothing outside a canary before
it has stood there, and all is right in the end, or it is told what is not. The judge is in judge.py."""

import re
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, settings

from simulation.imds.histories import History
from simulation.imds.truth import Asked, groups_of, winners
from simulation.imds.world import World
from testing.examples import examples

HOURS = 3_600.0
LONGEST = 6 * HOURS  # a canary of each set of changes of each group, and the longest backoff
NAMED = re.compile(r"\b(i-[0-9a-f]{8}|n\d+)\b")


class Machine(History):
    """The random histories, with the expected end state."""

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.calm()
            self.tells()
            self.converges()
        finally:
            self.world.close()

    def tells(self) -> None:
        """Something may still kill, and Pods may not reach what they should: then it says so, and stops."""
        self.world.run(LONGEST, until=self.settled)
        for asked in self.world.cluster.asked():
            status = self.world.cluster.status(asked.name)
            held = {(one.instance, one.field) for one in status.exceptions if one.reason == "HopLimitTooLow"}
            wrong = [
                one for one in self.wrong(asked) if not (self.too_low(asked, *one) and _field(one) in held)
            ]
            # While the endpoint may answer over IPv6, nothing is proved, and a canary waits.
            waits = asked.expect == "PodBlocked" and world_has(self.world, "HttpProtocolIpv6", "enabled")
            nodes = {self.world.ec2.instances[name].node for name, *_ in wrong}
            ready = any(self.world.cluster.ready[node][-1][1] for node in nodes)
            if asked.enforces and wrong and not waits:
                stopped = next(one for one in status.conditions if one.type == "Enforcing")
                # Where no Node is Ready, none can be a canary, and it waits.
                assert stopped.status == "False" or not ready, (asked.name, stopped, wrong)
                told = NAMED.search(stopped.message) or stopped.reason == "DriftTooWide"
                assert told, (asked.name, stopped)

    def converges(self) -> None:
        """Nothing kills any more, people resume what has stopped, and give up on what Pods should see."""
        world = self.world
        world.heal()
        for number in range(6):
            for asked in world.cluster.asked():
                if number > 1 and asked.verification and not self.rests(asked):
                    world.apply(asked.name, verification={})
                if number > 1 and asked.safety("maxDriftPercent", 100) < 100 and not self.rests(asked):
                    world.apply(asked.name, safety={**asked.spec["safety"], "maxDriftPercent": 100})
                world.resume(asked.name)
            world.run(LONGEST / 3, until=self.settled)
        left = {
            asked.name: (list(self.wrong(asked)), world.ready(asked.name)) for asked in world.cluster.asked()
        }
        assert self.settled(), left
        world.run(HOURS)
        sent = len(world.judge.sends)
        passes = world.run(HOURS)
        assert len(world.judge.sends) == sent, "it changes something though nothing differs"
        assert max(passes.values(), default=0) <= 40, (
            f"it looks again and again though nothing is due: {passes}"
        )

    def settled(self) -> bool:
        world = self.world
        pending = (world.instance_of(node).pending(world.clock.now) for node in world.cluster.nodes)
        return not any(pending) and all(map(self.rests, world.cluster.asked()))

    def rests(self, asked: Asked) -> bool:
        status = self.world.cluster.status(asked.name)
        under_way = status.canary is not None and status.canary.phase in ("Changing", "Soaking")
        return not asked.enforces or not (under_way or status.breaker or any(self.wrong(asked)))

    def too_low(self, asked: Asked, instance: str, name: str, value: object) -> bool:
        """Whether a probe has measured that Pods of the group need a higher hop limit: it is not set."""
        world, group = self.world, self.world.judge.group(self.world.ec2.instances[instance])
        needed = [
            world.cluster.measured[node][-1].needed
            for node, labels in world.cluster.labels.items()
            if world.cluster.measured[node] and group in (groups_of(labels, world.instance_of(node).asg))
        ]
        expects = asked.verification.get("probe") and asked.verification.get("expect") == "PodReachable"
        return bool(expects) and name == "HttpPutResponseHopLimit" and max(needed, default=0) > value

    def wrong(self, asked: Asked) -> Iterator[tuple[str, str, object]]:
        """Options that the policy wins and may set, and that still differ."""
        world = self.world
        for node in world.cluster.nodes.values():
            one = world.instance_of(node.name)
            wins = winners(world.cluster.asked(), node.labels, groups_of(node.labels, one.asg))
            for name, (winner, value) in wins.items():
                had = one.last.options[name]
                if winner.name == asked.name and had != value and asked.allows(name, had, value):
                    yield one.name, name, value


def world_has(world: World, name: str, value: object) -> bool:
    """Whether an instance has the option."""
    return any(one.last.options[name] == value for one in world.ec2.instances.values())


def _field(wrong: tuple[str, str, object]) -> tuple[str, str]:
    """As an exception in status has it."""
    instance, name, _ = wrong
    return instance, name[0].lower() + name[1:]


TestEnforce = Machine.TestCase
# Failing cases are told as they were found: to shrink them takes minutes.
TestEnforce.settings = settings(
    max_examples=examples(100, quick_percent=3),
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
