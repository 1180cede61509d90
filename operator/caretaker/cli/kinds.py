"""The kinds that `plan` and `status` show, a line each. What they show is each kind's own."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from caretaker.cli.common import Session
from caretaker.cli.daemontask import plan as task_plan
from caretaker.cli.daemontask import status as task_status
from caretaker.cli.imds import plan as policy_plan
from caretaker.cli.imds import status as policy_status
from caretaker.cli.manifest import Document
from caretaker.cli.options import PlanOptions
from caretaker.cli.propose import Planned
from caretaker.cli.s3refresh import plan as refresh_plan
from caretaker.cli.s3refresh import status as refresh_status
from caretaker.registry import DAEMON_TASK, IMDS_POLICY, S3_AGGREGATED_REFRESH, KindInfo


class View(msgspec.Struct, frozen=True):
    """How one kind is shown.

    key     of the kind's resources in the JSON of `plan`
    check   raises Usage for options that make no sense with these documents
    plan    what a document would do
    status  print what the resource of this name does (name, -o, --watch); the exit code
    """

    kind: KindInfo
    key: str
    check: Callable[[PlanOptions, Sequence[Document]], None]
    plan: Callable[[Session, Document, PlanOptions], Awaitable[Planned]]
    status: Callable[[Session, str, str | None, bool], Awaitable[int]]


VIEWS: Final = (
    View(DAEMON_TASK, "tasks", task_plan.check, task_plan.plan, task_status.status),
    View(S3_AGGREGATED_REFRESH, "refreshes", refresh_plan.check, refresh_plan.plan, refresh_status.status),
    View(IMDS_POLICY, "policies", policy_plan.check, policy_plan.plan, policy_status.status),
)


def view_of(kind: KindInfo) -> View:
    """The kind's line."""
    return next(view for view in VIEWS if view.kind == kind)
