"""Shared by all commands: the parser, the connection, errors in one line, the resource argument.

Inputs: the command line and, through settings, the environment. It knows no command.
"""

import argparse
import asyncio
import difflib
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from os.path import commonprefix
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from caretaker.api.names import GROUP
from caretaker.api.objects import WireMeta
from caretaker.cli.text import one_line
from caretaker.daemontask.resource import RawTask, has_ecs
from caretaker.kube.client import KubeClient, PartialObjectMetadata
from caretaker.kube.errors import ApiError
from caretaker.kube.transport import resource_of
from caretaker.obs import log
from caretaker.registry import DAEMON_TASK, INSTALL_CRDS, KINDS, KindInfo
from caretaker.settings import Settings, add_connection_arguments, load


class Raw(Protocol):
    """A resource whose spec is not validated yet."""

    metadata: WireMeta
    spec: msgspec.Raw
    status: msgspec.Raw


R = TypeVar("R", bound=Raw)


class CommandError(Exception):
    """The command failed, exit code 1; a line for each reason, each with a fix."""


class UsageError(Exception):
    """The command line is not valid, exit code 2."""


class Parser(argparse.ArgumentParser):
    """argparse, with its errors in one line, and without abbreviated flags: the chart refuses some flags, and
    need not consider their prefixes."""

    def __init__(self, **how: Any) -> None:
        """As argparse; sub-parsers are made by this, too."""
        super().__init__(allow_abbrev=False, **how)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class Session(msgspec.Struct, frozen=True):
    """A connection and its settings."""

    client: KubeClient
    settings: Settings

    @property
    def namespace(self) -> str:
        """-n, else the context's."""
        return self.client.default_namespace


def command(
    commands: Any, name: str, about: str, *, example: str, kinds: Sequence[KindInfo] = ()
) -> argparse.ArgumentParser:
    """A sub-parser whose help ends with examples, one a line; `kinds`: those that it takes a resource of."""
    lines = "".join(f"  {line}\n" for line in example.splitlines())
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if kinds:
        parser.set_defaults(resource_kinds=kinds)
        parser.add_argument(
            "resource",
            nargs="+",
            metavar="KIND NAME" if kinds[1:] else _form(kinds[0]),
            help=f"{' or '.join(map(_form, kinds))}; KIND/NAME and the short "
            f"{'names' if kinds[1:] else 'name'} ({', '.join(kind.short for kind in kinds)}) do as well",
        )
    return parser


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that talks to the API server, which may stand before it as well."""
    add_connection_arguments(parser)
    parser.add_argument(
        "-n",
        dest="namespace",
        default=argparse.SUPPRESS,
        metavar="NAMESPACE",
        help="short for --namespace",
    )


def named(words: Sequence[str], kinds: Sequence[KindInfo]) -> tuple[KindInfo, str]:
    """(kind, name) in the words given; UsageError when they are not a kind and a name."""
    if len(words) > 2 or any("/" in word for word in words[1:]):
        raise UsageError(f"one at a time, and nodes joined by commas, instead of {' '.join(words)}")
    parts = words[0].split("/", 1) if len(words) == 1 else words
    matching = [kind for kind in kinds if parts[0].lower() in aliases_of(kind)]
    if len(parts) != 2 or not parts[1]:
        forms = " or ".join(map(_form, matching or kinds))
        raise UsageError(f"which one? write: {forms}, instead of {' '.join(words)}")
    if not matching and any(parts[0].lower() in aliases_of(kind) for kind in KINDS):
        raise UsageError(f"{parts[0]}: this is about {' and '.join(map(_plural, kinds))} alone")
    if not matching:
        forms = " or ".join(f"{kind.kind.lower()} {parts[1]}" for kind in kinds)
        raise UsageError(f"{parts[0]}: there is no such kind here; write: {forms}")
    return matching[0], parts[1]


def aliases_of(kind: KindInfo) -> tuple[str, ...]:
    """The names that kubectl accepts for the kind, in lower case."""
    return kind.kind.lower(), kind.plural, kind.short, f"{kind.plural}.{GROUP}"


def _plural(kind: KindInfo) -> str:
    """Of the kind, spelt as the kind is: IMDSPolicies."""
    same = len(commonprefix((kind.kind.lower(), kind.plural)))  # noqa: RUF071 - letters are meant
    return kind.kind[:same] + kind.plural[same:]


def _form(kind: KindInfo) -> str:
    return f"{kind.kind.lower()} NAME"


def execute(args: argparse.Namespace, body: Callable[[Session], Awaitable[int]]) -> int:
    """Connect, run `body`, and turn an ApiError into one line."""
    settings = load(args)
    # stdout is for the command's result; logs go to stderr.
    log.setup("json" if vars(args).get("log_format") == "json" else "text", settings.log_level, sys.stderr)

    async def session() -> int:
        async with await KubeClient.connect(
            settings.kubeconfig, settings.context, settings.namespace
        ) as client:
            try:
                return await body(Session(client, settings))
            except ApiError as error:
                raise CommandError(explain(error, client.host)) from error

    return asyncio.run(session())


def explain(error: ApiError, host: str) -> str:
    """One line for a person: the API server's message and a fix."""
    text = one_line(error.message) or error.reason
    if error.status == 0:
        return (
            f"{host} does not answer ({text}): is it up, and are --kubeconfig and --context the right ones?"
        )
    if error.status == 401:
        return f"{host} does not accept your credentials ({text}): renew those of the kubeconfig"
    if error.forbidden and "cannot" in text:
        return f"{text}: ask for a role that allows it, or use another --context"
    if error.forbidden:
        return f"{text}: satisfy the quota or policy that refuses it"
    if (kind := kind_missing(error)) is not None:
        return f"the cluster does not know {kind.kind}: {INSTALL_CRDS} (asked for {error.path})"
    return f"{text} ({f'{error.status} {error.reason}'.rstrip()}, {error.verb} {error.path})"


def kind_missing(error: ApiError) -> KindInfo | None:
    """The kind that a 404 is about, when it is: then it is the router's, not a metav1.Status."""
    if not error.not_found or error.reason:
        return None
    return next((kind for kind in KINDS if kind.plural == resource_of(error.path)), None)


async def get_node_task(session: Session, name: str) -> RawTask:
    """The task. UsageError when it has an ECS target, and so no runs on nodes."""
    raw = await get(session, DAEMON_TASK, name, RawTask)
    if has_ecs(raw):
        raise UsageError(
            f"DaemonTask {name} keeps an ECS service and has no runs on nodes; "
            f"caretaker status daemontask {name} shows its clusters"
        )
    return raw


async def get(session: Session, kind: KindInfo, name: str, wanted: type[R]) -> R:
    """The resource. CommandError with a suggestion when there is none of that name."""
    try:
        return await session.client.get(kind.path(session.namespace, name), wanted)
    except ApiError as error:
        if not error.not_found or kind_missing(error) is not None:
            raise
    raise CommandError(await _no_such(session, kind, name))


async def _no_such(session: Session, kind: KindInfo, name: str) -> str:
    namespace = session.namespace if kind.namespaced else ""
    text = f"there is no {kind.kind} {name}" + (f" in namespace {namespace}" if namespace else "")
    try:
        listed, _ = await session.client.list(kind.path(), PartialObjectMetadata)
    except ApiError:
        return f"{text}; name another one" + (", or its namespace with -n" if namespace else "")
    found = [item.metadata for item in listed]
    elsewhere = sorted(meta.namespace for meta in found if meta.name == name)
    if elsewhere:
        return f"{text}, but there is one in {elsewhere[0]}: add -n {elsewhere[0]}"
    here = [meta.name for meta in found if meta.namespace == namespace]
    if close := closest(name, here):
        return f"{text}; did you mean {' or '.join(close)}?"
    if here:
        return f"{text}; there are: {', '.join(sorted(here)[:10])}"
    there = sorted({meta.namespace for meta in found})
    return f"{text}; there are some in: {', '.join(there)}" if there else f"{text}, nor any other"


def closest(name: str, known: Iterable[str]) -> list[str]:
    """At most three names that look like it."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def names_in(text: str) -> list[str]:
    """The names of a comma-separated list, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} has no node names; write --nodes node-a,node-b")
    return names


def check_nodes(wanted: Iterable[str], known: Iterable[str]) -> None:
    """CommandError naming each node that does not exist, with those that look like it."""
    known = set(known)
    faults = []
    for name in wanted:
        if name not in known:
            close = closest(name, known)
            advice = f"did you mean {' or '.join(close)}?" if close else "see kubectl get nodes"
            faults.append(f"there is no node {name}; {advice}")
    if faults:
        raise CommandError("\n".join(faults))
