"""What ECS says of the clusters that a task means, asked as whoever runs the command.

Inputs: the spec. It only reads: the call that would change something is taken for made. A call that fails is
told, never raised.
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
from caretaker.cli.ecs.looking import Found
from caretaker.daemontask.ecs.check import (
    ABSENT,
    Answer,
    UnclearError,
    Verdict,
    Wanted,
    check,
    following,
    no_cluster,
)
from caretaker.daemontask.ecs.worker import listed, send


async def observe(spec: EcsSpec) -> tuple[list[Found], str]:
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
                return [], _told(error)
        found = await asyncio.gather(*(_look(ecs, spec, name) for name in sorted(names)))
    return [one for one in found if spec.clusters or one.reason not in ABSENT], ""


def _told(error: AwsError | UnclearError) -> str:
    """AWS's words, and what mends it where it is the caller's to mend."""
    mine = isinstance(error, AwsError) and error.no_identity
    return f"{error}; {CREDENTIALS_ADVICE}" if mine else str(error)


async def _look(ecs: Ecs, spec: EcsSpec, name: str) -> Found:
    looking = check(
        Wanted(
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
        while not isinstance(step := following(looking, answer), Verdict):
            answer = {} if step.method == "update_service" else await send(ecs, step)
    except (AwsError, UnclearError) as error:
        if isinstance(error, UnclearError) or not error.not_found:
            return Found(name, problem=_told(error))
        step = no_cluster(name)
    before = step.desired if step.was is None else step.was
    would_be = None if step.was is None else step.desired
    return Found(name, step.counted, before, would_be, step.reason, step.message)
