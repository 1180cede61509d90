"""What `caretaker status` says of an S3AggregatedRefresh, from its record alone."""

import sys
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from caretaker.api import conditions as c
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.s3refresh import BucketStatus, CostStatus
from caretaker.cli.s3refresh import status
from caretaker.cli.s3refresh.status import ADVICE, VIEW, as_json, as_text
from caretaker.s3refresh.debounce import Failure, LastCall, TargetState
from unit.cli.s3refresh.build import (
    CLEAN,
    EVERY,
    FAILING,
    NOW,
    QUEUE,
    WAITING,
    conditions,
    look,
)

FINE = conditions((c.READY, "True", Reason.CONSUMING), (c.CAUGHT_UP, "True", Reason.UP_TO_DATE))


def text(*, wide: bool = False, **how: Any) -> str:
    return "\n".join(status.as_text(look(**how), wide))


def rows(*, wide: bool = False) -> dict[str, str]:
    """The table's rows by target."""
    table = text(targets=EVERY, wide=wide).split("\n\n")[1].splitlines()
    return {line.split()[0]: line for line in table[1:]}


def test_the_sum_and_the_queue_come_first() -> None:
    lines = text(targets=EVERY, queue=QUEUE, conditions=FINE).splitlines()
    assert lines[0] == (
        "S3AggregatedRefresh n/r: 6 targets, 1 Backoff, 1 Due, 1 Claimed, 1 InFlight, 1 Debouncing, 1 Clean"
    )
    assert lines[1] == "  Ready=True: Consuming"
    assert lines[2] == "  queue: 3 visible, 1 in flight, 2 in the dead-letter queue, 40s ago"
    assert lines[3] == ""


def test_a_resource_that_nobody_has_looked_at_is_told() -> None:
    assert text(observed_generation=-1) == (
        "S3AggregatedRefresh n/r: 0 targets\n"
        "  queue: not looked at yet\n"
        "  the operator has not looked at this yet; if that lasts: does it run, and in this namespace?"
    )


@pytest.mark.parametrize(
    ("target", "cells"),
    [
        pytest.param("clean", ["Clean", "2m ago, 3 folders, took 5s", "nothing waits"], id="clean"),
        pytest.param(
            "waiting",
            [
                "Debouncing",
                "3: in/2026, in, /",
                "at the latest at 08:09:50Z, in 9m",
                "30s (quietPeriod) after the last event, at most 10m (maxDelay) after the first",
            ],
            id="dirty",
        ),
        pytest.param(
            "flying",
            [
                "InFlight",
                "everything",
                "for 40s",
                "in 20s, at the latest at 08:09:55Z",
                "after the refresh in",
            ],
            id="in flight and dirty again",
        ),
        pytest.param(
            "calling",
            ["Claimed", "calling for 2s", "asked for 2s ago", "the call is being made"],
            id="claimed",
        ),
        pytest.param(
            "failing",
            [
                "Backoff",
                "61: d00, d01, d02, ...",
                "  2         in 45s",
                "the next try after 2 failures: Thr",
            ],
            id="failing",
        ),
        pytest.param("due", ["Due", "due for 5s", "it waits for its turn at the gateway"], id="due"),
    ],
)
def test_each_target_has_its_row(target: str, cells: list[str]) -> None:
    row = rows()[target]
    assert [cell for cell in cells if cell not in row] == []


def test_wide_rows_are_not_cut() -> None:
    narrow, wide = rows(), rows(wide=True)
    assert "d59" in wide["failing"]
    assert "d59" not in narrow["failing"]
    assert "2 Throttled: slow [2J down" in wide["failing"]
    long = TargetState("t", dirty=WAITING.dirty, failure=Failure(1, "C" * 100, "", NOW + 900))
    assert text(targets=[(long, "Backoff")]).endswith("C…")
    assert text(targets=[(long, "Backoff")], wide=True).endswith("C")


def test_a_wide_row_has_the_bucket_and_prefix() -> None:
    found = [(TargetState("share-1", location="ledger/team/"), "Clean"), (TargetState("media"), "Clean")]
    table = text(targets=found, wide=True).split("\n\n")[1].splitlines()
    assert [line.split()[:3] for line in table] == [
        ["TARGET", "LOCATION", "PHASE"],
        ["media", "-", "Clean"],
        ["share-1", "ledger/team/", "Clean"],
    ]
    assert "ledger" not in text(targets=found)


def test_nothing_in_a_name_or_a_message_can_paint_the_terminal() -> None:
    assert "\x1b" not in text(targets=EVERY, wide=True)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (LastCall(NOW - 60, NOW - 60, NOW - 60, full_at=NOW - 60, folders=1), "60s ago, everything"),
        (
            LastCall(NOW - 60, NOW - 60, NOW - 20, folders=2, result="Assumed"),
            "60s ago, 2 folders, end assumed",
        ),
        (
            LastCall(NOW - 60, NOW - 60, NOW - 20, folders=1, result="Lost"),
            "60s ago, 1 folder, end not heard of",
        ),
    ],
    ids=["everything", "the end assumed", "the end lost"],
)
def test_the_last_refresh_is_told(last: LastCall, words: str) -> None:
    assert words in text(targets=[(TargetState("t", last=last), "Clean")])


def test_a_call_that_nobody_makes_asks_for_the_operator() -> None:
    late = msgspec.structs.replace(WAITING, dirty=msgspec.structs.replace(WAITING.dirty, since=NOW - 900))
    assert "due for 5m  the operator is about to start it: does it run?" in text(
        targets=[(late, "Debouncing")]
    )


def test_conditions_come_with_what_to_do_each_reason_once() -> None:
    told = text(
        conditions=conditions(
            (c.READY, "False", Reason.QUEUE_NOT_FOUND),
            (c.QUEUE_REACHABLE, "False", Reason.QUEUE_NOT_FOUND),
            (c.CAUGHT_UP, "False", Reason.WAITING),
            (c.MALFORMED_MESSAGES, "True", Reason.UNREADABLE),
        )
    ).splitlines()
    assert told[3:] == [
        "  Ready: QueueNotFound: why",
        f"    -> {ADVICE[Reason.QUEUE_NOT_FOUND]}",
        "  MalformedMessages: Unreadable: why",
        f"    -> {ADVICE[Reason.UNREADABLE]}",
    ]


def test_json_has_the_record_and_what_is_next() -> None:
    told = msgspec.json.decode(msgspec.json.encode(status.as_json(look(EVERY, queue=QUEUE))))
    targets = {target["id"]: target for target in told["targets"]}
    assert targets["waiting"] == {
        "id": "waiting",
        "phase": "Debouncing",
        "dirty": {"since": "2027-01-15T07:59:50.000000+00:00", "folders": ["/", "in", "in/2026"]},
        "claim": None,
        "inFlight": None,
        "last": None,
        "failure": None,
        "next": {
            "why": "Quiet",
            "message": "30s (quietPeriod) after the last event, at most 10m (maxDelay) after the first",
            "at": "2027-01-15T08:09:50Z",
            "latest": True,
            "notBefore": None,
            "folders": ["in/2026", "in", "/"],
            "recursive": False,
        },
    }
    assert targets["clean"]["next"]["at"] is None
    assert told["queue"] == {
        "visible": 3,
        "inFlight": 1,
        "dlqVisible": 2,
        "dlqCovered": 0,
        "checkedAt": "2027-01-15T07:59:20Z",
        "dlqARN": "",
    }


class _Terminal:
    """What Colours asks of a stream."""

    def isatty(self) -> bool:
        return True

    def write(self, _: str) -> int:
        return 0


def test_phases_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", _Terminal())
    told = text(targets=EVERY)
    assert "\x1b[31mBackoff\x1b[0m" in told
    assert "\x1b[32mClean\x1b[0m" in told


class TestWatch:
    def test_a_line_tells_phases_and_what_waits(self) -> None:
        assert VIEW.line(look([(CLEAN, "Clean")])) == "1 target, 1 Clean"
        assert VIEW.line(look(EVERY)).endswith("; waiting: everything of 1 target and 67 folders")
        assert VIEW.bar(look([(WAITING, "Debouncing")])).endswith("; next call at the latest at 08:09:50Z")

    def test_calls_are_news(self) -> None:
        before, after = (
            look([(WAITING, "Debouncing"), (CLEAN, "Clean")]),
            look(
                [
                    (TargetState("waiting", last=LastCall(NOW, NOW, folders=3)), "InFlight"),
                    (msgspec.structs.replace(FAILING, id="clean"), "Backoff"),
                ]
            ),
        )
        assert list(VIEW.news(before, after)) == [
            "clean: failed, Throttled: slow [2J down",
            "waiting: accepted, 3 folders",
        ]

    @pytest.mark.parametrize(
        ("how", "code"),
        [
            pytest.param({"conditions": FINE}, 0, id="caught up: well"),
            pytest.param({"conditions": FINE, "generation": 2}, None, id="a newer spec: not yet"),
            pytest.param(
                {
                    "conditions": conditions(
                        (c.READY, "True", Reason.CONSUMING), (c.CAUGHT_UP, "False", Reason.WAITING)
                    )
                },
                None,
                id="something waits: not yet",
            ),
            pytest.param(
                {
                    "conditions": conditions(
                        (c.READY, "False", Reason.STARTING), (c.CAUGHT_UP, "True", Reason.UP_TO_DATE)
                    )
                },
                None,
                id="not looked at: not yet",
            ),
            pytest.param(
                {
                    "conditions": conditions(
                        (c.READY, "False", Reason.NOT_GRANTED), (c.STALLED, "True", Reason.NOT_GRANTED)
                    )
                },
                1,
                id="stalled: with a failure",
            ),
            pytest.param(
                {
                    "conditions": conditions(
                        (c.READY, "True", Reason.SUSPENDED),
                        (c.CAUGHT_UP, "False", Reason.WAITING),
                        (c.SUSPENDED, "True", Reason.SUSPENDED),
                    )
                },
                0,
                id="suspended: well",
            ),
            pytest.param({}, None, id="no conditions: not yet"),
        ],
    )
    def test_when_it_ends(self, how: dict[str, Any], code: int | None) -> None:
        assert VIEW.ended(look([(CLEAN, "Clean")], **how)) == code


class TestCost:
    MEDIA = BucketStatus("media", "eu-west-1", 2, 1_000_000, "2027-01-14T00:00:00Z")

    def test_it_has_a_line_with_the_interval_of_the_budget(self) -> None:
        cost = CostStatus((self.MEDIA,), "0.8100", 182, "9h43m")
        lines = as_text(look([(CLEAN, "Clean")], cost=cost), wide=False)
        (line,) = [one for one in lines if "cost:" in one]
        assert line == (
            "  cost: a refresh of everything costs an estimated 0.8100 for 2000000 objects, and takes 182 s "
            "or more; one of folders at most a LIST for each folder more; the budget makes minInterval 9h43m"
        )
        assert as_json(look(cost=cost))["cost"] == cost

    def test_a_cost_that_is_not_known_is_shown_as_such(self) -> None:
        lines = as_text(look(cost=CostStatus((BucketStatus("media", "eu-west-1"),))), wide=False)
        assert "  cost: the cost of a refresh is not known" in lines

    def test_without_spec_cost_there_is_no_line(self) -> None:
        assert not [one for one in as_text(look([(CLEAN, "Clean")]), wide=False) if "cost" in one]
        assert as_json(look())["cost"] is None

    def test_the_next_call_waits_for_the_interval_of_the_budget(self) -> None:
        """Of a resource that has a budget and a count on record."""
        called = replace(WAITING, last=LastCall(NOW - 3600, NOW - 3600, NOW - 3590, result="Succeeded"))
        spec = {"cost": {"maxEstimatedCostPerDay": "2"}}
        one = replace(self.MEDIA, targets=1)
        state = look([(called, "Debouncing")], spec=spec, cost=CostStatus((one,)))
        (found,) = state.outlooks
        assert (found.next.why, found.next.at) == ("MinInterval", NOW - 3600 + 21600)
        assert "6h (minInterval by the budget) after the last refresh" in found.next.message
