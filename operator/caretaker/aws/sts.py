"""The calls of AWS STS that are used, as aws.calls.Aws.sts provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (AWS STS API reference);
every method raises AwsError. Only session.py assumes roles.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from datetime import datetime
from typing import Protocol, Required, TypedDict


class StsCredentials(TypedDict):
    """Temporary credentials."""

    AccessKeyId: str
    SecretAccessKey: str
    SessionToken: str
    Expiration: datetime


class AssumeRoleResponse(TypedDict, total=False):
    """A session of a role."""

    Credentials: Required[StsCredentials]


class GetCallerIdentityResponse(TypedDict, total=False):
    """The caller's identity."""

    UserId: str
    Account: Required[str]
    Arn: Required[str]


class Sts(Protocol):
    """AWS STS."""

    async def assume_role(
        self, *, RoleArn: str, RoleSessionName: str, ExternalId: str = ...
    ) -> AssumeRoleResponse: ...

    async def get_caller_identity(self) -> GetCallerIdentityResponse: ...
