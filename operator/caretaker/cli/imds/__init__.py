"""IMDSPolicy, as `plan` and `status` show it."""

from typing import Final

from caretaker.cli.imds import plan, status
from caretaker.cli.options import KindCommands
from caretaker.registry import IMDS_POLICY

COMMANDS: Final = KindCommands(IMDS_POLICY, "policies", plan.check, plan.plan, status.status)
