"""caretaker logs: the logs of some nodes' Pods, each line prefixed by its node."""

import argparse
import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from caretaker.api.objects import Pod
from caretaker.cli.common import Session, check_nodes, command, execute, explain, get_node_task, names_in
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.intents import pod_of
from caretaker.daemontask.run_triggers import NO_PODS
from caretaker.daemontask.snapshot_reader import observe
from caretaker.kube.errors import ApiError
from caretaker.registry import DAEMON_TASK

_AT_A_TIME: Final = 8
# The API server dials the kubelet for 30 s; wait a little longer, so that its own words come through.
_SECONDS: Final = 45.0


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = command(
        commands,
        "logs",
        "print the logs of a task's nodes, failed ones or those named",
        example="caretaker logs daemontask hello --failed\n"
        "caretaker logs daemontask hello --nodes node-a,node-b --tail 20",
        kinds=(DAEMON_TASK,),
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--failed", action="store_true", help="the last run of each failed node")
    which.add_argument(
        "--nodes", type=names_in, metavar="A,B", help="the newest pod of these nodes, whatever its state"
    )
    parser.add_argument(
        "--tail", type=_lines, metavar="N", help="the last N lines of each container; default all"
    )
    return parser


def main(args: argparse.Namespace) -> int:
    """Exit code 1 when the logs of a node could not be had; the others are printed all the same."""

    async def body(session: Session) -> int:
        raw = await get_node_task(session, args.name)
        current = forecast(await observe(session.client, raw))
        check_nodes(args.nodes or (), current.reports)
        chosen = [(node, newest(current, node)) for node in args.nodes or ()] or list(failed_pods(current))
        if not chosen:
            print(f"no node of DaemonTask {args.name} has failed")
            return 0
        gate = asyncio.Semaphore(_AT_A_TIME)

        async def lines_of(node: str, pod: Pod | None) -> tuple[list[str], bool]:
            if pod is None:
                return [f"{node} | {gone(current, node)}"], False
            async with gate:
                return await _read(session, node, pod, args.tail)

        reading = [asyncio.create_task(lines_of(node, pod)) for node, pod in chosen]
        complete = True
        for task in reading:  # in order of nodes, while the others are being read
            lines, whole = await task
            complete = complete and whole
            print("\n".join(lines))
        return 0 if complete else 1

    return execute(args, body)


def _lines(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no number of lines; write --tail 20")
    return int(text)


def failed_pods(current: Forecast) -> Iterable[tuple[str, Pod | None]]:
    """Each failed node with the Pod that its record is about, None when that is gone."""
    for report in sorted(current.plan.nodes.failed, key=lambda r: r.node.name):
        pods, entry = _pods(current, report.node.uid), report.entry
        yield (
            report.node.name,
            next((pod for pod in pods.values() if entry is not None and pod.uid == entry.pod_uid), None),
        )


def newest(current: Forecast, node: str) -> Pod | None:
    """The node's newest Pod, running or not."""
    return max(
        _pods(current, current.reports[node].node.uid).values(),
        key=lambda p: (p.seq, p.created),
        default=None,
    )


def _pods(current: Forecast, node_uid: str) -> Mapping[str, Pod]:
    return current.snapshot.pods.get(node_uid) or NO_PODS


async def _read(session: Session, node: str, pod: Pod, tail: int | None) -> tuple[list[str], bool]:
    """(the lines to print, whether they are all there is)."""
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    lines: list[str] = []
    whole = True
    try:
        found: dict[str, Any] = await session.client.get(path)
    except ApiError as error:
        return [f"{node} | no logs: {explain(error, session.client.host)}"], False
    spec = found["spec"]
    containers = [c["name"] for c in (*spec.get("initContainers", ()), *spec["containers"])]
    for container in containers:
        prefix = f"{node} {container} | " if len(containers) > 1 else f"{node} | "
        try:
            text = await _log(session, path, container, tail)
        except ApiError as error:
            lines.append(f"{prefix}no logs: {explain(error, session.client.host)}")
            whole = False
        else:
            lines += [prefix + line for line in text.splitlines() or ["(it wrote nothing)"]]
    return lines, whole


def gone(current: Forecast, node: str) -> str:
    """The message for a node without a Pod to read from."""
    report = current.reports[node]
    if report.entry is None:
        return "no logs: it has not run"
    name = pod_of(current.snapshot.task.metadata, report.entry)
    if not name:
        return "no logs: which pod it was is not known"
    return f"no logs: its pod {name} is gone (deleted, or removed by ttlSecondsAfterFinished)"


async def _log(session: Session, path: str, container: str, tail: int | None) -> str:
    params: dict[str, str | int] = {"container": container}
    if tail is not None:
        params["tailLines"] = tail
    found = await session.client.get(f"{path}/log", bytes, params=params, timeout=_SECONDS)
    return found.decode(errors="replace")
