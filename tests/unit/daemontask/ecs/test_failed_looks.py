"""What a look that fails has cost, and what the next one reads again."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from caretaker.aws.errors import AwsError, ErrorClass
from caretaker.aws.services import api_name
from caretaker.daemontask.ecs import worker as worker_module
from caretaker.daemontask.ecs.check import Call
from caretaker.daemontask.ecs.plan import Plan
from caretaker.daemontask.ecs.worker import Worker
from caretaker.daemontask.metrics import EcsMetrics
from caretaker.kube.errors import NotLeader
from fakes import virtualtime
from fakes.virtualtime import played
from unit.daemontask.ecs.build import snapshot, spec
from unit.daemontask.ecs.played import ASG, Played

COUNT = ["DescribeServices", "ListContainerInstances", "UpdateService"]
DENIED = AwsError(ErrorClass.ACCESS_DENIED, "AccessDenied", "no", service="ecs", operation="x")
THROTTLED = AwsError(ErrorClass.THROTTLED, "ThrottlingException", "no", service="ecs", operation="x")


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "time", virtualtime)


class Refusing:
    """The double; the calls whose numbers `errors` has fail after they were sent. The first is number 1."""

    def __init__(self, account: Played, errors: dict[tuple[str, int], Exception]) -> None:
        self.account = account
        self.errors = errors
        self.calls: list[str] = []

    def __getattr__(self, method: str) -> Any:
        async def answer(**parameters: Any) -> Any:
            operation = api_name(method)
            self.calls.append(operation)
            error = self.errors.get((operation, self.calls.count(operation)))
            if error is not None:
                raise error
            return self.account.answer(Call(method, parameters))  # type: ignore[arg-type]

        return answer


async def tries(
    account: Played, errors: dict[tuple[str, int], Exception], *, count: int, **fields: Any
) -> list[list[str]]:
    """The calls of each look, a minute after another."""
    news, made = asyncio.Event(), []
    ecs: Any = Refusing(account, errors)
    worker = Worker(snapshot(spec("prod", **fields)), ecs, EcsMetrics(CollectorRegistry()), news.set)
    for _ in range(count):
        before = len(ecs.calls)
        news.clear()
        worker.begin(Plan(("prod",)))
        await asyncio.wait_for(news.wait(), 10)
        made.append(ecs.calls[before:])
        await asyncio.sleep(60)
    return made


def asg(instances: int, **given: Any) -> Played:
    account = Played(providers=ASG, **given)
    account.provider("asg", status="DISABLED")
    account.join(instances, "asg")
    return account


@pytest.mark.parametrize(
    "error", [DENIED, THROTTLED, NotLeader("3 s are left")], ids=["denied", "throttled", "not the leader"]
)
@played
async def test_a_look_whose_update_is_refused_twice_and_then_accepted_reads_the_revision_once(
    error: Exception,
) -> None:
    account = Played(facts=False)
    account.join(5)
    refused = {("UpdateService", number): error for number in (1, 2)}
    first, *others = await tries(account, refused, count=3)
    assert first == ["DescribeServices", "DescribeTaskDefinition", *COUNT]
    assert others == [COUNT, COUNT]
    assert account.service.desired == 5


@played
async def test_a_look_that_fails_describes_no_instance_twice() -> None:
    account = asg(1000, facts=False)
    refused = {("UpdateService", number): DENIED for number in range(10)}
    first, *others = await tries(account, refused, count=5)
    assert first.count("DescribeContainerInstances") == 10
    assert others == [["DescribeServices", *["ListContainerInstances"] * 10, "UpdateService"]] * 4


@played
async def test_instances_that_are_described_by_hundreds_are_described_a_hundred_once() -> None:
    """Of many calls in a row one is likely to be throttled."""
    account = asg(1000)
    throttled: dict[tuple[str, int], Exception] = {
        ("DescribeContainerInstances", number): THROTTLED for number in (4, 9)
    }
    made = await tries(account, throttled, count=3)
    assert [calls.count("DescribeContainerInstances") for calls in made] == [4, 5, 3], "ten, and two again"
    assert account.service.desired == 1000
    assert made[-1][-1] == "UpdateService"


@played
async def test_what_a_failed_look_has_read_expires_as_well() -> None:
    account = asg(3, desired=3)
    provider = account.world.providers["eu-west-1", "asg"]
    refused: dict[tuple[str, int], Exception] = {("ListContainerInstances", n): DENIED for n in range(20)}
    ecs = asyncio.create_task(tries(account, refused, count=7, resync_seconds=300))
    await asyncio.sleep(30)
    provider.status = "ENABLED"
    made = await ecs
    assert [calls.count("DescribeCapacityProviders") for calls in made] == [1, 0, 0, 0, 0, 1, 0]
    assert made[-1] == ["DescribeServices"], "ECS scales it"


@pytest.mark.parametrize("error", [DENIED, NotLeader("3 s are left")], ids=["denied", "not the leader"])
@played
async def test_a_try_of_a_registered_count_takes_three_calls_in_a_cluster_of_any_size(
    error: Exception,
) -> None:
    """The list of the instances is of the first look, and of one after it that is no try."""
    account = Played()
    account.join(1000)
    refused = {("UpdateService", number): error for number in (1, 2)}
    first, *tried, after = await tries(account, refused, count=4, count_instances="Registered")
    assert first.count("ListContainerInstances") == after.count("ListContainerInstances") == 10
    assert tried == [["DescribeServices", "DescribeClusters", "UpdateService"]] * 2
    assert account.service.desired == 1000
