"""What the EC2 double does to its callers: empty buckets, lost answers, delays, options that stay pending."""

import time
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError

from awsdoubles.clients import client as made_client
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.server import Ec2
from testing.ec2 import code, filters, options, refusal


@pytest.mark.parametrize(
    ("arguments", "burst", "rate"),
    [
        pytest.param({"MaxResults": 5}, 100, 20, id="with pages"),
        pytest.param({"Filters": filters(tag_key=["x"])}, 100, 20, id="with a filter"),
        pytest.param({}, 50, 10, id="with neither"),
    ],
)
def test_descriptions_are_throttled(
    client: Any, control: Control, arguments: dict[str, Any], burst: int, rate: int
) -> None:
    """ "Request throttling for the Amazon EC2 API"."""
    for _ in range(burst):
        client.describe_instances(**arguments)
    assert refusal(client.describe_instances, **arguments)[:2] == ("RequestLimitExceeded", 503)
    control.advance(1)
    for _ in range(rate):
        client.describe_instances(**arguments)
    assert code(client.describe_instances, **arguments) == "RequestLimitExceeded"
    assert control.counts() == {"DescribeInstances": {"ok": burst + rate, "RequestLimitExceeded": 2}}


def test_changes_are_throttled_for_each_region_alone(client: Any, ec2: Ec2, control: Control) -> None:
    """ "Request throttling for the Amazon EC2 API": ModifyInstanceMetadataOptions 100, then 5 a second."""
    node = control.add_nodes(1)[0]["id"]
    call = client.modify_instance_metadata_options
    for _ in range(100):
        call(InstanceId=node, HttpTokens="required")
    for expected in ("RequestLimitExceeded", "RequestLimitExceeded"):
        assert code(call, InstanceId=node, HttpTokens="optional") == expected
    assert control.instance(node)["options"]["HttpTokens"] == "required"
    client.describe_instances(InstanceIds=[node])
    there = control.add_nodes(1, region="us-east-1")[0]["id"]
    elsewhere = made_client("ec2", ec2.url, region="us-east-1")
    elsewhere.modify_instance_metadata_options(InstanceId=there, HttpTokens="required")
    elsewhere.close()
    control.advance(2)
    for _ in range(10):
        call(InstanceId=node, HttpTokens="required")
    assert code(call, InstanceId=node, HttpTokens="required") == "RequestLimitExceeded"
    control.settings(throttling=False)
    call(InstanceId=node, HttpTokens="required")


def test_a_fault_strikes_as_often_as_it_is_told(client: Any, control: Control) -> None:
    first, second = (one["id"] for one in control.add_nodes(2))
    call = client.modify_instance_metadata_options
    control.fault("refuse", code="Unavailable", count=2, instance=first)
    control.fault("refuse", code="Odd", status=418, operation="DescribeInstances")
    call(InstanceId=second, HttpTokens="required")
    for _ in range(2):
        assert refusal(call, InstanceId=first, HttpTokens="required")[:2] == ("Unavailable", 503)
    call(InstanceId=first, HttpTokens="required")
    assert refusal(client.describe_instances)[:2] == ("Odd", 418)
    client.describe_instances()
    assert [fault["used"] for fault in control.faults()] == [2, 1]


@pytest.mark.parametrize(("action", "effect"), [("lose_reply", "required"), ("lose_request", "optional")])
def test_an_answer_is_lost_after_the_effect_and_a_request_before_it(
    client: Any, control: Control, node: str, action: str, effect: str
) -> None:
    control.fault(action)
    with pytest.raises(ConnectionClosedError):
        client.modify_instance_metadata_options(InstanceId=node, HttpTokens="required")
    assert control.instance(node)["options"]["HttpTokens"] == effect
    entry = control.calls("ModifyInstanceMetadataOptions")[0]
    lost = entry.get("replyLost", False) if action == "lose_reply" else entry["code"] == "(request lost)"
    assert lost


def test_a_delay_holds_the_reply_back(client: Any, control: Control, node: str) -> None:
    control.fault("delay", seconds=0.3)
    started = time.monotonic()
    client.modify_instance_metadata_options(InstanceId=node, HttpTokens="required")
    assert time.monotonic() - started >= 0.3


def test_an_instance_can_stay_pending_until_it_is_asked_again(
    client: Any, control: Control, node: str
) -> None:
    control.fault("stay_pending", instance=node)
    client.modify_instance_metadata_options(InstanceId=node, HttpTokens="required")
    control.advance(3600)
    assert options(client, node)["State"] == "pending"
    client.modify_instance_metadata_options(InstanceId=node, HttpTokens="required")
    control.advance(1)
    assert options(client, node)["State"] == "applied"
