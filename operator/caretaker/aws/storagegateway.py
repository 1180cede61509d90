"""The calls of AWS Storage Gateway that are used, as aws.calls.Aws.storagegateway provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (AWS Storage Gateway API
reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Sequence
from typing import Protocol, Required, TypedDict

from caretaker.aws.errors import Name


class FileShareInfo(TypedDict, total=False):
    """One share of a list. FileShareType: NFS | SMB."""

    FileShareType: Name
    FileShareARN: Required[Name]
    FileShareId: Name
    FileShareStatus: Name
    GatewayARN: Name


class ListFileSharesOutput(TypedDict, total=False):
    """NextMarker is absent on the last page."""

    Marker: str
    NextMarker: str
    FileShareInfoList: Required[list[FileShareInfo]]


class FileShare(TypedDict, total=False):
    """The members that are read of an NFSFileShareInfo and of an SMBFileShareInfo. LocationARN: bucket or
    access point."""

    FileShareARN: Required[Name]
    FileShareId: Name
    FileShareStatus: Required[Name]
    GatewayARN: Required[Name]
    LocationARN: Required[Name]


class DescribeNFSFileSharesOutput(TypedDict, total=False):
    """Shares in no order."""

    NFSFileShareInfoList: Required[list[FileShare]]


class DescribeSMBFileSharesOutput(TypedDict, total=False):
    """Shares in no order."""

    SMBFileShareInfoList: Required[list[FileShare]]


class RefreshCacheOutput(TypedDict, total=False):
    """NotificationId is repeated in the completion event."""

    FileShareARN: Required[Name]
    NotificationId: Name


class StorageGateway(Protocol):
    """AWS Storage Gateway."""

    async def list_file_shares(
        self, *, GatewayARN: str = ..., Limit: int = ..., Marker: str = ...
    ) -> ListFileSharesOutput:
        """One page; follow NextMarker."""

    async def describe_nfs_file_shares(
        self, *, FileShareARNList: Sequence[str]
    ) -> DescribeNFSFileSharesOutput:
        """At most 10 ARNs, which botocore does not check."""

    async def describe_smb_file_shares(
        self, *, FileShareARNList: Sequence[str]
    ) -> DescribeSMBFileSharesOutput:
        """At most 10 ARNs, which botocore does not check."""

    async def refresh_cache(
        self, *, FileShareARN: str, FolderList: Sequence[str] = ..., Recursive: bool = ...
    ) -> RefreshCacheOutput:
        """Guarded; never retried."""
