"""The calls of AWS Lambda that are used, as aws.calls.Aws.lambda_ provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (AWS Lambda API
reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from typing import Annotated, Literal, Protocol, Required, TypedDict

import msgspec

# Of an asynchronous invocation: Accepted. A server that is not Lambda may answer 200.
Accepted = Annotated[int, msgspec.Meta(ge=202, le=202)]


class InvocationResponse(TypedDict, total=False):
    """The event was accepted. Its Payload is empty."""

    StatusCode: Required[Accepted]


class Lambda(Protocol):
    """AWS Lambda."""

    async def invoke(
        self, *, FunctionName: str, InvocationType: Literal["Event"], Payload: bytes
    ) -> InvocationResponse:
        """The name may be an ARN, with a version or an alias. Guarded."""
