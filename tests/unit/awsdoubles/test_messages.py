"""What the fault proxy changes in SQS bodies."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from awsdoubles.sqsproxy.messages import Backlog, forgive, original, split, success
from awsdoubles.sqsproxy.rules import Duplicate, Fail, FailEntries, Match, Reorder, Rule

ENTRIES = [{"Id": str(n), "ReceiptHandle": f"h{n}"} for n in range(3)]


def messages(*names: int) -> list[dict[str, Any]]:
    return [{"MessageId": str(n), "ReceiptHandle": f"h{n}"} for n in names]


def test_success_without_effect() -> None:
    assert success("DeleteMessage", {"ReceiptHandle": "h"}) == {}
    expected = {"Successful": [{"Id": "0"}, {"Id": "1"}, {"Id": "2"}], "Failed": []}
    assert success("DeleteMessageBatch", {"Entries": ENTRIES}) == expected


def test_a_batch_is_split() -> None:
    body, failed = split({"QueueUrl": "q", "Entries": ENTRIES}, FailEntries(2, "Busy", sender_fault=True))
    assert body == {"QueueUrl": "q", "Entries": ENTRIES[2:]}
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in failed] == [
        ("0", "Busy", True),
        ("1", "Busy", True),
    ]


def test_handles_of_copies_are_translated() -> None:
    body = {"Entries": [{"Id": "x", "ReceiptHandle": "again-1:h:1"}, {"Id": "y", "ReceiptHandle": "h2"}]}
    assert original(body) == (
        {"Entries": [{"Id": "x", "ReceiptHandle": "h:1"}, {"Id": "y", "ReceiptHandle": "h2"}]},
        {"x"},
    )
    assert original({"ReceiptHandle": "again-9:h"}) == ({"ReceiptHandle": "h"}, {""})
    assert original({"QueueUrl": "q"}) == ({"QueueUrl": "q"}, set())


def test_stale_handles_are_forgiven_to_copies_only() -> None:
    failed = [{"Id": name, "Code": "ReceiptHandleIsInvalid"} for name in ("copy", "other")]
    failed.append({"Id": "busy", "Code": "InternalError"})
    found = forgive({"Successful": [{"Id": "good"}], "Failed": failed}, {"copy", "busy"})
    assert found == {"Successful": [{"Id": "good"}, {"Id": "copy"}], "Failed": failed[1:]}


def test_copies_have_handles_of_their_own() -> None:
    backlog = Backlog(random.Random(0))
    first = backlog.deliver(messages(1), 10, [Duplicate(copies=2)])
    again = backlog.deliver([], 10, [Duplicate()])
    assert [one["ReceiptHandle"] for one in first + again] == ["h1", "again-1:h1", "again-2:h1"]
    assert not backlog


faults = st.lists(st.sampled_from([Reorder(0), Reorder(3), Reorder(20)]), max_size=2)


@given(
    receives=st.lists(st.tuples(st.integers(0, 10), st.integers(1, 10), faults), max_size=8),
    seed=st.integers(),
)
def test_no_message_is_lost_or_late_for_ever(receives: list[Any], seed: int) -> None:
    backlog = Backlog(random.Random(seed))
    sent = got = 0
    for count, limit, how in receives:
        fresh = messages(*range(sent, sent + count))
        sent += count
        found = backlog.deliver(fresh, limit, how)
        assert len(found) <= limit
        assert found or not (fresh or backlog)
        got += len(found)
    while backlog:
        got += len(backlog.deliver([], 10, []))
    assert got == sent


def test_a_rule_ends_after_its_count() -> None:
    rule = Rule(Match("Delete*", "mine"), Fail(), 1, lambda _: None)
    chance = random.Random(0)
    assert not rule.takes("DeleteMessage", "other", chance)
    assert not rule.takes("ReceiveMessage", "mine", chance)
    assert rule.takes("DeleteMessage", "mine", chance)
    assert not rule.takes("DeleteMessage", "mine", chance)
    rule.wait(1, timeout=0)
