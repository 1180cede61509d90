"""DescribeInstances of the EC2 double: each rule of the manuals, by the page that has it."""

import time
from typing import Any

import pytest

from awsdoubles.clients import client as made_client
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.server import Ec2
from testing.ec2 import CLUSTER, code, filters, ids, instances, refusal


def test_pages_hold_every_instance_once(client: Any, control: Control) -> None:
    """ "DescribeInstances", "Pagination in the Amazon EC2 API"."""
    nodes = [one["id"] for one in control.add_nodes(23, tags=CLUSTER)]
    pager = client.get_paginator("describe_instances")
    pages = [ids(page) for page in pager.paginate(PaginationConfig={"PageSize": 10})]
    assert [len(page) for page in pages] == [10, 10, 3]
    assert [one for page in pages for one in page] == nodes


def test_instances_that_come_and_go_between_pages_move_no_other(client: Any, control: Control) -> None:
    nodes = [one["id"] for one in control.add_nodes(12)]
    first = client.describe_instances(MaxResults=6)
    control.remove(nodes[:3])
    control.add_nodes(1)
    rest = client.describe_instances(MaxResults=100, NextToken=first["NextToken"])
    assert ids(rest)[:6] == nodes[6:]


def test_a_page_may_be_empty(client: Any, control: Control) -> None:
    """ "Query requests for Amazon EC2": only a missing token ends the pages; aws/aws-sdk-js#939."""
    control.add_nodes(5)
    assert "NextToken" not in client.describe_instances(MaxResults=5)
    control.settings(eager_tokens=True)
    token = client.describe_instances(MaxResults=5)["NextToken"]
    last = client.describe_instances(MaxResults=5, NextToken=token)
    assert (ids(last), "NextToken" in last) == ([], False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param({"MaxResults": 4}, "InvalidParameterValue", id="fewer than 5"),
        pytest.param({"MaxResults": 1001}, "InvalidParameterValue", id="more than 1,000"),
        pytest.param({"NextToken": "x"}, "InvalidPaginationToken", id="a token of nobody"),
        pytest.param({"NextToken": ""}, "InvalidPaginationToken", id="an empty token"),
        pytest.param({"Filters": filters(colour=["red"])}, "InvalidParameterValue", id="an unknown filter"),
        pytest.param({"Filters": [{"Name": "instance-id"}]}, "MissingParameter", id="a filter of nothing"),
        pytest.param({"Filters": [{"Values": ["x"]}]}, "InvalidParameterValue", id="a filter without a name"),
        pytest.param(
            {"Filters": filters(instance_id=["i-1"] * 201)}, "FilterLimitExceeded", id="201 filter values"
        ),
        pytest.param(
            {"Filters": filters(tag__a=["x" * 256])}, "FilterLimitExceeded", id="a value of 256 characters"
        ),
    ],
)
def test_a_description_out_of_bounds_is_refused(client: Any, arguments: Any, expected: str) -> None:
    """ "DescribeInstances", "Find your Amazon EC2 resources"."""
    assert code(client.describe_instances, **arguments) == expected


def test_a_token_is_of_no_use_to_another_call(client: Any, control: Control) -> None:
    control.add_nodes(6)
    token = client.describe_instances(MaxResults=5)["NextToken"]
    other = {"NextToken": token, "Filters": filters(instance_state_name=["running"])}
    assert code(client.describe_instances, **other) == "InvalidPaginationToken"


def test_pages_and_ids_exclude_each_other(client: Any, node: str) -> None:
    """ "Query requests for Amazon EC2", under Pagination."""
    arguments = {"InstanceIds": [node], "MaxResults": 5}
    assert code(client.describe_instances, **arguments) == "InvalidParameterCombination"


def test_ids_that_nobody_has_are_all_named(client: Any, ec2: Ec2, node: str) -> None:
    _, _, message = refusal(client.describe_instances, InstanceIds=["i-0000beef", node, "i-0000cafe"])
    assert message == "The instance IDs 'i-0000beef, i-0000cafe' do not exist"
    elsewhere = made_client("ec2", ec2.url, region="us-east-1")
    assert code(elsewhere.describe_instances, InstanceIds=[node]) == "InvalidInstanceID.NotFound"
    assert ids(elsewhere.describe_instances()) == []
    elsewhere.close()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param({"instance_state_name": ["running"]}, "ab", id="by state"),
        pytest.param({"instance_state_name": ["running", "stopped"]}, "abc", id="values are alternatives"),
        pytest.param({"tag__team": ["x"], "instance_state_name": ["running"]}, "a", id="all must match"),
        pytest.param({"tag_key": ["team"]}, "ac", id="by a tag's key"),
        pytest.param({"tag__kubernetes.io/cluster/blue": ["owned"]}, "b", id="by a tag with slashes"),
        pytest.param({"tag_key": ["kubernetes.io/cluster/*"]}, "b", id="by a wildcard"),
        pytest.param({"tag__team": ["?"]}, "ac", id="by a wildcard for a character"),
        pytest.param({"tag__team": ["X"]}, "", id="with regard to case"),
        pytest.param({"metadata_options.state": ["pending"]}, "b", id="by what is in flight"),
        pytest.param({"metadata_options.http_tokens": ["optional"]}, "ac", id="by tokens"),
        pytest.param({"metadata_options.http_put_response_hop_limit": ["2"]}, "c", id="by hop limit"),
        pytest.param({"metadata_options.http_endpoint": ["disabled"]}, "a", id="by endpoint"),
    ],
)
def test_filters_find(client: Any, control: Control, wanted: dict[str, list[str]], expected: str) -> None:
    """ "DescribeInstances", "Find your Amazon EC2 resources"."""
    nodes = {
        "a": control.add_nodes(1, tags={"team": "x"}, options={"HttpEndpoint": "disabled"}),
        "b": control.add_nodes(1, tags=CLUSTER),
        "c": control.add_nodes(
            1, tags={"team": "y"}, options={"HttpPutResponseHopLimit": 2}, state="stopped"
        ),
    }
    client.modify_instance_metadata_options(InstanceId=nodes["b"][0]["id"], HttpTokens="required")
    found = ids(client.describe_instances(Filters=filters(**wanted)))
    assert "".join(name for name, made in nodes.items() if made[0]["id"] in found) == expected


def test_ids_that_nobody_has_are_not_found_by_a_filter_and_no_error(client: Any, node: str) -> None:
    found = client.describe_instances(Filters=filters(instance_id=[node, "i-0000beef", "nonsense"]))
    assert ids(found) == [node]


def test_tags_may_be_missing_from_a_description(client: Any, control: Control) -> None:
    control.add_nodes(1, tags=CLUSTER)
    assert instances(client.describe_instances())[0]["Tags"] == [
        {"Key": "kubernetes.io/cluster/blue", "Value": "owned"}
    ]
    control.settings(omit_tags=True)
    assert "Tags" not in instances(client.describe_instances())[0]


def test_a_thousand_instances_are_made_and_told_quickly(client: Any, control: Control) -> None:
    """Most of the time is boto3's, which reads a megabyte of XML."""
    started = time.process_time()
    control.add_nodes(1000, tags=CLUSTER | {"Name": "worker"}, group="workers")
    found = client.describe_instances(MaxResults=1000, Filters=filters(tag_key=[*CLUSTER]))
    assert len(ids(found)) == 1000
    assert time.process_time() - started < 2.0
