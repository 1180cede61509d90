"""A resource of a file as the API server would store it: a dry run, for all kinds; and the output of `plan`.

Inputs: a session and a document. No object is changed; a check that the server does not permit becomes a
note.
"""

from collections.abc import Iterable
from typing import Any, Generic

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.cli.common import R, Session, UsageError, explain, kind_missing
from caretaker.cli.manifest import Document
from caretaker.cli.text import one_line
from caretaker.kube.errors import STRICT_DRY_RUN, ApiError, faults_in


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
                content_type="application/json-patch+json",
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


def _replacement(existing: WireMeta, body: dict[str, Any]) -> bytes:
    """Spec as in the file, annotations and labels of the file beside those that stand: as apply does it."""
    meta = body["metadata"]
    changes: list[dict[str, Any]] = [{"op": "add", "path": "/spec", "value": body.get("spec")}]
    for key, before in (("annotations", existing.annotations), ("labels", existing.labels)):
        if meta.get(key):
            changes.append(
                {"op": "add", "path": f"/metadata/{key}", "value": {**(before or {}), **meta[key]}}
            )
    return msgspec.json.encode(changes)


def _local(body: dict[str, Any], before: R | None, wanted: type[R]) -> R:
    """The resource from the file alone."""
    annotations = body["metadata"].get("annotations")
    existing = before.metadata if before else WireMeta(name=body["metadata"]["name"])
    meta = msgspec.structs.replace(
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
