"""caretaker plan: what a DaemonTask would do on the cluster, changing nothing.

The task and its Pod are submitted as dry runs; the planner that the operator runs does the rest.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.cli import manifest
from caretaker.cli.common import (
    Failure,
    Session,
    Usage,
    add_connection,
    command,
    execute,
    explain,
    kind_missing,
)
from caretaker.cli.manifest import Document
from caretaker.cli.plan_text import Proposal, as_json, as_text
from caretaker.cli.text import one_line
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.inspect import observe
from caretaker.daemontask.pods import revision_of
from caretaker.daemontask.resource import (
    STRICT_DRY_RUN,
    RawTask,
    faults_in,
    read_task,
    refusals_of,
    task_path,
)
from caretaker.kube.errors import ApiError


def add(commands: Any) -> None:
    """Declare the command."""
    parser = command(
        commands,
        "plan",
        "show what a DaemonTask would do on the cluster, changing nothing",
        example="caretaker plan -f task.yaml\ncat task.yaml | caretaker plan -f - -o json",
    )
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML file; - is stdin; repeatable",
    )
    parser.add_argument("-o", "--output", choices=("json", "wide"), help="json, or wide: every node")
    add_connection(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Exit code 1 when the server refuses a task or its Pods."""
    documents, others = _read(args.filename)

    async def body(session: Session) -> int:
        planned = [await _plan(session, document) for document in documents]
        if args.output == "json":
            encoded = msgspec.json.encode({"tasks": [as_json(p, f) for p, f in planned]})
            print(msgspec.json.format(encoded, indent=2).decode())
        else:
            for number, (proposal, made) in enumerate(planned):
                print("\n" * bool(number) + "\n".join(as_text(proposal, made, wide=args.output == "wide")))
            if others:
                print(f"\nnot looked at: {', '.join(others)}")
        refusals = [line for proposal, _ in planned for line in proposal.refusals]
        if refusals:
            raise Failure("\n".join(refusals))
        return 0

    return execute(args, body)


def _read(files: list[str]) -> tuple[list[Document], list[str]]:
    if files.count("-") > 1:
        raise Usage("stdin can be read once: give -f - one time")
    documents: list[Document] = []
    others: list[str] = []
    for file in files:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise Failure(f"{file}: cannot be read: {why}; give the path of a YAML file") from error
        found = manifest.read("<stdin>" if file == "-" else file, text)
        documents += found.tasks
        others += found.others
    return documents, others


# -------------------------------------------------------------------- asking


async def _plan(session: Session, document: Document) -> tuple[Proposal, Forecast | None]:
    """The proposal, and the forecast unless the server refuses the task itself."""
    namespace = document.namespace or session.namespace
    given = session.settings.namespace
    if document.namespace and given and given != document.namespace:
        raise Usage(
            f"{document.place('metadata.namespace')}: namespace {document.namespace} is not the "
            f"-n {given} asked for; leave one of them out"
        )
    proposal = await _propose(session, document, namespace)
    if proposal.refusals:
        return proposal, None
    snapshot = await observe(session.client, proposal.raw, session.scale)
    invalid = (
        snapshot.invalid if read_task(proposal.raw)[1] else await _check_pods(session, document, proposal)
    )
    return proposal, forecast(msgspec.structs.replace(snapshot, invalid=invalid))


async def _propose(session: Session, document: Document, namespace: str) -> Proposal:
    """The task after a dry-run create, or a dry-run replacement of the spec that stands."""
    before = await _existing(session, namespace, document.name)
    body = {**document.body, "metadata": {**document.body["metadata"], "namespace": namespace}}
    try:
        if before is None:
            raw = await session.client.create(task_path(namespace), body, RawTask, params=STRICT_DRY_RUN)
        else:
            raw = await session.client.patch(
                task_path(namespace, document.name),
                _replacement(before, body),
                RawTask,
                content_type="application/json-patch+json",
                params=STRICT_DRY_RUN,
            )
    except ApiError as error:
        local = _local(body, before)
        if error.invalid or error.status == 400:
            return Proposal(local, before, refusals=_refusals(document, error))
        if error.not_found and not kind_missing(error):
            why = f"not checked by the API server, since there is no namespace {namespace} yet"
            return Proposal(local, before, notes=[why])
        if error.forbidden:
            why = f"not checked by the API server: {explain(error, session.client.host)}"
            return Proposal(local, before, notes=[why])
        raise
    return Proposal(raw, before, notes=[])


async def _existing(session: Session, namespace: str, name: str) -> RawTask | None:
    try:
        found = await session.client.get(task_path(namespace, name), RawTask)
    except ApiError as error:
        if error.not_found and not kind_missing(error):
            return None
        raise
    # One that is being deleted makes room for another task, with a UID and a ledger of its own.
    return None if found.metadata.deletion_timestamp else found


def _replacement(before: RawTask, body: dict[str, Any]) -> bytes:
    """Spec as in the file, annotations and labels of the file beside those that stand: as apply does it."""
    meta = body["metadata"]
    changes: list[dict[str, Any]] = [{"op": "add", "path": "/spec", "value": body.get("spec")}]
    for key, standing in (("annotations", before.metadata.annotations), ("labels", before.metadata.labels)):
        if meta.get(key):
            changes.append(
                {"op": "add", "path": f"/metadata/{key}", "value": {**(standing or {}), **meta[key]}}
            )
    return msgspec.json.encode(changes)


def _local(body: dict[str, Any], before: RawTask | None) -> RawTask:
    """The task as far as the file tells."""
    own = body["metadata"].get("annotations")
    standing = before.metadata if before else WireMeta(name=body["metadata"]["name"])
    meta = msgspec.structs.replace(
        standing,
        namespace=body["metadata"]["namespace"],
        annotations={**(standing.annotations or {}), **(own if isinstance(own, dict) else {})},
    )
    spec = msgspec.Raw(msgspec.json.encode(body.get("spec")))
    return RawTask(meta, spec, before.status if before else msgspec.Raw(b"{}"))


def _refusals(document: Document, error: ApiError) -> list[str]:
    """What the server refuses, each with file and line."""
    return [
        f"{document.place(field)}: {one_line(f'{field}: {said}' if field else said)}"
        for field, said in faults_in(error)
    ]


async def _check_pods(session: Session, document: Document, proposal: Proposal) -> str:
    """Why the task's Pods are invalid, or empty; what keeps the server from telling is noted."""
    task, _ = read_task(proposal.raw)
    if not task.metadata.uid:
        return ""  # a Pod names its owner by UID; what kept the task from being checked is noted
    try:
        refusals = await refusals_of(session.client, task, revision_of(task.spec))
    except ApiError as error:
        if error.status and not error.transient:
            proposal.notes.append(f"its pods: {explain(error, session.client.host)}")
            return ""
        raise
    for refusal in refusals:
        proposal.refusals.append(f"{document.place(refusal.partition(':')[0])}: {one_line(refusal)}")
    return "; ".join(refusals)
