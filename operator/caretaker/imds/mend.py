"""The commands that mend a source of future nodes, for a POSIX shell. Pure.

Inputs: what is known of the source and the options that it should have. Whether a mend is right to propose is
decided in sources.py.

The block of metadata options is written whole: whether EC2 merges the block of a new version with that of
its source, or replaces it, is nowhere said ("CreateLaunchTemplateVersion" in the EC2 API reference). The same
goes for the MixedInstancesPolicy of a group, whose Overrides are sent along ("UpdateAutoScalingGroup" in the
Auto Scaling API reference); of a template's id and name in it only one may be.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.imds.launching import Group, Launcher, Template, Version, launcher_of

CLUSTER: Final = "CLUSTER"  # to be filled in, where no tag tells the cluster's name
_NUMBER: Final = ("--query", "LaunchTemplateVersion.VersionNumber", "--output", "text")


class NewVersion(msgspec.Struct, frozen=True):
    """A version to be referred to: `reuse` is one that is there already, else it is made from `source`."""

    template: Template
    source: Version
    options: Mapping[str, Any]  # by the names of spec.options
    reuse: int = 0

    @property
    def block(self) -> dict[str, Any]:
        """All of its metadata options, by EC2's names."""
        wanted = {ec2_name(option): value for option, value in self.options.items()}
        return {**self.source.block, **wanted}


def ec2_name(option: str) -> str:
    """HttpTokens for httpTokens."""
    return option[0].upper() + option[1:]


class Script:
    """Commands that go on only while they succeed."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._steps: list[str] = []
        self._made = 0

    def version(self, new: NewVersion, *, named: bool) -> str:
        """Have the version; if `named`, the number or shell variable by which it is then referred to."""
        if new.reuse:
            return str(new.reuse)
        data = _compact({"MetadataOptions": new.block})
        command = self._aws(
            "ec2",
            "create-launch-template-version",
            *("--launch-template-id", new.template.id),
            *("--source-version", str(new.source.number)),
            *("--launch-template-data", data),
        )
        if not named:
            self._steps.append(command)
            return ""
        self._made += 1
        self._steps.append(f"v{self._made}=$({command} {shlex.join(_NUMBER)})")
        return f"$v{self._made}"

    def default(self, template: Template, version: str) -> None:
        """ModifyLaunchTemplate."""
        command = self._aws("ec2", "modify-launch-template", "--launch-template-id", template.id)
        self._steps.append(f'{command} --default-version "{version}"')

    def group(self, group: Group, changed: Mapping[Launcher, tuple[Template, str]]) -> None:
        """UpdateAutoScalingGroup, with these references changed to other versions."""
        command = self._aws(
            "autoscaling", "update-auto-scaling-group", "--auto-scaling-group-name", group.name
        )
        if group.mixed is None:
            ((template, version),) = changed.values()
            self._steps.append(
                f'{command} --launch-template "LaunchTemplateId={template.id},Version={version}"'
            )
            return
        marks = {launcher: f"@{number}@" for number, launcher in enumerate(changed)}
        text = shlex.quote(_compact(_referring(group.mixed, marks)))
        for launcher, mark in marks.items():
            version = changed[launcher][1]
            # Between two parts in single quotes, where a shell would not look for variables.
            text = text.replace(mark, f"'\"{version}\"'" if version.startswith("$") else version)
        self._steps.append(f"{command} --mixed-instances-policy {text}")

    def nodegroup(self, cluster: str, name: str, template: Template, version: str) -> None:
        """UpdateNodegroupVersion of EKS."""
        command = self._aws(
            "eks",
            "update-nodegroup-version",
            *("--cluster-name", cluster or CLUSTER),
            *("--nodegroup-name", name),
        )
        self._steps.append(f'{command} --launch-template "id={template.id},version={version}"')

    def _aws(self, *words: str) -> str:
        region = ("--region", self._region) if self._region else ()
        return shlex.join(("aws", *words[:2], *region, *words[2:]))

    def __str__(self) -> str:
        return " && ".join(self._steps)


def patch_node_class(name: str, options: Mapping[str, Any]) -> str:
    """A merge patch: what is not named stays. Names of fields: Karpenter, "NodeClasses"."""
    fields = {field.replace("Ipv6", "IPv6"): value for field, value in options.items()}
    body = _compact({"spec": {"metadataOptions": fields}})
    return shlex.join(("kubectl", "patch", "ec2nodeclass", name, "--type", "merge", "-p", body))


def _referring(mixed: Mapping[str, Any], versions: Mapping[Launcher, str]) -> dict[str, Any]:
    """The policy with other versions."""
    of_all = dict(mixed.get("LaunchTemplate") or {})
    if of_all.get("LaunchTemplateSpecification"):
        of_all["LaunchTemplateSpecification"] = _changed(of_all["LaunchTemplateSpecification"], versions)
    if of_all.get("Overrides"):
        of_all["Overrides"] = [
            {**one, "LaunchTemplateSpecification": _changed(one["LaunchTemplateSpecification"], versions)}
            if one.get("LaunchTemplateSpecification")
            else one
            for one in of_all["Overrides"]
        ]
    return {**mixed, "LaunchTemplate": of_all}


def _changed(one: Mapping[str, Any], versions: Mapping[Launcher, str]) -> dict[str, Any]:
    launcher = launcher_of(one)  # type: ignore[arg-type]
    both = one.get("LaunchTemplateId") and one.get("LaunchTemplateName")
    kept = {name: value for name, value in one.items() if not (both and name == "LaunchTemplateName")}
    return {**kept, "Version": versions.get(launcher, launcher.version)}


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def bounded(mends: Sequence[str], each: int, together: int) -> list[str]:
    """Those that fit; "" in place of one that is too long by itself, or with those before it.

    A command is never cut: half of one might run.
    """
    kept, left = [], together
    for one in mends:
        fits = len(one) <= min(each, left)
        kept.append(one if fits else "")
        left -= len(one) if fits else 0
    return kept
