"""The conditions of an S3AggregatedRefresh; their meanings stand in docs/operations.md.

Pure: (Snapshot, Plan) -> conditions. Ready is False while events cannot become refreshes. A chain of small
rules decides it, and the first that applies wins. A dirty target never makes it False. The message about a
failed call to AWS has the field of the spec, AWS's words, and the remedy.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition, ConditionState
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.api.s3refresh import MAX_TARGETS, QueueStatus, Status
from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.s3refresh import costs
from caretaker.s3refresh.debounce import BUSY, TargetState
from caretaker.s3refresh.queue_view import MOST_IN_FLIGHT, NEAR_MOST_IN_FLIGHT, status_of, uncovered
from caretaker.s3refresh.resource import FINALIZER
from caretaker.s3refresh.snapshot import Plan, Rejection, Snapshot

ROLE: Final = "spec.aws.roleARN"
# Parts of remedies for the operator; a caller with another identity replaces them.
GIVE: Final = "give the operator credentials, or set spec.aws.roleARN or spec.aws.credentialsSecretRef"
IDENTITY: Final = "the identity that spec.aws names"


def describe(error: AwsError, field: str) -> str:
    """`spec.x: sqs:ReceiveMessage: AccessDenied: ...; remedy`, if there is one."""
    about = ROLE if error.service == "sts" else field
    return f"{about}: {with_remedy(error, str(error))}"


def with_remedy(error: AwsError, text: str) -> str:
    """The text, and the remedy if there is one."""
    remedy = error.remedy("spec.aws", GIVE, IDENTITY)
    return f"{text}; {remedy}" if remedy else text


Rule = Callable[[Snapshot, Plan], ConditionState | None]

# So many calls in a row have to fail before Ready says so: a gateway that is busy refuses now and then.
FAILURES_REPORTED: Final = 3
SHOWN: Final = 3
# Reasons of Ready=False that end only by an action of the user.
STALLING: Final = frozenset(
    (Reason.INVALID_SPEC, Reason.NOT_GRANTED, Reason.QUEUE_CONFLICT, Reason.QUEUE_UNSUITABLE)
)
# Those that leave the queue to other resources.
NO_QUEUE_CLAIM: Final = frozenset((Reason.INVALID_SPEC, Reason.NOT_GRANTED, Reason.QUEUE_CONFLICT))
_NO_ROOM: Final = (
    f"a resource keeps {MAX_TARGETS} targets, and those that are gone while dirty count: name fewer in "
    "spec.target, and the others in a resource with a queue of its own"
)
_HELD: Final = (
    f"it is being deleted, and its finalizer {FINALIZER} holds it until its last refreshes have succeeded"
)
_BUSY_REMEDY: Final = (
    "smaller calls follow; if it lasts, look for other callers, or raise spec.debounce.minInterval"
)
_QUEUE_REASONS: Final = {
    ErrorClass.NOT_FOUND.value: Reason.QUEUE_NOT_FOUND,
    ErrorClass.ACCESS_DENIED.value: Reason.ACCESS_DENIED,
    ErrorClass.NO_IDENTITY.value: Reason.NO_IDENTITY,
}


def conditions_of(snapshot: Snapshot, plan: Plan) -> Iterable[Condition]:
    """Every condition of the kind; those from Reconciling on only while True."""
    condition = partial(Condition, observed_generation=snapshot.read.meta.generation)
    status, reason, message = ready(snapshot, plan)
    yield condition(c.READY, status, reason, message)
    yield condition(c.QUEUE_REACHABLE, *_queue(snapshot))
    yield condition(c.TARGETS_RESOLVED, *_targets(snapshot, plan))
    yield condition(c.CAUGHT_UP, *_caught_up(snapshot, plan))
    if reason in STALLING:
        yield condition(c.STALLED, "True", reason, message)
    elif status != "True":
        yield condition(c.RECONCILING, "True", reason, message)
    spec, cost = snapshot.read.spec, snapshot.cost.status
    if spec is not None and spec.cost is not None and cost is not None:
        yield condition(c.COST_ESTIMATED, *costs.condition_of(spec.cost, cost))
    if snapshot.reception.malformed:
        text = f"messages of the last hour could not be read, the latest: {snapshot.reception.malformed}"
        yield condition(c.MALFORMED_MESSAGES, "True", Reason.UNREADABLE, text)
    if wrong := snapshot.plan_input.requests.errors:
        yield condition(c.INVALID_REQUEST, "True", Reason.INVALID_ANNOTATION, "; ".join(wrong))
    if snapshot.read.spec is not None and snapshot.read.spec.suspend:
        yield condition(c.SUSPENDED, "True", Reason.SUSPENDED, "spec.suspend is true: nothing is received")


def regained(status: Status, rejection: Rejection | None) -> bool:
    """Whether the queue is this resource's again, and by the stored condition was not until now: another one
    may have read it, and deleted events that had no target there."""
    standing = c.find(status.conditions, c.READY)
    held = rejection is None or rejection.reason not in NO_QUEUE_CLAIM
    return held and standing is not None and standing.reason in NO_QUEUE_CLAIM


def ready(snapshot: Snapshot, plan: Plan) -> ConditionState:
    """The first rule that applies; True if none does."""
    kept: ConditionState = "True", Reason.CONSUMING, f"{len(plan.targets)} target(s) are kept fresh"
    return _first(_READY_RULES, snapshot, plan) or kept


def _first(rules: Iterable[Rule], snapshot: Snapshot, plan: Plan) -> ConditionState | None:
    return next((state for rule in rules if (state := rule(snapshot, plan)) is not None), None)


# ---------------------------------------------------------------- Ready


def _refused(snapshot: Snapshot, _: Plan) -> ConditionState | None:
    rejection = snapshot.setup.rejection
    return None if rejection is None else ("False", rejection.reason, rejection.message)


def _flushing(snapshot: Snapshot, plan: Plan) -> ConditionState | None:
    """The queue is not read any more: only failures of refreshes matter."""
    if not snapshot.read.flushing:
        return None
    found = _targets_bad(snapshot, plan) or _failing(snapshot, plan)
    return ("False", found[1], f"{found[2]}; {_HELD}") if found else ("False", Reason.FLUSHING, _HELD)


def _suspended(snapshot: Snapshot, _: Plan) -> ConditionState | None:
    if snapshot.read.spec is None or not snapshot.read.spec.suspend:
        return None
    return "True", Reason.SUSPENDED, "suspended; what is dirty is kept"


def _queue_bad(snapshot: Snapshot, _: Plan) -> ConditionState | None:
    state = _queue(snapshot)
    return state if state[0] == "False" else None


def _targets_bad(snapshot: Snapshot, plan: Plan) -> ConditionState | None:
    state = _targets(snapshot, plan)
    return state if state[0] == "False" else None


def _starting(snapshot: Snapshot, _: Plan) -> ConditionState | None:
    if snapshot.reception.polling and snapshot.queue.checked:
        return None
    return "False", Reason.STARTING, "the queue and the targets have not been looked at yet"


def _failing(_: Snapshot, plan: Plan) -> ConditionState | None:
    failing = [t for t in _failed(plan) if t.failure is not None and t.failure.count >= FAILURES_REPORTED]
    return ("False", Reason.REFRESH_FAILING, _failures(failing)) if failing else None


_READY_RULES: Final = (_refused, _flushing, _suspended, _queue_bad, _targets_bad, _starting, _failing)


# ---------------------------------------------------------------- the others


def _queue(snapshot: Snapshot) -> ConditionState:
    if snapshot.setup.rejection is not None and snapshot.setup.rejection.reason == Reason.QUEUE_CONFLICT:
        return "False", snapshot.setup.rejection.reason, snapshot.setup.rejection.message
    for one in (snapshot.reception, snapshot.queue):
        if one.problem:
            return "False", _QUEUE_REASONS.get(one.code, Reason.QUEUE_UNREACHABLE), one.problem
    if snapshot.queue.fault:
        return "False", Reason.QUEUE_UNSUITABLE, snapshot.queue.fault
    if not snapshot.queue.checked:
        return "Unknown", Reason.NOT_CHECKED, "the queue has not been looked at yet"
    return "True", Reason.REACHABLE, "the queue can be read, and will do"


def _targets(snapshot: Snapshot, plan: Plan) -> ConditionState:
    discovery = snapshot.plan_input.discovery
    if not discovery.complete and not discovery.faults:
        return "Unknown", Reason.NOT_CHECKED, "targets have not been looked for yet"
    if wrong := _wrong_with_targets(snapshot, plan):
        return "False", *wrong
    return "True", Reason.RESOLVED, f"{len(discovery.shares)} target(s)"


def _wrong_with_targets(snapshot: Snapshot, plan: Plan) -> tuple[str, str] | None:
    discovery, recorded = snapshot.plan_input.discovery, {target.id for target in plan.targets}
    found_ids = {share.id for share in discovery.shares}
    if not discovery.complete:
        return Reason.TARGETS_UNRESOLVED, _some(discovery.faults)
    if snapshot.read.spec is not None and found_ids - recorded:
        return Reason.TARGETS_UNRESOLVED, f"{_some(sorted(found_ids - recorded))}: {_NO_ROOM}"
    if recorded - found_ids:
        message = "dirty, and not there any more; it is refreshed as soon as it is found again"
        return Reason.TARGET_GONE, f"{_some(sorted(recorded - found_ids))}: {message}"
    if discovery.faults:
        return Reason.TARGETS_UNRESOLVED, _some(discovery.faults)
    if not discovery.shares:
        return Reason.NO_TARGETS, "there is nothing to refresh: no file share matches spec.target"
    return None


def _caught_up(snapshot: Snapshot, plan: Plan) -> ConditionState:
    """The first rule that applies."""
    found = _first(_CAUGHT_UP_RULES, snapshot, plan)
    return found or ("True", Reason.UP_TO_DATE, "every event has been followed by a refresh")


def _any_failing(_: Snapshot, plan: Plan) -> ConditionState | None:
    failing = _failed(plan)
    return ("False", Reason.REFRESH_FAILING, _failures(failing)) if failing else None


def _lost(_: Snapshot, plan: Plan) -> ConditionState | None:
    lost = [t.id for t in plan.targets if t.last.result == "Lost"]
    message = f"{_some(lost)}: no completion event of the last refresh was received"
    return ("False", Reason.COMPLETION_LOST, message) if lost else None


def _service_busy(_: Snapshot, plan: Plan) -> ConditionState | None:
    """A wait that other callers may make long."""
    held = [t for t in plan.targets if t.failure is not None and t.failure.code in BUSY]
    return ("False", Reason.WAITING, f"{_failures(held)}; {_BUSY_REMEDY}") if held else None


def _under_way(snapshot: Snapshot, plan: Plan) -> ConditionState | None:
    busy = [t.id for t in plan.targets if t.claim is not None or t.in_flight is not None]
    if number := len(busy) - _unfollowed(snapshot, plan):
        return "False", Reason.REFRESHING, f"{number} target(s) are being refreshed"
    dirty = [t.id for t in plan.targets if t.dirty is not None]
    return ("False", Reason.WAITING, f"{len(dirty)} target(s) wait for their refresh") if dirty else None


def _unfollowed(snapshot: Snapshot, plan: Plan) -> int:
    """Targets whose refresh has an end that nobody looks for: the resource's tasks pause."""
    if snapshot.setup.rejection is None and snapshot.read.active:
        return 0
    calls = snapshot.plan_input.running  # which are answered all the same
    held = [t for t in plan.targets if t.claim is not None or t.in_flight is not None]
    return sum(t.claim is None or t.claim.id not in calls for t in held)


def _blind(snapshot: Snapshot, plan: Plan) -> ConditionState | None:
    """Why events may wait that nothing is known of."""
    rules = (_refused, _suspended, _queue_bad, _targets_bad, _starting)
    found = _first(rules, snapshot, plan)
    if found is None or found[1] == Reason.QUEUE_UNSUITABLE:  # which is read all the same
        return None
    number = _unfollowed(snapshot, plan)
    ends = f"the end of the refresh of {number} target(s) is not looked for, and " if number else ""
    return "Unknown", found[1], f"{ends}events may wait that have not been received: {found[2]}"


def _left_in_queue(snapshot: Snapshot, _: Plan) -> ConditionState | None:
    """Reasons why the queue, the memory or the dead-letter queue may hold events that no refresh has
    followed."""
    found = queue_of(snapshot)
    if found.in_flight >= NEAR_MOST_IN_FLIGHT:
        message = (
            f"about {found.in_flight} messages are in flight, and SQS hands out none beyond {MOST_IN_FLIGHT}"
        )
        return "False", Reason.IN_FLIGHT_LIMIT, message
    if snapshot.reception.behind:
        return "False", Reason.BACKLOG, "messages may wait in the queue to be received"
    if snapshot.more:
        return "False", Reason.BACKLOG, "received messages wait for the next pass"
    if dead := uncovered(found):
        message = (
            f"about {dead} message(s) in the dead-letter queue may be events that no refresh has followed: "
            "send them back to the queue, or purge the dead-letter queue"
        )
        return "False", Reason.DEAD_LETTERS, message
    if snapshot.reception.malformed and snapshot.plan_input.malformed == "DeadLetter":
        message = f"messages that could not be read may be events, the latest: {snapshot.reception.malformed}"
        return "False", Reason.UNREADABLE, message
    return None


_CAUGHT_UP_RULES: Final = (_any_failing, _lost, _service_busy, _under_way, _blind, _left_in_queue)


def queue_of(snapshot: Snapshot) -> QueueStatus:
    """status.queue."""
    before, now = snapshot.read.status.queue, snapshot.plan_input.now
    return status_of(
        snapshot.queue, before, now, read=snapshot.reception.reading, covered=snapshot.plan_input.expired
    )


def _failed(plan: Plan) -> list[TargetState]:
    """Those whose last call has failed; a service that is busy has not failed."""
    return [t for t in plan.targets if t.failure is not None and t.failure.code not in BUSY]


def _failures(failing: Iterable[TargetState]) -> str:
    return _some(f"{t.id}: {t.failure.code}: {t.failure.message}" for t in failing if t.failure is not None)


def _some(texts: Iterable[str]) -> str:
    every = list(texts)
    more = f"; and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return "; ".join(every[:SHOWN]) + more
