"""The end of a refresh may lie in the completion queue while nobody reads that: such an end is not lost."""

import asyncio
import math
from typing import Any

import msgspec
import pytest

from caretaker.api.objects import WireMeta
from caretaker.s3refresh.debounce import DirtyScope, InFlight, LastCall, TargetState
from caretaker.s3refresh.envelope import Completion
from caretaker.s3refresh.folders import Request, Scope
from caretaker.s3refresh.gather import Arrivals
from caretaker.s3refresh.match import of_buckets
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.receiver import Queues
from caretaker.s3refresh.resource import WorkerConfig
from caretaker.s3refresh.snapshot import Discovery, Message
from caretaker.s3refresh.target_types import NO_TARGET
from caretaker.s3refresh.worker import Worker
from testing.s3refreshes import reading
from unit.s3refresh.test_gather import KEY, ApiServer, kind_of
from unit.s3refresh.test_holes import NOW, only, planned

TRACKED = DebounceOptions(tracked=True, assume_after=900.0, completion_timeout=6 * 3600.0)
WHOLE = Request(("/",), recursive=True)
# A change has waited behind the refresh for longer than assumeAfter.
OLD = TargetState(
    "share",
    in_flight=InFlight("n1", NOW - 1200, WHOLE),
    dirty=DirtyScope(NOW - 1190, Scope(folders=frozenset({"/", "a"}))),
    last=LastCall(NOW - 1201, NOW - 1200),
    location="bucket/",
)
END = Message(1, completions=(Completion("n1", "arn:share"),))


@pytest.mark.parametrize(
    ("given", "wake"),
    [
        pytest.param({"suspended": True}, 0.0, id="suspended"),
        pytest.param({"suspended": True, "listened": 0.0}, 0.0, id="suspended, and a new process"),
        pytest.param({"listened": 0.0}, NOW + 900, id="a new process"),
        pytest.param({"listened": 899.0}, NOW + 1, id="a completion queue that cannot be read"),
    ],
)
def test_an_end_that_may_lie_in_the_queue_is_waited_for(given: dict[str, Any], wake: float) -> None:
    """Before, it was lost, and everything refreshed twice."""
    made = planned(OLD, options=TRACKED, discovery=Discovery(), **given)
    assert only(made) == OLD
    assert made.wake == wake
    after = planned(only(made), options=TRACKED, messages=(END,))
    assert (only(after).last.result, after.done) == ("Succeeded", (1,))
    ((_, claim),) = after.calls
    assert claim.request.folders == ("a", "/")


@pytest.mark.parametrize(
    ("options", "given"),
    [
        pytest.param({}, {"listened": 900.0}, id="a queue that cannot be read for assumeAfter"),
        pytest.param({}, {"listened": math.inf}, id="the queue was empty"),
        pytest.param({"completion_timeout": 60.0}, {"listened": 60.0}, id="completion.timeout is shorter"),
    ],
)
def test_an_end_that_does_not_come_is_lost_in_the_end(
    options: dict[str, float], given: dict[str, Any]
) -> None:
    made = planned(OLD, options=msgspec.structs.replace(TRACKED, **options), **given)
    assert (only(made).in_flight, only(made).last.result) == (None, "Lost")


def test_an_end_that_nobody_reports_is_assumed_while_suspended() -> None:
    made = planned(OLD, options=DebounceOptions(), suspended=True, listened=0.0)
    assert (only(made).in_flight, only(made).last.result) == (None, "Assumed")


class Sqs:
    """An empty queue. Each long poll waits for its turn."""

    def __init__(self) -> None:
        self.turn, self.polled = asyncio.Event(), asyncio.Event()

    async def get_queue_attributes(self, **_: Any) -> Any:
        return {"Attributes": {}}

    async def receive_message(self, **asked: Any) -> Any:
        if asked["WaitTimeSeconds"]:
            self.polled.set()
            await self.turn.wait()
            self.turn.clear()
        return {}


class Target:
    """One bucket."""

    async def discover(self) -> Discovery:
        return Discovery(complete=True, shares=of_buckets(["media"]))


async def test_the_completion_queue_is_known_once_a_long_poll_was_empty() -> None:
    ends = Sqs()
    queues: dict[str, Any] = {"https://sqs/q": Sqs(), "https://sqs/ends": ends}
    aws: Any = type("Aws", (), {"sqs": lambda _, target: queues[target.region]})()
    source, completions = (
        msgspec.structs.replace(one, target=msgspec.structs.replace(one.target, region=one.source.queue_url))
        for one in (reading("https://sqs/q"), reading("https://sqs/ends"))
    )
    config = WorkerConfig(source, completions, 600.0, NO_TARGET, ())
    meta = WireMeta(name="r", namespace="n", uid="u")
    worker = Worker(meta, Queues(aws, lambda _: False), lambda *_, **__: None, lambda *_: None)
    assert Arrivals.of(worker).listened == 0.0, "nothing is read yet"
    target: Any = Target()
    async with asyncio.timeout(10):
        await worker.begin(config, queues["https://sqs/q"], target)
        await ends.polled.wait()
        assert 0 < Arrivals.of(worker).listened < 10, "a short poll says nothing"
        queues["https://sqs/q"].turn.set()
        await asyncio.sleep(0.01)
        assert Arrivals.of(worker).listened < 10, "the source queue says nothing of the other"
        ends.turn.set()
        ends.polled.clear()
        await ends.polled.wait()
    assert Arrivals.of(worker).listened == math.inf
    assert worker.listened(more=True) < 10, "among the messages that wait there may be an end"
    await worker.pause()
    assert Arrivals.of(worker).listened == 0.0, "nothing is read any more"
    await worker.end()


async def test_ends_of_another_completion_queue_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    api = ApiServer()
    kind = kind_of(api, [])
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    assert snapshot.plan_input.listened == 0.0, "a new process"
    await kind.before(snapshot, kind.plan(snapshot))
    worker = kind._shared.workers[KEY]
    monkeypatch.setattr(worker, "listened", lambda *, more: 7.0 if not more else 0.0)
    for changed, listened in ((False, 7.0), (True, 0.0)):
        if changed:
            worker.config = msgspec.structs.replace(worker.config, rediscover=1.0)
        snapshot = await kind.gather(KEY)
        assert snapshot is not None
        assert snapshot.plan_input.listened == listened
    api.resource.metadata.deletion_timestamp = "2027-01-15T08:00:00Z"
    api.resource.metadata.finalizers = ["caretaker.dev/finalizer"]
    snapshot = await kind.gather(KEY)
    assert snapshot is not None
    assert snapshot.plan_input.listened == math.inf, "a flush receives nothing"
    await kind.stop()
