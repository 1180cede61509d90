"""What status, conditions and Events say."""

from typing import Any

import msgspec
import pytest

from caretaker.api.conditions import find
from caretaker.api.daemontask import Status
from caretaker.api.ecs import MAX_CLUSTERS, EcsAws, EcsCluster, EcsSpec
from caretaker.daemontask.ecs.check import ServiceState
from caretaker.daemontask.ecs.snapshot import CallFailure, ClusterState, Listing, Queue, Snapshot
from caretaker.daemontask.ecs.status import status_of, transitions
from unit.daemontask.ecs.build import DENIED, IN_STEP, NOW, THROTTLED, known, snapshot, spec
from unit.daemontask.ecs.states import ABSENT, CASES, DAEMON, DOUBT, EVERY, of


@pytest.mark.parametrize(("given", "wanted"), CASES.values(), ids=CASES.keys())
def test_conditions(given: Snapshot, wanted: dict[str, str]) -> None:
    marks = {"True": "", "False": "!", "Unknown": "?"}
    found = {c.type: f"{marks[c.status]}{c.reason}" for c in status_of(given).conditions}
    assert found == {"SpecValid": "Accepted", "QueueReachable": "Reachable", **wanted}
    assert all(c.message and c.observed_generation == 2 for c in status_of(given).conditions)


def test_messages_name_what_is_wrong_and_how_much_of_it() -> None:
    wrong = {f"c{n}": known(failure=DENIED, failures=1) for n in range(4)}
    ready = find(status_of(snapshot(spec(*wrong), clusters=wrong)).conditions, "Ready")
    assert ready is not None
    assert ready.message == "allow ecs:DescribeServices (and 3 more clusters)"
    odd = {f"c{n}": known(service=msgspec.structs.replace(DAEMON, message=f"c{n}")) for n in range(5)}
    ready = find(status_of(snapshot(spec(*odd), clusters=odd)).conditions, "Ready")
    assert ready is not None
    assert ready.message == "c0; c1; c2; and 2 more"


def test_clusters_and_counts() -> None:
    clusters = {
        "prod": known(
            service=ServiceState(desired=5, running=4, counted=5), event_at=NOW, update_at=NOW, calls=3
        ),
        "lab": known(service=ServiceState(desired=2, running=2, counted=2)),
    }
    found = status_of(snapshot(spec("prod", "lab"), clusters=clusters))
    assert (found.desired, found.active, found.pending) == (7, 6, 1)
    assert found.desired == found.succeeded + found.failed + found.active + found.pending + found.blocked
    stamp = "2027-01-15T08:00:00.000000+00:00"
    assert found.ecs == (
        EcsCluster("lab", 2, 2, 2, last_calls=2),
        EcsCluster("prod", 5, 4, 5, stamp, stamp, 3),
    )


def test_more_tasks_than_instances_are_not_more_active() -> None:
    found = status_of(of(service=ServiceState(desired=2, running=5, counted=2)))
    assert (found.desired, found.active, found.pending) == (2, 2, 0)


def test_status_is_bounded() -> None:
    clusters = {f"c{n:03}": known() for n in range(MAX_CLUSTERS + 7)}
    found = status_of(snapshot(EVERY, clusters=clusters))
    assert (len(found.ecs), found.ecs_omitted, found.desired) == (MAX_CLUSTERS, 7, 3 * (MAX_CLUSTERS + 7))


def test_a_second_pass_changes_nothing() -> None:
    first = status_of(of())
    assert status_of(msgspec.structs.replace(of(), status=first, now=NOW + 99)) == first


def test_times_outlive_the_process_that_wrote_them() -> None:
    first = status_of(of(event_at=NOW, update_at=NOW))
    later = msgspec.structs.replace(of(), status=first)
    assert status_of(later).ecs == first.ecs


@pytest.mark.parametrize("fields", [{"suspend": True}, {"refusal": ("NotGranted", "no")}])
def test_what_was_found_last_stands_while_nothing_is_asked(fields: dict[str, Any]) -> None:
    first = status_of(of())
    given = msgspec.structs.replace(of(), status=first, clusters={}, **fields)
    found = status_of(given)
    assert (found.ecs, found.desired) == (first.ecs, 3)


def test_a_cluster_that_max_count_holds_is_not_said_to_have_all_its_tasks() -> None:
    held = msgspec.structs.replace(IN_STEP, reason="MaxCountReached", message="held", doubt=True, counted=9)
    given = snapshot(spec("lab", "prod"), clusters={"lab": known(), "prod": known(service=held)})
    ready = find(status_of(given).conditions, "Ready")
    assert ready is not None
    assert ready.message.endswith("in 2 clusters, 12 altogether; spec.ecs.maxCount holds 1 of them lower")


def told(before: Snapshot, after: Snapshot) -> list[str]:
    first = status_of(before)
    return [
        f"{event.type} {event.reason}: {event.message}"
        for event in transitions(first, status_of(msgspec.structs.replace(after, status=first)), "agent")
    ]


def test_events_tell_transitions_once() -> None:
    updated = of(update_at=NOW, service=ServiceState(desired=4, running=3, counted=4, was=3))
    assert told(of(), updated) == ["Normal DesiredCountSet: service agent: prod: 4"]
    assert told(updated, updated) == []
    assert told(of(), of(service=DAEMON)) == ["Warning DaemonService: prod: DAEMON"]
    assert told(of(service=DAEMON), of(service=DAEMON)) == []
    assert told(of(), of(failure=DENIED, failures=1)) == ["Warning AccessDenied: allow ecs:DescribeServices"]
    assert told(of(failure=DENIED, failures=1), of(failure=DENIED, failures=2)) == []
    held = msgspec.structs.replace(of(), suspend=True)
    assert [line.partition(":")[0] for line in told(of(), held)] == ["Normal Suspended"]
    assert [line.partition(":")[0] for line in told(held, of())] == ["Normal Resumed"]
    assert told(held, held) == []


def test_events_are_aggregated_over_clusters() -> None:
    names = [f"c{n}" for n in range(9)]
    service = ServiceState(desired=4, running=3, counted=4, was=3)
    before = snapshot(EVERY, clusters={name: known() for name in names})
    after = snapshot(EVERY, clusters={name: known(update_at=NOW, service=service) for name in names})
    (line,) = told(before, after)
    assert (
        line == "Normal DesiredCountSet: service agent: c0: 4, c1: 4, c2: 4, c3: 4, c4: 4 and 4 more clusters"
    )


def test_a_standing_status_of_another_target_is_no_matter() -> None:
    """Nothing of its counts is carried on."""
    before = Status(desired=9, succeeded=8, failed=1, current_revision="r")
    assert status_of(snapshot(status=before)) == status_of(snapshot())


def test_each_cluster_has_its_own_active_instances() -> None:
    """Two tasks on one instance of prod make no instance of lab active."""
    clusters = {
        "prod": known(service=ServiceState(desired=2, running=4, counted=2)),
        "lab": known(service=ServiceState(desired=2, running=0, counted=2)),
    }
    found = status_of(snapshot(spec("prod", "lab"), clusters=clusters))
    assert (found.desired, found.active, found.pending) == (4, 2, 2)


def test_counts_stand_while_nothing_is_asked_however_many_clusters_there_are() -> None:
    clusters = {f"c{n:03}": known() for n in range(MAX_CLUSTERS + 7)}
    first = status_of(snapshot(EVERY, clusters=clusters))
    found = status_of(snapshot(EVERY, clusters={}, status=first, suspend=True))
    assert (found.desired, found.active, found.ecs_omitted) == (first.desired, first.active, 7)


@pytest.mark.parametrize(
    ("clusters", "listing"),
    [({}, Listing()), ({"prod": ClusterState(), "lab": ClusterState()}, Listing(at=NOW))],
    ids=["before the list", "before the looks"],
)
def test_another_process_takes_over_without_a_word(
    clusters: dict[str, ClusterState], listing: Listing
) -> None:
    """A new leader knows no cluster yet; nothing has changed, and nothing is said."""
    for service in (IN_STEP, DOUBT, DAEMON):
        seen = known(service=service, event_at=NOW, update_at=NOW)
        first = status_of(snapshot(EVERY, clusters={"prod": seen}))
        given = snapshot(EVERY, clusters=clusters, listing=listing, status=first, queue=Queue())
        assert status_of(given) == first
        assert transitions(first, status_of(given), "agent") == []


def test_a_cluster_that_is_found_later_leaves_ready_as_it_is() -> None:
    first = status_of(snapshot(EVERY, clusters={"prod": known()}))
    assert (
        status_of(snapshot(EVERY, clusters={"prod": known(), "new": ClusterState()}, status=first)) == first
    )


def test_a_cluster_without_the_service_any_more_leaves_the_status() -> None:
    first = status_of(snapshot(EVERY, clusters={"prod": known(), "lab": known()}))
    found = status_of(snapshot(EVERY, clusters={"prod": known(), "lab": known(service=ABSENT)}, status=first))
    assert [one.cluster for one in found.ecs] == ["prod"]
    found = status_of(snapshot(EVERY, clusters={"prod": known()}, status=first))
    assert [one.cluster for one in found.ecs] == ["prod"]


def test_what_an_earlier_spec_found_is_not_said_of_a_later_one() -> None:
    first = status_of(snapshot(EVERY, clusters={"prod": known(service=DOUBT)}))
    earlier = msgspec.structs.replace(
        first,
        conditions=tuple(msgspec.structs.replace(one, observed_generation=1) for one in first.conditions),
    )
    found = status_of(snapshot(EVERY, clusters={}, listing=Listing(), status=earlier))
    ready = find(found.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Starting")
    assert not find(found.conditions, "Degraded")


OTHERS = {
    "another service": {"service": "logs"},
    "another role": {"aws": EcsAws("eu-west-1", "arn:aws:iam::111122223333:role/other")},
    "another region": {"aws": EcsAws("us-east-1")},
    "another endpoint": {"aws": EcsAws("eu-west-1", endpoint_urls={"ecs": "https://ecs.example.com"})},
}


def standing(given: EcsSpec | None = None) -> Status:
    """Of a service whose count was set, after an event; as a status of the generation before."""
    seen = {"prod": known(event_at=NOW, update_at=NOW)}
    found = status_of(snapshot(given, clusters=seen))
    old = (msgspec.structs.replace(one, observed_generation=1) for one in found.conditions)
    return msgspec.structs.replace(found, observed_generation=1, conditions=tuple(old))


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("clusters", [("prod",), ()], ids=["named", "all"])
def test_of_another_target_nothing_is_carried_on(clusters: tuple[str, ...], fields: dict[str, Any]) -> None:
    edited = spec(*clusters)
    before, edited = standing(edited), msgspec.structs.replace(edited, **fields)
    first = snapshot(edited, clusters={"prod": ClusterState()}, listing=Listing(), status=before)
    found = status_of(first)
    assert found.ecs == ((EcsCluster("prod"),) if clusters else ())
    assert (found.desired, found.active, found.pending) == (0, 0, 0)
    assert status_of(msgspec.structs.replace(first, status=found)) == found
    looked = status_of(snapshot(edited, status=found))
    assert looked.ecs == (EcsCluster("prod", 3, 3, 3, last_calls=2),), "in step: no event, no update"
    held = status_of(snapshot(edited, clusters={}, status=before, suspend=True))
    assert (held.ecs, held.desired, held.current_revision) == ((), 0, edited.revision)


@pytest.mark.parametrize(
    "fields",
    [
        {"resync_seconds": 60},
        {"count_instances": "Active"},
        {"aws": EcsAws("eu-west-1", external_id="x", endpoint_urls={"sqs": "https://sqs.example.com"})},
    ],
    ids=["resyncSeconds", "countInstances", "how it is called"],
)
def test_an_edit_of_how_a_service_is_kept_leaves_what_was_found(fields: dict[str, Any]) -> None:
    before, edited = standing(), msgspec.structs.replace(spec("prod"), **fields)
    for given in (
        snapshot(edited, clusters={"prod": ClusterState()}, status=before),
        snapshot(edited, clusters={}, status=before, suspend=True),
    ):
        found = status_of(given)
        assert (found.ecs, found.desired, found.active) == (before.ecs, 3, 3)
    (row,) = status_of(snapshot(edited, status=before)).ecs
    assert row.last_event_time == row.last_update_time == before.ecs[0].last_update_time is not None


def test_a_spec_that_cannot_be_read_leaves_what_was_found() -> None:
    given = snapshot(clusters={}, status=standing(), refusal=("InvalidSpec", "no"))
    found = status_of(msgspec.structs.replace(given, spec=None))
    before = standing()
    assert (found.ecs, found.desired, found.current_revision) == (before.ecs, 3, before.current_revision)


def test_a_cluster_that_is_named_no_more_does_not_stand() -> None:
    clusters = {"prod": known(), "lab": known(service=ServiceState(desired=2, running=1, counted=2))}
    before = status_of(snapshot(spec("prod", "lab"), clusters=clusters))
    found = status_of(snapshot(spec("lab"), clusters={}, status=before, suspend=True))
    assert [one.cluster for one in found.ecs] == ["lab"]
    assert (found.desired, found.active, found.pending) == (2, 1, 1)


FAILED_ONCE = ClusterState(failure=THROTTLED, failures=1)


@pytest.mark.parametrize(
    ("clusters", "listing"),
    [
        ({}, Listing(failure=THROTTLED, failures=1)),
        ({"prod": FAILED_ONCE}, Listing(at=NOW)),
        ({"prod": known(), "new": FAILED_ONCE}, Listing(at=NOW)),
        ({"prod": FAILED_ONCE, "lab": msgspec.structs.replace(FAILED_ONCE, failures=2)}, Listing(at=NOW)),
    ],
    ids=["the list", "a new leader's first look", "a cluster that is new", "two looks"],
)
def test_what_time_alone_mends_takes_nothing_back_before_the_third_failure(
    clusters: dict[str, ClusterState], listing: Listing
) -> None:
    first = status_of(snapshot(EVERY, clusters={"prod": known()}))
    given = snapshot(EVERY, clusters=clusters, listing=listing, status=first)
    assert status_of(given) == first


@pytest.mark.parametrize(("failure", "failures"), [(DENIED, 1), (THROTTLED, 3)])
@pytest.mark.parametrize("listed", [True, False])
def test_a_new_leader_tells_what_lasts(failure: CallFailure, failures: int, *, listed: bool) -> None:
    first = status_of(snapshot(EVERY, clusters={"prod": known()}))
    failed = ClusterState(failure=failure, failures=failures)
    listing = Listing(at=NOW) if listed else Listing(failure=failure, failures=failures)
    given = snapshot(EVERY, clusters={"prod": failed} if listed else {}, listing=listing, status=first)
    ready = find(status_of(given).conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", failure.reason)


def test_of_a_new_spec_the_first_failure_is_told_and_stays_told() -> None:
    begun = status_of(snapshot(clusters={"prod": ClusterState()}))
    given = snapshot(clusters={"prod": FAILED_ONCE}, status=begun)
    told = status_of(given)
    ready = find(told.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Throttled")
    assert status_of(msgspec.structs.replace(given, status=told)) == told
