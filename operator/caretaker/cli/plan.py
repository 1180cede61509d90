"""caretaker plan: a forecast for the resources of a file, without changes. Each kind has its own."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Final

from caretaker.cli import manifest
from caretaker.cli.common import CommandError, Session, UsageError, command, execute
from caretaker.cli.kinds import key_of, plan_of
from caretaker.cli.manifest import Manifest
from caretaker.cli.propose import PlanOptions
from caretaker.cli.text import json_text
from caretaker.registry import KINDS, S3_AGGREGATED_REFRESH

_OBJECT: Final = re.compile(r"s3://([^/]+)/(.+)", re.DOTALL)


def add(commands: Any) -> argparse.ArgumentParser:
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
    return parser


def main(args: argparse.Namespace) -> int:
    """Exit code 1 when a refusal or a fault would keep a resource from working."""
    found = _read(args.filename)
    options = PlanOptions(wide=args.output == "wide", samples=tuple(map(object_in, args.sample)))
    if options.samples and all(document.kind != S3_AGGREGATED_REFRESH for document in found.documents):
        raise UsageError("--sample is about an S3AggregatedRefresh, and there is none in the files")

    async def body(session: Session) -> int:
        planned = [(d, await plan_of(d.kind)(session, d, options)) for d in found.documents]
        if args.output == "json":
            print(json_text({key_of(kind): [p.json for d, p in planned if d.kind == kind] for kind in KINDS}))
        else:
            print("\n\n".join("\n".join(one.text) for _, one in planned))
            if found.others:
                print(f"\nnot looked at: {', '.join(found.others)}")
        faults = [line for _, one in planned for line in one.faults]
        if faults:
            raise CommandError("\n".join(faults))
        return 0

    return execute(args, body)


def object_in(text: str) -> tuple[str, str]:
    """(bucket, key); UsageError for an invalid one. The key is taken literally, not URL-encoded."""
    found = _OBJECT.fullmatch(text)
    if found is None:
        raise UsageError(f"--sample {text}: write an object as s3://BUCKET/KEY")
    return found[1], found[2]


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
