"""Where a share's objects are."""

import re

import pytest

from caretaker.s3refresh.locations import UnresolvedError, bucket_and_prefix, located
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.snapshot import Discovery

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


@pytest.mark.parametrize(
    ("location", "words"),
    [
        pytest.param(
            POINT,
            "which bucket access point finance belongs to is not known: add `finance: BUCKET` to "
            "spec.target.storageGateway.accessPointBuckets",
            id="an unknown access point",
        ),
        pytest.param(
            f"arn:aws:s3:::{ALIAS}",
            f"which bucket access point alias {ALIAS} belongs to is not known: add `{ALIAS}: BUCKET` to "
            "spec.target.storageGateway.accessPointBuckets",
            id="an unknown alias",
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
    found = located(Discovery(True, (share("s1", "b1"),), undescribed=(share("s2"),)), places)
    assert ([one.location for one in found.shares], found.complete) == (known, complete)
    assert not any(one.ready for one in found.shares[1:])


def test_one_that_cannot_be_described_is_of_its_bucket_and_is_not_refreshed() -> None:
    found = located(Discovery(True, undescribed=(Share("s", "arn:s", "", group="g"),)), {"s": "b/team/a/"})
    assert found.shares == (Share("s", "arn:s", "b", "team/a/", group="g", ready=False),)


def test_one_that_was_described_counts_as_it_is_now() -> None:
    found = located(Discovery(True, (share("s1", "b1"),), undescribed=(share("s1"),)), {"s1": "old/"})
    assert found.shares == (share("s1", "b1"),)


def test_what_is_not_complete_does_not_become_it() -> None:
    assert not located(Discovery(False, (share("s1", "b1"),)), {}).complete
