"""When the next call may start and why not before, from the record and the spec alone."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api import conditions as c
from caretaker.api.aws import AwsSpec
from caretaker.api.conditions import Condition
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Debounce, Resync, Source, Spec, SQSSource, Status
from caretaker.s3refresh import resource, timing
from caretaker.s3refresh.debounce import Claim, DirtyScope, Failure, InFlight, LastCall, Phase, TargetState
from caretaker.s3refresh.folders import EVERYTHING, Request, Scope
from caretaker.s3refresh.forecast import Next, bounds, outlooks
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.options import DebounceOptions
from caretaker.s3refresh.resource import ParsedRefresh, options_of
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.targets.job import JobTarget
from caretaker.s3refresh.targets.storagegateway import Completion, Discover, SharesSpec, StorageGatewayTarget
from caretaker.s3refresh.timing import TargetTimes
from testing.s3refreshes import target_spec_of

NOW = 1_800_000_000.0
A = Scope(folders=frozenset({"/", "a"}))
CALL = Request(("a", "/"), recursive=False)
CLAIM = Claim("c1", "me", NOW - 2, CALL, NOW - 40)
SHARE = Share("t", "arn:t", "bucket", group="gateway")
GONE = msgspec.structs.replace(SHARE, ready=False)
QUIET = "30s (quietPeriod) after the last event, at most 10m (maxDelay) after the first"
TRACKED = Completion(queue_url="https://sqs.eu-west-1.amazonaws.com/123456789012/ends")


def spec(**fields: Any) -> Spec:
    gateway = StorageGatewayTarget(
        shares=SharesSpec(discover=Discover()), completion=fields.pop("completion", Completion())
    )
    queue = SQSSource(queue_url="https://sqs.eu-west-1.amazonaws.com/123456789012/events")
    target = target_spec_of(fields.pop("target_type", gateway))
    return Spec(AwsSpec(region="eu-west-1"), Source(queue), target, **fields)


def read(
    *targets: TargetState, phase: Phase = "Debouncing", conditions: Any = (), **fields: Any
) -> ParsedRefresh:
    """A resource with the spec's own debounce options: quiet 30 s, at most 10 min, 60 s between calls."""
    made = spec(**fields)
    status = Status(
        observed_generation=1,
        conditions=tuple(Condition(*parts, observed_generation=1) for parts in conditions),
        targets=tuple(resource.encode_target(target, phase) for target in targets),
    )
    return ParsedRefresh(WireMeta(name="r", namespace="n", generation=1), status, made, options_of(made))


def upcoming(target: TargetState, **how: Any) -> Next:
    shares = how.pop("shares", None)
    (one,) = outlooks(read(target, **how), NOW, shares)
    return one.next


def found(*shares: Share) -> Discovery:
    return Discovery(complete=True, shares=shares)


def dirty(since: float = NOW - 10, **fields: Any) -> TargetState:
    return TargetState("t", dirty=DirtyScope(since, A), **fields)


@pytest.mark.parametrize(
    ("of", "why", "at", "words"),
    [
        pytest.param(TargetState("t"), "Clean", None, "nothing waits", id="clean"),
        pytest.param(
            dirty(),
            "Quiet",
            NOW + 590,
            QUIET,
            id="dirty: when it is quiet, at the latest after maxDelay",
        ),
        pytest.param(
            dirty(since=NOW - 595, last=LastCall(NOW - 20, NOW - 18)),
            "MinInterval",
            NOW + 42,
            "60s (minInterval) after the last call",
            id="minInterval ends after maxDelay: known to the second",
        ),
        pytest.param(
            dirty(failure=Failure(2, "Throttled", "slow", NOW + 700)),
            "Failed",
            NOW + 700,
            "the next try after 2 failures: Throttled",
            id="backoff ends after maxDelay",
        ),
        pytest.param(
            dirty(since=NOW - 601),
            "Due",
            NOW - 1,
            "the operator is about to start it",
            id="due, and no pass has looked since",
        ),
        pytest.param(
            dirty(since=NOW - 600), "Due", NOW, "the operator is about to start it", id="due this moment"
        ),
        pytest.param(
            dirty(since=NOW + 9_000), "Quiet", NOW + 600, QUIET, id="a since in the future counts as now"
        ),
        pytest.param(
            TargetState("t", dirty=DirtyScope(NOW - 10, A, closed=True)),
            "Due",
            NOW - 10,
            "the operator is about to start it",
            id="the rest of what was claimed waits for no event",
        ),
        pytest.param(
            TargetState("t", dirty=DirtyScope(NOW - 10, A, closed=True), last=LastCall(NOW - 20, NOW - 18)),
            "MinInterval",
            NOW + 42,
            "60s (minInterval) after the last call",
            id="and for minInterval alone",
        ),
        pytest.param(
            dirty(since=NOW - 595, last=LastCall(NOW - 20, NOW - 18), failure=Failure(1, "X", "", NOW + 42)),
            "Failed",
            NOW + 42,
            "the next try after 1 failure: X",
            id="backoff and minInterval end together",
        ),
        pytest.param(
            dirty(failure=Failure(1, "X", "", NOW + 90_000)),
            "Failed",
            NOW + 900,
            "the next try after 1 failure: X",
            id="no failure waits for longer than retry.max, whatever its clock said",
        ),
        pytest.param(TargetState("t", claim=CLAIM), "Calling", None, "the call is being made", id="claimed"),
        pytest.param(
            dirty(claim=CLAIM, failure=Failure(1, "OutcomeUnknown", "", NOW)),
            "Calling",
            None,
            "the call is being made",
            id="claimed, and called again this moment",
        ),
        pytest.param(
            dirty(claim=CLAIM, failure=Failure(1, "OutcomeUnknown", "", NOW + 30)),
            "Failed",
            NOW + 30,
            "the same call again after 1 failure: OutcomeUnknown",
            id="claimed, to be called again",
        ),
        pytest.param(
            dirty(in_flight=InFlight("n", NOW - 20, CALL), last=LastCall(NOW - 21, NOW - 20)),
            "InFlight",
            NOW + 590,
            "after the refresh in flight, whose end is assumed after 60s (completion.assumeAfter)",
            id="dirty behind a refresh in flight",
        ),
        pytest.param(
            TargetState("t", in_flight=InFlight("n", NOW - 20, CALL)),
            "InFlight",
            None,
            "nothing waits; the end of the refresh in flight is assumed after 60s (completion.assumeAfter)",
            id="a refresh in flight alone",
        ),
    ],
)
def test_the_next_call(of: TargetState, why: str, at: float | None, words: str) -> None:
    told = upcoming(of)
    assert (told.why, told.at, told.message) == (why, at, words)


@pytest.mark.parametrize(
    ("fields", "of", "why", "at", "words"),
    [
        pytest.param(
            {"debounce": Debounce(min_interval="15m")},
            dirty(failure=Failure(1, "X", "", NOW + 90_000)),
            "Failed",
            NOW + 910,
            "the next try after 1 failure: X",
            id="a failure waits for minInterval after a call that came late, too",
        ),
        pytest.param(
            {"debounce": Debounce(quiet_period="2m")},
            dirty(),
            "Quiet",
            NOW + 590,
            "2m (quietPeriod) after the last event, at most 10m (maxDelay) after the first",
            id="durations are told as people write them",
        ),
        pytest.param(
            {"debounce": Debounce(quiet_period="90s", max_delay="1h")},
            dirty(),
            "Quiet",
            NOW + 3590,
            "90s (quietPeriod) after the last event, at most 1h (maxDelay) after the first",
            id="hours, too",
        ),
        pytest.param(
            {"suspend": True, "resync": Resync(interval="1h")},
            TargetState("t", last=LastCall(NOW - 100, NOW - 100, NOW - 90, full_at=NOW - 100)),
            "Clean",
            None,
            "nothing waits",
            id="no resync of a resource that is held",
        ),
    ],
)
def test_the_next_call_as_the_spec_has_it(
    fields: dict[str, Any], of: TargetState, why: str, at: float | None, words: str
) -> None:
    told = upcoming(of, **fields)
    assert (told.why, told.at, told.message) == (why, at, words)


def test_a_time_that_is_none_is_now() -> None:
    before = read(dirty())
    (one,) = before.status.targets
    assert one.dirty is not None
    spoilt = msgspec.structs.replace(one, dirty=msgspec.structs.replace(one.dirty, since="yesterday"))
    status = msgspec.structs.replace(before.status, targets=(spoilt,))
    (found,) = outlooks(msgspec.structs.replace(before, status=status), NOW)
    assert (found.next.why, found.next.at) == ("Quiet", NOW + 600)


def test_what_the_events_decide_is_a_bound_and_what_time_decides_is_not() -> None:
    assert upcoming(dirty()).latest
    assert not upcoming(dirty(failure=Failure(1, "X", "", NOW + 700))).latest


@pytest.mark.parametrize(
    ("of", "why", "not_before", "words"),
    [
        pytest.param(
            dirty(last=LastCall(NOW - 20, NOW - 18)),
            "MinInterval",
            NOW + 42,
            "60s (minInterval) after the last call, and 30s (quietPeriod) after the last event",
            id="minInterval after what quiet alone would make it",
        ),
        pytest.param(
            dirty(failure=Failure(2, "X", "", NOW + 45)),
            "Failed",
            NOW + 45,
            "the next try after 2 failures: X, and 30s (quietPeriod) after the last event",
            id="backoff after what quiet alone would make it",
        ),
        pytest.param(
            dirty(since=NOW - 1, last=LastCall(NOW - 40, NOW - 40)),
            "Quiet",
            None,
            "30s (quietPeriod) after the last event",
            id="minInterval ends before it can be quiet",
        ),
        pytest.param(
            dirty(since=NOW - 90, last=LastCall(NOW - 65, NOW - 65)),
            "Quiet",
            None,
            QUIET,
            id="minInterval has ended",
        ),
        pytest.param(
            dirty(since=NOW - 90, last=LastCall(NOW - 60, NOW - 60)),
            "Quiet",
            None,
            QUIET,
            id="minInterval ends this moment",
        ),
        pytest.param(
            dirty(in_flight=InFlight("n", NOW - 20, CALL)),
            "InFlight",
            NOW + 40,
            "after the refresh in flight",
            id="behind a refresh whose end is assumed, and that is no more on record",
        ),
        pytest.param(
            dirty(in_flight=InFlight("n", NOW - 60, CALL)),
            "InFlight",
            None,
            "after the refresh in flight",
            id="behind a refresh whose end is assumed this moment",
        ),
        pytest.param(
            dirty(in_flight=InFlight("n", NOW - 20, CALL), last=LastCall(NOW - 21, NOW - 20)),
            "InFlight",
            NOW + 40,
            "after the refresh in flight",
            id="behind a refresh whose end is assumed",
        ),
    ],
)
def test_what_time_decides_is_the_other_bound(
    of: TargetState, why: str, not_before: float | None, words: str
) -> None:
    told = upcoming(of)
    assert (told.why, told.not_before, told.latest) == (why, not_before, True)
    assert told.at is not None
    assert told.at > NOW + 500, "maxDelay after the first event"
    assert words in told.message


def test_the_next_call_names_its_folders() -> None:
    assert upcoming(dirty()).request == CALL
    assert upcoming(TargetState("t", dirty=DirtyScope(NOW, EVERYTHING))).request == Request(
        ("/",), recursive=True
    )
    assert upcoming(TargetState("t")).request is None


def test_a_tracked_refresh_is_waited_for_as_long_as_its_timeout_and_for_minutes_by_what_waits() -> None:
    told = upcoming(dirty(in_flight=InFlight("n", NOW - 20, CALL)), completion=TRACKED)
    assert (told.at, told.not_before) == (NOW - 20 + 900, None)
    assert "is reported by an event, and awaited until 15m after it began" in told.message
    alone = upcoming(TargetState("t", in_flight=InFlight("n", NOW - 20, CALL)), completion=TRACKED)
    assert "is reported by an event, within 6h (completion.timeout)" in alone.message


def test_behind_a_refresh_min_interval_counts_as_well() -> None:
    in_flight = dirty(in_flight=InFlight("n", NOW - 20, CALL), last=LastCall(NOW - 20, NOW - 20))
    assert upcoming(in_flight, debounce=Debounce(min_interval="5m")).not_before == NOW + 280
    assert upcoming(in_flight, target_type=JobTarget({"spec": {}})).not_before == NOW + 40


@pytest.mark.parametrize("waits", [True, False])
def test_the_end_of_a_job_has_no_time(waits: bool) -> None:
    in_flight = InFlight("n", NOW - 20, CALL)
    of = dirty(in_flight=in_flight) if waits else TargetState("t", in_flight=in_flight)
    told = upcoming(of, target_type=JobTarget({"spec": {}}))
    assert (told.why, told.at, told.latest, told.not_before) == ("InFlight", None, False, None)
    assert told.message.endswith("is asked for every few seconds")


def test_a_target_that_is_due_and_was_not_started_waits_for_its_turn() -> None:
    due = dirty(since=NOW - 603)
    told = upcoming(due, phase="Due")
    assert (told.why, told.at) == ("Turn", NOW - 3)
    assert told.message == "it waits for its turn at the gateway"
    unresolved = [(c.TARGETS_RESOLVED, "False", Reason.TARGETS_UNRESOLVED)]
    assert upcoming(due, phase="Due", conditions=unresolved).message == (
        "it waits for its turn at the gateway, or for what TargetsResolved tells"
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param({"suspend": True}, "spec.suspend is true", id="suspended"),
        pytest.param(
            {"conditions": [(c.READY, "False", Reason.NOT_GRANTED)]},
            "Ready is False, NotGranted",
            id="the operator may not",
        ),
    ],
)
def test_nothing_is_started_for_a_resource_that_is_held(how: dict[str, Any], words: str) -> None:
    told = upcoming(dirty(), **how)
    assert (told.why, told.at) == ("Held", None)
    assert told.message == f"nothing is started: {words}; what waits is kept"


def test_a_verdict_about_an_older_spec_holds_nothing() -> None:
    old = read(dirty(), conditions=[(c.READY, "False", Reason.NOT_GRANTED)])
    newer = msgspec.structs.replace(old, meta=WireMeta(name="r", namespace="n", generation=2))
    assert outlooks(newer, NOW)[0].next.why == "Quiet"


@pytest.mark.parametrize("suspend", [False, True])
def test_a_resource_that_goes_away_waits_for_no_quiet(suspend: bool) -> None:
    of = read(dirty(), on_delete="Flush", suspend=suspend)
    meta = WireMeta(
        name="r",
        namespace="n",
        generation=1,
        deletion_timestamp="2027-01-15T08:00:00Z",
        finalizers=["caretaker.dev/finalizer"],
    )
    assert outlooks(msgspec.structs.replace(of, meta=meta), NOW)[0].next.why == "Due"


def test_a_resync_is_told_while_nothing_waits() -> None:
    clean = TargetState("t", last=LastCall(NOW - 100, NOW - 100, NOW - 90, full_at=NOW - 100))
    told = upcoming(clean, resync=Resync(interval="1h"))
    assert (told.why, told.at) == ("Resync", NOW - 100 + 3600)
    assert told.message == "everything, 1h (resync.interval) after everything was last refreshed"
    assert upcoming(clean).why == "Clean"


class TestDiscovered:
    def test_a_target_that_is_not_found_or_not_available_waits(self) -> None:
        told = upcoming(dirty(), shares=found())
        assert (told.why, told.message) == ("NotFound", "it is not found any more; what waits is kept")
        told = upcoming(dirty(), shares=found(GONE))
        assert (told.why, told.message) == ("NotAvailable", "it is not AVAILABLE; what waits is kept")
        assert upcoming(dirty(), shares=found(SHARE)).why == "Quiet"

    def test_a_target_is_told_as_it_is_on_record_and_found(self) -> None:
        (told,) = outlooks(read(dirty(), phase="Due"), NOW, found(SHARE))
        assert (told.target, told.phase, told.share) == (dirty(), "Due", SHARE)
        (told,) = outlooks(read(dirty()), NOW)
        assert (told.target, told.phase, told.share) == (dirty(), "Debouncing", None)

    def test_a_share_that_is_new_may_not_be_available_or_be_held(self) -> None:
        (told,) = outlooks(read(), NOW, found(GONE))
        assert (told.next.why, told.next.message) == (
            "NotAvailable",
            "it is not AVAILABLE; what waits is kept",
        )
        (told,) = outlooks(read(suspend=True), NOW, found(GONE))
        assert (told.next.why, told.next.message) == ("Held", "nothing is started: spec.suspend is true")

    def test_a_share_beside_those_on_record_is_stale(self) -> None:
        new = msgspec.structs.replace(SHARE, id="u")
        _, told = outlooks(read(TargetState("t")), NOW, found(SHARE, new))
        assert (told.target.id, told.next.why, told.share) == ("u", "New", new)
        assert told.next.message == "everything (it is new), after 30s without an event (quietPeriod)"
        assert (told.next.at, told.next.latest, told.phase) == (NOW + 600, True, "Debouncing")
        assert told.next.request == Request(("/",), recursive=True)

    @pytest.mark.parametrize(
        ("on_start", "why", "phase", "words"),
        [
            (
                True,
                "New",
                "Debouncing",
                "everything (resync.onStart), after 30s without an event (quietPeriod)",
            ),
            (False, "Clean", "Clean", "nothing before an event comes (resync.onStart is false)"),
        ],
    )
    def test_at_the_first_start_that_is_as_the_spec_says(
        self, on_start: bool, why: str, phase: str, words: str
    ) -> None:
        (told,) = outlooks(read(resync=Resync(on_start=on_start)), NOW, found(SHARE))
        assert (told.next.why, told.phase, told.next.message) == (why, phase, words)
        assert (told.next.request is None) is not on_start

    def test_one_that_is_found_after_all_have_left_is_stale(self) -> None:
        left = [(c.TARGETS_RESOLVED, "False", Reason.NO_TARGETS)]
        (told,) = outlooks(read(conditions=left, resync=Resync(on_start=False)), NOW, found(SHARE))
        assert (told.next.why, "it is new" in told.next.message) == ("New", True)


times = st.integers(0, 3_000)


@given(since=times, event=times, called=times, attempt=times, counts=st.booleans())
def test_the_operator_starts_within_the_bounds(
    since: int, event: int, called: int, attempt: int, counts: bool
) -> None:
    """Whenever the last event came: the CLI knows all but that."""
    options = DebounceOptions()
    failure = Failure(1, "X", "", NOW - 1_500 + attempt) if counts else None
    asked = NOW - called
    target = dirty(NOW - since, last=LastCall(asked, asked), failure=failure)
    last_event = max(NOW - event, NOW - since)
    start = timing.start_at(target, options, TargetTimes(NOW - last_event, called_for=called), NOW)
    assert target.dirty is not None
    earliest, latest = bounds(target, target.dirty, options, NOW)
    assert start is not None
    # A start in the past is one now.
    assert max(earliest, NOW) <= max(start, NOW) <= max(latest, NOW)
