"""What the planner does where a call that is made again takes effect once: jobs and HTTP services."""

import math
from typing import Any

import msgspec
import pytest

from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Filter
from caretaker.s3refresh import debounce
from caretaker.s3refresh.debounce import (
    UNKNOWN,
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
from caretaker.s3refresh.match import Share, of_buckets
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.plan import plan
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.snapshot import Discovery, End, Plan, PlanInput, Result
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.timing import TargetTimes, TargetTracker
from testing.s3refreshes import refresh

NOW = 1_800_000_000.0
BUCKET = of_buckets(["bucket"])[0]
CALL = Request(("a", "/"), recursive=False)
A = Scope(folders=frozenset(CALL.folders))
CLAIM = Claim("c1", "one", NOW - 5, CALL, NOW - 40)
CLAIMED = TargetState("bucket", claim=CLAIM, last=LastCall(requested_at=NOW - 5))
IN_FLIGHT = TargetState(
    "bucket", in_flight=InFlight("job-1", NOW - 30, CALL), last=LastCall(NOW - 31, NOW - 30)
)
ANSWERED = Result("bucket", "c1", code=UNKNOWN, message="no answer in 10 s")


def planned(target: TargetState, *, age: float = 0.0, **more: Any) -> Plan:
    """The plan of process "two", which has seen the claim stand for `age` seconds."""
    values: dict[str, Any] = {
        "targets": (target,),
        "first": False,
        "discovery": Discovery(complete=True, shares=(BUCKET,)),
        "filter": Filter(),
        "options": DebounceOptions(min_interval=10.0),
        "owner": "two",
        "pass_id": "p",
        "now": NOW,
        "idempotent": True,
        "times": {"bucket": TargetTimes(claim_age=age)},
    }
    return plan(PlanInput(**(values | more)))


def backing_off(until: float) -> TargetState:
    return msgspec.structs.replace(CLAIMED, failure=Failure(1, UNKNOWN, "?", until))


class TestClaimsOfUnknownOutcome:
    def test_a_claim_whose_owner_is_gone_is_executed_as_it_was(self) -> None:
        made = planned(CLAIMED, age=120.0)
        again = msgspec.structs.replace(CLAIM, owner="two", attempt=2)
        assert made.calls == ((BUCKET, again),)
        assert made.targets[0].claim == again
        assert made.targets[0].dirty is None

    def test_it_is_left_to_an_owner_who_may_live(self) -> None:
        made = planned(CLAIMED, age=119.0)
        assert (made.calls, made.targets, made.wake) == ((), (CLAIMED,), NOW + 1.0)

    def test_our_own_of_another_life_is_executed_at_once_and_that_is_a_write(self) -> None:
        """Else another operator could take it between our look and our call."""
        made = planned(CLAIMED, owner="one")
        assert [claim.attempt for _, claim in made.calls] == [2]
        assert made.targets[0] != CLAIMED

    def test_one_that_we_are_making_is_left_alone(self) -> None:
        made = planned(CLAIMED, owner="one", age=1_000.0, running=frozenset({"c1"}))
        assert (made.calls, made.targets, made.wake) == ((), (CLAIMED,), 0.0)

    def test_an_unknown_outcome_keeps_the_claim_and_backs_off(self) -> None:
        made = planned(CLAIMED, owner="one", running=frozenset({"c1"}), results=(ANSWERED,), jitter=0.5)
        assert made.targets[0].claim == CLAIM
        assert made.targets[0].failure == Failure(1, UNKNOWN, "no answer in 10 s", NOW + 15.0)
        assert (made.calls, made.wake) == ((), NOW + 15.0)
        assert made.phases["bucket"] == "Claimed"

    def test_a_service_that_asks_for_more_time_gets_it(self) -> None:
        asking = msgspec.structs.replace(ANSWERED, retry_after=100.0)
        made = planned(CLAIMED, owner="one", running=frozenset({"c1"}), results=(asking,), jitter=0.5)
        assert (made.targets[0].claim, made.wake) == (CLAIM, NOW + 100.0)
        refused = msgspec.structs.replace(asking, code="HTTP429")
        made = planned(CLAIMED, owner="one", running=frozenset({"c1"}), results=(refused,), jitter=0.5)
        assert (made.targets[0].claim, made.wake) == (None, NOW + 100.0)

    @pytest.mark.parametrize(
        ("until", "age", "due"),
        [
            pytest.param(NOW + 1.0, 20.0, False, id="not before its backoff has passed"),
            pytest.param(NOW, 20.0, True, id="once it has"),
            pytest.param(NOW + 10**6, 899.0, False, id="a clock that was set back does not hurry it"),
            pytest.param(NOW + 10**6, 900.0, True, id="nor keeps it for longer than the longest backoff"),
        ],
    )
    def test_it_is_executed_again(self, until: float, age: float, due: bool) -> None:
        made = planned(backing_off(until), owner="one", age=age)
        assert [claim.id for _, claim in made.calls] == (["c1"] if due else [])

    def test_another_operator_keeps_to_the_backoff_too(self) -> None:
        made = planned(backing_off(NOW + 50.0), age=300.0)
        assert (made.calls, made.wake) == ((), NOW + 50.0)

    def test_a_definite_failure_gives_it_up(self) -> None:
        made = planned(CLAIMED, results=(Result("bucket", "c1", code="HTTP400"),))
        assert (made.targets[0].claim, made.targets[0].dirty) == (None, DirtyScope(NOW - 40, A))

    def test_where_a_call_could_take_effect_twice_the_claim_is_given_up(self) -> None:
        made = planned(CLAIMED, age=120.0, idempotent=False)
        assert (made.calls, made.targets[0].claim, made.targets[0].dirty) == (
            (),
            None,
            DirtyScope(NOW - 40, A),
        )

    def test_suspended_it_waits(self) -> None:
        made = planned(CLAIMED, age=120.0, suspended=True)
        assert (made.calls, made.targets, made.wake) == ((), (CLAIMED,), 0.0)

    def test_it_waits_for_a_target_that_is_not_ready(self) -> None:
        made = planned(CLAIMED, age=120.0, discovery=Discovery(True, of_buckets(["bucket"], ready=False)))
        assert (made.calls, made.targets) == ((), (CLAIMED,))

    def test_it_waits_for_discovery(self) -> None:
        made = planned(CLAIMED, age=120.0, discovery=Discovery())
        assert (made.calls, made.targets) == ((), (CLAIMED,))

    def test_one_of_a_bucket_that_is_gone_is_merged_back(self) -> None:
        made = planned(CLAIMED, age=120.0, discovery=Discovery(complete=True))
        everything = DirtyScope(NOW - 40, EVERYTHING)
        assert (made.calls, made.targets[0].claim, made.targets[0].dirty) == ((), None, everything)

    def test_events_wait_beside_it(self) -> None:
        """Nothing else of the target starts meanwhile."""
        both = msgspec.structs.replace(backing_off(NOW + 5.0), dirty=DirtyScope(NOW - 900, A))
        assert planned(both, owner="one").calls == ()


class TestEnds:
    def test_a_job_that_succeeded(self) -> None:
        made = planned(IN_FLIGHT, ends=(End("job-1"),))
        assert made.targets[0].in_flight is None
        assert made.targets[0].last.result == "Succeeded"

    def test_a_job_that_failed_is_made_again_with_backoff(self) -> None:
        made = planned(IN_FLIGHT, ends=(End("job-1", "BackoffLimitExceeded", "no"),), jitter=0.5)
        after = made.targets[0]
        assert (after.in_flight, after.dirty) == (None, DirtyScope(NOW, A))
        assert after.failure == Failure(1, "BackoffLimitExceeded", "no", NOW + 15.0)
        assert (after.last.result, after.last.completed_at) == ("Failed", NOW)
        assert made.phases["bucket"] == "Backoff"

    @pytest.mark.parametrize("end", [End("job-2"), End("job-2", "JobFailed")], ids=["succeeded", "failed"])
    def test_another_job(self, end: End) -> None:
        assert planned(IN_FLIGHT, ends=(end,)).targets == (IN_FLIGHT,)

    def test_a_row_of_failing_jobs_backs_off_longer_each_time_until_one_succeeds(self) -> None:
        target, waits = CLAIMED, []
        options = DebounceOptions(min_interval=10.0)
        for _ in range(3):
            target = planned(target, results=(Result("bucket", "c1", "job-1"),)).targets[0]
            target = planned(target, ends=(End("job-1", "JobFailed"),)).targets[0]
            assert target.failure is not None
            waits.append(target.failure.next_attempt_at - NOW)
            target = debounce.claim(target, NewCall("c1", "two"), options, NOW)
        assert waits == [30.0, 60.0, 120.0]
        target = planned(target, results=(Result("bucket", "c1", "job-1"),)).targets[0]
        assert planned(target, ends=(End("job-1"),)).targets[0].failure is None

    def test_what_is_accepted_and_complete_ends_a_row_of_failures(self) -> None:
        made = planned(backing_off(NOW), results=(Result("bucket", "c1"),))
        assert (made.targets[0].failure, made.targets[0].last.result) == (None, "Succeeded")

    def test_a_job_may_take_for_ever(self) -> None:
        long_ago = msgspec.structs.replace(IN_FLIGHT, in_flight=InFlight("job-1", NOW - 10**7, CALL))
        made = planned(
            long_ago,
            options=DebounceOptions(tracked=True, assume_after=math.inf, completion_timeout=math.inf),
        )
        assert (made.targets, made.wake) == ((long_ago,), 0.0)

    @pytest.mark.parametrize("member", ["http", "cloudFront", "sns"])
    def test_a_job_of_before_the_target_was_another_one_is_dropped(self, member: str) -> None:
        """No end of it is ever heard of, so everything is refreshed by the target of now."""
        fields: dict[str, Any] = {
            "http": {"url": "https://x.example/"},
            "cloudFront": {"distributionID": "EDFDVBD6EXAMPLE"},
            "sns": {"topicARN": "arn:aws:sns:eu-west-1:123456789012:r"},
        }
        spec = refresh(target={member: fields[member]}, filter={"buckets": ["bucket"]})
        raw = RawRefresh(WireMeta(name="r", namespace="n"), msgspec.Raw(msgspec.json.encode(spec)))
        options = read(raw, registry().spec).options
        times = {"bucket": TargetTimes(last_event=900.0, dirty_for=900.0, called_for=900.0)}
        dropped = planned(IN_FLIGHT, options=options)
        (target,) = dropped.targets
        assert target.in_flight is None
        assert target.dirty is not None
        assert target.dirty.scope == EVERYTHING
        ((_, claim),) = planned(target, options=options, times=times).calls
        assert claim.request.scope == EVERYTHING


class TestMemory:
    def test_a_claim_that_was_taken_over_is_young_again(self) -> None:
        """Else two operators that live would take it from each other, pass by pass."""
        memory = TargetTracker()
        memory.update([CLAIMED], 0.0)
        assert memory.times([CLAIMED], 120.0)["bucket"].claim_age == 120.0
        taken = debounce.resume(CLAIMED, "two")
        assert memory.times([taken], 121.0)["bucket"].claim_age == 0.0
        memory.update([taken], 121.0)
        assert memory.times([debounce.resume(taken, "two")], 150.0)["bucket"].claim_age == 0.0


def test_nothing_of_a_resumed_claim_changes_but_who_makes_it() -> None:
    after = debounce.resume(CLAIMED, "two").claim
    assert after == msgspec.structs.replace(CLAIM, owner="two", attempt=2)


def test_resuming_nothing_changes_nothing() -> None:
    assert debounce.resume(IN_FLIGHT, "two") is IN_FLIGHT


def test_an_unknown_outcome_of_another_claim_counts_for_nothing() -> None:
    assert (
        debounce.unanswered(
            CLAIMED, "c2", CallError(debounce.UNKNOWN, "?", 9.0), Backoff(DebounceOptions(), NOW, 1.0)
        )
        is CLAIMED
    )


class TestCallsThatDidNotBegin:
    """Their process stops."""

    NOT_BEGUN = Result("bucket", "c1", code=debounce.NOT_MADE, message="the operator stops")

    def test_the_scope_waits_as_if_it_had_not_been_claimed(self) -> None:
        before = TargetState("bucket", dirty=DirtyScope(NOW - 40, A), last=LastCall(NOW - 90, NOW - 80))
        claimed = debounce.claim(before, NewCall("c1", "one"), DebounceOptions(), NOW - 1)
        assert claimed.claim is not None
        results, running = (self.NOT_BEGUN,), frozenset({"c1"})
        made = planned(claimed, owner="one", running=running, results=results, suspended=True)
        last = LastCall(NOW - 80, NOW - 80)
        assert made.targets == (msgspec.structs.replace(before, last=last),)
        times = {"bucket": TargetTimes(last_event=40.0, called_for=10.0)}
        again = planned(made.targets[0], times=times)
        assert [claim.request for _, claim in again.calls] == [claimed.claim.request], (
            "made by the next process"
        )

    def test_what_came_meanwhile_waits_with_it(self) -> None:
        new = Scope(folders=frozenset({"b"}))
        after = debounce.unmade(msgspec.structs.replace(CLAIMED, dirty=DirtyScope(NOW - 3, new)), "c1", NOW)
        assert after.dirty == DirtyScope(CLAIM.since, Scope(folders=frozenset({"a", "b", "/"})))
        assert (after.claim, after.failure) == (None, None)

    def test_after_an_attempt_of_unknown_outcome_the_claim_stays(self) -> None:
        again = debounce.resume(backing_off(NOW - 5), "one")
        assert debounce.unmade(again, "c1", NOW) is again

    def test_another_claim_is_left_alone(self) -> None:
        for target in (CLAIMED, IN_FLIGHT):
            assert debounce.unmade(target, "c2", NOW) is target


def test_buckets_are_targets_of_their_own() -> None:
    assert of_buckets(["b", "a", "b"]) == (
        Share(id="a", arn="", bucket="a", group="a"),
        Share(id="b", arn="", bucket="b", group="b"),
    )
