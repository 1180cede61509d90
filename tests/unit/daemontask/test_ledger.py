"""Ledger entries: what is corrupt is told, which shard has which, and that a full one fits."""

import json
from string import ascii_letters
from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.objects import MAX_SEQ, ContainerEnd
from caretaker.daemontask import results
from caretaker.daemontask.ledger import (
    SHARD_NODES,
    Entry,
    Fault,
    Value,
    decode_entry,
    encode_entry,
    merge,
    place,
)
from caretaker.daemontask.pod_failure_policy import entry_for
from caretaker.daemontask.pods import pod_name
from caretaker.daemontask.shard import Shard
from unit.daemontask.build import NOW, UID, decision_input, entry, failed, node, pod, succeeded

A = node("a")
CONFIG_MAP_BYTES = 1024 * 1024


def test_an_entry_reads_as_it_was_written() -> None:
    assert decode_entry(encode_entry(entry(A))) == entry(A)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"finishedAt": 10**15}, id="a date that no calendar has"),
        pytest.param({"startedAt": -1}, id="a date before 1970"),
        pytest.param({"tick": 10**15}, id="a tick that no calendar has"),
        pytest.param({"attempts": 2**31}, id="more attempts than an int32"),
        pytest.param({"seq": -1}, id="a negative seq"),
        pytest.param({"exitCode": 10**12}, id="no exit code"),
        pytest.param({"rebootRuns": [10**15]}, id="a reboot in no year"),
        pytest.param({"result": "Done"}, id="no result"),
        pytest.param({"results": {"ms": True}}, id="a value that is neither number nor text"),
        pytest.param({"rebootRuns": [1, 2, 3, 4]}, id="more reboots than are kept"),
        pytest.param({"results": dict.fromkeys(map(str, range(37)), 1)}, id="more values than have room"),
    ],
)
def test_what_was_edited_by_hand_is_corrupt(change: dict[str, Any]) -> None:
    changed = {**json.loads(encode_entry(entry(A))), **change}
    assert isinstance(decode_entry(json.dumps(changed)), str)


def gone(count: int, start: int = 0) -> list[str]:
    return [f"gone-{number}" for number in range(start, start + count)]


FULL = gone(SHARD_NODES)
ALMOST = FULL[1:]


@pytest.mark.parametrize(
    ("shards", "wanted", "placed"),
    [
        pytest.param({}, ["a", "b"], {0: ["a", "b"]}, id="the first shard"),
        pytest.param({0: FULL}, ["a"], {1: ["a"]}, id="a full one gets nothing new"),
        pytest.param({0: ALMOST}, ["a", "b"], {0: ["a"], 1: ["b"]}, id="to the last place, then a new one"),
        pytest.param({0: FULL}, [FULL[7], "a"], {0: [FULL[7]], 1: ["a"]}, id="whoever is there stays"),
        pytest.param(
            {0: [], 1: ["a"]}, ["a", "b"], {1: ["a"], 0: ["b"]}, id="nothing moves to where room is"
        ),
        pytest.param({0: FULL, 1: [], 2: []}, ["a"], {1: ["a"]}, id="the first with room"),
        pytest.param({1: FULL}, ["a"], {2: ["a"]}, id="a new one comes after the last"),
        pytest.param({1: []}, ["a"], {1: ["a"]}, id="one that is lost is not made while there is room"),
        pytest.param(
            {1: ["a"], 0: ["a"]}, ["a"], {0: ["a"]}, id="a duplicate's home is the first that has it"
        ),
        pytest.param({0: [*ALMOST, ALMOST[0]]}, ["a"], {0: ["a"]}, id="no name counts twice"),
        pytest.param(
            {}, gone(2001), {0: gone(1000), 1: gone(1000, 1000), 2: gone(1, 2000)}, id="2,001 nodes"
        ),
    ],
)
def test_the_shard_of_an_entry(
    shards: dict[int, list[str]], wanted: list[str], placed: dict[int, list[str]]
) -> None:
    assert place(wanted, shards) == placed


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_duplicates_the_higher_seq_wins_whichever_shard_has_it(order: tuple[int, ...]) -> None:
    b = node("b")
    shards = [
        {"a": entry(A, seq=2), "b": entry(b)},
        {"a": entry(A, "Failed", seq=10)},
        {"a": entry(A, seq=9)},
    ]
    assert merge(shards[index] for index in order) == {"a": entry(A, "Failed", seq=10), "b": entry(b)}


def test_a_full_shard_of_the_longest_results_fits_too() -> None:
    values: dict[str, Value] = {f"{letter}" * 32: letter * 64 for letter in "ab"}
    values["c"] = "c" * (results.VALUES_BYTES - len(msgspec.json.encode({**values, "c": ""})))
    assert len(msgspec.json.encode(values)) == results.VALUES_BYTES
    code = max(results.WORDS, key=len)
    full = entry(
        node(uid="u" * 36),
        seq=MAX_SEQ - 1,
        pod_uid="p" * 36,
        pod_seq=MAX_SEQ - 2,
        nonce="2026-01-01T00:00:00.000000+00:00",
        boot_id="b" * 36,
        tick=10**10 - 1,
        boot_absorbed=True,
        attempts=999,
        started_at=10**10 - 1,
        finished_at=10**10 - 1,
        reboot_runs=(10**10 - 1,) * 3,
        results=values,
        fault=Fault("d" * 32, code, "x" * (results.FOUND_BYTES - len('""'))),
    )
    assert SHARD_NODES * (253 + len(encode_entry(full).encode())) < CONFIG_MAP_BYTES


def test_a_success_keeps_its_failures_and_not_its_disruptions() -> None:
    """Their room in a full shard is that of its results."""
    before = entry(A, "Retry", attempts=2, disruptions=10)
    made = entry_for(decision_input(), succeeded(A, 2), A, before)
    assert (made.result, made.attempts, made.disruptions) == ("Succeeded", 2, 0)


def test_an_entry_with_results_reads_as_it_was_written() -> None:
    full = entry(A, results={"ms": 1.5, "n": 3, "os": "one"}, fault=Fault("x", "Missing", "ms"))
    assert decode_entry(encode_entry(full)) == full
    assert b"null" not in encode_entry(entry(A)).encode()


def test_as_many_results_as_have_room_can_be_read() -> None:
    values: dict[str, Value] = dict.fromkeys(ascii_letters[:35], 1)
    room = results.VALUES_BYTES - len(msgspec.json.encode(values))
    assert 0 <= room < len(',"x":1')
    full = entry(A, results=values)
    assert decode_entry(encode_entry(full)) == full


def test_why_an_entry_cannot_be_read_quotes_little_of_it() -> None:
    why = decode_entry(encode_entry(entry(A)).replace("Succeeded", "x" * 10_000))
    assert isinstance(why, str)
    assert why.startswith("Invalid enum value 'xxx")
    assert len(why) == 100


@pytest.mark.parametrize(
    "letter",
    [pytest.param(x, id=name) for x, name in [("\U0001f600", "emoji"), ('"', "quotes"), ("\x00", "NUL")]],
)
def test_a_full_shard_of_the_longest_entries_fits_into_a_config_map(letter: str) -> None:
    name = "n" * 253
    ends = (ContainerEnd("main", 137, letter * 500, letter * 4096),)
    pod = failed(node(name, uid="u" * 36), MAX_SEQ - 1, uid="p" * 36, ends=ends)
    made = entry_for(decision_input(), pod, node(name, uid="u" * 36), None)
    full = msgspec.structs.replace(
        made,
        node_uid="u" * 36,
        pod_seq=MAX_SEQ - 2,
        nonce="2026-01-01T00:00:00.000000+00:00",
        boot_id="b" * 36,
        tick=10**10 - 1,
        reboot_runs=(int(NOW),) * 3,
        disruptions=10,
    )
    assert isinstance(decode_entry(encode_entry(full)), Entry)
    assert SHARD_NODES * (len(name) + len(encode_entry(full).encode())) < CONFIG_MAP_BYTES


@pytest.mark.parametrize("seq", [1, 10**11 - 1, 10**11, MAX_SEQ - 1])
def test_a_seq_as_large_as_a_resource_version_is_read_again_and_its_name_is_no_longer_than_others(
    seq: int,
) -> None:
    assert pod(A, seq).seq == seq
    assert decode_entry(encode_entry(entry(A, seq=seq))) == entry(A, seq=seq)
    assert len(pod_name("t" * 63, UID, A.uid, seq)) <= 63


@pytest.mark.parametrize(
    ("told", "version"),
    [("7", 7), ("9" * 18, 10**18 - 1), (str(MAX_SEQ), 0), ("9" * 5000, 0), ("", 0), ("x7", 0), ("١", 0)],
)
def test_a_resource_version_that_is_no_number_is_none(told: str, version: int) -> None:
    assert Shard(0, "uid", told, {}, {}).version == version


@pytest.mark.parametrize("text", [str(2**62), "9" * 5000, "-1", "١"])
def test_a_seq_that_is_none_of_ours_is_none(text: str) -> None:
    marked = {**pod(A).annotations, names.POD_SEQ: text}
    assert msgspec.structs.replace(pod(A), annotations=marked).seq == 0


def test_of_entries_of_one_seq_that_of_the_first_shard_wins() -> None:
    """Where the node's next entry goes, too."""
    one, other = entry(A), entry(A, "Failed")
    assert merge([{"a": one}, {"a": other}]) == {"a": one}
    assert place(["a"], {1: ["a"], 0: ["a"]}) == {0: ["a"]}
