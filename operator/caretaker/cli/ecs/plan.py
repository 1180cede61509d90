"""caretaker plan of a DaemonTask with an ECS target: which desired counts it would set.

The task is submitted as a dry run. ECS is queried with the user's credentials, by the operator's own calls.
No service is changed, and no message is received.
"""

from collections.abc import Sequence

import msgspec

from caretaker.cli.ecs.cluster_forecast import ClusterForecast, clusters_of, problems_of
from caretaker.cli.manifest import Document
from caretaker.cli.propose import Planned, Proposal
from caretaker.cli.text import one_line, table
from caretaker.daemontask.resource import RawTask, read_ecs

_CREDENTIALS_NOTE = (
    "ECS was asked as you, with credentials of the standard chain (AWS_PROFILE, ...), and not as the "
    "operator: what is refused to you may be allowed to it, and whether --aws-identities grants the "
    "namespace what the spec names is not looked at"
)


async def plan(document: Document, proposal: Proposal[RawTask]) -> Planned:
    """The forecast for each cluster."""
    task, invalid = read_ecs(proposal.raw)
    refusals = list(proposal.refusals)
    if invalid and not refusals:
        refusals.append(f"{document.place('spec.ecs')}: {one_line(invalid)}")
    spec = task.spec.ecs
    if refusals or spec is None:
        text = [f"DaemonTask {document.name}: refused", *(f"  note: {note}" for note in proposal.notes)]
        return Planned(text, {"name": document.name, "faults": refusals, "notes": proposal.notes}, refusals)
    # boto3 takes half a second to import: only the plan of this target imports it.
    from caretaker.cli.ecs.aws_query import observe  # noqa: PLC0415

    found, problem = await observe(spec)
    faults = [f"{document.place('spec.ecs')}: {one_line(line)}" for line in problems_of(spec, found, problem)]
    notes = notes_of(proposal.notes, problem)
    exists = "exists" if proposal.before is not None else "new"
    text = [
        f"DaemonTask {document.name} ({exists}): service {spec.service}, {clusters_of(spec, found, problem)}",
        *(["  suspended: nothing is set until spec.suspend is false"] if task.spec.suspend else []),
        *(f"  note: {note}" for note in notes),
        *_rows(found),
    ]
    json = {
        "name": document.name,
        "exists": proposal.before is not None,
        "faults": faults,
        "notes": notes,
        "service": spec.service,
        "clusters": msgspec.to_builtins(found),
    }
    return Planned(text, json, faults)


def notes_of(notes: Sequence[str], problem: str) -> list[str]:
    """Checks that were not possible, and the credentials that were used: after a plan without a fault the
    task may still get NotGranted."""
    return [*notes, *([problem] if problem else []), _CREDENTIALS_NOTE]


def _rows(found: Sequence[ClusterForecast]) -> list[str]:
    if not found:
        return []
    rows = [("CLUSTER", "INSTANCES", "DESIRED", "WOULD BE", "WHAT")]
    for one in found:
        numbers = [
            "-" if value is None else str(value) for value in (one.instances, one.desired, one.would_be)
        ]
        rows.append((one.cluster, numbers[0], numbers[1], numbers[2], one.problem or one.message or "-"))
    return ["", *table(rows)]
