"""caretaker plan of an S3AggregatedRefresh: what it would read and refresh, and when.

The resource is submitted as a dry run, AWS is asked as whoever runs the command; the planner's own parts do
the rest. Nothing is received, deleted or refreshed.
"""

import time
from collections.abc import Sequence

from caretaker.cli.common import Session, UsageError
from caretaker.cli.manifest import Document
from caretaker.cli.options import PlanOptions
from caretaker.cli.propose import Planned, propose
from caretaker.cli.s3refresh.found import faults_of
from caretaker.cli.s3refresh.plan_text import Prospect, as_json, as_text, refused
from caretaker.cli.s3refresh.samples import objects_in, samples_of
from caretaker.cli.text import one_line
from caretaker.s3refresh.forecast import outlooks
from caretaker.s3refresh.resource import RawRefresh, read
from caretaker.s3refresh.targets.making import known


def check(options: PlanOptions, documents: Sequence[Document]) -> None:
    """Samples are of objects, and somebody must be asked about them."""
    if objects_in(options.samples) and not documents:
        raise UsageError("--sample is about an S3AggregatedRefresh, and there is none in the files")


async def plan(session: Session, document: Document, options: PlanOptions) -> Planned:
    """What AWS has, and what follows for each target."""
    proposal = await propose(session, document, RawRefresh)
    if proposal.refusals:
        return refused(proposal, proposal.refusals)
    judged = read(proposal.raw, known().spec)
    if judged.spec is None:
        return refused(proposal, [f"{document.place('spec')}: {one_line(judged.invalid)}"])
    # boto3 takes half a second to import: paid by those who plan a refresh alone.
    from caretaker.cli.s3refresh.aws_query import observe  # noqa: PLC0415

    found = await observe(judged.spec, session.client, judged.meta)
    now = time.time()
    prospect = Prospect(
        proposal=proposal,
        read=judged,
        found=found,
        outlooks=outlooks(judged, now, found.shares),
        samples=samples_of(judged.spec, found.shares, objects_in(options.samples)),
        now=now,
    )
    faults = [f"{document.place(field)}: {one_line(f'{field}: {said}')}" for field, said in faults_of(found)]
    return Planned(as_text(prospect, wide=options.wide), as_json(prospect, faults), faults)
