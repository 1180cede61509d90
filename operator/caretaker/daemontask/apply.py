"""Carries out a plan: the ledger first, then deletes, then starts; taints of gates beside them.

I/O only. No decision is made here, except to leave starts to a later plan.
"""

import logging
import time
from typing import Any, Final

import msgspec

from caretaker.api.conditions import Reason
from caretaker.daemontask.cordon_control import CordonControl
from caretaker.daemontask.decision import DRAINING, WriteRefusal
from caretaker.daemontask.drain import NO_RUN
from caretaker.daemontask.drain_control import DrainControl, Drained
from caretaker.daemontask.gate_control import GateControl
from caretaker.daemontask.intents import is_new_end, withdrawn
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.node_summary import earliest
from caretaker.daemontask.plan import Plan, keep_slots, with_launch
from caretaker.daemontask.pod_control import CONFIRMED_SECONDS, PodControl, run_all
from caretaker.daemontask.shards import Written, write_refusal
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.task_state import LedgerSession, TaskState
from caretaker.kube.errors import ApiError
from caretaker.runtime.controller import Conflict

logger = logging.getLogger(__name__)

# Seconds between two ledger writes of a task; below the queue's second, or each would take two passes.
FLUSH_INTERVAL: Final = 0.9

# Seconds within which the first intents of a pass count as a look at the ledger, however long the writes
# take. Its Pods are then sent for CONFIRMED_SECONDS, and with the timeout of that write (5 s) this stays
# below intents.PATIENCE: until then no operator takes the Pod for one that will not come.
INTENT_SECONDS: Final = 11.0


class Controls(msgspec.Struct, frozen=True):
    """The parts that send the requests of a plan."""

    pods: PodControl
    gates: GateControl
    cordons: CordonControl
    drains: DrainControl


class Applier:
    """Writes what a plan decided, and notes in the task's state what the next plan has to know."""

    def __init__(self, controls: Controls, metrics: DaemonTaskMetrics) -> None:
        self._controls = controls
        self._metrics = metrics

    async def apply(self, snapshot: Snapshot, plan: Plan, state: TaskState) -> Outcome:
        """Records and intents first, then deletes, then starts; without the records neither. Beside them, the
        nodes that have succeeded are opened, even if that cannot be recorded now: their Pods show it."""
        state.pacing, state.absence = snapshot.pacing, snapshot.absence
        state.keep_unrecorded(snapshot.pods, snapshot.nodes)
        gate, rerun_on = snapshot.eligibility_rules.gate, snapshot.task.spec.rerun_on
        opens = self._controls.gates.open(gate, rerun_on, plan, state)
        outcome: Outcome
        if plan.opens:
            outcome, (opened, again) = await run_all((self._apply(snapshot, plan, state), opens))
        else:  # no request
            opened, again = await opens
            outcome = await self._apply(snapshot, plan, state)
        left, now = [node for node in plan.shut if node.name not in opened], time.time()
        return msgspec.structs.replace(
            outcome,
            opened=opened,
            unopened=state.gates.reported(left, now),
            open_at=now if again else state.gates.wake(left, now),
        )

    async def _apply(self, snapshot: Snapshot, plan: Plan, state: TaskState) -> Outcome:
        """All but the taints of gates."""
        order, pacing, creation = state.order, state.pacing, state.creation
        order.queued = plan.launch.queued > 0
        pacing.idle = not (plan.launch.starts or plan.launch.replaced or plan.launch.paced_at)
        order.unplaced = frozenset(report.node.uid for report in plan.nodes.unplaced)
        plan, refusal, flush_at = await self._record(snapshot, plan, state)
        creation.refusal = refusal or creation.refusal
        again = await self._controls.cordons.release(plan.releases, state)
        started, more, drained = list[str](), plan.more or again, Drained()
        if refusal is None:
            refused, as_seen, gone = await self._controls.pods.delete(plan.deletes, state)
            order.still_there(pod for pod in plan.deletes if pod.uid not in gone)
            plan = keep_slots(plan, gone)
            launch = plan.launch
            order.queued = launch.queued > 0
            started, complete = await self._controls.pods.start(
                snapshot.task, snapshot.revision, launch, state
            )
            pacing.idle = not launch.paced_at and (pacing.idle or bool(started))
            await self._withdraw(plan, state)
            drained = await self._drain(snapshot, plan, state)
            more = more or drained.again or creation.again
            waiting = launch.queued > 0 and not launch.paced_at
            more = more or not (complete and as_seen)
            more = more or (snapshot.one_at_a_time and creation.refusal is None and waiting)
            refusal = (creation.refusal if launch.starts or launch.cordons else None) or refused
        shards = state.ledger.loaded
        return Outcome(
            created=len(started),
            started=frozenset(started),
            refusal=refusal,
            **_undrained(plan, drained, state),
            conflicts=tuple(creation.conflicts),
            unlabelled=frozenset(creation.unlabelled),
            shards=shards.count,
            recorded=len(shards.node_names),
            writes=shards.write_counts(snapshot.task.status.ledger),
            more=more,
            flush_at=flush_at,
        )

    async def _drain(self, snapshot: Snapshot, plan: Plan, state: TaskState) -> Drained:
        """The nodes that have got a slot are cordoned, those that are cordoned are drained. Of the others
        nothing is remembered."""
        drained = {report.node.uid for report in plan.drained}
        state.drains.views = {uid: view for uid, view in state.drains.views.items() if uid in drained}
        if plan.launch.cordons and not plan.launch.starts:
            state.creation.refusal, state.creation.again = None, False
        cordon_at = await self._controls.cordons.cordon(
            snapshot.task, snapshot.revision, snapshot.nodes, plan.launch.cordons, state
        )
        found = await self._controls.drains.drain(snapshot.task, plan.drains, state)
        ended = [r for r in plan.nodes.holders if r.decision.reason == DRAINING and r.node.uid not in drained]
        again = found.again or bool(ended)
        if not state.drains.cordons.denied and any(view.denied for view in state.drains.views.values()):
            again = await self._controls.cordons.denied(state) or again
        return Drained(earliest((cordon_at, found.next_at)), again)

    async def _record(
        self, snapshot: Snapshot, plan: Plan, state: TaskState
    ) -> tuple[Plan, WriteRefusal | None, float]:
        """One patch per shard, at most once a second. Returns (the plan without starts that have to wait, the
        refusal of a quota or a policy, Outcome.flush_at). Until their intents are written, nothing starts."""
        ledger, lost = state.ledger, snapshot.ledger.lost > 0
        shards = ledger.loaded
        decided = lost and plan.hold != Reason.LEDGER_LOST
        launch = plan.launch
        nodes = {*plan.records, *(start.node_name for start in launch.starts)}
        if in_the_way := shards.taken(nodes, lost=lost):
            return plan, WriteRefusal(Reason.LEDGER_WRITE_REFUSED, in_the_way), 0.0
        if not (plan.records or launch.intents or plan.forget or shards.unmarked or decided):
            return plan, None, 0.0
        now = time.time()
        # A clock that was set back must not hold it up; while a shard is lost, status would forget that.
        if not lost and 0 <= now - ledger.flushed < FLUSH_INTERVAL:
            if launch.intents:
                plan = with_launch(msgspec.structs.replace(plan, more=False), starts=(), intents={})
            return plan, None, ledger.flushed + FLUSH_INTERVAL
        known = snapshot.ledger.entries
        ended = [entry for name, entry in plan.records.items() if is_new_end(known.get(name), entry)]
        ledger.unstarted.update((entry.node_uid, entry.intent) for entry in launch.intents.values())
        old = snapshot.task.status.ledger
        try:
            written = await shards.write(plan.records, plan.forget, launch.intents, old, decided=decided)
        except (ApiError, Conflict) as error:
            if not (refusal := write_refusal(error, shards)):
                raise
            logger.warning("the ledger cannot be written: %s", refusal)
            return plan, WriteRefusal(Reason.LEDGER_WRITE_REFUSED, refusal), 0.0
        ledger.flushed = now
        plan = await self._check_after_write(plan, ledger, written)
        state.recorded(plan.records.values())
        for entry in ended:
            self._metrics.runs.labels(entry.result).inc()
            if entry.started_at and not (entry.intent or entry.rejections or entry.reason in NO_RUN):
                self._metrics.run_duration.observe(max(entry.finished_at - entry.started_at, 0))
        return plan, None, 0.0

    async def _check_after_write(self, plan: Plan, ledger: LedgerSession, written: Written) -> Plan:
        """The plan without the starts that were too late, which are left to the next one. Sets the time from
        which the ledger counts as read, after it was written.

        An intent is a check by itself: no other operator starts its run, nor gives it up within PATIENCE.
        Without intents, a slow write needs another read.
        """
        launch, now = plan.launch, time.monotonic()
        if launch.intents:
            late = len(launch.intents) - len(written.intents)
            ledger.confirmed = min(now, written.began + INTENT_SECONDS)
            return with_launch(
                msgspec.structs.replace(plan, more=plan.more or late > 0),
                intents=written.intents,
                queued=launch.queued + late,
                starts=tuple(start for start in launch.starts if start.node_name in written.intents),
            )
        if launch.starts and now - ledger.confirmed > CONFIRMED_SECONDS / 2:
            if not await ledger.loaded.current(start.node_name for start in launch.starts):
                ledger.loaded.loaded = False
                raise Conflict("the ledger was written meanwhile")
            ledger.confirmed = now
        return plan

    async def _withdraw(self, plan: Plan, state: TaskState) -> None:
        """Take back at once the intents of this pass whose Pods were certainly not created: that knowledge
        would not survive a crash. Failures here are left to the next plan."""
        back = {
            name: withdrawn(entry)
            for name, entry in plan.launch.intents.items()
            if state.ledger.unstarted.get(entry.node_uid) == entry.intent
        }
        if back:
            await state.ledger.loaded.write(back, ())
            state.ledger.withdrawn(back.values())


def _undrained(plan: Plan, drained: Drained, state: TaskState) -> dict[str, Any]:
    """Outcome.undrained and drain_at. One refusal may pass by itself, and is not reported."""
    refused = state.drains.unreleased.by_node
    kept = {r.node.name: refused[r.node.uid] for r in plan.nodes.marked if r.node.uid in refused}
    moments = (drained.next_at, min((one.until for one in kept.values()), default=0.0))
    reported = {
        name: f"node {name} cannot be uncordoned: {one.message}"
        for name, one in kept.items()
        if one.times > 1
    }
    for report in plan.drained:
        view = state.drains.views.get(report.node.uid)
        if view is not None and view.fault:
            reported[report.node.name] = f"node {report.node.name} cannot be drained: {view.fault}"
    if state.drains.cordons.times > 1:
        reported.setdefault("", state.drains.cordons.message)
    return {"undrained": reported[min(reported)] if reported else "", "drain_at": earliest(moments)}
