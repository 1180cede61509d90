"""Which folders an event makes stale, and how they fit into calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caretaker.s3refresh.folders import (
    EMPTY,
    EVERYTHING,
    MAX_BYTES,
    MAX_CALL_BYTES,
    MAX_CHAIN_BYTES,
    MAX_DEPTH,
    MAX_FOLDERS,
    Request,
    Scope,
    calls_of,
    length,
    merge,
    missing,
    narrowed,
    of_tree,
    size,
    take,
    within,
)
from testing.scopes import covers, of_key


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
        pytest.param("a/./b/c", "", {"/", "a"}, id="a dot is no folder"),
        pytest.param("a/../b/c", "", {"/", "a"}, id="nor are two"),
        pytest.param("...a/..b/c", "", {"/", "...a", "...a/..b"}, id="a name that begins with dots is one"),
    ],
)
def test_the_folders_of_a_key(key: str, prefix: str, stale: set[str]) -> None:
    assert of_key(key, prefix) == plain(*stale)


LONG_NAMES = "/".join(["x" * 300] * 3)


@pytest.mark.parametrize(
    ("key", "tree"),
    [
        pytest.param("d/" * (MAX_DEPTH + 1) + "k", "/".join("d" * MAX_DEPTH), id="too deep"),
        pytest.param("d/" * 511 + "k", "/".join("d" * MAX_DEPTH), id="as deep as a key can be"),
        pytest.param("x" * 1000 + "/" + "y" * 30 + "/a", "x" * 1000, id="a name too long for a call"),
        pytest.param(f"{LONG_NAMES}/a/b/c/k", f"{LONG_NAMES}/a/b", id="names too long together"),
        pytest.param(
            f"{LONG_NAMES}/a/b/c/k".replace("xx", "ü"), f"{LONG_NAMES}/a/b".replace("xx", "ü"), id="in bytes"
        ),
    ],
)
def test_below_some_depth_an_ancestor_is_a_tree(key: str, tree: str) -> None:
    parts = tree.split("/")
    above = plain("/", *("/".join(parts[:n]) for n in range(1, len(parts))))
    assert of_key(key) == Scope(folders=above.folders, trees=frozenset({tree}))
    assert covers(of_key(key), plain(*("/".join(key.split("/")[:n]) for n in range(1, key.count("/") + 1))))


def test_hundreds_of_levels_cost_what_sixteen_do() -> None:
    """Before the bound, 20 such keys blocked the loop for 8 s, and a thousand took 259 MiB."""

    def names(levels: int) -> list[str]:
        scopes = [of_key(f"{n}/" + "a/" * levels + "x") for n in range(1000)]
        return [name for scope in scopes for name in (*scope.folders, *scope.trees)]

    deep, few = names(500), names(MAX_DEPTH)
    assert (len(deep), sum(map(len, deep))) == (len(few), sum(map(len, few)))
    assert sum(map(len, few)) < 1024 * 1024


def test_as_deep_as_a_single_folder_goes() -> None:
    names = {"/".join("d" * n) for n in range(1, MAX_DEPTH + 1)}
    assert of_key("d/" * MAX_DEPTH + "k") == plain("/", *names)


@pytest.mark.parametrize(("more", "trees"), [(0, 0), (1, 1)])
def test_as_long_as_a_chain_of_folders_may_be(more: int, trees: int) -> None:
    parts = ["x" * 800, *"yyy", "z" * (77 + more)]
    names = ["/".join(parts[:n]) for n in range(1, 6)]
    assert sum(map(len, names)) == MAX_CHAIN_BYTES + more
    assert len(of_key(f"{names[-1]}/k").trees) == trees


def test_the_tree_of_the_root_and_of_a_name_too_long_is_everything() -> None:
    assert of_tree("") == of_tree("n" * 1025) == EVERYTHING
    assert of_tree("a/b") == Scope(folders=frozenset({"/", "a"}), trees=frozenset({"a/b"}))


def test_a_first_folder_too_long_for_any_call_is_everything() -> None:
    assert of_key("x" * 1025 + "/k") == EVERYTHING


@pytest.mark.parametrize(
    ("known", "scope", "answer"),
    [
        pytest.param(EVERYTHING, plain("a"), True, id="everything holds all"),
        pytest.param(plain("/", "a"), plain("a"), True, id="the same folder"),
        pytest.param(plain("/", "a"), plain("a/b"), False, id="a folder does not hold its children"),
        pytest.param(Scope(trees=frozenset({"a"})), plain("a/b"), True, id="a tree does"),
        pytest.param(Scope(trees=frozenset({"a"})), plain("ab"), False, id="a name that begins alike"),
        pytest.param(
            Scope(trees=frozenset({"a"})),
            Scope(trees=frozenset({"a/b"})),
            True,
            id="a tree holds those within it",
        ),
        pytest.param(
            Scope(trees=frozenset({"a/b"})), Scope(trees=frozenset({"a"})), False, id="and none above"
        ),
        pytest.param(plain("a"), Scope(trees=frozenset({"a"})), False, id="a folder is no tree"),
        pytest.param(plain("a"), EVERYTHING, False, id="some is not all"),
        pytest.param(EMPTY, EMPTY, True, id="nothing is held by anything"),
    ],
)
def test_covers(known: Scope, scope: Scope, answer: bool) -> None:
    assert covers(known, scope) is answer


def requests(scope: Scope, most: int = 50) -> list[Request]:
    """The calls that refresh it."""
    found = []
    while scope:
        request, scope = take(scope, most)
        found.append(request)
    return found


def test_up_to_fifty_folders_are_one_call_of_single_folders() -> None:
    names = {"/", *(f"d{n}" for n in range(49))}
    request, left = take(plain(*names), 50)
    assert (set(request.folders), request.recursive, left) == (names, False, EMPTY)


def test_more_trees_than_fit_into_a_call_are_several_calls() -> None:
    request, left = take(Scope(trees=frozenset({"a", "b", "c"})), 2)
    assert (request, left) == (Request(("a", "b"), recursive=True), Scope(trees=frozenset({"c"})))


def test_the_deepest_are_refreshed_first() -> None:
    assert [call.folders for call in requests(plain("/", "a", "b/c"), 1)] == [("b/c",), ("a",), ("/",)]


SIXTY = merge(*(of_key(f"data/d{n}/x") for n in range(60)), of_key("new/x"))
HUNDREDS = merge(*(of_key(f"a/b{n % 30}/c{n}/x") for n in range(400)))


def test_sixty_leaves_and_a_new_folder_at_the_top_never_refresh_the_whole_share() -> None:
    calls = requests(narrowed(SIXTY, 50, 2, 2))
    assert [call.recursive for call in calls] == [False, False]
    assert calls[-1].folders[-1] == "/"
    assert len({name for call in calls for name in call.folders}) == 63


def test_hundreds_of_leaves_are_few_trees_and_their_ancestors_stay_single() -> None:
    first, second = requests(narrowed(HUNDREDS, 50, 2, 2))
    assert (set(first.folders), first.recursive) == ({f"a/b{n}" for n in range(30)}, True)
    assert (set(second.folders), second.recursive) == ({"/", "a"}, False)


def test_a_leaf_above_the_others_is_a_tree_of_its_own() -> None:
    first, second = requests(narrowed(merge(HUNDREDS, of_key("top/x")), 50, 2, 2))
    assert (set(first.folders), first.recursive) == ({"top", *(f"a/b{n}" for n in range(30))}, True)
    assert (set(second.folders), second.recursive) == ({"/", "a"}, False)


@pytest.mark.parametrize(
    ("keys", "trees"),
    [
        pytest.param([f"d{n}/{m}/x" for n in range(60) for m in range(10)], 60, id="wide at the top"),
        pytest.param([f"d{n}/{m}/x" for n in range(499) for m in range(2)], 499, id="as wide as may be"),
        pytest.param([f"d{n}/" + "e/" * 9 + "x" for n in range(50)], 50, id="as many as there may be, deep"),
    ],
)
def test_more_than_is_kept_are_trees_at_the_top(keys: list[str], trees: int) -> None:
    assert len({name for key in keys for name in of_key(key).folders}) > MAX_FOLDERS
    tops = frozenset(f"d{n}" for n in range(trees))
    assert merge(*map(of_key, keys)) == Scope(folders=frozenset({"/"}), trees=tops)


def test_what_one_call_has_to_refresh_is_everything_unless_that_is_worth_more_calls() -> None:
    assert narrowed(SIXTY, 50, 1, 2) == EVERYTHING
    assert narrowed(HUNDREDS, 50, 1, 3) == narrowed(HUNDREDS, 50, 2, 2), "no wider than what saves a call"
    few = of_key("a/b")
    assert narrowed(few, 50, 1, 2) == few


def test_trees_are_joined_further_up_when_there_are_too_many_folders_above_them() -> None:
    scope = merge(*(of_key(f"{n % 5}/b{n % 7}/c{n}/d/x") for n in range(80)))
    assert len(requests(scope)) > 2
    narrow = narrowed(scope, 50, 2, 2)
    assert len(requests(narrow)) == 2
    assert covers(narrow, scope)


def test_more_folders_at_the_top_than_fit_into_the_calls_are_everything_or_as_few_calls_as_it_takes() -> None:
    scope = merge(*(of_key(f"d{n}/x") for n in range(120)))
    assert narrowed(scope, 50, 2, 2) == EVERYTHING
    assert len(requests(narrowed(scope, 50, 2, 4))) == 3


def test_everything_is_one_call_for_the_root_and_all_below() -> None:
    request, left = take(EVERYTHING, 50)
    assert (request.folders, request.recursive, left) == (("/",), True, EMPTY)
    assert request.scope == EVERYTHING


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("a/b", '"a/b"'),
        ("ü", '"ü"'),
        ("a&b", r'"a\u0026b"'),
        ("X&", r'"X\u0026"'),
        ("<a>", r'"\u003ca\u003e"'),
        ("\x01\n", r'"\u0001\n"'),
        ('"\\', r'"\"\\"'),
        ('<>&"\\', r'"\u003c\u003e\u0026\"\\"'),
        ("\u2028\u2029", r'"\u2028\u2029"'),
    ],
)
def test_the_length_of_a_name_is_that_in_the_object_that_is_stored(name: str, stored: str) -> None:
    assert length(name) == len(stored.encode()) + len(",")


def test_what_waits_is_bounded_by_what_it_is_when_it_is_stored() -> None:
    names = frozenset(f"{'&' * 100}{n}" for n in range(100))
    assert not merge(Scope(folders=frozenset(f"{'x' * 100}{n}" for n in range(100)))).trees
    assert size(merge(Scope(folders=names))) <= MAX_BYTES < 100 * 605


PARTS = st.text(st.sampled_from("abc./"), max_size=12) | st.integers(0, 500).map(lambda n: "d/" * n)
LONG = st.integers(0, 3).map(lambda n: "x" * 300 * n)
KEYS = st.lists(st.builds(lambda a, b, n: f"{a}{b}/{n}/k", PARTS, LONG, st.integers(0, 40)), max_size=300)


@given(KEYS, st.integers(1, 50), st.integers(1, 4), st.integers(2, 9))
def test_whatever_is_merged_is_covered_bounded_and_refreshed_by_some_calls(
    keys: list[str], most: int, wanted: int, whole: int
) -> None:
    scopes = [of_key(key) for key in keys]
    merged = merge(*scopes)
    assert all(covers(merged, scope) for scope in scopes)
    assert len(merged.folders) + len(merged.trees) <= MAX_FOLDERS
    assert sum(len(name.encode()) for name in (*merged.folders, *merged.trees)) <= MAX_BYTES
    calls = requests(narrowed(merged, most, wanted, whole), most)
    assert all(1 <= len(call.folders) <= most for call in calls)
    assert len(calls) <= max(wanted, len(requests(merged, most)))
    assert len(calls) <= max(wanted, whole - 1)
    done = merge_unbounded([call.scope for call in calls])
    assert all(covers(done, scope) for scope in scopes)


def merge_unbounded(scopes: list[Scope]) -> Scope:
    return Scope(
        all=any(scope.all for scope in scopes),
        folders=frozenset(name for scope in scopes for name in scope.folders),
        trees=frozenset(name for scope in scopes for name in scope.trees),
    )


def test_a_name_as_long_as_a_call_takes_is_a_folder() -> None:
    assert of_key("x" * 1024 + "/k") == plain("/", "x" * 1024)


def test_everything_is_one_call() -> None:
    assert calls_of(EVERYTHING, 50) == 1


@pytest.mark.parametrize(("number", "calls"), [(8, [8]), (9, [8, 1]), (16, [8, 8])])
def test_a_call_has_no_more_names_than_fit(number: int, calls: list[int]) -> None:
    names = {f"{n:x}" + "x" * 1020 for n in range(number)}
    assert sum(map(length, sorted(names)[:8])) == MAX_CALL_BYTES
    assert [len(call.folders) for call in requests(plain(*names))] == calls
    assert calls_of(plain(*names), 50) == len(calls)


def test_as_many_folders_and_trees_as_are_kept() -> None:
    names = [f"d{n}" for n in range(MAX_FOLDERS)]
    kept = Scope(folders=frozenset(names[:300]), trees=frozenset(names[300:]))
    assert merge(kept) == kept
    assert merge(kept, plain("e")) == EVERYTHING


def test_as_many_bytes_as_are_kept() -> None:
    names = [f"{n}" + "x" * 1020 for n in range(10, 26)]
    names = [name[:1021] for name in names]
    assert size(plain(*names)) == MAX_BYTES
    assert merge(plain(*names)) == plain(*names)


def test_what_is_too_long_as_fifty_trees_is_half_as_many() -> None:
    keys = [f"t/m{n % 20}/{n:02}{'x' * 330}/{m}/k" for n in range(50) for m in range(10)]
    trees = frozenset(f"t/m{n}" for n in range(20))
    assert merge(*map(of_key, keys)) == Scope(folders=frozenset({"/", "t"}), trees=trees)


def test_what_is_too_long_as_three_trees_is_one() -> None:
    keys = [f"t/{n}{'&' * 200}/" + f"{'&' * 150}/" * 6 + "k" for n in range(2)]
    assert merge(*map(of_key, keys)) == Scope(folders=frozenset({"/"}), trees=frozenset({"t"}))


def test_as_many_as_fifty_are_trees() -> None:
    scope = merge(*(of_key(f"t/m{n % 48}/l{n}/k") for n in range(48 * 11)))
    assert scope == Scope(folders=frozenset({"/", "t"}), trees=frozenset(f"t/m{n}" for n in range(48)))


def test_trees_hide_nothing_but_what_lies_within_them() -> None:
    scope = Scope(folders=frozenset({"XX/XXa", "t/u", "tu"}), trees=frozenset({"t", "t/v"}))
    assert merge(scope) == Scope(folders=frozenset({"XX/XXa", "tu"}), trees=frozenset({"t"}))


def test_trees_are_no_wider_than_the_calls_need() -> None:
    """Below a chain of folders that is as long as a call: two calls for four trees and the chain."""
    chain = "t/" + "c/" * 8
    scope = merge(*(of_key(f"{chain}a{n % 4}/b{n}/k") for n in range(8)))
    trees = frozenset(f"{chain}a{n}" for n in range(4))
    assert narrowed(scope, 10, 2, 2) == Scope(folders=of_key(f"{chain}k").folders, trees=trees)


def test_within_follows_whole_names() -> None:
    assert within("a/b/c", {"a/b"})
    assert not within("a/bc", {"a/b"})
    assert within("a", {"/"})


NAMES = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map("/".join) | st.just("/")
SCOPES = st.builds(lambda f, t: merge(Scope(folders=f, trees=t)), st.frozensets(NAMES), st.frozensets(NAMES))


@given(SCOPES, SCOPES)
def test_what_is_missing_is_what_the_other_does_not_cover(scope: Scope, known: Scope) -> None:
    left = missing(scope, known)
    assert covers(merge_unbounded([known, left]), scope)
    assert all(not covers(known, plain(name)) for name in left.folders)
    assert covers(scope, left)


@given(SCOPES)
def test_no_tree_is_within_another_and_no_folder_within_a_tree(scope: Scope) -> None:
    assert not any(within(folder, scope.trees) for folder in scope.folders)
    assert not any(within(tree, scope.trees - {tree}) for tree in scope.trees)
