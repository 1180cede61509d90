"""What a pass makes of what came in: the parts of plan.py that no interleaving is needed for."""

from typing import Any

import msgspec
import pytest

from caretaker.api.s3refresh import MAX_TARGETS, Filter, TargetStatus
from caretaker.s3refresh import debounce, folders, match
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, InFlight, LastCall, TargetState
from caretaker.s3refresh.envelope import Completion, ObjectEvent
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope
from caretaker.s3refresh.match import Matches, Share, of_buckets
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.plan import REDUCED_NAMES, plan
from caretaker.s3refresh.record_bounds import MAX_RECORD_BYTES, size
from caretaker.s3refresh.resource import decode_target
from caretaker.s3refresh.snapshot import Discovery, End, Message, Plan, PlanInput, Result
from caretaker.s3refresh.timing import TargetTimes
from testing.scopes import covers

NOW = 1_800_000_000.0
ONE = Share(id="one", arn="arn:one", bucket="b", group="g")
TWO = Share(id="two", arn="arn:two", bucket="b", prefix="team/", group="g")
CALL = Request(("a", "/"), recursive=False)


def planned(*targets: TargetState, shares: tuple[Share, ...] = (ONE,), **more: Any) -> Plan:
    complete = more.pop("complete", True)
    given: dict[str, Any] = {
        "targets": targets,
        "first": False,
        "discovery": Discovery(complete, shares),
        "filter": Filter(),
        "options": DebounceOptions(),
        "owner": "me",
        "pass_id": "p",
        "now": NOW,
        **more,
    }
    return plan(PlanInput(**given))


def of(made: Plan, name: str = "one") -> TargetState:
    return next(target for target in made.targets if target.id == name)


def put(number: int, *keys: str, bucket: str = "b") -> Message:
    return Message(number, tuple(ObjectEvent("ObjectCreated", bucket, key) for key in keys))


def test_an_event_dirties_every_share_of_its_bucket_and_prefix() -> None:
    made = planned(TargetState("one"), TargetState("two"), shares=(ONE, TWO), messages=(put(1, "team/x/a"),))
    assert of(made).dirty == DirtyScope(NOW, Scope(folders=frozenset({"/", "team", "team/x"})))
    assert of(made, "two").dirty == DirtyScope(NOW, Scope(folders=frozenset({"/", "x"})))
    assert (made.done, made.returned, made.matches.matched) == ((1,), (), 1)


LONG_AGO = "2020-01-01T00:00:00Z"
MANY = [f"{number}" for number in range(60)]


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ({}, Request(("/",), recursive=True)),
        ({"folders": ["a"], "later": {"since": LONG_AGO}}, Request(("a",), recursive=False)),
        ({"folders": MANY, "maxFolders": -3}, None),
    ],
)
def test_a_record_that_somebody_has_cut_short_is_refreshed_all_the_same(
    waits: dict[str, object], expected: Request | None
) -> None:
    """The CRD lets such a status in; a pass that fails for it would fail for ever."""
    damaged = {"id": "one", "dirty": {"since": LONG_AGO, **waits}}
    made = planned(decode_target(msgspec.convert(damaged, TargetStatus), NOW))
    ((_, claim),) = made.calls
    assert expected in (claim.request, None)
    dirty = of(made).dirty
    assert "later" not in waits or (dirty is not None and dirty.scope.all)
    assert len(claim.request.folders) <= DebounceOptions().max_folders


def test_an_event_joins_what_waits_and_begins_the_record_of_a_new_share() -> None:
    waiting = TargetState("one", dirty=DirtyScope(NOW - 9, Scope(folders=frozenset({"/", "b"}))))
    made = planned(waiting, messages=(put(1, "a/x"),))
    assert of(made).dirty == DirtyScope(NOW - 9, Scope(folders=frozenset({"/", "a", "b"})))
    made = planned(first=True, resync_on_start=False, messages=(put(1, "a/x"),))
    assert of(made).dirty == DirtyScope(NOW, Scope(folders=frozenset({"/", "a"})))


@pytest.mark.parametrize("expired", [False, True])
def test_every_share_is_stale_once_events_may_have_expired(expired: bool) -> None:
    made = planned(TargetState("one"), shares=(ONE, TWO), first=True, resync_on_start=False, expired=expired)
    stale = DirtyScope(NOW, EVERYTHING) if expired else None
    assert [target.dirty for target in made.targets] == [stale, stale]


def test_an_event_of_no_target_is_deleted_only_when_every_share_is_known() -> None:
    messages = (put(1, "a", bucket="other"), put(2, "a"))
    known = planned(TargetState("one"), messages=messages)
    assert (known.done, known.returned, known.matches.matched, known.matches.unmatched) == ((1, 2), (), 1, 1)
    unknown = planned(TargetState("one"), messages=messages, complete=False)
    assert (unknown.done, unknown.returned) == ((2,), (1,))


def test_events_that_were_sifted_before_count_as_if_they_were_sifted_now() -> None:
    some = Scope(folders=frozenset({"/", "a"}))
    message = Message(1, put(0, *["x/y"] * 3).events)
    stored = {"matches": Matches({"one": some}, matched=3, filtered=2), "concerned": {1: frozenset({"one"})}}
    made = planned(TargetState("one"), messages=(message, put(2, "b/c")), **stored)
    assert of(made).dirty == DirtyScope(NOW, Scope(folders=frozenset({"/", "a", "b"})))
    assert (made.done, made.matches.matched, made.matches.filtered) == ((1, 2), 4, 2)
    homeless = {"matches": Matches(unmatched=1), "concerned": {1: None}}
    unsure = planned(TargetState("one"), messages=(message, put(2, "b/c")), **homeless, complete=False)
    assert (unsure.done, unsure.returned) == ((2,), (1,))


@pytest.mark.parametrize(("refused", "closed"), [(True, True), (False, False)])
def test_a_call_that_is_refused_again_is_made_with_fewer_folders(refused: bool, closed: bool) -> None:
    claim = Claim("c", "me", NOW - 5, CALL, NOW - 40)
    target = TargetState("one", claim=claim, failure=debounce.Failure(1, "Bad", "no", NOW - 5))
    result = Result("one", "c", code="Bad", message="no", refused=refused, retry_after=100.0)
    dirty = of(planned(target, results=(result,), running=frozenset({"c"})))
    assert dirty.dirty == DirtyScope(
        NOW - 40, Scope(folders=frozenset({"/", "a"})), closed=closed, most=1 if closed else 0
    )
    assert dirty.failure == debounce.Failure(2, "Bad", "no", NOW + 100)


@pytest.mark.parametrize(
    ("malformed", "done", "kept", "stale"),
    [("DeadLetter", (), (1,), False), ("Discard", (1,), (), False), ("RefreshAll", (1,), (), True)],
)
def test_what_becomes_of_a_message_that_cannot_be_read(
    malformed: str, done: tuple[int, ...], kept: tuple[int, ...], stale: bool
) -> None:
    made = planned(TargetState("one"), messages=(Message(1, malformed=True),), malformed=malformed)
    assert (made.done, made.returned) == (done, kept)
    assert of(made).dirty == (DirtyScope(NOW, EVERYTHING) if stale else None)


@pytest.mark.parametrize(
    ("first", "on_start", "stale"),
    [(False, False, True), (False, True, True), (True, True, True), (True, False, False)],
)
def test_a_new_share_is_stale_but_at_the_first_start_if_asked(
    first: bool, on_start: bool, stale: bool
) -> None:
    made = planned(first=first, resync_on_start=on_start)
    assert of(made).dirty == (DirtyScope(NOW, EVERYTHING) if stale else None)


def test_a_claim_has_an_id_of_its_pass_and_target() -> None:
    due = DirtyScope(NOW - 9_000, Scope(folders=frozenset({"a"})))
    targets = (TargetState("one", dirty=due), TargetState("two", dirty=due))
    ids = {
        claim.id
        for name in ("p", "q")
        for _, claim in planned(*targets, shares=(ONE, TWO), pass_id=name, free={"g": 2}).calls
    }
    assert len(ids) == 4


def test_a_gateway_without_room_holds_up_no_other() -> None:
    due = DirtyScope(NOW - 9_000, Scope(folders=frozenset({"a"})))
    other = Share(id="zoo", arn="arn:zoo", bucket="c", group="h")
    targets = [TargetState(name, dirty=due) for name in ("one", "two", "zoo")]
    made = planned(*targets, shares=(ONE, TWO, other))
    assert [share.id for share, _ in made.calls] == ["one", "zoo"], "one at a time, unless more is said"


def test_who_is_due_since_a_moment_has_not_waited_for_turns() -> None:
    many = DirtyScope(NOW - 600, Scope(folders=frozenset(f"d{n}" for n in range(150))))
    made = planned(
        TargetState("one", dirty=many), times={"one": TargetTimes(last_event=0.0, dirty_for=600.0)}
    )
    assert [claim.request.recursive for _, claim in made.calls] == [False]


def test_a_target_that_cannot_be_called_starts_when_it_would_without_the_others() -> None:
    away = msgspec.structs.replace(ONE, ready=False)
    target = TargetState("one", dirty=DirtyScope(NOW - 595, Scope(folders=frozenset({"a"}))))
    made = planned(target, shares=(away,), times={"one": TargetTimes(last_event=0.0)})
    assert made.starts == {"one": NOW + 5}


def test_the_largest_record_is_shortened_first_and_no_more_than_needed() -> None:
    def wide(name: str, number: int) -> TargetState:
        names = frozenset(f"{n:03}{'x' * 150}" for n in range(number))
        return TargetState(name, dirty=DirtyScope(NOW, Scope(folders=names)))

    targets = [wide(f"t{n:02}", 60 + n) for n in range(60)]
    shares = tuple(Share(target.id, "", "c", group="g") for target in targets)
    made = planned(*targets, shares=shares, suspended=True)
    widened = [target.id for target in made.targets if target.dirty is not None and target.dirty.scope.all]
    total = sum(map(size, made.targets))
    assert widened == [f"t{n}" for n in range(60 - len(widened), 60)]
    assert MAX_RECORD_BYTES - 16_000 < total <= MAX_RECORD_BYTES


def long_names(number: int) -> frozenset[str]:
    """So many KiB of names: quotes and a comma are stored with each."""
    return frozenset(f"{n:02}{'x' * 1019}" for n in range(number))


ENDPOINT = f"https://gateways.example/{'&' * 2000}"


@pytest.mark.parametrize(("more", "widened"), [(0, 0), (1, 1)])
def test_records_of_exactly_the_largest_size_stay(more: int, widened: int) -> None:
    targets = [
        TargetState(f"t{n:02}", dirty=DirtyScope(NOW, Scope(folders=long_names(16)))) for n in range(48)
    ]
    assert sum(map(size, targets)) == MAX_RECORD_BYTES
    targets += [TargetState("z", dirty=DirtyScope(NOW, Scope(folders=frozenset({"a"}))))] * more
    shares = tuple(Share(target.id, "", "c", group="g") for target in targets)
    made = planned(*targets, shares=shares, suspended=True)
    assert sum(target.dirty == DirtyScope(NOW, EVERYTHING) for target in made.targets) == widened


@pytest.mark.parametrize(
    ("called", "found"),
    [(ENDPOINT, ""), ("", ENDPOINT)],
    ids=["of the last call", "of the next call"],
)
def test_an_endpoint_takes_room_on_record_too(called: str, found: str) -> None:
    """It has up to 2,048 characters, in each of 64 records."""
    last, dirty = LastCall(NOW - 999, endpoint=called), DirtyScope(NOW, Scope(folders=long_names(16)))
    targets = [TargetState(f"t{n:02}", dirty=dirty, last=last) for n in range(47)]
    shares = tuple(Share(target.id, "", "c", group="g", endpoint=found) for target in targets)
    made = planned(*targets, shares=shares, suspended=True)
    kept = [target for target in made.targets if target.dirty == dirty]
    assert len(kept) == 13, "a URL of 2,000 & takes 12 KB, and folders take 16 KiB each"


def test_the_message_of_a_failure_takes_room_on_record_too() -> None:
    """It has up to 1,024 characters there, in each of 64 records."""
    failure = Failure(1, "Odd", "<" * 9999, NOW + 99)
    dirty = DirtyScope(NOW, Scope(folders=long_names(16)))
    targets = [TargetState(f"t{n:02}", dirty=dirty, failure=failure) for n in range(47)]
    shares = tuple(Share(target.id, "", "c", group="g") for target in targets)
    made = planned(*targets, shares=shares, suspended=True)
    kept = [target for target in made.targets if target.dirty == dirty]
    assert len(kept) == 30, "1,024 < take 6 KB, and folders take 16 KiB each"


def test_what_is_refreshed_now_stays_on_record_and_counts() -> None:
    in_flight, waiting = (
        InFlight("n", NOW - 9, Request(tuple(long_names(8)), False)),
        Scope(folders=long_names(8)),
    )
    targets = [
        TargetState(f"t{n:02}", dirty=DirtyScope(NOW, waiting), in_flight=in_flight) for n in range(60)
    ]
    shares = tuple(Share(target.id, "", "c", group="g") for target in targets)
    made = planned(*targets, shares=shares, suspended=True)
    assert sum(map(size, made.targets)) == MAX_RECORD_BYTES
    assert sum(target.dirty == DirtyScope(NOW, EVERYTHING) for target in made.targets) == 24


def test_whole_shares_are_refreshed_if_asked() -> None:
    assert of(planned(TargetState("one"), messages=(put(1, "a/b"),), whole=True)).dirty == DirtyScope(
        NOW, EVERYTHING
    )


@pytest.mark.parametrize(
    ("claimed", "share", "given", "kept"),
    [
        pytest.param(True, "arn:one", {}, True, id="it may be of the call"),
        pytest.param(True, "", {}, True, id="it names no share"),
        pytest.param(
            True, "arn:one", {"shares": (), "complete": False}, True, id="the share is not known now"
        ),
        pytest.param(True, "arn:nine", {}, False, id="of another share, which is another resource's"),
        pytest.param(True, "arn:nine arn:one", {}, True, id="two in one message, and one may be of the call"),
        pytest.param(True, "arn:one", {"idempotent": True}, False, id="ends are not told by messages"),
        pytest.param(False, "arn:one", {}, False, id="no call"),
    ],
)
def test_the_end_of_an_unknown_refresh_may_be_of_a_call_that_is_not_answered_yet(
    claimed: bool, share: str, given: dict[str, Any], kept: bool
) -> None:
    """One that is returned again and again ends in the dead-letter queue."""
    claim = Claim("c", "me", NOW - 5, CALL, NOW - 40) if claimed else None
    ended = tuple(Completion(f"n{number}", arn) for number, arn in enumerate(share.split(" ")))
    messages = (Message(1, completions=ended),)
    made = planned(TargetState("one", claim=claim), messages=messages, running=frozenset({"c"}), **given)
    assert (made.returned, made.unclaimed, made.done) == (((1,), (), ()) if kept else ((), (1,), ()))


def test_an_end_that_is_recognised_is_not_returned_for_the_call_of_another_target() -> None:
    ended = TargetState("one", in_flight=InFlight("n1", NOW - 30, CALL))
    called = TargetState("two", claim=Claim("c", "me", NOW - 5, CALL, NOW - 40))
    messages = (Message(1, completions=(Completion("n1", ""),)),)
    made = planned(ended, called, messages=messages, running=frozenset({"c"}))
    assert (made.returned, made.done, of(made).in_flight) == ((), (1,), None)


def test_what_follows_a_message_that_cannot_be_read_is_read() -> None:
    made = planned(TargetState("one"), messages=(Message(1, malformed=True), put(2, "a")))
    assert (made.returned, made.done) == ((1,), (2,))


def test_a_claim_of_a_process_that_ended_has_failed() -> None:
    claim = Claim("c", "me", NOW - 5, CALL, NOW - 40)
    after = of(planned(TargetState("one", claim=claim), options=DebounceOptions(retry_initial=600.0)))
    told = "the process that made the call ended before it was answered"
    assert after.failure == debounce.Failure(1, debounce.UNKNOWN, told, NOW + 70)
    assert after.dirty == DirtyScope(NOW - 40, Scope(folders=frozenset({"/", "a"})))


def test_a_claim_of_another_process_is_looked_at_again_when_that_may_be_dead() -> None:
    claim = Claim("c", "other", NOW - 5, CALL, NOW - 40)
    failing = TargetState("one", claim=claim, failure=debounce.Failure(1, "E", "no", NOW + 800))
    assert planned(failing, times={"one": TargetTimes(claim_age=20.0)}).wake == NOW + 100
    assert planned(failing).wake == NOW + 120, "of a claim that is seen for the first time"


def test_the_end_of_a_refresh_is_now() -> None:
    in_flight = TargetState("one", in_flight=InFlight("n", NOW - 9, CALL))
    made = planned(in_flight, messages=(Message(1, completions=(Completion("n", "arn:one"),)),))
    assert (of(made).last.completed_at, of(made).in_flight, made.done) == (NOW, None, (1,))
    asked = of(planned(in_flight, ends=(End("n"),)))
    assert (asked.last.completed_at, asked.in_flight) == (NOW, None)


def test_a_share_that_is_gone_leaves_no_record_behind_unless_something_is_left_to_do() -> None:
    some = Scope(folders=frozenset({"a"}))
    dirty = TargetState("dirty", dirty=DirtyScope(NOW - 9, some))
    called = TargetState("called", claim=Claim("c", "me", NOW, CALL, NOW))
    in_flight = TargetState("flying", in_flight=InFlight("n", NOW, CALL))
    made = planned(TargetState("one"), TargetState("idle"), dirty, called, in_flight, running=frozenset("c"))
    assert [target.id for target in made.targets] == ["called", "dirty", "one"]
    assert of(made, "dirty").dirty == DirtyScope(NOW - 9, EVERYTHING), "its events have no home meanwhile"
    assert of(made, "called") == msgspec.structs.replace(called, dirty=DirtyScope(NOW, EVERYTHING))
    unsure = planned(TargetState("one"), TargetState("idle"), dirty, complete=False)
    assert [target.id for target in unsure.targets] == ["dirty", "idle", "one"]
    assert of(unsure, "dirty").dirty == DirtyScope(NOW - 9, some)


def test_a_share_that_comes_back_while_it_is_called_is_stale() -> None:
    """Events that came meanwhile matched no share, and were deleted."""
    called = TargetState("one", claim=Claim("c", "me", NOW, CALL, NOW))
    gone = planned(called, shares=(TWO,), messages=(put(1, "new"),), running=frozenset("c"))
    assert gone.done == (1,)
    back = planned(of(gone), running=frozenset("c"))
    assert of(back).dirty == DirtyScope(NOW, EVERYTHING)
    again = planned(of(gone), shares=(TWO,), running=frozenset("c"))
    assert of(again) == of(gone)


def test_a_share_that_comes_back_is_stale() -> None:
    assert of(planned(TargetState("one"), shares=(ONE, TWO)), "two").dirty == DirtyScope(NOW, EVERYTHING)


def test_a_share_that_is_found_elsewhere_is_stale() -> None:
    """accessPointBuckets was wrong: events in the meantime matched no share, and were deleted."""
    wrong = msgspec.structs.replace(ONE, bucket="typo")
    before = planned(TargetState("one"), shares=(wrong,), messages=(put(1, "a"),))
    assert (of(before).location, of(before).dirty, before.done) == ("typo/", None, (1,))
    after = planned(of(before))
    assert (of(after).location, of(after).dirty) == ("b/", DirtyScope(NOW, EVERYTHING))
    assert of(planned(of(after))).dirty == of(after).dirty
    elsewhere = msgspec.structs.replace(ONE, prefix="team/")
    assert of(planned(TargetState("one", location="b/"), shares=(elsewhere,))).dirty == DirtyScope(
        NOW, EVERYTHING
    )


def test_where_a_share_is_comes_on_record_without_a_refresh() -> None:
    assert of(planned(TargetState("one"))) == TargetState("one", location="b/")


def test_a_bucket_is_where_its_id_says() -> None:
    bucket = Share(id="one", arn="", bucket="one", group="one")
    assert of(planned(TargetState("one"), shares=(bucket,))) == TargetState("one")


@pytest.mark.parametrize(
    ("recorded", "prefix", "stale"),
    [
        pytest.param("", "site/", True, id="a prefix is set"),
        pytest.param("one/site/", "site/", False, id="it stays"),
        pytest.param("one/site/", "images/", True, id="it changes"),
        pytest.param("one/site/", "", True, id="it is removed"),
    ],
)
def test_a_bucket_whose_prefix_changes_is_stale(recorded: str, prefix: str, stale: bool) -> None:
    """Waiting folders are named without the earlier prefix, and events of the new one were not matched."""
    waiting = DirtyScope(NOW - 9, Scope(folders=frozenset({"a"})))
    before = TargetState("one", dirty=waiting, location=recorded)
    (bucket,) = of_buckets(["one"], prefix)
    made = of(planned(before, shares=(bucket,)))
    assert made.dirty is not None
    assert (made.dirty.scope.all, made.location) == (stale, f"one/{prefix}" if prefix else "")
    assert of(planned(made, shares=(bucket,))) == made


def test_a_new_bucket_with_a_prefix_is_not_stale_without_a_resync() -> None:
    (bucket,) = of_buckets(["one"], "site/")
    made = planned(shares=(bucket,), first=True, resync_on_start=False)
    assert of(made) == TargetState("one", location="one/site/")


class TestResync:
    OPTIONS = DebounceOptions(resync=3_600.0)

    def test_the_interval_begins_with_the_first_look(self) -> None:
        made = planned(TargetState("one"), options=self.OPTIONS)
        assert (of(made).dirty, of(made).last.full_at) == (None, NOW)
        assert made.wake == NOW + 3_600

    @pytest.mark.parametrize(("ago", "stale"), [(3_599, False), (3_600, True)])
    def test_everything_is_stale_when_it_is_over(self, ago: float, stale: bool) -> None:
        made = planned(TargetState("one", last=LastCall(full_at=NOW - ago)), options=self.OPTIONS)
        assert (of(made).dirty == DirtyScope(NOW, EVERYTHING)) is stale

    def test_a_refresh_of_everything_begins_it_anew_and_one_of_folders_does_not(self) -> None:
        whole = Claim("c", "me", NOW - 1, Request(("/",), recursive=True), NOW - 9)
        after = debounce.accepted(TargetState("one", claim=whole), "c", "n", NOW)
        assert after.last.full_at == NOW
        some = msgspec.structs.replace(whole, request=CALL)
        assert debounce.accepted(TargetState("one", claim=some), "c", "n", NOW).last.full_at == 0


def test_records_that_are_too_large_together_say_less_and_mean_more() -> None:
    scopes = [
        Scope(folders=frozenset(f"{share:02}/{'x' * 20}/{n:04}" for n in range(450))) for share in range(60)
    ]
    shares = tuple(Share(id=f"s{n:02}", arn="", bucket="b", group="g") for n in range(60))
    targets = [TargetState(f"s{n:02}", dirty=DirtyScope(NOW, scope)) for n, scope in enumerate(scopes)]
    times = {target.id: TargetTimes(last_event=0.0) for target in targets}
    made = planned(*targets, shares=shares, times=times)
    assert sum(map(size, targets)) > MAX_RECORD_BYTES
    assert sum(map(size, made.targets)) <= MAX_RECORD_BYTES
    for before, after in zip(targets, made.targets, strict=True):
        assert before.dirty is not None
        assert after.dirty is not None
        assert covers(after.dirty.scope, before.dirty.scope)
        assert after.dirty.since == before.dirty.since


def test_the_quiet_period_counts_from_when_the_last_message_came() -> None:
    made = planned(TargetState("one"), messages=(put(1, "a"),), received=4.0)
    assert made.starts == {"one": NOW - 4 + 30}


def test_a_completion_without_an_id_is_that_of_the_shares_refresh() -> None:
    in_flight = TargetState("one", in_flight=InFlight("n", NOW - 9, CALL))
    message = Message(1, completions=(Completion("", "arn:one"),))
    made = planned(in_flight, messages=(message,))
    assert (of(made).in_flight, of(made).last.result, made.done) == (None, "Succeeded", (1,))
    other = planned(in_flight, messages=(Message(1, completions=(Completion("", "arn:two"),)),))
    assert (of(other).in_flight is not None, other.done, other.unclaimed) == (True, (), (1,))


def test_the_end_of_a_refresh_that_was_accepted_without_an_id_is_told_for_the_share() -> None:
    claimed = TargetState("one", claim=Claim("c", "me", NOW - 1, CALL, NOW - 9))
    accepted = planned(claimed, results=(Result("one", "c", unnamed=True),))
    assert of(accepted).in_flight == InFlight("", NOW, CALL)
    made = planned(of(accepted), messages=(Message(1, completions=(Completion("n7", "arn:one"),)),))
    assert (of(made).in_flight, of(made).last.result, made.done) == (None, "Succeeded", (1,))
    other = planned(of(accepted), messages=(Message(1, completions=(Completion("n7", "arn:two"),)),))
    assert (of(other).in_flight, other.unclaimed) == (of(accepted).in_flight, (1,))


def test_the_end_of_anothers_refresh_of_the_share_ends_none_that_has_an_id() -> None:
    in_flight = TargetState("one", in_flight=InFlight("n", NOW - 9, CALL))
    made = planned(in_flight, messages=(Message(1, completions=(Completion("n7", "arn:one"),)),))
    assert (of(made).in_flight, made.unclaimed) == (in_flight.in_flight, (1,))


def test_an_id_says_more_than_the_share() -> None:
    """Two records of one share, of which one has no id."""
    unnamed = TargetState("one", in_flight=InFlight("", NOW - 9, CALL))
    named = TargetState("two", in_flight=InFlight("n7", NOW - 9, CALL))
    shares = (ONE, msgspec.structs.replace(TWO, arn=ONE.arn))
    ended = (Message(1, completions=(Completion("n7", "arn:one"),)),)
    made = planned(unnamed, named, shares=shares, messages=ended)
    assert (of(made).in_flight, of(made, "two").in_flight) == (unnamed.in_flight, None)


def test_the_oldest_goes_first_as_far_as_turns_go() -> None:
    late = TargetState("one", dirty=DirtyScope(NOW - 40, EVERYTHING))
    early = TargetState("two", dirty=DirtyScope(NOW - 90, EVERYTHING))
    times = {"one": TargetTimes(last_event=39.0), "two": TargetTimes(last_event=39.0)}
    made = planned(late, early, shares=(ONE, TWO), times=times, free={"g": 1})
    assert [claim.request for _, claim in made.calls] == [Request(("/",), recursive=True)]
    assert (of(made).claim, of(made, "two").claim is not None) == (None, True)
    assert made.phases == {"one": "Due", "two": "Claimed"}
    none = planned(late, early, shares=(ONE, TWO), times=times, free={"g": 0})
    assert none.calls == ()


def test_who_had_a_turn_goes_behind_those_who_were_dirty_before_it() -> None:
    some = Scope(folders=frozenset({"a"}))
    heavy = TargetState(
        "one", dirty=DirtyScope(NOW - 600, some, closed=True), last=LastCall(requested_at=NOW - 70)
    )
    light = TargetState("two", dirty=DirtyScope(NOW - 90, some))
    times = {"one": TargetTimes(0.0, 600.0, 0.0, 69.0), "two": TargetTimes(40.0, 90.0)}
    made = planned(heavy, light, shares=(ONE, TWO), times=times, free={"g": 1})
    assert [share.id for share, _ in made.calls] == ["two"]


MANY = Scope(folders=frozenset({"/", "d", *(f"d/{n:03}" for n in range(90))}))
OTHERS = tuple(
    TargetState(f"s{n}", dirty=DirtyScope(NOW - 5, Scope(folders=frozenset({"a"})))) for n in range(6)
)


@pytest.mark.parametrize(
    ("more", "recursive"),
    [
        pytest.param({}, False, id="alone"),
        pytest.param({"rivals": {"g": 12}}, True, id="other resources want the gateway's turns"),
        pytest.param({"rivals": {"g": 12}, "limit": 12}, False, id="of which there are enough"),
        pytest.param({"rivals": {"else": 12}}, False, id="another gateway's"),
        pytest.param({"times": {"one": TargetTimes(500.0, 500.0)}}, True, id="it has waited for its turn"),
        pytest.param(
            {"times": {"one": TargetTimes(500.0, 20.0)}}, False, id="nobody was there for most of it"
        ),
    ],
)
def test_where_turns_are_scarce_fewer_calls_are_made_of_it(more: dict[str, Any], recursive: bool) -> None:
    dirty = TargetState("one", dirty=DirtyScope(NOW - 500, MANY))
    made = planned(dirty, **{"times": {"one": TargetTimes(31.0, 31.0)}, **more})
    assert [claim.request.recursive for _, claim in made.calls] == [recursive]


def test_where_turns_are_scarce_they_are_taken_before_max_delay() -> None:
    shares = (ONE, *(Share(id=target.id, arn="", bucket="b", group="g") for target in OTHERS))
    times = {"one": TargetTimes(0.0, 240.0)}
    alone = planned(TargetState("one", dirty=DirtyScope(NOW - 239, MANY)), times=times)
    assert alone.starts["one"] == NOW + 30
    assert (
        planned(
            TargetState("one", dirty=DirtyScope(NOW - 239, MANY)), times={"one": TargetTimes(-99.0, 0.0)}
        ).wake
        == NOW + 129
    )
    made = planned(TargetState("one", dirty=DirtyScope(NOW - 241, MANY)), *OTHERS, shares=shares, times=times)
    assert [share.id for share, _ in made.calls] == ["one"]
    closed = tuple(msgspec.structs.replace(share, ready=False) for share in shares[1:])
    none = planned(
        TargetState("one", dirty=DirtyScope(NOW - 241, MANY)), *OTHERS, shares=(ONE, *closed), times=times
    )
    assert none.calls == ()


def test_a_call_for_the_share_by_another_resource_puts_ours_off() -> None:
    dirty = TargetState("one", dirty=DirtyScope(NOW - 90, EVERYTHING))
    times = {"one": TargetTimes(last_event=80.0)}
    made = planned(dirty, times=times, held={"one": 25.0})
    assert (made.calls, made.starts) == ((), {"one": NOW + 25})
    assert made.wake == NOW + 25


def test_a_record_has_no_room_for_a_share_whose_many_events_were_sifted() -> None:
    shares = tuple(Share(id=f"s{n:02}", arn="", bucket="b", group="g") for n in range(MAX_TARGETS))
    other = Share(id="other", arn="", bucket="new", group="g")
    event = ObjectEvent("ObjectCreated", "new", "a/x")
    matcher = match.EventMatcher(Filter(), match.by_bucket([*shares, other]))
    concerned = {1: matcher.add([event])}
    held = [TargetState(id=share.id) for share in shares]
    made = planned(
        *held,
        shares=(*shares, other),
        messages=(Message(1, (event,)),),
        matches=matcher.matches(),
        concerned=concerned,
    )
    assert (made.done, made.returned, len(made.targets)) == ((), (1,), MAX_TARGETS)


def test_a_record_has_room_for_so_many_targets_and_the_events_of_others_wait() -> None:
    shares = tuple(Share(id=f"s{n:02}", arn="", bucket="b", group="g") for n in range(MAX_TARGETS))
    gone = TargetState("gone", dirty=DirtyScope(NOW, EVERYTHING))
    held = [TargetState(share.id) for share in shares[:-1]]
    other = Share(id="other", arn="", bucket="other", group="g")
    messages = (put(1, "a"), put(2, "a", bucket="other"))
    made = planned(gone, *held, shares=(*shares[:-1], other), messages=messages)
    assert len(made.targets) == MAX_TARGETS
    assert "other" not in {target.id for target in made.targets}
    assert (made.done, made.returned) == ((1,), (2,))
    room = planned(*held, shares=(*shares[:-1], other), messages=messages)
    assert (room.done, room.returned, of(room, "other").dirty) == ((1, 2), (), DirtyScope(NOW, EVERYTHING))


def test_a_plan_reduces_few_large_scopes_and_the_next_follows_at_once() -> None:
    """64 scopes of 500 folders took 800 ms in one plan."""
    shares = tuple(Share(id=f"s{n:02}", arn="", bucket="b", group=f"g{n}") for n in range(MAX_TARGETS))
    many = folders.merge(*(folders.of_folder(f"d{n}") for n in range(REDUCED_NAMES // 2 - 1)))
    dirty = DirtyScope(NOW - 900, many)
    targets = tuple(TargetState(share.id, dirty=dirty) for share in shares)
    free = dict.fromkeys((share.group for share in shares), 1)
    called, passes = list[str](), 0
    while len(called) < len(shares):
        made = planned(*targets, shares=shares, free=free, pass_id=str(passes))
        assert len(made.calls) == 2
        called += [share.id for share, _ in made.calls]
        assert (made.wake == NOW) is (len(called) < len(shares))
        targets, passes = made.targets, passes + 1
        free = {group: free[group] - (f"s{group[1:]:0>2}" in called) for group in free}
    assert (called, passes) == ([share.id for share in shares], MAX_TARGETS // 2)


def test_small_scopes_are_all_claimed_in_one_plan() -> None:
    shares = tuple(Share(id=f"s{n:02}", arn="", bucket="b", group=f"g{n}") for n in range(MAX_TARGETS))
    few = folders.merge(*(folders.of_folder(f"d{n}") for n in range(49)))
    targets = [TargetState(share.id, dirty=DirtyScope(NOW - 900, few)) for share in shares]
    assert len(planned(*targets, shares=shares).calls) == MAX_TARGETS


def wide(folders: int, trees: int = 0, *, closed: bool = False) -> DirtyScope:
    names = (frozenset(f"{kind}{n}" for n in range(count)) for kind, count in (("f", folders), ("t", trees)))
    return DirtyScope(NOW - 900, Scope(False, *names), closed)


@pytest.mark.parametrize(
    ("first", "others", "calls"),
    [
        pytest.param(wide(500, closed=True), wide(500), 3, id="what is closed was reduced before"),
        pytest.param(wide(50), wide(500), 3, id="what fits into one call is not reduced"),
        pytest.param(wide(200, 200), wide(200, 200), 2, id="trees count, too"),
    ],
)
def test_which_scopes_count_as_large(first: DirtyScope, others: DirtyScope, calls: int) -> None:
    targets = (TargetState("s0", dirty=first), *(TargetState(name, dirty=others) for name in ("s1", "s2")))
    shares = tuple(Share(id=one.id, arn="", bucket="b", group=one.id) for one in targets)
    assert len(planned(*targets, shares=shares).calls) == calls
