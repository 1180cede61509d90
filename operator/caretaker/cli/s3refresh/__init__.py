"""S3AggregatedRefresh, as `plan` and `status` show it."""

from typing import Final

KEY: Final = "refreshes"
