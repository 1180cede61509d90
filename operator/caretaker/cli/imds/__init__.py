"""IMDSPolicy, as `plan` and `status` show it."""

from typing import Final

from caretaker.cli.imds import plan, status
from caretaker.cli.options import View
from caretaker.registry import IMDS_POLICY

VIEW: Final = View(IMDS_POLICY, "policies", plan.check, plan.plan, status.status)
