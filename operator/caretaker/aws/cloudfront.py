"""The calls of Amazon CloudFront that are used, as aws.calls.Aws.cloudfront provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (Amazon CloudFront API
reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Sequence
from typing import Protocol, Required, TypedDict

from caretaker.aws.errors import Name


class Paths(TypedDict):
    """Quantity: the number of Items."""

    Quantity: int
    Items: Sequence[str]


class InvalidationBatch(TypedDict):
    """The same CallerReference with the same paths is the same invalidation; with others it is refused."""

    Paths: Paths
    CallerReference: str


class Invalidation(TypedDict, total=False):
    """Status: InProgress | Completed."""

    Id: Required[Name]
    Status: Required[Name]


class CreateInvalidationResult(TypedDict, total=False):
    """The new invalidation, or the one that the CallerReference made before."""

    Invalidation: Required[Invalidation]


class CloudFront(Protocol):
    """Amazon CloudFront."""

    async def create_invalidation(
        self, *, DistributionId: str, InvalidationBatch: InvalidationBatch
    ) -> CreateInvalidationResult:
        """At most 3,000 paths and 15 with a wildcard in progress for a distribution. Guarded."""
