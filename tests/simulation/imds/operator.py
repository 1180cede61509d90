"""The operator in its world: its processes, its passes side by side, and each of its calls.

It is the real one from its controller inwards. Passes run as runtime.controller has them, several at once;
calls take time, fail, and are where it can be killed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from caretaker.api.grants import Grant, Grants
from caretaker.api.objects import Node
from caretaker.aws.errors import AwsError
from caretaker.aws.services import Rate
from caretaker.imds.controller import ControllerOptions, IMDSPolicyKind
from caretaker.imds.metrics import PolicyMetrics
from caretaker.imds.watch_handlers import WatchHandlers
from caretaker.kube.errors import ApiError, NotLeader
from caretaker.runtime.controller import Conflict, Retry
from caretaker.runtime.work_queue import Key
from simulation.imds.clock import Clock, Loop
from simulation.imds.cluster import Cluster
from simulation.imds.ec2 import Ec2, Instance
from simulation.imds.judge import Judge

NAMESPACE: Final = "caretaker-system"
GRANTS: Final = Grants((Grant(imds_policies=True, role_arns=("arn:aws:iam::*:role/*",), own_identity=True),))
_ACTOR: ContextVar[tuple[str, int]] = ContextVar("actor")  # the policy of a pass, and of which process it is


class Killed(BaseException):
    """The process is no more."""


class Operator:
    """What runs, and what it is given to work with. `sent` is to be told of what it sends to EC2."""

    def __init__(self, clock: Clock, loop: Loop, cluster: Cluster) -> None:
        self.clock, self.loop, self.cluster = clock, loop, cluster
        self.ec2 = Ec2(clock.monotonic, self._sent)
        self.judge = Judge(cluster, self.ec2, clock)
        self.cloudwatch: Callable[[dict[str, Any]], Any] = lambda _: {"MetricDataResults": []}
        self.latency, self.slow = 0.02, list[float]()  # of each call; of the next ones
        self.api_faults: list[ApiError] = []
        self.kill_in: int | None = None  # after so many calls
        self.effect = True  # whether the call at which it is killed takes effect
        self.conflict = False  # of the next status
        self.daemontasks = True  # whether the next process runs them
        self._serving: dict[IMDSPolicyKind, bool] = {}
        cluster.used = lambda what, refused: self.judge.used(_ACTOR.get(("", 0))[0], what, refused)
        self.due: dict[str, float] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._passes = Counter[str]()
        self._failed: BaseException | None = None
        self._bell = asyncio.Event()
        self._epoch = 0
        self._standby: IMDSPolicyKind | None = None
        self.restart()

    # ------------------------------------------------------------ calls

    async def do(self, effect: Callable[[], Any]) -> Any:
        """One call: what it does is done at once, what it answers comes later."""
        self._alive()
        if self.kill_in == 0:
            if self.effect:
                _outcome(effect)
            self._epoch += 1
            raise Killed
        self.kill_in = None if self.kill_in is None else self.kill_in - 1
        error, answer = _outcome(effect)
        await asyncio.sleep(self.slow.pop() if self.slow else self.latency)
        self._alive()
        if error is not None:
            raise error
        return answer

    def _alive(self) -> None:
        if _ACTOR.get()[1] != self._epoch:
            raise Killed

    async def api(self, effect: Callable[[], Any]) -> Any:
        """One call of the API server."""

        def answer() -> Any:
            if self.api_faults:
                raise self.api_faults.pop()
            return effect()

        return await self.do(answer)

    def _sent(self, one: Instance, options: dict[str, Any], taken: bool) -> str:
        policy = _ACTOR.get()[0]
        try:
            self.judge.sent(policy, one, options, taken)
        except AssertionError as error:  # nobody between here and the test may take it for a fault
            self._failed = self._failed or error
        return policy

    # ------------------------------------------------------------ processes

    def _process(self) -> IMDSPolicyKind:
        held: list[IMDSPolicyKind] = []

        def wake(key: Key, delay: float = 0.0) -> None:
            if held and held[0] is self.kind:
                self.wake(key.name, delay)

        made = IMDSPolicyKind(
            _Kube(self),  # type: ignore[arg-type]
            _Aws(self),  # type: ignore[arg-type]
            WatchHandlers(_Store(self.cluster), SimpleNamespace(add=wake, add_after=wake)),  # type: ignore[arg-type]
            PolicyMetrics(CollectorRegistry()),
            ControllerOptions(
                *(GRANTS, NAMESPACE, Rate(2.0, 40.0)),
                daemontasks=self.daemontasks,
                probe_image="probe",
            ),
        )
        held.append(made)
        self._serving[made] = self.daemontasks
        return made

    def bury(self) -> None:
        """Whatever runs is over."""
        self._epoch += 1
        self.kill_in = None
        for task in self._running.values():
            task.cancel()
        self._running.clear()
        self.judge.restarted()
        self.due = dict.fromkeys(self.cluster.policies, self.clock.now)

    def restart(self) -> None:
        """Memory is lost, what was sent goes on."""
        self.bury()
        self.cluster.watchers.clear()
        self._standby = None
        self._leads(self._process())

    def change_leader(self) -> None:
        """Another process leads, that has seen the nodes all the time and may have led before."""
        self.bury()
        self.loop.run_until_complete(self.kind.stop())
        before = self.kind
        self._leads(self._standby or self._process())
        self._standby = before

    def _leads(self, kind: IMDSPolicyKind) -> None:
        self.kind, self.judge.serves = kind, self._serving[kind]
        self.judge.led_since = self.clock.now

    # ------------------------------------------------------------ passes

    def wake(self, name: str, delay: float) -> None:
        """As the queue does it."""
        self.due[name] = min(self.due.get(name, self.clock.now + delay), self.clock.now + delay)
        self._bell.set()

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> Counter[str]:
        """Passes when they are due; how many of each policy."""
        self._passes = Counter()
        self.loop.run_until_complete(self._run(self.clock.now + seconds, until))
        return self._passes

    async def _run(self, end: float, until: Callable[[], bool]) -> None:
        while self.clock.now < end and not until():
            for name in sorted(name for name, at in self.due.items() if at <= self.clock.now):
                if name not in self._running:
                    self._begin(name)
            waiting = [at for name, at in self.due.items() if name not in self._running]
            handle = self.loop.call_at(min([*waiting, end]), self._bell.set)
            await self._bell.wait()
            handle.cancel()
            self._bell.clear()
            if self._failed is not None:
                failed, self._failed = self._failed, None
                raise failed
            if any(task.done() for task in self._running.values()):
                self._reap()

    def _reap(self) -> None:
        for name, task in list(self._running.items()):
            if task.done():
                del self._running[name]
                error = task.exception()
                if isinstance(error, Killed):
                    self.restart()
                    return
                if error is not None:
                    raise error

    def _begin(self, name: str) -> None:
        del self.due[name]
        self._passes[name] += 1
        _ACTOR.set((name, self._epoch))
        if name in self.cluster.policies:
            self.judge.begins(name)
        self._running[name] = task = self.loop.create_task(self._work(Key("IMDSPolicy", "", name)))
        task.add_done_callback(lambda _: self._bell.set())

    async def _work(self, key: Key) -> None:
        """As runtime.controller does it."""
        try:
            delay = await self._pass(key)
        except (Conflict, Retry, NotLeader, ApiError):
            delay = 0.5
        if delay is not None:
            self.wake(key.name, delay)

    async def _pass(self, key: Key) -> float | None:
        kind = self.kind
        snapshot = await kind.gather(key)
        if snapshot is None:
            await kind.forget(key)
            return None
        plan = kind.plan(snapshot)
        for _ in range(3):
            newer = await kind.recheck(snapshot, plan)
            if newer is None:
                break
            snapshot, plan = newer, kind.plan(newer)
        else:
            raise Conflict("what is to be changed keeps changing under the plan")
        outcome = await kind.before(snapshot, plan)
        follow = kind.requeue(snapshot, plan, outcome)
        subject, status = kind.subject(snapshot), kind.status(snapshot, plan, outcome)
        kind.observe(snapshot, plan, status)
        if status != subject.status:
            await self.api(lambda: self._store(key.name, subject, status))
        await kind.after(snapshot, plan, outcome)
        if key.name in self.cluster.policies:
            self.judge.ends(key.name)
        return 600.0 if follow.delay is None else min(follow.delay, 600.0)

    def _store(self, name: str, subject: Any, status: Any) -> None:
        if self.conflict:
            self.conflict = False
            raise ApiError(409, "Conflict")
        before = self.cluster.policies.get(name)
        self.cluster.store(name, subject.meta.uid, subject.meta.resource_version, status)
        assert before is not None
        after = self.cluster.policies[name]
        self.judge.stored(name, msgspec.json.decode(before.status), msgspec.json.decode(after.status))


def _outcome(effect: Callable[[], Any]) -> tuple[Exception | None, Any]:
    try:
        return None, effect()
    except (ApiError, AwsError) as error:
        return error, None


class _Store:
    """Nodes, as a Store has them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def subscribe(self, changed: Callable[[Node | None, Node | None], None]) -> None:
        """As Store.subscribe."""
        self._cluster.watchers.append(changed)
        for node in self._cluster.nodes.values():
            changed(None, node)


class _Kube:
    """A KubeClient."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self._cluster = operator, operator.cluster

    async def get(self, path: str, _: type | None = None) -> Any:
        """KubeClient.get."""
        return await self._operator.api(lambda: self._cluster.get(path))

    async def list(self, path: str, kind: type, **_: Any) -> Any:
        """KubeClient.list."""
        return await self._operator.api(lambda: self._cluster.list(path, kind)), "1"

    async def create(self, path: str, body: Any) -> None:
        """KubeClient.create."""
        await self._operator.api(lambda: self._cluster.write("create", path, body))

    async def patch(self, path: str, body: Any) -> None:
        """KubeClient.patch."""
        await self._operator.api(lambda: self._cluster.write("patch", path, body))

    async def delete(self, path: str, *_: Any, **__: Any) -> None:
        """KubeClient.delete."""
        await self._operator.api(lambda: self._cluster.write("delete", path, {}))


class _Aws:
    """aws.calls.Aws, and the services that it answers."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def ec2(self, _: Any) -> "_Aws":
        """One region is all."""
        return self

    ec2_writer = autoscaling = cloudwatch = ec2

    async def get_metric_data(self, **given: Any) -> Any:
        """CloudWatch's."""
        return await self._operator.do(lambda: self._operator.cloudwatch(given))

    async def describe_instances(self, **given: Any) -> Any:
        """EC2's."""
        return await self._operator.do(lambda: self._operator.ec2.describe(given))

    async def modify_instance_metadata_options(self, **given: Any) -> Any:
        """EC2's."""
        return await self._operator.do(lambda: self._operator.ec2.modify(given))

    async def get_instance_metadata_defaults(self) -> Any:
        """EC2's; the account has none."""
        return await self._operator.do(lambda: {"AccountLevel": {"ManagedBy": "account"}})

    async def describe_auto_scaling_groups(self, **_: Any) -> Any:
        """Auto Scaling knows of none."""
        return await self._operator.do(lambda: {"AutoScalingGroups": []})
