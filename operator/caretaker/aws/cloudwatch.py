"""The call of Amazon CloudWatch that is used, as aws.calls.Aws.cloudwatch provides it.

Types only; response_check.py validates responses against them. Names are AWS's own (Amazon CloudWatch API
reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, Required, TypedDict

from caretaker.aws.errors import Name

# The most of one call (API reference, GetMetricData), and the most datapoints of one page: a longer one is
# refused as too large an answer.
MOST_QUERIES: Final = 500
MOST_DATAPOINTS: Final = 40_000


class MetricDataResult(TypedDict, total=False):
    """The datapoints of one query, or some of them: pages are joined by Id. A period without datapoints is
    absent.

    StatusCode: Complete | PartialData, with more on the next page | InternalError | Forbidden.
    """

    Id: Required[Name]
    Timestamps: Required[list[datetime]]
    Values: Required[list[float]]
    StatusCode: Name


class GetMetricDataOutput(TypedDict, total=False):
    """NextToken is absent on the last page."""

    MetricDataResults: Required[list[MetricDataResult]]
    NextToken: str


class CloudWatch(Protocol):
    """Amazon CloudWatch."""

    async def get_metric_data(
        self,
        *,
        MetricDataQueries: Sequence[Mapping[str, Any]],
        StartTime: datetime,
        EndTime: datetime,
        ScanBy: str = ...,
        MaxDatapoints: int = ...,
        NextToken: str = ...,
    ) -> GetMetricDataOutput:
        """One page of at most MOST_QUERIES metrics, each of which is charged for; follow NextToken. The start
        is inclusive, the end exclusive. ScanBy: TimestampDescending unless TimestampAscending."""
