"""Launch templates, tags and Auto Scaling groups of the EC2 double, through boto3."""

from collections.abc import Iterator
from typing import Any

import pytest

from awsdoubles.clients import client as made_client
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.server import Ec2
from testing.ec2 import CLUSTER, code, filters, instances, refusal

REQUIRED = {"MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2}}
OPTIONAL = {"MetadataOptions": {"HttpTokens": "optional"}}
UNSET = {"InstanceType": "m5.large"}


@pytest.fixture(scope="module")
def scaling(server: Ec2) -> Iterator[Any]:
    made = made_client("autoscaling", server.url)
    yield made
    made.close()


@pytest.fixture
def template(control: Control) -> str:
    """Three versions, the second is the default."""
    return str(control.put_template("workers", [UNSET, OPTIONAL, REQUIRED], default=2)["id"])


def versions(client: Any, **arguments: Any) -> list[int]:
    found = client.describe_launch_template_versions(**arguments)["LaunchTemplateVersions"]
    return [one["VersionNumber"] for one in found]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({}, [1, 2, 3], id="all"),
        pytest.param({"Versions": ["$Latest"]}, [3], id="the latest"),
        pytest.param({"Versions": ["$Default"]}, [2], id="the default"),
        pytest.param({"Versions": ["1", "$Latest"]}, [1, 3], id="a number and an alias"),
        pytest.param({"Versions": ["3", "$Latest"]}, [3], id="one by two names"),
        pytest.param({"MinVersion": "2"}, [2, 3], id="from a number"),
        pytest.param({"MaxVersion": "2"}, [1, 2], id="up to a number"),
    ],
)
def test_versions_of_a_template_are_found(
    client: Any, template: str, asked: dict[str, Any], expected: list[int]
) -> None:
    """ "DescribeLaunchTemplateVersions"."""
    assert versions(client, LaunchTemplateId=template, **asked) == expected
    assert versions(client, LaunchTemplateName="workers", **asked) == expected


def test_a_version_tells_its_options_or_that_it_has_none(client: Any, template: str) -> None:
    found = client.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    assert [one["LaunchTemplateData"] for one in found] == [UNSET, OPTIONAL, REQUIRED]
    assert [one["DefaultVersion"] for one in found] == [False, True, False]


def test_the_latest_and_default_versions_of_all_templates_are_found(
    client: Any, control: Control, template: str
) -> None:
    other = control.put_template("others", [UNSET])["id"]
    found = client.describe_launch_template_versions(Versions=["$Latest", "$Default"])
    assert [(one["LaunchTemplateId"], one["VersionNumber"]) for one in found["LaunchTemplateVersions"]] == [
        (template, 2),
        (template, 3),
        (other, 1),
    ]


def test_versions_come_in_pages(client: Any, control: Control) -> None:
    control.put_template("many", [UNSET] * 201)
    pager = client.get_paginator("describe_launch_template_versions")
    pages = list(pager.paginate(LaunchTemplateName="many"))
    assert [len(page["LaunchTemplateVersions"]) for page in pages] == [200, 1]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"LaunchTemplateId": "lt-00000000000000000"}, "InvalidLaunchTemplateId.NotFound"),
        ({"LaunchTemplateId": "workers"}, "InvalidLaunchTemplateId.Malformed"),
        ({"LaunchTemplateName": "nobody"}, "InvalidLaunchTemplateName.NotFoundException"),
        ({"LaunchTemplateName": "workers", "Versions": ["4"]}, "InvalidLaunchTemplateId.VersionNotFound"),
        ({"LaunchTemplateName": "workers", "Versions": ["$Last"]}, "InvalidLaunchTemplateId.VersionNotFound"),
        ({"LaunchTemplateName": "workers", "MinVersion": "x"}, "InvalidParameterValue"),
        ({"LaunchTemplateName": "workers", "MaxResults": 201}, "InvalidParameterValue"),
        ({"LaunchTemplateName": "workers", "LaunchTemplateId": "lt-1"}, "InvalidParameterCombination"),
        ({"Versions": ["1"]}, "InvalidParameterValue"),
        ({}, "MissingParameter"),
    ],
)
def test_a_version_that_is_not_there_is_refused(
    client: Any, template: str, asked: dict[str, Any], expected: str
) -> None:
    """ "Error codes for the Amazon EC2 API"."""
    assert code(client.describe_launch_template_versions, **asked) == expected


def test_templates_tell_their_tags_and_versions(client: Any, control: Control, template: str) -> None:
    """ "DescribeLaunchTemplates"; a stack's template is known by its tag."""
    stack = {"aws:cloudformation:stack-name": "nodes"}
    control.put_template("workers", [], tags=stack)
    control.put_template("others", [UNSET])
    found = client.describe_launch_templates(LaunchTemplateIds=[template])["LaunchTemplates"]
    assert [(one["DefaultVersionNumber"], one["LatestVersionNumber"]) for one in found] == [(2, 3)]
    by_tag = client.describe_launch_templates(Filters=filters(tag_key=[*stack]))["LaunchTemplates"]
    assert [one["LaunchTemplateName"] for one in by_tag] == ["workers"]
    tags = client.describe_tags(Filters=filters(resource_type=["launch-template"]))["Tags"]
    assert [(tag["ResourceId"], tag["Key"], tag["Value"]) for tag in tags] == [(template, *stack.popitem())]


def test_tags_of_instances_are_told(client: Any, control: Control) -> None:
    """ "DescribeTags"."""
    nodes = [one["id"] for one in control.add_nodes(6, tags=CLUSTER | {"Name": "x"})]
    found = client.describe_tags(Filters=filters(resource_id=nodes[:2], key=["Name"]))["Tags"]
    assert [(tag["ResourceId"], tag["ResourceType"], tag["Value"]) for tag in found] == [
        (nodes[0], "instance", "x"),
        (nodes[1], "instance", "x"),
    ]
    pages = list(client.get_paginator("describe_tags").paginate(PaginationConfig={"PageSize": 5}))
    assert [len(page["Tags"]) for page in pages] == [5, 5, 2]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("$Latest", "required"), ("$Default", "optional"), ("2", "optional"), ("3", "required")],
)
def test_a_groups_instances_come_from_the_version_that_it_names(
    client: Any, control: Control, template: str, version: str, expected: str
) -> None:
    """ "DescribeAutoScalingGroups"; "Tag Auto Scaling groups and instances" for the tags that AWS sets."""
    control.put_group("apps", LaunchTemplate={"LaunchTemplateId": template, "Version": version})
    made = control.add_nodes(2, group="apps")
    assert [one["options"]["HttpTokens"] for one in made] == [expected, expected]
    tags = {tag["Key"]: tag["Value"] for tag in instances(client.describe_instances())[0]["Tags"]}
    number = {"$Latest": "3", "$Default": "2"}.get(version, version)
    assert tags == {
        "aws:autoscaling:groupName": "apps",
        "aws:ec2launchtemplate:id": template,
        "aws:ec2launchtemplate:version": number,
    }


def test_a_group_is_told_whole(scaling: Any, control: Control, template: str) -> None:
    mixed = {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "$Latest"},
            "Overrides": [{"InstanceType": "m5.large"}, {"InstanceType": "m6i.large"}],
        },
        "InstancesDistribution": {"OnDemandBaseCapacity": 1},
    }
    control.put_group("spot", MixedInstancesPolicy=mixed, MaxSize=9, Tags=[{"Key": "team", "Value": "x"}])
    nodes = control.add_nodes(3, group="spot")
    control.set_state("terminated", [nodes[0]["id"]])
    group = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["spot"])["AutoScalingGroups"][0]
    assert group["MixedInstancesPolicy"] == mixed
    assert (group["MaxSize"], group["DesiredCapacity"], group["Tags"][0]["Key"]) == (9, 2, "team")
    assert [one["InstanceId"] for one in group["Instances"]] == [one["id"] for one in nodes[1:]]
    assert group["Instances"][0]["LaunchTemplate"] == {"LaunchTemplateId": template, "Version": "3"}
    control.remove_group("spot")
    assert scaling.describe_auto_scaling_groups()["AutoScalingGroups"] == []


def test_groups_come_in_pages_of_50(scaling: Any, control: Control) -> None:
    """ "DescribeAutoScalingGroups": MaxRecords is 50 by default and 100 at most."""
    names = [f"group-{number:03}" for number in range(120)]
    for name in names:
        control.put_group(name)
    pages = list(scaling.get_paginator("describe_auto_scaling_groups").paginate())
    assert [len(page["AutoScalingGroups"]) for page in pages] == [50, 50, 20]
    found = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[*names[:3], "nobody"])
    assert [one["AutoScalingGroupName"] for one in found["AutoScalingGroups"]] == names[:3]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"MaxRecords": 101}, "ValidationError"),
        ({"NextToken": "x"}, "InvalidNextToken"),
        ({"Filters": filters(colour=["red"])}, "ValidationError"),
        ({"Filters": [{"Name": "tag-key"}]}, "ValidationError"),
    ],
)
def test_groups_are_not_described_out_of_bounds(scaling: Any, asked: dict[str, Any], expected: str) -> None:
    assert code(scaling.describe_auto_scaling_groups, **asked) == expected


def test_auto_scaling_refuses_in_its_own_words(scaling: Any, control: Control) -> None:
    """ "Common error types" of Auto Scaling: Throttling and AccessDenied where EC2 has other codes."""
    control.deny("DescribeAutoScalingGroups")
    assert refusal(scaling.describe_auto_scaling_groups)[:2] == ("AccessDenied", 403)
    control.allow("DescribeAutoScalingGroups")
    for _ in range(99):
        scaling.describe_auto_scaling_groups()
    assert refusal(scaling.describe_auto_scaling_groups)[:2] == ("Throttling", 400)
