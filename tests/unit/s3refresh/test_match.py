"""Events that count, and the folders that they make stale."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.s3refresh import Filter
from caretaker.s3refresh import match
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import EVERYTHING, Scope
from caretaker.s3refresh.match import EventMatcher, Matches, Share
from testing.scopes import covers, of_key

WHOLE = Share(id="whole", arn="", bucket="b")
TEAM = Share(id="team", arn="", bucket="b", prefix="team/")
SHARES = match.by_bucket([WHOLE, TEAM])
NO_CSV = Filter(exclude_suffixes=(".csv",))


def put(*keys: str, bucket: str = "b") -> list[ObjectEvent]:
    return [ObjectEvent("ObjectCreated", bucket, key) for key in keys]


EVERY: Final = Filter()


def matches(*events: ObjectEvent, filter_: Filter = EVERY, whole: bool = False) -> Matches:
    matcher = EventMatcher(filter_, SHARES, whole=whole)
    matcher.add(events)
    return matcher.matches()


def test_each_share_of_the_bucket_and_prefix_is_stale_in_its_own_names() -> None:
    found = matches(*put("team/x/a", "y/a")).found
    assert found == {
        "whole": Scope(folders=frozenset({"/", "team", "team/x", "y"})),
        "team": Scope(folders=frozenset({"/", "x"})),
    }


def test_a_share_of_another_prefix_hides_none() -> None:
    matcher = EventMatcher(EVERY, match.by_bucket([TEAM, WHOLE]))
    matcher.add(put("y/a"))
    assert matcher.matches().found.keys() == {"whole"}


def test_an_event_without_a_key_makes_everything_stale_and_spec_may_ask_for_it() -> None:
    assert matches(*put("")).found == {"whole": EVERYTHING, "team": EVERYTHING}
    assert matches(*put("y/a"), whole=True).found == {"whole": EVERYTHING}
    assert matches(*put("", "y/a")).found["whole"] == EVERYTHING


def test_events_are_counted_by_what_becomes_of_them() -> None:
    events = (*put("a", "b.csv", "team/c"), *put("a", "b.csv", bucket="other"))
    found = matches(*events, filter_=NO_CSV)
    assert (found.matched, found.filtered, found.unmatched) == (2, 2, 1)


@pytest.mark.parametrize(
    ("events", "all_match"),
    [
        (put("a"), True),
        (put("team/c"), True),
        (put("a", bucket="other"), False),
        (put("a.csv", bucket="other"), True),
        ([], True),
        ([*put("a", bucket="other"), *put("a")], False),
    ],
    ids=["of a share", "of both", "of none", "of none, and unwanted", "nothing", "one of two"],
)
def test_whether_all_that_are_wanted_concern_a_share(events: list[ObjectEvent], all_match: bool) -> None:
    matcher = EventMatcher(NO_CSV, SHARES)
    matcher.add(put("z", bucket="other"))  # of an earlier message
    assert matcher.add(events) is all_match
    assert EventMatcher(NO_CSV, SHARES).join(matches(*events, filter_=NO_CSV)) is all_match


@pytest.mark.parametrize(
    ("filter_", "event", "passes"),
    [
        (EVERY, ObjectEvent("ObjectCreated", "b", "a"), True),
        (EVERY, ObjectEvent("Other", "b", "a"), False),
        (Filter(events=("ObjectRemoved",)), ObjectEvent("ObjectRemoved", "b", "a"), True),
        (Filter(events=("ObjectRemoved",)), ObjectEvent("ObjectCreated", "b", "a"), False),
        (Filter(buckets=("b", "c")), ObjectEvent("ObjectCreated", "b", "a"), True),
        (Filter(buckets=("c",)), ObjectEvent("ObjectCreated", "b", "a"), False),
        (Filter(ignore_principals=("AWS:x*",)), ObjectEvent("ObjectCreated", "b", "a", "AWS:xy"), False),
        (Filter(ignore_principals=("AWS:x*",)), ObjectEvent("ObjectCreated", "b", "a", "AWS:y"), True),
        (Filter(ignore_principals=("AWS:x*",)), ObjectEvent("ObjectCreated", "b", "a", "aws:xy"), True),
        (Filter(prefixes=("a/", "b/")), ObjectEvent("ObjectCreated", "b", "b/c"), True),
        (Filter(prefixes=("a/", "b/")), ObjectEvent("ObjectCreated", "b", "c/a/"), False),
        (Filter(prefixes=("a/",)), ObjectEvent("ObjectCreated", "b", ""), True),
        (Filter(exclude_prefixes=("a/",)), ObjectEvent("ObjectCreated", "b", "a/c"), False),
        (Filter(exclude_prefixes=("a/",)), ObjectEvent("ObjectCreated", "b", "b/a/"), True),
        (Filter(suffixes=(".csv",)), ObjectEvent("ObjectCreated", "b", "a.csv"), True),
        (Filter(suffixes=(".csv",)), ObjectEvent("ObjectCreated", "b", "a.csv.gz"), False),
        (Filter(exclude_suffixes=(".csv",)), ObjectEvent("ObjectCreated", "b", "a.csv"), False),
        (Filter(exclude_suffixes=(".csv",)), ObjectEvent("ObjectCreated", "b", "a.csv.gz"), True),
    ],
)
def test_what_a_filter_lets_pass(filter_: Filter, event: ObjectEvent, passes: bool) -> None:
    assert match.wanted(filter_, event) is passes


def test_what_was_sifted_before_counts_as_well() -> None:
    matcher = EventMatcher(NO_CSV, SHARES)
    for at in (1, 2):
        matcher.join(matches(*put("a", "b.csv"), *put("a", bucket="other"), filter_=NO_CSV))
        found = matcher.matches()
        assert (found.matched, found.filtered, found.unmatched) == (at, at, at)


def test_what_was_sifted_by_more_shares_is_of_those_that_are_known() -> None:
    """A large message may have been matched to a share that does not fit into the record."""
    before = matches(*put("team/x/a"))
    matcher = EventMatcher(EVERY, match.by_bucket([TEAM]))
    assert not matcher.join(before)
    assert matcher.matches().found.keys() == {"team"}


KEYS = st.lists(
    st.sampled_from(["a/1", "team/b/2", "team/" + "d/" * 30 + "3", "4", "x.csv", ""]), max_size=20
)


@given(KEYS, st.integers(1, 5))
def test_in_slices_they_come_to_the_same(keys: list[str], size: int) -> None:
    once = matches(*put(*keys), filter_=NO_CSV)
    sliced, joined = EventMatcher(NO_CSV, SHARES), EventMatcher(NO_CSV, SHARES)
    for at in range(0, len(keys), size):
        some = put(*keys[at : at + size])
        sliced.add(some)
        sliced.matches()
        joined.join(matches(*some, filter_=NO_CSV))
    assert sliced.matches() == joined.matches() == once
    assert all(covers(once.found["whole"], of_key(key)) for key in keys if key and key != "x.csv")
