"""caretaker plan of a DaemonTask with an ECS target: which desired counts it would set.

The task is submitted as a dry run. ECS is queried with the user's credentials, by the operator's own calls. A
write is assumed to succeed, and no message is received. The error of a failed call becomes part of the result
and is not raised.
"""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from caretaker.api.ecs import EcsSpec
from caretaker.aws.calls import Aws
from caretaker.aws.ecs import Ecs
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.services import read_only
from caretaker.aws.session import Options
from caretaker.cli.manifest import Document
from caretaker.cli.plan import ASKED_AS_YOU, Planned, Proposal, noted, refused
from caretaker.cli.text import CREDENTIALS_ADVICE, cell, number, one_line, section
from caretaker.daemontask.ecs import check
from caretaker.daemontask.ecs.check import ABSENT, Answer, ServiceState, UnclearError
from caretaker.daemontask.ecs.worker import listed, send
from caretaker.daemontask.resource import RawTask, read_ecs


class ClusterForecast(msgspec.Struct, frozen=True, rename="camel"):
    """One cluster. `would_be`: the desired count that would be set, None where it stays."""

    cluster: str
    instances: int | None = None
    desired: int | None = None
    would_be: int | None = None
    reason: str = ""
    message: str = ""
    problem: str = ""  # why it could not be checked


async def plan(document: Document, proposal: Proposal[RawTask]) -> Planned:
    """The forecast for each cluster."""
    task, invalid = read_ecs(proposal.raw)
    refusals = list(proposal.refusals)
    if invalid and not refusals:
        refusals.append(f"{document.place('spec.ecs')}: {one_line(invalid)}")
    spec = task.spec.ecs
    if refusals or spec is None:
        return refused(f"DaemonTask {document.name}", {"name": document.name}, refusals, proposal.notes)
    found, problem = await _observe(spec)
    faults = [f"{document.place('spec.ecs')}: {one_line(line)}" for line in problems_of(spec, found, problem)]
    notes = notes_of(proposal.notes, problem)
    rows = [
        (one.cluster, *map(cell, (one.instances, one.desired, one.would_be, one.problem or one.message)))
        for one in found
    ]
    text = [
        f"DaemonTask {document.name} ({proposal.exists}): service {spec.service}, "
        f"{clusters_of(spec, found, problem)}",
        *(["  suspended: nothing is set until spec.suspend is false"] if task.spec.suspend else []),
        *noted(notes),
        *section("CLUSTER  INSTANCES  DESIRED  WOULD BE  WHAT", rows),
    ]
    json = {
        "name": document.name,
        "exists": proposal.before is not None,
        "faults": faults,
        "notes": notes,
        "service": spec.service,
        "clusters": found,
    }
    return Planned(text, json, faults)


def notes_of(notes: Sequence[str], problem: str) -> list[str]:
    """Checks that were not possible, and the credentials that were used: after a plan without a fault the
    task may still get NotGranted."""
    grants = "the grants of --aws-identities for the namespace are not checked"
    return [*notes, *([problem] if problem else []), f"{ASKED_AS_YOU.format('ECS')}, and {grants}"]


def clusters_of(spec: EcsSpec, found: Sequence[ClusterForecast], problem: str = "") -> str:
    """`3 clusters, 2 desired counts would be set`. `problem`: why they could not be listed."""
    if problem:
        return "its clusters could not be listed"
    changes = sum(one.would_be is not None for one in found)
    which = "named" if spec.clusters else f"that run{'s' * (len(found) == 1)} it"
    return f"{number(len(found), 'cluster')} {which}, {number(changes, 'desired count')} would be set"


def problems_of(spec: EcsSpec, found: Sequence[ClusterForecast], problem: str = "") -> Iterator[str]:
    """The problems of the task that do not depend on the user's credentials; `problem`: why the clusters
    could not be listed."""
    if problem:
        yield f"the clusters that run the service {spec.service} could not be listed: {problem}"
        return
    for one in found:
        if one.reason and one.instances is None:
            yield one.message
    if not spec.clusters and not found:
        yield f"no cluster in {spec.aws.region} runs the service {spec.service}"


async def _observe(spec: EcsSpec) -> tuple[list[ClusterForecast], str]:
    """(a row for each cluster, why they could not be listed or "")."""
    # The role that the spec names is the operator's to assume.
    aws = replace(spec.aws.spec, role_arn="", external_id="")
    async with Aws(Options(instance_identity=True)) as calls:
        ecs = read_only(calls.ecs(ClientKey.of(aws, "ecs")))
        names: Sequence[str] = spec.clusters
        if not names:
            try:
                names = await listed(ecs)
            except (AwsError, UnclearError) as error:
                return [], _problem_text(error)
        forecasts = await asyncio.gather(*(_forecast(ecs, spec, name) for name in sorted(names)))
    return [one for one in forecasts if spec.clusters or one.reason not in ABSENT], ""


def _problem_text(error: AwsError | UnclearError) -> str:
    """AWS's message, with advice if the user's credentials are missing."""
    no_identity = isinstance(error, AwsError) and error.no_identity
    return f"{error}; {CREDENTIALS_ADVICE}" if no_identity else str(error)


async def _forecast(ecs: Ecs, spec: EcsSpec, name: str) -> ClusterForecast:
    params = check.CheckParams(
        name,
        spec.service,
        spec.count_instances,
        learn=False,
        max_count=spec.max_count,
        max_decrease_percent=spec.max_decrease_percent,
    )
    generator = check.check(params)
    answer: Answer | None = None
    try:
        while not isinstance(step := check.following(generator, answer), ServiceState):
            answer = {} if step.method == "update_service" else await send(ecs, step)
    except (AwsError, UnclearError) as error:
        if isinstance(error, UnclearError) or not error.not_found:
            return ClusterForecast(name, problem=_problem_text(error))
        step = check.no_cluster(name)
    before = step.desired if step.was is None else step.was
    would_be = None if step.was is None else step.desired
    return ClusterForecast(name, step.counted, before, would_be, step.reason, step.message)
