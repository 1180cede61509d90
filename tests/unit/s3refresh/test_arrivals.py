"""The matched events of messages, as a pass receives them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec, TargetStatus
from caretaker.runtime import tasks
from caretaker.s3refresh import debounce
from caretaker.s3refresh.debounce import DirtyScope, TargetState
from caretaker.s3refresh.envelope import Completion, ObjectEvent
from caretaker.s3refresh.folders import EVERYTHING, MAX_FOLDERS, Scope
from caretaker.s3refresh.gather import SLICE, Arrivals, joined
from caretaker.s3refresh.match import STEP, Matches, of_buckets
from caretaker.s3refresh.receiver import PASS_EVENTS
from caretaker.s3refresh.resource import RawRefresh, encode_target, read
from caretaker.s3refresh.snapshot import Discovery, Message
from caretaker.s3refresh.targets import registry
from testing.s3refreshes import refresh
from testing.turns import beside_others

SHARES = Discovery(complete=True, shares=of_buckets(["media"]))
NOW = 1_800_000_000.0
MANY = PASS_EVENTS + 1


def message(number: int, count: int) -> Message:
    return Message(number, tuple(ObjectEvent("ObjectCreated", "media", f"{n % 3}/x") for n in range(count)))


def spec_of(**more: Any) -> Spec | None:
    spec = refresh(target={"http": {"url": "https://cdn.example.com/purge"}}, **more)
    raw = RawRefresh(WireMeta(name="r", namespace="n"), msgspec.Raw(msgspec.json.encode(spec)))
    return read(raw, registry().spec).spec


async def test_events_are_sifted_and_what_completions_are_good_for_is_left_to_the_plan() -> None:
    end = Message(3, message(0, 1).events, completions=(Completion("n", "arn"),))
    broken = Message(4, malformed=True)
    elsewhere = Message(5, (*message(0, 1).events, ObjectEvent("ObjectCreated", "other", "x")))
    found = Arrivals((message(1, 5), end, broken, elsewhere, Message(6), message(2, MANY)))
    matches = await found.with_matches(spec_of(), SHARES)
    some = Scope(folders=frozenset({"/", "0", "1", "2"}))
    assert matches.matches == Matches({"media": some}, matched=5 + 1 + MANY, unmatched=1)
    media = frozenset({"media"})
    assert matches.concerned == {1: media, 5: None, 6: frozenset(), 2: media}
    assert matches.discovery == SHARES


async def test_a_large_message_of_which_one_event_concerns_no_target_concerns_none() -> None:
    large = Message(1, (ObjectEvent("ObjectCreated", "other", "x"), *message(1, MANY).events))
    assert (await Arrivals((large,)).with_matches(spec_of(), SHARES)).concerned == {1: None}


async def test_others_have_their_turns_while_events_are_sifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 events took 55 ms for each of 64 shares, in one turn."""
    monkeypatch.setattr(tasks, "SLICE", 0.0)
    one = (ObjectEvent("ObjectCreated", "media", f"{n}/x") for n in range(PASS_EVENTS))
    small = Arrivals(tuple(Message(at, (event,)) for at, event in enumerate(one)))
    _, turns = await beside_others(small.with_matches(spec_of(), SHARES))
    assert turns >= PASS_EVENTS // STEP
    large = Arrivals((message(2, MANY),))
    _, turns = await beside_others(large.with_matches(spec_of(), SHARES))
    assert turns >= 2 * MANY // SLICE


async def test_others_have_their_turns_while_full_records_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """To join new folders with 64 records of 16 KiB took 40 ms, in the one turn of the plan."""
    monkeypatch.setattr(tasks, "SLICE", 0.0)
    records = [record(f"s{n}") for n in range(64)]
    found = Arrivals(
        matches=Matches(dict.fromkeys((one.id for one in records), Scope(folders=frozenset("c"))))
    )
    joint, turns = await beside_others(found.joined(records, NOW))
    assert turns >= len(records)
    assert set(joint.matches.found.values()) == {Scope(folders=frozenset("abc"))}


async def test_records_of_which_nothing_was_found_are_not_read() -> None:
    """To read 64 full records took each pass 3 ms, in one turn."""
    unread: Any = Unread()
    records = [record("s1"), TargetStatus("s2", dirty=unread)]
    found = Arrivals(matches=Matches({"s1": Scope(folders=frozenset("c"))}))
    joint = await found.joined(records, NOW)
    assert joint.matches.found == {"s1": Scope(folders=frozenset("abc"))}
    assert await Arrivals().joined(records, NOW) == Arrivals()


class Unread:
    """A part of a record that nobody reads."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


def record(name: str) -> TargetStatus:
    return encode_target(TargetState(name, dirty=DirtyScope(NOW, Scope(folders=frozenset("ab")))), "Due")


NAMES = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map("/".join) | st.just("/")
SCOPES = st.builds(Scope, st.booleans(), st.frozensets(NAMES), st.frozensets(NAMES))
WIDE = st.integers(0, 9).map(lambda top: Scope(folders=frozenset(f"{top}/{n}" for n in range(MAX_FOLDERS))))


@given(SCOPES | WIDE, SCOPES | WIDE, SCOPES | WIDE | st.none(), st.booleans())
def test_a_scope_that_is_joined_marks_a_target_as_it_does_alone(
    scope: Scope, waits: Scope, behind: Scope | None, closed: bool
) -> None:
    later = DirtyScope(NOW, behind) if behind is not None else None
    for dirty in (DirtyScope(NOW, waits, closed, later), None):
        target = TargetState("s", dirty=dirty)
        assert debounce.mark(target, joined(target, scope), NOW) == debounce.mark(target, scope, NOW)


def flat(letter: str) -> Scope:
    """Two of them together are everything."""
    return Scope(folders=frozenset(f"{letter}{n}" for n in range(MAX_FOLDERS - 1)))


def test_later_changes_join_what_waits_behind_a_closed_scope() -> None:
    dirty = DirtyScope(NOW, flat("a"), closed=True, later=DirtyScope(NOW, Scope(folders=frozenset("b"))))
    assert joined(TargetState("s", dirty=dirty), Scope(folders=frozenset("c"))) == Scope(
        folders=frozenset("bc")
    )


def test_later_changes_that_become_everything_are_reduced_before_the_plan() -> None:
    """To reduce them again took the plan 1 ms for each target."""
    dirty = DirtyScope(NOW, flat("a"), closed=True, later=DirtyScope(NOW, flat("b")))
    target, scope = TargetState("s", dirty=dirty), flat("c")
    short = joined(target, scope)
    assert len(short.folders) + len(short.trees) == 1
    marked = debounce.mark(target, short, NOW)
    assert marked == debounce.mark(target, scope, NOW)
    everything = DirtyScope(NOW, EVERYTHING)
    assert marked.dirty == DirtyScope(NOW, flat("a"), closed=True, later=everything)


@pytest.mark.parametrize("count", [MANY, 1])
async def test_without_a_spec_nothing_is_sifted(count: int) -> None:
    found = Arrivals((message(1, count),))
    assert (await found.with_matches(None, SHARES)).matches == Matches()
