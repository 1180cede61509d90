"""What the ledger asks of the API server when it writes, and what it knows afterwards."""

import logging
from typing import Any

import pytest

from caretaker.api.daemontask import LedgerStatus
from caretaker.daemontask.shards import Shards, Written
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Conflict
from simulation.daemontask.cluster import NAMESPACE, TASK, TASK_UID
from simulation.daemontask.ledger import (
    ALL,
    MARKS,
    UNREPORTED,
    Server,
    intent,
    requests,
    some,
    write,
)
from unit.daemontask.build import NOW

ERA = 1_000_000  # a decision takes the count of writes beyond it
Held = list[tuple[Any, ...]]  # index, entries, changes
GONE = LedgerStatus(shards=1, writes=(3,))
LOST = LedgerStatus(shards=2, writes=(3, 1))

# The shards that exist, what is to be written, what status says of the ledger, and the requests.
WRITES: dict[str, tuple[Held, dict[str, Any], LedgerStatus, list[str]]] = {
    "nothing": ([(0, "a")], {}, UNREPORTED, []),
    "the first entries": ([], {"entries": "ab"}, UNREPORTED, ["create 0 +a +b #1 #2"]),
    "an entry anew": ([(0, "ab")], {"entries": "a"}, UNREPORTED, ["patch 0 +a #2 #2"]),
    "a further entry": ([(0, "a")], {"entries": "b"}, UNREPORTED, ["patch 0 +b #2 #2"]),
    "an entry that goes": ([(0, "ab")], {"forget": "b"}, UNREPORTED, ["patch 0 -b #2 #1"]),
    "one that is not there goes": ([(0, "a")], {"forget": "b"}, UNREPORTED, []),
    "an entry, and another one that goes": (
        [(0, "ab")],
        {"entries": "a", "forget": "b"},
        UNREPORTED,
        ["patch 0 +a -b #2 #1"],
    ),
    "one that is twice there goes": (
        [(0, "ac"), (1, "ab")],
        {"forget": "a"},
        UNREPORTED,
        ["patch 0 -a #2 #1", "patch 1 -a #2 #1"],
    ),
    "one that is twice there is written": (
        [(0, "a"), (1, "ab")],
        {"entries": "a"},
        UNREPORTED,
        ["patch 0 +a #2 #1"],
    ),
    "a broken entry that goes": (
        [(0, "a", {"broken": "b"})],
        {"forget": "b"},
        UNREPORTED,
        ["patch 0 -b #2 #1"],
    ),
    "an intent, and an entry that goes": (
        [(0, "ab")],
        {"intents": "a", "forget": "b"},
        UNREPORTED,
        ["patch 0 +a -b #2 #1"],
    ),
    "each to its shard": (
        [(8, "a"), (0, "b")],
        {"entries": "ab"},
        UNREPORTED,
        ["patch 0 +b #2 #1", "patch 8 +a #2 #1"],
    ),
    "intents after all else": (
        [(0, "a"), (1, "b"), (2, "c")],
        {"entries": "bc", "intents": "a"},
        UNREPORTED,
        ["patch 1 +b #2 #1", "patch 2 +c #2 #1", "patch 0 +a #2 #1"],
    ),
    "an entry and an intent": (
        [(0, "ab")],
        {"entries": "a", "intents": "b"},
        UNREPORTED,
        ["patch 0 +a +b #2 #2"],
    ),
    "an entry that was broken": (
        [(0, "a", {"broken": "b"})],
        {"entries": "b"},
        UNREPORTED,
        ["patch 0 +b #2 #2"],
    ),
    "a shard without figures": ([(0, "a", {"writes": 0})], {}, UNREPORTED, ["patch 0 #1 #1"]),
    "a shard without figures after others": (
        [(0, "a", {"writes": 0}), (1, "b")],
        {"entries": "b"},
        UNREPORTED,
        ["patch 1 +b #2 #1", "patch 0 #1 #1"],
    ),
    "a shard without labels": ([(0, "a", {"labels": None})], {}, UNREPORTED, ["patch 0 labels"]),
    "an entry of one without labels": (
        [(0, "a", {"labels": None})],
        {"entries": "a"},
        UNREPORTED,
        ["patch 0 +a #2 #1 labels"],
    ),
    "a shard that is gone": ([], {"entries": "a"}, GONE, ["create 0 +a #1 #1"]),
    "a decision on one that is gone": ([], {"decided": True}, GONE, [f"create 0 #{ERA} #0"]),
    "a decision, and an entry": ([], {"decided": True, "entries": "a"}, GONE, [f"create 0 +a #{ERA} #1"]),
    "a decision on a lost one after all else": (
        [(0, "a"), (1, "b")],
        {"decided": True, "intents": "b"},
        LOST,
        ["patch 1 +b #2 #1", f"patch 0 #{ERA} #1"],
    ),
    "no decision on a lost one": ([(0, "a"), (1, "b")], {"entries": "b"}, LOST, ["patch 1 +b #2 #1"]),
    "a decision beyond an era": (
        [(0, "a")],
        {"decided": True},
        LedgerStatus(writes=(ERA + 3,)),
        [f"patch 0 #{2 * ERA} #1"],
    ),
    "a decision on a lost one where nobody knows how many there were": (
        [(0, "a")],
        {"decided": True},
        LedgerStatus(shards=-1, writes=(3,)),
        [f"patch 0 #{ERA} #1"],
    ),
    "a decision on one that never was": ([(0, "a")], {"decided": True}, LedgerStatus(shards=2), []),
    "a decision on one that was cut": (
        [(0, "a", {"records": 3})],
        {"decided": True},
        LedgerStatus(recorded=3),
        [f"patch 0 #{ERA} #1"],
    ),
}


@pytest.mark.parametrize(("held", "change", "reported", "asked"), WRITES.values(), ids=WRITES)
async def test_a_write_is_one_request_for_each_shard_that_changes(
    server: Server,
    shards: Shards,
    held: Held,
    change: dict[str, Any],
    reported: LedgerStatus,
    asked: list[str],
) -> None:
    for index, entries, *meta in held:
        server.hold(index, entries, **(meta[0] if meta else {}))
    await shards.load(NOW, 1)
    requests(server)
    await write(shards, reported=reported, **change)
    assert requests(server) == asked
    fresh = Shards(server, NAMESPACE, TASK, TASK_UID)  # type: ignore[arg-type]
    await fresh.load(NOW)
    requests(server)
    assert shards.node_names == fresh.node_names, "as one knows who reads it"
    assert {name: shards.find(name) for name in ALL} == {name: fresh.find(name) for name in ALL}
    known, read = (one.ledger(UNREPORTED) for one in (shards, fresh))
    assert (known.corrupt, known.version) == (read.corrupt, read.version if known.corrupt else 0)
    if asked:
        assert (shards.count, shards.write_counts(UNREPORTED)) == (
            fresh.count,
            fresh.write_counts(UNREPORTED),
        )
    assert await write(shards) == Written({}, 0.0)
    assert requests(server) == [], "nothing is left to write"
    assert not shards.unmarked
    assert shards.ledger(LedgerStatus(recorded=len(shards.node_names) + 1)).lost == 0


@pytest.mark.parametrize(
    ("seconds", "asked"),
    [
        (2.5, ["patch 0 +a #2 #1", "patch 1 +b #2 #1", "patch 2 +d +c #2 #2"]),
        (2.6, ["patch 0 +a #2 #1", "patch 1 +b #2 #1", "patch 2 +d #2 #2"]),
        (5.0, ["patch 0 +a #2 #1", "patch 1 +b #2 #1", "patch 2 +d #2 #2"]),
        (5.1, ["patch 0 +a #2 #1", "patch 2 +d #2 #2"]),
    ],
)
async def test_intents_are_written_as_long_as_the_first_is_in_time(
    server: Server, shards: Shards, seconds: float, asked: list[str]
) -> None:
    server.hold(0, "a").hold(1, "b").hold(2, "cd")
    await shards.load(NOW)
    requests(server)
    server.seconds, server.cluster.clock.now = seconds, NOW
    written = await shards.write(some("d"), (), {name: intent(name) for name in "abc"})
    assert requests(server) == asked
    assert written.began == NOW
    sent = {name: int(NOW + number * seconds) for number, name in enumerate("abc"[: len(written.intents)])}
    assert {name: one.started_at for name, one in written.intents.items()} == sent
    assert all(one.reboot_runs == (1, one.started_at) for one in written.intents.values())
    assert {name: shards.find(name) for name in sent} == written.intents
    assert server.cluster.entries() | written.intents == server.cluster.entries()


async def test_a_write_after_a_slow_one_may_take_longer(server: Server, shards: Shards) -> None:
    patience = []
    for server.seconds in (2.5, 2.6, 2.5, 0.0):
        await write(shards, "a")
        patience.append(server.sent[-1]["timeout"])
    assert patience == [5.0, 5.0, 11.0, 5.0]


# What a write is answered, what that raises, whether the ledger counts as read, and how many got no answer.
ANSWERS = [
    (409, "Conflict", Conflict, False, 0),
    (409, "AlreadyExists", Conflict, False, 0),
    (404, "NotFound", Conflict, False, 0),
    (0, "Timeout", Conflict, False, 1),
    (500, "InternalError", ApiError, True, 1),
    (429, "TooManyRequests", ApiError, True, 1),
    (403, "Forbidden", ApiError, True, 0),
]


@pytest.mark.parametrize(("status", "reason", "raised", "loaded", "unanswered"), ANSWERS)
@pytest.mark.parametrize("held", [False, True], ids=["create", "patch"])
async def test_a_write_that_fails(
    server: Server,
    shards: Shards,
    held: bool,
    status: int,
    reason: str,
    raised: type[Exception],
    loaded: bool,
    unanswered: int,
) -> None:
    if held:
        server.hold(0, "a")
    await shards.load(NOW)
    server.failure = ApiError(status, reason, "no")
    message = (
        f"ledger ConfigMap {MARKS.name(0)}: {server.failure}" if raised is Conflict else str(server.failure)
    )
    for count in (1, 2):
        with pytest.raises(raised) as failed:
            await write(shards, "a")
        assert str(failed.value) == message
        assert (shards.loaded, shards.unanswered) == (loaded, count * unanswered)
    assert server.sent[-1] == {"timeout": 11.0 if unanswered else 5.0}
    server.failure = None
    requests(server)
    await shards.load(NOW)
    assert requests(server) == ["list"] + ([] if held or loaded else ["get 0"])
    await shards.load(NOW)
    assert requests(server) == ["list"], "it was looked for once"
    await write(shards, "a")
    assert shards.unanswered == 0


async def test_labels_that_are_given_back_are_logged(
    server: Server, shards: Shards, caplog: pytest.LogCaptureFixture
) -> None:
    server.hold(0, "a", labels=None)
    await shards.load(NOW, 1)
    server.failure = ApiError(403, "Forbidden", "quota")
    with pytest.raises(ApiError) as failed:
        await write(shards)
    assert failed.value.message == (
        f"ConfigMap {MARKS.name(0)} has lost its labels, and they cannot be given back: quota"
    )
    server.failure = None
    with caplog.at_level(logging.WARNING, "caretaker.daemontask.shards"):
        await write(shards)
        await write(shards, "a")
    assert caplog.messages == [f"ConfigMap {MARKS.name(0)} had lost its labels and has them back"]
    assert requests(server)[-1] == "patch 0 +a #2 #1"
