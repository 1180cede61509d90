"""The calls of Amazon SQS that are used, as aws.calls.Aws.sqs provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (Amazon SQS API
reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol, Required, TypedDict

import msgspec

from caretaker.aws.errors import Name


class Message(TypedDict, total=False):
    """One received message; Attributes holds the attributes that MessageSystemAttributeNames asked for."""

    MessageId: Required[Name]
    ReceiptHandle: Required[Name]
    Body: Required[str]
    Attributes: dict[str, str]


class ReceiveMessageResult(TypedDict, total=False):
    """No Messages: the wait was over before one came."""

    Messages: Annotated[list[Message], msgspec.Meta(max_length=10)]  # as many as can be asked for


class GetQueueAttributesResult(TypedDict, total=False):
    """All values are text, numbers too."""

    Attributes: Required[dict[str, str]]


class GetQueueUrlResult(TypedDict):
    """Where a queue is."""

    QueueUrl: Name


class DeleteMessageBatchRequestEntry(TypedDict):
    """Id: any word of at most 80 characters, unique within the batch."""

    Id: Name
    ReceiptHandle: str


class ChangeMessageVisibilityBatchRequestEntry(TypedDict):
    """VisibilityTimeout in seconds from now, at most 43200."""

    Id: Name
    ReceiptHandle: str
    VisibilityTimeout: int


class MessageAttributeValue(TypedDict):
    """DataType: String."""

    DataType: str
    StringValue: str


class SendMessageResult(TypedDict, total=False):
    """The message was accepted."""

    MessageId: Required[Name]


class BatchResultErrorEntry(TypedDict, total=False):
    """Why one entry failed while the call as a whole succeeded."""

    Id: Required[Name]
    Code: Required[Name]
    Message: str


class BatchResultEntry(TypedDict):
    """One entry that succeeded."""

    Id: Name


class BatchResult(TypedDict, total=False):
    """HTTP 200 although entries may have failed: look at Failed."""

    Successful: list[BatchResultEntry]
    Failed: list[BatchResultErrorEntry]


class Sqs(Protocol):
    """Amazon SQS."""

    async def get_queue_url(
        self, *, QueueName: str, QueueOwnerAWSAccountId: str = ...
    ) -> GetQueueUrlResult: ...

    async def get_queue_attributes(
        self, *, QueueUrl: str, AttributeNames: Sequence[str]
    ) -> GetQueueAttributesResult: ...

    async def receive_message(
        self,
        *,
        QueueUrl: str,
        MaxNumberOfMessages: int = ...,
        WaitTimeSeconds: int = ...,
        VisibilityTimeout: int = ...,
        MessageSystemAttributeNames: Sequence[str] = ...,
    ) -> ReceiveMessageResult:
        """At most 10 messages, waiting at most 20 s, in a thread of the long polls."""

    async def send_message(
        self,
        *,
        QueueUrl: str,
        MessageBody: str,
        MessageAttributes: Mapping[str, MessageAttributeValue] = ...,
        MessageDeduplicationId: str = ...,
        MessageGroupId: str = ...,
    ) -> SendMessageResult:
        """The last two for a FIFO queue, which needs them. Guarded."""

    async def delete_message_batch(
        self, *, QueueUrl: str, Entries: Sequence[DeleteMessageBatchRequestEntry]
    ) -> BatchResult:
        """At most 10 entries. Guarded."""

    async def change_message_visibility_batch(
        self, *, QueueUrl: str, Entries: Sequence[ChangeMessageVisibilityBatchRequestEntry]
    ) -> BatchResult:
        """At most 10 entries. Guarded."""
