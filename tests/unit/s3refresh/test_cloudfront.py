"""Invalidations of CloudFront: their scopes, paths and grants."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from awsdoubles.cloudfront import covered
from caretaker.api.grants import Grant, Grants, refusals
from caretaker.api.objects import WireMeta
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import folders
from caretaker.s3refresh.admission import QueueClaims, access_of
from caretaker.s3refresh.annotation_requests import Place, RefreshRequests, location_of, scopes_of
from caretaker.s3refresh.debounce import Claim, DirtyScope, TargetState
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import Request, Scope, of_folder
from caretaker.s3refresh.match import EventMatcher, by_bucket, located, of_buckets
from caretaker.s3refresh.resource import ParsedRefresh, RawRefresh, read
from caretaker.s3refresh.targets import registry
from caretaker.s3refresh.targets.cloudfront import MAX_WILDCARDS, paths_of
from testing.s3refreshes import refresh

ID = "EDFDVBD6EXAMPLE"
BUCKET = of_buckets(["media"], "site/", by_key=True)[0]
CLAIM = Claim("c1", "me", 1_800_000_000.0, Request(("a/b.html", "c.css"), recursive=False), 1_799_999_990.0)
AGAIN = replace(CLAIM, attempt=2)


def keys(*names: str) -> Request:
    return Request(names, recursive=False)


def trees(*names: str) -> Request:
    return Request(names, recursive=True)


def scope_of(*wanted: str, prefix: str = "") -> Scope:
    """The scope that events of these keys make dirty."""
    shares = of_buckets(["media"], prefix, by_key=True)
    matcher = EventMatcher(read_spec({"prefix": prefix}).filter, by_bucket(shares))
    matcher.add([ObjectEvent("ObjectCreated", "media", key) for key in wanted])
    return matcher.matches().found.get("media", Scope())


def parsed_spec(fields: dict[str, Any] | None = None, **aws: Any) -> ParsedRefresh:
    spec = refresh(
        aws={"region": "eu-west-1", **aws},
        target={"cloudFront": {"distributionID": ID, **(fields or {})}},
        filter={"buckets": ["media"]},
    )
    raw = RawRefresh(WireMeta(name="r", namespace="n"), msgspec.Raw(msgspec.json.encode(spec)))
    found = read(raw, registry().spec)
    assert found.spec is not None, found.invalid
    return found


def read_spec(fields: dict[str, Any] | None = None, **aws: Any) -> Any:
    return parsed_spec(fields, **aws).spec


class TestScopes:
    def test_an_object_is_dirty_by_its_own_name_without_its_ancestors(self) -> None:
        assert scope_of("a/b.html", "index.html") == Scope(folders=frozenset({"a/b.html", "index.html"}))

    def test_the_prefix_is_the_origin_path(self) -> None:
        assert scope_of("site/a/b.html", "other/c", prefix="site/") == Scope(folders=frozenset({"a/b.html"}))
        assert scope_of("site/", prefix="site/") == Scope(folders=frozenset({"/"}))

    @pytest.mark.parametrize(
        ("key", "tree"),
        [
            ("a/b/", "a/b"),
            ("a//b", "a"),
            ("a/../b", "a"),
            ("/".join("abcdefghijklmnopqrstuvwxyz"), "/".join("abcdefghijklmnop")),
        ],
    )
    def test_what_is_no_plain_path_is_the_tree_above_it(self, key: str, tree: str) -> None:
        assert scope_of(key) == Scope(trees=frozenset({tree}))

    def test_a_key_with_a_leading_slash_is_everything(self) -> None:
        assert scope_of("/a").all

    def test_a_request_by_a_person_is_one_tree(self) -> None:
        asked = RefreshRequests(places=(Place("", "2026/11"),))
        found = scopes_of(asked, {"media": ("media", "")}, whole=False, by_key=True)
        assert found == {"media": Scope(trees=frozenset({"2026/11"}))}

    @pytest.mark.parametrize("prefix", ["", "site/"])
    def test_folders_that_waited_for_another_target_are_everything(self, prefix: str) -> None:
        """A folder's name is no path of an object, and a key is no folder."""
        (other,) = of_buckets(["media"], prefix)
        (mine,) = of_buckets(["media"], prefix, by_key=True)
        for before, now in ((other, mine), (mine, other)):
            waits = TargetState("media", DirtyScope(0.0, of_folder("a")), location=before.location)
            assert location_of(waits, None, bucket=True) == ("media", prefix)
            found = located(waits, now.location, 1.0, known=True)
            assert found.dirty is not None
            assert found.dirty.scope.all


class TestPaths:
    @pytest.mark.parametrize(
        ("request_", "paths"),
        [
            pytest.param(keys("a/b.html", "c.css"), ("/a/b.html", "/c.css"), id="keys"),
            pytest.param(keys("/"), ("/",), id="the prefix itself"),
            pytest.param(trees("a", "b/c"), ("/a*", "/b/c*"), id="trees"),
            pytest.param(trees("/"), ("/*",), id="everything"),
            pytest.param(keys("ab/ü.html"), ("/ab/%C3%BC.html",), id="a letter"),
            pytest.param(keys('<>"#%{}`'), ("/%3C%3E%22%23%25%7B%7D%60",), id="unsafe characters"),
            pytest.param(keys("a/b c.html"), ("/a/b*",), id="a space, which viewers also write as a plus"),
            pytest.param(keys("a/b^c.html"), ("/a/b*",), id="a caret"),
            pytest.param(keys("a(1),b;c=d@e:f&g$!'"), ("/a(1),b;c=d@e:f&g$!'",), id="reserved ones stay"),
            pytest.param(keys("a/b*c.txt"), ("/a/b*",), id="a star is no wildcard"),
            pytest.param(keys("a/b?c", "a/b+c", "a/b~c"), ("/a/b*",), id="two spellings"),
            pytest.param(keys("a/b+c"), ("/a/b*",), id="a plus, which stands for a space"),
            pytest.param(keys("a/[1].html"), ("/a/*",), id="brackets"),
            pytest.param(keys("a/b*", "a/bc"), ("/a/b*",), id="a path that another one covers"),
            pytest.param(trees("a", "a/b", "ab"), ("/a*",), id="trees that another one covers"),
        ],
    )
    def test_of_a_claim(self, request_: Request, paths: tuple[str, ...]) -> None:
        assert paths_of(request_) == paths

    def test_by_folder(self) -> None:
        given = keys("a/b.html", "a/c.html", "index.html", "a/d/e.html")
        assert paths_of(given, by_folder=True) == ("/", "/a*", "/index.html*")

    def test_the_index_document_of_a_key_that_became_a_tree(self) -> None:
        assert paths_of(trees("a/b.html"), by_folder=True) == ("/a", "/a/", "/a/b.html*")

    def test_a_requested_folder_does_not_widen_to_the_folder_above(self) -> None:
        assert paths_of(trees("a/b"), by_folder=True) == ("/a", "/a/", "/a/b*")

    def test_no_more_names_in_a_call_than_a_distribution_takes_wildcards(self) -> None:
        """A CRD of before allowed more."""
        options = parsed_spec({"maxPaths": 50}).options
        assert options.max_folders == MAX_WILDCARDS


@given(st.lists(st.text("ab*?+~[^é /._(", min_size=1, max_size=12), min_size=1, max_size=50), st.booleans())
def test_they_cover_every_key_and_are_valid(names: list[str], by_folder: bool) -> None:
    scope = scope_of(*names)
    while scope:
        request, scope = folders.take(scope, MAX_WILDCARDS)
        paths = paths_of(request, by_folder=by_folder)
        assert sum(path.endswith("*") for path in paths) <= MAX_WILDCARDS
        assert len(set(paths)) == len(paths)
        for path in paths:
            assert path.isascii()
            assert path.startswith("/")
            assert "*" not in path[:-1]
        for name in request.folders:
            key = "" if name == "/" else name
            for path in (key, *([f"{key}/x"] if request.recursive else [])):
                assert covered(path, paths), (path, paths)
            if by_folder and request.folders != ("/",):
                folder = key.rpartition("/")[0]
                assert covered(f"{folder}/" if folder else "", paths), (folder, paths)


def test_its_distribution_has_to_be_granted() -> None:
    """Together with the identity, in one entry; the account of a distribution is in no request."""
    spec = read_spec()
    wanted = spec.target.cloudFront.called("eu-west-1")
    mine = Grant(("web",), own_identity=True, target_arns=(f"arn:aws:cloudfront::*:distribution/{ID}",))
    other = Grant(("web",), own_identity=True, target_arns=("arn:aws:cloudfront::*:distribution/EOTHER",))
    assert refusals(Grants((other, mine)), "web", spec.aws, wanted) == ()
    (refused,) = refusals(Grants((other,)), "web", spec.aws, wanted)
    assert str(refused).startswith(
        "spec.target.cloudFront.distributionID: namespace web is not granted "
        f"arn:aws:cloudfront:::distribution/{ID}: use a granted target, or have it added to targetARNs of"
    )
    assert refusals(Grants.default("web"), "web", spec.aws, wanted) == ()
    own_keys = read_spec(credentialsSecretRef={"name": "keys"})
    assert refusals(Grants(()), "web", own_keys.aws, wanted) == ()


async def test_a_resource_without_the_grant_does_nothing() -> None:
    meta = WireMeta(name="r", namespace="web")
    parsed = replace(parsed_spec(), meta=meta)
    grants = Grants((Grant(("web",), queue_arns=("*",), own_identity=True),))
    found = access_of(Key("S3AggregatedRefresh", "web", "r"), parsed, grants, QueueClaims())
    assert found.rejection is not None
    assert found.rejection.reason == "NotGranted"
    assert f"distribution/{ID}" in found.rejection.message
