"""What the commands share: their parser, the connection, errors in one line, the task that is named.

Inputs: the command line and, through settings, the environment. Nothing here knows what a command does.
"""

import argparse
import asyncio
import difflib
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn

import msgspec

from caretaker.api.names import API_VERSION
from caretaker.cli.text import one_line
from caretaker.daemontask.resource import PLURAL, RawTask, task_path
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.obs import log
from caretaker.settings import Settings, add_connection_arguments, load

TASK_WORDS: Final = ("daemontask", "daemontasks", "dtask", "daemontasks.caretaker.dev")


class Failure(Exception):  # noqa: N818 - what the command came to, exit code 1
    """The command could not do what was asked; a line for each reason, each naming its mend."""


class Usage(Exception):  # noqa: N818 - exit code 2
    """The command line asks for something that cannot be."""


class Parser(argparse.ArgumentParser):
    """argparse, with its errors in one line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class Session(msgspec.Struct, frozen=True):
    """A connection, and what the flags said of it."""

    client: KubeClient
    settings: Settings

    @property
    def namespace(self) -> str:
        """-n, else the context's."""
        return self.client.default_namespace

    @property
    def scale(self) -> float:
        """Settings.time_scale; 1 but in tests."""
        return self.settings.time_scale


def command(commands: Any, name: str, about: str, *, example: str) -> argparse.ArgumentParser:
    """A sub-parser whose help ends with examples, one a line."""
    lines = "".join(f"  {line}\n" for line in example.splitlines())
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"example:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that talks to the API server."""
    add_connection_arguments(parser)
    parser.add_argument("-n", dest="namespace", metavar="NAMESPACE", help="short for --namespace")


def add_task(parser: argparse.ArgumentParser) -> None:
    """The task that a command is about: `daemontask NAME` or `daemontask/NAME`."""
    parser.add_argument(
        "task",
        nargs="+",
        metavar="daemontask NAME",
        help="the task; daemontask/NAME and dtask NAME do as well",
    )


def task_name(words: list[str]) -> str:
    """The name in the words given; Usage when they are not a kind and a name."""
    parts = words[0].split("/", 1) if len(words) == 1 else words
    if len(parts) != 2 or not parts[1]:
        raise Usage(f"which task? write: daemontask NAME, instead of {' '.join(words)}")
    kind, name = parts
    if kind.lower() not in TASK_WORDS:
        raise Usage(f"{kind}: there is no such kind here; write: daemontask {name}")
    return name


def execute(args: argparse.Namespace, body: Callable[[Session], Awaitable[int]]) -> int:
    """Connect, run `body`, and put what the API server refuses into one line."""
    settings = load(args)
    # stdout is the command's answer; what happens on the way goes to stderr.
    log.setup("json" if args.log_format == "json" else "text", settings.log_level, sys.stderr)

    async def session() -> int:
        async with await KubeClient.connect(
            settings.kubeconfig, settings.context, settings.namespace
        ) as client:
            settings.check_time_scale(client.host)
            try:
                return await body(Session(client, settings))
            except ApiError as error:
                raise Failure(explain(error, client.host)) from error

    return asyncio.run(session())


def explain(error: ApiError, host: str) -> str:
    """One line for a person: what the API server said, and what mends it."""
    said = one_line(error.message) or error.reason
    if error.status == 0:
        return (
            f"{host} does not answer ({said}): is it up, and are --kubeconfig and --context the right ones?"
        )
    if error.status == 401:
        return f"{host} does not accept your credentials ({said}): renew those of the kubeconfig"
    if error.forbidden and "cannot" in said:
        return f"{said}: ask for a role that allows it, or use another --context"
    if error.forbidden:
        return f"{said}: satisfy the quota or policy that refuses it"
    if kind_missing(error):
        return f"the cluster does not know DaemonTasks: kubectl apply -f crds/ (asked for {error.path})"
    return f"{said} ({f'{error.status} {error.reason}'.rstrip()}, {error.verb} {error.path})"


def kind_missing(error: ApiError) -> bool:
    """Whether a 404 is about the kind: then it is the router's, not a metav1.Status."""
    return error.not_found and not error.reason and f"/{PLURAL}" in error.path


async def get_task(session: Session, name: str) -> RawTask:
    """The task. Failure with a suggestion when there is none of that name."""
    try:
        return await session.client.get(task_path(session.namespace, name), RawTask)
    except ApiError as error:
        if not error.not_found or kind_missing(error):
            raise
    raise Failure(await _no_task(session, name))


async def _no_task(session: Session, name: str) -> str:
    text = f"there is no DaemonTask {name} in namespace {session.namespace}"
    try:
        found, _ = await session.client.list(f"/apis/{API_VERSION}/{PLURAL}", RawTask)
    except ApiError:
        return f"{text}; name another one, or its namespace with -n"
    elsewhere = sorted(t.metadata.namespace for t in found if t.metadata.name == name)
    if elsewhere:
        return f"{text}, but there is one in {elsewhere[0]}: add -n {elsewhere[0]}"
    here = [t.metadata.name for t in found if t.metadata.namespace == session.namespace]
    if close := closest(name, here):
        return f"{text}; did you mean {' or '.join(close)}?"
    if here:
        return f"{text}; there are: {', '.join(sorted(here)[:10])}"
    there = sorted({t.metadata.namespace for t in found})
    return f"{text}; there are some in: {', '.join(there)}" if there else f"{text}, nor any other"


def closest(name: str, known: Iterable[str]) -> list[str]:
    """At most three names that look like it."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def names_in(text: str) -> list[str]:
    """The names of a comma-separated list, each once; Usage when there is none."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise Usage("--nodes wants node names: --nodes node-a,node-b")
    return names


def check_nodes(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Failure naming each node that does not exist, with those that look like it."""
    known = set(known)
    faults = []
    for name in wanted:
        if name not in known:
            close = closest(name, known)
            mend = f"did you mean {' or '.join(close)}?" if close else "see kubectl get nodes"
            faults.append(f"there is no node {name}; {mend}")
    if faults:
        raise Failure("\n".join(faults))
