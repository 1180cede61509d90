"""caretaker plan: a forecast for the resources of a file, without changes. Each kind has its own.

A resource is submitted as a dry run, so that it is as the API server would store it. A check that the server
does not permit becomes a note.
"""

import argparse
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic

import msgspec
from msgspec.structs import replace

from caretaker.api.objects import WireMeta
from caretaker.cli import manifest
from caretaker.cli.common import (
    CommandError,
    R,
    Session,
    UsageError,
    command,
    execute,
    explain,
    kind_missing,
)
from caretaker.cli.manifest import Document, Manifest
from caretaker.cli.text import json_text, one_line
from caretaker.kube.errors import STRICT_DRY_RUN, ApiError, faults_in
from caretaker.registry import KINDS, S3_AGGREGATED_REFRESH, KindInfo

# For plans that call AWS.
ASKED_AS_YOU: Final = (
    "{} was asked as you, with credentials of the standard chain (AWS_PROFILE, ...), and not as the "
    "operator: AWS may allow the operator calls that it refuses you"
)
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
        planned: list[tuple[Document, Planned]] = [
            (d, await plan_of(d.kind)(session, d, options)) for d in found.documents
        ]
        if args.output == "json":
            found_of = {kind.plan_key: [one.json for d, one in planned if d.kind == kind] for kind in KINDS}
            print(json_text(found_of))
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


# ---------------------------------------------------------------- a resource of a file


class Proposal(msgspec.Struct, Generic[R], frozen=True):
    """A resource as the server would store it, or as the file has it where the server may not be asked."""

    raw: R
    before: R | None  # the resource that exists
    refusals: list[str] = []  # why the server refuses it, each with its line
    notes: list[str] = []

    @property
    def exists(self) -> str:
        """`exists` or `new`."""
        return "new" if self.before is None else "exists"


class PlanOptions(msgspec.Struct, frozen=True):
    """The flags of `plan`. A kind ignores those that mean nothing to it."""

    wide: bool = False
    samples: tuple[tuple[str, str], ...] = ()  # (bucket, key)


class Planned(msgspec.Struct, frozen=True):
    """The output of `caretaker plan` for one resource."""

    text: list[str]
    json: dict[str, Any]
    faults: list[str]  # each with its line; any fault means exit code 1


Plan = Callable[[Session, Document, PlanOptions], Awaitable[Planned]]


def plan_of(kind: KindInfo) -> Plan:
    """`plan` of the kind. Loaded when it is needed: boto3 takes half a second."""
    plan: Plan = import_module(f"caretaker.cli.{kind.package}.plan").plan
    return plan


def refused(title: str, head: dict[str, Any], faults: list[str], notes: list[str]) -> Planned:
    """The output for a refused resource; `head`: the first fields of its JSON."""
    return Planned([f"{title}: refused", *noted(notes)], {**head, "faults": faults, "notes": notes}, faults)


def noted(notes: Iterable[str]) -> list[str]:
    """A line for each note."""
    return [f"  note: {note}" for note in notes]


async def propose(session: Session, document: Document, wanted: type[R]) -> Proposal[R]:
    """The resource after a dry-run create, or a dry-run replacement of the spec that stands."""
    namespace = _namespace(session, document)
    before = await _existing(session, document, namespace, wanted)
    scope = {"namespace": namespace} if namespace else {}
    body = {**document.body, "metadata": {**document.body["metadata"], **scope}}
    kind = document.kind
    try:
        if before is None:
            path = kind.path(namespace)
            raw = await session.client.create(path, body, wanted, params=STRICT_DRY_RUN)
        else:
            raw = await session.client.patch(
                kind.path(namespace, document.name),
                _replacement(before.metadata, body),
                wanted,
                params=STRICT_DRY_RUN,
            )
    except ApiError as error:
        local = _local(body, before, wanted)
        if error.invalid or error.status == 400:
            return Proposal(local, before, refusals=_refusals(document, error))
        if error.not_found and kind_missing(error) is None:
            why = f"not checked by the API server, since there is no namespace {namespace} yet"
            return Proposal(local, before, notes=[why])
        if error.forbidden:
            why = f"not checked by the API server: {explain(error, session.client.host)}"
            return Proposal(local, before, notes=[why])
        raise
    return Proposal(raw, before, notes=[])


def _namespace(session: Session, document: Document) -> str:
    if not document.kind.namespaced:
        return ""
    given = session.settings.namespace
    if document.namespace and given and given != document.namespace:
        raise UsageError(
            f"{document.place('metadata.namespace')}: namespace {document.namespace} is not the "
            f"-n {given} asked for; leave one of them out"
        )
    return document.namespace or session.namespace


async def _existing(session: Session, document: Document, namespace: str, wanted: type[R]) -> R | None:
    try:
        found = await session.client.get(document.kind.path(namespace, document.name), wanted)
    except ApiError as error:
        if error.not_found and kind_missing(error) is None:
            return None
        raise
    # An object that is being deleted makes room for another, with a UID and a record of its own.
    return None if found.metadata.deletion_timestamp else found


def _replacement(existing: WireMeta, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Spec as in the file, annotations and labels of the file beside those that stand: as apply does it."""
    meta = body["metadata"]
    changes: list[dict[str, Any]] = [{"op": "add", "path": "/spec", "value": body.get("spec")}]
    for key, before in (("annotations", existing.annotations), ("labels", existing.labels)):
        if meta.get(key):
            changes.append(
                {"op": "add", "path": f"/metadata/{key}", "value": {**(before or {}), **meta[key]}}
            )
    return changes


def _local(body: dict[str, Any], before: R | None, wanted: type[R]) -> R:
    """The resource from the file alone."""
    annotations = body["metadata"].get("annotations")
    existing = before.metadata if before else WireMeta(name=body["metadata"]["name"])
    meta = replace(
        existing,
        namespace=body["metadata"].get("namespace", ""),
        annotations={
            **(existing.annotations or {}),
            **(annotations if isinstance(annotations, dict) else {}),
        },
    )
    members = {
        "metadata": meta,
        "spec": msgspec.Raw(msgspec.json.encode(body.get("spec"))),
        "status": before.status if before else msgspec.Raw(b"{}"),
    }
    return wanted(**members)


def _refusals(document: Document, error: ApiError) -> list[str]:
    """The refused fields, each with file and line."""
    return [
        f"{document.place(field)}: {one_line(f'{field}: {said}' if field else said)}"
        for field, said in faults_in(error)
    ]
