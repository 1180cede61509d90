"""The steps of a pass over an ECS target: which of them starts and stops the worker."""

import asyncio
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from caretaker.api.daemontask import DaemonTask, Spec
from caretaker.api.ecs import EcsAws, EcsSpec
from caretaker.api.grants import Grant, Grants
from caretaker.api.objects import WireMeta
from caretaker.aws.identity import ClientKey, session_name
from caretaker.daemontask.ecs.controller import EcsTarget
from caretaker.daemontask.metrics import DaemonTaskMetrics
from caretaker.daemontask.resource import KIND
from caretaker.runtime.work_queue import Key
from unit.daemontask.ecs.build import REGION, spec

KEY = Key(KIND, "ops", "agents")


class Silent:
    """AWS that never answers, and notes who asks."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def __getattr__(self, method: str) -> Any:
        async def answer(**_: Any) -> Any:
            self.asked.append(method)
            await asyncio.Event().wait()

        return answer


class Accounts:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.keys: list[ClientKey] = []

    def ecs(self, key: ClientKey) -> Any:
        self.keys.append(key)
        return Silent(self.asked)

    sqs = ecs


def task(of: EcsSpec, **fields: Any) -> DaemonTask:
    meta = WireMeta(name="agents", namespace="ops", uid=fields.pop("uid", "u1"))
    return DaemonTask(metadata=meta, spec=Spec(ecs=of, **fields))


async def settle() -> None:
    """Tasks that have begun run to their first call."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reading_starts_and_stops_nothing() -> None:
    aws: Any = Accounts()
    target = EcsTarget(aws, Grants.default("ops"), DaemonTaskMetrics(CollectorRegistry()), lambda _: None)
    first = await target.gather(KEY, task(spec("prod")), "")
    await settle()
    assert (list(first.clusters), aws.asked) == (["prod"], [])
    await target.before(first, target.plan(first))
    await settle()
    assert sorted(aws.asked) == ["describe_services", "receive_message"]
    checking = await target.gather(KEY, task(spec("prod")), "")
    assert checking.clusters["prod"].busy
    for changed in (task(spec("test")), task(spec("prod"), uid="u2"), task(spec("prod"), suspend=True)):
        other = await target.gather(KEY, changed, "")
        assert not any(cluster.busy for cluster in other.clusters.values())
    again = await target.gather(KEY, task(spec("prod")), "")
    assert msgspec.structs.asdict(again)["clusters"] == msgspec.structs.asdict(checking)["clusters"]
    await target.stop()


async def test_a_suspended_target_asks_nothing_after_its_pass() -> None:
    aws: Any = Accounts()
    target = EcsTarget(aws, Grants.default("ops"), DaemonTaskMetrics(CollectorRegistry()), lambda _: None)
    for suspend in (False, True):
        snapshot = await target.gather(KEY, task(spec("prod"), suspend=suspend), "")
        await target.before(snapshot, target.plan(snapshot))
        await settle()
    assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("ecs-")]
    assert sorted(aws.asked) == ["describe_services", "receive_message"]


async def test_the_session_of_a_role_has_the_short_name_of_the_kind() -> None:
    """The reader of a queue is shared: tests/integration/observability/test_sessions.py has its session."""
    aws: Any = Accounts()
    grants = Grants((Grant(("ops",), role_arns=("*",), queue_arns=("*",)),))
    target = EcsTarget(aws, grants, DaemonTaskMetrics(CollectorRegistry()), lambda _: None)
    given = msgspec.structs.replace(spec("prod"), aws=EcsAws(REGION, "arn:aws:iam::123456789012:role/a"))
    snapshot = await target.gather(KEY, task(given), "")
    await target.before(snapshot, target.plan(snapshot))
    await target.stop()
    assert session_name("test", aws.keys[0].identity.user) == "test,ops,dtask,agents"
