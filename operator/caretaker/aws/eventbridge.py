"""The calls of Amazon EventBridge that are used, as aws.calls.Aws.events provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (Amazon EventBridge API
reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Sequence
from typing import Protocol, Required, TypedDict

from caretaker.aws.errors import Name


class PutEventsRequestEntry(TypedDict):
    """Detail: a JSON object. EventBusName: name or ARN."""

    Source: str
    DetailType: str
    Detail: str
    EventBusName: str


class PutEventsResultEntry(TypedDict, total=False):
    """Either EventId or ErrorCode."""

    EventId: Name
    ErrorCode: Name
    ErrorMessage: str


class PutEventsResponse(TypedDict, total=False):
    """HTTP 200 although entries may have failed: look at FailedEntryCount."""

    FailedEntryCount: Required[int]
    Entries: Required[list[PutEventsResultEntry]]


class EventBridge(Protocol):
    """Amazon EventBridge."""

    async def put_events(self, *, Entries: Sequence[PutEventsRequestEntry]) -> PutEventsResponse:
        """At most 10 entries. Guarded."""
