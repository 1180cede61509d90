"""caretaker refresh: refreshes the targets of an S3AggregatedRefresh now, whole or some folders.

Writes one annotation of the resource and nothing else; the operator makes the calls.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from caretaker.api import names
from caretaker.api.durations import seconds
from caretaker.api.s3refresh import RequestsStatus
from caretaker.api.times import format_micros, normalise_time, stamp_after
from caretaker.cli.common import CommandError, Session, command, execute, get
from caretaker.cli.rerun import annotate
from caretaker.cli.s3refresh.status import VIEW, RefreshState, listed, names_in, when, why
from caretaker.cli.status import follow_to_the_end
from caretaker.cli.text import number, table
from caretaker.kube.watches import Watches, running
from caretaker.registry import S3_AGGREGATED_REFRESH as KIND
from caretaker.s3refresh import annotation_requests, resource
from caretaker.s3refresh.annotation_requests import (
    AHEAD,
    MAX_FOLDERS,
    Location,
    RefreshRequests,
    place_of,
    read_requests,
)
from caretaker.s3refresh.forecast import hold_of, outlooks
from caretaker.s3refresh.resource import ParsedRefresh, RawRefresh, read
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import registry


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = command(
        commands,
        "refresh",
        "refresh targets now, without an event",
        example="caretaker refresh s3aggregatedrefresh exports --wait\n"
        "caretaker refresh s3ar/exports -n ops --folder 2026/11 --folder s3://media/in",
        kinds=(KIND,),
    )
    parser.add_argument(
        "--folder",
        action="append",
        type=_folder,
        dest="folders",
        metavar="FOLDER",
        help="only this folder, with everything below it, repeatable: 2026/11, or s3://BUCKET/2026/11",
    )
    parser.add_argument("--wait", action="store_true", help="until it is refreshed")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="10m", help="with --wait, 1 if it is not refreshed by then"
    )
    return parser


def _folder(text: str) -> str:
    try:
        place_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(args: argparse.Namespace) -> int:
    """Prints the targets that will be refreshed; with --wait, 1 when that is not to be expected."""

    async def body(session: Session) -> int:
        raw = await get(session, KIND, args.name, RawRefresh)
        wanted: list[str] | None = None if args.folders is None else list(dict.fromkeys(args.folders))
        check_folders(read(raw, registry().spec), wanted)
        change = Change(wanted)
        changed = await annotate(session, raw, KIND.path(session.namespace, args.name), change)
        print("\n".join(describe(read(changed, registry().spec), time.time(), wanted)))
        if not args.wait:
            return 0
        try:
            async with asyncio.timeout(args.timeout):
                return await _follow(session, args.name, Asked(changed.metadata.uid, change.stamp, wanted))
        except TimeoutError:
            raise CommandError(
                "not done yet, and not given up: caretaker status shows how far it is"
            ) from None

    return execute(args, body)


class Change:
    """The annotation to write. The time, `stamp`, is that of the last try: the operator and others may have
    written later ones meanwhile."""

    def __init__(self, wanted: list[str] | None) -> None:
        self._wanted = wanted
        self.stamp = ""

    def __call__(self, current: RawRefresh) -> dict[str, str]:
        before, now = read(current, registry().spec), time.time()
        self.stamp = new_stamp(before, now)
        if self._wanted is None:
            return {names.REFRESH_AT: self.stamp}
        return {names.REFRESH_FOLDERS: merged(before, dict.fromkeys(self._wanted, self.stamp), now)}


def check_folders(found: ParsedRefresh, wanted: list[str] | None) -> None:
    """CommandError naming each folder that no target has, and if there are too many."""
    if wanted is None:
        return
    if len(wanted) > MAX_FOLDERS:
        raise CommandError(f"{annotation_requests.too_many(len(wanted))}, or leave --folder out")
    places = _locations(found)
    there = ", ".join(sorted({f"s3://{one[0]}/{one[1]}" for one in places.values() if one is not None}))
    missing = [folder for folder in wanted if places and not _has(places, folder)]
    faults = [f"no target has the folder {one}; there are: {there}" for one in missing]
    if faults:
        raise CommandError("\n".join(faults))


def _locations(found: ParsedRefresh) -> dict[str, Location | None]:
    """Those on record, by target."""
    bucket = found.spec is not None and target_type_of(found.spec).of_buckets
    targets = resource.targets_of(found, 0.0)
    return {target.id: annotation_requests.location_of(target, None, bucket=bucket) for target in targets}


def _has(places: Mapping[str, Location | None], folder: str) -> bool:
    request = RefreshRequests(places=(place_of(folder),))
    return any(annotation_requests.scopes_of(request, places, whole=False).values())


def new_stamp(found: ParsedRefresh, now: float) -> str:
    """Later than the times of all earlier requests, even if another clock was ahead. CommandError if one is
    so far ahead that the operator would refuse a later time."""
    marks, taken = found.meta.annotations or {}, found.status.requests or RequestsStatus()
    earlier = [
        normalise_time(marks.get(names.REFRESH_AT)),
        *_requests(marks).values(),
        *(taken.refresh_at or "", taken.folders_at or ""),
    ]
    if (latest := max(earlier)) > format_micros(now + AHEAD):
        raise CommandError(
            f"the annotations or status.requests have the time {latest}, more than a day ahead: is this "
            "machine's clock right? If so, remove that time"
        )
    return stamp_after(now, earlier)


def _requests(marks: Mapping[str, str]) -> dict[str, str]:
    """Folder -> time of refresh-folders, as the operator reads it: invalid parts are ignored."""
    try:
        found = msgspec.json.decode(marks.get(names.REFRESH_FOLDERS) or "{}", type=dict[str, str])
    except (msgspec.ValidationError, msgspec.DecodeError):
        return {}
    return {folder: at for folder, raw in found.items() if (at := normalise_time(raw)) and _named(folder)}


def _named(folder: str) -> bool:
    try:
        place_of(folder)
    except ValueError:
        return False
    return True


def merged(before: ParsedRefresh, new: Mapping[str, str], now: float) -> str:
    """The new value of refresh-folders: requests of others that were not taken yet, and the new ones."""
    untaken = set(read_requests(before.meta, before.status.requests, now).places)
    marks = before.meta.annotations or {}
    every = {**{folder: at for folder, at in _requests(marks).items() if place_of(folder) in untaken}, **new}
    if len(every) > MAX_FOLDERS:
        waiting = len(every) - len(new)
        raise CommandError(
            f"{number(waiting, 'folder')} that others have asked for wait for the operator, and there are at "
            f"most {MAX_FOLDERS}: try again, or leave --folder out"
        )
    return msgspec.json.encode(every, order="sorted").decode()


def describe(found: ParsedRefresh, now: float, wanted: list[str] | None) -> list[str]:
    """The targets of this request that will be refreshed, and when."""
    head = f"S3AggregatedRefresh {found.meta.namespace}/{found.meta.name}"
    if held := hold_of(found):
        return [f"{head}: asked for, but nothing is started now: {held}"]
    mine = RefreshRequests(everything=wanted is None, places=tuple(map(place_of, wanted or ())))
    target_type = target_type_of(found.spec)
    scopes = annotation_requests.scopes_of(
        mine, _locations(found), whole=target_type.whole, by_key=target_type.by_key
    )
    targets = []
    for status in found.status.targets:
        target = annotation_requests.ask(resource.decode_target(status, now), scopes[status.id], now)
        targets.append(resource.encode_target(target, status.phase))
    if not targets:
        return [f"{head}: asked for; it begins once a target is found"]
    asked = replace(found, status=replace(found.status, targets=tuple(targets)))
    rows = []
    for one in outlooks(asked, now):
        dirty, coming = one.target.dirty, one.next
        if dirty is not None and scopes[one.target.id]:
            folders = listed(names_in(dirty.waiting), wide=False)
            rows.append([one.target.id, folders, when(coming, now), why(coming, now, wide=False)])
    text = f"{head}: {number(len(rows), 'target')} of {len(targets)} will be refreshed"
    return [text, *table(rows, indent="  ")]


class Asked(NamedTuple):
    """The request as the command wrote it."""

    uid: str
    stamp: str
    folders: list[str] | None


async def _follow(session: Session, name: str, asked: Asked) -> int:
    """0 once the request of this time is done; 1 if nothing is started."""
    watches = Watches(session.client)
    store = watches.add(KIND.path(session.namespace), RawRefresh)

    def read_state() -> RefreshState | None:
        found = store.get(session.namespace, name)
        return None if found is None else RefreshState.at(found.wire, time.time())

    view = VIEW._replace(ended=lambda state: ended(state, asked))
    async with running(watches):
        return await follow_to_the_end(watches, read_state, view, f"{KIND.kind} {name}", None)


def ended(state: RefreshState, asked: Asked) -> int | None:
    """The exit code once the request is done (0), or no refresh can start (1); None before. CommandError if
    it never will be done."""
    meta, taken = state.read.meta, state.read.status.requests or RequestsStatus()
    marks = meta.annotations or {}
    if meta.uid != asked.uid:
        raise CommandError(f"{meta.name} was deleted and made again meanwhile: look, and try again")
    if asked.folders is None:
        last, there = taken.refresh_at, normalise_time(marks.get(names.REFRESH_AT)) >= asked.stamp
    else:
        last, found = taken.folders_at, _requests(marks)
        there = all(found.get(folder, "") >= asked.stamp for folder in asked.folders)
    if (last or "") >= asked.stamp:
        if taken.done_at:
            return 0
    elif not there:
        raise CommandError("the annotation was removed or replaced before the operator took it: try again")
    return 1 if hold_of(state.read) else None
