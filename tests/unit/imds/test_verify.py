"""Which nodes are probed, when again, and what that proves."""

from typing import Any

import msgspec
import pytest

from caretaker.api.imds import CanaryStatus, ChangedInstance, FieldChange, GroupCanary, Options, Selector
from caretaker.api.objects import Node
from caretaker.api.times import format_micros, format_time
from caretaker.imds.desk import Desk
from caretaker.imds.judge import Seen
from caretaker.imds.place import place_of
from caretaker.imds.plan import Member, Plan, Policy, Snapshot, plan
from caretaker.imds.probe import UNKNOWN, Finding, Known
from caretaker.imds.verify import Place, Probing, Verified, verify

NOW = 1_800_000_000.0
DAY, AGAIN = 86400.0, 600.0
PROBING = Probing(per_group=2)
APPS = ("EKSManagedNodegroup", "apps")
HERE = Place("a", (APPS,), fit=True, hop_limit=2)


def seen(ago: float = 60.0, verdict: str = "Reachable", **more: Any) -> Finding:
    return Finding(verdict, NOW - ago, **{"latency_ms": 3.0, "needed_hops": 2, **more})


def judged(place: Place = HERE, finding: Finding | None = None, mark: str = "", **probing: Any) -> Verified:
    asks = msgspec.structs.replace(PROBING, **probing)
    found = {place.node: finding} if finding is not None else {}
    return verify(asks, [place], found, {place.node: mark} if mark else {}, NOW)


CANARY = msgspec.structs.replace(HERE, needed=True)
LATE = msgspec.structs.replace(HERE, changed=NOW - 100)
SHUT = {"verdict": "HopLimited", "latency_ms": None}


@pytest.mark.parametrize(
    ("place", "finding", "again"),
    [
        pytest.param(HERE, seen(), False, id="as it should be, and fresh"),
        pytest.param(HERE, seen(DAY), True, id="as old as the interval"),
        pytest.param(LATE, seen(101), True, id="older than the last change"),
        pytest.param(LATE, seen(99), False, id="newer than that"),
        pytest.param(HERE, seen(AGAIN - 1, UNKNOWN), False, id="failed just now"),
        pytest.param(HERE, seen(AGAIN, UNKNOWN), True, id="failed a while ago"),
        pytest.param(
            HERE, seen(AGAIN, **SHUT), True, id="too small a hop limit, though it is large enough now"
        ),
        pytest.param(HERE, seen(AGAIN, **SHUT, needed_hops=3), False, id="too small a hop limit"),
        pytest.param(
            HERE, seen(AGAIN, needed_hops=3), True, id="reachable, though the hop limit is too small now"
        ),
        pytest.param(HERE, seen(AGAIN, "Blocked"), False, id="not as expected, and nobody waits"),
        pytest.param(CANARY, seen(AGAIN - 1, "Blocked"), False, id="a canary's, not as expected just now"),
        pytest.param(CANARY, seen(AGAIN, "Blocked"), True, id="a canary's, not as expected a while ago"),
        pytest.param(CANARY, seen(AGAIN), False, id="a canary's, as expected"),
    ],
)
def test_when_a_node_is_probed_again(place: Place, finding: Finding, again: bool) -> None:
    found = judged(place, finding)
    assert (found.marks != {"a": ""}, found.waiting) == (again, again)


def test_a_re_run_that_was_asked_for_is_not_asked_for_again() -> None:
    first = judged(CANARY, seen(AGAIN, "Blocked"))
    later = judged(CANARY, seen(AGAIN, "Blocked"), first.marks["a"])
    assert (later.marks, later.waiting) == (first.marks, True)


@pytest.mark.parametrize(
    ("place", "finding", "reason"),
    [
        pytest.param(HERE, seen(DAY), "Proved", id="only aged: it counts until the next one"),
        pytest.param(HERE, seen(DAY + AGAIN), "Probing", id="the next one does not come"),
        pytest.param(LATE, seen(101), "Probing", id="before a change"),
        pytest.param(HERE, seen(AGAIN, UNKNOWN, detail="ImagePullBackOff"), "NotProved", id="failed"),
        pytest.param(HERE, None, "Probing", id="never"),
    ],
)
def test_what_was_found_counts_until_the_next_is_there(
    place: Place, finding: Finding | None, reason: str
) -> None:
    found = judged(place, finding)
    assert (found.reason, found.waiting) == (reason, True)


@pytest.mark.parametrize(
    ("place", "finding", "seconds"),
    [
        pytest.param(HERE, seen(60), DAY - 60, id="as it should be: the interval"),
        pytest.param(HERE, seen(60, UNKNOWN), AGAIN - 60, id="failed"),
        pytest.param(CANARY, seen(60, "Blocked"), AGAIN - 60, id="a canary waits for it"),
        pytest.param(HERE, None, None, id="never"),
    ],
)
def test_when_to_look_whether_one_is_due(
    place: Place, finding: Finding | None, seconds: float | None
) -> None:
    assert judged(place, finding).wake == seconds


def test_the_interval_bounds_how_soon_a_doubtful_one_is_made_again() -> None:
    assert judged(HERE, seen(300, UNKNOWN), interval=300.0).waiting
    assert not judged(HERE, seen(299, UNKNOWN), interval=300.0).waiting


def test_some_of_each_group_and_those_that_are_known_first() -> None:
    other = ("KarpenterNodePool", "default")
    places = [Place(name, (APPS,), fit=True) for name in "abcd"]
    places += [Place("e", (other,), fit=True), Place("f", (), fit=True), Place("g", (), fit=False)]
    found = {"c": seen(), "d": seen(verdict="Blocked")}
    made = verify(PROBING, places, found, {}, NOW)
    assert sorted(made.marks) == ["c", "d", "e", "f"]
    assert made.groups[APPS][1].probed == 2
    assert made.groups.keys() == {APPS}, "of no group, or not yet known"
    assert (made.reason, made.proved) == ("SetButUnreachable", False)


def test_a_canary_is_probed_beside_those_of_its_group() -> None:
    places = [Place(name, (APPS,), fit=True) for name in "abcd"]
    places += [Place("z", (APPS,), fit=True, needed=True)]
    made = verify(PROBING, places, {"a": seen(), "b": seen()}, {}, NOW)
    assert "z" in made.marks


def test_a_mark_of_somebody_else_is_kept() -> None:
    """`caretaker rerun daemontask caretaker-imds-probe --nodes a`."""
    mark = format_micros(NOW - 5)
    found = judged(HERE, seen(), mark)
    assert (found.marks, found.waiting, found.reason) == ({"a": mark}, True, "Proved")


def node(instance: str) -> Node:
    return Node(instance, instance, {}, provider_id=f"aws:///eu-west-1a/{instance}", ready=True)


def running(found: Node, hops: int) -> Member:
    return Member(found, place_of(found), Seen(Options(hops), state="running"), ())


def test_a_canary_passes_only_by_a_probe_that_was_asked_for_after_it_was_seen_applied() -> None:
    ready = node("i-00000001")
    first, second = running(ready, 2), running(node("i-00000002"), 1)
    since, epoch = format_time(NOW - 600), "1970-01-01T00:00:00Z"
    one = ChangedInstance("i-00000001", ready.name, since, applied=True, ready_since=epoch)
    change = FieldChange("httpPutResponseHopLimit", "1", "2")
    soaks = GroupCanary("", "", (change,), (one,), "Soaking", since, since)
    canary = CanaryStatus(1, ("i-00000001",), "Soaking", since, since, (soaks,))
    desk = Desk("two", 1, now=5.0, wall=NOW, canary=canary, loosening=("HopLimit",), free={"eu-west-1": 9})
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)

    def made(mark: str, **told: Any) -> Plan:
        finding = seen(mark=mark, **told)
        known = Known({ready.name: finding}, {ready.name: mark})
        return plan(
            Snapshot("two", [mine], [first, second], desk=desk, probing=PROBING, known=known, now=NOW)
        )

    for mark in ("", format_micros(NOW - 601), format_micros(NOW - 599.5)):
        old = made(mark)
        assert old.verified is not None
        assert old.verified.marks[ready.name] > format_micros(NOW - 1)
        assert old.enforced is not None
        assert (old.enforced.phase, old.enforced.canary, old.enforced.writes) == (
            *("CanarySoaking", canary),
            (),
        )
        assert "see Verified" in old.enforced.message
    bad = made(format_micros(NOW - 300), **SHUT)
    assert bad.enforced is not None
    assert (bad.enforced.phase, bad.enforced.hold, bad.enforced.writes) == ("SetButUnreachable", True, ())
    fresh = made(format_micros(NOW - 300))
    assert fresh.enforced is not None
    assert (fresh.enforced.phase, len(fresh.enforced.writes)) == ("Changing", 1)


def test_a_finding_that_counts_and_is_not_as_expected_stops_every_batch() -> None:
    ready = node("i-00000001")
    members = [running(ready, 2), *(running(node(f"i-0000000{n}"), 1) for n in range(2, 6))]
    desk = Desk(
        "two", 1, now=5.0, wall=NOW, loosening=("HopLimit",), free={"eu-west-1": 9}, canary_instances=0
    )
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)

    def writes(finding: Finding, **probing: Any) -> int:
        asks = msgspec.structs.replace(PROBING, **probing)
        known = Known({ready.name: finding})
        made = plan(Snapshot("two", [mine], members, desk=desk, probing=asks, known=known, now=NOW))
        assert made.enforced is not None
        return len(made.enforced.writes)

    assert writes(seen()) == 4
    assert writes(seen(verdict="Blocked")) == 0
    assert writes(seen(verdict="Blocked"), expect="Any") == 4
    assert writes(seen(verdict=UNKNOWN)) == 4


def test_a_hop_limit_that_is_too_low_for_a_group_is_held() -> None:
    labels = {"eks.amazonaws.com/nodegroup": "apps"}
    nodes = [msgspec.structs.replace(node(f"i-0000000{n}"), labels=labels) for n in (1, 2)]
    members = [
        Member(one, place_of(one), Seen(Options(hops), state="running"), (APPS,))
        for one, hops in zip(nodes, (2, 3), strict=True)
    ]
    desk = Desk(
        "two", 1, now=5.0, wall=NOW, tightening=("HopLimit",), free={"eu-west-1": 9}, canary_instances=0
    )
    mine = Policy("two", 100, Options(2), Selector(), enforces=True)
    finding = {nodes[0].name: seen(needed_hops=3)}
    for expect, reason in (("PodReachable", ["HopLimitTooLow"]), ("Any", [])):
        asks = msgspec.structs.replace(PROBING, expect=expect)
        found = Snapshot("two", [mine], members, desk=desk, probing=asks, known=Known(finding), now=NOW)
        made = plan(found)
        assert made.enforced is not None
        assert [why.reason for _, why in made.enforced.held][:1] == reason
