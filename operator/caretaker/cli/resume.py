"""caretaker resume: let a rollout that failurePolicy has paused go on.

Writes the annotation caretaker.dev/resume-at and nothing else.
"""

import argparse
from typing import Any

from caretaker.api import names
from caretaker.api.times import format_micros, stamp_after
from caretaker.cli.common import (
    Failure,
    Session,
    add_connection,
    add_named,
    command,
    execute,
    get_task,
    named,
)
from caretaker.cli.rerun import annotate
from caretaker.cli.text import number
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.inspect import observe


def add(commands: Any) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "resume",
        "go on with a task that failurePolicy has paused",
        example="caretaker resume daemontask hello",
    )
    add_named(parser)
    add_connection(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Failed nodes up to now no longer hold the rollout."""
    _, name = named(args.resource)

    async def body(session: Session) -> int:
        raw = await get_task(session, name)
        made = forecast(await observe(session.client, raw, session.scale))
        policy = made.snapshot.task.spec.failure_policy
        if policy.action != "Pause":
            raise Failure(
                f"DaemonTask {name} is never paused, since its failurePolicy.action is {policy.action}: "
                "nothing to resume"
            )
        # A node's clock may be ahead of ours: its failure would count as one that came later.
        ends = [format_micros(r.entry.finished_at) for r in made.plan.failed if r.entry is not None]
        stamp = stamp_after(made.snapshot.now, ends)
        await annotate(session, raw, lambda _: {names.RESUME_AT: stamp})
        print(_told(name, made.plan.hold, len(made.plan.failed)))
        return 0

    return execute(args, body)


def _told(name: str, hold: str, failed: int) -> str:
    those = f"{number(failed, 'failed node')} up to now"
    if hold == "Paused":
        return f"DaemonTask {name} goes on; {those} no longer hold it"
    why = {"Suspended": "it is suspended: set spec.suspend to false", "": "nothing held it"}.get(hold, hold)
    return f"DaemonTask {name} was not paused ({why}); {those} will not pause it"
