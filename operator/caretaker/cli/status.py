"""caretaker status: each node of a task, as its ledger, its Pods and the planner have it."""

import argparse
from typing import Any

from caretaker.cli import watch
from caretaker.cli.common import Session, add_connection, add_task, command, execute, get_task, task_name
from caretaker.cli.status_text import show
from caretaker.daemontask.forecast import forecast
from caretaker.daemontask.inspect import observe


def add(commands: Any) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "status",
        "show each node of a task, and what to do where it does not go on",
        example="caretaker status daemontask hello\n"
        "caretaker status dtask/hello -n ops --watch\n"
        "caretaker status daemontask hello -o json",
    )
    add_task(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="follow it until it has ended")
    parser.add_argument(
        "-o", "--output", choices=("json", "wide"), help="json, or wide: every node and column"
    )
    add_connection(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Exit code 0 when the task could be read; with --watch, 1 when it ended with failures."""
    name = task_name(args.task)

    async def body(session: Session) -> int:
        raw = await get_task(session, name)
        if args.watch:
            return await watch.follow_to_the_end(session, name, args.output)
        show(forecast(await observe(session.client, raw, session.scale)), args.output)
        return 0

    return execute(args, body)
