"""Folders of a file share: which ones an object's event makes stale, and how many fit into one refresh.

Pure. A folder is named as FolderList of RefreshCache has it: relative to the share's root, without a leading
or a trailing slash, the root itself as "/". A *tree* is a folder with everything below it.

A new or vanished directory shows only in its parent's listing, so an event concerns the object's folder and
every ancestor. The number and the depth of folders are bounded: beyond the bounds they collapse into trees,
which cover more than changed, never less. Every step but one sort is linear in the bytes of the names.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from operator import methodcaller
from typing import Final

import msgspec

ROOT: Final = "/"
MAX_LENGTH: Final = 1024  # characters of a name in FolderList (service model of storagegateway)
MAX_DEPTH: Final = 16  # levels of a single folder; below them, the folder at this level becomes a tree
MAX_CHAIN_BYTES: Final = 4 * 1024  # of the names of a folder and all its ancestors together
MAX_FOLDERS: Final = 500  # of one target that wait for a refresh
MAX_BYTES: Final = 16 * 1024
MAX_CALL_BYTES: Final = 8 * 1024  # of one call: 64 targets' calls have to fit into one object


class Scope(msgspec.Struct, frozen=True):
    """A stale scope, or that of a refresh: everything, or some folders and trees."""

    all: bool = False
    folders: frozenset[str] = frozenset()
    trees: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.all or bool(self.folders) or bool(self.trees)


EVERYTHING: Final = Scope(all=True)
EMPTY: Final = Scope()


class Request(msgspec.Struct, frozen=True):
    """One call: `Recursive` holds for all of its folders."""

    folders: tuple[str, ...]
    recursive: bool

    @property
    def scope(self) -> Scope:
        """The scope of the call."""
        if self.recursive and ROOT in self.folders:
            return EVERYTHING
        names = frozenset(self.folders)
        return Scope(trees=names) if self.recursive else Scope(folders=names)


def of_folder(folder: str) -> Scope:
    """The folders that an event in this folder makes stale: it and all its ancestors. A file gateway shows
    nothing below a path segment that is empty, "." or "..", so a path through one concerns the last folder
    before it. Below MAX_DEPTH levels, or beyond MAX_CHAIN_BYTES, the last folder becomes a tree."""
    names: list[str] = []
    name, room = "", MAX_CHAIN_BYTES
    for part in folder.split("/", MAX_DEPTH):
        if part in _NO_FOLDER:
            break
        deeper = f"{name}/{part}" if name else part
        room -= len(deeper.encode())
        if len(names) == MAX_DEPTH or room < 0 or len(deeper) > MAX_LENGTH:
            if not names:
                return EVERYTHING
            return Scope(folders=frozenset((ROOT, *names[:-1])), trees=frozenset(names[-1:]))
        name = deeper
        names.append(name)
    return Scope(folders=frozenset((ROOT, *names)))


def of_tree(folder: str) -> Scope:
    """The folder with everything below it, and all its ancestors singly: a new folder shows only in the
    listing of the one above it."""
    found = of_folder(folder)
    last = max(found.folders - {ROOT}, key=len, default="")
    if found.all or found.trees or not last:
        return found if found.trees else EVERYTHING
    return Scope(folders=found.folders - {last}, trees=frozenset((last,)))


def of_key(key: str) -> Scope:
    """The scope of an object that is refreshed by its own name, without its ancestors: the key in place of a
    folder, "/" for the empty one. A key that is no plain path, or too deep, is the tree of the last folder
    before the part that is not plain."""
    if not key:
        return Scope(folders=frozenset((ROOT,)))
    parts = key.split("/", MAX_DEPTH)
    plain = next((at for at, part in enumerate(parts) if part in _NO_FOLDER or "/" in part), len(parts))
    if plain == len(parts) and len(key) <= MAX_LENGTH:
        return Scope(folders=frozenset((key,)))
    tree = "/".join(parts[: min(plain, len(parts) - 1)])
    return Scope(trees=frozenset((tree,))) if tree else EVERYTHING


_SLASHES: Final = methodcaller("count", "/")
_NO_FOLDER: Final = frozenset(("", ".", ".."))


def union(*scopes: Scope) -> Scope:
    """All that the scopes hold, not reduced."""
    if any(scope.all for scope in scopes):
        return EVERYTHING
    trees = frozenset().union(*(scope.trees for scope in scopes))
    return Scope(folders=frozenset().union(*(scope.folders for scope in scopes)), trees=trees)


def merge(*scopes: Scope) -> Scope:
    """The union of scopes, without folders that a tree covers, and within the bounds."""
    every = union(*scopes)
    if every.all or ROOT in every.trees:
        return EVERYTHING
    return _bounded(_pruned(every.folders, every.trees) if every.trees else every)


def missing(scope: Scope, refreshed: Scope) -> Scope:
    """The part of `scope` that a refresh of `refreshed` does not cover."""
    if refreshed.all or scope.all:
        return EMPTY if refreshed.all else scope
    return Scope(
        folders=frozenset(
            f for f in scope.folders if f not in refreshed.folders and not within(f, refreshed.trees)
        ),
        trees=frozenset(tree for tree in scope.trees if not within(tree, refreshed.trees)),
    )


def narrowed(scope: Scope, most: int, calls: int, whole: int) -> Scope:
    """The scope, reduced so that at most `calls` calls of `most` folders each refresh it: single folders if
    they fit, else trees and the folders above them. If that is not enough either: the fewest calls that were
    found, or everything if these are `whole` or more. Trees are not joined further than to one."""
    best, least = scope, calls_of(scope, most)
    trees = most
    while least > calls and trees:
        fewer = _collapsed(scope, trees)
        if (needed := calls_of(fewer, most)) < least:
            best, least = fewer, needed
        trees //= 2
    return EVERYTHING if least > calls and least >= whole else best


def calls_of(scope: Scope, most: int) -> int:
    """How many calls refresh it."""
    return 1 if scope.all else sum(1 for names in (scope.trees, scope.folders) for _ in _calls(names, most))


def take(scope: Scope, most: int) -> tuple[Request, Scope]:
    """(the next call, the rest for later calls) of a scope that is not empty.

    Trees first, the deepest folders next: a directory's content matters more than its name in a listing.
    """
    if scope.all:
        return Request((ROOT,), recursive=True), EMPTY
    if scope.trees:
        chosen = next(_calls(scope.trees, most))
        left = Scope(folders=scope.folders, trees=scope.trees.difference(chosen))
        return Request(chosen, recursive=True), left
    chosen = next(_calls(scope.folders, most))
    return Request(chosen, recursive=False), Scope(folders=scope.folders.difference(chosen))


def within(folder: str, trees: Collection[str]) -> bool:
    """Whether one of the trees holds the folder."""
    return bool(trees) and any(ancestor in trees for ancestor in _with_ancestors(folder))


def parent(folder: str) -> str:
    """The folder that lists it; the root's is the root."""
    return folder.rpartition("/")[0] or ROOT


def _with_ancestors(folder: str) -> Iterator[str]:
    while folder != ROOT:
        yield folder
        folder = parent(folder)
    yield ROOT


def size(scope: Scope) -> int:
    """Bytes of the names, as the API server stores them."""
    names = (*scope.folders, *scope.trees)
    return _stored("".join(names)) + 3 * len(names)


def length(name: str) -> int:
    """Bytes of a name in the object that etcd stores: quoted, with a comma."""
    return _stored(name) + 3


def _stored(text: str) -> int:
    """Bytes within quotes. The API server also escapes <, >, &, U+2028 and U+2029, as six characters each,
    which JSON does not require."""
    if _plain(text):
        return len(text)
    more = 5 * sum(map(text.count, "<>&")) + 3 * sum(map(text.count, "\u2028\u2029"))
    return len(msgspec.json.encode(text)) - 2 + more


def _plain(text: str) -> bool:
    """Whether it is stored as it is."""
    return text.isascii() and text.isprintable() and not any(one in text for one in _ESCAPED)


_ESCAPED: Final = '<>&"\\'


def _bounded(scope: Scope) -> Scope:
    """Collapses until both bounds hold. A collapsed scope has few trees, so one step nearly always does."""
    most = MAX_FOLDERS // 10
    while len(scope.folders) + len(scope.trees) > MAX_FOLDERS or size(scope) > MAX_BYTES:
        if most < 1:
            return EVERYTHING
        scope = _collapsed(scope, most)
        most //= 2
    return scope


def _pruned(folders: Iterable[str], trees: Iterable[str]) -> Scope:
    """Removes folders and trees that lie within a tree. Names are sorted with a trailing slash, so the
    descendants of a tree follow it directly."""
    held = {f"{tree}/" for tree in trees}
    kept: tuple[list[str], list[str]] = ([], [])
    outer = "/"  # no name begins with it
    for name in sorted(held | {f"{folder}/" for folder in folders if folder != ROOT}):
        if name.startswith(outer):
            continue
        if is_tree := name in held:
            outer = name
        kept[is_tree].append(name[:-1])
    root = (ROOT,) if ROOT in folders else ()
    return Scope(folders=frozenset((*root, *kept[False])), trees=frozenset(kept[True]))


def _collapsed(scope: Scope, most: int) -> Scope:
    """The leaves as at most `most` trees, the deepest joined first; their ancestors stay single folders: no
    tree but the root's own would hold them, and that one would be everything."""
    names = sorted([f"{name}/" for name in (*scope.folders, *scope.trees) if name != ROOT])
    leaves = [name for name, after in pairwise((*names, "")) if not after.startswith(name)]
    cuts: dict[int, set[str]] = {}

    def left(depth: int) -> int:
        cuts[depth] = _cut(leaves, depth)
        return len(cuts[depth])

    # The largest depth at which at most `most` trees remain; 1 if there is none.
    levels = bisect_right(range(1, max(map(_SLASHES, leaves)) + 1), most, key=left) or 1
    trees = cuts[levels]
    # A deeper name is within one of the trees, which is above the leaves below it.
    above = frozenset({name for name in scope.folders if name.count("/") < levels or name == ROOT} - trees)
    if len(trees) > most and len(above) + len(trees) > MAX_FOLDERS:
        return EVERYTHING
    return Scope(folders=above, trees=frozenset(trees))


def _cut(names: Iterable[str], depth: int) -> set[str]:
    """The ancestors of these names at this depth; a name above it stays itself. Names end in a slash."""
    return {
        "/".join(name.split("/", depth)[:depth]) if name.count("/") > depth else name[:-1] for name in names
    }


def _calls(names: Collection[str], most: int) -> Iterator[tuple[str, ...]]:
    """Splits names into calls, the deepest first: at least one name each, up to `most` names and
    MAX_CALL_BYTES."""
    chosen: list[str] = []
    size = 0
    ordered = sorted(names)
    ordered.sort(key=_SLASHES, reverse=True)  # as stable as sorted()
    if ROOT in names:
        ordered.remove(ROOT)
        ordered.append(ROOT)
    for name in ordered:
        more = length(name)
        if chosen and (len(chosen) == most or size + more > MAX_CALL_BYTES):
            yield tuple(chosen)
            chosen, size = [], 0
        chosen.append(name)
        size += more
    if chosen:
        yield tuple(chosen)
