"""The call of Amazon S3 Control that is used, as aws.calls.Aws.s3control provides it.

Types only; response_check.py validates responses against them. Names are AWS's own (Amazon S3 API reference);
every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from typing import Protocol, Required, TypedDict

from caretaker.aws.errors import Name


class GetAccessPointResult(TypedDict, total=False):
    """The members that are read. Bucket: its name, without account or region."""

    Bucket: Required[Name]
    Alias: Name


class S3Control(Protocol):
    """Amazon S3 Control."""

    async def get_access_point(self, *, AccountId: str, Name: str) -> GetAccessPointResult:
        """Of the account, in the client's region. The name, never an ARN or an alias."""
