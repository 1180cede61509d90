"""The holes of the design that this one replaces, a Lambda that writes a row for each event and another
that refreshes ("AWS S3 event aggregation with Lambda and DynamoDB", 2018): its code would fail each test.

Those that are about services stand in tests/integration/s3refresh; the last test here is the table of all.
"""

import ast
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from caretaker.api.s3refresh import Filter, SQSSource
from caretaker.s3refresh import debounce, match, queue_view
from caretaker.s3refresh.debounce import Claim, DirtyScope, InFlight, LastCall, TargetState
from caretaker.s3refresh.envelope import ObjectEvent, parse
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.snapshot import Discovery, Message, Plan, PlanInput, Result
from caretaker.s3refresh.timing import TargetTimes

NOW = 1_800_000_000.0
SHARE = Share(id="share", arn="arn:share", bucket="bucket", group="gateway")
A = Scope(folders=frozenset({"/", "a"}))
CALL = Request(("a", "/"), recursive=False)
CLAIM = Claim("c1", "me", NOW - 5, CALL, NOW - 40)
CLAIMED = TargetState("share", claim=CLAIM, last=LastCall(requested_at=NOW - 5))
HOLES = 23
TESTS = Path(__file__).parents[2]


def planned(*targets: TargetState, **more: Any) -> Plan:
    """A pass at NOW."""
    given: dict[str, Any] = {
        "targets": targets,
        "first": False,
        "discovery": Discovery(complete=True, shares=(SHARE,)),
        "filter": Filter(),
        "options": DebounceOptions(),
        "owner": "me",
        "pass_id": "p",
        "now": NOW,
        **more,
    }
    return plan(PlanInput(**given))


def event(key: str, *, time: str = "2027-01-15T08:00:00.000Z", **more: Any) -> Message:
    """A message as S3 sends it."""
    what = {"bucket": {"name": "bucket"}, "object": {"key": key, "sequencer": "0"}}
    record = {"eventVersion": "2.6", "eventTime": time, "eventName": "ObjectCreated:Put", "s3": what, **more}
    return Message(1, parse(json.dumps({"Records": [record]})).events)


def times(last_event: float, dirty_for: float) -> dict[str, TargetTimes]:
    return {"share": TargetTimes(last_event=last_event, dirty_for=dirty_for)}


def only(made: Plan) -> TargetState:
    (target,) = made.targets
    return target


def waiting(since: float) -> TargetState:
    return TargetState("share", dirty=DirtyScope(since, A))


def test_a_send_that_failed_after_the_claim_was_written_is_made_again() -> None:
    """Hole 1: the row said that a refresh was on its way; the send's error was swallowed, and no event made
    another one until the row expired."""
    failed = planned(CLAIMED, results=(Result("share", "c1", code="ConnectionLost", message="no"),))
    died = planned(CLAIMED, times={"share": TargetTimes(claim_age=3_600.0)})
    for made in (failed, died):
        assert only(made).claim is None
        assert only(made).dirty == DirtyScope(NOW - 40, A)
        assert made.wake > NOW


def test_a_delay_of_hours_is_kept() -> None:
    """Hole 3: SQS delays a message for 900 s at most, and a longer window was never sent."""
    options = DebounceOptions(quiet_period=3 * 3600.0, max_delay=6 * 3600.0)
    made = planned(TargetState("share"), messages=(event("a/1"),), options=options)
    assert made.wake == NOW + 3 * 3600
    later = planned(only(made), options=options, now=made.wake, times=times(3 * 3600.0, 3 * 3600.0))
    assert [claim.request for _, claim in later.calls] == [CALL]


def test_an_event_of_the_far_future_puts_nothing_off() -> None:
    """Hole 4: an eventTime ahead of all clocks suppressed everything until then."""
    made = planned(TargetState("share"), messages=(event("a/1", time="2099-01-01T00:00:00.000Z"),))
    assert (only(made).dirty, made.wake) == (DirtyScope(NOW, A), NOW + 30)
    later = planned(only(made), now=NOW + 30, times=times(30.0, 30.0))
    assert len(later.calls) == 1


def test_an_object_written_while_a_refresh_runs_is_refreshed_again() -> None:
    """Hole 5: with S3's clock behind, an object written just after the refresh began looked older than it."""
    in_flight = TargetState("share", in_flight=InFlight("n", NOW - 1, CALL), last=LastCall(NOW - 1, NOW - 1))
    made = planned(in_flight, messages=(event("a/1", time="2001-01-01T00:00:00.000Z"),))
    assert only(made).dirty == DirtyScope(NOW, A)
    assert only(made).in_flight is not None


def test_events_that_came_while_a_call_was_made_do_not_depend_on_it() -> None:
    """Hole 6: all events of a window relied on the one refresh at its end, which may fail."""
    came = planned(CLAIMED, messages=(event("b/1"),), running=frozenset({"c1"}))
    made = planned(only(came), results=(Result("share", "c1", code="Busy", message="no"),))
    assert only(made).dirty == DirtyScope(NOW - 40, Scope(folders=frozenset({"/", "a", "b"})))


def test_a_refresh_that_is_refused_is_told_and_made_again() -> None:
    """Hole 7: errors were logged, and the message acknowledged all the same."""
    refused = Result("share", "c1", code="InvalidGatewayRequestException", message="busy")
    target = only(planned(CLAIMED, results=(refused,)))
    assert target.failure is not None
    assert (target.failure.code, target.failure.message) == (refused.code, "busy")
    known = {"share": TargetTimes(last_event=3_600.0, dirty_for=3_600.0, called_for=3_600.0)}
    again = planned(target, now=target.failure.next_attempt_at, times=known)
    assert [claim.request for _, claim in again.calls] == [CALL]


def test_no_call_comes_sooner_than_a_gateway_heeds_it() -> None:
    """Hole 8: its window of 30 s is below the 60 s in which a further refresh may evict nothing."""
    called = msgspec.structs.replace(waiting(NOW - 31), last=LastCall(NOW - 31, NOW - 30))
    known = {"share": TargetTimes(last_event=31.0, dirty_for=31.0, called_for=30.0)}
    made = planned(called, times=known)
    assert (made.calls, made.wake) == ((), NOW + 30)


def test_the_first_event_of_a_share_needs_no_record() -> None:
    """Hole 15: the update of a row that was not there failed."""
    made = planned(first=True, resync_on_start=False, messages=(event("a/1"),))
    assert only(made).dirty == DirtyScope(NOW, A)
    assert made.done == (1,)


def test_what_a_gateway_writes_is_news_for_the_others() -> None:
    """Hole 16: every event whose principal named StorageGateway was dropped: the bucket's other gateways
    never saw what one had written."""
    by_gateway = {"userIdentity": {"principalId": "AWS:AROAEXAMPLE:StorageGateway"}}
    made = planned(TargetState("share"), messages=(event("a/1", **by_gateway),))
    assert only(made).dirty == DirtyScope(NOW, A)
    asked = planned(
        TargetState("share"),
        messages=(event("a/1", **by_gateway),),
        filter=Filter(ignore_principals=("*:StorageGateway",)),
    )
    assert (only(asked).dirty, asked.matches.filtered) == (None, 1)


def test_a_refresh_waits_until_the_upload_is_over() -> None:
    """Hole 17: its window began with the first event, and the refresh ran in the middle of an upload."""
    uploading = planned(waiting(NOW - 40), messages=(event("a/40"),), times=times(1.0, 40.0))
    assert (uploading.calls, uploading.wake) == ((), NOW + 30)
    endless = planned(waiting(NOW - 600), messages=(event("a/600"),), times=times(1.0, 600.0))
    assert len(endless.calls) == 1, "at maxDelay it is made all the same"


def test_an_outage_ends_with_one_refresh() -> None:
    """Hole 18: each window that had passed had left a message, and all were refreshed back to back."""
    backlog = tuple(
        Message(number, (ObjectEvent("ObjectCreated", "bucket", f"a/{number}"),)) for number in range(5_000)
    )
    made = planned(waiting(NOW - 86_400), messages=backlog, times=times(0.0, 86_400.0))
    assert len(made.calls) == 1
    assert len(made.done) == len(backlog)
    (_, claim), target = made.calls[0], only(made)
    after = debounce.completed(debounce.accepted(target, claim.id, "n", NOW), "n", NOW)
    more = planned(after, messages=(event("b/1"),), options=DebounceOptions(quiet_period=0.0))
    assert (more.calls, more.wake) == ((), NOW + 60)


def test_a_refresh_is_of_the_folders_that_changed() -> None:
    """Hole 19: every refresh was of the whole bucket, recursive: a LIST and a HEAD for each object of it."""
    made = planned(
        TargetState("share"), messages=(event("a/b/1"),), options=DebounceOptions(quiet_period=0.0)
    )
    ((_, claim),) = made.calls
    assert claim.request == Request(("a/b", "a", "/"), recursive=False)
    assert claim.request.scope != EVERYTHING


def test_expired_objects_are_followed() -> None:
    """Hole 20: ObjectRemoved holds no expiration, so that objects which a lifecycle rule had deleted were
    shown for ever."""
    for name in ("s3:LifecycleExpiration:Delete", "LifecycleExpiration:DeleteMarkerCreated"):
        (found,) = event("a/1", eventName=name).events
        assert found.kind == "LifecycleExpiration"
        assert match.wanted(Filter(), found)


def test_without_a_dead_letter_queue_it_is_told() -> None:
    """Hole 21: with neither a dead-letter queue nor an alarm, nobody heard of what could not be read."""
    fault = queue_view.fault_of({}, SQSSource(queue_url="https://sqs.eu-west-1.amazonaws.com/111122223333/q"))
    assert "has no dead-letter queue" in fault


def test_every_hole_has_its_test() -> None:
    """Docstrings that begin with `Hole 4:` or `Holes 17 and 19:`."""
    tests = defaultdict(list)
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text()
        # To parse them all takes seconds.
        for node in ast.walk(ast.parse(text)) if '"""Hole' in text else ():
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith(
                "test_"
            ):
                continue
            named = re.match(r"Holes? ([\d, and]+):", ast.get_docstring(node) or "")
            for number in re.findall(r"\d+", named[1]) if named else ():
                tests[int(number)].append(f"{file.name}::{node.name}")
    assert sorted(tests) == list(range(1, HOLES + 1))
