"""The calls of Amazon SNS that are used, as aws.calls.Aws.sns provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (Amazon SNS API
reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Mapping
from typing import Protocol, Required, TypedDict

from caretaker.aws.errors import Name
from caretaker.aws.sqs import MessageAttributeValue


class PublishResponse(TypedDict, total=False):
    """The message was accepted."""

    MessageId: Required[Name]


class Sns(Protocol):
    """Amazon SNS."""

    async def publish(
        self,
        *,
        TopicArn: str,
        Message: str,
        MessageAttributes: Mapping[str, MessageAttributeValue] = ...,
        MessageDeduplicationId: str = ...,
        MessageGroupId: str = ...,
    ) -> PublishResponse:
        """The last two for a FIFO topic, which needs them. Guarded."""
