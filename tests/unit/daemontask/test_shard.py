"""By what a shard of the ledger is known, and what is read of one."""

import pytest

from caretaker.api.hashing import h10
from caretaker.api.objects import WireMeta, WireOwner
from caretaker.daemontask.ledger import encode_entry
from caretaker.daemontask.shard import Marks, Shard, WireConfigMap, bounded, decode, overfull
from unit.daemontask.build import entry, node

MARKS = Marks("default", "my.task", "u-1")
STEM = f"my-task-{h10('u-1')}-ledger"
LABELS = {"app.kubernetes.io/managed-by": "caretaker", "caretaker.dev/daemontask": "my.task"}
OWNED = [WireOwner("other"), WireOwner("u-1")]


def labelled(index: str, task: str = "my.task") -> dict[str, str]:
    return {**LABELS, "caretaker.dev/daemontask": task, "caretaker.dev/ledger": index}


def test_names_and_labels_that_no_release_may_change() -> None:
    """A shard that is not found is a ledger that is lost."""
    assert h10("u-1") == "ujfh6vpspd"
    assert [MARKS.name(0), MARKS.name(12)] == [f"{STEM}-0", f"{STEM}-12"]
    assert MARKS.labels(12) == labelled("12")
    assert MARKS.selector == "caretaker.dev/ledger,caretaker.dev/daemontask=my.task"


@pytest.mark.parametrize(
    ("task", "start"),
    [
        pytest.param("t" * 50, "t" * 40, id="40 characters of the task"),
        pytest.param(f"{'t' * 39}.x", "t" * 39, id="no dash where it is cut"),
    ],
)
def test_the_name_of_a_task_is_cut(task: str, start: str) -> None:
    assert Marks("default", task, "u-1").name(0) == f"{start}-{h10('u-1')}-ledger-0"


@pytest.mark.parametrize(
    ("name", "labels", "index"),
    [
        pytest.param(f"{STEM}-3", labelled("3"), 3, id="name and label agree"),
        pytest.param(f"{STEM}-3", labelled("4"), None, id="name and label differ"),
        pytest.param("other-3", labelled("3"), None, id="the name is another one"),
        pytest.param(f"{STEM}-3", None, None, id="there are no labels"),
        pytest.param(f"{STEM}-", None, None, id="nor a number"),
        pytest.param(f"{STEM}-x", labelled("x"), None, id="a word"),
        pytest.param(f"{STEM}-²", labelled("²"), None, id="a digit that is no number"),
        pytest.param(f"{STEM}-٣", labelled("٣"), None, id="a number of another script"),
    ],
)
def test_the_index_of_a_shard(name: str, labels: dict[str, str] | None, index: int | None) -> None:
    assert MARKS.index(WireMeta(name=name, labels=labels)) == index


@pytest.mark.parametrize(
    ("labels", "owners", "known", "ours"),
    [
        pytest.param(labelled("3"), OWNED, True, True, id="it is as it was made"),
        pytest.param(labelled("3"), None, True, True, id="its owner is gone"),
        pytest.param(None, OWNED, False, True, id="its labels are gone"),
        pytest.param(labelled("3", "other"), OWNED, False, True, id="it has the label of another task"),
        pytest.param(labelled("4"), OWNED, False, True, id="it has another index"),
        pytest.param(labelled("3", "other"), None, False, False, id="it is of another task"),
        pytest.param(labelled("4"), None, False, False, id="it is another one"),
        pytest.param(None, [WireOwner("other")], False, False, id="it is of somebody else"),
        pytest.param(None, None, False, False, id="nobody knows whose it is"),
    ],
)
def test_whose_a_config_map_is(
    labels: dict[str, str] | None, owners: list[WireOwner] | None, known: bool, ours: bool
) -> None:
    meta = WireMeta(name=f"{STEM}-3", labels=labels, owner_references=owners)
    assert (MARKS.labelled(3, meta), MARKS.ours(3, meta)) == (known, ours)


@pytest.mark.parametrize(
    ("text", "version"),
    [("", 0), ("12", 12), ("1" * 18, int("1" * 18)), ("1" * 19, 0), ("x", 0), ("²", 0), ("٣", 0)],
)
def test_a_resource_version_as_a_number(text: str, version: int) -> None:
    assert Shard(0, "u", text, {}, {}).version == version


def test_what_cannot_be_read_is_kept_as_such() -> None:
    a = entry(node("a"))
    meta = WireMeta(name=f"{STEM}-3", uid="u-3", resource_version="7")
    found = decode(3, WireConfigMap(meta, {"a": encode_entry(a), "b": "{"}), stray=True)
    assert (found.index, found.uid, found.resource_version, found.stray) == (3, "u-3", "7", True)
    assert (found.entries, found.node_names) == ({"a": a}, ["a", "b"])
    assert "truncated" in found.corrupt["b"]
    empty = decode(0, WireConfigMap(meta))
    assert (empty.entries, empty.corrupt, empty.stray) == ({}, {}, False)


def test_of_a_config_map_with_too_many_entries_no_more_is_kept_than_shows_it() -> None:
    whole = WireConfigMap(WireMeta(name=f"{STEM}-3"), {str(number): "{" for number in range(1000)})
    assert bounded(whole) is whole
    assert not overfull(whole)
    for more in (1, 500):
        names = map(str, range(1000 + more))
        found = bounded(WireConfigMap(whole.metadata, dict.fromkeys(names, "{")))
        assert overfull(found)
        assert found == WireConfigMap(whole.metadata, dict.fromkeys(map(str, range(1001)), ""))


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        pytest.param("7", 7, id="a number"),
        pytest.param("9" * 15, 999_999_999_999_999, id="one of as many digits as there may be"),
        pytest.param("9" * 16, 0, id="one of more"),
        pytest.param("-7", 0, id="a negative number"),
        pytest.param("", 0, id="nothing"),
    ],
)
def test_a_count_of_writes_that_cannot_be_read_is_none(text: str, writes: int) -> None:
    meta = WireMeta(name=f"{STEM}-0", annotations={"caretaker.dev/ledger-writes": text})
    assert decode(0, WireConfigMap(meta, {})).writes == writes
