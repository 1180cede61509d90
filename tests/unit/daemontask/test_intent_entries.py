"""Each field of an intent, of what stands behind it, and of what becomes of it."""

from typing import Any

import msgspec
import pytest

from caretaker.api import names
from caretaker.api.daemontask import Spec
from caretaker.api.objects import WireMeta
from caretaker.daemontask.intents import (
    UNREADABLE,
    concluded,
    covered,
    expected_until,
    given_up,
    intent,
    is_expected,
    is_new_end,
    kept_from_repeating,
    pod_of,
    quiet_from,
    was_unreadable,
    withdrawn,
)
from caretaker.daemontask.ledger import OUTCOME_UNKNOWN, Entry, Fault
from caretaker.daemontask.pods import Start
from unit.daemontask.build import NOW, REVISION, TEMPLATE, UID, entry, node, pod

A = node("a")
ONCE, MORE = (Spec(template=TEMPLATE, run_guarantee=which) for which in ("AtMostOnce", "AtLeastOnce"))
START = Start("a", "uid-a", 4, 2, "key", "nonce", "boot", "NodeReboot", tick=60)
BEGUN = Entry(
    node_uid="uid-a",
    revision="rev",
    run_key="key",
    result="Failed",
    seq=4,
    nonce="nonce",
    boot_id="boot",
    tick=60,
    started_at=int(NOW),
    reason=OUTCOME_UNKNOWN,
    reboot_runs=(int(NOW),),
    intent="token",
)
FULL = entry(
    A,
    run_key="key",
    seq=3,
    pod_seq=2,
    attempts=2,
    disruptions=1,
    started_at=50,
    exit_code=1,
    message="why",
    reason="Error",
    reboot_runs=(7,),
    results={"ms": 1},
    fault=Fault("", "NoMessage"),
    before=entry(A),
)
SLIM = entry(A, run_key="key", seq=0, node_uid="", attempts=2, disruptions=1, reason="Error")


def test_an_intent_says_what_it_is_for() -> None:
    assert intent(START, "rev", None, "token", NOW + 0.7) == BEGUN


def test_behind_it_stands_what_stood_there_without_what_takes_room() -> None:
    same = intent(START, "rev", FULL, "token", NOW)
    assert same == msgspec.structs.replace(BEGUN, attempts=2, disruptions=1, reboot_runs=(7,), before=SLIM)
    other = intent(START, "rev", msgspec.structs.replace(FULL, run_key="other"), "token", NOW)
    slim = msgspec.structs.replace(SLIM, run_key="other")
    assert other == msgspec.structs.replace(BEGUN, reboot_runs=(7, int(NOW)), before=slim)


MARKS = {
    names.POD_RUN_KEY: "key",
    names.POD_NONCE: "nonce",
    names.POD_BOOT_ID: "boot",
    names.POD_SCHEDULED_AT: "1970-01-01T00:01:00Z",
    names.POD_TRIGGER: "NodeReboot",
}
LIVE = pod(A, 4, revision="rev", marks=MARKS, created=NOW + 0.7, uid="0123456789abcdef")


def test_a_pod_that_was_created_without_one_gets_one() -> None:
    made = msgspec.structs.replace(BEGUN, intent="0123456789ab")
    assert covered(ONCE, [LIVE], None) == made
    told = covered(ONCE, [LIVE], FULL)
    assert told == msgspec.structs.replace(made, attempts=2, disruptions=1, reboot_runs=(7,), before=SLIM)


def test_what_a_pod_does_not_say_is_empty() -> None:
    bare = msgspec.structs.replace(LIVE, annotations={names.POD_SEQ: "4"}, labels={}, created=NOW)
    assert covered(ONCE, [bare], None) == Entry(
        node_uid="",
        revision="",
        run_key="",
        result="Failed",
        seq=4,
        started_at=int(NOW),
        reason=OUTCOME_UNKNOWN,
        intent="0123456789ab",
    )


def test_a_tick_before_1970_is_none() -> None:
    early = pod(A, 4, marks={names.POD_SCHEDULED_AT: "1960-01-01T00:00:00Z"})
    told = covered(ONCE, [early], None)
    assert told is not None
    assert told.tick == 0


@pytest.mark.parametrize(
    ("pods", "seq"),
    [
        pytest.param([pod(A, 1, node_name=""), pod(A, 2)], 2, id="one that has a node comes first"),
        pytest.param([pod(A, 1, created=NOW), pod(A, 2, created=NOW - 9)], 2, id="then the oldest"),
        pytest.param([pod(A, 2), pod(A, 1)], 1, id="then the lowest number"),
    ],
)
def test_of_several_pods(pods: list[Any], seq: int) -> None:
    told = covered(ONCE, pods, None)
    assert told is not None
    assert told.seq == seq


def test_a_pod_that_is_recorded_or_may_be_repeated_needs_none() -> None:
    assert covered(ONCE, [LIVE], entry(A, seq=4)) == entry(A, seq=4)
    assert covered(MORE, [LIVE], None) is None
    assert covered(MORE, [LIVE], FULL) is FULL


# ---------------------------------------------------------------- what becomes of it


@pytest.mark.parametrize(
    ("ago", "expected"), [(0, True), (30.9, True), (31, False), (-30.9, True), (-31, False)]
)
def test_how_long_its_pod_may_be_on_its_way(ago: float, expected: bool) -> None:
    assert is_expected(BEGUN, NOW + ago) is expected
    assert (NOW + abs(ago) < expected_until(BEGUN)) is expected


def test_until_when_another_operator_may_create() -> None:
    ended = msgspec.structs.replace(BEGUN, finished_at=int(NOW))
    assert quiet_from(ended) - NOW == expected_until(BEGUN) - NOW == 31.0


RETRY = Entry(
    node_uid="uid-a",
    revision="rev",
    run_key="key",
    result="Retry",
    seq=4,
    nonce="nonce",
    boot_id="boot",
    tick=60,
)
BEFORE = msgspec.structs.replace(BEGUN, before=SLIM, reboot_runs=(7, int(NOW)))


def test_one_that_is_taken_back_leaves_what_stood_there_or_a_run_that_is_due() -> None:
    assert withdrawn(BEGUN) == RETRY
    assert withdrawn(BEFORE) == msgspec.structs.replace(SLIM, node_uid="uid-a", seq=4, reboot_runs=(7,))


@pytest.mark.parametrize(
    ("spec", "of", "unstarted", "after", "expected"),
    [
        pytest.param(ONCE, BEGUN, "", 30, BEGUN, id="its Pod may come"),
        pytest.param(MORE, BEGUN, "", 30, BEGUN, id="whatever is promised"),
        pytest.param(ONCE, BEGUN, "token", 0, RETRY, id="it ran nothing"),
        pytest.param(ONCE, BEGUN, "other", 0, BEGUN, id="another did"),
        pytest.param(MORE, BEGUN, "", 31, RETRY, id="it may be repeated"),
    ],
)
def test_what_follows_from_one_whose_pod_cannot_be_seen(
    spec: Spec, of: Entry, unstarted: str, after: float, expected: Entry
) -> None:
    assert concluded(spec, of, unstarted, NOW + after) == expected


def test_a_run_whose_pod_is_gone_is_told() -> None:
    closed = concluded(ONCE, BEFORE, "", NOW + 31)
    words = "its Pod was gone, or never seen, before its end was recorded; look at the node, then rerun it"
    ended = {"finished_at": int(NOW + 31), "message": words, "before": None}
    assert closed == msgspec.structs.replace(BEFORE, **ended)
    assert concluded(ONCE, closed, "", NOW + 99) is closed


@pytest.mark.parametrize(
    ("spec", "of", "result"),
    [
        pytest.param(ONCE, entry(A, "Retry"), "Failed", id="it would be repeated"),
        pytest.param(MORE, entry(A, "Retry"), "Retry", id="and may be"),
        pytest.param(ONCE, entry(A, "Retry", pod_uid=""), "Retry", id="nothing has run"),
        pytest.param(ONCE, entry(A), "Succeeded", id="it would not"),
    ],
)
def test_a_change_to_at_most_once_repeats_nothing(spec: Spec, of: Entry, result: str) -> None:
    assert kept_from_repeating(spec, of).result == result


def test_the_name_of_the_pod_that_an_entry_is_about() -> None:
    task = WireMeta(name="task", uid=UID)
    assert pod_of(task, entry(A, seq=4)) == pod_of(task, entry(A, seq=9, pod_seq=4)) == pod(A, 4).name
    assert pod_of(task, entry(A, seq=4, pod_uid="", intent="token")) == pod(A, 4).name
    assert pod_of(task, entry(A, seq=4, pod_uid="")) == ""


GONE = msgspec.structs.replace(BEGUN, finished_at=5)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param(BEGUN, GONE, True, id="its Pod is gone"),
        pytest.param(GONE, GONE, False, id="which was told"),
        pytest.param(None, GONE, False, id="of one that nobody had"),
        pytest.param(BEGUN, BEGUN, False, id="it goes on"),
        pytest.param(BEGUN, entry(A), False, id="its Pod told"),
    ],
)
def test_whose_pod_is_gone(before: Entry | None, after: Entry, told: bool) -> None:
    entries = {} if before is None else {"a": before}
    assert given_up({"b": BEGUN, **entries}, {"c": entry(A), "a": after}) == (["a"] if told else [])
    assert is_new_end(before, after) is (told or after == entry(A))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        pytest.param(msgspec.structs.replace(GONE, message=UNREADABLE), True, id="it could not be read"),
        pytest.param(GONE, False, id="its Pod is gone"),
        pytest.param(entry(A, "Failed", reason="Error", message=UNREADABLE), False, id="its program said so"),
    ],
)
def test_what_stands_for_an_entry_that_could_not_be_read(of: Entry, expected: bool) -> None:
    assert was_unreadable(of) is expected


def test_revisions_are_told_from_pods() -> None:
    told = covered(ONCE, [pod(A, 4)], None)
    assert told is not None
    assert told.revision == REVISION
