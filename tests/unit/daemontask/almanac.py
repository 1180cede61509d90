"""A scheduled task in virtual time: whole passes of the planner, whose runs end at once.

Inputs: a spec, nodes, moments. What a cluster would store (status and ledger) is kept from one moment to the
next, and nothing else is: every look is that of an operator that has just started.
"""

from typing import Any

import msgspec

from caretaker.api.daemontask import DaemonTask, Status
from caretaker.api.objects import Node
from caretaker.api.times import format_time, parse_time
from caretaker.daemontask.events import transitions
from caretaker.daemontask.ledger import Entry
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.pods import Start, revision_of
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import status_of
from caretaker.daemontask.status_input import Outcome
from unit.daemontask.build import node, snapshot, task


def moment(text: str) -> float:
    """`2026-11-22T03:00:00Z` in seconds since the epoch."""
    found = parse_time(text)
    assert found is not None, text
    return found


class Almanac:
    """A task made at `created`, two nodes, and what is on record of them."""

    def __init__(self, created: str, **spec: Any) -> None:
        made = task(**spec)
        meta = msgspec.structs.replace(made.metadata, creation_timestamp=created)
        self.task: DaemonTask = msgspec.structs.replace(made, metadata=meta)
        self.nodes: dict[str, Node] = {name: node(name) for name in "ab"}
        self.entries: dict[str, Entry] = {}
        self.bad: set[str] = set()  # nodes on which runs fail for good
        self.events: list[str] = []
        self.passes = 0
        self.statuses: list[Status] = []  # after each pass
        self.last: Plan

    def edit(self, **spec: Any) -> None:
        """Somebody edits the task."""
        meta = msgspec.structs.replace(self.task.metadata, generation=self.task.metadata.generation + 1)
        changed = msgspec.structs.replace(self.task.spec, **spec)
        self.task = msgspec.structs.replace(self.task, metadata=meta, spec=changed)

    def annotate(self, **annotations: str) -> None:
        marks = {f"caretaker.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        meta = msgspec.structs.replace(self.task.metadata, annotations=marks)
        self.task = msgspec.structs.replace(self.task, metadata=meta)

    def look(self, now: str) -> list[str]:
        """Passes until nothing is due at once. Who ran, as `node trigger`, in order."""
        at, ran = moment(now), []
        for _ in range(10):
            starts = self._pass(at)
            ran += [f"{start.node_name} {start.trigger}" for start in starts]
            if not starts and self.last.wake != at:
                return sorted(ran)
        raise AssertionError(f"no end of passes at {now}: {ran}")

    def wakes(self) -> str:
        """When the last look wanted to be woken; empty = on an event only."""
        return format_time(self.last.wake) if self.last.wake else ""

    def condition(self, kind: str) -> tuple[str, str]:
        """(status, reason) of a condition as the last look left it."""
        found = {c.type: (c.status, c.reason) for c in self.task.status.conditions}
        return found.get(kind, ("", ""))

    def _pass(self, now: float) -> list[Start]:
        self.passes += 1
        seen: Snapshot = snapshot(self.task, list(self.nodes.values()), entries=self.entries, now=now)
        self.last = plan(seen)
        self.entries = {**self.entries, **self.last.records}
        status = status_of(seen, self.last, Outcome(created=0, shards=1))
        self.statuses.append(status)
        self.events += [event.reason for event in transitions(self.task.status, status)]
        self.task = msgspec.structs.replace(self.task, status=status)
        for start in self.last.launch.starts:
            ended = _ended(self.task, start, now, failed=start.node_name in self.bad)
            self.entries = {**self.entries, start.node_name: ended}
        return self.last.launch.starts


def _ended(of: DaemonTask, start: Start, now: float, *, failed: bool) -> Entry:
    return Entry(
        node_uid=start.node_uid,
        revision=revision_of(of.spec),
        run_key=start.run_key,
        result="Failed" if failed else "Succeeded",
        attempts=int(failed),
        seq=start.seq,
        nonce=start.nonce,
        boot_id=start.boot_id,
        tick=start.tick,
        finished_at=int(now),
    )
