"""Which events count, and which folders of which targets they make stale.

Pure. A share is matched by its bucket and its prefix; several may serve one bucket, and all of them count.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from caretaker.api.s3refresh import Filter
from caretaker.s3refresh import folders
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import EMPTY, EVERYTHING, Scope


class Share(msgspec.Struct, frozen=True):
    """A place that can be refreshed. `group`, the gateway, bounds concurrency."""

    id: str
    arn: str
    bucket: str
    prefix: str = ""
    group: str = ""
    region: str = ""
    ready: bool = True  # AVAILABLE

    @property
    def location(self) -> str:
        """Bucket and prefix as recorded in status; empty for a bucket, whose id names it."""
        return f"{self.bucket}/{self.prefix}" if self.arn else ""


class Matches(msgspec.Struct, frozen=True):
    """The result of matching events."""

    found: Mapping[str, Scope] = {}  # target id -> folders that the events make stale
    matched: int = 0  # events that concern a target
    unmatched: int = 0  # events that concern none
    filtered: int = 0  # events that spec.filter excludes


class EventMatcher:
    """Matches events to targets. `shares` by bucket; `whole`: the spec asks to refresh whole shares."""

    def __init__(
        self, filter_: Filter, shares: Mapping[str, Sequence[Share]], *, whole: bool = False
    ) -> None:
        self._filter = filter_
        self._shares = shares
        self._whole = whole
        self._found: dict[str, Scope] = {}
        self._counts = Counter[str]()
        self._folders: dict[str, set[str]] = {}  # target id -> folders that are not merged yet

    def add(self, events: Iterable[ObjectEvent]) -> bool:
        """Match events. Returns whether each that passes the filter concerns a target."""
        counts, before = self._counts, self._counts["unmatched"]
        for event in events:
            if not wanted(self._filter, event):
                counts["filtered"] += 1
            elif self._matches(event):
                counts["matched"] += 1
            else:
                counts["unmatched"] += 1
        return counts["unmatched"] == before

    def join(self, other: Matches) -> bool:
        """Add the result of another matcher, which may have known more shares. Returns the same as add()."""
        self._counts.update(matched=other.matched, unmatched=other.unmatched, filtered=other.filtered)
        ids = {share.id for some in self._shares.values() for share in some}
        for name in ids & other.found.keys():
            self._merge(name, other.found[name])
        return not other.unmatched and other.found.keys() <= ids

    def matches(self) -> Matches:
        """The result for all events so far."""
        for name, some in self._folders.items():
            self._merge(name, *map(folders.of_folder, some))
        self._folders.clear()
        return Matches(dict(self._found), **self._counts)

    def _matches(self, event: ObjectEvent) -> bool:
        found = False
        for share in self._shares.get(event.bucket, ()):
            if not event.key or (self._whole and event.key.startswith(share.prefix)):
                self._found[share.id] = EVERYTHING
            elif event.key.startswith(share.prefix):
                folder = event.key[len(share.prefix) :].rpartition("/")[0]
                self._folders.setdefault(share.id, set()).add(folder)
            else:
                continue
            found = True
        return found

    def _merge(self, name: str, *scopes: Scope) -> None:
        before = self._found.get(name, EMPTY)
        self._found[name] = folders.merge(before, *scopes)


def wanted(filter_: Filter, event: ObjectEvent) -> bool:
    """Whether spec.filter lets the event pass. One without a key passes: it may be about any object."""
    if event.kind not in filter_.events:
        return False
    if filter_.buckets and event.bucket not in filter_.buckets:
        return False
    if any(fnmatchcase(event.principal, pattern) for pattern in filter_.ignore_principals):
        return False
    return not event.key or _key_passes(filter_, event.key)


def _key_passes(filter_: Filter, key: str) -> bool:
    return (
        (not filter_.prefixes or key.startswith(filter_.prefixes))
        and not key.startswith(filter_.exclude_prefixes)
        and (not filter_.suffixes or key.endswith(filter_.suffixes))
        and not key.endswith(filter_.exclude_suffixes)
    )


def of_buckets(names: Iterable[str], *, ready: bool = True) -> tuple[Share, ...]:
    """Whole buckets as targets of their own, each bounding its own concurrency."""
    return tuple(Share(name, "", name, group=name, ready=ready) for name in sorted(set(names)))


def by_bucket(shares: Iterable[Share]) -> dict[str, list[Share]]:
    """Shares by the bucket that they serve."""
    found: dict[str, list[Share]] = {}
    for share in shares:
        found.setdefault(share.bucket, []).append(share)
    return found
