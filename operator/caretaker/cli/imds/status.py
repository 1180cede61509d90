"""caretaker status of an IMDSPolicy: the operator's findings, each with an action."""

import time
from functools import partial
from typing import Any

import msgspec

from caretaker.cli.common import Session, UsageError, get
from caretaker.cli.diagnostics import diagnostics, ready_line
from caretaker.cli.imds.advice import abnormal_conditions, advice
from caretaker.cli.imds.sources import sources
from caretaker.cli.imds.tables import canaries, exceptions, groups, summary
from caretaker.imds.resource import RawPolicy, Read, read
from caretaker.registry import IMDS_POLICY as KIND


async def status(session: Session, name: str, output: str | None, watch: bool) -> int:
    """0 when it could be read."""
    if watch:
        raise UsageError(
            f"a policy has no end to watch for; kubectl get imdspolicy {name} --watch follows it"
        )
    policy = read(await get(session, KIND, name, RawPolicy))
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(as_json(policy)), indent=2).decode())
    else:
        print("\n".join(as_text(policy, time.time(), wide=output == "wide")))
    return 0


def as_json(policy: Read) -> dict[str, Any]:
    """For programs."""
    meta, status = policy.meta, msgspec.to_builtins(policy.status)
    return {"name": meta.name, "generation": meta.generation, **status}


def as_text(policy: Read, now: float, *, wide: bool) -> list[str]:
    """Text output: summary, problems with their fixes, canaries, groups, exceptions."""
    status = policy.status
    lines = [f"IMDSPolicy {policy.meta.name}: {summary(status.summary)}"]
    abnormal = abnormal_conditions(status.conditions)
    problems = diagnostics(
        policy.meta, status.observed_generation, abnormal, partial(advice, enforces=policy.enforces)
    )
    lines += [f"  {line}" for line in (*ready_line(status.conditions, now), *problems)]
    return [
        *lines,
        *canaries(status.canary),
        *groups(status.groups, status.groups_omitted),
        *exceptions(status.exceptions, status.exceptions_omitted, wide=wide),
        *sources(status.groups),
    ]
