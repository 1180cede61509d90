"""No event is lost and each is refreshed in time, whatever two operators, the queue and the gateway do."""

import math
from typing import Any, Literal

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from caretaker.s3refresh.debounce import CALL_SECONDS
from caretaker.s3refresh.options import DebounceOptions
from simulation.s3refresh.world import Call, Operator, World, under_load, until
from testing.examples import examples

DEEP = "e/" * 30 + "6"
ODD = ["a/../7", "c//8", "ü +%/9"]
KEYS = st.sampled_from(["a/1", "a/b/2", "c/3", "4", "a/b/d/5", DEEP, *ODD])
WHO = st.integers(0, 1)
CALM = 5_000.0  # seconds: maxDelay, the longest backoff, a claim that is lost, an end that is not heard of
LOAD = 90  # events, one every 10 s


class Machine(RuleBasedStateMachine):
    """See world.py."""

    kind: Literal["gateway", "http", "job"] = "gateway"
    intervals = st.just(60.0)

    @initialize(
        quiet=st.sampled_from([0.0, 30.0]),
        most=st.sampled_from([1, 50]),
        tracked=st.booleans(),
        skew=st.sampled_from([0.0, -40.0, 250.0]),
        data=st.data(),
    )
    def start(self, quiet: float, most: int, tracked: bool, skew: float, data: Any) -> None:
        options = DebounceOptions(
            quiet_period=quiet,
            max_delay=120.0,
            min_interval=data.draw(self.intervals),
            max_folders=most,
            tracked=tracked or self.kind == "job",
            assume_after=math.inf if self.kind == "job" else 60.0,
            completion_timeout=math.inf if self.kind == "job" else 600.0,
            retry_max=120.0,
        )
        self.world = World(options, self.kind)
        self.orphans: list[Call] = []
        self.operators = [Operator(self.world, "one", 0.0), Operator(self.world, "two", skew)]

    @rule(key=KEYS)
    def put(self, key: str) -> None:
        self.world.put(key)

    @rule(folder=st.sampled_from(["", "a", "a/b", "c"]), by_hand=st.booleans())
    def ask(self, folder: str, by_hand: bool) -> None:
        self.world.ask(folder, by_hand=by_hand)

    @precondition(lambda self: self.world.queue)
    @rule(who=WHO, data=st.data())
    def receive(self, who: int, data: Any) -> None:
        self.operators[who].receive(data.draw(st.sampled_from(sorted(self.world.queue))))

    @rule(who=WHO)
    def begin(self, who: int) -> None:
        self.operators[who].begin()

    @rule(who=WHO, dies=st.booleans())
    def finish(self, who: int, dies: bool) -> None:
        self.operators[who].finish(dies=dies)

    @rule(who=WHO)
    def whole_pass(self, who: int) -> None:
        self.operators[who].begin()
        self.operators[who].finish()

    @rule(who=WHO, key=KEYS)
    def deliver(self, who: int, key: str) -> None:
        self.world.put(key)
        self.operators[who].receive(max(self.world.queue))
        self.whole_pass(who)

    @rule(who=WHO, seconds=st.sampled_from([31.0, 61.0, 125.0]))
    def become_due(self, who: int, seconds: float) -> None:
        self.wait(seconds)
        self.whole_pass(who)

    @precondition(lambda self: any(operator.calls for operator in self.operators))
    @rule()
    def take_effect(self) -> None:
        """Before its answer, which may be lost."""
        for call in (call for operator in self.operators for call in operator.calls):
            if not call.effect:
                self.world.take_effect(call)
                return

    @precondition(lambda self: self.world.ends())
    @rule(data=st.data())
    def lose_an_end(self, data: Any) -> None:
        """For example, the rule that sends it was deleted."""
        del self.world.queue[data.draw(st.sampled_from(self.world.ends()))]

    @precondition(lambda self: any(operator.calls for operator in self.operators))
    @rule(
        outcome=st.sampled_from(["accepted", "unnamed", "refused", "unknown", "unmade"]),
        late=st.sampled_from([0.0, 9.0]),
    )
    def call_ends(self, outcome: str, late: float) -> None:
        operator = next(operator for operator in self.operators if operator.calls)
        self.world.now += late
        operator.answer(operator.calls[0], outcome)

    @rule(who=WHO, effect=st.booleans())
    def crash(self, who: int, effect: bool) -> None:
        for call in self.operators[who].calls:
            if not call.effect:
                self.orphans.append(call)
        self.operators[who].crash()
        if effect:
            self.effect_of_a_dead_process()

    @precondition(lambda self: self.orphans)
    @rule(late=st.sampled_from([0.0, 9.0]))
    def effect_of_a_dead_process(self, late: float = 0.0) -> None:
        """What it has sent is under way for some seconds more."""
        self.world.now += late
        orphans, self.orphans = self.orphans, []
        for call in orphans:
            if self.world.now <= call.begun + CALL_SECONDS:
                self.world.take_effect(call)

    @precondition(lambda self: self.world.running())
    @rule(data=st.data(), succeeded=st.booleans())
    def job_ends(self, data: Any, succeeded: bool) -> None:
        """Perhaps before its creation was answered."""
        self.world.end_job(data.draw(st.sampled_from(self.world.running())), succeeded=succeeded)

    @rule(seconds=st.sampled_from([1.0, 29.0, 31.0, 61.0, 125.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        for operator in self.operators:
            for call in [call for call in operator.calls if self.world.now > call.begun + 10]:
                operator.answer(call, "unknown")  # its client has given up long ago

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "world"):
            assert self.world.lost() == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        one, two = self.operators
        two.crash()
        assert until(self.world, one, self.world.all_fresh, CALM), "not refreshed in time"
        assert until(self.world, one, lambda: not self.world.queue, CALM), "messages are left"
        assert until(self.world, one, self.requests_are_done, CALM), "a request is not done"
        calls, waiting = len(self.world.calls), self.world.waiting()
        until(self.world, one, lambda: False, 1_000, step=20)
        assert len(self.world.calls) <= calls + max(waiting, 2), "it refreshes though nothing happened"
        self.world.put("")  # the duration of a refresh of everything is known from here on
        until(self.world, one, lambda: False, 600, step=20)
        self.refreshed_under_load(one)

    def requests_are_done(self) -> bool:
        return self.world.requests is None or bool(self.world.requests.done_at)

    def refreshed_under_load(self, one: Operator) -> None:
        """While more folders keep changing than the calls can hold, each is refreshed in time."""
        options = self.world.options
        longest = (
            max(options.max_delay, options.min_interval) + options.min_interval + 2 * options.assume_after
        )
        many = [f"a/{n}/x" if n % 3 else DEEP if n % 2 else f"{n}/x" for n in range(LOAD)]
        oldest = max(under_load(self.world, one, ["a/b/2", *many]))
        assert oldest <= longest, f"stale for {oldest:.0f} s"


class HttpMachine(Machine):
    """A service that knows a call by its claim's id."""

    kind = "http"
    intervals = st.sampled_from([0.0, 60.0])


class JobMachine(HttpMachine):
    """Jobs, which may fail after they were accepted."""

    kind = "job"


Machine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
HttpMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40, deadline=None)
JobMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40, deadline=None)
TestModel = Machine.TestCase
TestHttpModel = HttpMachine.TestCase
TestJobModel = JobMachine.TestCase
