"""Rights of an operator with S3AggregatedRefresh alone."""

from typing import Final

RIGHTS: Final = {
    "s3aggregatedrefreshes": "get list watch patch",
    "s3aggregatedrefreshes/status": "patch",
    "secrets": "get",
    "jobs": "create get",
    "events": "create",
}
