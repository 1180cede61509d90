"""The state of an S3AggregatedRefresh's queues and targets in AWS, and its faults. Pure."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from caretaker.cli.diagnostics import CREDENTIALS_ADVICE
from caretaker.s3refresh import advice
from caretaker.s3refresh.queue_view import QueueView
from caretaker.s3refresh.snapshot import Discovery

_SOURCE: Final = "spec.source.sqs.queueURL"
_TARGET: Final = "spec.target"
_NAMED: Final = re.compile(r"(spec\.[\w.]+)(?:: | (?=in [\w-]+: ))(.*)", re.DOTALL)


class QueueState(msgspec.Struct, frozen=True):
    """A queue, by the field that names it."""

    field: str
    url: str
    view: QueueView

    @property
    def fault(self) -> str:
        """Why the queue is not suitable. Only a source queue has to keep events."""
        return self.view.fault if self.field == _SOURCE else ""

    @property
    def problem(self) -> str:
        """Why the queue could not be checked."""
        return _for_user(self.view.problem)


class AwsState(msgspec.Struct, frozen=True):
    """The state that AWS returned."""

    queues: list[QueueState]
    shares: Discovery

    @property
    def unanswered(self) -> bool:
        """Whether some call failed."""
        return not self.shares.complete or any(queue.view.problem for queue in self.queues)


def faults_of(state: AwsState) -> Iterator[tuple[str, str]]:
    """(field, fault with its fix): each keeps the resource from being Ready."""
    for queue in state.queues:
        if queue.problem:
            yield queue.field, _with_field(queue.field, queue.problem)[1]
        elif queue.fault:
            yield queue.field, queue.fault
    for fault in state.shares.faults:
        yield _with_field(_TARGET, _for_user(fault))
    if state.shares.complete and not state.shares.shares and not state.shares.faults:
        yield (
            _TARGET,
            "there is nothing to refresh: no file share matches; correct it, or create the share",
        )


def _for_user(message: str) -> str:
    """The message with advice for the user, who is not the operator and uses only the region of spec.aws."""
    return message.replace(advice.GIVE, CREDENTIALS_ADVICE).replace(
        advice.ALLOW, "to the identity you ask with"
    )


def _with_field(field: str, message: str) -> tuple[str, str]:
    """The field that the message itself names, else `field`; and the rest of it."""
    match = _NAMED.fullmatch(message)
    return (match[1], match[2]) if match else (field, message)
