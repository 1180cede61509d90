"""The first passes of a process: whose a queue is must not depend on their order."""

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from caretaker.api.conditions import Condition
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Status
from caretaker.api.times import format_time
from caretaker.runtime.controller import Conflict
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.resource import LOST, RawRefresh
from testing.s3refreshes import completion, refresh
from unit.s3refresh.test_gather import kind_of, tasks

ELDER, YOUNGER = (Key("S3AggregatedRefresh", "ours", name) for name in ("elder", "younger"))
SPEC: Final = msgspec.json.encode(
    refresh(filter={"buckets": ["media"]}, target={"http": {"url": "https://cdn.example.com/purge"}})
)


class ApiServer:
    """Two resources that name one queue."""

    host = "https://api.example.com"
    guard = None

    def __init__(self) -> None:
        created = {"elder": "2026-01-01T00:00:00Z", "younger": "2026-02-01T00:00:00Z"}
        self.resources = {
            name: RawRefresh(
                WireMeta(name=name, namespace="ours", uid=name, creation_timestamp=at), msgspec.Raw(SPEC)
            )
            for name, at in created.items()
        }

    async def get(self, path: str, _: Any) -> RawRefresh:
        return self.resources[path.rpartition("/")[2]]

    async def list(self, *_: Any, each: Any, **__: Any) -> tuple[list[Any], str]:
        return [each(raw) for raw in self.resources.values()], ""


async def test_the_younger_of_two_begins_no_task_though_its_pass_is_the_first() -> None:
    """Before, it read the queue until the elder's first pass, and deleted the events of other targets."""
    added = list[Key]()
    kind = kind_of(ApiServer(), added)
    first = await kind.gather(YOUNGER)
    assert first is not None
    with pytest.raises(Conflict):
        await kind.before(first, kind.plan(first))
    assert tasks() == set()
    assert ELDER in added, "were it gone since it was listed, its pass would let the queue go"
    again = await kind.gather(YOUNGER)
    assert again is not None
    assert again.setup.rejection is not None
    assert again.setup.rejection.reason == "QueueConflict"
    await kind.before(again, kind.plan(again))
    assert tasks() == set()
    await kind.stop()


def called() -> dict[str, Any]:
    """The record of a call that was made now."""
    last = {"requestedAt": format_time(time.time())}
    return {"targets": [{"id": "share-1", "location": "media", "last": last}]}


def rewritten(seconds: float) -> Status:
    """What a pass that found no readable status has written, so long ago."""
    at = format_time(time.time() - seconds)
    starting = Condition("Ready", "False", "Starting", last_transition_time=at)
    return msgspec.structs.replace(LOST, conditions=(starting,))


@pytest.mark.parametrize(
    ("status", "held"),
    [
        pytest.param(dict, {}, id="new"),
        pytest.param(called, {"share-1": 60.0}, id="it tells of a call"),
        pytest.param(lambda: {"targets": "none"}, {"share-1": 70.0}, id="unreadable"),
        pytest.param(lambda: rewritten(100.0), {"share-1": 70.0}, id="rewritten a while ago, by some clock"),
        pytest.param(lambda: rewritten(10_000.0), {}, id="rewritten long ago, and suspended since"),
    ],
)
async def test_no_share_is_called_at_once_that_another_process_may_have_called(
    status: Callable[[], Any], held: dict[str, float]
) -> None:
    """A record that cannot be read may have told of a call without an answer, which may be accepted for 10 s.
    For 60 s after that a gateway ignores the next one."""
    api = ApiServer()
    api.resources["elder"].status = msgspec.Raw(msgspec.json.encode(status()))
    kind = kind_of(api, [])
    first = await kind.gather(ELDER)
    assert first is not None
    begun = time.monotonic()
    await kind.before(first, kind.plan(first))
    share = Share("share-1", "arn:share-1", "media")
    found = kind._shared.limiter.held([share], 60.0, begun)
    assert found.keys() == held.keys()
    assert all(found[name] >= least for name, least in held.items())
    assert kind._shared.limiter.held([share], 60.0, time.monotonic() + 70.0) == {}
    await kind.stop()


def with_ends(source: str, ends: str) -> msgspec.Raw:
    """A spec that reads the queue `source`, and the ends of refreshes from the URL `ends`."""
    queues = {"source": {"sqs": {"queueURL": f"https://sqs.eu-west-1.amazonaws.com/123456789012/{source}"}}}
    return msgspec.Raw(msgspec.json.encode(completion(queueURL=ends) | queues))


async def test_whom_a_queue_is_refused_does_not_depend_on_the_order_of_the_list() -> None:
    """The younger reads no queue, since its source is the elder's. Listed first, it seems to read its
    completion queue, under another URL than the third. That one, refused, would later refresh everything."""
    ends, names = "eu-west-1{}amazonaws.com/123456789012/ends", ("a-younger", "b-elder", "c-third")
    specs = (
        with_ends("events", "https://sqs." + ends.format(".")),
        msgspec.Raw(SPEC),
        with_ends("others", "https://" + ends.format(".queue.")),
    )
    api = ApiServer()
    api.resources = {
        name: RawRefresh(WireMeta(name=name, namespace="ours", uid=name, creation_timestamp=at), spec)
        for name, spec, at in zip(names, specs, ("2026-02", "2026-01", "2026-03"), strict=True)
    }
    added = list[Key]()
    kind = kind_of(api, added)
    *others, key = (Key("S3AggregatedRefresh", "ours", name) for name in names)
    first = await kind.gather(key)
    assert first is not None
    await kind.before(first, kind.plan(first))
    again = await kind.gather(key)
    assert again is not None
    assert (first.setup.rejection, again.setup.rejection) == (None, None)
    assert set(added) >= {*others, key}
    await kind.stop()


async def test_a_resource_that_is_gone_before_its_first_pass_holds_no_queue() -> None:
    added = list[Key]()
    kind = kind_of(ApiServer(), added)
    first = await kind.gather(YOUNGER)
    assert first is not None
    with pytest.raises(Conflict):
        await kind.before(first, kind.plan(first))
    added.clear()
    kind.forget(ELDER)
    assert added == [YOUNGER]
    again = await kind.gather(YOUNGER)
    assert again is not None
    assert again.setup.rejection is None
    await kind.before(again, kind.plan(again))
    assert tasks() != set()
    await kind.stop()
