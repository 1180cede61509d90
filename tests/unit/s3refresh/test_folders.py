"""Which folders an event makes stale, and how they fit into calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.s3refresh.folders import (
    EVERYTHING,
    MAX_BYTES,
    MAX_FOLDERS,
    NOTHING,
    Scope,
    covers,
    merge,
    of_key,
    take,
    within,
)


def plain(*names: str) -> Scope:
    return Scope(folders=frozenset(names))


@pytest.mark.parametrize(
    ("key", "prefix", "stale"),
    [
        pytest.param("a.txt", "", {"/"}, id="an object at the root"),
        pytest.param("2026/11/a.txt", "", {"/", "2026", "2026/11"}, id="every ancestor lists the new one"),
        pytest.param("2026/11/", "", {"/", "2026", "2026/11"}, id="a directory's own object"),
        pytest.param("team/a/b.txt", "team/", {"/", "a"}, id="a share of a prefix starts there"),
        pytest.param("team/", "team/", {"/"}, id="the share's own directory"),
        pytest.param("other/a.txt", "team/", set(), id="an object that the share does not have"),
        pytest.param("/a/b.txt", "", {"/"}, id="a leading slash: a folder that no gateway shows"),
        pytest.param("a//b/c.txt", "", {"/", "a"}, id="an empty segment: its nearest real ancestor"),
        pytest.param("ä ö/+%/c", "", {"/", "ä ö", "ä ö/+%"}, id="any characters"),
        pytest.param("x" * 1000 + "/" + "y" * 30 + "/a", "", {"/", "x" * 1000}, id="too long: its ancestor"),
    ],
)
def test_the_folders_of_a_key(key: str, prefix: str, stale: set[str]) -> None:
    assert of_key(key, prefix).folders == stale


@pytest.mark.parametrize(
    ("known", "scope", "answer"),
    [
        pytest.param(EVERYTHING, plain("a"), True, id="everything holds all"),
        pytest.param(plain("/", "a"), plain("a"), True, id="the same folder"),
        pytest.param(plain("/", "a"), plain("a/b"), False, id="a folder does not hold its children"),
        pytest.param(Scope(trees=frozenset({"a"})), plain("a/b"), True, id="a tree does"),
        pytest.param(Scope(trees=frozenset({"a"})), plain("ab"), False, id="a name that begins alike"),
        pytest.param(plain("a"), Scope(trees=frozenset({"a"})), False, id="a folder is no tree"),
        pytest.param(plain("a"), EVERYTHING, False, id="some is not all"),
        pytest.param(NOTHING, NOTHING, True, id="nothing is held by anything"),
    ],
)
def test_covers(known: Scope, scope: Scope, answer: bool) -> None:
    assert covers(known, scope) is answer


def test_up_to_fifty_folders_are_one_call_of_single_folders() -> None:
    names = {"/", *(f"d{n}" for n in range(49))}
    request, left = take(plain(*names), 50)
    assert (set(request.folders), request.recursive, left) == (names, False, NOTHING)


def test_sixty_leaves_and_a_new_folder_at_the_top_never_refresh_the_whole_share() -> None:
    scope = merge(*(of_key(f"data/d{n}/x") for n in range(60)), of_key("new/x"))
    calls = []
    while scope:
        request, scope = take(scope, 50)
        calls.append(request)
    assert [call.recursive for call in calls] == [False, False]
    assert calls[-1].folders[-1] == "/"
    assert len({name for call in calls for name in call.folders}) == 63


def test_thousands_of_leaves_are_few_trees_and_their_ancestors_stay_single() -> None:
    scope = merge(*(of_key(f"a/b{n % 30}/c{n}/x") for n in range(400)))
    request, left = take(scope, 50)
    assert request.recursive
    assert set(request.folders) == {f"a/b{n}" for n in range(30)}
    assert left == plain("/", "a")


def test_everything_is_one_call_for_the_root_and_all_below() -> None:
    request, left = take(EVERYTHING, 50)
    assert (request.folders, request.recursive, left) == (("/",), True, NOTHING)
    assert request.scope == EVERYTHING


PARTS = st.text(st.sampled_from("abc/"), max_size=12)
LONG = st.integers(0, 3).map(lambda n: "x" * 300 * n)
KEYS = st.lists(st.builds(lambda a, b, n: f"{a}{b}/{n}/k", PARTS, LONG, st.integers(0, 40)), max_size=300)


@given(KEYS, st.integers(1, 50))
def test_whatever_is_merged_is_covered_bounded_and_refreshed_by_some_calls(
    keys: list[str], most: int
) -> None:
    scopes = [of_key(key) for key in keys]
    merged = merge(*scopes)
    assert all(covers(merged, scope) for scope in scopes)
    assert len(merged.folders) + len(merged.trees) <= MAX_FOLDERS
    assert sum(len(name.encode()) for name in (*merged.folders, *merged.trees)) <= MAX_BYTES
    done, left = [], merged
    while left:
        request, rest = take(left, most)
        assert 1 <= len(request.folders) <= most
        done.append(request.scope)
        left = rest
    assert all(covers(merge_unbounded(done), scope) for scope in scopes)


def merge_unbounded(scopes: list[Scope]) -> Scope:
    return Scope(
        all=any(scope.all for scope in scopes),
        folders=frozenset(name for scope in scopes for name in scope.folders),
        trees=frozenset(name for scope in scopes for name in scope.trees),
    )


def test_within_follows_whole_names() -> None:
    assert within("a/b/c", {"a/b"})
    assert not within("a/bc", {"a/b"})
    assert within("a", {"/"})
