"""ModifyInstanceMetadataOptions of the EC2 double: each rule of the manuals, by the page that has it."""

from typing import Any

import pytest

from awsdoubles.ec2.control import Control, ControlError
from testing.ec2 import DEFAULTS, code, filters, ids, instances, options, refusal


def test_a_change_is_pending_then_applied_and_leaves_other_options_alone(
    client: Any, control: Control, node: str
) -> None:
    """ "ModifyInstanceMetadataOptions": what is unset stays; a running instance answers pending."""
    control.settings(apply_seconds=10)
    control.put_options([node], HttpTokens="required", HttpPutResponseHopLimit=3)
    answer = client.modify_instance_metadata_options(InstanceId=node, HttpPutResponseHopLimit=2)
    asked = {**DEFAULTS, "HttpTokens": "required", "HttpPutResponseHopLimit": 2}
    assert (answer["InstanceId"], answer["InstanceMetadataOptions"]) == (node, {"State": "pending", **asked})
    control.advance(9)
    assert options(client, node) == {"State": "pending", **asked}
    assert control.instance(node)["inForce"]["HttpPutResponseHopLimit"] == 3
    control.advance(1)
    assert options(client, node) == {"State": "applied", **asked}
    assert control.instance(node)["inForce"] == asked


def test_descriptions_may_miss_a_change_for_a_while(client: Any, control: Control, node: str) -> None:
    """ "Eventual consistency in the Amazon EC2 API"."""
    control.settings(stale_seconds=5)
    answer = client.modify_instance_metadata_options(InstanceId=node, HttpTokens="required")
    assert answer["InstanceMetadataOptions"]["State"] == "pending"
    pending = filters(**{"metadata_options.state": ["pending"]})
    control.advance(4)
    assert options(client, node) == {"State": "applied", **DEFAULTS}
    assert ids(client.describe_instances(Filters=pending)) == []
    control.advance(1)
    assert options(client, node) == {"State": "applied", **DEFAULTS, "HttpTokens": "required"}


def test_two_changes_in_flight_add_up(client: Any, control: Control, node: str) -> None:
    client.modify_instance_metadata_options(InstanceId=node, HttpTokens="required")
    client.modify_instance_metadata_options(InstanceId=node, HttpPutResponseHopLimit=2)
    control.advance(1)
    assert control.instance(node)["inForce"] == {
        **DEFAULTS,
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
    }


def test_a_stopped_instance_takes_its_options_at_its_start(client: Any, control: Control, node: str) -> None:
    """ "ModifyInstanceMetadataOptions": "applied when the instance is started"."""
    control.set_state("stopped", [node])
    client.modify_instance_metadata_options(InstanceId=node, HttpPutResponseHopLimit=2)
    control.advance(3600)
    assert options(client, node)["State"] == "pending"
    control.set_state("running", [node])
    control.advance(1)
    assert options(client, node)["State"] == "applied"
    assert control.instance(node)["inForce"]["HttpPutResponseHopLimit"] == 2


@pytest.mark.parametrize("limit", [1, 64])
def test_hop_limits_from_1_to_64_are_taken(client: Any, node: str, limit: int) -> None:
    """ "ModifyInstanceMetadataOptions": integers from 1 to 64."""
    answer = client.modify_instance_metadata_options(InstanceId=node, HttpPutResponseHopLimit=limit)
    assert answer["InstanceMetadataOptions"]["HttpPutResponseHopLimit"] == limit


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        pytest.param({"HttpPutResponseHopLimit": 0}, "InvalidParameterValue", "(0)", id="hop limit 0"),
        pytest.param({"HttpPutResponseHopLimit": 65}, "InvalidParameterValue", "(65)", id="hop limit 65"),
        pytest.param(
            {"HttpEndpoint": ""}, "InvalidParameterValue", "A value of '' is not valid", id="an empty string"
        ),
        pytest.param({"HttpTokens": "on"}, "InvalidParameterValue", "HttpTokens", id="an unknown value"),
        pytest.param(
            {"HttpEndpoint": "disabled", "HttpTokens": "required"},
            "InvalidParameterCombination",
            "HttpEndpoint",
            id="an endpoint that is off, with tokens",
        ),
    ],
)
def test_options_out_of_bounds_change_nothing(
    client: Any, control: Control, node: str, changes: dict[str, Any], expected: str, words: str
) -> None:
    found, status, message = refusal(client.modify_instance_metadata_options, InstanceId=node, **changes)
    assert (found, status) == (expected, 400)
    assert words in message
    assert control.instance(node)["options"] == DEFAULTS


@pytest.mark.parametrize(
    ("key", "taken"),
    [
        ("kubernetes.io/cluster/blue", False),
        ("Patch Group", False),
        ("_index", False),
        ("aws:autoscaling:groupName", True),
        ("Name", True),
    ],
)
def test_tags_are_shown_only_if_all_keys_can_be_a_path(
    client: Any, control: Control, node: str, key: str, taken: bool
) -> None:
    """ "View tags for your EC2 instances using instance metadata"; aws/aws-cli#8825."""
    control.set_tags({"Name": "x", key: "y"}, [node])
    if taken:
        client.modify_instance_metadata_options(InstanceId=node, InstanceMetadataTags="enabled")
    else:
        found, _, message = refusal(
            client.modify_instance_metadata_options, InstanceId=node, InstanceMetadataTags="enabled"
        )
        assert (found, f"'{key}' is not a valid tag key" in message) == ("InvalidParameterValue", True)
    asked = "enabled" if taken else "disabled"
    assert control.instance(node)["options"]["InstanceMetadataTags"] == asked
    client.modify_instance_metadata_options(InstanceId=node, InstanceMetadataTags="disabled")


def test_a_dry_run_tells_the_permission_and_changes_nothing(client: Any, control: Control, node: str) -> None:
    """ "ModifyInstanceMetadataOptions": DryRunOperation with the permission, else UnauthorizedOperation."""
    call = client.modify_instance_metadata_options
    dry = {"InstanceId": node, "HttpTokens": "required", "DryRun": True}
    assert refusal(call, **dry)[:2] == ("DryRunOperation", 412)
    control.deny("ModifyInstanceMetadataOptions")
    assert refusal(call, **dry)[:2] == ("UnauthorizedOperation", 403)
    assert code(call, InstanceId=node, HttpTokens="required") == "UnauthorizedOperation"
    control.allow("ModifyInstanceMetadataOptions")
    assert code(client.describe_instances, DryRun=True) == "DryRunOperation"
    assert (control.instance(node)["options"], control.instance(node)["pending"]) == (DEFAULTS, False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("i-0000000000000beef", "InvalidInstanceID.NotFound"),
        ("i-0000beef", "InvalidInstanceID.NotFound"),
        ("i-xyz", "InvalidInstanceID.Malformed"),
        ("node-1", "InvalidInstanceID.Malformed"),
        ("", "InvalidInstanceID.Malformed"),
    ],
)
def test_an_instance_must_exist(client: Any, node: str, name: str, expected: str) -> None:
    """ "Error codes for the Amazon EC2 API"; one wrong id fails the whole description."""
    assert code(client.modify_instance_metadata_options, InstanceId=name, HttpTokens="required") == expected
    assert code(client.describe_instances, InstanceIds=[node, name]) == expected


@pytest.mark.parametrize("state", ["shutting-down", "terminated"])
def test_an_instance_that_goes_takes_no_options(client: Any, control: Control, node: str, state: str) -> None:
    """ "Error codes for the Amazon EC2 API": IncorrectInstanceState; it is still described for a while."""
    control.set_state(state, [node])
    call = client.modify_instance_metadata_options
    assert code(call, InstanceId=node, HttpTokens="required") == "IncorrectInstanceState"
    assert instances(client.describe_instances())[0]["State"]["Name"] == state
    control.remove([node])
    assert code(call, InstanceId=node, HttpTokens="required") == "InvalidInstanceID.NotFound"


def test_enforcement_closes_the_way_back_to_imdsv1_only(client: Any, control: Control) -> None:
    """ "Enforce IMDSv2 at the account level": no IMDSv1 for instances that require tokens."""
    closed, still_open = (
        control.add_nodes(1, options={"HttpTokens": tokens})[0]["id"] for tokens in ("required", "optional")
    )
    control.defaults(HttpTokensEnforced="enabled")
    call = client.modify_instance_metadata_options
    refused, status, message = refusal(call, InstanceId=closed, HttpTokens="optional")
    assert (refused, status) == ("UnsupportedOperation", 400)
    assert "httpTokensEnforced is enabled for this account" in message
    call(InstanceId=closed, HttpPutResponseHopLimit=2)
    call(InstanceId=still_open, HttpTokens="optional")
    control.defaults(HttpTokensEnforced=None)
    call(InstanceId=closed, HttpTokens="optional")


def test_enforcement_refuses_launches_whoever_says_optional(control: Control) -> None:
    """ "Order of precedence for instance metadata options": enforcement is evaluated after it."""
    control.put_template("t", [{"MetadataOptions": {"HttpTokens": "optional"}}])
    launched: dict[str, Any] = {
        "the template": {"template": {"LaunchTemplateName": "t"}},
        "the launch": {"options": {"HttpTokens": "optional"}},
        "the AMI": {},
    }
    for one in launched.values():
        control.add_nodes(1, **one)
    control.defaults(HttpTokensEnforced="enabled")
    for one in launched.values():
        with pytest.raises(ControlError, match="can't launch instances with IMDSv1"):
            control.add_nodes(1, **one)
    control.defaults(HttpTokens="required")
    assert control.add_nodes(1)[0]["options"]["HttpTokens"] == "required"
    with pytest.raises(ControlError, match="httpTokensEnforced"):
        control.add_nodes(1, **launched["the template"])
    control.defaults(HttpTokensEnforced="disabled")
    control.add_nodes(1, **launched["the template"])


def test_an_instance_of_a_service_cannot_be_changed(client: Any, control: Control) -> None:
    """ "Amazon EC2 managed instances"; which error AWS gives is not written there, so it is a setting."""
    operator = {"Managed": True, "Principal": "eks.amazonaws.com"}
    node = control.add_nodes(1, operator=operator)[0]["id"]
    call = client.modify_instance_metadata_options
    assert code(call, InstanceId=node, HttpTokens="required") == "UnsupportedOperation"
    control.settings(managed_code="OperationNotPermitted")
    assert code(call, InstanceId=node, HttpTokens="required") == "OperationNotPermitted"
    assert instances(client.describe_instances())[0]["Operator"] == operator


def test_the_accounts_defaults_are_told(client: Any, control: Control) -> None:
    """ "GetInstanceMetadataDefaults"."""
    assert client.get_instance_metadata_defaults()["AccountLevel"] == {"ManagedBy": "account"}
    known = {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "HttpTokensEnforced": "enabled"}
    control.defaults(**known)
    assert client.get_instance_metadata_defaults()["AccountLevel"] == {"ManagedBy": "account", **known}
    held = {"ManagedBy": "declarative-policy", "ManagedExceptionMessage": "ask the platform team"}
    control.defaults(**held)
    assert client.get_instance_metadata_defaults()["AccountLevel"] == {**known, **held}


def test_a_launch_asks_the_template_then_the_account_then_the_ami(control: Control) -> None:
    """ "Order of precedence for instance metadata options"."""
    control.put_template("t", [{"MetadataOptions": {"HttpTokens": "required"}}])
    control.defaults(HttpTokens="optional", HttpPutResponseHopLimit=2)
    launched = control.add_nodes(
        1, template={"LaunchTemplateName": "t"}, options={"HttpEndpoint": "disabled"}
    )
    assert launched[0]["options"] == {
        **DEFAULTS,
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        "HttpEndpoint": "disabled",
    }
