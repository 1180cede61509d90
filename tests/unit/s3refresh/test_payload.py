"""What a Job or an HTTP service is told."""

import json
from typing import Any

import msgspec
import pytest

from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.folders import Request
from caretaker.s3refresh.match import Share, of_buckets
from caretaker.s3refresh.targets.payload import MAX_BYTES, payload_of

SHARE = Share("bucket", "", "bucket", group="bucket")


def claim(*folders: str, recursive: bool = False) -> Claim:
    return Claim("c1", "me", 1_800_000_000.25, Request(folders, recursive), 1_799_999_990.0)


def told(made: Claim, share: Share = SHARE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(payload_of(share, made))
    return found


def test_folders() -> None:
    assert told(claim("a/b", "/")) == {
        "claimID": "c1",
        "bucket": "bucket",
        "prefix": "",
        "folders": ["a/b", "/"],
        "recursive": False,
        "all": False,
        "firstEventAt": "2027-01-15T07:59:50.000000+00:00",
        "lastEventAt": "2027-01-15T08:00:00.250000+00:00",
        "truncated": False,
    }


def test_trees() -> None:
    found = told(claim("a/b", recursive=True))
    assert (found["folders"], found["recursive"], found["all"]) == (["a/b"], True, False)


def test_the_prefix_that_folders_are_named_without() -> None:
    (share,) = of_buckets(["bucket"], "site/")
    found = told(claim("images"), share)
    assert (found["bucket"], found["prefix"], found["folders"]) == ("bucket", "site/", ["images"])


def test_everything() -> None:
    found = told(claim("/", recursive=True))
    assert (found["folders"], found["all"], found["truncated"]) == ([], True, False)


def test_what_does_not_fit_is_everything() -> None:
    names = [f"{n:03d}" + "\x01" * 300 for n in range(50)]  # six bytes each, in JSON
    found = told(claim(*names))
    assert (found["folders"], found["all"], found["recursive"], found["truncated"]) == ([], True, True, True)


@pytest.mark.parametrize("count", [16, 17, 18], ids=str)
def test_it_is_never_longer_than_the_limit(count: int) -> None:
    made = claim(*(f"{n:02d}" + "x" * 950 for n in range(count)))
    assert len(payload_of(SHARE, made)) <= MAX_BYTES
    assert told(made)["truncated"] == (count > 16)


def test_who_makes_the_call_and_how_often_is_not_told() -> None:
    """A service refuses the same Idempotency-Key with another body."""
    again = msgspec.structs.replace(claim("a"), owner="you", attempt=7)
    assert payload_of(SHARE, again) == payload_of(SHARE, claim("a"))


@pytest.mark.parametrize("folder", ["$(HOME)", "a$$b", "\\$x", 'say "$"'], ids=str)
def test_no_dollar_is_left_for_kubernetes_to_expand(folder: str) -> None:
    assert b"$" not in payload_of(SHARE, claim(folder))
    assert told(claim(folder))["folders"] == [folder]


@pytest.mark.parametrize("folder", ["a\ufffe", "\uffffb/c", "\\\uffff", "ä\U0001ffff"], ids=ascii)
def test_no_character_is_left_that_sqs_refuses(folder: str) -> None:
    text = payload_of(SHARE, claim(folder)).decode()
    assert not {"\ufffe", "\uffff"} & set(text)
    assert told(claim(folder))["folders"] == [folder]
