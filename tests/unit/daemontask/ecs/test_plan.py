"""When a cluster is looked at."""

import msgspec
import pytest

from caretaker.daemontask.ecs.plan import BACKOFF, BACKOFF_REFUSED, CHECKS, MERGE_SECONDS, Plan, backoff, plan
from caretaker.daemontask.ecs.snapshot import ClusterState, Listing, Snapshot
from unit.daemontask.ecs.build import CLOCK, known, snapshot, spec

LOOK = ("prod",)
LISTED = Listing(CLOCK, CLOCK)
EVERY = spec()  # every cluster that runs the service


def one(**fields: object) -> Snapshot:
    return snapshot(clusters={"prod": known(**fields)})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        pytest.param(snapshot(clusters={"prod": ClusterState()}), Plan(LOOK), id="at first, at once"),
        pytest.param(one(), Plan(wake=CLOCK + 290), id="at rest, at the resync"),
        pytest.param(one(checked=CLOCK - 300), Plan(LOOK), id="the resync is due"),
        pytest.param(
            one(dirty=CLOCK),
            Plan(wake=CLOCK + MERGE_SECONDS),
            id="an event waits for those that come with it",
        ),
        pytest.param(one(dirty=CLOCK - MERGE_SECONDS), Plan(LOOK), id="for a second from the first one"),
        pytest.param(
            one(dirty=CLOCK, checked=CLOCK - 300), Plan(LOOK), id="an event does not put a resync off"
        ),
        pytest.param(
            one(confirm=CLOCK + 60), Plan(wake=CLOCK + 60), id="what is to be confirmed is looked at again"
        ),
        pytest.param(one(confirm=CLOCK + 60, dirty=CLOCK - 9), Plan(LOOK), id="or earlier, if events come"),
        pytest.param(
            one(confirm=CLOCK - 1, retry=CLOCK + 5), Plan(wake=CLOCK + 5), id="unless the last look failed"
        ),
        pytest.param(one(busy=True, dirty=CLOCK - 9), Plan(), id="a look that is under way is waited for"),
        pytest.param(
            one(failures=2, retry=CLOCK + 5, dirty=CLOCK - 9),
            Plan(wake=CLOCK + 5),
            id="what failed waits, whatever events come",
        ),
        pytest.param(one(failures=2, retry=CLOCK), Plan(LOOK), id="and is tried again"),
        pytest.param(
            msgspec.structs.replace(one(dirty=CLOCK - 9), suspend=True), Plan(), id="nothing while suspended"
        ),
        pytest.param(
            msgspec.structs.replace(one(checked=0.0), refusal=("NotGranted", "no")),
            Plan(),
            id="nothing that is not granted",
        ),
        pytest.param(
            snapshot(EVERY, clusters={}, listing=Listing()),
            Plan(list=True),
            id="clusters are listed at first",
        ),
        pytest.param(
            snapshot(EVERY, clusters={}, listing=Listing(busy=True)), Plan(), id="a list is waited for"
        ),
        pytest.param(
            snapshot(EVERY, clusters={}, listing=Listing(at=CLOCK - 300)),
            Plan(list=True),
            id="and listed again at the resync",
        ),
        pytest.param(
            snapshot(EVERY, clusters={}, listing=Listing(CLOCK - 40, CLOCK - 41, named=CLOCK - 1)),
            Plan(list=True),
            id="an event of an unknown cluster asks for a list at once",
        ),
        pytest.param(
            snapshot(EVERY, clusters={}, listing=Listing(CLOCK - 10, CLOCK - 11, named=CLOCK - 1)),
            Plan(wake=CLOCK + 20),
            id="unless there was one just now",
        ),
        pytest.param(
            snapshot(EVERY, clusters={}, listing=Listing(CLOCK - 10, CLOCK - 11, named=CLOCK - 41)),
            Plan(wake=CLOCK + 290),
            id="or one that has it for certain",
        ),
        pytest.param(
            snapshot(EVERY, clusters={}, listing=Listing(failures=1, retry=CLOCK + 3)),
            Plan(wake=CLOCK + 3),
            id="a list that failed waits",
        ),
        pytest.param(
            snapshot(spec("prod", "lab"), clusters={"prod": known(dirty=CLOCK - 9), "lab": known(busy=True)}),
            Plan(LOOK, wake=None),
            id="one cluster does not wait for another",
        ),
    ],
)
def test_when_to_look(given: Snapshot, wanted: Plan) -> None:
    assert plan(given) == wanted


def test_so_many_are_looked_at_at_a_time_and_those_that_waited_longest_first() -> None:
    new = {f"a{number}": ClusterState() for number in range(100)}
    busy = {f"b{number}": known(busy=True) for number in range(CHECKS - 3)}
    old = {"x": known(dirty=CLOCK - 5), "y": known(dirty=CLOCK - 9)}
    assert plan(snapshot(EVERY, clusters=new | busy | old, listing=LISTED)).checks == ("y", "x", "a0")
    full = busy | {f"c{number}": known(busy=True) for number in range(9)}
    assert plan(snapshot(EVERY, clusters=new | full, listing=LISTED)).checks == ()


@pytest.mark.parametrize(("transient", "waits"), [(True, BACKOFF), (False, BACKOFF_REFUSED)])
def test_what_fails_is_tried_less_and_less_often(*, transient: bool, waits: tuple[float, ...]) -> None:
    found = [backoff(failures, transient=transient) for failures in range(1, 20)]
    assert found[: len(waits)] == list(waits)
    assert set(found[len(waits) :]) == {waits[-1]}
