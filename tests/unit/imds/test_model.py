"""Whatever EC2, other hands and the operator's own end do: changes are sent as they should be, and all is
right in the end. The judge is in enforceworld.py."""

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from testing.examples import examples
from unit.imds.enforceworld import PER_MINUTE, World

WHO = st.sampled_from(["hops", "tokens"])
LONGEST = 4 * 3600.0  # seconds: two backoffs of the longest, an hour left alone, a canary's clock set back


class Machine(RuleBasedStateMachine):
    """Two policies, each with an option of its own."""

    @initialize(
        canary=st.integers(0, 2),
        allowed=st.sampled_from([(), ("HopLimit",)]),
        mode=st.sampled_from(["Enforce", "Enforce", "Audit"]),
        nodes=st.integers(1, 5),
    )
    def start(self, canary: int, allowed: tuple[str, ...], mode: str, nodes: int) -> None:
        self.world = World(canary=canary, nodes=nodes)
        self.allowed = bool(allowed)
        safety: dict[str, Any] = {
            "allowLoosening": allowed,
            "allowTightening": ["HopLimit", "Tokens"],
            "canary": {"instances": canary, "soak": "1m"},
            "maxChangesPerMinute": PER_MINUTE,
            "stopAfterConsecutiveFailures": 3,
        }
        shared = {"safety": safety, "pendingTimeout": "1m", "resyncInterval": "10m"}
        self.hops = 2
        self.world.apply("hops", mode=mode, options={"httpPutResponseHopLimit": 2}, **shared)
        self.world.apply("tokens", mode="Enforce", options={"httpTokens": "required"}, **shared)

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 61.0, 130.0]))
    def work(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(who=WHO)
    def run_pass(self, who: str) -> None:
        self.world.run_pass(who)

    @rule(faults=st.lists(st.sampled_from(["refuse", "throttle", "deny", "lose", "drop"]), max_size=4))
    def ec2_fails(self, faults: list[str]) -> None:
        self.world.faults = faults

    @rule(count=st.integers(1, 3))
    def ec2_is_away(self, count: int) -> None:
        self.world.blind = count

    @rule(seconds=st.sampled_from([0.0, 5.0, 90.0, 1e9]))
    def changes_take(self, seconds: float) -> None:
        self.world.applies_in = seconds

    @rule(data=st.data(), hops=st.integers(1, 3), tokens=st.sampled_from(["optional", "required"]))
    def another_hand(self, data: Any, hops: int, tokens: str) -> None:
        one = data.draw(st.sampled_from(sorted(self.world.instances)))
        self.world.set_back(self.world.instances[one], HttpPutResponseHopLimit=hops, HttpTokens=tokens)

    @precondition(lambda self: len(self.world.instances) < 8)
    @rule()
    def join(self) -> None:
        self.world.add_node()

    @precondition(lambda self: self.world.nodes)
    @rule(data=st.data(), ends=st.booleans(), leaves=st.booleans())
    def ends(self, data: Any, ends: bool, leaves: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        if ends:
            self.world.instance_of(self.world.nodes[name]).state = "terminated"
        if leaves:
            self.world.remove_node(name)

    @precondition(lambda self: self.world.nodes)
    @rule(data=st.data(), ready=st.booleans())
    def readiness(self, data: Any, ready: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        self.world.put_node(msgspec.structs.replace(self.world.nodes[name], ready=ready))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(calls=st.integers(0, 2), effect=st.booleans())
    def is_killed_at_a_call(self, calls: int, effect: bool) -> None:
        self.world.kill_in, self.world.effect = calls, effect

    @rule()
    def status_conflict(self) -> None:
        self.world.conflict = True

    @rule(skew=st.sampled_from([-3_600.0, 0.0, 3_600.0]))
    def clock_jumps(self, skew: float) -> None:
        self.world.skew = skew

    @rule(who=WHO)
    def resume(self, who: str) -> None:
        self.world.resume(who)

    @rule(hops=st.integers(2, 3))
    def edit(self, hops: int) -> None:
        self.hops = hops
        self.world.apply("hops", options={"httpPutResponseHopLimit": hops})

    @rule(who=WHO, mode=st.sampled_from(["Audit", "Enforce"]))
    def switch(self, who: str, mode: str) -> None:
        self.world.apply(who, mode=mode)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.converges()
        finally:
            self.world.close()

    def converges(self) -> None:
        world = self.world
        world.calm()
        for name in world.policies:
            world.apply(name, mode="Enforce")
        for _ in range(3):  # a breaker may open once more, by what was before
            world.run(LONGEST / 3, until=self.settled)
            for name in world.policies:
                world.resume(name)
        assert self.settled(), {name: world.status(name).conditions for name in world.policies}
        world.run(3_600.0)
        sent = len(world.sends)
        passes = world.run(3_600.0)
        assert len(world.sends) == sent, "it changes something though nothing differs"
        assert max(passes.values()) <= 10, "it looks again and again though nothing is due"

    def settled(self) -> bool:
        world = self.world
        for node in world.nodes.values():
            one = world.instance_of(node)
            right = self.allowed is False or one.options["HttpPutResponseHopLimit"] == self.hops
            if world.pending(one) or one.options["HttpTokens"] != "required" or not right:
                return False
        expected = ("Enforced",) if self.allowed else ("Enforced", "LooseningNotAllowed")
        if all(world.instance_of(node).state == "terminated" for node in world.nodes.values()):
            expected = ("NoMatchingNodes",)
        return all(world.ready(name) in expected for name in world.policies)


TestEnforce = Machine.TestCase
# Failing cases are told as they were found: to shrink them takes minutes.
TestEnforce.settings = settings(
    max_examples=examples(80), stateful_step_count=30, deadline=None, phases=[Phase.reuse, Phase.generate]
)
