"""Requests to a DaemonTask by annotation: re-runs, resuming, the decision about a lost ledger.

Pure: the task -> AnnotationRequests. An unreadable annotation is named; the others apply. A task may have
thousands of annotations, and a plan reads them in one turn of the event loop: the first few errors are named.
"""

import difflib
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from caretaker.api import names
from caretaker.api.conditions import LONGEST, NAMED, cut
from caretaker.api.daemontask import DaemonTask
from caretaker.api.times import format_time, normalise_time, parse_time

RERUN: Final = "rerun"
ASSUME_DONE: Final = "assume-done"
AHEAD: Final = 86400.0  # seconds that the clock of whoever resumes may be ahead of this one
KNOWN: Final = (names.RERUN_AT, names.RERUN_NODES, names.RESUME_AT, names.LEDGER_DECISION)


class AnnotationRequests(msgspec.Struct, frozen=True):
    """The requests, read and checked."""

    rerun_at: str = ""
    rerun_nodes: Mapping[str, str] = {}
    resume_at: float = 0.0
    ledger: str = ""  # RERUN, ASSUME_DONE or nothing
    assumed: frozenset[str] = frozenset()  # nodes that ASSUME_DONE is about; empty: all
    refused: str = ""  # why `ledger` is empty though there is a decision: losses.py
    errors: tuple[str, ...] = ()


def read_requests(task: DaemonTask) -> AnnotationRequests:
    """The annotations that carry requests. An unreadable one is named; the others apply."""
    marks = task.metadata.annotations or {}
    errors = [
        f"metadata.annotations[{key}]: {cut(marks[key])!r} is not an RFC 3339 time such as "
        "2026-01-31T12:00:00Z"
        for key in (names.RERUN_AT, names.RESUME_AT)
        if marks.get(key) and parse_time(marks[key]) is None
    ]
    rerun_nodes: dict[str, str] = {}
    if text := marks.get(names.RERUN_NODES):
        try:
            wanted = msgspec.json.decode(text, type=dict[str, str])
            rerun_nodes = {name: at for name, raw in wanted.items() if (at := normalise_time(raw))}
            errors += _unreadable_times(wanted, wanted.keys() - rerun_nodes.keys())
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            errors.append(f"metadata.annotations[{names.RERUN_NODES}]: want {{node name: time}}: {error}")
    decision, assumed = _decision(marks.get(names.LEDGER_DECISION, ""))
    if decision not in ("", RERUN, ASSUME_DONE):
        errors.append(
            f"metadata.annotations[{names.LEDGER_DECISION}]: {cut(decision)!r} is neither {RERUN}, nor "
            f'{ASSUME_DONE}, nor "{ASSUME_DONE}: node-a,node-b"'
        )
        decision = ""
    errors += _unknown(marks)
    return AnnotationRequests(
        rerun_at=normalise_time(marks.get(names.RERUN_AT)),
        rerun_nodes=rerun_nodes,
        resume_at=parse_time(marks.get(names.RESUME_AT)) or 0.0,
        ledger=decision,
        assumed=assumed,
        errors=tuple(errors),
    )


def in_time(requests: AnnotationRequests, now: float) -> AnnotationRequests:
    """The requests, without a time of resuming that is days ahead: with a typing error in its year, every
    later failure would count as one that a person has seen."""
    if requests.resume_at <= now + AHEAD:
        return requests
    error = (
        f"metadata.annotations[{names.RESUME_AT}]: {format_time(requests.resume_at)} is more than a day "
        "ahead and is ignored; set the current time"
    )
    return msgspec.structs.replace(requests, resume_at=0.0, errors=(*requests.errors, error))


def _decision(text: str) -> tuple[str, frozenset[str]]:
    """(the decision, the nodes that it names); the text itself where it is none."""
    word, colon, listed = text.partition(":")
    found = frozenset(name.strip() for name in listed.split(",")) - {""}
    if not colon or (word.strip() == ASSUME_DONE and found):
        return word.strip(), found
    return text, frozenset()


def _unreadable_times(wanted: Mapping[str, str], unreadable: Collection[str]) -> Iterator[str]:
    at = f"metadata.annotations[{names.RERUN_NODES}]"
    for name in heapq.nsmallest(NAMED, unreadable):
        yield f"{at}[{cut(name)!r}]: {cut(wanted[name])!r} is not an RFC 3339 time"
    if len(unreadable) > NAMED:
        yield f"{at}: {len(unreadable) - NAMED} more are not RFC 3339 times"


def _unknown(marks: Iterable[str]) -> Iterator[str]:
    """Unknown annotations under our own prefix: a typing error would go unnoticed."""
    unknown = [key for key in marks if key.startswith(f"{names.GROUP}/") and key not in KNOWN]
    for key in heapq.nsmallest(NAMED, unknown):
        close = difflib.get_close_matches(key[:LONGEST], KNOWN, n=1, cutoff=0.8)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(KNOWN)}"
        yield f"metadata.annotations[{cut(key)}]: means nothing; {hint}"
    if len(unknown) > NAMED:
        yield f"metadata.annotations: {len(unknown) - NAMED} more under {names.GROUP}/ mean nothing"
