"""Fix commands of an Auto Scaling group with a mixed instances policy: its expressions at work."""

import shlex
from typing import Any, Final

import jmespath
import pytest

from caretaker.imds.launching import ScalingGroup, Template, TemplateRef, Version
from caretaker.imds.remediation import NewVersion, Script

HERE = "eu-west-1"
OLD: Final = Version(1, {"HttpTokens": "optional"})
TEMPLATE: Final = Template("lt-1", {1: OLD}, 1, 1)
BY_ID, BY_NAME, DEFAULT = (
    TemplateRef("lt-1", "1"),
    TemplateRef("workers", "2"),
    TemplateRef("lt-4", "$Default"),
)
MIXED = ScalingGroup("spot", (BY_ID, BY_NAME, DEFAULT), mixed=True)


def spec(**more: str) -> dict[str, Any]:
    return {"LaunchTemplateSpecification": more}


def policy(first: dict[str, Any], *overrides: dict[str, Any]) -> dict[str, Any]:
    of_all = {"LaunchTemplate": {**first, **({"Overrides": list(overrides)} if overrides else {})}}
    return {**of_all, "InstancesDistribution": {"OnDemandBaseCapacity": 1}}


def answer(mixed: dict[str, Any]) -> dict[str, Any]:
    return {"AutoScalingGroups": [{"AutoScalingGroupName": "spot", "MixedInstancesPolicy": mixed}]}


PLAIN = {"InstanceType": "m5.large", "WeightedCapacity": "2"}
BEFORE = policy(
    spec(LaunchTemplateId="lt-1", LaunchTemplateName="a", Version="1"),
    PLAIN,
    {"InstanceType": "c6g.large", **spec(LaunchTemplateName="workers", Version="2")},
    {"InstanceType": "r6g.large", **spec(LaunchTemplateId="lt-3", Version="$Latest")},
    {"InstanceType": "t4g.large", **spec(LaunchTemplateId="lt-4")},
)
AFTER = policy(
    spec(LaunchTemplateId="lt-1", Version="7"),
    PLAIN,
    {"InstanceType": "c6g.large", **spec(LaunchTemplateName="workers", Version="3")},
    {"InstanceType": "r6g.large", **spec(LaunchTemplateId="lt-3", Version="$Latest")},
    {"InstanceType": "t4g.large", **spec(LaunchTemplateId="lt-4", Version="$Default")},
)


def read(command: str) -> tuple[list[str], str]:
    """The words of a command that reads the group, and its query."""
    words = shlex.split(command)
    at = words.index("--query")
    return [*words[:at], *words[at + 2 :]], words[at + 1]


READ = ["aws", "autoscaling", "describe-auto-scaling-groups", "--region", HERE]
READ += ["--auto-scaling-group-names", "spot", "--output"]


def test_the_policy_is_sent_back_as_it_is_with_other_versions() -> None:
    script = Script(HERE)
    script.group(MIXED, {BY_ID: (TEMPLATE, "$v1"), BY_NAME: (TEMPLATE, "3")})
    first, _, then = str(script).removeprefix("m=$(").partition(") && ")
    assert then == (
        "aws autoscaling update-auto-scaling-group --region eu-west-1 --auto-scaling-group-name spot "
        '--mixed-instances-policy "$m"'
    )
    assert """`"'"$v1"'"`""" in first, "where the shell puts in the number"
    assert """`"3"`""" in first
    words, query = read(first)
    assert words == [*READ, "json"]
    assert jmespath.search(query.replace("$v1", "7"), answer(BEFORE)) == AFTER
    alone = policy(spec(LaunchTemplateId="lt-1", Version="1"))
    changed = policy(spec(LaunchTemplateId="lt-1", Version="7"))
    assert jmespath.search(query.replace("$v1", "7"), answer(alone)) == changed


OTHER = policy(
    spec(LaunchTemplateId="lt-1", Version="2"), {**spec(LaunchTemplateName="workers", Version="2")}
)


@pytest.mark.parametrize(
    ("refs", "mixed", "same"),
    [
        ((BY_ID,), BEFORE, True),
        ((BY_NAME,), BEFORE, True),
        ((DEFAULT,), BEFORE, True),
        ((BY_ID, BY_NAME, DEFAULT), BEFORE, True),
        ((BY_ID,), OTHER, False),
        ((BY_NAME,), OTHER, True),
        ((BY_ID, BY_NAME), OTHER, False),
        ((BY_NAME, BY_ID), OTHER, False),
        ((TemplateRef("others", "2"),), BEFORE, False),
    ],
)
def test_it_goes_on_only_while_the_group_refers_to_the_same(
    refs: tuple[TemplateRef, ...], mixed: dict[str, Any], same: bool
) -> None:
    script = Script(HERE)
    script.as_seen(MIXED, refs)
    first, _, rest = str(script).removeprefix('{ [ -n "$(').partition(')" ] || ')
    words, query = read(first)
    assert words == [*READ, "text"]
    assert jmespath.search(query, answer(mixed)) == (["spot"] if same else [])
    assert rest == (
        "{ echo 'nothing is changed: the Auto Scaling group refers to something else; run caretaker plan "
        "again' >&2; false; }; }"
    )


def test_each_new_version_has_a_variable_of_its_own() -> None:
    script = Script("")
    new = NewVersion(TEMPLATE, OLD, {"httpTokens": "required"})
    assert [script.version(new, named=named) for named in (True, False, True)] == ["$v1", "", "$v2"]
    script.default(TEMPLATE, "$v2")
    create = (
        "aws ec2 create-launch-template-version --launch-template-id lt-1 --source-version 1 "
        """--launch-template-data '{"MetadataOptions":{"HttpTokens":"required"}}'"""
    )
    number = "--query LaunchTemplateVersion.VersionNumber --output text"
    assert str(script) == (
        f"v1=$({create} {number}) && {create} && v2=$({create} {number}) && "
        'aws ec2 modify-launch-template --launch-template-id lt-1 --default-version "$v2"'
    )
    assert script.version(NewVersion(TEMPLATE, OLD, {}, reuse=4), named=True) == "4"
