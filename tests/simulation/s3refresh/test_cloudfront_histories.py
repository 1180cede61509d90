"""Histories of objects, crashes and faults of CloudFront: an invalidation follows each written object.

The planner, the target and the double's rules are the real ones; the record is written and read back in each
pass. The double's log of invalidations is the judge.
"""

import itertools
import math
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from awsdoubles import cloudfront as double
from awsdoubles.cloudfront import CloudFront, Fault, RefusedError, covered
from caretaker.api.objects import WireMeta
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.responses import classify
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.resource import RawRefresh, decode_target, encode_target, read
from caretaker.s3refresh.snapshot import Discovery, Message, PlanInput, Result
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.targets.cloudfront import Invalidations
from caretaker.s3refresh.timing import TargetTracker
from testing.examples import examples
from testing.s3refreshes import refresh

ID: Final = "EDFDVBD6EXAMPLE"
KEYS: Final = ("index.html", "a/b.html", "a/c.html", "a/d/e.html", "f/g.html", "f//h.html", "i j/k*l.html")
FAULTS: Final = ("lose", "throttled", "unavailable", "busy", "denied", "invalid", "die before", "die after")
CODES: Final = {
    "throttled": ("Throttling", 400),
    "unavailable": ("ServiceUnavailable", 503),
    "busy": ("TooManyInvalidationsInProgress", 400),
    "denied": ("AccessDenied", 403),
    "invalid": ("InvalidArgument", 400),
}
step = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS)),
    st.tuples(st.just("pass"), st.sampled_from((1.0, 30.0, 130.0))),
    st.tuples(st.just("fault"), st.sampled_from(FAULTS)),
)


_runs: Final = itertools.count()


class CrashError(Exception):
    """The operator dies."""


class World:
    """One bucket, one distribution, one operator after the other."""

    def __init__(self, scope: str, max_paths: int, service: CloudFront | None = None, **waits: str) -> None:
        target = {"cloudFront": {"distributionID": ID, "scope": scope, "maxPaths": max_paths}}
        spec = refresh(
            target=target,
            filter={"buckets": ["media"]},
            debounce={"quietPeriod": "1s", "maxDelay": "60s", "minInterval": "0s", **waits},
        )
        raw = RawRefresh(WireMeta(name="r", namespace="n"), msgspec.Raw(msgspec.json.encode(spec)))
        self.read = read(raw, registry().spec)
        assert self.read.spec is not None
        self.service = service or CloudFront()
        self.service.distributions.add(ID)
        client: Any = self
        self.target = Invalidations(client, self.read.spec.target.cloudFront, ["media"])  # type: ignore[attr-defined]
        self.log: list[tuple[str, Any]] = []
        self.faults: list[str] = []
        self.record: tuple[Any, ...] = ()
        self.queue: list[str] = []
        self.now, self.passes = 1_800_000_000.0, next(_runs) * 10**6  # no two claims have one id
        self.start()

    def start(self) -> None:
        """Another process: its memory is empty."""
        self.owner = f"operator-{self.passes}"
        self.tracker = TargetTracker()
        self.results: list[Result] = []

    async def create_invalidation(self, **given: Any) -> Any:
        """CloudFront."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "die before":
            raise CrashError
        before = len(self.service.invalidations)
        refused = (
            Fault("refuse", status=CODES[fault][1], code=CODES[fault][0]) if fault in CODES else Fault("")
        )
        try:
            made = self.service._create(given, refused)
        except RefusedError as error:
            said = classify(error.code, error.status, write=True)
            raise AwsError(said, error.code, str(error), status=error.status) from None
        self.log += [("invalidation", one.paths) for one in self.service.invalidations[before:]]
        if fault == "die after":
            raise CrashError
        if fault == "lose":
            raise AwsError(ErrorClass.UNKNOWN_OUTCOME, "Timeout")
        return {"Invalidation": {"Id": made.id, "Status": "InProgress"}}

    def put(self, key: str) -> None:
        self.log.append(("put", key))
        self.queue.append(key)

    def one_pass(self, seconds: float) -> None:
        self.now += seconds
        self.passes += 1
        spec, targets = self.read.spec, tuple(decode_target(one, self.now) for one in self.record)
        assert spec is not None
        scope = target_type_of(spec)
        events = tuple(ObjectEvent("ObjectCreated", "media", key) for key in self.queue)
        made = plan(
            PlanInput(
                targets=targets,
                first=not self.record,
                discovery=Discovery(complete=True, shares=run(self.target.discover()).shares),
                filter=spec.filter,
                options=self.read.options,
                owner=self.owner,
                pass_id=f"p{self.passes}",
                now=self.now,
                idempotent=True,
                whole=scope.whole,
                resync_on_start=False,
                messages=(Message(self.passes, events),) if events else (),
                results=tuple(self.results),
                running=frozenset(result.claim_id for result in self.results),
                received=seconds,
                times=self.tracker.times(targets, self.now),
                jitter=1.0,
            )
        )
        self.tracker.update(made.targets, self.now)
        self.record = tuple(encode_target(one, made.phases[one.id]) for one in made.targets)
        self.results = []
        if made.done:
            self.queue.clear()
        try:
            self.results = [run(self.target.refresh(share, claim)) for share, claim in made.calls]
        except CrashError:
            self.start()

    @property
    def state(self) -> TargetState:
        (one,) = self.record
        return decode_target(one, self.now)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(step, max_size=40),
    st.sampled_from(("Keys", "Folders", "Distribution")),
    st.sampled_from((1, 3)),
)
def test_an_invalidation_follows_each_object(
    steps: list[tuple[str, Any]], scope: str, max_paths: int
) -> None:
    world = World(scope, max_paths)
    world.one_pass(1.0)
    for kind, value in steps:
        if kind == "put":
            world.put(value)
        elif kind == "fault":
            world.faults.append(value)
        else:
            world.one_pass(value)
    for _ in range(300):
        world.one_pass(130.0)
        if not world.queue and not world.results and not (world.state.dirty or world.state.claim):
            break
    else:
        raise AssertionError(f"it is never done: {world.state}")
    for at, (kind, value) in enumerate(world.log):
        later = [paths for other, paths in world.log[at:] if other == "invalidation"]
        if kind == "put":
            assert covered(value, [path for paths in later for path in paths]), (value, later)
    references = [one.reference for one in world.service.invalidations]
    assert len(set(references)) == len(references)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the service."""
    now = [0.0]
    monkeypatch.setattr(double.time, "monotonic", lambda: now[0])
    return now


WAITS: Final = {"quietPeriod": "30s", "maxDelay": "10m", "minInterval": "60s"}


class TestALimitOfWildcards:
    """15 in progress, of all callers."""

    def test_a_resource_with_many_folders_is_not_starved(self, clock: list[float]) -> None:
        small = World("Folders", 15, **WAITS)
        small.service.lag = 90.0
        big = World("Folders", 15, small.service, **WAITS)
        small.one_pass(1.0)
        big.one_pass(1.0)
        for name in "abcdefghijklmno":
            big.put(f"{name}/x.html")
        for turn in range(360):  # an hour
            clock[0] += 10.0
            if turn % 6 == 0:
                small.put("s/x.html")
            small.one_pass(10.0)
            big.one_pass(10.0)
        assert big.state.dirty is None
        assert big.state.claim is None

    def test_paths_without_a_wildcard_do_not_wait_for_one(self) -> None:
        world = World("Keys", 15, **WAITS)
        world.one_pass(1.0)
        others = tuple(f"/{number}*" for number in range(15))
        world.service.invalidations.append(double.Invalidation("I1", ID, "x", others, math.inf))
        world.put("index.html")
        world.put("js/runtime~main.js")
        for _ in range(90):
            world.one_pass(10.0)
        assert world.log[-1] == ("invalidation", ("/index.html",))
        assert world.state.failure is not None
        assert world.state.failure.code == "TooManyInvalidationsInProgress"
        world.service.invalidations[0].ends = 0.0
        for _ in range(180):
            world.one_pass(10.0)
        assert world.log[-1] == ("invalidation", ("/js/runtime*",))
        assert world.state.dirty is None

    def test_what_is_one_path_is_not_split(self) -> None:
        world = World("Folders", 15, **WAITS)
        world.one_pass(1.0)
        for name in "abcdef":
            world.put(f"in/{name}.html")
        world.faults = ["busy"] * 3
        for _ in range(90):
            world.one_pass(10.0)
        assert [paths for kind, paths in world.log if kind == "invalidation"] == [("/in*",)]

    def test_a_wait_counts_as_no_failure(self) -> None:
        world = World("Keys", 15)
        world.one_pass(1.0)
        world.put("a")
        world.faults = ["busy"] * 5 + ["denied"]
        for _ in range(400):
            world.one_pass(10.0)
            failure = world.state.failure
            if failure is not None and failure.code == "AccessDenied":
                break
        assert (failure and failure.count) == 1

    def test_a_wait_after_a_crash_keeps_the_claim_and_is_no_failure(self) -> None:
        world = World("Keys", 15)
        world.one_pass(1.0)
        world.put("a")
        world.faults = ["die after"] + ["busy"] * 6
        held = set()
        for _ in range(600):
            world.one_pass(10.0)
            state = world.state
            assert state.failure is None or state.failure.code == "TooManyInvalidationsInProgress"
            held |= {state.claim.id} if state.claim is not None else set()
        assert [kind for kind, _ in world.log].count("invalidation") == len(held) == 1
        assert state.last.result == "Succeeded"
