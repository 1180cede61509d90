"""Folders of a file share: which ones an object's event makes stale, and how many fit into one refresh.

Pure. A folder is named as FolderList of RefreshCache has it: relative to the share's root, without a leading
or a trailing slash, the root itself as "/". A *tree* is a folder with everything below it.

A new or vanished directory shows only in its parent's listing, so an event concerns the object's folder and
every ancestor. The number of folders is bounded everywhere; what is too many collapses into trees, which say
more than is known, never less.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final

import msgspec

ROOT: Final = "/"
MAX_LENGTH: Final = 1024  # characters of a name in FolderList (service model of storagegateway)
MAX_FOLDERS: Final = 500  # of one target that wait for a refresh
MAX_BYTES: Final = 16 * 1024
MAX_CALL_BYTES: Final = 8 * 1024  # of one call: 64 targets' calls have to fit into one object
PLAIN_CALLS: Final = 4  # so many calls for single folders are better than one for a tree


class Scope(msgspec.Struct, frozen=True):
    """What is stale, or is to be refreshed: everything, or some folders and trees."""

    all: bool = False
    folders: frozenset[str] = frozenset()
    trees: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.all or bool(self.folders) or bool(self.trees)


EVERYTHING: Final = Scope(all=True)
NOTHING: Final = Scope()


class Request(msgspec.Struct, frozen=True):
    """One call: `Recursive` holds for all of its folders."""

    folders: tuple[str, ...]
    recursive: bool

    @property
    def scope(self) -> Scope:
        """What the call refreshes."""
        if self.recursive and ROOT in self.folders:
            return EVERYTHING
        names = frozenset(self.folders)
        return Scope(trees=names) if self.recursive else Scope(folders=names)


def of_key(key: str, prefix: str = "") -> Scope:
    """The folders that an event of this object makes stale, in a share of `prefix`; empty where the object is
    not below the prefix.

    For a key that ends in a slash, a directory's own object, these are the directory and its parents. A file
    gateway shows nothing below an empty path segment, so what lies there concerns its nearest real ancestor.
    """
    if not key.startswith(prefix):
        return NOTHING
    return _chain(key[len(prefix) :].rpartition("/")[0])


@lru_cache(maxsize=4096)  # most events of a storm are of few folders
def _chain(folder: str) -> Scope:
    parts: list[str] = []
    for part in folder.split("/"):
        if not part:
            break
        parts.append(part)
    names = {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    return Scope(folders=frozenset({ROOT, *(name for name in names if len(name) <= MAX_LENGTH)}))


def merge(*scopes: Scope) -> Scope:
    """All of it, without what a tree says already, and within the bounds."""
    if any(scope.all for scope in scopes):
        return EVERYTHING
    trees = _outermost(tree for scope in scopes for tree in scope.trees)
    if ROOT in trees:
        return EVERYTHING
    folders = frozenset(f for scope in scopes for f in scope.folders if not within(f, trees))
    return _bounded(Scope(folders=folders, trees=frozenset(trees)))


def covers(known: Scope, scope: Scope) -> bool:
    """Whether a refresh of `known` refreshes all of `scope`."""
    if known.all:
        return True
    if scope.all:
        return False
    return all(within(tree, known.trees) for tree in scope.trees) and all(
        folder in known.folders or within(folder, known.trees) for folder in scope.folders
    )


def take(scope: Scope, most: int) -> tuple[Request, Scope]:
    """(the next call, what is left for later calls) of a scope that is not empty.

    Trees first, the deepest folders next: a directory's content is worth more than its name in a listing.
    What more than PLAIN_CALLS plain calls would need collapses into trees.
    """
    if scope.all:
        return Request((ROOT,), recursive=True), NOTHING
    if not scope.trees and len(scope.folders) > most * PLAIN_CALLS:
        scope = _collapsed(scope, most)
        if scope.all:
            return Request((ROOT,), recursive=True), NOTHING
    if scope.trees:
        chosen = _fitting(sorted(scope.trees, key=_deepest_first), most)
        left = Scope(folders=scope.folders, trees=scope.trees.difference(chosen))
        return Request(chosen, recursive=True), left
    chosen = _fitting(sorted(scope.folders, key=_deepest_first), most)
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


def _depth(folder: str) -> int:
    return 0 if folder == ROOT else folder.count("/") + 1


def _deepest_first(folder: str) -> tuple[int, str]:
    return -_depth(folder), folder


def _outermost(trees: Iterable[str]) -> set[str]:
    """The trees that no other of them holds."""
    found = set(trees)
    return {tree for tree in found if tree == ROOT or not within(parent(tree), found)}


def size(scope: Scope) -> int:
    """Bytes of the names, as JSON has them, about."""
    return sum(len(name.encode()) + 3 for name in (*scope.folders, *scope.trees))


def _bounded(scope: Scope) -> Scope:
    """Collapses until both bounds hold. What is collapsed names few trees, so one step nearly always does."""
    most = MAX_FOLDERS // 10
    while len(scope.folders) + len(scope.trees) > MAX_FOLDERS or size(scope) > MAX_BYTES:
        if most < 1:
            return EVERYTHING
        scope = _collapsed(scope, most)
        most //= 2
    return scope


def _collapsed(scope: Scope, most: int) -> Scope:
    """The leaves as at most `most` trees, the deepest joined first; their ancestors stay single folders: no
    tree but the root's own would hold them, and that one would be everything."""
    ancestors = {parent(folder) for folder in (*scope.folders, *scope.trees)}
    ancestors |= {name for folder in ancestors for name in _with_ancestors(folder)}
    trees = {f for f in scope.folders if f not in ancestors and f != ROOT} | set(scope.trees)
    while len(trees) > most and (deepest := max(map(_depth, trees))) > 1:
        trees = _outermost(parent(tree) if _depth(tree) == deepest else tree for tree in trees)
    folders = frozenset(f for f in scope.folders if not within(f, trees))
    if len(trees) > most and len(folders) + len(trees) > MAX_FOLDERS:
        return EVERYTHING
    return Scope(folders=folders, trees=frozenset(trees))


def _fitting(folders: list[str], most: int) -> tuple[str, ...]:
    """As many as a call and its record hold, one at least."""
    chosen: list[str] = []
    size = 0
    for folder in folders[:most]:
        size += len(folder.encode()) + 3
        if chosen and size > MAX_CALL_BYTES:
            break
        chosen.append(folder)
    return tuple(chosen)
