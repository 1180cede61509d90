"""The calls of Amazon EC2 and EC2 Auto Scaling that are used, as aws.calls.Aws provides them.

Types only; response_check.py validates responses against them. Names are AWS's own (the services' API
references); every method raises AwsError.
"""

# ruff: noqa: N803 - the parameters' names are AWS's
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, Required, TypedDict

from caretaker.aws.errors import Name


class Filter(TypedDict):
    """Values of one filter are alternatives; filters are all met."""

    Name: str
    Values: Sequence[str]


class MetadataOptions(TypedDict, total=False):
    """InstanceMetadataOptionsResponse. State: pending | applied."""

    State: str
    HttpTokens: str
    HttpPutResponseHopLimit: int
    HttpEndpoint: str
    HttpProtocolIpv6: str
    InstanceMetadataTags: str


class Tag(TypedDict, total=False):
    """A tag."""

    Key: str
    Value: str


class InstanceState(TypedDict, total=False):
    """Name: pending | running | shutting-down | terminated | stopping | stopped."""

    Name: Required[Name]


class Operator(TypedDict, total=False):
    """The service provider that manages the instance; only it may change it."""

    Managed: bool


class Instance(TypedDict, total=False):
    """The members that are read of an Instance. LaunchTime: of its last start."""

    InstanceId: Required[Name]
    State: Required[InstanceState]
    LaunchTime: datetime
    MetadataOptions: MetadataOptions
    Tags: list[Tag]
    Operator: Operator


class Reservation(TypedDict, total=False):
    """Instances that were launched together, and the account that owns them."""

    OwnerId: Name
    Instances: Required[list[Instance]]


class DescribeInstancesResult(TypedDict, total=False):
    """NextToken is absent on the last page."""

    Reservations: Required[list[Reservation]]
    NextToken: str


class LaunchTemplateData(TypedDict, total=False):
    """The members that are read of one; the others of its members are compared as a whole."""

    MetadataOptions: dict[str, Any]


class LaunchTemplateVersion(TypedDict, total=False):
    """One version of a template."""

    LaunchTemplateId: Required[Name]
    LaunchTemplateName: Name
    VersionNumber: Required[int]
    DefaultVersion: bool
    LaunchTemplateData: LaunchTemplateData


class DescribeLaunchTemplateVersionsResult(TypedDict, total=False):
    """NextToken is absent on the last page."""

    LaunchTemplateVersions: Required[list[LaunchTemplateVersion]]
    NextToken: str


class TagDescription(TypedDict, total=False):
    """A tag and its resource."""

    ResourceId: Required[Name]
    Key: Required[str]
    Value: str


class DescribeTagsResult(TypedDict, total=False):
    """NextToken is absent on the last page."""

    Tags: Required[list[TagDescription]]
    NextToken: str


class AccountDefaults(TypedDict, total=False):
    """Members of InstanceMetadataDefaultsResponse; an option without a preference is absent. ManagedBy:
    account | declarative-policy; ManagedExceptionMessage: the text of that policy; HttpTokensEnforced:
    enabled | disabled."""

    HttpTokens: str
    HttpPutResponseHopLimit: int
    HttpEndpoint: str
    InstanceMetadataTags: str
    HttpTokensEnforced: str
    ManagedBy: str
    ManagedExceptionMessage: str


class GetInstanceMetadataDefaultsResult(TypedDict, total=False):
    """The account's settings for new instances of the region."""

    AccountLevel: Required[AccountDefaults]


class Ec2(Protocol):
    """Amazon EC2."""

    async def describe_instances(
        self, *, Filters: Sequence[Filter] = ..., MaxResults: int = ..., NextToken: str = ...
    ) -> DescribeInstancesResult:
        """One page; follow NextToken."""

    async def describe_launch_template_versions(
        self,
        *,
        LaunchTemplateId: str = ...,
        LaunchTemplateName: str = ...,
        Versions: Sequence[str] = ...,
        MaxResults: int = ...,
        NextToken: str = ...,
    ) -> DescribeLaunchTemplateVersionsResult:
        """One page; versions are numbers, $Latest or $Default, and one that is not there fails the call."""

    async def describe_tags(
        self, *, Filters: Sequence[Filter] = ..., MaxResults: int = ..., NextToken: str = ...
    ) -> DescribeTagsResult:
        """One page; resources that are not there are left out."""

    async def get_instance_metadata_defaults(self) -> GetInstanceMetadataDefaultsResult:
        """Those of the account in the client's region."""


class ModifyResult(TypedDict, total=False):
    """The options as they are to be; State is pending until they are in force."""

    InstanceId: Name
    InstanceMetadataOptions: Required[MetadataOptions]


class Ec2Writer(Protocol):
    """The write operations. Readers get an Ec2 alone, through read_only()."""

    async def modify_instance_metadata_options(
        self,
        *,
        InstanceId: str,
        HttpTokens: str = ...,
        HttpPutResponseHopLimit: int = ...,
        HttpEndpoint: str = ...,
        HttpProtocolIpv6: str = ...,
        InstanceMetadataTags: str = ...,
        DryRun: bool = ...,
    ) -> ModifyResult:
        """Change one instance; options that are not given keep their values. With DryRun nothing is changed,
        and the answer is always an error: DryRunOperation = it would be allowed."""


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


class AutoScalingGroup(TypedDict, total=False):
    """The members that are read of a group: one of the three that launch its instances."""

    AutoScalingGroupName: Required[Name]
    LaunchConfigurationName: Name
    LaunchTemplate: LaunchTemplateSpecification
    MixedInstancesPolicy: MixedInstancesPolicy
    Tags: list[Tag]


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
