"""Commands that fix a source of future nodes, for a POSIX shell. Pure.

Inputs: the source as it was read, and the options that it should have. source_checks.py decides whether a
command may be proposed.

A user may run a command long after the operator read the source. The first steps read the source again, and
stop if it has changed or if an update or instance refresh is running. The command undoes no later edit, and
running it twice creates one version.

The block of metadata options is written whole: whether EC2 merges the block of a new version with that of
its source, or replaces it, is nowhere said ("CreateLaunchTemplateVersion" in the EC2 API reference). The
MixedInstancesPolicy of a group goes whole, too ("UpdateAutoScalingGroup" in the Auto Scaling API reference),
as it is read by the command, with other versions put in by a JMESPath expression (the AWS CLI's --query); of
a template's id and name in it only one may be sent.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from caretaker.api.imds import ec2_name
from caretaker.imds.launching import DEFAULT, LATEST, ScalingGroup, Template, TemplateRef, Version

CLUSTER: Final = "CLUSTER"  # a placeholder, if no tag has the cluster's name
_TEXT: Final = ("--output", "text")
_NUMBER: Final = ("--query", "LaunchTemplateVersion.VersionNumber", *_TEXT)
# Statuses of an instance refresh that is over ("InstanceRefresh", Auto Scaling API reference): with any other
# one it runs.
_ENDED: Final = '`["Successful","Failed","Cancelled","RollbackFailed","RollbackSuccessful"]`'


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

    def reusing(self) -> "NewVersion":
        """With the latest version, if it is the source with these options: it exists already."""
        latest = self.template.version(LATEST)
        same = latest is not None and latest.rest == self.source.rest and dict(latest.block) == self.block
        return msgspec.structs.replace(self, reuse=self.template.latest) if same else self


class Script:
    """Commands that go on only while they succeed."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._steps: list[str] = []
        self._made = 0

    # ---------------------------------------------------------------- checks

    def unchanged(self, template: Template) -> None:
        """Stop if the template has a new version or another default since it was read."""
        same = f"LatestVersionNumber==`{template.latest}` && DefaultVersionNumber==`{template.default}`"
        command = self._aws(
            *("ec2", "describe-launch-templates", "--launch-template-ids", template.id),
            *("--query", f"LaunchTemplates[?{same}].LaunchTemplateId", *_TEXT),
        )
        self._unless(f'[ -n "$({command})" ]', f"{template.id} has new versions or another default")

    def as_seen(self, group: ScalingGroup, refs: Iterable[TemplateRef]) -> None:
        """Stop if the group no longer refers to these."""
        same = " && ".join(_refers(group, ref) for ref in refs)
        command = self._aws(
            *("autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names", group.name),
            *("--query", f"AutoScalingGroups[?{same}].AutoScalingGroupName", *_TEXT),
        )
        self._unless(f'[ -n "$({command})" ]', "the Auto Scaling group refers to something else")

    def at_rest(self, groups: Iterable[str]) -> None:
        """Stop if an instance refresh of these groups is running."""
        command = self._aws(
            *("autoscaling", "describe-instance-refreshes", "--auto-scaling-group-name", "@g@"),
            *("--query", f"length(InstanceRefreshes[?!contains({_ENDED}, Status)])", *_TEXT),
        ).replace("@g@", '"$g"')
        test = f'(for g in {shlex.join(groups)}; do [ "$({command})" = 0 ] || exit 1; done)'
        self._unless(test, "an instance refresh runs")

    def _unless(self, test: str, why: str) -> None:
        message = shlex.quote(f"nothing is changed: {why}; run caretaker plan again")
        self._steps.append(f"{{ {test} || {{ echo {message} >&2; false; }}; }}")

    # ---------------------------------------------------------------- changes

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

    def group(self, group: ScalingGroup, changed: Mapping[TemplateRef, tuple[Template, str]]) -> None:
        """UpdateAutoScalingGroup, with these references changed to other versions."""
        command = self._aws(
            "autoscaling", "update-auto-scaling-group", "--auto-scaling-group-name", group.name
        )
        if not group.mixed:
            ((template, version),) = changed.values()
            self._steps.append(
                f'{command} --launch-template "LaunchTemplateId={template.id},Version={version}"'
            )
            return
        marks = {ref: f"@{number}@" for number, ref in enumerate(changed)}
        read = self._aws(
            *("autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names", group.name),
            *("--query", _referring(marks), "--output", "json"),
        )
        for ref, mark in marks.items():
            version = changed[ref][1]
            # Between two parts in single quotes, where a shell would not look for variables.
            read = read.replace(mark, f"'\"{version}\"'" if version.startswith("$") else version)
        self._steps.append(f"m=$({read})")
        self._steps.append(f'{command} --mixed-instances-policy "$m"')

    def nodegroup(self, cluster: str, name: str, template: Template, new: NewVersion) -> None:
        """UpdateNodegroupVersion of EKS, to the version and with the release that its nodes have: without a
        release it would take the newest. Where the template names the AMI, none may be given."""
        about = ("--cluster-name", cluster or CLUSTER, "--nodegroup-name", name)
        same = f"status=={_literal('ACTIVE')} && launchTemplate.version=={_literal(str(new.source.number))}"
        release = f"[nodegroup][?{same}].join({_literal(' ')}, [version, releaseVersion])"
        read = self._aws("eks", "describe-nodegroup", *about, "--query", release, *_TEXT)
        self._steps.append(f"r=$({read})")
        why = f"the node group is being updated, or is not of version {new.source.number}"
        self._unless('[ -n "$r" ]', why)
        if not new.reuse:
            self.unchanged(template)
        version = self.version(new, named=True)
        command = self._aws("eks", "update-nodegroup-version", *about)
        command = f'{command} --launch-template "id={template.id},version={version}"'
        if not new.source.image:
            command += ' --kubernetes-version "${r% *}" --release-version "${r#* }"'
        self._steps.append(command)

    def _aws(self, *words: str) -> str:
        region = ("--region", self._region) if self._region else ()
        return shlex.join(("aws", *words[:2], *region, *words[2:]))

    def __str__(self) -> str:
        return " && ".join(self._steps)


def group_commands(
    region: str, group: ScalingGroup, wrong: Mapping[TemplateRef, NewVersion], followers: Iterable[str]
) -> str:
    """New versions, then the commands that each reference needs. `followers`: groups whose nodes come from
    these, the group itself among them. For all that follow the same it is the same command."""
    script = Script(region)
    if fixed := [ref for ref in wrong if not ref.moves]:
        script.as_seen(group, fixed)
    script.at_rest(sorted(followers))
    for template in {new.template.id: new.template for new in wrong.values()}.values():
        script.unchanged(template)
    pinned: dict[TemplateRef, tuple[Template, str]] = {}
    for ref, new in wrong.items():
        version = script.version(new, named=ref.version != LATEST)
        if ref.version == DEFAULT:
            script.default(new.template, version)
        elif ref.version != LATEST:
            pinned[ref] = (new.template, version)
    if pinned:
        script.group(group, pinned)
    return str(script)


def patch_node_class(name: str, options: Mapping[str, Any]) -> str:
    """A merge patch: other fields stay. Names of fields: Karpenter, "NodeClasses"."""
    fields = {field.replace("Ipv6", "IPv6"): value for field, value in options.items()}
    body = _compact({"spec": {"metadataOptions": fields}})
    return shlex.join(("kubectl", "patch", "ec2nodeclass", name, "--type", "merge", "-p", body))


def _of(ref: TemplateRef) -> str:
    """The condition on a LaunchTemplateSpecification that it is this reference."""
    member = "LaunchTemplateId" if ref.template.startswith("lt-") else "LaunchTemplateName"
    version = f"(Version || {_literal(DEFAULT)})=={_literal(ref.version)}"
    return f"{member}=={_literal(ref.template)} && {version}"


def _refers(group: ScalingGroup, ref: TemplateRef) -> str:
    """The condition on a group that it still has this reference."""
    if not group.mixed:
        return f"[LaunchTemplate][?{_of(ref)}]"
    every = "[LaunchTemplateSpecification, Overrides[].LaunchTemplateSpecification]"
    # The parentheses end the projection: without them the filter applies to each flattened element.
    return f"(MixedInstancesPolicy.LaunchTemplate.{every}[])[?{_of(ref)}]"


def _referring(versions: Mapping[TemplateRef, str]) -> str:
    """A JMESPath expression: the group's MixedInstancesPolicy with these versions, otherwise unchanged."""
    one = "LaunchTemplateSpecification"
    new = [f"{_of(ref)} && {_literal(mark)}" for ref, mark in versions.items()]
    which = " || ".join((*new, "Version", _literal(DEFAULT)))
    # The API accepts either the id or the name.
    named = (
        "LaunchTemplateId && {LaunchTemplateId: LaunchTemplateId} || {LaunchTemplateName: LaunchTemplateName}"
    )
    pinned = f"{{{one}: {one}.merge({named}, {{Version: {which}}})}}"
    own = f"Overrides[].merge(@, {one} && {pinned} || `{{}}`)"
    whole = f"LaunchTemplate.merge(@, {pinned}, Overrides && {{Overrides: {own}}} || `{{}}`)"
    return f"AutoScalingGroups[0].MixedInstancesPolicy.merge(@, {{LaunchTemplate: {whole}}})"


def _literal(text: str) -> str:
    """A JMESPath literal. It needs no quotes that the shell would interpret."""
    return f"`{json.dumps(text)}`"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def bounded(commands: Sequence[str], each: int, together: int) -> list[str]:
    """Those that fit; "" in place of one that is too long by itself, or with those before it.

    A command is never cut: half of one might run.
    """
    kept, left = [], together
    for one in commands:
        fits = len(one) <= min(each, left)
        kept.append(one if fits else "")
        left -= len(one) if fits else 0
    return kept
