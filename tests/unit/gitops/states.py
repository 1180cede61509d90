"""Objects in every state that the kinds' pure status functions know, as the API server would show them, and
what docs/gitops.md says that GitOps tools make of each.

Inputs: the tables of states of each kind's own unit tests, and that page. No other I/O.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from caretaker.api import conditions as c
from caretaker.api.conditions import Condition
from caretaker.daemontask.controller import DaemonTaskKind
from caretaker.daemontask.ecs.status import status_of as service_status
from caretaker.imds.controller import IMDSPolicyKind
from caretaker.imds.plan import Plan
from caretaker.imds.status import status_of as policy_status
from caretaker.registry import DAEMON_TASK, IMDS_POLICY, S3_AGGREGATED_REFRESH
from caretaker.runtime import permission_conditions
from caretaker.s3refresh import plan as refresh_plan
from caretaker.s3refresh.controller import S3AggregatedRefreshKind
from caretaker.s3refresh.status import status_of as refresh_status
from unit.daemontask import states as tasks
from unit.daemontask.ecs import states as services
from unit.imds import states as policies
from unit.s3refresh import states as refreshes

PAGE: Final = Path(__file__).parents[3] / "docs" / "gitops.md"
NOW: Final = "2026-01-01T00:00:00Z"
# Rows of the page for every kind, whatever its conditions say.
UNSEEN: Final = "not looked at since the last change"
DELETED: Final = "being deleted"

Words = tuple[str, str]  # kstatus's word (Flux, Helm), Argo CD's


class State(NamedTuple):
    """One object, and by which row of the page it is judged."""

    title: str
    kind: str
    object: dict[str, Any]
    row: str  # Ready's reason, UNSEEN or DELETED


def every_state() -> Iterator[State]:
    """Each state of each kind, as it was seen, after an edit that nobody saw yet, and while it is deleted."""
    for kind, title, status in _statuses():
        generation = status.observed_generation
        seen = _object(kind, generation, status)
        ready = c.find(status.conditions, c.READY)
        assert ready is not None
        yield State(title, kind, seen, ready.reason)
        yield State(f"{title}, and edited since", kind, _object(kind, generation + 1, status), UNSEEN)
        gone = {**seen, "metadata": {**seen["metadata"], "deletionTimestamp": NOW}}
        yield State(f"{title}, and deleted", kind, gone, DELETED)
    for kind in (DAEMON_TASK, S3_AGGREGATED_REFRESH, IMDS_POLICY):
        new = {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}, "kind": kind.kind}
        yield State("nobody has looked", kind.kind, {**new, "apiVersion": "caretaker.dev/v1alpha1"}, UNSEEN)


def told() -> dict[tuple[str, str], set[Words]]:
    """(kind, row) -> what the page allows."""
    rows: dict[tuple[str, str], set[Words]] = {}
    table = PAGE.read_text().partition("| Kind | State |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        kinds, states, kstatus, argo = (cell.strip() for cell in line.strip("|").split("|"))
        for kind in kinds.split(", "):
            for state in re.findall(r"`(\w+)`", states) or [states]:
                rows.setdefault((kind, state), set()).add((kstatus, argo))
    return rows


def _statuses() -> Iterator[tuple[str, str, Any]]:
    """(kind, title, status) of the tables; and of each the conditions when a permission is missing."""
    for kind, stopped, states in (
        (DAEMON_TASK.kind, DaemonTaskKind.stopped, _tasks()),
        (S3_AGGREGATED_REFRESH.kind, S3AggregatedRefreshKind.stopped, _refreshes()),
        (IMDS_POLICY.kind, IMDSPolicyKind.stopped, _policies()),
    ):
        for title, status in states:
            yield kind, title, status
            refused: tuple[Condition, ...] = permission_conditions.conditions(
                status.conditions, stopped, status.observed_generation, "cannot list pods", NOW
            )
            replaced = msgspec.structs.replace(status, conditions=refused)
            yield kind, f"{title}, then a permission is taken away", replaced


def _tasks() -> Iterator[tuple[str, Any]]:
    for title, (given, outcome, *_) in tasks.CASES.items():
        yield title, tasks.status(given, outcome)
    for title, (seen, _) in services.CASES.items():
        yield f"ECS: {title}", service_status(seen)


def _refreshes() -> Iterator[tuple[str, Any]]:
    for title, (view, *_) in refreshes.CASES.items():
        yield title, refresh_status(view, refresh_plan.plan(view.plan_input))


def _policies() -> Iterator[tuple[str, Any]]:
    for title, (view, plan, _) in policies.CASES.items():
        yield title, policy_status(view, plan, NOW)
    for title, (enforced, summary, *_) in policies.ENFORCES.items():
        yield title, policy_status(policies.view(), Plan(summary=summary, enforced=enforced), NOW)


def _object(kind: str, generation: int, status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "caretaker.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "x", "generation": generation},
        "status": msgspec.json.decode(msgspec.json.encode(status)),
    }
