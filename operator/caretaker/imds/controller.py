"""IMDSPolicy in the loop: gathers a snapshot, and makes the changes of its plan.

Thin: no decision is made here. Policies decide together on the options of a node, so that each pass reads all
of them. An audit cannot change an instance: its client refuses writes.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.conditions import Event
from caretaker.api.conditions import PolicyReason as Reason
from caretaker.api.grants import CLUSTER, Grants, refusals
from caretaker.api.imds import Status
from caretaker.api.times import format_time
from caretaker.aws.calls import Aws
from caretaker.aws.identity import ClientKey
from caretaker.aws.services import Rate, read_only
from caretaker.imds import plan as planning
from caretaker.imds.conditions import StatusInput
from caretaker.imds.enforce import Enforced
from caretaker.imds.gather import GatherResult, PolicyReader
from caretaker.imds.instance_modifier import InstanceModifier
from caretaker.imds.inventory import Inventory
from caretaker.imds.launch_templates import LaunchTemplateProvider
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.observations import LOST_SECONDS
from caretaker.imds.plan import Plan, PlanInput
from caretaker.imds.policy_state import PolicyState
from caretaker.imds.prober import Prober, unserved
from caretaker.imds.resource import KIND, ParsedPolicy, RawPolicy, read
from caretaker.imds.status import events_of, status_of
from caretaker.imds.token_gate import shut_input
from caretaker.imds.token_metrics import GateResult, TokenGates, gate_input, gated
from caretaker.imds.verify import Probing
from caretaker.imds.watch_handlers import WatchHandlers
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError, or_none
from caretaker.registry import IMDS_POLICY, INSTALL_CRDS
from caretaker.runtime.controller import Conflict, Kind, Next, Retry, Subject
from caretaker.runtime.tasks import in_pieces
from caretaker.runtime.work_queue import Key

# Until the next read of EC2, of CloudWatch or of a probe, at least.
LEAST_SECONDS: Final = 1.0
# Until a region that could not be asked is tried again.
AGAIN_SECONDS: Final = 15.0
# Between two reads of a running probe: at first, and after minutes. A Pod that cannot start never ends.
PROBE_SECONDS: Final = (5.0, 60.0)
# Until a probe without a result, or one that holds up a canary, is made again.
RETRY_SECONDS: Final = 600.0


class Snapshot(msgspec.Struct, frozen=True):
    """One policy with everything that its plan reads."""

    status_input: StatusInput
    plan_input: PlanInput | None  # None: nothing is read
    age: float = 0.0  # seconds since EC2 was asked for all
    targets: Mapping[str, ClientKey] = {}  # by region
    policy_state: PolicyState | None = None  # None: nothing is changed
    wanting: frozenset[str] = frozenset()  # policies that probe
    lost: bool = False  # instances are to be asked for again soon
    tokenless: bool | None = None  # probes may ask without a token; None: not known
    gate_wake: float | None = None  # seconds until CloudWatch is read
    reread: bool = False  # the plan's readings are of this pass
    events: int = 0  # events of nodes and of other policies before the first read


class ControllerOptions(msgspec.Struct, frozen=True):
    """The process's settings. `changes`: EC2's bucket; `namespace`: the operator's; `watched`: that of the
    DaemonTasks that run, None = all; `daemontasks`: any run; `cluster`: as set."""

    grants: Grants
    namespace: str
    changes: Rate
    watched: str | None = None
    daemontasks: bool = True
    instance_identity: bool = False
    cluster: str = ""
    probe_image: str = ""


class IMDSPolicyKind(Kind[Snapshot, Plan, str]):
    """runtime.controller.Kind for IMDSPolicies."""

    kind = KIND
    stopped: Collection[str] = ()

    def __init__(
        self,
        client: KubeClient,
        aws: Aws,
        watched: WatchHandlers,
        metrics: PolicyMetrics,
        options: ControllerOptions,
    ) -> None:
        self._client = client
        self._options = options
        self._watched = watched
        self.unseen: Callable[[], ApiError | None] = lambda: None  # why the nodes cannot be seen
        self._metrics = metrics
        self._inventory = Inventory(lambda target: read_only(aws.ec2(target)), options.cluster)
        provider = LaunchTemplateProvider(
            lambda target: read_only(aws.ec2(target)),
            lambda target: read_only(aws.autoscaling(target)),
            client,
        )
        self._reader = PolicyReader(self._inventory, provider)
        no_probe = unserved(options.daemontasks, options.watched, options.namespace)
        self._prober = Prober(client, options.namespace, options.probe_image, no_probe)
        self._gates = TokenGates(lambda target: read_only(aws.cloudwatch(target)), metrics)
        self._waiting: dict[Key, float] = {}  # for a probe, since when
        self._modifier = InstanceModifier(
            aws.ec2_writer,
            self._inventory,
            options.changes,
            metrics,
            instance_identity=options.instance_identity,
        )

    async def forget(self, key: Key) -> None:
        """The resource is gone; other policies win its options. Its probes stop."""
        await self._unprobed(key.name)
        self._metrics.forget(key.name)
        self._gates.forget(key.name)
        self._waiting.pop(key, None)
        self._modifier.forget(key)
        self._watched.forget(key)

    async def stop(self) -> None:
        """Another process may lead from now on: forget all."""
        self._reader.clear()
        self._prober.clear()
        self._gates.clear()
        self._modifier.clear()
        self._watched.clear()
        self._metrics.clear()

    # ---------------------------------------------------------------- gather

    async def gather(self, key: Key) -> Snapshot | None:
        """The policy, all policies, the nodes, and their instances as EC2 describes them."""
        if (problem := self.unseen()) is not None:
            raise problem
        events = self._watched.events
        raw: RawPolicy | None = await or_none(self._client.get(self.path(key), RawPolicy))
        if raw is None:
            return None
        mine = read(raw)
        refusal = self._refused(mine)
        if mine.spec is None or refusal is not None or mine.spec.suspend:
            return Snapshot(StatusInput(mine, refusal), None, events=events)
        listed, _ = await self._client.list(IMDS_POLICY.path(), RawPolicy)
        every = [read(one) for one in listed]
        policies = [policy for one in every if (policy := one.policy()) is not None]
        if all(policy.name != mine.meta.name for policy in policies):
            return None  # deleted between the two reads
        policy_state = self._modifier.of(key, mine.meta.uid) if mine.enforces else None
        unsure = policy_state.unsure() if policy_state is not None else ()
        nodes = list(self._watched.nodes.values())
        found = await self._reader.gather(mine, policies, nodes, unsure)
        desired = [want async for want in in_pieces(planning.desired(found.plan_input))]
        found = msgspec.structs.replace(
            found, plan_input=msgspec.structs.replace(found.plan_input, desired=desired)
        )
        wanting = self._wanting(every)
        found = await self._probed(mine, found)
        found, gate = await self._gated(mine, found, every)
        if policy_state is not None:
            found = self._enforcing(mine, found, policy_state, gate)
        status_input, plan_input = found.status_input, found.plan_input
        age, targets, lost = found.age, found.targets, found.lost
        made = Snapshot(status_input, plan_input, age, targets, policy_state, wanting, lost, events=events)
        gate_wake = gate.wake if gate is not None else None
        tokenless = not any(one.gated for one in every)
        return msgspec.structs.replace(made, gate_wake=gate_wake, tokenless=tokenless)

    def _wanting(self, every: Iterable[ParsedPolicy]) -> frozenset[str]:
        """The policies that probe."""
        return frozenset(one.meta.name for one in every if one.probes and self._refused(one) is None)

    async def _unprobed(self, name: str) -> None:
        """Stop probes that only this policy asked for."""
        if self._prober.serves(name):
            listed, _ = await self._client.list(IMDS_POLICY.path(), RawPolicy)
            await self._prober.want(name, {}, self._wanting(map(read, listed)) - {name}, self._watched.nodes)

    async def _probed(self, mine: ParsedPolicy, found: GatherResult) -> GatherResult:
        """With the findings of the probe so far."""
        assert mine.spec is not None  # noqa: S101 - the caller has checked
        if not mine.probes:
            return found
        nodes = {name: node for name, (node, _) in self._watched.nodes.items()}
        probe_state = await self._prober.probe_state(nodes)
        asked = mine.spec.verification
        probing = Probing(
            asked.nodes_per_group,
            asked.expect,
            asked.max_latency_milliseconds,
            mine.interval,
            RETRY_SECONDS,
        )
        return msgspec.structs.replace(
            found,
            status_input=msgspec.structs.replace(found.status_input, probe_problem=probe_state.problem),
            plan_input=msgspec.structs.replace(
                found.plan_input, probing=probing, probe_state=probe_state, now=time.time()
            ),
        )

    async def _gated(
        self, mine: ParsedPolicy, found: GatherResult, every: Iterable[ParsedPolicy]
    ) -> tuple[GatherResult, GateResult | None]:
        """With the state of spec.tokenGate; None: there is none."""
        assert mine.spec is not None  # noqa: S101 - the caller has checked
        gate = None
        if mine.spec.token_gate is not None:
            gate = await self._gates.read(mine, gate_input(found.plan_input, time.time()))
        others = [one.status.token_gate for one in every if one.meta.name != mine.meta.name]
        statuses = [*others, gate.status if gate is not None else None]
        found = msgspec.structs.replace(found, plan_input=shut_input(found.plan_input, statuses))
        return msgspec.structs.replace(found, status_input=gated(found.status_input, gate)), gate

    def _enforcing(
        self, mine: ParsedPolicy, found: GatherResult, state: PolicyState, gate: GateResult | None
    ) -> GatherResult:
        """With the inputs of Enforce."""
        inputs = self._modifier.enforce_input(mine, state, found.targets)
        inputs = msgspec.structs.replace(inputs, held=state.held, instances=self._watched.instances)
        if gate is not None:
            inputs = msgspec.structs.replace(inputs, tokens_held=gate.held, rejected=gate.rejected)
        plan_input = msgspec.structs.replace(found.plan_input, enforce_input=inputs)
        status_input = msgspec.structs.replace(found.status_input, refused=state.permission.refused)
        return msgspec.structs.replace(found, status_input=status_input, plan_input=plan_input)

    def _refused(self, mine: ParsedPolicy) -> tuple[str, str] | None:
        if mine.spec is None:
            return Reason.INVALID_SPEC, mine.invalid
        found = refusals(self._options.grants, CLUSTER, mine.spec.aws.within(mine.spec.aws.region))
        return (Reason.NOT_GRANTED, "; ".join(map(str, found))) if found else None

    # ---------------------------------------------------------------- the rest of a pass

    def plan(self, snapshot: Snapshot) -> Plan:
        """See plan.py."""
        return Plan() if snapshot.plan_input is None else planning.plan(snapshot.plan_input)

    async def recheck(self, snapshot: Snapshot, plan: Plan) -> Snapshot | None:
        """Read the plan's instances again if their last read is too old, with the next ones; once in a pass,
        however long EC2 takes. Then make the dry runs."""
        enforced, policy_state, mine = plan.enforced, snapshot.policy_state, snapshot.status_input.read
        if enforced is None or policy_state is None:
            return None
        reread = bool(enforced.ahead) and not snapshot.reread
        if reread:
            since = time.monotonic()
            for region, target in snapshot.targets.items():
                ids = [instance for where, instance in enforced.ahead if where == region]
                await self._inventory.again(target, ids, since)
        elif not await self._modifier.ask(mine, policy_state, enforced.asks, snapshot.targets):
            return None
        newer = await self.gather(self._key(snapshot))
        return msgspec.structs.replace(newer, reread=snapshot.reread or reread) if newer is not None else None

    async def before(self, snapshot: Snapshot, plan: Plan) -> str:
        """Store the results of the plan, and have nodes probed; no option is changed before status has it.
        Why the probe's task, which this policy needs, could not be written, or ""."""
        key, mine = self._key(snapshot), snapshot.status_input.read
        self._watched.known(key, mine.spec, snapshot.events)
        if plan.enforced is not None and snapshot.policy_state is not None:
            self._modifier.note(snapshot.policy_state, plan.enforced, self._watched.instances)
            self._watched.awaited[key] = plan.enforced.nodes
        elif snapshot.plan_input is not None and not mine.enforces:
            self._modifier.forget(key)
            self._watched.awaited.pop(key, None)
        name, verified = mine.meta.name, plan.verified
        if mine.spec is not None and mine.spec.token_gate is None:
            self._gates.forget(name)
        if snapshot.tokenless is not None:
            self._prober.tokenless = snapshot.tokenless
        if snapshot.plan_input is None:
            await self._unprobed(name)
            return ""
        if verified is None and not self._prober.serves(name):
            return ""
        marks, first = (verified.marks, verified.first) if verified is not None else ({}, frozenset[str]())
        problem = await self._prober.want(name, marks, snapshot.wanting, self._watched.nodes, first)
        return problem if verified is not None else ""

    async def after(self, snapshot: Snapshot, plan: Plan, outcome: str) -> None:
        """The status stands: make the changes. Without a probe there would be no evidence of them; a
        canary is restored without."""
        enforced, policy_state = plan.enforced, snapshot.policy_state
        if enforced is not None and policy_state is not None:
            policy_state.held = enforced.held
        may = not outcome or (enforced is not None and enforced.breaker is not None)
        if enforced is not None and enforced.writes and policy_state is not None and may:
            mine = snapshot.status_input.read
            await self._recorded(mine, enforced)
            await self._modifier.carry_out(mine, policy_state, enforced.writes, snapshot.targets)
        elif policy_state is not None and policy_state.unseen and plan.rests:
            policy_state.unseen = False
            # The changed instances are different for them, too.
            self._watched.enqueue_others(self._key(snapshot))

    async def _recorded(self, mine: ParsedPolicy, enforced: Enforced) -> None:
        """Check that the stored status lists the instances to change, since the API server drops fields that
        an older CRD does not have, and that the spec is still that of the plan."""
        now = read(await self._client.get(IMDS_POLICY.path(name=mine.meta.name), RawPolicy))
        if (now.meta.uid, now.meta.generation) != (mine.meta.uid, mine.meta.generation):
            raise Conflict("the policy has changed")
        if (now.status.canary, now.status.changed) != (enforced.canary, enforced.changed):
            raise Retry(f"status lacks written fields, so no instance is changed: {INSTALL_CRDS}")

    def _key(self, snapshot: Snapshot) -> Key:
        return Key(KIND, "", snapshot.status_input.read.meta.name)

    def subject(self, snapshot: Snapshot) -> Subject:
        """The resource."""
        return Subject(snapshot.status_input.read.meta, snapshot.status_input.read.status)

    def status(self, snapshot: Snapshot, plan: Plan, outcome: str) -> Status:
        """See status.py."""
        return status_of(snapshot.status_input, plan, format_time(time.time()), outcome)

    def observe(self, snapshot: Snapshot, plan: Plan, status: Any) -> None:  # noqa: ARG002
        """The nodes by finding."""
        if snapshot.plan_input is not None:
            self._metrics.found(snapshot.status_input.read.meta.name, msgspec.to_builtins(plan.summary))

    def events(self, snapshot: Snapshot, plan: Plan, status: Any) -> Sequence[Event]:  # noqa: ARG002
        """Transitions only."""
        return events_of(snapshot.status_input.read.status, status, snapshot.status_input.read.spec)

    def requeue(self, snapshot: Snapshot, plan: Plan, outcome: str) -> Next:
        """When EC2 is to be asked for all again, or when something that Enforce waits for is due."""
        if snapshot.plan_input is None:
            return Next()
        delays = [max(snapshot.status_input.read.resync - snapshot.age, LEAST_SECONDS)]
        if snapshot.status_input.problems or snapshot.status_input.source_problems:
            delays = [AGAIN_SECONDS]
        if snapshot.gate_wake is not None:
            delays.append(max(snapshot.gate_wake, LEAST_SECONDS))
        if snapshot.lost:
            delays.append(LOST_SECONDS)
        if plan.enforced is not None and plan.enforced.wake is not None:
            delays.append(plan.enforced.wake)
        if outcome or snapshot.status_input.probe_problem:
            delays.append(AGAIN_SECONDS)
        elif plan.verified is not None and plan.verified.waiting:
            delays.append(self._probe_delay(snapshot))
        else:
            self._waiting.pop(self._key(snapshot), None)
            if plan.verified is not None and plan.verified.wake is not None:
                delays.append(max(plan.verified.wake, LEAST_SECONDS))
        if (state := snapshot.policy_state) is not None and state.permission.dry_runs.stopped is not None:
            delays.append(AGAIN_SECONDS)
        return Next(delay=min(delays))

    def _probe_delay(self, snapshot: Snapshot) -> float:
        """Longer the longer it takes."""
        now = time.monotonic()
        waited = now - self._waiting.setdefault(self._key(snapshot), now)
        first, most = PROBE_SECONDS
        return min(max(waited / 4, first), most)
