"""caretaker rerun: run again on every node of a task, on some, or on those that failed.

Writes one annotation of the task and nothing else; the operator starts the runs.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from caretaker.api import names
from caretaker.api.times import normalise_time, parse_time, stamp_after
from caretaker.cli.common import (
    CommandError,
    Raw,
    Session,
    check_nodes,
    command,
    execute,
    get_node_task,
    names_in,
)
from caretaker.cli.text import age, number, one_line, table
from caretaker.daemontask.budgets import Allowance, allowed_words
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.resource import RawTask, read_task
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.snapshot_reader import observe
from caretaker.kube.errors import ApiError
from caretaker.registry import DAEMON_TASK

R = TypeVar("R", bound=Raw)
_TRIES: Final = 10
_KEPT_SECONDS: Final = 86400.0  # seconds that an answered request stays in rerun-nodes

Annotations = dict[str, str]


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = command(
        commands,
        "rerun",
        "run a task again, on every node or on some",
        example="caretaker rerun daemontask hello\n"
        "caretaker rerun daemontask hello --nodes node-a,node-b\n"
        "caretaker rerun dtask/hello --failed",
        kinds=(DAEMON_TASK,),
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--nodes", type=names_in, metavar="A,B", help="on these nodes only")
    which.add_argument("--failed", action="store_true", help="on the nodes whose retries are used up")
    return parser


def main(args: argparse.Namespace) -> int:
    """Prints the runs that will start."""

    async def body(session: Session) -> int:
        raw = await get_node_task(session, args.name)
        snapshot = await observe(session.client, raw)
        wanted: list[str] | None = args.nodes
        if args.failed:
            wanted = [report.node.name for report in forecast(snapshot).plan.nodes.failed]
            if not wanted:
                print(f"no node of DaemonTask {args.name} has failed: nothing to run again")
                return 0
        if wanted is not None:
            check_nodes(wanted, snapshot.nodes)
        stamp = stamp_after(snapshot.now, _stamps(snapshot))

        def change(current: RawTask) -> Annotations:
            if wanted is None:
                return {names.RERUN_AT: stamp}
            marks = current.metadata.annotations or {}
            return {names.RERUN_NODES: merged(marks.get(names.RERUN_NODES, ""), wanted, stamp, snapshot)}

        changed = await annotate(session, raw, DAEMON_TASK.path(raw.metadata.namespace, args.name), change)
        task, _ = read_task(changed)
        after = forecast(replace(snapshot, task=task))
        print("\n".join(describe(after, wanted)))
        return 0

    return execute(args, body)


async def annotate(session: Session, raw: R, path: str, change: Callable[[R], Annotations]) -> R:
    """Patch annotations on the very state they were computed from; the resource as it is afterwards.

    The operator writes status in between, which changes the resourceVersion too: read and try again.
    """
    for _ in range(_TRIES):
        meta = raw.metadata
        body = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": change(raw),
            }
        }
        try:
            return await session.client.patch(path, body, type(raw))
        except ApiError as error:
            if not error.conflict:
                raise
        found = await session.client.get(path, type(raw))
        if found.metadata.uid != meta.uid:
            raise CommandError(f"{meta.name} was deleted and made again meanwhile: look, and try again")
        raw = found
    raise CommandError(f"{raw.metadata.name} kept changing for {_TRIES} tries: try again")


def _stamps(snapshot: Snapshot) -> list[str]:
    """The stamps of all earlier re-run requests for known nodes: a new one must be later than these, even if
    another machine's clock was ahead."""
    marks = snapshot.task.metadata.annotations or {}
    return [
        *(entry.nonce for entry in snapshot.ledger.entries.values() if entry.nonce),
        normalise_time(marks.get(names.RERUN_AT)),
        *_requests(marks.get(names.RERUN_NODES, "")).values(),
    ]


def merged(current: str, wanted: list[str], stamp: str, snapshot: Snapshot) -> str:
    """The new value of rerun-nodes: earlier requests that are less than a day old or unanswered, and the
    new."""
    kept = {
        name: at
        for name, at in _requests(current).items()
        if snapshot.now - (parse_time(at) or 0.0) < _KEPT_SECONDS or _unanswered(snapshot, name, at)
    }
    return msgspec.json.encode({**kept, **dict.fromkeys(wanted, stamp)}, order="sorted").decode()


def _unanswered(snapshot: Snapshot, name: str, at: str) -> bool:
    """Whether the node exists and has not run for that request yet, for example because it is blocked."""
    node, entry = snapshot.nodes.get(name), snapshot.ledger.entries.get(name)
    return node is not None and entry is not None and entry.node_uid == node.uid and entry.nonce < at


def _requests(text: str) -> Mapping[str, str]:
    """rerun-nodes as the operator reads it: invalid parts are ignored."""
    try:
        found = msgspec.json.decode(text or "{}", type=dict[str, str])
    except (msgspec.ValidationError, msgspec.DecodeError):
        return {}
    return {name: at for name, raw in found.items() if (at := normalise_time(raw))}


def describe(after: Forecast, wanted: list[str] | None) -> list[str]:
    """The nodes that will run, and the reasons of the others; `wanted`: the requested nodes, None = all."""
    meta = after.snapshot.task.metadata
    chosen = [name for name in after.reports if wanted is None or name in wanted]
    due = [name for name in chosen if name in after.turns]
    rows = []
    for name in chosen:
        decision = after.reports[name].decision
        if wanted is None and (name in after.turns or decision.state == "excluded"):
            continue
        rows.append([name, *_expected(after, name)])
    return [f"DaemonTask {meta.namespace}/{meta.name}: {_summary(after, due)}", *table(rows, indent="  ")]


def _summary(after: Forecast, due: list[str]) -> str:
    """The summary of the nodes that wait for a slot."""
    held = after.plan.hold
    if not held and (budget := _closed(after)) is not None:
        held = allowed_words(budget)
        if due:
            held += f"; {number(len(due), 'node')} wait{'s' * (len(due) == 1)} for it"
    if held:
        return f"asked for, but nothing is started now: {held}"
    again = " again" * all(after.reports[name].entry is not None for name in due)
    text = f"{number(len(due), 'node')} will run{again}"
    if after.turns and after.at_once < len(after.turns):
        text += f", at most {after.room.width} at a time"
    return text


def _closed(after: Forecast) -> Allowance | None:
    """The budget that lets no node run now; None where none does. The turns are those after it."""
    return None if after.room.width else after.room.budget


def _expected(after: Forecast, name: str) -> tuple[str, str]:
    decision = after.reports[name].decision
    if name in after.turns:
        return ("will run", "") if _closed(after) is None else ("waits", "for the budget")
    if decision.state == "active":
        return "runs now", "and again once that run has ended"
    if decision.reason == "Backoff":
        return "will run", f"in {age(decision.wake - after.snapshot.now)}, after its backoff"
    words = {"excluded": "is left out", "blocked": "is blocked", "pending": "waits"}
    return words.get(decision.state, decision.state), one_line(f"{decision.reason} {decision.message}")
