"""The status after a pass, equal to the stored one if nothing changed, and its transitions that are Events.

Pure: (Snapshot, Plan) -> Status. Events follow from the status that stands and the one being written, so that
a restart repeats nothing. Never one per S3 event.
"""

from collections.abc import Iterator, Mapping

from caretaker.api import conditions as c
from caretaker.api import names
from caretaker.api.conditions import Event
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.s3refresh import RequestsStatus, Status, TargetStatus
from caretaker.api.times import format_time
from caretaker.s3refresh import annotation_requests, resource
from caretaker.s3refresh.conditions import conditions_of, queue_of
from caretaker.s3refresh.debounce import BUSY
from caretaker.s3refresh.snapshot import Plan, Snapshot

_FINE = {Reason.STARTING, Reason.FLUSHING, Reason.NOT_CHECKED, Reason.WAITING, Reason.REFRESHING}
_APART = (c.QUEUE_REACHABLE, c.TARGETS_RESOLVED)


def status_of(snapshot: Snapshot, plan: Plan) -> Status:
    """The status to write."""
    before, now, discovery = snapshot.read.status, snapshot.plan_input.now, snapshot.plan_input.discovery
    return Status(
        observed_generation=snapshot.read.meta.generation,
        conditions=c.merge(before.conditions, conditions_of(snapshot, plan), format_time(now)),
        queue=queue_of(snapshot),
        requests=before.requests
        if snapshot.read.spec is None
        else annotation_requests.recorded(
            before.requests,
            None if plan.requested is None else snapshot.plan_input.requests,
            now,
            busy=any(one.requested and not discovery.gone(one.id) for one in plan.targets),
        ),
        cost=snapshot.cost.status,
        # Without a spec there are no options, and nothing changes.
        targets=before.targets
        if snapshot.read.spec is None
        else tuple(resource.encode_target(target, plan.phases[target.id]) for target in plan.targets),
    )


def transitions(
    before: Status, after: Status, *, expired: bool = False, concerned: int | None = None
) -> list[Event]:
    """The Events between two statuses. `expired`: events may have been lost before they were received;
    `concerned`: targets that new requests concern."""
    message = (
        "the queue was not read for long, or by another resource, or its dead-letter queue grew, or the "
        "status could not be read: everything is refreshed"
    )
    lost = [Event("Warning", "EventsMayHaveExpired", message)] if expired else []
    events = [*lost, *_conditions(before, after), *_asked(before, after, concerned or 0)]
    old = {target.id: target for target in before.targets}
    for target in after.targets:
        events += _target(old, target)
    return events


def _asked(before: Status, after: Status, concerned: int) -> Iterator[Event]:
    """A request was taken."""
    was, now = before.requests or RequestsStatus(), after.requests
    if now is None:
        return
    kinds = []
    if now.refresh_at != was.refresh_at:
        kinds.append(f"everything ({names.REFRESH_AT} {now.refresh_at})")
    if now.folders_at != was.folders_at:
        kinds.append(f"folders ({names.REFRESH_FOLDERS} {now.folders_at})")
    if not kinds:
        return
    found = f"{concerned} target(s)" if concerned else "no target has it, so nothing is refreshed"
    message = f"{' and '.join(kinds)}: {found}"
    yield Event("Normal" if concerned else "Warning", "RefreshRequested", message)


def given_up(why: str) -> Event:
    """The resource is deleted without the refreshes that onDelete: Flush asks for."""
    message = f"the resource is deleted without a last refresh, and its dirty folders stay stale: {why}"
    return Event("Warning", "FlushGivenUp", message)


def _target(old: Mapping[str, TargetStatus], now: TargetStatus) -> Iterator[Event]:
    was = old.get(now.id, TargetStatus(id=now.id))
    before, last = was.last, now.last
    accepted = last.accepted_at if last is not None else None
    if last is not None and accepted and accepted != (before.accepted_at if before is not None else None):
        what = (
            "everything"
            if now.in_flight is not None and "/" in now.in_flight.folders and (now.in_flight.recursive)
            else f"{last.folders} folder(s)"
        )
        yield Event("Normal", "RefreshStarted", f"{now.id}: {what}")
    failure, earlier = now.failure, was.failure
    news = failure is not None and (earlier is None or earlier.code != failure.code)
    if failure is not None and news and failure.code not in BUSY:
        yield Event("Warning", "RefreshFailed", f"{now.id}: {failure.code}: {failure.message}")
    lost = last is not None and last.result == "Lost" and (before is None or before.result != "Lost")
    if lost:
        yield Event("Warning", Reason.COMPLETION_LOST, f"{now.id}: the end of its refresh was not heard of")


def _conditions(before: Status, after: Status) -> Iterator[Event]:
    for kind in (c.QUEUE_REACHABLE, c.TARGETS_RESOLVED, c.READY):
        was, now = c.find(before.conditions, kind), c.find(after.conditions, kind)
        if now is None or now.status != "False" or now.reason in _FINE:
            continue
        unchanged = was is not None and (was.status, was.reason) == (now.status, now.reason)
        reported = kind == c.READY and any(
            other.reason == now.reason for other in after.conditions if other.type in _APART
        )
        if not unchanged and not reported:
            yield Event("Warning", now.reason, now.message)
    malformed = c.find(after.conditions, c.MALFORMED_MESSAGES)
    if malformed is not None and c.find(before.conditions, c.MALFORMED_MESSAGES) is None:
        yield Event("Warning", c.MALFORMED_MESSAGES, malformed.message)
    was, refused = c.find(before.conditions, c.INVALID_REQUEST), c.find(after.conditions, c.INVALID_REQUEST)
    if refused is not None and (was is None or was.message != refused.message):
        yield Event("Warning", refused.reason, refused.message)
