"""caretaker resume: continues a rollout that is held, or a policy whose breaker is open.

failurePolicy or its deadline holds a rollout. Writes the annotation caretaker.dev/resume-at and nothing else.
"""

import argparse
import time
from typing import Any

from caretaker.api import names
from caretaker.api.times import format_micros, normalise_time, parse_time, stamp_after
from caretaker.cli.common import CommandError, Session, command, execute, get, get_node_task
from caretaker.cli.rerun import annotate
from caretaker.cli.text import number
from caretaker.daemontask.forecast import Forecast, forecast
from caretaker.daemontask.snapshot_reader import observe
from caretaker.imds.resource import RawPolicy, read
from caretaker.registry import DAEMON_TASK, IMDS_POLICY


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    return command(
        commands,
        "resume",
        "go on with a task that failurePolicy or a deadline holds, or a policy whose breaker is open",
        example="caretaker resume daemontask hello\ncaretaker resume imdspolicy workers",
        kinds=(DAEMON_TASK, IMDS_POLICY),
    )


def main(args: argparse.Namespace) -> int:
    """Earlier failures no longer pause it."""
    body = _task if args.kind == DAEMON_TASK else _policy
    return execute(args, lambda session: body(session, args.name))


async def _task(session: Session, name: str) -> int:
    raw = await get_node_task(session, name)
    current = forecast(await observe(session.client, raw))
    spec = current.snapshot.task.spec
    pauses = spec.failure_policy.action == "Pause"
    if not pauses and spec.rollout_deadline_seconds is None and spec.canary is None:
        raise CommandError(
            f"DaemonTask {name} is never paused, since its failurePolicy.action is "
            f"{spec.failure_policy.action}: nothing to resume"
        )
    stamp = stamp_of(current)
    await annotate(
        session, raw, DAEMON_TASK.path(raw.metadata.namespace, name), lambda _: {names.RESUME_AT: stamp}
    )
    if current.plan.nodes.overdue:
        print(f"DaemonTask {name} goes on; rolloutDeadlineSeconds count from now")
        return 0
    canary = current.plan.rollout.canary
    if canary is not None and canary.failed and not current.plan.hold:
        print(f"DaemonTask {name} goes on with another canary")
        return 0
    print(_describe(name, current.plan.hold, len(current.plan.nodes.failed)))
    return 0


def stamp_of(current: Forecast) -> str:
    """The mark that resumes the task."""
    # A node's clock may be ahead of ours: its failure would count as one that came later.
    nodes = current.plan.nodes
    ends = [format_micros(r.entry.finished_at) for r in nodes.failed if r.entry is not None]
    ends += [format_micros(r.decision.failing) for r in nodes.failing]
    task = current.snapshot.task
    was = task.status.rollout.resume_at if task.status.rollout is not None else None
    if task.spec.rollout_deadline_seconds is not None and (before := parse_time(was)) is not None:
        # So may the clock of an earlier resume. A later second begins the clock of the deadline again.
        ends.append(format_micros(before + 1))
    return stamp_after(current.snapshot.now, ends)


async def _policy(session: Session, name: str) -> int:
    raw = await get(session, IMDS_POLICY, name, RawPolicy)
    breaker = read(raw).status.breaker
    if breaker is None:
        print(f"The breaker of IMDSPolicy {name} is not open: nothing to resume")
        return 0
    stamp = stamp_after(time.time(), [normalise_time(breaker.opened_at)])
    await annotate(session, raw, IMDS_POLICY.path(name=name), lambda _: {names.RESUME_AT: stamp})
    print(f"IMDSPolicy {name} resumes. The breaker was open because of {breaker.reason}: {breaker.message}")
    return 0


def _describe(name: str, hold: str, failed: int) -> str:
    those = f"{number(failed, 'failed node')} up to now"
    if hold == "Paused":
        return f"DaemonTask {name} goes on; {those} no longer hold it"
    why = {"Suspended": "it is suspended: set spec.suspend to false", "": "nothing held it"}.get(hold, hold)
    return f"DaemonTask {name} was not paused ({why}); {those} will not pause it"
