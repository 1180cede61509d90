"""What caretaker refresh writes and says, of a resource as the API server has it."""

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from caretaker.api.names import REFRESH_AT, REFRESH_FOLDERS
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import RequestsStatus
from caretaker.api.times import format_micros
from caretaker.cli.common import CommandError
from caretaker.cli.refresh import Asked, Change, annotate, check_folders, describe, ended, merged, new_stamp
from caretaker.cli.s3refresh.status import RefreshState, as_json, as_text
from caretaker.cli.status import _LineOutput
from caretaker.kube.errors import ApiError
from caretaker.s3refresh.annotation_requests import Place, read_requests
from caretaker.s3refresh.debounce import DirtyScope, LastCall, TargetState
from caretaker.s3refresh.resource import ParsedRefresh, RawRefresh, read
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
    assert describe(found(WHOLE, PART), NOW, None) == [
        "S3AggregatedRefresh n/r: 2 targets of 2 will be refreshed",
        "  share-1  everything  due for 0s  the operator is about to start it",
        "  share-2  everything  in 40s      60s (minInterval) after the last call",
    ]


def test_of_a_folder_those_that_have_it() -> None:
    others = TargetState("share-2", location="media/in/", dirty=DirtyScope(NOW, build.FEW, requested=True))
    assert describe(found(WHOLE, others), NOW, ["s3://media/out/x"]) == [
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
    (line,) = describe(resource, NOW, None)
    assert words in line


def test_requests_of_others_that_were_not_taken_are_kept() -> None:
    marks = {REFRESH_FOLDERS: msgspec.json.encode({"a": THERE, "b": HERE, "c": "soon"}).decode()}
    taken = read_requests(WireMeta(annotations={REFRESH_FOLDERS: folders(a=THERE)}), None, NOW).marks(None)
    before = found(WHOLE, marks=marks, requests=taken)
    assert msgspec.json.decode(merged(before, {"d": HERE}, NOW)) == {"b": HERE, "d": HERE}
    bad = found(WHOLE, marks={REFRESH_FOLDERS: "x"}, requests=taken)
    assert merged(bad, {"d": HERE}, NOW) == f'{{"d":"{HERE}"}}'


def folders(**wanted: str) -> str:
    return msgspec.json.encode(wanted).decode()


def test_more_folders_than_an_annotation_may_have_are_refused() -> None:
    marks = {REFRESH_FOLDERS: msgspec.json.encode({f"{n}": HERE for n in range(50)}).decode()}
    with pytest.raises(CommandError, match="50 folders that others have asked for wait for the operator"):
        merged(found(WHOLE, marks=marks), {"d": HERE}, NOW)
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


ASKED = Asked("", HERE, None)
STALLED = build.conditions(("Ready", "False", "QueueUnsuitable"), ("Stalled", "True", "QueueUnsuitable"))


def state(
    requests: RequestsStatus | None, *, marks: dict[str, str] | None = None, **how: Any
) -> RefreshState:
    raw = build.raw([(WHOLE, "Clean")], requests=requests, **how)
    raw.metadata.annotations = {REFRESH_AT: HERE} if marks is None else marks
    return RefreshState.at(raw, NOW)


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (state(None), None),
        (state(RequestsStatus(THERE, None, HERE)), None),
        (state(RequestsStatus(HERE)), None),
        (state(RequestsStatus(HERE, None, HERE)), 0),
        (state(RequestsStatus(format_micros(NOW + 1), None, HERE)), 0),
        (state(RequestsStatus(THERE, HERE, HERE)), None),
        (state(RequestsStatus(HERE), spec={"suspend": True}), 1),
        (state(None, conditions=build.conditions(("Ready", "False", "CredentialsUnavailable"))), 1),
        (state(None, conditions=STALLED), None),
    ],
    ids=[
        *("not taken", "an older one", "not done", "done", "a later one", "folders alone", "suspended"),
        *("held", "read and refreshed, though Stalled"),
    ],
)
def test_a_wait_ends_when_the_request_is_done(at: RefreshState, code: int | None) -> None:
    assert ended(at, ASKED) == code


def test_a_wait_for_folders_ends_when_they_are_done() -> None:
    asked, marks = Asked("", HERE, ["a"]), {REFRESH_FOLDERS: folders(a=HERE, b=THERE)}
    assert ended(state(RequestsStatus(HERE, THERE, HERE), marks=marks), asked) is None
    assert ended(state(RequestsStatus(THERE, HERE, HERE), marks=marks), asked) == 0


@pytest.mark.parametrize(
    ("asked", "marks"),
    [
        (ASKED, {}),
        (ASKED, {REFRESH_AT: THERE}),
        (Asked("", HERE, ["a", "b"]), {REFRESH_FOLDERS: folders(a=HERE)}),
    ],
)
def test_a_wait_for_what_was_removed_untaken_ends(asked: Asked, marks: dict[str, str]) -> None:
    with pytest.raises(CommandError, match="removed or replaced before the operator took it"):
        ended(state(RequestsStatus(THERE), marks=marks), asked)
    assert ended(state(RequestsStatus(HERE, HERE, HERE), marks={}), asked) == 0, "it was taken"


def test_a_wait_for_a_resource_that_was_made_again_ends() -> None:
    with pytest.raises(CommandError, match="deleted and made again"):
        ended(state(None), Asked("another", HERE, None))


def test_a_request_is_later_than_all_before_it() -> None:
    ahead = format_micros(NOW + 60)
    for made in (
        found(WHOLE, requests=RequestsStatus(ahead)),
        found(WHOLE, requests=RequestsStatus(None, ahead)),
        found(WHOLE, marks={REFRESH_AT: ahead}),
        found(WHOLE, marks={REFRESH_FOLDERS: folders(a=ahead)}),
    ):
        assert new_stamp(made, NOW) == format_micros(NOW + 60.00001)
    assert new_stamp(found(WHOLE, requests=RequestsStatus(THERE)), NOW) == HERE
    with pytest.raises(CommandError, match=r"9999-12-31T00:00:00.* more than a day ahead"):
        new_stamp(found(WHOLE, marks={REFRESH_AT: "9999-12-31T00:00:00Z"}), NOW)


class Busy:
    """An API server where another request is written and taken before ours."""

    def __init__(self, other: float) -> None:
        self.raw, self.other, self.refused = build.raw([(WHOLE, "Clean")]), other, 0

    async def get(self, *_: Any) -> RawRefresh:
        return self.raw

    async def patch(self, _path: str, body: Any, *_: Any) -> RawRefresh:
        if not self.refused:
            self.refused += 1
            marks = {REFRESH_FOLDERS: folders(a=format_micros(self.other))}
            taken = read_requests(WireMeta(annotations=marks), None, self.other).marks(None)
            self.raw = build.raw([(WHOLE, "Clean")], requests=taken)
            self.raw.metadata.annotations = marks
            raise ApiError(409, "Conflict", "it has changed")
        self.raw.metadata.annotations = body["metadata"]["annotations"]
        return self.raw


@pytest.mark.parametrize("ahead", [0.05, 60.0])
async def test_a_request_after_a_conflict_is_later_than_what_was_taken_meanwhile(ahead: float) -> None:
    server = Busy(time.time() + ahead)
    change = Change(["b"])
    session: Any = SimpleNamespace(client=server)
    changed = await annotate(session, server.raw, "path", change)
    made = read(changed, registry().spec)
    assert read_requests(made.meta, made.status.requests, time.time()).places == (Place("", "b"),)
    assert msgspec.json.decode((made.meta.annotations or {})[REFRESH_FOLDERS]) == {"b": change.stamp}


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


def test_a_wait_tells_trouble_under_no_other_commands_name(capsys: pytest.CaptureFixture[str]) -> None:
    output = _LineOutput(str)
    for trouble in ("", "no answer", "no answer"):
        output.tick(trouble)
    assert capsys.readouterr().err == "caretaker: no answer; trying again\n"
