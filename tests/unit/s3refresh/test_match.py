"""Events that count, and the folders that they make stale."""

import re
from collections import Counter
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.api.s3refresh import Filter
from caretaker.s3refresh import folders, match
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import EVERYTHING, Scope
from caretaker.s3refresh.match import (
    AccessPoint,
    EventMatcher,
    Matches,
    Share,
    UnresolvedError,
    bucket_and_prefix,
)
from caretaker.s3refresh.snapshot import Discovery
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


@pytest.mark.parametrize("ready", [True, False])
def test_a_bucket_is_a_share_of_its_own(ready: bool) -> None:
    shares = [Share(name, "", name, group=name, ready=ready) for name in ("b", "c")]
    assert list(match.of_buckets(["c", "b", "c"], **{} if ready else {"ready": False})) == shares


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
    assert (matcher.add(events) is not None) is all_match


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
        (Filter(ignore_principals=("AWS:?",)), ObjectEvent("ObjectCreated", "b", "a", "AWS:x"), False),
        (Filter(ignore_principals=("AWS:[xy]*",)), ObjectEvent("ObjectCreated", "b", "a", "AWS:xy"), True),
        (Filter(ignore_principals=("AWS:[xy]*",)), ObjectEvent("ObjectCreated", "b", "a", "AWS:[xy]"), False),
        (Filter(ignore_principals=("AWS:[!x",)), ObjectEvent("ObjectCreated", "b", "a", "AWS:[!x"), False),
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
    before = EventMatcher(EVERY, SHARES)
    matcher = EventMatcher(EVERY, match.by_bucket([TEAM]))
    concerned = before.add(put("team/x/a"))
    matcher.join(before.matches())
    assert (concerned, matcher.ids) == ({"team", "whole"}, {"team"})
    assert matcher.matches().found.keys() == {"team"}


def test_an_event_concerns_the_targets_that_it_is_returned_with() -> None:
    matcher = EventMatcher(NO_CSV, SHARES)
    assert matcher.add(put("team/c", "y")) == {"whole", "team"}
    assert matcher.add(put("y")) == {"whole"}
    assert matcher.add(put("", "b.csv")) == {"whole", "team"}
    assert matcher.add(put("b.csv")) == set()


SAME: Final = [Share(f"s{n}", "", "b", "in/" if n % 2 else "") for n in range(64)]


def calls_of(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """Counts the calls of functions of `folders` from now on."""
    counts = Counter[str]()

    def counted(name: str) -> Any:
        real = getattr(folders, name)

        def call(*args: Any) -> Any:
            counts[name] += 1
            return real(*args)

        return call

    for name in names:
        monkeypatch.setattr(folders, name, counted(name))
    return counts


def test_folders_are_made_once_for_each_place_however_many_shares_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 shares of one bucket cost what one does, where they cost 2.8 s for 500 keys of 100 levels."""
    counts = calls_of(monkeypatch, "of_folder", "merge")
    keys = [f"in/{n}/" + "/".join("ab" * 30) for n in range(500)]
    few, many = EventMatcher(EVERY, match.by_bucket(SAME[:2])), EventMatcher(EVERY, match.by_bucket(SAME))
    few.add(put(*keys))
    few.matches()
    assert counts == {"of_folder": 1000, "merge": 2}
    many.add(put(*keys))
    found = many.matches().found
    assert counts == {"of_folder": 2000, "merge": 4}
    assert found == {share.id: few.matches().found["s1" if share.prefix else "s0"] for share in SAME}


def test_each_step_of_a_merge_makes_few_folders_or_merges_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = match.by_bucket([Share(f"s{n}", "", "b", "a/" * n) for n in range(64)])
    matcher = EventMatcher(EVERY, nested)
    matcher.add(put(*("a/" * 70 + f"{n}/x" for n in range(500))))
    counts, steps = calls_of(monkeypatch, "of_folder", "merge"), 0
    for _ in matcher.merging():
        assert counts["of_folder"] <= match.STEP
        assert counts["merge"] <= 1
        counts.clear()
        steps += 1
    assert steps == 64 * (500 // match.STEP + 1)
    assert len(matcher.matches().found) == 64
    assert not counts


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


# ---------------------------------------------------------------- where a share's objects are

POINT = "arn:aws:s3:eu-west-1:111122223333:accesspoint/finance"
ALIAS = "finance-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias"


@pytest.mark.parametrize(
    ("location", "found"),
    [
        pytest.param("arn:aws:s3:::bucket", ("bucket", ""), id="a bucket"),
        pytest.param("arn:aws:s3:::bucket/", ("bucket", ""), id="with a slash"),
        pytest.param("arn:aws:s3:::bucket/team/a/", ("bucket", "team/a/"), id="a prefix"),
        pytest.param("arn:aws:s3:::bucket/team", ("bucket", "team/"), id="a prefix without a slash"),
        pytest.param("arn:aws-us-gov:s3:::bucket/team/", ("bucket", "team/"), id="another partition"),
        pytest.param("arn:aws:s3:::bucket/a:b/X/", ("bucket", "a:b/X/"), id="a prefix with a colon"),
        pytest.param(POINT, ("ledger", ""), id="an access point"),
        pytest.param(
            "arn:aws:s3:eu-west-1:111122223333:accesspoint:finance/team/",
            ("ledger", "team/"),
            id="an access point with a colon",
        ),
        pytest.param(f"{POINT}/team/", ("ledger", "team/"), id="an access point with a prefix"),
        pytest.param(f"arn:aws:s3:::{ALIAS}/team/", ("ledger", "team/"), id="an access point's alias"),
    ],
)
def test_bucket_and_prefix(location: str, found: tuple[str, str]) -> None:
    assert bucket_and_prefix(location, {"finance": "ledger", ALIAS: "ledger"}) == found


def test_an_access_point_may_be_given_by_its_arn() -> None:
    assert bucket_and_prefix(f"{POINT}/team/", {POINT: "ledger"}) == ("ledger", "team/")
    assert bucket_and_prefix(f"{POINT}X/team/", {f"{POINT}X": "ledger"}) == ("ledger", "team/")


SHARE = "arn:aws-cn:storagegateway:cn-north-1:444455556666:share/share-1"


@pytest.mark.parametrize(
    ("location", "point"),
    [
        pytest.param(POINT, AccessPoint("aws", "eu-west-1", "111122223333", "finance"), id="an ARN"),
        pytest.param(
            POINT.replace("point/", "point:"),
            AccessPoint("aws", "eu-west-1", "111122223333", "finance"),
            id="with a colon",
        ),
        pytest.param(
            "arn:aws-us-gov:s3:us-gov-east-1:111122223333:accesspoint/a-1",
            AccessPoint("aws-us-gov", "us-gov-east-1", "111122223333", "a-1"),
            id="another partition",
        ),
        pytest.param(
            f"arn:aws-cn:s3:::{ALIAS}",
            AccessPoint("aws-cn", "cn-north-1", "444455556666", "finance", ALIAS),
            id="an alias: in the account and region of its share",
        ),
        pytest.param(
            f"arn:aws-cn:s3:::team-{ALIAS}",
            AccessPoint("aws-cn", "cn-north-1", "444455556666", "team-finance", f"team-{ALIAS}"),
            id="an alias of a name with a hyphen",
        ),
    ],
)
def test_s3_is_asked_for_an_access_point_that_the_spec_does_not_name(
    location: str, point: AccessPoint
) -> None:
    assert bucket_and_prefix(f"{location}/team", {"other": "b"}, SHARE) == (point, "team/")


def test_the_message_about_an_access_point_has_its_arn_and_the_field() -> None:
    field = "to spec.target.storageGateway.accessPointBuckets"
    point = AccessPoint("aws", "eu-west-1", "111122223333", "finance")
    why = f"which bucket access point {POINT} belongs to is not known: no, or add `finance: BUCKET` {field}"
    assert point.unknown("no") == why
    alias = AccessPoint("aws", "eu-west-1", "111122223333", "finance", ALIAS)
    why = f"which bucket access point alias {ALIAS} belongs to is not known: no, or add `{ALIAS}: BUCKET` "
    assert alias.unknown("no") == why + field


@pytest.mark.parametrize(
    ("location", "words"),
    [
        pytest.param(
            POINT.replace("finance", "Finance"),
            "which bucket access point Finance belongs to is not known: add `Finance: BUCKET` to "
            "spec.target.storageGateway.accessPointBuckets",
            id="an access point without the name of one",
        ),
        pytest.param(
            POINT.replace("111122223333", ""),
            "which bucket access point finance belongs to is not known: add `finance: BUCKET` to "
            "spec.target.storageGateway.accessPointBuckets",
            id="an access point without an account",
        ),
        pytest.param(
            "arn:aws:s3::111122223333:accesspoint/mfzwi23gnjvgw.mrap/team/",
            "Multi-Region Access Point mfzwi23gnjvgw.mrap is not supported: use an access point of one "
            "bucket",
            id="a Multi-Region Access Point",
        ),
        pytest.param(
            f"arn:aws:s3:::{ALIAS}",
            f"which bucket access point alias {ALIAS} belongs to is not known: add `{ALIAS}: BUCKET` to "
            "spec.target.storageGateway.accessPointBuckets",
            id="an alias of an unknown share",
        ),
        *(
            pytest.param(location, f"LocationARN {location!r} is of no known form", id=name)
            for name, location in (
                ("no ARN", "bucket"),
                ("another service", "arn:aws:fsx:::x"),
                ("no bucket", "arn:aws:s3:::"),
                ("a prefix alone", "arn:aws:s3:::/team"),
                ("nothing", ""),
            )
        ),
    ],
)
def test_what_cannot_be_told(location: str, words: str) -> None:
    with pytest.raises(UnresolvedError, match=f"^{re.escape(words)}$"):
        bucket_and_prefix(location, {})


def share(name: str, bucket: str = "") -> Share:
    return Share(name, f"arn:{name}", bucket, group="g", ready=bool(bucket))


@pytest.mark.parametrize(
    ("places", "known", "complete"),
    [
        pytest.param({"s2": "b2/team/"}, ["b1/", "b2/team/"], True, id="it is where it was last found"),
        pytest.param({}, ["b1/"], True, id="it is new: refreshed whole when it is described"),
        pytest.param({"s2": ""}, ["b1/"], False, id="on record, and nobody knows where"),
        pytest.param({"s2": "b2/", "s9": "b9/"}, ["b1/", "b2/"], True, id="others on record are not there"),
    ],
)
def test_a_share_that_cannot_be_described(places: dict[str, str], known: list[str], complete: bool) -> None:
    found = Discovery(True, (share("s1", "b1"),), undescribed=(share("s2"),)).located(places)
    assert ([one.location for one in found.shares], found.complete) == (known, complete)
    assert not any(one.ready for one in found.shares[1:])
    assert all(one.recorded for one in found.shares[1:])


@pytest.mark.parametrize("ready", [False, True], ids=["not described", "its access point is not looked up"])
def test_a_share_is_at_its_recorded_place_and_refreshed_only_if_it_was_described(ready: bool) -> None:
    share = Share("s", "arn:s", "", group="g", ready=ready)
    found = Discovery(True, undescribed=(share,)).located({"s": "b/team/a/"})
    assert found.shares == (Share("s", "arn:s", "b", "team/a/", group="g", ready=ready, recorded=True),)


def test_one_that_was_described_counts_as_it_is_now() -> None:
    found = Discovery(True, (share("s1", "b1"),), undescribed=(share("s1"),)).located({"s1": "old/"})
    assert found.shares == (share("s1", "b1"),)


def test_what_is_not_complete_does_not_become_it() -> None:
    assert not Discovery(False, (share("s1", "b1"),)).located({}).complete
