"""A share's cached listings beside its bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awsdoubles.gateway.inventory import (
    Inventory,
    Listing,
    differences,
    folder_of,
    listing,
    shown,
    tree,
)

OBJECTS = {"top": "1", "a/one": "2", "a/b/two": "3", "c/": "4"}


def complete(objects: dict[str, str]) -> Inventory:
    return Inventory(dict(tree(objects)))


def test_a_tree_of_keys() -> None:
    assert tree(OBJECTS) == {
        "": Listing({"top": "1"}, frozenset({"a", "c"})),
        "a": Listing({"one": "2"}, frozenset({"b"})),
        "a/b": Listing({"two": "3"}, frozenset()),
        "c": Listing({}, frozenset()),
    }


def test_a_tree_below_a_prefix() -> None:
    objects = {key: etag for key, etag in OBJECTS.items() if key.startswith("a/")}
    assert tree(objects, "a/") == {
        "": Listing({"one": "2"}, frozenset({"b"})),
        "b": Listing({"two": "3"}, frozenset()),
    }


@pytest.mark.parametrize("key", ["/leading", "a//b", "./x", "a/../b", "a/."])
def test_a_share_cannot_show_some_keys(key: str) -> None:
    assert all(shown(name) for folder in tree({key: "1"}) for name in folder.split("/") if folder)
    assert not any(found.files for found in tree({key: "1"}).values())


def test_what_s3_lists_is_a_listing() -> None:
    found = listing("a/", {"a/": "0", "a/one": "2"}, ["a/b/", "a//"])
    assert found == Listing({"one": "2"}, frozenset({"b"}))


def test_a_listing_drops_what_lay_below_a_vanished_folder() -> None:
    inventory = complete({"a/b/c/x": "1", "ab/x": "1"})
    inventory.put("a", Listing({}, frozenset()))
    assert sorted(inventory.listings) == ["", "a", "ab"]


def test_cached_below_keeps_to_whole_names() -> None:
    inventory = complete({"a/b/c": "1", "ab/c": "1"})
    assert inventory.cached_below("a") == ["a/b"]
    assert inventory.cached_below("") == ["a", "a/b", "ab"]


@pytest.mark.parametrize(
    ("name", "folder"), [("/", ""), ("a", "a"), ("/a", "a"), ("a/b", "a/b"), (" a ", " a "), ("ü+%", "ü+%")]
)
def test_folder_names(name: str, folder: str) -> None:
    assert folder_of(name) == folder


@pytest.mark.parametrize("name", ["a/", "//", "a//b", ".", "../a", "a\0"])
def test_what_is_no_folder_name(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a folder"):
        folder_of(name)


def test_differences_are_sentences_in_order() -> None:
    inventory = complete(OBJECTS)
    now = {"top": "9", "a/new": "5", "a/b/two": "3", "d/x": "1"}
    assert differences(inventory, tree(now)) == [
        "/: file 'top' is shown with ETag 1, the bucket has 9",
        "/: folder 'c' is shown and gone from the bucket",
        "/: folder 'd' is in the bucket and not shown",
        "/a: file 'new' is in the bucket and not shown",
        "/a: file 'one' is shown and gone from the bucket",
    ]


def test_a_folder_that_nobody_opened_misleads_nobody() -> None:
    inventory = complete(OBJECTS)
    del inventory.listings["a/b"]
    assert differences(inventory, tree({**OBJECTS, "a/b/new": "1"})) == []


names = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)
buckets = st.dictionaries(names, st.sampled_from(["1", "2"]), max_size=8)


@given(before=buckets, after=buckets)
def test_refreshing_every_folder_that_was_listed_makes_a_share_fresh(
    before: dict[str, str], after: dict[str, str]
) -> None:
    inventory, truth = complete(before), tree(after)
    for folder in ["", *inventory.cached_below("")]:
        if folder in inventory.listings:
            inventory.put(folder, truth.get(folder, Listing({}, frozenset())))
    assert differences(inventory, truth) == []


@given(before=buckets, after=buckets)
def test_changed_folders_with_their_ancestors_are_enough(
    before: dict[str, str], after: dict[str, str]
) -> None:
    """What caretaker relies on when it refreshes without recursion."""
    inventory, truth = complete(before), tree(after)
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    folders = {"/".join(key.split("/")[:n]) for key in changed for n in range(key.count("/") + 1)}
    for folder in sorted(folders):
        inventory.put(folder, truth.get(folder, Listing({}, frozenset())))
    assert differences(inventory, truth) == []


@given(before=buckets, after=buckets)
def test_only_equal_buckets_have_no_differences(before: dict[str, str], after: dict[str, str]) -> None:
    assert (differences(complete(before), tree(after)) == []) == (tree(before) == tree(after))
