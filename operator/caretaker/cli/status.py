"""caretaker status: the state of a resource, with actions for its problems. Each kind has its own."""

import argparse
from typing import Any

from caretaker.cli.common import Session, command, execute
from caretaker.cli.kinds import status_of
from caretaker.registry import KINDS


def add(commands: Any) -> argparse.ArgumentParser:
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
        kinds=KINDS,
    )
    parser.add_argument(
        "-w", "--watch", action="store_true", help="follow it until there is nothing left to do"
    )
    parser.add_argument(
        "-o", "--output", choices=("json", "wide"), help="json, or wide: every row and column"
    )
    return parser


def main(args: argparse.Namespace) -> int:
    """Exit code 0 when it could be read; with --watch, 1 when it ended in a failure."""

    async def body(session: Session) -> int:
        return await status_of(args.kind)(session, args.name, args.output, args.watch)

    return execute(args, body)
