"""Requests to an S3AggregatedRefresh by annotation: a refresh now, of everything or of some folders.

Pure: metadata -> RefreshRequests, and the targets that they concern. An unreadable annotation is named; the
others apply. Whether a request is new follows from status.requests, which is written together with the
targets that it makes dirty: so a request is taken once, and never lost.
"""

import difflib
import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from caretaker.api import names
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import RequestsStatus
from caretaker.api.times import format_time, normalise_time
from caretaker.s3refresh import debounce, folders
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.folders import EMPTY, EVERYTHING, Scope
from caretaker.s3refresh.match import Share

KNOWN: Final = (names.REFRESH_AT, names.REFRESH_FOLDERS)
MAX_FOLDERS: Final = 50  # in one annotation
NAMED: Final = 10  # errors of a kind that are named
LONGEST: Final = 100  # characters of a key, name or value in an error
S3: Final = "s3://"


class Place(msgspec.Struct, frozen=True):
    """A folder of a bucket, without slashes around it; "" is the root, and any bucket."""

    bucket: str
    folder: str


class RefreshRequests(msgspec.Struct, frozen=True):
    """The requests that no pass has taken yet.

    at, folders_at  the marks of status.requests once they are taken; "" = no annotation of the kind
    """

    everything: bool = False
    places: tuple[Place, ...] = ()
    at: str = ""
    folders_at: str = ""
    errors: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is a new request."""
        return self.everything or bool(self.places)

    def marks(self, before: RequestsStatus | None) -> RequestsStatus:
        """status.requests once they are taken."""
        before = before or RequestsStatus()
        return RequestsStatus(self.at or before.refresh_at, self.folders_at or before.folders_at)


def read_requests(meta: WireMeta, before: RequestsStatus | None) -> RefreshRequests:
    """The new requests in the annotations. `before`: status.requests.

    refresh-at is new if it differs from the one before. Of refresh-folders those are new that are later than
    all before; if none is as late, the clock of a person is slow or the annotation was put back, and all of
    them are: a refresh too many, never one too few.
    """
    marks, taken = meta.annotations or {}, before or RequestsStatus()
    errors: list[str] = []
    text, at = marks.get(names.REFRESH_AT, ""), normalise_time(marks.get(names.REFRESH_AT))
    if text and not at:
        errors.append(
            f"metadata.annotations[{names.REFRESH_AT}]: {_cut(text)!r} is not an RFC 3339 time such as "
            "2026-01-31T12:00:00Z"
        )
    asked = _folders(marks.get(names.REFRESH_FOLDERS, ""), errors)
    newest, known = max(asked.values(), default=""), taken.folders_at or ""
    after = known if newest >= known else ""
    errors += _slips(marks)
    return RefreshRequests(
        everything=bool(at) and at != taken.refresh_at,
        places=tuple(place for place, when in asked.items() if when > after),
        at=at,
        folders_at=newest,
        errors=tuple(errors),
    )


def recorded(
    before: RequestsStatus | None, taken: RefreshRequests | None, targets: Iterable[TargetState], now: float
) -> RequestsStatus | None:
    """status.requests after a pass that has `taken` these: done once no part of a request waits or runs."""
    found = before if taken is None else taken.marks(before)
    if found is None or found.done_at or any(target.requested for target in targets):
        return found
    return replace(found, done_at=format_time(now))


def _folders(text: str, errors: list[str]) -> dict[Place, str]:
    """Place -> time, of the entries that can be read. The faults of the others are added to `errors`."""
    key = f"metadata.annotations[{names.REFRESH_FOLDERS}]"
    if not text:
        return {}
    try:
        wanted = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        errors.append(f"{key}: want {{folder: time}}: {error}")
        return {}
    if len(wanted) > MAX_FOLDERS:
        errors.append(f"{key}: {too_many(len(wanted))}, or set {names.REFRESH_AT} for everything")
        return {}
    found: dict[Place, str] = {}
    faults: list[str] = []
    for folder, raw in wanted.items():
        try:
            place = place_of(folder)
        except ValueError as error:
            faults.append(f"{key}: {error}")
            continue
        if when := normalise_time(raw):
            found[place] = max(when, found.get(place, ""))
        else:
            faults.append(f"{key}.{_cut(folder)}: {_cut(raw)!r} is not an RFC 3339 time")
    errors += faults[:NAMED]
    if len(faults) > NAMED:
        errors.append(f"{key}: {len(faults) - NAMED} more cannot be read")
    return found


def too_many(count: int) -> str:
    """Why so many folders are refused."""
    return f"{count} folders, and at most {MAX_FOLDERS} at a time: name the folders above them"


def place_of(text: str) -> Place:
    """`2026/11`, of every bucket, or `s3://media/2026/11`. ValueError with the fault and a fix."""
    bucket, path = "", text
    if text.startswith(S3):
        bucket, _, path = text[len(S3) :].partition("/")
        if not bucket:
            raise ValueError(f"{_cut(text)!r} names no bucket: write {S3}BUCKET/FOLDER")
    path = path.removeprefix("/").removesuffix("/")
    if len(path) > folders.MAX_LENGTH:
        raise ValueError(
            f"{_cut(text)!r} has {len(path)} characters, and a folder has at most {folders.MAX_LENGTH}: name "
            "one above it"
        )
    if path and (odd := {"", ".", ".."}.intersection(path.split("/"))):
        raise ValueError(
            f"{_cut(text)!r} has the part {min(odd)!r}, below which a gateway shows nothing: name the folder "
            "above it"
        )
    return Place(bucket, path)


def _slips(marks: Iterable[str]) -> Iterator[str]:
    """Annotations under our own prefix that look like ours: a typing error would go unnoticed."""
    unknown = (key for key in marks if key.startswith(f"{names.GROUP}/") and key not in KNOWN)
    for key in heapq.nsmallest(NAMED, unknown):
        if close := difflib.get_close_matches(key[:LONGEST], KNOWN, n=1, cutoff=0.9):
            yield f"metadata.annotations[{_cut(key)}]: means nothing; did you mean {close[0]}?"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


# ---------------------------------------------------------------- what they concern


Location = tuple[str, str]  # bucket, prefix


def scopes_of(
    requests: RefreshRequests, locations: Mapping[str, Location | None], *, whole: bool
) -> dict[str, Scope]:
    """Target -> the part of it that the requests concern. `locations`: None where not known; `whole`:
    targets are refreshed whole, never by folders. Targets that have the same folders share the work."""
    made: dict[tuple[str, ...], Scope] = {(): EMPTY}
    found = {}
    for name, location in locations.items():
        names = ("",) if requests.everything else _names(requests.places, location)
        if names not in made:
            everything = whole or "" in names
            made[names] = EVERYTHING if everything else folders.merge(*map(folders.of_tree, names))
        found[name] = made[names]
    return found


def _names(places: Iterable[Place], location: Location | None) -> tuple[str, ...]:
    """The folders as the target names them; "" = everything of it."""
    if location is None:
        return ("",)
    bucket, prefix = location  # empty, or it ends in a slash
    there = [place.folder for place in places if place.bucket in ("", bucket)]
    if any(prefix.startswith(f"{folder}/" if folder else "") for folder in there):
        return ("",)
    return tuple(folder[len(prefix) :] for folder in there if folder.startswith(prefix))


def location_of(target: TargetState, share: Share | None, *, bucket: bool) -> Location | None:
    """The bucket and prefix of a target; None if they are not known. `share`: of discovery. One that it has
    not found now has those on record; a target that is a `bucket` is named by its id."""
    if share is not None:
        return share.bucket, share.prefix
    if target.location:
        name, _, prefix = target.location.partition("/")
        return name, prefix
    return (target.id, "") if bucket else None


def ask(target: TargetState, scope: Scope, now: float) -> TargetState:
    """W1 of a person: the scope waits as any other, but for no quiet period, and is marked until its refresh
    has ended."""
    dirty = debounce.mark(target, scope, now).dirty
    if dirty is None or not scope:
        return target
    later = dirty.later
    if later is not None and folders.missing(scope, dirty.scope):
        later = replace(later, requested=True)
    return replace(target, dirty=replace(dirty, requested=True, later=later))
