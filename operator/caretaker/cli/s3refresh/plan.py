"""caretaker plan of an S3AggregatedRefresh: its queues and targets, and its next calls.

The resource is submitted as a dry run, AWS is queried with the user's credentials, and the operator's planner
makes the forecast. No message is received or deleted, and no target is refreshed.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from caretaker.api.s3refresh import Filter, Spec
from caretaker.api.times import format_time
from caretaker.cli.common import Session
from caretaker.cli.manifest import Document
from caretaker.cli.plan import ASKED_AS_YOU, Planned, PlanOptions, Proposal, noted, propose, refused
from caretaker.cli.s3refresh.aws_state import AwsState, QueueState, faults_of, observe
from caretaker.cli.s3refresh.status import cost_lines, listed, names_in, next_json, when, why
from caretaker.cli.text import age, cell, number, one_line, section, table
from caretaker.s3refresh import match
from caretaker.s3refresh.debounce import DirtyScope
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import ROOT, Request, Scope
from caretaker.s3refresh.forecast import Outlook, outlooks
from caretaker.s3refresh.resource import ParsedRefresh, RawRefresh, options_of, read
from caretaker.s3refresh.snapshot import Discovery
from caretaker.s3refresh.target_types import target_type_of
from caretaker.s3refresh.targets import registry

RefreshProposal = Proposal[RawRefresh]


class Sample(msgspec.Struct, frozen=True):
    """An object and the effect of its event.

    left_out  fields of spec.filter that keep it out
    scopes    target id -> the folders that become stale
    """

    text: str
    left_out: tuple[str, ...]
    scopes: Mapping[str, Scope]


class RefreshForecast(msgspec.Struct, frozen=True):
    """The forecast of one resource."""

    proposal: RefreshProposal
    read: ParsedRefresh
    aws_state: AwsState
    outlooks: Sequence[Outlook]
    samples: Sequence[Sample]
    now: float

    @property
    def notes(self) -> list[str]:
        """Checks that were not possible, and the credentials that were used."""
        return [*self.proposal.notes, *([ASKED_AS_YOU.format("AWS")] if self.aws_state.unanswered else [])]


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The forecast for each target."""
    proposal = await propose(session, document, RawRefresh)
    resource, refusals = None, proposal.refusals
    if not refusals:
        resource = read(proposal.raw, registry().spec)
        refusals = [f"{document.place('spec')}: {one_line(resource.invalid)}"]
    if resource is None or resource.spec is None:
        return refused(_name(proposal), _head(proposal), refusals, proposal.notes)
    spec = resource.spec
    aws_state = await observe(spec, session.client, resource.meta, resource.status.cost)
    recorded = {one.id: one.location for one in resource.status.targets}
    aws_state = replace(aws_state, shares=aws_state.shares.located(recorded))
    resource = replace(resource, options=options_of(spec, cost=aws_state.cost))
    now = time.time()
    forecast = RefreshForecast(
        proposal=proposal,
        read=resource,
        aws_state=aws_state,
        outlooks=outlooks(resource, now, aws_state.shares),
        samples=samples_of(spec, aws_state.shares, options.samples),
        now=now,
    )
    faults = [
        f"{document.place(field)}: {one_line(f'{field}: {said}')}" for field, said in faults_of(aws_state)
    ]
    return Planned(as_text(forecast, wide=options.wide), as_json(forecast, faults), faults)


def samples_of(spec: Spec, shares: Discovery, objects: Iterable[tuple[str, str]]) -> list[Sample]:
    """Each object with the effect of its event."""
    whole, by_bucket = target_type_of(spec).whole, match.by_bucket(shares.shares)
    # Any kind of event that counts: only the key matters.
    kind = spec.filter.events[0] if spec.filter.events else "ObjectCreated"
    found = []
    for bucket, key in objects:
        event = ObjectEvent(kind, bucket, key)
        left_out = () if match.wanted(spec.filter, event) else tuple(_against(spec.filter, event))
        matcher = match.EventMatcher(spec.filter, by_bucket, whole=whole)
        matcher.add([event])
        found.append(Sample(f"s3://{bucket}/{key}", left_out, matcher.matches().found))
    return found


def _against(given: Filter, event: ObjectEvent) -> Iterator[str]:
    """The fields of the filter, each tried alone."""
    every = Filter()
    for field in msgspec.structs.fields(Filter):
        alone = replace(every, **{field.name: getattr(given, field.name)})
        if not match.wanted(alone, event):
            yield field.encode_name


# -------------------------------------------------------------------- JSON


def _head(proposal: RefreshProposal) -> dict[str, Any]:
    meta = proposal.raw.metadata
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "exists": proposal.before is not None,
        "specChanges": _changes(proposal),
    }


def as_json(forecast: RefreshForecast, faults: list[str]) -> dict[str, Any]:
    """For programs."""
    return {
        **_head(forecast.proposal),
        "faults": faults,
        "notes": forecast.notes,
        "queues": [_queue_json(queue) for queue in forecast.aws_state.queues],
        "cost": forecast.aws_state.cost,
        "complete": forecast.aws_state.shares.complete,
        "targets": [_target_json(one) for one in forecast.outlooks],
        "samples": [_sample_json(sample) for sample in forecast.samples],
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
    share, dirty = one.share, one.target.dirty
    return {
        "id": one.target.id,
        "found": share is not None,
        "usable": share is not None and share.ready,
        "arn": share.arn if share else None,
        "bucket": share.bucket if share else None,
        "accessPoint": (share.access_point or None) if share else None,
        "prefix": share.prefix if share else None,
        "gateway": share.gateway if share else None,
        "region": share.region if share else None,
        "phase": one.phase,
        "dirty": None if dirty is None else {"since": format_time(dirty.since), **_scope_json(dirty.waiting)},
        "next": next_json(one.next),
    }


def _sample_json(sample: Sample) -> dict[str, Any]:
    targets = [{"id": name, **_scope_json(scope)} for name, scope in sorted(sample.scopes.items())]
    return {"object": sample.text, "leftOutBy": list(sample.left_out), "targets": targets}


def _scope_json(scope: Scope) -> dict[str, Any]:
    return {"all": scope.all, "folders": sorted(scope.folders), "trees": sorted(scope.trees)}


def _changes(proposal: RefreshProposal) -> bool:
    before = proposal.before
    return before is not None and msgspec.json.decode(before.spec) != msgspec.json.decode(proposal.raw.spec)


# -------------------------------------------------------------------- text


def as_text(forecast: RefreshForecast, *, wide: bool) -> list[str]:
    """For people: queues, targets, next calls, samples."""
    shares = [_share(one) for one in forecast.outlooks]
    calls = [
        (
            one.target.id,
            _dirty(one.target.dirty),
            _call(one.next.request, wide=wide),
            when(one.next, forecast.now),
            why(one.next, forecast.now, wide=wide),
        )
        for one in forecast.outlooks
    ]
    samples = [line for sample in forecast.samples for line in _sample(forecast, sample)]
    return [
        f"{_name(forecast.proposal)}: {_kind_of_change(forecast.proposal)}",
        *(f"  {_queue(queue)}" for queue in forecast.aws_state.queues),
        f"  {_found(forecast.aws_state.shares)}",
        *(f"  {line}" for line in _access_points(forecast.aws_state.shares)),
        *(f"  {line}" for line in _cost(forecast)),
        *noted(forecast.notes),
        *section("TARGET  BUCKET  PREFIX  GATEWAY  REGION  USABLE", shares),
        *section("TARGET  DIRTY  NEXT-CALL  WHEN  WHY", calls),
        *(["", *samples] if samples else []),
    ]


def _name(proposal: RefreshProposal) -> str:
    meta = proposal.raw.metadata
    return f"S3AggregatedRefresh {meta.namespace}/{meta.name}"


def _kind_of_change(proposal: RefreshProposal) -> str:
    if proposal.before is None:
        return "new"
    return f"exists, its spec {'changes' if _changes(proposal) else 'does not change'}"


def _queue(queue: QueueState) -> str:
    view = queue.view
    if view.problem:
        return f"queue {queue.url}: cannot be looked at"
    dead = "unknown" if view.dead_letters is None else str(view.dead_letters)
    fits = ", and will not do" if queue.fault else ""
    return (
        f"queue {queue.url}: {view.visible} visible, {view.in_flight} in flight, dead letters: {dead}, "
        f"kept for {age(view.retention)}{fits}"
    )


def _found(shares: Discovery) -> str:
    usable = sum(share.ready for share in shares.shares)
    count = f"{number(len(shares.shares), 'target')} found, {usable} usable"
    return count if shares.complete else f"{count}; there may be more: not everything could be asked"


def _access_points(shares: Discovery) -> list[str]:
    """The bucket of each, as S3 names it."""
    found = {share.access_point: share.bucket for share in shares.shares if share.access_point}
    return [one_line(f"access point {point}: bucket {bucket}") for point, bucket in sorted(found.items())]


def _cost(forecast: RefreshForecast) -> list[str]:
    cost = forecast.aws_state.cost
    unknown = [one for one in (cost.buckets if cost is not None else ()) if one.objects is None]
    lines = [f"objects of {one.bucket}: not known: {one_line(one.problem)}" for one in unknown]
    return [*cost_lines(cost), *lines]


def _share(one: Outlook) -> list[str]:
    share = one.share
    if share is None:
        return [one.target.id, "-", "-", "-", "-", "not found"]
    place = [share.bucket, *map(cell, (share.prefix, share.gateway.rpartition("/")[2], share.region))]
    return [share.id, *place, "yes" if share.ready else "not AVAILABLE"]


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
    return listed([f"{name}/..." if request.recursive else name for name in request.folders], wide=wide)


def _sample(forecast: RefreshForecast, sample: Sample) -> list[str]:
    shown = one_line(sample.text)
    if sample.left_out:
        fields = ", ".join(f"spec.filter.{field}" for field in sample.left_out)
        return [f"{shown}: left out by {fields}"]
    if not sample.scopes:
        more = "" if forecast.aws_state.shares.complete else " that was found; not everything could be asked"
        return [f"{shown}: nothing, since it is in no target{more}"]
    rows = [[name, listed(names_in(scope), wide=True)] for name, scope in sorted(sample.scopes.items())]
    return [f"{shown}:", *table(rows, indent="  ")]
