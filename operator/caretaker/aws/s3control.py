"""The call of Amazon S3 Control that is used, as aws.calls.Aws.s3control answers it.

Types only. Names are AWS's own (Amazon S3 API reference, "Amazon S3 Control"); methods raise AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from typing import Protocol, TypedDict


class GetAccessPointResult(TypedDict, total=False):
    """What an access point leads to. Alias stands in a share's LocationARN."""

    Name: str
    Bucket: str
    BucketAccountId: str
    AccessPointArn: str
    Alias: str


class S3Control(Protocol):
    """Amazon S3 Control."""

    async def get_access_point(self, *, AccountId: str, Name: str) -> GetAccessPointResult: ...
