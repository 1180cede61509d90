"""What was found out about an S3AggregatedRefresh outside the API server, and what is wrong with it. Pure."""

from collections.abc import Iterator
from typing import Final

import msgspec

from caretaker.s3refresh.plan import Shares
from caretaker.s3refresh.queue import QueueView

# By AwsError.error_class; its module would load botocore, which costs those who need it alone.
MENDS: Final = {
    "NotFound": "create the queue, or correct the URL",
    "AccessDenied": "ask for a policy that allows it to you",
    "NoIdentity": "give credentials that AWS knows, such as AWS_PROFILE",
}
_SOURCE: Final = "spec.source.sqs.queueURL"


class QueueFound(msgspec.Struct, frozen=True):
    """A queue, by the field that names it."""

    field: str
    url: str
    view: QueueView

    @property
    def fault(self) -> str:
        """Why it will not do. Only a source queue has to keep events."""
        return self.view.fault if self.field == _SOURCE else ""


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
        if queue.view.problem:
            mend = MENDS.get(queue.view.code, "see that the endpoint can be reached, and try again")
            yield queue.field, f"{queue.view.problem}; {mend}"
        elif queue.fault:
            yield queue.field, queue.fault
    for fault in found.shares.faults:
        yield "spec.target", fault
    if found.shares.complete and not found.shares.known:
        yield "spec.target", "there is nothing to refresh: nothing that it means is there; correct it"
