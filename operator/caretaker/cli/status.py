"""caretaker status: the state of a resource, with actions for its problems. Each kind has its own."""

import argparse
from typing import Any

from caretaker.cli.common import Session, add_connection, add_named, command, execute, named
from caretaker.cli.kinds import KIND_COMMANDS, commands_of


def add(commands: Any) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "status",
        "show each node of a task or policy, each target of a refresh, and what to do where one is stuck",
        example="caretaker status daemontask hello\n"
        "caretaker status dtask/hello -n ops --watch\n"
        "caretaker status s3ar/exports\n"
        "caretaker status imdspolicy workers\n"
        "caretaker status daemontask hello -o json",
    )
    add_named(parser, [kind_commands.kind for kind_commands in KIND_COMMANDS])
    parser.add_argument(
        "-w", "--watch", action="store_true", help="follow it until there is nothing left to do"
    )
    parser.add_argument(
        "-o", "--output", choices=("json", "wide"), help="json, or wide: every row and column"
    )
    add_connection(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Exit code 0 when it could be read; with --watch, 1 when it ended in a failure."""
    kind, name = named(args.resource, [kind_commands.kind for kind_commands in KIND_COMMANDS])

    async def body(session: Session) -> int:
        return await commands_of(kind).status(session, name, args.output, args.watch)

    return execute(args, body)
