"""caretaker plan of a DaemonTask: which nodes would run it, and why the others would not.

The task and its Pod are submitted as dry runs; the planner that the operator runs does the rest.
"""

from collections.abc import Sequence

import msgspec

from caretaker.cli.common import Session, explain
from caretaker.cli.daemontask.plan_text import TaskProposal, as_json, as_text
from caretaker.cli.ecs import plan as ecs
from caretaker.cli.manifest import Document
from caretaker.cli.options import PlanOptions
from caretaker.cli.propose import Planned, propose
from caretaker.cli.text import one_line
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.resource import RawTask, has_ecs, read_task, refusals_of
from caretaker.daemontask.snapshot_reader import observe
from caretaker.kube.errors import ApiError


def check(options: PlanOptions, documents: Sequence[Document]) -> None:
    """Every option will do."""


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The proposal, and the forecast unless the server refuses the task itself."""
    proposal = await propose(session, document, RawTask)
    if has_ecs(proposal.raw):
        return await ecs.plan(document, proposal)
    result = None
    if not proposal.refusals:
        snapshot = await observe(session.client, proposal.raw)
        invalid = read_task(proposal.raw)[1]
        if invalid:
            proposal.refusals.append(f"{document.place(invalid.partition(':')[0])}: {one_line(invalid)}")
        else:
            invalid = await _check_pods(session, document, proposal)
        result = forecast(msgspec.structs.replace(snapshot, invalid=invalid))
    text = as_text(proposal, result, wide=options.wide)
    return Planned(text, as_json(proposal, result), proposal.refusals)


async def _check_pods(session: Session, document: Document, proposal: TaskProposal) -> str:
    """Why the task's Pods are invalid, or empty; an error that prevents the check becomes a note."""
    task, _ = read_task(proposal.raw)
    if not task.metadata.uid:
        return ""  # a Pod names its owner by UID; the notes have the reason why the task was not checked
    try:
        refusals = await refusals_of(session.client, task, revision_of(task.spec, task.status))
    except ApiError as error:
        if error.status and not error.transient:
            proposal.notes.append(f"its pods: {explain(error, session.client.host)}")
            return ""
        raise
    for refusal in refusals:
        proposal.refusals.append(f"{document.place(refusal.partition(':')[0])}: {one_line(refusal)}")
    return "; ".join(refusals)
