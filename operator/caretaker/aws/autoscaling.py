"""The calls of Amazon EC2 Auto Scaling that are used, as aws.calls.Aws.autoscaling provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (Amazon EC2 Auto Scaling
API reference); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Sequence
from typing import Any, Protocol, Required, TypedDict

from caretaker.aws.text_limits import Name


class LaunchTemplateSpecification(TypedDict, total=False):
    """By id or name; answers have both. Version: a number, $Latest, $Default; absent = $Default."""

    LaunchTemplateId: Name
    LaunchTemplateName: Name
    Version: Name


class Override(TypedDict, total=False):
    """The members that are read of one; the others of its members are kept as they are."""

    LaunchTemplateSpecification: LaunchTemplateSpecification


class MixedLaunchTemplate(TypedDict, total=False):
    """The template of all, and instance types with templates of their own."""

    LaunchTemplateSpecification: LaunchTemplateSpecification
    Overrides: list[Override]


class MixedInstancesPolicy(TypedDict, total=False):
    """The members that are read of one."""

    LaunchTemplate: MixedLaunchTemplate
    InstancesDistribution: dict[str, Any]


class TagDescription(TypedDict, total=False):
    """A tag."""

    Key: str
    Value: str


class AutoScalingGroup(TypedDict, total=False):
    """The members that are read of a group: one of the three that launch its instances."""

    AutoScalingGroupName: Required[Name]
    LaunchConfigurationName: Name
    LaunchTemplate: LaunchTemplateSpecification
    MixedInstancesPolicy: MixedInstancesPolicy
    Tags: list[TagDescription]


class AutoScalingGroupsType(TypedDict, total=False):
    """NextToken is absent on the last page. Names without a group are left out."""

    AutoScalingGroups: Required[list[AutoScalingGroup]]
    NextToken: str


class AutoScaling(Protocol):
    """Amazon EC2 Auto Scaling."""

    async def describe_auto_scaling_groups(
        self,
        *,
        AutoScalingGroupNames: Sequence[str] = ...,
        IncludeInstances: bool = ...,
        MaxRecords: int = ...,
        NextToken: str = ...,
    ) -> AutoScalingGroupsType:
        """One page of at most 100; follow NextToken."""
