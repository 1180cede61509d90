"""Queries ECS for the clusters of a task, with the user's credentials.

Inputs: the spec. It only reads: a write is assumed to succeed. The error of a failed call becomes part of the
result and is not raised.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from caretaker.api.ecs import EcsSpec
from caretaker.aws.calls import Aws
from caretaker.aws.ecs import Ecs
from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.readonly import read_only
from caretaker.aws.session import Options
from caretaker.cli.diagnostics import CREDENTIALS_ADVICE
from caretaker.cli.ecs.cluster_forecast import ClusterForecast
from caretaker.daemontask.ecs.check import (
    ABSENT,
    Answer,
    CheckParams,
    ServiceState,
    UnclearError,
    check,
    following,
    no_cluster,
)
from caretaker.daemontask.ecs.worker import listed, send


async def observe(spec: EcsSpec) -> tuple[list[ClusterForecast], str]:
    """(a row for each cluster, why they could not be listed or "")."""
    # The role that the spec names is the operator's to assume.
    aws = msgspec.structs.replace(spec.aws.spec, role_arn="", external_id="")
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
    generator = check(
        CheckParams(
            name,
            spec.service,
            spec.count_instances,
            learn=False,
            max_count=spec.max_count,
            max_decrease_percent=spec.max_decrease_percent,
        )
    )
    answer: Answer | None = None
    try:
        while not isinstance(step := following(generator, answer), ServiceState):
            answer = {} if step.method == "update_service" else await send(ecs, step)
    except (AwsError, UnclearError) as error:
        if isinstance(error, UnclearError) or not error.not_found:
            return ClusterForecast(name, problem=_problem_text(error))
        step = no_cluster(name)
    before = step.desired if step.was is None else step.was
    would_be = None if step.was is None else step.desired
    return ClusterForecast(name, step.counted, before, would_be, step.reason, step.message)
