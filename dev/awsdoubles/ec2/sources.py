"""Where instances come from: DescribeLaunchTemplates, DescribeLaunchTemplateVersions, DescribeTags of EC2,
and DescribeAutoScalingGroups of Auto Scaling.

Read only; sourcewrites.py changes them, and a test makes them through the control API.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from awsdoubles.ec2.errors import AwsError, invalid_value
from awsdoubles.ec2.faults import Fault
from awsdoubles.ec2.filters import matcher
from awsdoubles.ec2.instances import Instance
from awsdoubles.ec2.paging import Pages
from awsdoubles.ec2.state import Template, World

TEMPLATE_ID: Final = re.compile(r"lt-[0-9a-f]{17}")
TEMPLATE_PAGES: Final = Pages("MaxResults", least=1, most=200, usual=200)
TAG_PAGES: Final = Pages("MaxResults", least=5, most=1000)
GROUP_PAGES: Final = Pages("MaxRecords", least=1, most=100, usual=50, bad_token="InvalidNextToken")  # noqa: S106

Json = dict[str, Any]


def describe_templates(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "DescribeLaunchTemplates": by ids, by names, or all."""
    ids, names = body.get("LaunchTemplateIds", []), body.get("LaunchTemplateNames", [])
    here = [one for one in world.templates.values() if one.region == region]
    if ids or names:
        here = [named_template(world, region, template_id=one) for one in ids]
        here += [named_template(world, region, name=one) for one in names]
    fields = {
        "launch-template-name": lambda one: [one.name],
        "tag-key": lambda one: list(one.tags),
    }
    wanted = matcher(body.get("Filters", []), fields, lambda one: one.tags)
    found = [(one.number, one) for one in sorted(here, key=lambda one: one.number) if wanted(one)]
    page, token = TEMPLATE_PAGES.take(found, body)
    return {"LaunchTemplates": [template_summary(one) for one in page], **token}


def describe_template_versions(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "DescribeLaunchTemplateVersions": of one template, or the latest or default ones of all."""
    template_id, name = body.get("LaunchTemplateId", ""), body.get("LaunchTemplateName", "")
    asked = body.get("Versions", [])
    if template_id and name:
        raise AwsError(
            "InvalidParameterCombination", "Specify either LaunchTemplateId or LaunchTemplateName, not both."
        )
    if template_id or name:
        template = named_template(world, region, template_id=template_id, name=name)
        found = [(number, (template, number)) for number in _numbers(template, asked, body)]
    else:
        found = list(enumerate(_of_all(world, region, asked), start=1))
    page, token = TEMPLATE_PAGES.take(found, body)
    return {"LaunchTemplateVersions": [template_version(*one) for one in page], **token}


def describe_tags(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "DescribeTags", of instances and launch templates."""
    kinds: dict[str, Iterable[Instance | Template]] = {
        "instance": world.instances.values(),
        "launch-template": world.templates.values(),
    }
    tags = [
        {"ResourceId": one.id, "ResourceType": kind, "Key": key, "Value": value}
        for kind, things in kinds.items()
        for one in things
        if one.region == region
        for key, value in one.tags.items()
    ]
    names = {"resource-id": "ResourceId", "resource-type": "ResourceType", "key": "Key", "value": "Value"}
    fields = {name: (lambda tag, member=member: [tag[member]]) for name, member in names.items()}
    wanted = matcher(body.get("Filters", []), fields, lambda tag: {tag["Key"]: tag["Value"]})
    found = [(number, tag) for number, tag in enumerate(tags, start=1) if wanted(tag)]
    page, token = TAG_PAGES.take(found, body)
    return {"Tags": page, **token}


def describe_groups(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "DescribeAutoScalingGroups"; a name that nobody has finds nothing."""
    names = body.get("AutoScalingGroupNames") or None
    wanted = matcher(
        body.get("Filters", []),
        {"tag-key": lambda group: [tag["Key"] for tag in group.get("Tags", [])]},
        lambda group: {tag["Key"]: tag.get("Value", "") for tag in group.get("Tags", [])},
    )
    found = [
        (number, group)
        for number, ((where, name), group) in enumerate(sorted(world.groups.items()), start=1)
        if where == region and (names is None or name in names) and wanted(group)
    ]
    page, token = GROUP_PAGES.take(found, body)
    instances = body.get("IncludeInstances", True)
    return {"AutoScalingGroups": [_group(world, region, one, instances=instances) for one in page], **token}


def named_template(world: World, region: str, *, template_id: str = "", name: str = "") -> Template:
    """By its id, or else its name; AwsError where there is none."""
    if template_id and not TEMPLATE_ID.fullmatch(template_id):
        raise AwsError("InvalidLaunchTemplateId.Malformed", f'Invalid id: "{template_id}"')
    found = world.template(region, template_id or name)
    if found is None and template_id:
        raise AwsError(
            "InvalidLaunchTemplateId.NotFound",
            f"The specified launch template, with template ID {template_id}, does not exist.",
        )
    if found is None:
        raise AwsError(
            "InvalidLaunchTemplateName.NotFoundException",
            f"The specified launch template, with template name {name}, does not exist.",
        )
    return found


def _numbers(template: Template, asked: list[str], body: Json) -> list[int]:
    """The versions of one template, rising."""
    found = []
    for one in asked:
        number = template.version(one) if one else None
        if number is None:
            raise AwsError(
                "InvalidLaunchTemplateId.VersionNotFound",
                f"Could not find launch template version {one} of {template.id}.",
            )
        found.append(number)
    if not asked:
        last = len(template.versions)
        least, most = _bound(body, "MinVersion", 1), _bound(body, "MaxVersion", last)
        found = [one for one in range(1, last + 1) if least <= one <= most]
    return sorted(set(found))


def _bound(body: Json, name: str, otherwise: int) -> int:
    text = body.get(name, str(otherwise))
    if not text.isdecimal():
        raise invalid_value(f"Invalid value '{text}' for {name}. It must be a number.")
    return int(text)


def _of_all(world: World, region: str, asked: list[str]) -> Iterator[tuple[Template, int]]:
    if not asked:
        raise AwsError("MissingParameter", "Specify a launch template, or the versions $Latest or $Default.")
    if set(asked) - {"$Latest", "$Default"}:
        raise invalid_value("Of all launch templates only $Latest and $Default can be described.")
    for template in world.templates.values():
        if template.region == region:
            for number in sorted({template.version(one) or 0 for one in asked}):
                yield template, number


def template_summary(one: Template) -> Json:
    """ "LaunchTemplate"."""
    return {
        "LaunchTemplateId": one.id,
        "LaunchTemplateName": one.name,
        "CreateTime": one.created_at,
        "DefaultVersionNumber": one.default,
        "LatestVersionNumber": len(one.versions),
        "Tags": [{"Key": key, "Value": value} for key, value in one.tags.items()],
    }


def template_version(one: Template, number: int) -> Json:
    """ "LaunchTemplateVersion"."""
    return {
        "LaunchTemplateId": one.id,
        "LaunchTemplateName": one.name,
        "VersionNumber": number,
        "CreateTime": one.created_at,
        "DefaultVersion": number == one.default,
        "LaunchTemplateData": one.versions[number - 1],
    }


def _group(world: World, region: str, group: Json, *, instances: bool) -> Json:
    members = world.members(region, group["AutoScalingGroupName"])
    zones = sorted({one.zone for one in members}) or [f"{region}a"]
    found = {
        "MinSize": 0,
        "MaxSize": len(members),
        "DesiredCapacity": len(members),
        "DefaultCooldown": 300,
        "AvailabilityZones": zones,
        "HealthCheckType": "EC2",
        **group,
    }
    if instances:
        found["Instances"] = [
            {
                "InstanceId": one.id,
                "InstanceType": one.instance_type,
                "AvailabilityZone": one.zone,
                "LifecycleState": "InService" if one.state == "running" else "Terminating",
                "HealthStatus": "Healthy",
                "ProtectedFromScaleIn": False,
                **({"LaunchTemplate": one.template} if one.template else {}),
            }
            for one in members
        ]
    return found
