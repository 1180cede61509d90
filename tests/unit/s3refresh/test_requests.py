"""A refresh that a person asks for: what waits for it, which targets it concerns, when it counts as done."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from caretaker.api import conditions as c
from caretaker.api.names import REFRESH_AT, REFRESH_FOLDERS
from caretaker.api.s3refresh import RequestsStatus, Status
from caretaker.s3refresh import annotation_requests, debounce, plan, record_bounds, resource, timing
from caretaker.s3refresh.annotation_requests import RefreshRequests
from caretaker.s3refresh.debounce import (
    Backoff,
    CallError,
    Claim,
    DirtyScope,
    Failure,
    InFlight,
    LastCall,
    NewCall,
    TargetState,
)
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.snapshot import Discovery, Plan
from caretaker.s3refresh.status import status_of, transitions
from caretaker.s3refresh.timing import TargetTimes
from unit.s3refresh.states import view
from unit.s3refresh.test_annotation_requests import T1, T3, Z1, Z3, read
from unit.s3refresh.test_plan import of, planned

NOW = 1_800_000_000.0
OPTIONS = DebounceOptions()
BACKOFF = Backoff(OPTIONS, NOW, 1.0)
ERROR = CallError("Busy", "no")
A = Scope(folders=frozenset({"/", "a"}))
B = Scope(folders=frozenset({"/", "b"}))
ONLY_B = Scope(folders=frozenset({"b"}))
CALL = Request(("a", "/"), recursive=False)
CLEAN = TargetState("t")
CLAIMED = TargetState("t", claim=Claim("c1", "me", NOW - 5, CALL, NOW - 40, requested=True))
IN_FLIGHT = TargetState("t", in_flight=InFlight("n1", NOW - 30, CALL, requested=True))


class TestAsk:
    """One target."""

    def test_it_waits_as_an_event_and_is_marked(self) -> None:
        assert annotation_requests.ask(CLEAN, A, NOW).dirty == DirtyScope(NOW, A, requested=True)

    def test_what_waits_already_is_marked(self) -> None:
        waits = TargetState("t", dirty=DirtyScope(NOW - 10, EVERYTHING))
        assert annotation_requests.ask(waits, A, NOW).dirty == DirtyScope(
            NOW - 10, EVERYTHING, requested=True
        )

    def test_what_is_not_covered_waits_behind_a_closed_scope_and_is_marked_there(self) -> None:
        closed = TargetState(
            "t", dirty=DirtyScope(NOW - 10, A, closed=True, later=DirtyScope(NOW - 5, ONLY_B))
        )
        later = DirtyScope(NOW - 5, ONLY_B, requested=True)
        after = DirtyScope(NOW - 10, A, closed=True, later=later, requested=True)
        assert annotation_requests.ask(closed, B, NOW).dirty == after
        covered = DirtyScope(NOW - 10, A, closed=True, later=DirtyScope(NOW - 5, ONLY_B), requested=True)
        assert annotation_requests.ask(closed, A, NOW).dirty == covered

    @pytest.mark.parametrize("busy", [CLAIMED, IN_FLIGHT], ids=["claimed", "in flight"])
    def test_a_call_under_way_covers_no_request(self, busy: TargetState) -> None:
        assert annotation_requests.ask(busy, A, NOW).dirty == DirtyScope(NOW, A, requested=True)

    @pytest.mark.parametrize("target", [CLEAN, TargetState("t", dirty=DirtyScope(NOW, A))])
    def test_nothing_is_asked_of_a_target_that_has_no_part_of_it(self, target: TargetState) -> None:
        assert annotation_requests.ask(target, Scope(), NOW) is target

    def test_later_events_keep_the_mark(self) -> None:
        asked = annotation_requests.ask(CLEAN, A, NOW)
        assert debounce.mark(asked, B, NOW + 1).requested
        assert debounce.mark(asked, EVERYTHING, NOW + 1).dirty == DirtyScope(NOW, EVERYTHING, requested=True)
        behind = DirtyScope(NOW, A, closed=True, later=DirtyScope(NOW, ONLY_B, requested=True))
        whole = debounce.mark(TargetState("t", dirty=behind), EVERYTHING, NOW + 1)
        assert whole.dirty == DirtyScope(NOW, EVERYTHING, requested=True)
        assert record_bounds.widened(TargetState("t", dirty=behind)).dirty == whole.dirty


class TestMark:
    """The mark follows the folders from step to step."""

    def test_through_a_call_to_its_end(self) -> None:
        claimed = debounce.claim(annotation_requests.ask(CLEAN, A, NOW), NewCall("c1", "me"), OPTIONS, NOW)
        assert claimed.claim == Claim("c1", "me", NOW, CALL, NOW, requested=True)
        begun = debounce.accepted(claimed, "c1", "n1", NOW + 1)
        assert begun.in_flight == InFlight("n1", NOW + 1, CALL, requested=True)
        assert begun.requested
        assert not debounce.completed(begun, "n1", NOW + 5).requested
        assert not debounce.accepted(claimed, "c1", "", NOW + 1).requested

    def test_in_status_and_back(self) -> None:
        behind = DirtyScope(NOW, A, closed=True, later=DirtyScope(NOW, ONLY_B, requested=True), most=2)
        for part in (
            CLAIMED,
            IN_FLIGHT,
            annotation_requests.ask(CLEAN, A, NOW),
            TargetState("t", dirty=behind),
        ):
            record = resource.encode_target(part, "Clean")
            stored = msgspec.json.decode(msgspec.json.encode(record), type=type(record))
            assert resource.decode_target(stored, NOW) == part

    def test_an_event_behind_it_has_none(self) -> None:
        claimed = debounce.claim(annotation_requests.ask(CLEAN, A, NOW), NewCall("c1", "me"), OPTIONS, NOW)
        after = debounce.mark(claimed, A, NOW + 1)
        assert after.dirty == DirtyScope(NOW + 1, A)

    def test_the_rest_of_several_calls_keeps_it(self) -> None:
        one = DebounceOptions(max_folders=1)
        after = debounce.claim(annotation_requests.ask(CLEAN, A, NOW), NewCall("c1", "me"), one, NOW)
        left = Scope(folders=frozenset({"/"}))
        assert after.dirty == DirtyScope(NOW, left, closed=True, requested=True)

    @pytest.mark.parametrize(
        "after",
        [
            pytest.param(debounce.failed(CLAIMED, "c1", ERROR, BACKOFF), id="failed"),
            pytest.param(debounce.unmade(CLAIMED, "c1", NOW), id="not made"),
            pytest.param(debounce.broken(IN_FLIGHT, "n1", ERROR, BACKOFF), id="failed after all"),
            pytest.param(
                debounce.overdue(IN_FLIGHT, DebounceOptions(tracked=True, completion_timeout=10), NOW),
                id="not heard of",
            ),
        ],
    )
    def test_back_to_what_waits(self, after: TargetState) -> None:
        assert after.dirty is not None
        assert (after.dirty.requested, after.dirty.scope) == (True, A)
        assert (after.claim, after.in_flight) == (None, None)

    @pytest.mark.parametrize(
        "after",
        [
            lambda target: debounce.failed(target, "c1", ERROR, BACKOFF),
            lambda target: debounce.unmade(target, "c1", NOW),
        ],
    )
    def test_a_call_without_it_leaves_that_of_what_waits(
        self, after: Callable[[TargetState], TargetState]
    ) -> None:
        held = msgspec.structs.replace(CLAIMED.claim, requested=False)
        dirty = after(TargetState("t", claim=held, dirty=DirtyScope(NOW, B, requested=True))).dirty
        assert dirty is not None
        assert dirty.requested

    @pytest.mark.parametrize(
        ("named", "closed"),
        [(("a/b", "a"), True), (("a",), True), (("a",), False)],
        ids=["few", "all", "open"],
    )
    def test_what_waits_keeps_it_when_a_call_without_it_is_narrowed(
        self, named: tuple[str, ...], closed: bool
    ) -> None:
        held = Claim("c1", "me", NOW - 5, Request(named, recursive=False), NOW - 40)
        waits = DirtyScope(NOW - 30, ONLY_B, closed=closed, requested=True)
        target = TargetState("t", claim=held, dirty=waits, failure=Failure(1, "Busy", "no", NOW))
        after = plan.refused(target, "c1", ERROR, BACKOFF)
        assert after.dirty is not None
        assert after.dirty.requested

    @pytest.mark.parametrize(("named", "all_"), [(("a/b", "a"), False), (("a",), True)])
    def test_through_a_refusal_that_narrows_the_call(self, named: tuple[str, ...], all_: bool) -> None:
        held = Claim("c1", "me", NOW - 5, Request(named, recursive=False), NOW - 40, requested=True)
        target = TargetState("t", claim=held, failure=Failure(1, "Busy", "no", NOW))
        after = plan.refused(target, "c1", ERROR, BACKOFF)
        assert after.dirty is not None
        assert (after.dirty.requested, after.dirty.scope.all) == (True, all_)


def start(target: TargetState, **times: float) -> float | None:
    return timing.start_at(target, OPTIONS, TargetTimes(**times), NOW)


class TestStart:
    def test_it_waits_for_no_quiet_period(self) -> None:
        assert start(annotation_requests.ask(CLEAN, A, NOW), last_event=0.0) == NOW

    def test_but_for_the_interval_after_the_last_call(self) -> None:
        called = TargetState("t", last=LastCall(NOW - 20, NOW - 20))
        asked = annotation_requests.ask(called, A, NOW)
        assert start(asked, called_for=20.0) == NOW + 40

    def test_and_for_the_backoff(self) -> None:
        failed = TargetState("t", failure=Failure(1, "Busy", "no", NOW + 90))
        assert start(annotation_requests.ask(failed, A, NOW)) == NOW + 90


# ---------------------------------------------------------------- plan and status

ALL = RefreshRequests(everything=True, at=T1)
TEAM = Share(id="two", arn="arn:two", bucket="b", prefix="team/", group="g")
ONE = Share(id="one", arn="arn:one", bucket="b", group="g")
NEW = Share(id="new", arn="arn:new", bucket="c", group="g")
LOOKED = Discovery(faults=("AccessDenied",))


def asked(*folders: str) -> RefreshRequests:
    return read(folders=dict.fromkeys(folders, Z1))


class TestPlan:
    def test_everything_of_every_target_at_once(self) -> None:
        made = planned(TargetState("one"), TargetState("two"), shares=(ONE, TEAM), requests=ALL)
        assert made.requested == 2
        calls = {call.request for _, call in made.calls}
        assert calls == {Request(("/",), recursive=True)}
        assert all(target.requested for target in made.targets)

    def test_without_a_request_nothing_is_asked(self) -> None:
        made = planned(TargetState("one"), shares=(ONE,))
        assert (made.requested, made.targets, made.calls) == (None, (TargetState("one", location="b/"),), ())

    def test_it_is_recorded_and_waits_while_nothing_may_start(self) -> None:
        made = planned(TargetState("one"), suspended=True, requests=ALL)
        assert (made.requested, made.calls) == (1, ())
        assert of(made).dirty == DirtyScope(NOW, EVERYTHING, requested=True)

    def test_it_stays_in_the_annotation_until_targets_were_looked_for(self) -> None:
        known = TargetState("one", location="b/")
        made = planned(known, shares=(), complete=False, requests=ALL)
        assert (made.requested, made.targets) == (None, (known,))
        assert planned(shares=(), complete=True, requests=ALL).requested == 0
        assert planned(known, discovery=LOOKED, requests=ALL).requested == 1

    def test_a_target_that_goes_with_the_spec_of_the_request_is_dropped_and_one_that_comes_is_asked(
        self,
    ) -> None:
        gone, stays = TargetState("two", location="b/team/"), TargetState("one", location="b/")
        first = planned(gone, shares=(), complete=False, requests=ALL)
        made = planned(*first.targets, stays, shares=(ONE, NEW), requests=ALL)
        assert [(target.id, target.requested) for target in made.targets] == [("new", True), ("one", True)]

    def test_a_target_that_is_gone_for_certain_is_not_asked(self) -> None:
        gone = TargetState("two", dirty=DirtyScope(NOW - 9, B))
        made = planned(gone, TargetState("one"), requests=ALL)
        assert [(target.id, target.requested) for target in made.targets] == [("one", True), ("two", False)]
        assert made.requested == 1

    @pytest.mark.parametrize(
        ("folder", "one", "two"),
        [
            ("team/x", {"team", "/"}, {"/"}),
            ("other", {"/"}, None),
            ("s3://b/team/x", {"team", "/"}, {"/"}),
            ("s3://c/team/x", None, None),
        ],
    )
    def test_a_folder_of_the_targets_that_have_it(
        self, folder: str, one: set[str] | None, two: set[str] | None
    ) -> None:
        made = planned(
            TargetState("one"), TargetState("two"), shares=(ONE, TEAM), requests=asked(folder), suspended=True
        )
        found = [of(made, name).dirty for name in ("one", "two")]
        assert [None if dirty is None else set(dirty.scope.folders) for dirty in found] == [one, two]
        name = folder.removeprefix("s3://b/")
        trees = [set(dirty.scope.trees) for dirty in found if dirty is not None]
        assert trees == [{name}, {name.removeprefix("team/")}][: len(trees)]

    @pytest.mark.parametrize("folder", ["/", "team", "s3://b"])
    def test_a_folder_above_the_prefix_is_everything(self, folder: str) -> None:
        made = planned(TargetState("two"), shares=(TEAM,), requests=asked(folder), suspended=True)
        assert of(made, "two").dirty == DirtyScope(NOW, EVERYTHING, requested=True)

    def test_of_shares_that_are_refreshed_whole_everything(self) -> None:
        made = planned(TargetState("one"), requests=asked("a"), suspended=True, whole=True)
        assert of(made).dirty == DirtyScope(NOW, EVERYTHING, requested=True)
        other = planned(TargetState("one"), requests=asked("s3://c/a"), suspended=True, whole=True)
        assert of(other).dirty is None

    def test_below_sixteen_levels_the_folder_at_the_bound(self) -> None:
        deep = "/".join("d" * 20)
        made = planned(TargetState("one"), requests=asked(deep), suspended=True)
        assert of(made).dirty is not None
        assert of(made).dirty.scope.trees == {"/".join("d" * 16)}  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("target", "idempotent", "scope"),
        [
            (TargetState("one", location="b/team/"), False, {"x"}),
            (TargetState("one", location="c/"), False, None),
            (TargetState("b"), True, {"team/x"}),
            (TargetState("c"), True, None),
            (TargetState("one"), False, "everything"),
        ],
    )
    def test_a_target_that_is_not_found_now_has_its_recorded_place(
        self, target: TargetState, idempotent: bool, scope: object
    ) -> None:
        request = asked("s3://b/team/x")
        made = planned(target, discovery=LOOKED, requests=request, idempotent=idempotent)
        dirty = of(made, target.id).dirty
        found = None if dirty is None else "everything" if dirty.scope.all else set(dirty.scope.trees)
        assert found == scope


NONE = RefreshRequests()


def passed(
    *targets: TargetState, before: Status | None = None, requests: RefreshRequests = NONE, **how: Any
) -> tuple[Status, list[str]]:
    """The status that a pass writes, and what its events say of requests."""
    seen = view(*targets, before=before, **how)
    inputs = msgspec.structs.replace(seen.plan_input, requests=requests)
    made = plan.plan(inputs) if seen.read.spec is not None else Plan()
    written = status_of(msgspec.structs.replace(seen, plan_input=inputs), made)
    found = transitions(before or Status(), written, concerned=made.requested)
    return written, [f"{one.type} {one.message}" for one in found if one.reason == "RefreshRequested"]


def after(target: TargetState, before: Status | None = None, requests: RefreshRequests = NONE) -> Status:
    """The status that a pass writes."""
    return passed(target, before=before, requests=requests)[0]


class TestStatus:
    BUSY = TargetState("share-1", in_flight=InFlight("n", NOW, CALL, requested=True), location="b/")

    def test_nothing_is_told_before_the_first_request(self) -> None:
        assert after(TargetState("share-1")).requests is None

    def test_it_is_on_record_with_what_it_makes_dirty(self) -> None:
        written = after(TargetState("share-1"), requests=ALL)
        assert written.requests == RequestsStatus(T1)
        assert [target.dirty and target.dirty.requested for target in written.targets] == [True]

    def test_it_is_done_once_no_part_of_it_waits_or_runs(self) -> None:
        taken = Status(requests=RequestsStatus(T1))
        assert after(self.BUSY, taken).requests == RequestsStatus(T1)
        done = after(TargetState("share-1"), taken).requests
        assert done is not None
        assert done.done_at == "2027-01-15T08:00:00Z"
        stays = Status(requests=RequestsStatus(T1, done_at="2026-01-01T00:00:00Z"))
        assert after(TargetState("share-1"), stays).requests == stays.requests

    def test_another_request_is_not_done(self) -> None:
        before = Status(requests=RequestsStatus(T3, None, Z3))
        assert after(TargetState("share-1"), before, requests=ALL).requests == RequestsStatus(T1)

    def test_a_folder_that_no_target_has_is_done_and_warned_of(self) -> None:
        written, events = passed(TargetState("share-1"), requests=asked("s3://other/a"))
        assert written.requests is not None
        assert (written.requests.folders_at, bool(written.requests.done_at)) == (T1, True)
        none = f"Warning folders ({REFRESH_FOLDERS} {T1}): no target has it, so nothing is refreshed"
        assert events == [none]
        # The same while another request runs.
        before = Status(requests=RequestsStatus(T1))
        assert passed(self.BUSY, before=before, requests=asked("s3://other/a"))[1] == [none]

    def test_a_request_is_an_event_once(self) -> None:
        written, events = passed(TargetState("share-1"), requests=ALL)
        assert events == [f"Normal everything ({REFRESH_AT} {T1}): 1 target(s)"]
        assert passed(self.BUSY, before=written)[1] == []

    def test_a_target_that_is_gone_for_certain_is_not_waited_for(self) -> None:
        gone = TargetState("old", dirty=DirtyScope(NOW, EVERYTHING, requested=True))
        before = Status(requests=RequestsStatus(T1))
        done, _ = passed(gone, TargetState("share-1"), before=before)
        assert done.requests is not None
        assert done.requests.done_at
        unsure, _ = passed(gone, TargetState("share-1"), before=before, shares=LOOKED)
        assert unsure.requests == before.requests

    def test_what_was_taken_stays_on_record_while_the_spec_cannot_be_read(self) -> None:
        before = Status(requests=RequestsStatus(T1))
        assert passed(before=before, requests=ALL, spec=None)[0].requests == before.requests

    def test_a_bad_annotation_is_a_condition_and_an_event_once(self) -> None:
        wrong = RefreshRequests(errors=("metadata.annotations[x]: no",))
        written = after(TargetState("share-1"), requests=wrong)
        found = c.find(written.conditions, c.INVALID_REQUEST)
        assert found is not None
        assert (found.status, found.reason, found.message) == ("True", "InvalidAnnotation", wrong.errors[0])
        ready = c.find(written.conditions, c.READY)
        assert ready is not None
        assert ready.status == "True"
        assert [one.reason for one in transitions(Status(), written)].count("InvalidAnnotation") == 1
        again = after(TargetState("share-1"), written, requests=wrong)
        assert transitions(written, again) == []
        other = after(TargetState("share-1"), written, requests=RefreshRequests(errors=("no, too",)))
        assert [one.message for one in transitions(written, other)] == ["no, too"]
