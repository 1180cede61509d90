"""caretaker plan: a forecast for the resources of a file, without changes. Each kind has its own."""

import argparse
import sys
from pathlib import Path
from typing import Any

from caretaker.cli import manifest
from caretaker.cli.common import CommandError, Session, UsageError, add_connection, command, execute
from caretaker.cli.kinds import KIND_COMMANDS, commands_of
from caretaker.cli.manifest import Manifest
from caretaker.cli.options import PlanOptions
from caretaker.cli.text import json_text


def add(commands: Any) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "plan",
        "show what resources would do, changing nothing",
        example="caretaker plan -f task.yaml\n"
        "cat task.yaml | caretaker plan -f - -o json\n"
        "caretaker plan -f refresh.yaml --sample s3://bucket/in/2026/a.csv",
    )
    parser.description = (
        "Show what resources would do, changing nothing. For an S3AggregatedRefresh, an IMDSPolicy or "
        "spec.ecs AWS is asked too, as you and not as the operator: your credentials come from the "
        "standard chain (AWS_PROFILE, ...)."
    )
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML file; - is stdin; repeatable",
    )
    parser.add_argument("-o", "--output", choices=("json", "wide"), help="json, or wide: nothing is cut")
    parser.add_argument(
        "--sample",
        action="append",
        default=[],
        metavar="s3://BUCKET/KEY",
        help="S3AggregatedRefresh: tell what an event of this object would make stale; repeatable",
    )
    add_connection(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Exit code 1 when a refusal or a fault would keep a resource from working."""
    found = _read(args.filename)
    options = PlanOptions(wide=args.output == "wide", samples=tuple(args.sample))
    for kind_commands in KIND_COMMANDS:
        kind_commands.check(options, [d for d in found.documents if d.kind == kind_commands.kind])

    async def body(session: Session) -> int:
        planned = [(d, await commands_of(d.kind).plan(session, d, options)) for d in found.documents]
        if args.output == "json":
            by_kind = {
                kind_commands.key: [p.json for d, p in planned if d.kind == kind_commands.kind]
                for kind_commands in KIND_COMMANDS
            }
            print(json_text(by_kind))
        else:
            for number, (_, one) in enumerate(planned):
                print("\n" * bool(number) + "\n".join(one.text))
            if found.others:
                print(f"\nnot looked at: {', '.join(found.others)}")
        faults = [line for _, one in planned for line in one.faults]
        if faults:
            raise CommandError("\n".join(faults))
        return 0

    return execute(args, body)


def _read(files: list[str]) -> Manifest:
    if files.count("-") > 1:
        raise UsageError("stdin can be read once: give -f - one time")
    every = Manifest([], [])
    for file in files:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise CommandError(f"{file}: cannot be read: {why}; give the path of a YAML file") from error
        found = manifest.read("<stdin>" if file == "-" else file, text)
        every.documents.extend(found.documents)
        every.others.extend(found.others)
    return every
