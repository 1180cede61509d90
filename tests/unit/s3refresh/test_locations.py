"""Where a share's objects are."""

import pytest

from caretaker.s3refresh.locations import UnresolvedError, bucket_and_prefix

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
        pytest.param(POINT, ("ledger", ""), id="an access point"),
        pytest.param(f"{POINT}/team/", ("ledger", "team/"), id="an access point with a prefix"),
        pytest.param(f"arn:aws:s3:::{ALIAS}/team/", ("ledger", "team/"), id="an access point's alias"),
    ],
)
def test_bucket_and_prefix(location: str, found: tuple[str, str]) -> None:
    assert bucket_and_prefix(location, {"finance": "ledger", ALIAS: "ledger"}) == found


def test_an_access_point_may_be_given_by_its_arn() -> None:
    assert bucket_and_prefix(f"{POINT}/team/", {POINT: "ledger"}) == ("ledger", "team/")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        pytest.param(
            POINT, "add `finance: BUCKET` to spec.target.storageGateway", id="an unknown access point"
        ),
        pytest.param(f"arn:aws:s3:::{ALIAS}", f"add `{ALIAS}: BUCKET`", id="an unknown alias"),
        pytest.param("bucket", "of no known form", id="no ARN"),
        pytest.param("arn:aws:fsx:::x", "of no known form", id="another service"),
        pytest.param("", "of no known form", id="nothing"),
    ],
)
def test_what_cannot_be_told(location: str, words: str) -> None:
    with pytest.raises(UnresolvedError, match=words):
        bucket_and_prefix(location, {})
