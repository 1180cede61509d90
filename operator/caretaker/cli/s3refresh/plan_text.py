"""The forecast of an S3AggregatedRefresh as text and as JSON, for `caretaker plan`. Pure except for the check
of the terminal."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.times import format_time
from caretaker.cli.propose import Planned, Proposal
from caretaker.cli.s3refresh import cells, samples
from caretaker.cli.s3refresh.aws_state import AwsState, QueueState
from caretaker.cli.s3refresh.samples import Sample
from caretaker.cli.text import age, cut, number, one_line, table
from caretaker.s3refresh.debounce import DirtyScope
from caretaker.s3refresh.folders import ROOT, Request
from caretaker.s3refresh.forecast import Outlook
from caretaker.s3refresh.resource import RawRefresh, Read

_WHY: Final = 90  # characters, without -o wide
_CREDENTIALS_NOTE: Final = (
    "AWS was asked as you, with credentials of the standard chain (AWS_PROFILE, ...), and not as the "
    "operator: what is refused to you may be allowed to it"
)

RefreshProposal = Proposal[RawRefresh]


class RefreshForecast(msgspec.Struct, frozen=True):
    """The forecast of one resource."""

    proposal: RefreshProposal
    read: Read
    aws_state: AwsState
    outlooks: Sequence[Outlook]
    samples: Sequence[Sample]
    now: float

    @property
    def notes(self) -> list[str]:
        """Checks that were not possible, and the credentials that were used."""
        return [*self.proposal.notes, *([_CREDENTIALS_NOTE] if self.aws_state.unanswered else [])]


def refused(proposal: RefreshProposal, refusals: list[str]) -> Planned:
    """The output for a refused resource."""
    text = [f"{_name(proposal)}: refused", *(f"  note: {note}" for note in proposal.notes)]
    return Planned(text, _head(proposal, refusals, proposal.notes), refusals)


def _head(proposal: RefreshProposal, faults: list[str], notes: list[str]) -> dict[str, Any]:
    meta = proposal.raw.metadata
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "exists": proposal.before is not None,
        "specChanges": _changes(proposal),
        "faults": faults,
        "notes": notes,
    }


def as_json(forecast: RefreshForecast, faults: list[str]) -> dict[str, Any]:
    """For programs."""
    return {
        **_head(forecast.proposal, faults, forecast.notes),
        "queues": [_queue_json(queue) for queue in forecast.aws_state.queues],
        "complete": forecast.aws_state.shares.complete,
        "targets": [_target_json(one) for one in forecast.outlooks],
        "samples": [samples.as_json(sample) for sample in forecast.samples],
    }


def _queue_json(queue: QueueState) -> dict[str, Any]:
    view = queue.view
    known = view.checked and not view.problem
    return {
        "field": queue.field,
        "url": queue.url,
        "visible": view.visible if known else None,
        "inFlight": view.in_flight if known else None,
        "deadLetters": view.dead_letters,
        "retentionSeconds": view.retention if known else None,
        "problem": queue.problem,
        "fault": queue.fault,
    }


def _target_json(one: Outlook) -> dict[str, Any]:
    share = one.share
    return {
        "id": one.target.id,
        "found": share is not None,
        "usable": share is not None and share.ready,
        "arn": share.arn if share else None,
        "bucket": share.bucket if share else None,
        "prefix": share.prefix if share else None,
        "gateway": share.group if share else None,
        "region": share.region if share else None,
        "phase": one.phase,
        "dirty": _dirty_json(one.target.dirty),
        "next": cells.next_json(one.next),
    }


def _dirty_json(dirty: DirtyScope | None) -> dict[str, Any] | None:
    if dirty is None:
        return None
    scope = dirty.waiting
    return {
        "since": format_time(dirty.since),
        "all": scope.all,
        "folders": sorted(scope.folders),
        "trees": sorted(scope.trees),
    }


def _changes(proposal: RefreshProposal) -> bool:
    before = proposal.before
    return before is not None and msgspec.json.decode(before.spec) != msgspec.json.decode(proposal.raw.spec)


# -------------------------------------------------------------------- text


def as_text(forecast: RefreshForecast, *, wide: bool) -> list[str]:
    """For people: queues, targets, next calls, samples."""
    lines = [f"{_name(forecast.proposal)}: {_kind_of_change(forecast.proposal)}"]
    lines += [f"  {line}" for queue in forecast.aws_state.queues for line in _queue(queue)]
    lines.append(f"  {_found(forecast)}")
    lines += [f"  note: {note}" for note in forecast.notes]
    if forecast.outlooks:
        lines += ["", *_shares(forecast), "", *_calls(forecast, wide=wide)]
    if forecast.samples:
        lines += ["", *(line for sample in forecast.samples for line in _sample(forecast, sample))]
    return lines


def _name(proposal: RefreshProposal) -> str:
    meta = proposal.raw.metadata
    return f"S3AggregatedRefresh {meta.namespace}/{meta.name}"


def _kind_of_change(proposal: RefreshProposal) -> str:
    if proposal.before is None:
        return "new"
    return f"exists, its spec {'changes' if _changes(proposal) else 'does not change'}"


def _queue(queue: QueueState) -> Iterator[str]:
    view = queue.view
    if view.problem:
        yield f"queue {queue.url}: cannot be looked at"
        return
    dead = "none told" if view.dead_letters is None else str(view.dead_letters)
    fits = ", and will not do" if queue.fault else ""
    yield (
        f"queue {queue.url}: {view.visible} visible, {view.in_flight} in flight, dead letters: {dead}, "
        f"kept for {age(view.retention)}{fits}"
    )


def _found(forecast: RefreshForecast) -> str:
    shares = forecast.aws_state.shares
    usable = sum(share.ready for share in shares.shares)
    count = f"{number(len(shares.shares), 'target')} found, {usable} usable"
    return count if shares.complete else f"{count}; there may be more: not everything could be asked"


def _shares(forecast: RefreshForecast) -> list[str]:
    head = ["TARGET", "BUCKET", "PREFIX", "GATEWAY", "REGION", "USABLE"]
    return table([head, *(_share(one) for one in forecast.outlooks)])


def _share(one: Outlook) -> list[str]:
    share = one.share
    if share is None:
        return [one.target.id, "-", "-", "-", "-", "not found"]
    usable = "yes" if share.ready else "not AVAILABLE"
    place = [share.bucket, share.prefix or "-", share.group.rpartition("/")[2] or "-", share.region or "-"]
    return [share.id, *place, usable]


def _calls(forecast: RefreshForecast, *, wide: bool) -> list[str]:
    rows = []
    for one in forecast.outlooks:
        why = cells.why(one.next, forecast.now)
        rows.append(
            [
                one.target.id,
                _dirty(one.target.dirty),
                _call(one.next.request, wide=wide),
                cells.when(one.next, forecast.now),
                why if wide else cut(one_line(why), _WHY),
            ]
        )
    return table([["TARGET", "DIRTY", "NEXT-CALL", "WHEN", "WHY"], *rows])


def _dirty(dirty: DirtyScope | None) -> str:
    if dirty is None:
        return "-"
    scope = dirty.waiting
    return "everything" if scope.all else number(len(scope.folders) + len(scope.trees), "folder")


def _call(request: Request | None, *, wide: bool) -> str:
    if request is None:
        return "-"
    if request.recursive and ROOT in request.folders:
        return "everything"
    names = [f"{name}/..." if request.recursive else name for name in request.folders]
    return cells.listed(names, wide=wide)


def _sample(forecast: RefreshForecast, sample: Sample) -> Iterator[str]:
    shown = one_line(sample.text)
    if sample.left_out:
        fields = ", ".join(f"spec.filter.{field}" for field in sample.left_out)
        yield f"{shown}: left out by {fields}"
        return
    if not sample.scopes:
        more = "" if forecast.aws_state.shares.complete else " that was found; not everything could be asked"
        yield f"{shown}: nothing, since it is in no target{more}"
        return
    yield f"{shown}:"
    yield from table(
        [
            [name, cells.listed(cells.names_in(scope), wide=True)]
            for name, scope in sorted(sample.scopes.items())
        ],
        indent="  ",
    )
