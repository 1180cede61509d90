"""caretaker plan of an S3AggregatedRefresh: its queues and targets, and its next calls.

The resource is submitted as a dry run, AWS is queried with the user's credentials, and the operator's planner
makes the forecast. No message is received or deleted, and no target is refreshed.
"""

import time
from collections.abc import Sequence

from caretaker.cli.common import Session, UsageError
from caretaker.cli.manifest import Document
from caretaker.cli.options import PlanOptions
from caretaker.cli.propose import Planned, propose
from caretaker.cli.s3refresh.aws_state import faults_of
from caretaker.cli.s3refresh.plan_text import RefreshForecast, as_json, as_text, refused
from caretaker.cli.s3refresh.samples import objects_in, samples_of
from caretaker.cli.text import one_line
from caretaker.s3refresh.forecast import outlooks
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.targets import registry


def check(options: PlanOptions, documents: Sequence[Document]) -> None:
    """Samples must be objects, and need an S3AggregatedRefresh."""
    if objects_in(options.samples) and not documents:
        raise UsageError("--sample is about an S3AggregatedRefresh, and there is none in the files")


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """The forecast for each target."""
    proposal = await propose(session, document, RawRefresh)
    if proposal.refusals:
        return refused(proposal, proposal.refusals)
    resource = read(proposal.raw, registry().spec)
    if resource.spec is None:
        return refused(proposal, [f"{document.place('spec')}: {one_line(resource.invalid)}"])
    # boto3 takes half a second to import: only the plan of a refresh imports it.
    from caretaker.cli.s3refresh.aws_query import observe  # noqa: PLC0415

    aws_state = await observe(resource.spec, session.client, resource.meta)
    now = time.time()
    forecast = RefreshForecast(
        proposal=proposal,
        read=resource,
        aws_state=aws_state,
        outlooks=outlooks(resource, now, aws_state.shares),
        samples=samples_of(resource.spec, aws_state.shares, objects_in(options.samples)),
        now=now,
    )
    faults = [
        f"{document.place(field)}: {one_line(f'{field}: {said}')}" for field, said in faults_of(aws_state)
    ]
    return Planned(as_text(forecast, wide=options.wide), as_json(forecast, faults), faults)
