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
from caretaker.api.conditions import LONGEST, NAMED, cut
from caretaker.api.hashing import h10
from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import RequestsStatus
from caretaker.api.times import format_micros, format_time, normalise_time
from caretaker.s3refresh import debounce, folders
from caretaker.s3refresh.debounce import TargetState
from caretaker.s3refresh.folders import EMPTY, EVERYTHING, Scope
from caretaker.s3refresh.match import KEYS, Share

KNOWN: Final = (names.REFRESH_AT, names.REFRESH_FOLDERS)
MAX_FOLDERS: Final = 50  # in one annotation
S3: Final = "s3://"
AHEAD: Final = 86400.0  # seconds that a time may lie ahead: a later one would outdo all that follow it
_FOLDERS: Final = f"metadata.annotations[{names.REFRESH_FOLDERS}]"


class Place(msgspec.Struct, frozen=True):
    """A folder of a bucket, without slashes around it; "" is the root, and any bucket."""

    bucket: str
    folder: str


class RefreshRequests(msgspec.Struct, frozen=True):
    """The requests that no pass has taken yet.

    at, folders_at, taken  those of status.requests once they are taken; empty = nothing new of the kind
    """

    everything: bool = False
    places: tuple[Place, ...] = ()
    at: str = ""
    folders_at: str = ""
    taken: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is a new request."""
        return self.everything or bool(self.places)

    def marks(self, before: RequestsStatus | None) -> RequestsStatus:
        """status.requests once they are taken."""
        before = before or RequestsStatus()
        return RequestsStatus(
            refresh_at=self.at or before.refresh_at,
            folders_at=self.folders_at or before.folders_at,
            taken=self.taken or before.taken,
        )


def read_requests(meta: WireMeta, before: RequestsStatus | None, now: float) -> RefreshRequests:
    """The new requests in the annotations. `before`: status.requests.

    refresh-at is new if it is later than the one before. An entry of refresh-folders that was not taken is
    new if it is no earlier than all that were: `date` stamps two of one second alike. One that asks for
    nothing, though it was not taken, is an error.
    """
    marks, known, errors = meta.annotations or {}, before or RequestsStatus(), list[str]()
    text, last = marks.get(names.REFRESH_AT, ""), known.refresh_at or ""
    at = normalise_time(text)
    if text and (fault := _untimely(text, at, last, now)):
        errors.append(f"metadata.annotations[{names.REFRESH_AT}]: {fault}")
        at = ""
    new: dict[Place, str] = {}
    taken, faults = list[str](), list[str]()
    for place, (folder, raw, when) in _folders(marks.get(names.REFRESH_FOLDERS, ""), errors, faults).items():
        mark = h10(place.bucket, place.folder, when)
        if mark not in known.taken:
            if fault := _untimely(raw, when, known.folders_at or "", now):
                faults.append(f"{_FOLDERS}[{cut(folder)!r}]: {fault}")
                continue
            new[place] = when
        taken.append(mark)
    errors += faults[:NAMED]
    if len(faults) > NAMED:
        errors.append(f"{_FOLDERS}: {len(faults) - NAMED} more ask for nothing")
    return RefreshRequests(
        everything=at > last,
        places=tuple(new),
        at=at if at > last else "",
        folders_at=max(new.values(), default=""),
        taken=tuple(taken) if new else (),
        errors=(*errors, *_slips(marks)),
    )


def _untimely(text: str, when: str, last: str, now: float) -> str:
    """Why a time asks for nothing, though it was not taken; "" if that is not so."""
    if not when:
        return f"{cut(text)!r} is not an RFC 3339 time such as 2026-01-31T12:00:00Z"
    if when < last:
        return f"{cut(text)!r} is earlier than {last}, the last time that was taken: set a later one"
    ahead = when > format_micros(now + AHEAD)
    return f"{cut(text)!r} lies more than a day ahead: set the time of now" if ahead else ""


def recorded(
    before: RequestsStatus | None, taken: RefreshRequests | None, now: float, *, busy: bool
) -> RequestsStatus | None:
    """status.requests after a pass that has `taken` these: done unless a part of a request waits or runs,
    which is `busy`."""
    found = before if taken is None else taken.marks(before)
    if found is None or found.done_at or busy:
        return found
    return replace(found, done_at=format_time(now))


def _folders(text: str, errors: list[str], faults: list[str]) -> dict[Place, tuple[str, str, str]]:
    """Place -> (folder, time, normalised time), each as late as it is asked for. Faults of the whole are
    added to `errors`, those of single entries to `faults`."""
    if not text:
        return {}
    try:
        wanted = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        errors.append(f"{_FOLDERS}: want {{folder: time}}: {error}")
        return {}
    if len(wanted) > MAX_FOLDERS:
        errors.append(f"{_FOLDERS}: {too_many(len(wanted))}, or set {names.REFRESH_AT} for everything")
        return {}
    found: dict[Place, tuple[str, str, str]] = {}
    for folder, raw in wanted.items():
        try:
            place, when = place_of(folder), normalise_time(raw)
        except ValueError as error:
            faults.append(f"{_FOLDERS}: {error}")
            continue
        if place not in found or found[place][2] < when:
            found[place] = folder, raw, when
    return found


def too_many(count: int) -> str:
    """Why so many folders are refused."""
    return f"{count} folders, and at most {MAX_FOLDERS} at a time: name the folders above them"


def place_of(text: str) -> Place:
    """`2026/11`, of every bucket, or `s3://media/2026/11`. ValueError with the fault and a fix."""
    if not text:
        raise ValueError("'' names no folder: write / for everything")
    bucket, path = "", text
    if text.startswith(S3):
        bucket, _, path = text[len(S3) :].partition("/")
        if not bucket:
            raise ValueError(f"{cut(text)!r} names no bucket: write {S3}BUCKET/FOLDER")
    path = path.removeprefix("/").removesuffix("/")
    if len(path) > folders.MAX_LENGTH:
        raise ValueError(
            f"{cut(text)!r} has {len(path)} characters, and a folder has at most {folders.MAX_LENGTH}: name "
            "one above it"
        )
    if path and (odd := {"", ".", ".."}.intersection(path.split("/"))):
        raise ValueError(
            f"{cut(text)!r} has the part {min(odd)!r}, below which a gateway shows nothing: name the folder "
            "above it"
        )
    return Place(bucket, path)


def _slips(marks: Iterable[str]) -> Iterator[str]:
    """Annotations under our own prefix that look like ours: a typing error would go unnoticed."""
    unknown = (key for key in marks if key.startswith(f"{names.GROUP}/") and key not in KNOWN)
    for key in heapq.nsmallest(NAMED, unknown):
        if close := difflib.get_close_matches(key[:LONGEST], KNOWN, n=1, cutoff=0.9):
            yield f"metadata.annotations[{cut(key)}]: means nothing; did you mean {close[0]}?"


# ---------------------------------------------------------------- targets of requests


Location = tuple[str, str]  # bucket, prefix


def scopes_of(
    requests: RefreshRequests,
    locations: Mapping[str, Location | None],
    *,
    whole: bool,
    by_key: bool = False,
) -> dict[str, Scope]:
    """Target -> the part of it that the requests concern. `locations`: None where not known; `whole`:
    targets are refreshed whole, never by folders; `by_key`: as of Share. Targets that have the same folders
    share the work."""
    made: dict[tuple[str, ...], Scope] = {(): EMPTY}
    found = {}
    for name, location in locations.items():
        names = ("",) if requests.everything else _names(requests.places, location)
        if names not in made:
            everything = whole or "" in names
            parts = [Scope(trees=frozenset(names))] if by_key else map(folders.of_tree, names)
            made[names] = EVERYTHING if everything else folders.merge(*parts)
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
        name, _, prefix = target.location.removeprefix(KEYS).partition("/")
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
