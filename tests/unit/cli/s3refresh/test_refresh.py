"""What caretaker refresh writes and says, of a resource as the API server has it."""

from typing import Any

import msgspec
import pytest

from caretaker.api.names import REFRESH_AT, REFRESH_FOLDERS
from caretaker.api.s3refresh import RequestsStatus
from caretaker.api.times import format_micros
from caretaker.cli.common import CommandError
from caretaker.cli.refresh import check_folders, describe, ended, merged
from caretaker.cli.s3refresh.status import RefreshState, as_json, as_text
from caretaker.s3refresh.debounce import DirtyScope, LastCall, TargetState
from caretaker.s3refresh.resource import ParsedRefresh, read
from caretaker.s3refresh.targets import registry
from unit.cli.s3refresh import build
from unit.cli.s3refresh.build import NOW

CALLED = LastCall(NOW - 20, NOW - 20)
WHOLE = TargetState("share-1", location="media/")
PART = TargetState("share-2", location="media/in/", last=CALLED)
HERE, THERE = format_micros(NOW), format_micros(NOW - 60)


def found(*targets: TargetState, marks: dict[str, str] | None = None, **how: Any) -> ParsedRefresh:
    raw = build.raw([(target, "Clean") for target in targets], **how)
    raw.metadata.annotations = marks
    return read(raw, registry().spec)


def test_the_targets_are_told_with_their_next_call() -> None:
    assert describe(found(WHOLE, PART, marks={REFRESH_AT: HERE}), NOW) == [
        "S3AggregatedRefresh n/r: 2 targets of 2 will be refreshed",
        "  share-1  everything  due for 0s  the operator is about to start it",
        "  share-2  everything  in 40s      60s (minInterval) after the last call",
    ]


def test_of_a_folder_those_that_have_it() -> None:
    marks = {REFRESH_FOLDERS: msgspec.json.encode({"s3://media/out/x": HERE}).decode()}
    assert describe(found(WHOLE, PART, marks=marks), NOW) == [
        "S3AggregatedRefresh n/r: 1 target of 2 will be refreshed",
        "  share-1  3: out/x/..., out, /  due for 0s  the operator is about to start it",
    ]


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        (found(WHOLE, spec={"suspend": True}), "nothing is started now: spec.suspend is true"),
        (found(), "asked for; it begins once a target is found"),
    ],
    ids=["suspended", "no target"],
)
def test_what_keeps_it_from_being_started_is_told(resource: ParsedRefresh, words: str) -> None:
    (line,) = describe(resource, NOW)
    assert words in line


def test_requests_of_others_that_were_not_taken_are_kept() -> None:
    marks = {REFRESH_FOLDERS: msgspec.json.encode({"a": THERE, "b": HERE, "c": "soon"}).decode()}
    before = found(WHOLE, requests=RequestsStatus(folders_at=THERE))
    assert msgspec.json.decode(merged(marks, before, {"d": HERE})) == {"b": HERE, "d": HERE}
    assert merged({REFRESH_FOLDERS: "x"}, before, {"d": HERE}) == f'{{"d":"{HERE}"}}'


def test_more_folders_than_an_annotation_may_have_are_refused() -> None:
    marks = {REFRESH_FOLDERS: msgspec.json.encode({f"{n}": HERE for n in range(50)}).decode()}
    with pytest.raises(CommandError, match="50 folders that others have asked for wait for the operator"):
        merged(marks, found(WHOLE), {"d": HERE})
    with pytest.raises(CommandError, match="51 folders, and at most 50 at a time"):
        check_folders(found(WHOLE), [f"{n}" for n in range(51)])


def test_a_folder_that_no_target_has_is_an_error_that_lists_the_places() -> None:
    check_folders(found(WHOLE, PART), ["anything", "s3://media", "/"])
    check_folders(found(), ["s3://other/a"])  # targets may be found later
    with pytest.raises(CommandError) as refused:
        check_folders(found(PART), ["in/a", "out/a", "s3://other/in"])
    assert str(refused.value).splitlines() == [
        "no target has the folder out/a; there are: s3://media/in/",
        "no target has the folder s3://other/in; there are: s3://media/in/",
    ]


def state(requests: RequestsStatus | None, **how: Any) -> RefreshState:
    return RefreshState.at(build.raw([(WHOLE, "Clean")], requests=requests, **how), NOW)


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (state(None), None),
        (state(RequestsStatus(THERE, None, HERE)), None),
        (state(RequestsStatus(HERE)), None),
        (state(RequestsStatus(HERE, None, HERE)), 0),
        (state(RequestsStatus(THERE, HERE, HERE)), 0),
        (state(RequestsStatus(HERE), spec={"suspend": True}), 1),
        (state(None, conditions=build.conditions(("Stalled", "True", "QueueConflict"))), 1),
    ],
    ids=["not taken", "an older one", "not done", "done", "folders", "suspended", "stalled"],
)
def test_a_wait_ends_when_the_request_is_done(at: RefreshState, code: int | None) -> None:
    assert ended(at, HERE) == code


@pytest.mark.parametrize(
    ("requests", "line"),
    [
        (RequestsStatus(THERE), "  refresh: asked for 60s ago, not done yet"),
        (RequestsStatus(None, THERE, HERE), "  refresh: asked for 60s ago, done 0s ago"),
    ],
)
def test_status_shows_the_last_request(requests: RequestsStatus, line: str) -> None:
    assert line in as_text(state(requests), wide=False)
    assert as_json(state(requests))["requests"] == requests


def test_status_shows_no_request_where_there_was_none() -> None:
    assert not any("refresh:" in line for line in as_text(state(None), wide=False))
    assert as_json(state(None))["requests"] is None


def test_what_was_asked_for_is_due_at_once() -> None:
    asked = TargetState("share-1", dirty=DirtyScope(NOW, build.FEW, requested=True))
    (one,) = RefreshState.at(build.raw([(asked, "Due")]), NOW).outlooks
    assert (one.next.why, one.next.at) == ("Turn", NOW)
