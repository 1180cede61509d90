"""docs/iam/daemontask-ecs.json and the calls that are made: equal, action by action."""

import json

from awsdoubles.sqsproxy.proxy import SqsProxy
from caretaker.aws.services import iam_action
from testbed.paths import CHECKOUT
from testing.ecstasks import EcsTasks


async def test_the_policy_is_what_a_life_of_every_way_to_count_asks_for(
    place: EcsTasks, sqs_proxy: SqsProxy
) -> None:
    policy = json.loads((CHECKOUT / "docs" / "iam" / "daemontask-ecs.json").read_text())
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    place.cluster(instances=2)
    place.control.put_provider("asg", status="DISABLED")
    place.control.put_service("prod", "logs", providers=[{"capacityProvider": "asg", "weight": 1}])
    task = await place.create()
    registered = await place.create("registered", clusters=["prod"], countInstances="Registered")
    logs = await place.create("logs", clusters=["prod"], service="logs")
    await task.clusters({"prod": 2})
    await registered.clusters({"prod": 2})
    await logs.clusters({"prod": 0})
    await place.send(place.control.register("prod", provider="asg"))
    await task.clusters({"prod": 3})
    await logs.clusters({"prod": 1})
    await place.drained()
    used = {iam_action("ecs", operation) for operation in place.operations()}
    used |= {iam_action("sqs", call.operation) for call in sqs_proxy.calls.all()}
    assert used == allowed
