"""S3AggregatedRefresh, as `plan` and `status` show it."""

from typing import Final

from caretaker.cli.options import KindCommands
from caretaker.cli.s3refresh import plan, status
from caretaker.registry import S3_AGGREGATED_REFRESH

COMMANDS: Final = KindCommands(S3_AGGREGATED_REFRESH, "refreshes", plan.check, plan.plan, status.status)
