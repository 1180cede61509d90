"""Targets that take the payload as a message: the common part of SNS, SQS, EventBridge and Lambda.

A refresh has ended when the service has accepted the message. The payload has the claim's id, by which a
receiver knows a message that was sent twice.
"""

from abc import abstractmethod
from collections.abc import Collection
from typing import ClassVar, Final

from msgspec.structs import replace

from caretaker.aws.errors import AwsError
from caretaker.aws.sqs import MessageAttributeValue
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.match import Share, of_buckets
from caretaker.s3refresh.snapshot import Discovery, Result
from caretaker.s3refresh.target_types import TargetType
from caretaker.s3refresh.targets import TargetClient
from caretaker.s3refresh.targets.outcomes import failed
from caretaker.s3refresh.targets.payload import payload_of

ATTRIBUTE: Final = "claimID"


class MessageTarget(TargetType, frozen=True):
    """One that takes messages."""

    idempotent: ClassVar[bool] = True  # as far as the receiver is, by the claim's id
    reports_end: ClassVar[bool] = False


class Messages(TargetClient):
    """For the buckets of one resource. Without a refresh there is no call."""

    refusals: ClassVar[frozenset[str]] = frozenset()  # codes that a folder may be the reason for

    def __init__(self, buckets: Collection[str], prefix: str) -> None:
        self._buckets = buckets
        self._prefix = prefix

    @abstractmethod
    async def send(self, payload: str, claim: Claim) -> None:
        """Send it once. Raises AwsError."""

    async def discover(self) -> Discovery:
        """The buckets, without a call."""
        return Discovery(complete=True, shares=of_buckets(self._buckets, self._prefix))

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """One message."""
        try:
            await self.send(payload_of(share, claim).decode(), claim)
        except AwsError as error:
            return replace(failed(share, claim, error), refused=error.code in self.refusals)
        return Result(share.id, claim.id)


def attributes_of(claim: Claim) -> dict[str, MessageAttributeValue]:
    """The claim's id as an attribute of a message, for filters and receivers."""
    return {ATTRIBUTE: {"DataType": "String", "StringValue": claim.id}}


def order_of(destination: str, group: str, claim: Claim) -> dict[str, str]:
    """The parameters that a FIFO queue or topic needs: messages of one group are in order, and of two with
    one id within 5 min the second is dropped. Empty for another destination."""
    if not destination.endswith(".fifo"):
        return {}
    return {"MessageDeduplicationId": claim.id, "MessageGroupId": group}
