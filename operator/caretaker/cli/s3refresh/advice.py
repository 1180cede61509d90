"""The action for a condition of an S3AggregatedRefresh. Pure."""

from collections.abc import Iterable
from typing import Final

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition
from caretaker.api.conditions import RefreshReason as Reason
from caretaker.cli import diagnostics

_POSITIVE: Final = frozenset({c.READY, c.QUEUE_REACHABLE, c.TARGETS_RESOLVED, c.CAUGHT_UP})
# Reasons that need no action.
NORMAL: Final = frozenset(
    {
        Reason.CONSUMING,
        Reason.REACHABLE,
        Reason.RESOLVED,
        Reason.WAITING,
        Reason.REFRESHING,
        Reason.BACKLOG,
        Reason.UP_TO_DATE,
    }
)

ADVICE: Final = {
    Reason.STARTING: "wait; if it lasts, look at the operator's logs",
    Reason.FLUSHING: "wait; if it lasts, see Flushing in docs/operations.md",
    Reason.NOT_CHECKED: "fix the other problems, or wait; if it lasts, look at the operator's logs",
    Reason.SUSPENDED: "set spec.suspend to false to go on, before the queue drops its oldest events",
    Reason.INVALID_SPEC: "correct the field that is named and apply again",
    Reason.NOT_GRANTED: (
        "grant it to the namespace in the Helm value aws.identities, or in the file of --aws-identities "
        "and restart the operator"
    ),
    Reason.CREDENTIALS_UNAVAILABLE: "fix the Secret, or the Role that lets the operator read it",
    Reason.QUEUE_CONFLICT: "give each resource a queue of its own",
    Reason.QUEUE_UNREACHABLE: "see that the operator reaches SQS; it is tried again by itself",
    Reason.QUEUE_NOT_FOUND: "create the queue, or correct spec.source.sqs.queueURL",
    Reason.QUEUE_UNSUITABLE: "change the queue as it says; it is looked at again within the hour",
    Reason.ACCESS_DENIED: "allow the action to the identity that is named; it is tried again by itself",
    Reason.NO_IDENTITY: "give the operator credentials, or name some in spec.aws.credentialsSecretRef",
    Reason.NO_TARGETS: "caretaker plan -f FILE shows what is found",
    Reason.TARGETS_UNRESOLVED: "fix what the message names; caretaker plan -f FILE shows what is found",
    Reason.TARGET_GONE: "bring it back; gone for good, its record can be taken away: docs/operations.md",
    Reason.REFRESH_FAILING: "fix what the message names; it is tried again by itself",
    Reason.COMPLETION_LOST: "see that the gateway's events reach completion.queueURL",
    Reason.IN_FLIGHT_LIMIT: "find the consumer that receives from the queue without deleting",
    Reason.DEAD_LETTERS: "send them back to the queue: docs/operations.md",
    Reason.UNREADABLE: "read the dead-letter queue: something else sends to this queue",
    Reason.PERMISSION_DENIED: "give the operator's role the verb that is named",
}


def abnormal_conditions(conditions: Iterable[Condition]) -> list[Condition]:
    """The conditions that report a problem or wait for a person, each reason once."""
    return list(diagnostics.abnormal_conditions(conditions, _POSITIVE, NORMAL).values())


def advice(reason: str) -> str:
    """One line; empty where there is nothing to do."""
    return ADVICE.get(reason, "")
