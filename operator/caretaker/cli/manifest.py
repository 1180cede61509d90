"""YAML files of Kubernetes objects, read with line numbers for error messages.

Inputs: text. YAML as kubectl takes it: a timestamp is a string, a repeated key is a fault. Only our kinds are
returned; others may stand in the same file and are named.
"""

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from caretaker.api.names import API_VERSION, GROUP
from caretaker.cli.common import CommandError
from caretaker.registry import DAEMON_TASK, KINDS, KindInfo

# Set by the server; a file that came from `kubectl get -o yaml` has them.
_SERVER_FIELDS: Final = (
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
)
_BY_KIND: Final = {kind.kind: kind for kind in KINDS}
_WRITE: Final = " or ".join(f"kind: {kind}" for kind in _BY_KIND)


class Document(msgspec.Struct, frozen=True):
    """One object of a file."""

    source: str
    body: dict[str, Any]
    node: Any  # the yaml node that it was made from

    @property
    def kind(self) -> KindInfo:
        """The kind of one of our documents."""
        return _BY_KIND[self.body["kind"]]

    @property
    def name(self) -> str:
        """metadata.name."""
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """metadata.namespace, or empty."""
        return str(self.body["metadata"].get("namespace") or "")

    def place(self, field: str = "") -> str:
        """`file:line` of a field such as spec.template.spec.containers[0].image, or of the nearest above."""
        node = self.node
        for step in re.findall(r"[^.\[\]]+", field):
            found = _child(node, step)
            if found is None:
                break
            node = found
        return f"{self.source}:{node.start_mark.line + 1}"


class Manifest(msgspec.Struct, frozen=True):
    """A file: our objects, and all others as `Kind name`."""

    documents: list[Document]
    others: list[str]


def read(source: str, text: str) -> Manifest:
    """Raises CommandError with file, line and fix: bad YAML, no object of ours, a missing metadata.name."""
    try:
        documents = list(_documents(source, text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise CommandError(f"{source}{line}: not YAML: {error.problem or error}; correct the file") from error
    except yaml.YAMLError as error:
        raise CommandError(f"{source}: not YAML: {' '.join(str(error).split())}; correct the file") from error
    manifest = Manifest([], [])
    for document in documents:
        if _is_ours(document):
            manifest.documents.append(_checked(document))
        else:
            kind, name = document.body.get("kind"), (document.body.get("metadata") or {}).get("name", "")
            manifest.others.append(f"{kind} {name}".strip())
    if not manifest.documents:
        found = f"found {', '.join(manifest.others)}" if manifest.others else "it is empty"
        where = documents[0].place("kind") if documents else source
        raise CommandError(f"{where}: there is nothing of {GROUP} ({found}); give a file with {_WRITE}")
    return manifest


def _documents(source: str, text: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            body = loader.construct_document(node)
            if node is None or body is None:
                continue
            if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
                line = node.start_mark.line + 1
                raise CommandError(
                    f"{source}:{line}: not a Kubernetes object: "
                    f"add apiVersion: {API_VERSION} and kind, such as {DAEMON_TASK.kind}"
                )
            yield from _expand(Document(source, body, node))
    finally:
        loader.dispose()


def _expand(document: Document) -> Iterator[Document]:
    """The items of a `kind: List`, as kubectl writes several objects; any other object is itself."""
    items = _child(document.node, "items")
    if document.body["kind"] != "List" or items is None:
        yield document
        return
    for body, node in zip(document.body["items"] or (), items.value, strict=True):
        yield Document(document.source, body, node)


def _is_ours(document: Document) -> bool:
    """CommandError for a misspelt kind of our group, or another version."""
    kind, version = str(document.body.get("kind")), str(document.body.get("apiVersion") or "")
    ours = version.partition("/")[0] == GROUP
    if ours and kind not in _BY_KIND:
        close = difflib.get_close_matches(kind, _BY_KIND, n=1, cutoff=0.6)
        write = f"kind: {close[0]}" if close else _WRITE
        raise CommandError(f"{document.place('kind')}: kind: {kind} is not known in {GROUP}; write {write}")
    if (ours or kind in _BY_KIND) and version != API_VERSION:
        where = document.place("apiVersion")
        raise CommandError(f"{where}: apiVersion: {version or 'missing'}; write apiVersion: {API_VERSION}")
    return ours


def _checked(document: Document) -> Document:
    """Without the fields that the server sets; CommandError if metadata.name is missing."""
    meta = document.body.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not isinstance(name, str) or not name:
        raise CommandError(f"{document.place('metadata')}: metadata.name is missing or no string; name it")
    kept = {key: value for key, value in meta.items() if key not in _SERVER_FIELDS}
    body = {key: value for key, value in document.body.items() if key != "status"}
    return Document(document.source, {**body, "metadata": kept}, document.node)


def _child(node: Any, step: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        return node.value[int(step)]
    return None


class _Loader(yaml.SafeLoader):
    """SafeLoader without timestamps, and with the key at fault where one is repeated."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As SafeLoader's."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                problem = f"the key {key.value} stands here a second time"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key.value, str) else "")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
