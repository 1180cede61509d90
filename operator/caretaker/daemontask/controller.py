"""DaemonTask in the loop: its snapshot, plan and status.

Thin: no decision is made here. State between passes is held per task in TaskState, and can be lost at any
time: everything that matters is in the ledger, in the Pods and in the task.
"""

import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from caretaker.api.conditions import PROGRESSING, Event
from caretaker.api.daemontask import DaemonTask, FormerRevision, Status, drainer_of, gate_of
from caretaker.api.objects import Node, WireNode
from caretaker.daemontask.apply import Applier, Controls
from caretaker.daemontask.bulk import FREE, PAUSE
from caretaker.daemontask.cordon import is_cordoned_by
from caretaker.daemontask.cordon_control import CordonControl
from caretaker.daemontask.data_reader import DataReader
from caretaker.daemontask.dependencies import names_of
from caretaker.daemontask.drain_control import DrainControl
from caretaker.daemontask.events import transitions
from caretaker.daemontask.exclusion import Exclusion
from caretaker.daemontask.exclusion_reader import read_groups
from caretaker.daemontask.gate_control import GateControl
from caretaker.daemontask.intents import TOKEN, given_up
from caretaker.daemontask.ledger import Ledger
from caretaker.daemontask.losses import expected
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.node_eligibility import EligibilityRules
from caretaker.daemontask.order_reader import are_current, read_dependencies
from caretaker.daemontask.plan import Plan, plan
from caretaker.daemontask.pod_control import PodControl, run_all
from caretaker.daemontask.pods import Start, hashes_of, pod_cost, pod_name, revisions_of
from caretaker.daemontask.recheck import doubtful, unlisted
from caretaker.daemontask.referenced_data import with_data
from caretaker.daemontask.resource import KIND, RawTask, read_task, refusal_of
from caretaker.daemontask.results import figures
from caretaker.daemontask.shards import Shards
from caretaker.daemontask.snapshot import Snapshot
from caretaker.daemontask.status import gated_by_state, requeue_after, status_of
from caretaker.daemontask.status_input import Outcome
from caretaker.daemontask.task_state import (
    SpecCache,
    TaskState,
    cache_eligibility,
    namesakes_of,
)
from caretaker.daemontask.watch_handlers import WatchHandlers
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, by_admission, or_none
from caretaker.kube.store import PodIndex
from caretaker.runtime.controller import RESYNC, Conflict, Kind, Next, Postponed, Subject
from caretaker.runtime.tasks import YieldingLock
from caretaker.runtime.work_queue import Key

logger = logging.getLogger(__name__)

LATE: Final = 1.0  # seconds after its timeout in which the API server may still execute a write
AGAIN: Final = 30.0  # seconds after which a node of a task that is gone is tried again


class DaemonTaskKind(Kind[Snapshot, Plan, Outcome]):
    """runtime.controller.Kind for tasks that run Pods. The ledger is their record: after() does nothing."""

    kind = KIND
    stopped: Collection[str] = (PROGRESSING,)

    def __init__(
        self,
        client: KubeClient,
        watched: WatchHandlers,
        metrics: DaemonTaskMetrics,
        operator: str = "",
    ) -> None:
        self.unseen: Callable[[], ApiError | None] | None = None  # why nodes or Pods cannot be seen
        self.later: Callable[[Key, float], None] | None = None  # another pass, after so many seconds
        self._client = client
        self._watched = watched
        self._index = PodIndex(watched.pod_store)
        self._exclusion = Exclusion(self._index, watched.nodes, watched.on_key)
        watched.pod_store.subscribe(self._exclusion.pod_changed)
        self._controls = Controls(
            pods=PodControl(client, watched.pod_store),
            gates=GateControl(client, watched.node_store),
            cordons=CordonControl(client, watched.node_store, watched.ended),
            drains=DrainControl(client, metrics, operator),
        )
        self._applier = Applier(self._controls, metrics)
        self._data = DataReader(client)
        self._metrics = metrics
        self._yielding = YieldingLock()

    async def forget(self, key: Key) -> None:
        """The task is gone: its nodes are uncordoned."""
        self._watched.task_states.drop(key)
        self._watched.order.drop(key)
        self._metrics.forget(key.namespace, key.name)
        await self.release(key)

    async def release(self, key: Key) -> None:
        """Uncordon the nodes of a task of this name that is gone, where none of its Pods lives. A refusal is
        tried again, and holds up nothing: there is no resource to report it on."""
        self._exclusion.forget(key)

        def busy(task_uid: str, node_uid: str) -> bool:
            pods = self._index.pods_of(key.namespace, task_uid).get(node_uid, {})
            return any(not pod.terminal for pod in pods.values())

        try:
            await self._controls.cordons.release_all(key, busy)
        except ApiError as error:
            logger.warning("nodes of %s/%s stay cordoned: %s", key.namespace, key.name, error)
            if self.later is not None:
                self.later(key, AGAIN)

    async def stop(self) -> None:
        """Another process may lead from now on."""
        self._watched.task_states.clear()
        self._watched.order.clear()
        self._exclusion.clear()
        self._metrics.clear()

    async def gather(self, key: Key, raw: RawTask | None = None) -> Snapshot | None:
        """The task, read now unless it is given; nodes and Pods from the stores; the ledger, read once and
        kept."""
        if self.unseen is not None and (error := self.unseen()) is not None:
            raise error
        raw = raw or await self.read(key)
        if raw is None:
            return None
        task, invalid = await self._decoded(raw)
        state = self._watched.task_states.of(key, raw.metadata.uid)
        shards = state.ledger.shards or Shards(self._client, key.namespace, key.name, state.uid)
        state.ledger.shards = shards
        # Read before the ledger, which is therefore never behind it.
        reported = task.status.ledger
        if await _load_ledger(shards, task):
            # A record must never be newer than the task, or a run that an older spec asked for
            # would seem to be due again.
            raw = await self.read(key)
            if raw is None or raw.metadata.uid != state.uid:
                raise Conflict("the task went away while its ledger was read")
            task, invalid = await self._decoded(raw)
            state.spec.data.due = 0.0  # likewise the data: it is read again
        await self._know_group(key, task)
        # Set before nodes and Pods are taken from the stores: a later event is compared with this spec.
        state.spec, former = await self._read_spec(state, raw.spec, task, invalid)
        others = await read_dependencies(self._watched, key, names_of(task.spec))
        ledger = shards.ledger(reported, strict=task.spec.at_most_once)
        # Nothing is awaited from here to the plan: nodes, Pods and what follows from both are of one moment.
        snapshot = self._snapshot(task, state, ledger, invalid or state.spec.template_error or "")
        return replace(snapshot, former=former, dependencies=others, awaited=self._watched.order.awaited(key))

    def plan(self, snapshot: Snapshot) -> Plan:
        """See plan.py."""
        return plan(snapshot)

    async def recheck(self, snapshot: Snapshot, plan: Plan) -> Snapshot | None:
        """Quorum reads of the ledger of the nodes that are to start, of the nodes that the ledger knows
        otherwise than the store, of Pods that are about to be given up or may live on, and of the data: a
        stale view of any of them must start, record and delete nothing."""
        meta, ledger, state = snapshot.task.metadata, snapshot.ledger, self._state(snapshot)
        doubts = doubtful(snapshot.task.spec, snapshot.nodes, ledger, plan)
        # The belief of the plan, kept before the first await: the store may be newer afterwards.
        believed = {name: self._watched.nodes.get(name) for name in doubts}
        asks = bool(plan.launch.starts) or plan.holding is not None
        unsure = dict(state.creation.unsure) if asks else {}
        hidden = unlisted(snapshot.pods, ledger, plan) | {name: uid for uid, name in unsure.items()}
        shards, asked = state.ledger.loaded, time.monotonic()
        begin = [start.node_name for start in (*plan.launch.starts, *plan.launch.cordons)]
        known = not begin or await shards.current(begin)
        seen = all(await run_all(self._is_so(name, node) for name, node in believed.items()))
        lost = given_up(ledger.entries, plan.records)
        gone = all(await run_all(self._controls.pods.is_gone(meta, plan.records[name]) for name in lost))
        gone &= await self._controls.pods.has_seen_all(meta, snapshot.pods, hidden)
        starts = bool(begin or plan.launch.replaced)
        if starts:
            order, others = self._watched.order, snapshot.dependencies
            seen &= await are_current(self._client, order, _key(snapshot), others)
            if state.spec.data.settled != snapshot.token:
                seen &= await self._data.is_current(snapshot.task, state.spec.data, state.bulk)
        if known and seen and gone:
            for uid in unsure:
                state.creation.unsure.pop(uid, None)
            state.ledger.confirmed = asked
            return None
        shards.loaded = shards.loaded and known
        newer = await self.gather(_key(snapshot))
        if newer is None:
            raise Conflict("the task went away")
        state.spec.data.settled = newer.token if starts else ""
        return newer

    async def before(self, snapshot: Snapshot, plan: Plan) -> Outcome:
        """Records and intents first, then deletes, then starts; without the records neither."""
        key, state = _key(snapshot), self._state(snapshot)
        self._watched.order.took(key, names_of(snapshot.task.spec), plan.progress)
        plan = self._exclusion.claim(key, plan, state.creation.unsure, time.time())
        try:
            return await self._applier.apply(snapshot, plan, state)
        finally:  # a part may have failed after Pods were asked for
            unsure = {*state.creation.unsure, *state.drains.cordons.unsure}
            self._exclusion.settled(key, plan, partial(self._was_made, snapshot), unsure, time.time())

    def subject(self, snapshot: Snapshot) -> Subject:
        """The task."""
        return Subject(snapshot.task.metadata, snapshot.task.status)

    def status(self, snapshot: Snapshot, plan: Plan, outcome: Outcome) -> Status:
        """See status.py."""
        return status_of(snapshot, plan, outcome)

    def observe(self, snapshot: Snapshot, plan: Plan, status: Status) -> None:
        """The counts of nodes, and the results of the runs."""
        meta = snapshot.task.metadata
        counts = {state: getattr(status, state) for state in self._metrics.STATES}
        self._metrics.set_nodes(meta.namespace, meta.name, counts)
        self._metrics.set_results(meta.namespace, meta.name, figures(status.results))
        self._metrics.set_gated(meta.namespace, meta.name, gated_by_state(plan, status))
        cordoned = Counter[str](r.decision.state for r in plan.nodes.marked if r.decision.cordoned)
        self._metrics.set_cordoned(meta.namespace, meta.name, cordoned)

    def events(self, snapshot: Snapshot, plan: Plan, status: Status) -> Sequence[Event]:
        """See events.py."""
        return transitions(snapshot.task.status, status, plan.nodes.duplicates)

    def requeue(self, snapshot: Snapshot, plan: Plan, outcome: Outcome) -> Next:
        """At once while work is left, else at the plan's time; with backoff after a refusal."""
        refusal = outcome.refusal
        if refusal is None and outcome.more:
            return Next(at_once=True)
        now = time.time()
        delay = requeue_after(plan, outcome, planned=snapshot.now, now=now)
        if plan.holding is not None and (end := self._exclusion.next_end(_key(snapshot))):
            delay = min(RESYNC if delay is None else delay, max(end - now, 0.0))
        delay = self._data.sooner(snapshot.data.refs, self._state(snapshot).spec.data, delay)
        return Next(delay) if refusal is None else Next(delay, retry=True, after=refusal.retry_after)

    async def read(self, key: Key) -> RawTask | None:
        """The task; None when it is gone, or going: the garbage collector takes Pods and ledger, which name
        it as their owner."""
        raw: RawTask | None = await or_none(self._client.get(self.path(key), RawTask))
        return None if raw is None or raw.metadata.deletion_timestamp is not None else raw

    async def _know_group(self, key: Key, task: DaemonTask) -> None:
        """The exclusive group of the task. The first pass of one that has any reads those of the others."""
        exclusive = task.spec.exclusive
        quiet = self._exclusion.quiet(time.monotonic(), self._client.write_seconds + LATE)
        self._exclusion.note(key, task.metadata.uid, exclusive.group if exclusive is not None else "")
        if exclusive is None:
            return
        self._exclusion.expire(key.namespace, time.time())
        if not self._exclusion.knows(key.namespace):
            if quiet:
                raise Postponed(quiet)
            stores = self._watched.pod_store, self._watched.node_store
            await read_groups(self._client, self._exclusion, key.namespace, *stores)

    def _was_made(self, snapshot: Snapshot, start: Start) -> bool:
        """Whether a run, or the cordon before it, has begun on its node."""
        meta = snapshot.task.metadata
        node = self._watched.nodes.get(start.node_name)
        if node is not None and is_cordoned_by(node, meta.uid):
            return True
        pods = self._index.pods_of(meta.namespace, meta.uid).get(start.node_uid, {})
        return pod_name(meta.name, meta.uid, start.node_uid, start.seq) in pods

    async def _decoded(self, raw: RawTask) -> tuple[DaemonTask, str]:
        """read_task(); of large ones no two in one turn of the event loop."""
        if len(raw.spec) <= FREE:
            return read_task(raw)
        async with self._yielding:
            return read_task(raw)

    async def _read_spec(
        self, state: TaskState, raw: bytes, task: DaemonTask, invalid: str
    ) -> tuple[SpecCache, FormerRevision | None]:
        """(the cache for this spec, see revisions_of()). What it takes of the namespace's allowance counts
        even if the pass fails."""
        spec, digest, template = state.spec, hashlib.blake2b(raw).digest(), task.spec.template
        if spec.digest != digest:
            async with self._yielding:
                hashes, limit = hashes_of(template), task.spec.backoff_limit
            spec = replace(spec, digest=digest, hashes=hashes, backoff_limit=limit)
        revision, former = revisions_of(task.spec, task.status, spec.hashes)
        revision = with_data(revision, (await self._data.read(task, spec.data, state.bulk)).part)
        gate, drainer = gate_of(task.metadata, task.spec), drainer_of(task.metadata, task.spec)
        health, rules = task.spec.health_conditions, spec.rules
        known = (spec.revision, rules.gate, rules.drainer, rules.health)
        changed = known != (revision, gate, drainer, health)
        if changed:
            async with self._yielding:
                rules = EligibilityRules(template, gate, drainer, health)
            async with self._yielding:
                cost = pod_cost(task.metadata, task.spec, revision)
            # The dry run of the template takes the API server as long as a Pod, and waits like one.
            turn = state.bulk.take(cost, time.monotonic())
            spec = replace(
                spec, revision=revision, rules=rules, pod_cost=cost, turn=turn, template_error=None
            )
        if changed or spec.rules.costly:  # events do not compute costly eligibility
            await cache_eligibility(spec.rules, list(self._watched.nodes.values()))
        if not invalid and spec.template_error is None and not spec.check_in(time.monotonic()):
            spec = replace(spec, template_error=await self._check_template(task, revision))
        return spec, former

    async def _is_so(self, name: str, believed: Node | None) -> bool:
        """Whether the API server has the node as it was believed; if not, the store knows from now on."""
        found: WireNode | None = await or_none(self._client.get(f"/api/v1/nodes/{name}", WireNode))
        record = found.record() if found is not None else None
        if _identity(believed) == _identity(self._watched.own(record) if record is not None else None):
            return True
        if found is not None and record is not None:
            self._watched.node_store.observe_write(record, int(found.metadata.resource_version))
        elif believed is not None:
            self._watched.node_store.observe_delete(("", name), believed.uid)
        return False

    def _snapshot(self, task: DaemonTask, state: TaskState, ledger: Ledger, invalid: str) -> Snapshot:
        spec, order, deletions, creation = state.spec, state.order, state.deletions, state.creation
        now, clock = time.time(), time.monotonic()
        pacing = state.next_pacing(clock)
        pods = self._index.pods_of(task.metadata.namespace, task.metadata.uid)
        return Snapshot(
            task=task,
            revision=spec.revision,
            eligibility_rules=spec.rules,
            nodes=self._watched.nodes,
            pods=state.with_ended(pods, self._watched.nodes),
            ledger=ledger,
            now=now,
            invalid=invalid,
            data=spec.data.last,
            checked=spec.template_error is not None,
            check_at=now + wait if not invalid and (wait := spec.check_in(clock)) else 0.0,
            seq_skips=creation.seq_skips,
            vanished=deletions.not_before,
            deprioritised=order.deprioritised,
            refused=pacing.refused_pods.by_node,
            refused_until=pacing.refused_pods.until,
            exclusion=self._exclusion.view(_key_of(task), creation.unsure, now),
            gates=state.gates,
            drains=state.drains.views,
            cordons=state.drains.cordons,
            unreleased=state.drains.unreleased.by_node,
            undeletable=deletions.undeletable,
            unplaced=order.unplaced,
            absence=state.absence.look(state.ledger.loaded.node_names, self._watched.nodes, now),
            token=uuid.uuid4().hex[:TOKEN],
            unstarted=state.ledger.unstarted,
            allowed=state.bulk.allowed(spec.pod_cost, clock, pacing.turn),
            allowed_at=now + max(pacing.turn - clock, PAUSE),
            pacing=pacing,
            one_at_a_time=task.spec.at_most_once and creation.refusal is not None,
            namesakes=namesakes_of(self._index, task.metadata),
            decision_cache=state.decision_cache,
        )

    async def _check_template(self, task: DaemonTask, revision: str) -> str | None:
        """Why the API server refuses the template's Pods; "" = it accepts them; None = it did not say."""
        try:
            return await refusal_of(self._client, task, revision)
        except ApiError as error:
            if by_admission(error) and error.missing_permission is None:
                return ""  # reported when Pods are really refused; it may pass by then
            logger.warning("the template could not be checked: %s", error)
            return None

    def _state(self, snapshot: Snapshot) -> TaskState:
        return self._watched.task_states.of(_key(snapshot), snapshot.task.metadata.uid)


async def _load_ledger(shards: Shards, task: DaemonTask) -> bool:
    """Read the ledger if it is not known; so too before a shard is believed lost, since another operator may
    have made it. Returns whether it was read."""
    reported = task.status.ledger
    if shards.loaded and not shards.ledger(reported, strict=task.spec.at_most_once).lost:
        return False
    await shards.load(time.time(), expected(reported))
    return True


def _identity(node: Node | None) -> tuple[object, ...] | None:
    return (node.uid, node.boot_id, node.unschedulable, node.cordon) if node is not None else None


def _key(snapshot: Snapshot) -> Key:
    return _key_of(snapshot.task)


def _key_of(task: DaemonTask) -> Key:
    return Key(KIND, task.metadata.namespace, task.metadata.name)
