"""Looks at a cluster of the double: ECS places tasks, drains and scales as its developer guide says."""

from collections.abc import Callable
from typing import Any

from awsdoubles.clients import ACCOUNT, REGION
from awsdoubles.ecs.operations import OPERATIONS
from awsdoubles.ecs.protocol import model
from awsdoubles.ecs.state import Cluster, Instance, Provider, Service, World, scaled
from awsdoubles.gateway.shapes import constraint_errors, type_errors
from caretaker.aws.services import api_name
from caretaker.daemontask.ecs.check import (
    Answer,
    Call,
    CheckParams,
    Facts,
    PendingDecrease,
    ServiceState,
    check,
    following,
)

DISTINCT = {"type": "distinctInstance"}
ASG = [{"capacityProvider": "asg", "weight": 1}]


def member_of(expression: str) -> dict[str, str]:
    return {"type": "memberOf", "expression": expression}


class Played:
    """One cluster with the service. `facts`: whether its task definition is known already; `change`: of every
    answer, by whoever wants another one."""

    def __init__(self, *, facts: bool = True, **service: Any) -> None:
        self.world = World()
        self.cluster = Cluster("prod", REGION)
        self.world.clusters[REGION, "prod"] = self.cluster
        given = {"constraints": [DISTINCT], "desired": 0, **service}
        self.service = Service("arn", "agent", self.cluster.arn, **given)
        self.cluster.services["agent"] = self.service
        self.calls: list[str] = []
        self.decrease: PendingDecrease | None = None
        definition = f"arn:aws:ecs:{REGION}:{ACCOUNT}:task-definition/agent:1"
        self.facts = Facts(definition=definition) if facts else Facts()
        self.change: Callable[[Call, Answer], Answer] = lambda _, answer: answer

    def join(self, count: int, provider: str = "", **attributes: str) -> list[Instance]:
        return [
            self.cluster.register(0.0, provider=provider, attributes=dict(attributes)) for _ in range(count)
        ]

    def provider(self, name: str, **how: Any) -> Provider:
        self.world.providers[REGION, name] = made = Provider(name, **how)
        return made

    def settle(self) -> None:
        """ECS starts and stops what it can."""
        self.cluster.settle(self.service, 0.0, 0.0)

    def minute(self) -> int:
        """Managed scaling does what it does in one; how many container instances there are then."""
        self.settle()
        for provider in self.world.providers.values():
            scaled(self.cluster, provider, 0.0)
        self.settle()
        return len(self.cluster.instances)

    def look(self, *, confirm: bool = True, **wanted: Any) -> ServiceState:
        """A look from the beginning to the end, and another one where the first is to be confirmed."""
        found = self._look(wanted)
        if found.decrease is not None and confirm:
            self.decrease = PendingDecrease(found.decrease.counted, old=True)
            found = self._look(wanted)
        self.decrease = found.decrease
        self.settle()
        return found

    def _look(self, given: dict[str, Any]) -> ServiceState:
        self.calls.clear()
        wanted = {"counts": "Active", "learn": False, "max_decrease_percent": 50, **given}
        params = CheckParams("prod", "agent", decrease=self.decrease, facts=self.facts, **wanted)
        looking = check(params, self._keep)
        step = following(looking, None)
        while not isinstance(step, ServiceState):
            step = following(looking, self.change(step, self.answer(step)))
        return step

    def _keep(self, facts: Facts) -> None:
        self.facts = facts

    def answer(self, call: Call) -> Answer:
        """The double's."""
        operation = next(name for name in OPERATIONS if name == api_name(call.method))
        self.calls.append(operation)
        shape = model().operation_model(operation).input_shape
        assert not [*type_errors(shape, call.parameters), *constraint_errors(shape, call.parameters)]
        return OPERATIONS[operation](self.world, REGION, call.parameters, 0.0)
