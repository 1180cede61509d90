"""DaemonTask, as `plan` and `status` show it."""

from typing import Final

from caretaker.cli.daemontask import plan, status
from caretaker.cli.options import KindCommands
from caretaker.registry import DAEMON_TASK

COMMANDS: Final = KindCommands(DAEMON_TASK, "tasks", plan.check, plan.plan, status.status)
