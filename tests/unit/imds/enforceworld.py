"""EC2, an API server and IMDSPolicies in memory, in virtual time, and the judge of every change that is sent.

The operator is the real one from its controller inwards; it can be killed at any call. The judge looks at
what an outsider could: what EC2 was sent, what it had told before, and the status that stood at that moment.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from caretaker.api.conditions import find
from caretaker.api.grants import Grants
from caretaker.api.imds import Spec, Status
from caretaker.api.objects import Node, WireMeta
from caretaker.api.times import format_time
from caretaker.aws.classes import ErrorClass
from caretaker.aws.errors import AwsError
from caretaker.aws.services import Rate
from caretaker.imds import controller, deeds, inventory, look
from caretaker.imds.controller import IMDSPolicyKind, Means
from caretaker.imds.resource import RawPolicy
from caretaker.kube.errors import ApiError
from caretaker.obs.imds_metrics import PolicyMetrics
from caretaker.runtime.queue import Key

TIMEOUT: Final = 60.0
SOAK: Final = 60.0
PER_MINUTE: Final = 6
BAD: Final = {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional", "HttpEndpoint": "enabled"}
_MODULES: Final = (controller, deeds, inventory, look)
_ERRORS: Final = {
    "refuse": AwsError(ErrorClass.INVALID_REQUEST, "InvalidParameterValue", "no luck"),
    "throttle": AwsError(ErrorClass.THROTTLED, "RequestLimitExceeded"),
    "deny": AwsError(ErrorClass.ACCESS_DENIED, "UnauthorizedOperation", "no"),
    "lose": AwsError(ErrorClass.UNKNOWN_OUTCOME, "Timeout"),
    "drop": AwsError(ErrorClass.UNKNOWN_OUTCOME, "ConnectionLost"),
}


class Killed(BaseException):
    """The process is no more."""


class Instance:
    """`told`: what the operator was last told; `sent`: by each policy, and when; `drifted`: those that were
    told since that it differs; `retried`: those that have sent it once more."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.options, self.state = name, dict(options), "running"
        self.applied_at = 0.0
        self.told = dict(options)
        self.sent: dict[str, tuple[dict[str, Any], float]] = {}
        self.retried: set[str] = set()
        self.drifted: set[str] = set()

    def standing(self, policy: str) -> tuple[Any, bool, bool]:
        """What stand() brings back."""
        return self.sent.get(policy), policy in self.retried, policy in self.drifted

    def stand(self, policy: str, before: tuple[Any, bool, bool]) -> None:
        """As before a call that changed nothing."""
        sent, retried, drifted = before
        self.sent.pop(policy, None)
        if sent is not None:
            self.sent[policy] = sent
        for names, was in ((self.retried, retried), (self.drifted, drifted)):
            names.discard(policy)
            names.update([policy] if was else [])


class World:
    """One cluster in one region. `policies` by name, as the API server has them."""

    def __init__(self, *, canary: int, nodes: int) -> None:
        self.now, self.skew = 1_000.0, 0.0
        self.canary = canary
        self.instances: dict[str, Instance] = {}
        self.nodes: dict[str, Node] = {}
        self.policies: dict[str, RawPolicy] = {}
        self.faults: list[str] = []
        self.blind = 0  # so many descriptions fail
        self.applies_in = 0.0
        self.kill_in: int | None = None  # after so many calls
        self.effect = True  # whether the call at which it is killed takes effect
        self.conflict = False  # of the next status
        self.sends: list[tuple[float, str, str]] = []  # (at, policy, instance) by this process
        self.before_pass: dict[tuple[str, int], list[str]] = defaultdict(list)
        self.acting = ""
        self.due: dict[str, float] = {}
        self.loop = asyncio.new_event_loop()
        self._kept = [(module, module.time) for module in _MODULES]  # type: ignore[attr-defined]
        for module in _MODULES:
            module.time = self  # type: ignore[attr-defined]
        for _ in range(nodes):
            self.add_node()
        self.restart()

    def close(self) -> None:
        for module, clock in self._kept:
            module.time = clock  # type: ignore[attr-defined]
        self.loop.close()

    # ------------------------------------------------------------ the clocks

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_800_000_000.0 + self.now + self.skew

    # ------------------------------------------------------------ the cluster

    def add_node(self, **options: Any) -> None:
        number = len(self.instances) + 1
        name = f"i-{number:08x}"
        self.instances[name] = Instance(name, {**BAD, **options})
        self.put_node(
            Node(f"n{number}", f"u{number}", {}, provider_id=f"aws:///eu-west-1a/{name}", ready=True)
        )

    def put_node(self, node: Node) -> None:
        before = self.nodes.get(node.name)
        self.nodes[node.name] = node
        if hasattr(self, "changed"):
            self.changed(before, node)

    def remove_node(self, name: str) -> None:
        self.changed(self.nodes.pop(name), None)

    def subscribe(self, changed: Callable[[Node | None, Node | None], None]) -> None:
        """As a Store has it."""
        self.changed = changed
        for node in self.nodes.values():
            changed(None, node)

    def instance_of(self, node: Node) -> Instance:
        return self.instances[node.provider_id.rsplit("/", 1)[1]]

    # ------------------------------------------------------------ the API server

    def apply(self, name: str, **spec: Any) -> None:
        before = self.policies.get(name)
        whole = {**(msgspec.json.decode(before.spec) if before else {}), **spec}
        meta = before.metadata if before else WireMeta(name=name, uid=name)
        meta = msgspec.structs.replace(meta, generation=meta.generation + 1)
        status = before.status if before else msgspec.Raw(b"{}")
        self.policies[name] = RawPolicy(meta, msgspec.Raw(msgspec.json.encode(whole)), status)
        self.due[name] = self.now

    def resume(self, name: str) -> None:
        raw = self.policies[name]
        stamp = {"caretaker.dev/resume-at": format_time(self.time() + 1)}
        self.policies[name] = msgspec.structs.replace(
            raw, metadata=msgspec.structs.replace(raw.metadata, annotations=stamp)
        )
        self.due[name] = self.now

    def status(self, name: str) -> Status:
        return msgspec.json.decode(self.policies[name].status, type=Status)

    def spec(self, name: str) -> Spec:
        return msgspec.json.decode(self.policies[name].spec, type=Spec)

    async def get(self, path: str, _: type | None = None) -> RawPolicy:
        name = path.rsplit("/", 1)[1]
        if name not in self.policies:
            raise ApiError(404, "NotFound")
        return self.policies[name]

    async def list(self, _: str, __: type) -> Any:
        return list(self.policies.values()), "1"

    # ------------------------------------------------------------ EC2

    def ec2(self, _: Any) -> "World":
        return self

    ec2_writer = ec2

    def pending(self, one: Instance) -> bool:
        return self.now < one.applied_at

    async def describe_instances(self, **given: Any) -> Any:
        if self.blind:
            self.blind -= 1
            raise _ERRORS["throttle"]
        found = [one for one in self.instances.values() if one.state == "running"]
        for wanted in given["Filters"]:
            if wanted["Name"] == "instance-id":
                found = [one for one in found if one.name in wanted["Values"]]
            else:
                found = [one for one in found if self.pending(one)]
        return {"Reservations": [{"Instances": [self.tell(one) for one in found]}]}

    def tell(self, one: Instance) -> dict[str, Any]:
        self.learn(one)
        state = "pending" if self.pending(one) else "applied"
        return {
            "InstanceId": one.name,
            "State": {"Name": one.state},
            "MetadataOptions": {"State": state, **one.options},
            "Tags": [{"Key": "Name", "Value": one.name}],
        }

    def learn(self, one: Instance) -> None:
        """The operator is told."""
        one.told = dict(one.options)
        for policy, (options, _) in one.sent.items():
            if any(one.options[name] != value for name, value in options.items()):
                one.drifted.add(policy)

    async def modify_instance_metadata_options(self, **given: Any) -> Any:
        one, dry = self.instances[given.pop("InstanceId")], given.pop("DryRun", False)
        assert self.spec(self.acting).mode == "Enforce", "an audit has sent something"
        fault = self.faults.pop() if self.faults else ""
        if dry:
            raise (
                _ERRORS["deny"]
                if fault == "deny"
                else AwsError(ErrorClass.INVALID_REQUEST, "DryRunOperation")
            )
        stood = one.standing(self.acting)
        self.judge(one, given)
        killed = self.kill_in == 0
        self.kill_in = None if not self.kill_in else self.kill_in - 1
        takes_effect = self.effect if killed else fault in ("", "lose")
        if one.state != "running":
            raise AwsError(ErrorClass.NOT_FOUND, "InvalidInstanceID.NotFound")
        if takes_effect:
            self.take(one, given)
        else:
            one.stand(self.acting, stood)  # it may be sent again as if it never had been
        if killed:
            raise Killed
        if fault:
            raise _ERRORS[fault]
        self.learn(one)
        return {
            "InstanceMetadataOptions": {"State": "pending" if self.pending(one) else "applied", **one.options}
        }

    def take(self, one: Instance, options: dict[str, Any]) -> None:
        one.options |= options
        one.applied_at = self.now + self.applies_in

    def set_back(self, one: Instance, **options: Any) -> None:
        """By another hand."""
        one.options |= options
        one.applied_at = 0.0

    # ------------------------------------------------------------ the judge

    def judge(self, one: Instance, options: dict[str, Any]) -> None:
        policy = self.acting
        self.sends.append((self.now, policy, one.name))
        self.judge_pace(policy)
        self.judge_canary(policy, one)
        self.judge_values(policy, one, options)
        before, at = one.sent.get(policy, ({}, -1e9))
        late = self.now - at >= TIMEOUT
        for other, (_, when) in one.sent.items():
            waits = self.pending(one) and one.state == "running"
            assert not waits or self.now - when >= TIMEOUT or other == policy, f"{other}'s change is pending"
        if before == options and policy not in one.drifted:
            assert late, f"{one.name} is sent the same twice"
            assert policy not in one.retried, f"{one.name} is sent once more for the second time"
            one.retried.add(policy)
        elif self.pending(one) and before:
            assert late, f"{one.name} is sent something while a change is pending"
        if before != options or policy in one.drifted:
            one.retried.discard(policy)
        one.sent[policy] = (dict(options), self.now)
        one.drifted.discard(policy)

    def judge_pace(self, policy: str) -> None:
        sent = sum(at > self.now - 60 for at, who, _ in self.sends if who == policy)
        assert sent <= PER_MINUTE, f"{sent} changes within a minute"

    def judge_canary(self, policy: str, one: Instance) -> None:
        meta, status = self.policies[policy].metadata, self.status(policy)
        canary = status.canary
        if not self.canary or (canary and canary.generation == meta.generation and canary.phase == "Passed"):
            return
        assert canary is not None
        assert one.name in canary.instances, f"{one.name} is changed before the canary has passed"
        changed = self.before_pass[policy, meta.generation]
        changed.append(one.name)
        there = {self.instance_of(node).name for node in self.nodes.values()}
        alive = {name for name in changed if self.instances[name].state == "running" and name in there}
        assert len(alive) <= self.canary, f"{alive} are changed before the canary has passed"

    def judge_values(self, policy: str, one: Instance, options: dict[str, Any]) -> None:
        spec = self.spec(policy)
        if "HopLimit" not in spec.safety.allow_loosening:
            assert options.get("HttpPutResponseHopLimit", 0) <= one.told["HttpPutResponseHopLimit"]
        assert set(options) <= {"HttpEndpoint", *(n[0].upper() + n[1:] for n, _ in spec.options.given())}

    # ------------------------------------------------------------ the operator

    def restart(self) -> None:
        """Memory is lost, what was sent goes on."""
        self.sends.clear()
        self.kill_in = None
        for one in self.instances.values():
            one.retried.clear()
        self.kind = IMDSPolicyKind(
            *(self, self, self),  # type: ignore[arg-type]
            lambda key: self.wake(key, 0.0),
            self.wake,
            PolicyMetrics(CollectorRegistry()),
            Means(Grants.default("caretaker-system"), "caretaker-system", Rate(2.0, 40.0)),
        )
        self.due = dict.fromkeys(self.policies, self.now)

    def wake(self, key: Key, delay: float) -> None:
        self.due[key.name] = min(self.due.get(key.name, self.now + delay), self.now + delay)

    def run_pass(self, name: str) -> None:
        """As runtime.controller does it."""
        self.acting = name
        try:
            self.loop.run_until_complete(self._pass(Key("IMDSPolicy", "", name)))
        except Killed:
            self.restart()

    async def _pass(self, key: Key) -> None:
        kind = self.kind
        snapshot = await kind.gather(key)
        assert snapshot is not None
        plan = kind.plan(snapshot)
        for _ in range(3):
            newer = await kind.confirm(snapshot, plan)
            if newer is None:
                break
            snapshot, plan = newer, kind.plan(newer)
        else:
            raise AssertionError("what is to be changed keeps changing under the plan")
        outcome: None = await kind.execute(snapshot, plan)  # type: ignore[func-returns-value]
        self.due[key.name] = self.now + (kind.next(snapshot, plan, outcome).delay or 600.0)
        status = kind.status(snapshot, plan, outcome)
        if status != kind.subject(snapshot).status:
            if self.conflict:
                self.conflict = False
                self.due[key.name] = self.now + 0.5
                return
            raw = self.policies[key.name]
            stored = msgspec.Raw(msgspec.json.encode(status))
            self.policies[key.name] = msgspec.structs.replace(raw, status=stored)
        await kind.settled(snapshot, plan, outcome)

    # ------------------------------------------------------------ the end

    def calm(self) -> None:
        """Nothing more goes wrong."""
        self.faults.clear()
        self.blind, self.kill_in, self.conflict, self.applies_in = 0, None, False, 5.0
        for one in self.instances.values():
            one.applied_at = min(one.applied_at, self.now + 5.0)
        for name, node in list(self.nodes.items()):
            if self.instance_of(node).state != "running":
                self.remove_node(name)
            else:
                self.put_node(msgspec.structs.replace(node, ready=True))

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> Counter[str]:
        """Passes when they are due; how many of each policy."""
        passes, end = Counter[str](), self.now + seconds
        while self.now < end and not until():
            name = min(self.due, key=lambda one: self.due[one])
            self.now = max(self.now, min(self.due[name], end))
            if self.now < end:
                self.run_pass(name)
                passes[name] += 1
        return passes

    def ready(self, name: str) -> str:
        found = find(self.status(name).conditions, "Ready")
        return found.reason if found is not None else ""
