"""How launch templates and Auto Scaling groups of the EC2 double are changed, through boto3."""

from collections.abc import Iterator
from typing import Any

import pytest

from awsdoubles.clients import client as made_client
from awsdoubles.ec2.control import Control
from awsdoubles.ec2.server import Ec2
from testing.ec2 import code

FIRST = {"ImageId": "ami-1", "MetadataOptions": {"HttpTokens": "optional", "HttpPutResponseHopLimit": 1}}
CHANGE = {"MetadataOptions": {"HttpTokens": "required"}}


@pytest.fixture(scope="module")
def scaling(server: Ec2) -> Iterator[Any]:
    made = made_client("autoscaling", server.url)
    yield made
    made.close()


@pytest.fixture
def template(control: Control) -> str:
    return str(control.put_template("workers", [FIRST])["id"])


def data(client: Any, template: str, version: str) -> Any:
    found = client.describe_launch_template_versions(LaunchTemplateId=template, Versions=[version])
    return found["LaunchTemplateVersions"][0]["LaunchTemplateData"]


def test_a_new_version_inherits_what_it_does_not_overwrite(client: Any, template: str) -> None:
    """ "CreateLaunchTemplateVersion"; whether options merge is nowhere said, so here they do not."""
    made = client.create_launch_template_version(
        LaunchTemplateId=template, SourceVersion="$Latest", LaunchTemplateData=CHANGE
    )["LaunchTemplateVersion"]
    assert (made["VersionNumber"], made["DefaultVersion"]) == (2, False)
    assert made["LaunchTemplateData"] == data(client, template, "2") == {"ImageId": "ami-1", **CHANGE}
    assert data(client, template, "1") == FIRST, "versions never change"
    bare = client.create_launch_template_version(LaunchTemplateName="workers", LaunchTemplateData=CHANGE)
    assert bare["LaunchTemplateVersion"]["LaunchTemplateData"] == CHANGE, "without a source"


def test_a_token_is_good_for_one_version(client: Any, template: str) -> None:
    """ "Ensuring idempotency in Amazon EC2 API requests"."""
    asked = {"LaunchTemplateId": template, "ClientToken": "t", "LaunchTemplateData": CHANGE}
    numbers = {
        client.create_launch_template_version(**asked)["LaunchTemplateVersion"]["VersionNumber"]
        for _ in range(2)
    }
    assert numbers == {2}
    other = {**asked, "LaunchTemplateData": FIRST}
    assert code(client.create_launch_template_version, **other) == "IdempotentParameterMismatch"


def test_the_default_version_is_chosen(client: Any, template: str) -> None:
    """ "ModifyLaunchTemplate"."""
    client.create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData=CHANGE)
    done = client.modify_launch_template(LaunchTemplateId=template, DefaultVersion="2")["LaunchTemplate"]
    assert (done["DefaultVersionNumber"], done["LatestVersionNumber"]) == (2, 2)
    assert data(client, template, "$Default") == CHANGE


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        pytest.param(
            "create_launch_template_version",
            {"SourceVersion": "9", "LaunchTemplateData": CHANGE},
            "InvalidLaunchTemplateId.VersionNotFound",
            id="a source that is not there",
        ),
        pytest.param(
            "create_launch_template_version",
            {"LaunchTemplateName": "workers", "LaunchTemplateData": CHANGE},
            "InvalidParameterCombination",
            id="an id and a name",
        ),
        pytest.param(
            "create_launch_template_version",
            {"LaunchTemplateData": {"MetadataOptions": {"HttpPutResponseHopLimit": 65}}},
            "InvalidParameterValue",
            id="a hop limit out of range",
        ),
        pytest.param(
            "modify_launch_template",
            {"DefaultVersion": "9"},
            "InvalidLaunchTemplateId.VersionNotFound",
            id="a default that is not there",
        ),
        pytest.param("modify_launch_template", {}, "MissingParameter", id="nothing to change"),
    ],
)
def test_templates_refuse(
    client: Any, template: str, method: str, arguments: dict[str, Any], expected: str
) -> None:
    assert code(getattr(client, method), LaunchTemplateId=template, **arguments) == expected


def test_a_dry_run_changes_nothing(client: Any, template: str) -> None:
    asked = {"LaunchTemplateId": template, "DryRun": True}
    assert (
        code(client.create_launch_template_version, LaunchTemplateData=CHANGE, **asked) == "DryRunOperation"
    )
    assert code(client.modify_launch_template, DefaultVersion="1", **asked) == "DryRunOperation"
    assert data(client, template, "$Latest") == FIRST


def test_a_groups_launcher_is_replaced_as_a_whole(control: Control, scaling: Any, template: str) -> None:
    """ "UpdateAutoScalingGroup"."""
    control.put_template("workers", [CHANGE])
    control.put_group("a", LaunchTemplate={"LaunchTemplateId": template, "Version": "1"})
    mixed = {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "2"},
            "Overrides": [{"InstanceType": "m5.large"}],
        },
        "InstancesDistribution": {"OnDemandBaseCapacity": 1},
    }
    scaling.update_auto_scaling_group(AutoScalingGroupName="a", MixedInstancesPolicy=mixed)
    (group,) = scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    assert group["MixedInstancesPolicy"] == mixed
    assert "LaunchTemplate" not in group
    assert control.add_nodes(1, group="a")[0]["options"]["HttpTokens"] == "required"


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param({"LaunchTemplateName": "workers", "Version": "1", "LaunchTemplateId": ""}, id="both"),
        pytest.param({"Version": "1"}, id="neither an id nor a name"),
        pytest.param({"LaunchTemplateName": "workers", "Version": "7"}, id="a version that is not there"),
        pytest.param({"LaunchTemplateName": "other", "Version": "1"}, id="a template that is not there"),
    ],
)
def test_groups_refuse(control: Control, scaling: Any, template: str, launcher: dict[str, str]) -> None:
    control.put_group("a")
    given = {**launcher, **({"LaunchTemplateId": template} if "LaunchTemplateId" in launcher else {})}
    update = scaling.update_auto_scaling_group
    assert code(update, AutoScalingGroupName="a", LaunchTemplate=given) == "ValidationError"
    mixed = {"LaunchTemplate": {"Overrides": [{"LaunchTemplateSpecification": given}]}}
    assert code(update, AutoScalingGroupName="a", MixedInstancesPolicy=mixed) == "ValidationError"
    assert code(update, AutoScalingGroupName="b", MinSize=1) == "ValidationError", "no such group"
