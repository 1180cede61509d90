"""Which events count, which folders of which targets they make stale, and where a file share is.

Pure. A share is matched by its bucket and its prefix; several may serve one bucket, and all of them count.

Bucket and prefix of a file share come from its LocationARN (Storage Gateway API reference, NFSFileShareInfo):
a bucket, an access point's ARN or an access point's alias in place of a bucket, each with or without a prefix
and a trailing slash. The spec names the bucket of an access point, or S3 is asked for it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api.grants import glob
from caretaker.api.s3refresh import Filter
from caretaker.s3refresh import debounce, folders
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import EMPTY, EVERYTHING, ROOT, Scope

_ARN_FIELDS: Final = 6
KEYS: Final = "keys:"  # in a location, before a bucket whose objects are refreshed by key
STEP: Final = 100  # folders that are made in one step
# The name, or only its beginning, and a part that S3 has made.
_ALIAS: Final = re.compile(r"([a-z0-9-]+)-[a-z0-9]{20,}-s3alias")
# Parts of a request to S3: Amazon S3 user guide, "Access points naming rules".
_POINT: Final = re.compile(
    r"arn:(?P<partition>aws[a-z-]{0,20}):s3:(?P<region>[a-z]{2,8}(?:-[a-z]{1,12}){1,3}-[0-9]{1,2}):"
    r"(?P<account>[0-9]{12}):accesspoint[/:](?P<name>[a-z0-9][a-z0-9-]{1,48}[a-z0-9])"
)
_MULTI_REGION: Final = ".mrap"
# Makes `later` everything where all=True would make the closed part everything, too.
_WHOLE_LATER: Final = Scope(trees=frozenset((ROOT,)))


_Place = tuple[str, str]  # bucket, prefix


class Share(msgspec.Struct, frozen=True):
    """A place that can be refreshed. `group`, the gateway, bounds concurrency. `endpoint`: that has named the
    share and its gateway, from the spec; empty = AWS's own, or the operator's setting. `by_key`: objects are
    refreshed by their own names, so its scopes have keys in place of folders, without their ancestors.
    `recorded`: bucket and prefix are those of the record. `access_point`: its ARN, if S3 named its bucket."""

    id: str
    arn: str
    bucket: str
    prefix: str = ""
    group: str = ""
    region: str = ""
    ready: bool = True  # AVAILABLE
    endpoint: str = ""
    by_key: bool = False
    recorded: bool = False
    access_point: str = ""

    @property
    def gateway(self) -> str:
        """Without the endpoint, which group has in front."""
        return self.group.rpartition(" ")[2]

    @property
    def location(self) -> str:
        """Bucket and prefix as recorded in status; empty for a whole bucket, whose id names it. With scopes
        of keys another one: folders that wait, of another kind of target, are no keys."""
        if self.by_key:
            return f"{KEYS}{self.bucket}/{self.prefix}"
        return f"{self.bucket}/{self.prefix}" if self.arn or self.prefix else ""


class Matches(msgspec.Struct, frozen=True):
    """The result of matching events."""

    found: Mapping[str, Scope] = {}  # target id -> folders that the events make stale
    matched: int = 0  # events that concern a target
    unmatched: int = 0  # events that concern none
    filtered: int = 0  # events that spec.filter excludes


class EventMatcher:
    """Matches events to targets. `shares` by bucket; `whole`: the spec asks to refresh whole shares.

    Shares of one bucket and prefix, a place, have the same folders: these are made and merged once."""

    def __init__(
        self, filter_: Filter, shares: Mapping[str, Sequence[Share]], *, whole: bool = False
    ) -> None:
        self._filter = filter_
        self._whole = whole
        self._ids: dict[_Place, list[str]] = {}  # of the shares of a place
        # All shares of a resource are of one target.
        self._by_key = any(share.by_key for some in shares.values() for share in some)
        for bucket, some in shares.items():
            for share in some:
                self._ids.setdefault((bucket, share.prefix), []).append(share.id)
        self._places: dict[str, list[_Place]] = {}  # by bucket
        for place in self._ids:
            self._places.setdefault(place[0], []).append(place)
        self._found: dict[str, Scope] = {}  # by target
        self._counts = Counter[str]()
        self._folders: dict[_Place, set[str]] = {}  # that are not merged yet

    def add(self, events: Iterable[ObjectEvent]) -> frozenset[str] | None:
        """Match events. Returns the ids of the targets that they concern; None if one of those that pass the
        filter concerns no target."""
        counts, before = self._counts, self._counts["unmatched"]
        places: set[_Place] = set()
        for event in events:
            if not wanted(self._filter, event):
                counts["filtered"] += 1
            elif self._matches(event, places):
                counts["matched"] += 1
            else:
                counts["unmatched"] += 1
        return self._ids_of(places) if counts["unmatched"] == before else None

    def join(self, other: Matches) -> None:
        """Add the result of another matcher, which may have known more shares."""
        self._counts.update(matched=other.matched, unmatched=other.unmatched, filtered=other.filtered)
        for name in self.ids & other.found.keys():
            before, scope = self._found.get(name), other.found[name]
            self._found[name] = scope if before is None else folders.merge(before, scope)

    @property
    def ids(self) -> frozenset[str]:
        """Of all targets."""
        return self._ids_of(self._ids)

    def merging(self) -> Iterator[None]:
        """Merge the folders of the events so far, in steps of a few milliseconds. The caller has to exhaust
        it."""
        scope_of = folders.of_key if self._by_key else folders.of_folder
        while self._folders:
            place, some = self._folders.popitem()
            names, parts = tuple(some), list[Scope]()
            for at in range(0, len(names), STEP):
                parts.append(folders.union(*map(scope_of, names[at : at + STEP])))
                yield
            merged: dict[Scope, Scope] = {}  # by what was found before
            for name in self._ids[place]:
                before = self._found.get(name, EMPTY)
                if before not in merged:
                    merged[before] = folders.merge(before, *parts)
                self._found[name] = merged[before]
            yield

    def matches(self) -> Matches:
        """The result for all events so far."""
        for _ in self.merging():
            pass
        return Matches(dict(self._found), **self._counts)

    def _matches(self, event: ObjectEvent, concerned: set[_Place]) -> bool:
        """Whether the event concerns a target. Adds their places to `concerned`."""
        found = False
        for place in self._places.get(event.bucket, ()):
            prefix = place[1]
            if not event.key or (self._whole and event.key.startswith(prefix)):
                self._found.update(dict.fromkeys(self._ids[place], EVERYTHING))
            elif event.key.startswith(prefix):
                name = event.key[len(prefix) :]
                folder = name if self._by_key else name.rpartition("/")[0]
                self._folders.setdefault(place, set()).add(folder)
            else:
                continue
            concerned.add(place)
            found = True
        return found

    def _ids_of(self, places: Iterable[_Place]) -> frozenset[str]:
        return frozenset(name for place in places for name in self._ids[place])


def wanted(filter_: Filter, event: ObjectEvent) -> bool:
    """Whether spec.filter lets the event pass. One without a key passes: it may be about any object."""
    if event.kind not in filter_.events:
        return False
    if filter_.buckets and event.bucket not in filter_.buckets:
        return False
    if any(glob(pattern, event.principal) for pattern in filter_.ignore_principals):
        return False
    return not event.key or _key_passes(filter_, event.key)


def _key_passes(filter_: Filter, key: str) -> bool:
    return (
        (not filter_.prefixes or key.startswith(filter_.prefixes))
        and not key.startswith(filter_.exclude_prefixes)
        and (not filter_.suffixes or key.endswith(filter_.suffixes))
        and not key.endswith(filter_.exclude_suffixes)
    )


def of_buckets(
    names: Iterable[str], prefix: str = "", *, ready: bool = True, by_key: bool = False
) -> tuple[Share, ...]:
    """Buckets, or the prefix in each, as targets of their own, each bounding its own concurrency."""
    return tuple(
        Share(name, "", name, prefix, group=name, ready=ready, by_key=by_key) for name in sorted(set(names))
    )


def by_bucket(shares: Iterable[Share]) -> dict[str, list[Share]]:
    """Shares by the bucket that they serve."""
    found: dict[str, list[Share]] = {}
    for share in shares:
        found.setdefault(share.bucket, []).append(share)
    return found


# ---------------------------------------------------------------- where a share is


class UnresolvedError(ValueError):
    """The location is unknown; the message names the field to add to the spec."""


class AccessPoint(msgspec.Struct, frozen=True):
    """An access point that S3 can be asked for. `alias`: the location has that alone. The name is then its
    beginning and the account that of the share, so the answer has to have the alias."""

    partition: str
    region: str
    account: str
    name: str
    alias: str = ""

    @property
    def arn(self) -> str:
        """As policies name it."""
        return f"arn:{self.partition}:s3:{self.region}:{self.account}:accesspoint/{self.name}"

    def unknown(self, why: str) -> str:
        """Why its bucket is not known, and the field that names it."""
        shown = f"access point alias {self.alias}" if self.alias else f"access point {self.arn}"
        return point_unknown(shown, self.alias or self.name, why)


def point_unknown(what: str, name: str, why: str = "") -> str:
    """The message about an access point; `name` as accessPointBuckets has it."""
    before = f"{why}, or " if why else ""
    return (
        f"which bucket {what} belongs to is not known: {before}add `{name}: BUCKET` to "
        "spec.target.storageGateway.accessPointBuckets"
    )


def bucket_and_prefix(
    location: str, access_points: Mapping[str, str], share: str = ""
) -> tuple[str | AccessPoint, str]:
    """`arn:aws:s3:::bucket/team/` -> ("bucket", "team/"). Raises UnresolvedError.

    `access_points` maps an access point's ARN, name or alias to its bucket; of any other one S3 has to be
    asked. `share`: the ARN of the file share. The prefix is empty or ends in a slash.
    """
    fields = location.split(":", _ARN_FIELDS - 1)
    if len(fields) < _ARN_FIELDS or fields[2] != "s3" or fields[5].partition("/")[0] == "":
        raise UnresolvedError(f"LocationARN {location!r} is of no known form")
    resource = fields[5]
    if resource.startswith(("accesspoint/", "accesspoint:")):
        name, _, prefix = resource[len("accesspoint/") :].partition("/")
        arn = location[: len(location) - len(prefix)].rstrip("/")
        found = access_points.get(arn) or access_points.get(name) or _by_arn(arn, name)
    else:
        name, _, prefix = resource.partition("/")
        alias = _ALIAS.fullmatch(name)
        found = name if alias is None else access_points.get(name) or _by_alias(alias, share)
    prefix = prefix.strip("/")
    return found, f"{prefix}/" if prefix else ""


def _by_arn(arn: str, name: str) -> AccessPoint:
    if name.endswith(_MULTI_REGION):
        raise UnresolvedError(
            f"Multi-Region Access Point {name} is not supported: use an access point of one bucket"
        )
    point = _POINT.fullmatch(arn)
    if point is None:
        raise UnresolvedError(point_unknown(f"access point {name}", name))
    return AccessPoint(**point.groupdict())


def _by_alias(alias: re.Match[str], share: str) -> AccessPoint:
    fields = share.split(":")
    if len(fields) != _ARN_FIELDS:
        raise UnresolvedError(point_unknown(f"access point alias {alias[0]}", alias[0]))
    return AccessPoint(fields[1], fields[3], fields[4], alias[1], alias[0])


def joined(target: TargetState, scope: Scope) -> Scope:
    """The scope with what waits of the target. To mark the target with either has the same result."""
    before = target.dirty
    if before is None:
        return scope
    after = debounce.mark(target, scope, before.since).dirty or before
    if not before.closed:
        return after.scope
    if after.later is None:
        return scope
    return _WHOLE_LATER if after.later.scope.all else after.later.scope


def located(target: TargetState, location: str, now: float, *, known: bool = False) -> TargetState:
    """Records the location at which the target was found. After a move everything is dirty: the events of the
    new location were not matched to it. An empty one on record is unknown; with `known`, a whole bucket."""
    if target.location == location:
        return target
    moved = known or bool(target.location)
    found = replace(target, location=location)
    return debounce.mark(found, folders.EVERYTHING, now) if moved else found
