"""What goes on for a resource outside its passes, where the Lease forbids a call."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from caretaker.api.objects import WireMeta
from caretaker.kube.errors import NotLeader
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import inspection, target_types
from caretaker.s3refresh.debounce import NOT_MADE, UNKNOWN, Claim
from caretaker.s3refresh.envelope import Completion, ObjectEvent
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.inspection import Discoverer
from caretaker.s3refresh.match import Share, of_buckets
from caretaker.s3refresh.receiver import PASS_EVENTS
from caretaker.s3refresh.resource import RawRefresh, WorkerConfig, read, worker_config_of
from caretaker.s3refresh.snapshot import Discovery, Message, Result
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.worker import RefreshCalls, Worker
from testing.s3refreshes import refresh

META = WireMeta(name="r", namespace="n", uid="u")
FOUND = Discovery(complete=True, shares=of_buckets(["media"]))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliseconds from one discovery, check of a target or question for ends to the next."""
    monkeypatch.setattr(inspection, "BACKOFF_SECONDS", (0.0001,))
    monkeypatch.setattr(inspection, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(inspection, "REDISCOVER_SECONDS", 0.0001)
    monkeypatch.setattr(target_types, "REDISCOVER_SECONDS", 0.005)
    monkeypatch.setattr("caretaker.s3refresh.worker.ENDS_SECONDS", 0.0001)


class Answers:
    """A target that finds what it is given, in this order."""

    def __init__(self, *answers: Discovery | Exception) -> None:
        self._answers = list(answers)

    async def discover(self) -> Discovery:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Queues:
    """A queue in which these messages wait, and one in which `ends` do."""

    def __init__(self, *waiting: Message, ends: Sequence[Message] = ()) -> None:
        self._waiting = waiting
        self._ends = ends

    @property
    def messages(self) -> "Queues":
        return self

    def join(self, *_: Any, owner: bool) -> "Queues":
        return self if owner else Queues(*self._ends)

    def waiting(self, _: Key) -> tuple[tuple[Message, ...], float]:
        return self._waiting, 7.0

    async def leave(self, *_: Any) -> None:
        """Nothing is read."""


class Sqs:
    """A queue with nothing to say of it."""

    async def get_queue_attributes(self, **_: Any) -> Any:
        return {"Attributes": {}}


def config() -> WorkerConfig:
    spec = refresh(filter={"buckets": ["media"]}, target={"http": {"url": "https://cdn.example.com/purge"}})
    raw = RawRefresh(META, msgspec.Raw(msgspec.json.encode(spec)))
    found = read(raw, registry().spec)
    assert found.spec is not None
    return worker_config_of(found.spec, None)


async def begun(
    target: Any, *waiting: Message, ends: Sequence[Message] = ()
) -> tuple[Worker, list[Discovery]]:
    """The worker, and its shares at each request for a pass, until they were complete."""
    reported: list[Discovery] = []
    done = asyncio.Event()

    def news(_key: Key, *, urgent: bool = False) -> None:
        reported.append(worker.discoverer.discovery)
        if worker.discoverer.discovery.complete:
            done.set()

    queues: Any = Queues(*waiting, ends=ends)
    asked = config()
    if ends:  # a queue of their own
        asked = msgspec.structs.replace(asked, completions=msgspec.structs.replace(asked.source))
    sqs: Any = Sqs()
    worker = Worker(META, queues, news, lambda *_: None)
    await worker.begin(asked, sqs, target)
    async with asyncio.timeout(10):
        await done.wait()
    return worker, reported


async def test_a_discovery_that_the_lease_forbids_tells_nothing_and_is_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    not_ours = NotLeader("the Lease is held by another")
    worker, reported = await begun(Answers(not_ours, not_ours, FOUND))
    await worker.end()
    assert reported[-1] == FOUND
    assert {shares.faults for shares in reported} == {()}
    assert caplog.records == []


async def test_a_discovery_that_fails_as_nobody_foresaw_is_told_and_made_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker, reported = await begun(Answers(KeyError("Shares"), FOUND))
    await worker.end()
    assert ("KeyError: 'Shares'",) in [shares.faults for shares in reported]
    assert [record.message for record in caplog.records] == ["discovery failed"]


@pytest.mark.parametrize(
    ("found", "again"),
    [
        pytest.param(FOUND, False, id="all is known"),
        pytest.param(msgspec.structs.replace(FOUND, retry=True), True, id="an access point is not looked up"),
        pytest.param(Discovery(faults=("no answer",)), True, id="a region does not answer"),
    ],
)
async def test_what_was_not_found_is_looked_for_again_before_its_time(found: Discovery, again: bool) -> None:
    complete, third = list[bool](), asyncio.Event()

    class Target(Answers):
        discoveries = 0

        async def discover(self) -> Discovery:
            self.discoveries += 1
            if self.discoveries == 3:
                third.set()
            return await super().discover()

    target: Any = Target(found)
    discoverer = Discoverer(lambda: None)
    never = msgspec.structs.replace(config(), rediscover=1e12)
    task = asyncio.create_task(discoverer.run(target, never, lambda: complete.append(True)))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10 if again else 0.2):
            await third.wait()
    task.cancel()
    assert third.is_set() is again
    assert bool(complete) is found.complete


@pytest.mark.parametrize("ready", [True, False], ids=["its access point is denied", "its gateway is offline"])
async def test_a_share_without_a_bucket_is_where_the_record_has_it(ready: bool) -> None:
    """The only share of a resource. While it cannot be refreshed, its events wait in the queue."""
    share, again = Share("s", "arn:s", "media", group="g", ready=ready), asyncio.Event()
    lost = Discovery(
        False, faults=("denied",), undescribed=(msgspec.structs.replace(share, bucket=""),), listed=True
    )

    class Target(Answers):
        discoveries = 0

        async def discover(self) -> Discovery:
            self.discoveries += 1
            if self.discoveries == 3:
                again.set()
            return await super().discover()

    target: Any = Target(Discovery(True, (share,), listed=True), lost)
    discoverer = Discoverer(lambda: None)
    at_once = msgspec.structs.replace(config(), rediscover=0.0)
    task = asyncio.create_task(discoverer.run(target, at_once, lambda: None))
    async with asyncio.timeout(10):
        await again.wait()
    task.cancel()
    located = discoverer.discovery.located({"s": "media/"})
    assert [one.bucket for one in located.shares] == ["media"]
    assert (located.complete, located.shares[0].recorded) == (ready, ready)


@pytest.mark.parametrize(
    ("events", "looked_at"),
    [
        pytest.param([1, 2, 3], 3, id="few"),
        pytest.param([PASS_EVENTS - 1, 1, 1], 2, id="as many as one pass looks at"),
        pytest.param([PASS_EVENTS + 1, 1], 1, id="a message with more goes alone"),
        pytest.param([0] * (PASS_EVENTS + 2), PASS_EVENTS, id="those without events count, too"),
        pytest.param([1, 20 * PASS_EVENTS], 2, id="or with a few others"),
    ],
)
async def test_a_pass_looks_at_so_many_events_and_knows_of_more(events: list[int], looked_at: int) -> None:
    assert PASS_EVENTS == 500, "docs/security.md has this number"
    event = ObjectEvent("ObjectCreated", "media", "a")
    waiting = [Message(at, (event,) * count) for at, count in enumerate(events)]
    worker, _ = await begun(Answers(FOUND), *waiting)
    await asyncio.sleep(0)
    found = worker.receiver.messages()
    await worker.end()
    assert found == (tuple(waiting[:looked_at]), 7.0, looked_at < len(events))


async def test_ends_of_refreshes_do_not_wait_behind_events() -> None:
    events = (ObjectEvent("ObjectCreated", "media", "a"),) * PASS_EVENTS
    end = Message(9, completions=(Completion("n-1", "arn:one"),))
    worker, _ = await begun(Answers(FOUND), Message(1, events), Message(2, events), ends=[end])
    await asyncio.sleep(0)
    messages, _, more = worker.receiver.messages()
    await worker.end()
    assert (end in messages, more) == (True, True)


@dataclass
class Waits:
    """A target whose calls wait until they are refused: nothing is sent."""

    refused: asyncio.Event = field(default_factory=asyncio.Event)

    async def refresh(self, *_: Any) -> Result:
        await self.refused.wait()
        raise NotLeader("nothing was sent")


@pytest.mark.parametrize(
    ("stopping", "attempt", "code"),
    [
        pytest.param(True, 1, NOT_MADE, id="a stop is near: it was not made"),
        pytest.param(True, 2, NOT_MADE, id="nor was this attempt"),
        pytest.param(False, 1, "NotLeader", id="refused by the guard"),
        pytest.param(False, 2, UNKNOWN, id="an earlier attempt may have been accepted"),
    ],
)
async def test_what_becomes_of_a_call_of_which_nothing_was_sent(
    stopping: bool, attempt: int, code: str
) -> None:
    asked, failed = asyncio.Event(), list[str]()
    calls = RefreshCalls(asked.set, lambda: failed.append(code), lambda *_: None)
    target: Any = Waits()
    claim = Claim("c1", "me", 0.0, Request(("/",), recursive=True), 0.0, attempt)
    calls.launch(target, [(FOUND.shares[0], claim)])
    calls.stopping = stopping
    target.refused.set()
    async with asyncio.timeout(10):
        await asked.wait()
    assert [(result.claim_id, result.code) for result in calls.results] == [("c1", code)]
    assert bool(failed) is not stopping


async def test_no_call_begins_once_a_stop_is_near() -> None:
    calls = RefreshCalls(lambda: None, lambda: None, lambda *_: None)
    calls.stopping = True
    target: Any = None
    calls.launch(target, [(FOUND.shares[0], Claim("c1", "me", 0.0, Request(("/",), recursive=True), 0.0))])
    assert [(result.target, result.code) for result in calls.results] == [("media", NOT_MADE)]
    assert calls.running == {"c1"}, "until that is on record"


async def test_nothing_is_received_after_a_stop_that_comes_while_a_pass_begins_the_tasks_anew() -> None:
    again = asyncio.Event()

    class Repeated(Answers):
        async def discover(self) -> Discovery:
            found = await super().discover()
            if worker.discoverer.discovery.complete:  # what it found before has been used
                again.set()
            return found

    worker, _ = await begun(Answers(FOUND))
    sqs: Any = Sqs()
    target: Any = Repeated(FOUND)
    beginning = asyncio.create_task(worker.begin(config(), sqs, target))
    await asyncio.sleep(0)  # it waits for the end of the earlier tasks
    await worker.quiesce()
    await beginning
    async with asyncio.timeout(10):
        await again.wait()
    source = worker.receiver.source
    await worker.end()
    assert source is None
