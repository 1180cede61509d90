"""One cluster in one region: what happens in it, what people do, and what a harmful change does.

A harmful change kills its node: NotReady a while after it is in force, then replaced by node repair. One that
is taken back in time leaves the node as it was.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from caretaker.api.conditions import find
from caretaker.api.objects import Node
from simulation.imds.clock import Clock, Loop
from simulation.imds.cluster import Cluster
from simulation.imds.ec2 import ASG_TAG, CLUSTER_TAG, Instance
from simulation.imds.operator import Operator
from simulation.imds.truth import LABELS, Group

BAD: Final = {
    "HttpPutResponseHopLimit": 1,
    "HttpTokens": "optional",
    "HttpEndpoint": "enabled",
    "HttpProtocolIpv6": "disabled",
}


class World:
    """`groups`: what the instances of each are launched with, where it is not BAD."""

    def __init__(self, groups: Mapping[Group, Mapping[str, Any]]) -> None:
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.loop.set_exception_handler(lambda *_: None)  # of the dead
        self.clock.install()
        self.groups = {group: {**BAD, **options} for group, options in groups.items()}
        self.cluster = Cluster(self.clock, self.loop)
        self.operator = Operator(self.clock, self.loop, self.cluster)
        self.ec2, self.judge = self.operator.ec2, self.operator.judge
        self.ec2.became, self.cluster.instance = self._became, self.instance_of
        self.ails_after, self.repaired_after = 20.0, 120.0
        self.ailing: set[str] = set()
        self.twins: dict[str, str] = {}  # Nodes that name the instance of another Node

    def close(self) -> None:
        """Its end."""
        self.operator.bury()
        self.clock.remove()
        self.loop.close()

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> Counter[str]:
        """See Operator.run."""
        return self.operator.run(seconds, until=until)

    @property
    def harmful(self) -> set[tuple[Group, str, Any]]:
        """Changes that kill: (group, EC2's name of the field, to)."""
        return self.judge.harmful

    # ------------------------------------------------------------ nodes and instances

    def join(
        self, group: Group, *, skew: float = 0.0, options: Mapping[str, Any] | None = None, **labels: str
    ) -> str:
        """One more; its name."""
        number = len(self.ec2.instances) + 1
        name, node = f"i-{number:08x}", f"n{number}"
        kind, called = group
        asg = {"AutoScalingGroup": called, "EKSManagedNodegroup": f"eks-{called}"}.get(kind)
        tags = {"Name": name, CLUSTER_TAG: "prod", **({ASG_TAG: asg} if asg else {})}
        labels |= {LABELS[kind]: called} if kind in LABELS else {}
        launched = {**self.groups[group], **(options or {})}
        self.ec2.instances[name] = Instance(name, node, launched, tags, self.clock.now)
        self.cluster.skews[node] = skew
        self.cluster.put_node(
            Node(node, f"u{number}", labels, provider_id=f"aws:///eu-west-1a/{name}", ready=True)
        )
        return node

    def instance_of(self, node: str) -> Instance:
        """Of a Node, even if that is gone."""
        return self.ec2.instances[self.twins.get(node, f"i-{int(node[1:]):08x}")]

    def twin(self, node: str, *, ready: bool = True, **labels: str) -> str:
        """Another Node that names its instance."""
        name, old = f"n{90_000 + len(self.twins)}", self.cluster.nodes[node]
        self.twins[name] = self.instance_of(node).name
        self.cluster.put_node(Node(name, f"u{name}", labels, provider_id=old.provider_id, ready=ready))
        return name

    def remove(self, node: str) -> None:
        """A Node is deleted. Another one that names its instance is that of the instance then."""
        one = self.instance_of(node)
        self.cluster.remove_node(node)
        others = self.cluster.named(one.name)
        if one.node == node and others:
            with self.judge.moving(one):
                one.node = others[0]

    def cordon(self, node: str, *, unschedulable: bool = True) -> None:
        """`kubectl cordon`."""
        self.cluster.put_node(msgspec.structs.replace(self.cluster.nodes[node], unschedulable=unschedulable))

    def stop(self, node: str) -> None:
        """Stop its instance; 40 s later its Node is NotReady."""
        one = self.instance_of(node)
        one.stopped = min(one.stopped, self.clock.now)

        def ends() -> None:
            if one.stopped < math.inf:
                self.cluster.set_ready(node, False)

        self.loop.at(self.clock.now + 40.0, ends)

    def start(self, node: str) -> None:
        """Its instance."""
        one = self.instance_of(node)
        one.stopped = math.inf
        if one.name not in self.ailing:
            self.cluster.set_ready(node, one.runs)

    def label(self, node: str, labels: Mapping[str, str]) -> None:
        """Somebody edits them."""
        with self.judge.moving(self.instance_of(node)):
            self.cluster.put_node(msgspec.structs.replace(self.cluster.nodes[node], labels=dict(labels)))
        self.judge.strays()

    def attach(self, node: str, asg: str = "") -> None:
        """Its instance comes to an Auto Scaling group; "" = it is detached from its own."""
        one = self.instance_of(node)
        with self.judge.moving(one, by_tag=True):
            one.tags = {key: value for key, value in one.tags.items() if key != ASG_TAG}
            one.tags |= {ASG_TAG: asg} if asg else {}
        self.judge.strays()

    def end(self, node: str, *, leaves_in: float | None = 0.0) -> None:
        """Its instance is terminated; the Node is deleted later, or stays."""
        self.ec2.end(self.instance_of(node))
        if leaves_in == 0:
            self.remove(node)
        elif leaves_in is not None:
            self.loop.at(self.clock.now + leaves_in, lambda: self.remove(node))

    # ------------------------------------------------------------ what a harmful change does

    def _became(self, one: Instance) -> None:
        if one.name in self.ailing and not self.ails(one):
            self.ailing.discard(one.name)
            self.cluster.set_ready(one.node, one.runs)
        elif self.ails(one):
            self.loop.at(max(one.last.in_force, self.clock.now) + self.ails_after, lambda: self._ail(one))

    def ails(self, one: Instance) -> bool:
        """Whether an option kills it, with which it was not launched."""
        group = self.judge.group(one)
        return one.runs and any(
            (group, name, value) in self.harmful and one.launched[name] != value
            for name, value in one.last.options.items()
        )

    def _ail(self, one: Instance) -> None:
        if self.ails(one) and not one.pending(self.clock.now) and one.name not in self.ailing:
            self.ailing.add(one.name)
            self.cluster.set_ready(one.node, False)
            self.loop.at(self.clock.now + self.repaired_after, lambda: self._repair(one))

    def _repair(self, one: Instance) -> None:
        """Another takes its place."""
        if one.name in self.ailing and self.ails(one):
            group, there = self.judge.group(one), one.node in self.cluster.nodes
            self.ailing.discard(one.name)
            self.ec2.end(one)
            self.remove(one.node)
            if there and group in self.groups:
                self.join(group)

    # ------------------------------------------------------------ people

    def apply(self, name: str, **spec: Any) -> None:
        """Create or edit a policy."""
        self.cluster.apply(name, spec)
        self.judge.strays()
        self.judge.acted(name, edits=True)
        self.operator.wake(name, 0.0)

    def delete(self, name: str) -> None:
        """A policy."""
        del self.cluster.policies[name]
        self.judge.strays()
        self.operator.wake(name, 0.0)

    def resume(self, name: str) -> None:
        """`caretaker resume imdspolicy`, from a machine whose clock is a second ahead."""
        self.cluster.resume(name, self.clock.time() + 1)
        self.judge.acted(name)
        self.operator.wake(name, 0.0)

    # ------------------------------------------------------------ the end

    def calm(self) -> None:
        """Nothing more goes wrong, but for what kills."""
        self.ec2.calm()
        self.cluster.calm()
        operator, now = self.operator, self.clock.now
        operator.api_faults.clear()
        operator.slow.clear()
        operator.kill_in, operator.conflict = None, False
        if not self.judge.serves:
            operator.daemontasks = True
            operator.restart()
        for one in self.ec2.instances.values():
            if one.pending(now + 5.0):
                one.last.in_force = now + 5.0
                self._became(one)
        for name in list(self.cluster.nodes):
            one = self.instance_of(name)
            one.stopped = math.inf
            if not one.runs or name != one.node:
                self.remove(name)
            elif one.name not in self.ailing:
                self.cluster.set_ready(name, True)

    def heal(self) -> None:
        """Nothing kills any more."""
        self.harmful.clear()
        for name in sorted(self.ailing):
            self.cluster.set_ready(self.ec2.instances[name].node, True)
        self.ailing.clear()

    def ready(self, name: str) -> str:
        """The reason of the condition."""
        found = find(self.cluster.status(name).conditions, "Ready")
        return found.reason if found is not None else ""
