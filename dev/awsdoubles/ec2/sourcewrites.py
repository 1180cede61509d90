"""What changes the sources of instances: CreateLaunchTemplateVersion and ModifyLaunchTemplate of EC2, and
UpdateAutoScalingGroup of Auto Scaling, as far as it is about launch templates.

Every rule names the page of the manuals that it is from. What these leave open is decided the hard way:
MetadataOptions that are given for a new version replace the source's whole, an Overrides that is not sent is
gone.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from awsdoubles.ec2.errors import AwsError, invalid_value
from awsdoubles.ec2.faults import Fault
from awsdoubles.ec2.instances import HOP_LIMITS
from awsdoubles.ec2.sources import named_template, template_summary, template_version
from awsdoubles.ec2.state import Template, World

Json = dict[str, Any]
LAUNCHERS: Final = ("LaunchTemplate", "MixedInstancesPolicy", "LaunchConfigurationName")


def create_template_version(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "CreateLaunchTemplateVersion": numbered in the order of creation; what is given overwrites what is
    inherited from SourceVersion; without it, there is nothing but what is given. A ClientToken is good for
    one version ("Ensuring idempotency in Amazon EC2 API requests")."""
    template = _one_template(world, region, body)
    limit = body["LaunchTemplateData"].get("MetadataOptions", {}).get("HttpPutResponseHopLimit")
    if limit is not None and limit not in HOP_LIMITS:
        raise invalid_value(f"Value ({limit}) for parameter HttpPutResponseHopLimit is invalid.")
    token, asked = body.get("ClientToken", ""), {k: v for k, v in body.items() if k != "DryRun"}
    if token in template.tokens:
        before, number = template.tokens[token]
        if before != asked:
            raise AwsError(
                "IdempotentParameterMismatch", f"Client token {token} has been used with other parameters."
            )
        return {"LaunchTemplateVersion": template_version(template, number)}
    inherited: Json = {}
    if body.get("SourceVersion"):
        inherited = template.versions[_number(template, body["SourceVersion"]) - 1]
    data = {**inherited, **body["LaunchTemplateData"]}
    if body.get("DryRun"):
        return {}
    template.versions.append(data)
    if token:
        template.tokens[token] = (asked, len(template.versions))
    return {"LaunchTemplateVersion": template_version(template, len(template.versions))}


def modify_template(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "ModifyLaunchTemplate": which version is the default one; nothing else can be changed."""
    template = _one_template(world, region, body)
    if not body.get("DefaultVersion"):
        raise AwsError("MissingParameter", "The request must contain the parameter DefaultVersion")
    number = _number(template, body["DefaultVersion"])
    if not body.get("DryRun"):
        template.default = number
    return {"LaunchTemplate": template_summary(template)}


def update_group(world: World, region: str, body: Json, _: Mapping[str, Fault]) -> Json:
    """ "UpdateAutoScalingGroup": instances stay as they are; those that follow are launched anew.

    "LaunchTemplateSpecification": an id or a name, not both; the template has to be there.
    """
    name = body["AutoScalingGroupName"]
    group = world.groups.get((region, name))
    if group is None:
        raise AwsError("ValidationError", f"AutoScalingGroup name not found - no such group: {name}")
    given = [one for one in LAUNCHERS if body.get(one)]
    if len(given) > 1:
        raise AwsError("ValidationError", f"Only one of these can be given: {', '.join(given)}")
    for one in _specifications(body):
        _launchable(world, region, one)
    if given:
        for member in LAUNCHERS:
            group.pop(member, None)
    group.update({member: value for member, value in body.items() if member in LAUNCHERS})
    return {}


def _one_template(world: World, region: str, body: Json) -> Template:
    """By id or by name, and not by both."""
    template_id, name = body.get("LaunchTemplateId", ""), body.get("LaunchTemplateName", "")
    if bool(template_id) == bool(name):
        code = "InvalidParameterCombination" if name else "MissingParameter"
        raise AwsError(code, "Specify either LaunchTemplateId or LaunchTemplateName.")
    return named_template(world, region, template_id=template_id, name=name)


def _number(template: Template, asked: str) -> int:
    found = template.version(asked)
    if found is None:
        raise AwsError(
            "InvalidLaunchTemplateId.VersionNotFound",
            f"Could not find launch template version {asked} of {template.id}.",
        )
    return found


def _specifications(body: Json) -> Iterator[Json]:
    if "LaunchTemplate" in body:
        yield body["LaunchTemplate"]
    mixed = body.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    if "LaunchTemplateSpecification" in mixed:
        yield mixed["LaunchTemplateSpecification"]
    for one in mixed.get("Overrides", []):
        if "LaunchTemplateSpecification" in one:
            yield one["LaunchTemplateSpecification"]


def _launchable(world: World, region: str, one: Json) -> None:
    if bool(one.get("LaunchTemplateId")) == bool(one.get("LaunchTemplateName")):
        raise AwsError(
            "ValidationError",
            "Valid requests must contain either LaunchTemplateId or LaunchTemplateName, and not both.",
        )
    template = world.template(region, one.get("LaunchTemplateId") or one["LaunchTemplateName"])
    if template is None or template.version(one.get("Version", "")) is None:
        raise AwsError("ValidationError", f"You must use a valid launch template and version: {one}")
