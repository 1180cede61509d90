"""The scope of an event, and whether a refresh covers it: what models of the world compare plans with."""

from caretaker.s3refresh.folders import EMPTY, Scope, missing, of_folder


def of_key(key: str, prefix: str = "") -> Scope:
    """The folders that an event of this object makes stale, in a share of `prefix`; empty where the object is
    not below the prefix. For a key that ends in a slash (the object of a directory), these are the directory
    and its parents."""
    return of_folder(key[len(prefix) :].rpartition("/")[0]) if key.startswith(prefix) else EMPTY


def covers(refreshed: Scope, scope: Scope) -> bool:
    """Whether a refresh of `refreshed` refreshes all of `scope`."""
    return not missing(scope, refreshed)
