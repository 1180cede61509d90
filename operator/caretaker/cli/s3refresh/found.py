"""What was found out about an S3AggregatedRefresh outside the API server, and what is wrong with it. Pure."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from caretaker.cli.diagnostics import CREDENTIALS_ADVICE
from caretaker.s3refresh import advice
from caretaker.s3refresh.plan import Shares
from caretaker.s3refresh.queue_view import QueueView

_SOURCE: Final = "spec.source.sqs.queueURL"
_TARGET: Final = "spec.target"
_NAMED: Final = re.compile(r"(spec\.[\w.]+)(?:: | (?=in [\w-]+: ))(.*)", re.DOTALL)


class QueueFound(msgspec.Struct, frozen=True):
    """A queue, by the field that names it."""

    field: str
    url: str
    view: QueueView

    @property
    def fault(self) -> str:
        """Why it will not do. Only a source queue has to keep events."""
        return self.view.fault if self.field == _SOURCE else ""

    @property
    def problem(self) -> str:
        """Why it could not be looked at."""
        return _to_caller(self.view.problem)


class Found(msgspec.Struct, frozen=True):
    """What AWS says."""

    queues: list[QueueFound]
    shares: Shares

    @property
    def unanswered(self) -> bool:
        """Whether some call failed."""
        return not self.shares.complete or any(queue.view.problem for queue in self.queues)


def faults_of(found: Found) -> Iterator[tuple[str, str]]:
    """(field, what is wrong and what mends it): each keeps the resource from being Ready."""
    for queue in found.queues:
        if queue.problem:
            yield queue.field, _placed(queue.field, queue.problem)[1]
        elif queue.fault:
            yield queue.field, queue.fault
    for fault in found.shares.faults:
        yield _placed(_TARGET, _to_caller(fault))
    if found.shares.complete and not found.shares.known and not found.shares.faults:
        yield (
            _TARGET,
            "there is nothing to refresh: no file share matches; correct it, or create the share",
        )


def _to_caller(said: str) -> str:
    """With the mends of whoever asked, who is not the operator and uses none of spec.aws but the region."""
    return said.replace(advice.GIVE, CREDENTIALS_ADVICE).replace(advice.ALLOW, "to the identity you ask with")


def _placed(field: str, said: str) -> tuple[str, str]:
    """The field that the message itself names, else `field`; and the rest of it."""
    found = _NAMED.fullmatch(said)
    return (found[1], found[2]) if found else (field, said)
