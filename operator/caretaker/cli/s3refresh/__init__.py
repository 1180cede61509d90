"""S3AggregatedRefresh, as `plan` and `status` show it."""

from typing import Final

from caretaker.cli.options import View
from caretaker.cli.s3refresh import plan, status
from caretaker.registry import S3_AGGREGATED_REFRESH

VIEW: Final = View(S3_AGGREGATED_REFRESH, "refreshes", plan.check, plan.plan, status.status)
