"""The test's side of the EC2 double: ledger, clock, reset, and what it refuses."""

import time
from typing import Any

import pytest

from awsdoubles.ec2.control import Control, ControlError
from awsdoubles.ec2.server import Ec2
from testing.ec2 import code, ids


def test_the_ledger_shows_every_call(client: Any, control: Control, node: str) -> None:
    at = control.advance(5)
    client.modify_instance_metadata_options(
        InstanceId=node, HttpPutResponseHopLimit=2, HttpEndpoint="enabled"
    )
    code(client.describe_instances, MaxResults=2)
    entries = control.calls()
    assert entries[0] == {
        "service": "ec2",
        "region": "eu-west-1",
        "operation": "ModifyInstanceMetadataOptions",
        "params": {"InstanceId": node, "HttpPutResponseHopLimit": 2, "HttpEndpoint": "enabled"},
        "at": at,
        "status": 200,
        "code": "",
    }
    assert (entries[1]["params"], entries[1]["status"], entries[1]["code"]) == (
        {"MaxResults": 2},
        400,
        "InvalidParameterValue",
    )
    assert len(control.calls("DescribeInstances")) == 1
    control.put_options([node], HttpTokens="required")
    assert len(control.calls()) == 2
    control.clear_calls()
    assert control.counts() == {}


def test_the_clock_runs_until_it_is_stopped(ec2: Ec2) -> None:
    control = ec2.control
    assert abs(control.now() - time.time()) < 5
    stopped = control.stop_clock()
    assert control.advance(90) == stopped + 90
    assert control.now() == stopped + 90
    assert control.start_clock() >= stopped + 90
    before = control.now()
    while control.now() <= before:
        pass


def test_the_clock_can_run_faster_than_the_machine_s_and_buckets_with_it(client: Any, ec2: Ec2) -> None:
    control = ec2.control
    one = control.add_nodes(1)[0]["id"]
    control.stop_clock()
    how = {"InstanceId": one, "HttpTokens": "required", "HttpEndpoint": "enabled"}
    for _ in range(100):
        client.modify_instance_metadata_options(**how)
    assert code(client.modify_instance_metadata_options, **how) == "RequestLimitExceeded"
    began, control_began = time.monotonic(), control.speed_clock(1000)
    stopped = control.start_clock()
    assert stopped - control_began <= 1000 * (time.monotonic() - began)
    while (now := control.now()) < stopped + 20:
        pass
    assert now - stopped <= 1000 * (time.monotonic() - began)
    client.modify_instance_metadata_options(**how)
    with pytest.raises(ControlError, match="speed is above 0"):
        control.speed_clock(0)
    control.reset()
    assert abs(control.now() - time.time()) < 5


def test_a_reset_forgets_everything(client: Any, control: Control, node: str) -> None:
    control.put_template("t", [{}])
    control.put_group("g")
    control.defaults(HttpTokens="required")
    control.deny("DescribeInstances")
    control.fault("refuse")
    control.settings(apply_seconds=7)
    code(client.describe_instances)
    control.reset()
    assert (control.instances(), control.calls(), control.faults()) == ([], [], [])
    assert control.settings()["apply_seconds"] == 1.0
    assert ids(client.describe_instances()) == []


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("settings", {"no": 1}, "no setting 'no'"),
        ("add_nodes", {"options": {"Hop": 1}}, "metadata option 'Hop' is none of"),
        ("add_nodes", {"options": {"HttpPutResponseHopLimit": 0}}, "HttpPutResponseHopLimit 0"),
        ("put_options", {"HttpTokens": "on"}, "HttpTokens 'on' is none of"),
        ("add_nodes", {"state": "asleep"}, "state 'asleep' is none of"),
        ("add_nodes", {"template": {"LaunchTemplateName": "t"}}, "no launch template 't'"),
        ("put_template", {"name": "t", "versions": [{"Hop": 1}]}, "has no member 'Hop'"),
        ("put_group", {"name": "g", "Launch": {}}, "has no member 'Launch'"),
        ("fault", {"action": "explode"}, "action 'explode' is none of"),
        ("defaults", {"Hop": 1}, "no account default Hop"),
        ("defaults", {"HttpTokensEnforced": "required"}, "HttpTokensEnforced 'required' is none of"),
        ("deny", {"operation": "Eat"}, "no operation 'Eat'"),
        ("instances", {"ids": ["i-1"]}, "no instance i-1"),
        ("advance", {"seconds": -1}, "backwards"),
    ],
)
def test_a_wrong_control_call_is_told(
    control: Control, call: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ControlError, match=message):
        getattr(control, call)(**arguments)
