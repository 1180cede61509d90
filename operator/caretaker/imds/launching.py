"""Sources of future nodes, as EC2, Auto Scaling and Karpenter describe them. Pure: responses -> records.

Versions of a launch template never change; `$Latest` and `$Default` do ("CreateLaunchTemplateVersion" in the
EC2 API reference). In `LaunchSnapshot` a source that does not exist is None, and one that was not read has no
entry.

An account with HttpTokensEnforced refuses launches whose tokens are not required, whether the launch, the
account or the AMI decided that, and changes of instances back to optional, both with UnsupportedOperation
(Amazon EC2 user guide, "Enforce IMDSv2 at the account level", "Modify instance metadata options for existing
instances").
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from caretaker.api.imds import Options, described_options
from caretaker.aws.ec2 import (
    AccountDefaults,
    AutoScalingGroup,
    LaunchTemplateSpecification,
    LaunchTemplateVersion,
)

LATEST: Final = "$Latest"
DEFAULT: Final = "$Default"
# The options that an account can have defaults for ("ModifyInstanceMetadataDefaults").
DEFAULTED: Final = frozenset(
    ("HttpTokens", "HttpPutResponseHopLimit", "HttpEndpoint", "InstanceMetadataTags")
)
ENFORCES: Final = "the account enforces IMDSv2 (HttpTokensEnforced)"
UNREAD: Final = f"it is not sent while it could not be read whether {ENFORCES}"
_ENFORCED: Final = {"enabled": True, "disabled": False, "no-preference": False, "": False}
_QUOTED: Final = 200  # characters of the organization's message
# Set by CloudFormation on its resources (CloudFormation user guide, "Resource tag").
STACK_TAG: Final = "aws:cloudformation:stack-name"


class Version(msgspec.Struct, frozen=True):
    """One version of a launch template. `block`: its MetadataOptions; `rest`: a digest of all else; `image`:
    its AMI, "" = the launching service decides."""

    number: int
    block: Mapping[str, Any]
    rest: str = ""
    image: str = ""

    @property
    def options(self) -> Options:
        """As of an instance; an option that is not set is None."""
        known = {name[0].lower() + name[1:]: value for name, value in self.block.items()}
        return msgspec.convert(known, Options)


class Template(msgspec.Struct, frozen=True):
    """A launch template with the versions that were asked for. `stack`: CloudFormation's, "" = none,
    None = not known."""

    id: str
    versions: Mapping[int, Version]
    latest: int
    default: int
    stack: str | None = None

    def version(self, reference: str) -> Version | None:
        """The one that a number, $Latest or $Default stands for; "" is $Default."""
        named = {LATEST: self.latest, DEFAULT: self.default, "": self.default}
        number = named.get(reference, int(reference) if reference.isdecimal() else 0)
        return self.versions.get(number)


class TemplateRef(msgspec.Struct, frozen=True):
    """A reference to a launch template: its ID (or its name without one), and the version as it stands."""

    template: str
    version: str

    @property
    def moves(self) -> bool:
        """Whether it follows new versions."""
        return self.version in (LATEST, DEFAULT)


class ScalingGroup(msgspec.Struct, frozen=True):
    """An Auto Scaling group. No `templates`: a launch configuration, or nothing. `mixed`: it has a mixed
    instances policy."""

    name: str
    templates: tuple[TemplateRef, ...] = ()
    mixed: bool = False
    stack: str = ""


class Account(msgspec.Struct, frozen=True):
    """An account's settings for the launches of a region. `enforces`: IMDSv2, None = not known; `held`: by
    whom else, in words."""

    defaults: Options = Options()
    enforces: bool | None = None
    held: str = ""

    @property
    def refusal(self) -> str:
        """Why EC2 refuses to change instances back to optional tokens; "" = it does not, as far as known."""
        why = f"EC2 would refuse it: {ENFORCES}; remove the option, or have that changed"
        return "; ".join(filter(None, (why, self.held))) if self.enforces else ""


class LaunchSnapshot(msgspec.Struct, frozen=True):
    """All that was read.

    groups, templates  by (region, name or id)
    classes            Karpenter's EC2NodeClasses by name; None = not read
    accounts           by region that was read
    refusals           region -> why Enforce sends no optional tokens, by its last read; "" = it may
    tokens_shut        groups in which spec.tokenGate of a policy holds required tokens back
    """

    groups: Mapping[tuple[str, str], ScalingGroup | None] = {}
    templates: Mapping[tuple[str, str], Template | None] = {}
    classes: Mapping[str, Options] | None = None
    accounts: Mapping[str, Account] = {}
    refusals: Mapping[str, str] = {}
    tokens_shut: frozenset[tuple[str, str]] = frozenset()


def account_of(found: AccountDefaults) -> Account:
    """Without a preference an option is absent; or one of these, as it is set."""
    level: Mapping[str, Any] = found
    block = {name: level[name] for name in DEFAULTED & level.keys()}
    given = {name: value for name, value in block.items() if value not in ("no-preference", -1)}
    held = ""
    if level.get("ManagedBy") == "declarative-policy":
        why = " ".join(level.get("ManagedExceptionMessage", "")[: 4 * _QUOTED].split())[:_QUOTED]
        held = "a declarative policy of the organization holds the account's settings" + (
            why and f': "{why}"'
        )
    return Account(described_options(given), _ENFORCED.get(level.get("HttpTokensEnforced", "")), held)


def refused_launch(account: Account | None, tokens: str | None, ami: bool = False) -> tuple[bool | None, str]:
    """Whether EC2 refuses launches with these tokens, None = not known; and that in words. `ami`: without
    tokens the AMI decides. `account` None: not read."""
    enforces = account.enforces if account is not None else None
    by_ami = tokens is None and ami and account is not None
    if enforces is False or not (by_ami or tokens == "optional"):
        return False, ""
    fails = (
        "launches fail unless the AMI requires tokens" if by_ami else "launches with httpTokens optional fail"
    )
    unclear = "which could not be read" if account is None else "whose value is not known"
    why = f"{fails}: {ENFORCES}" if enforces else f"{fails}, if {ENFORCES}, {unclear}"
    return False if by_ami else enforces, why


def scaling_group(found: AutoScalingGroup) -> ScalingGroup:
    """See Group."""
    mixed = found.get("MixedInstancesPolicy")
    if mixed is not None:
        of_all = mixed.get("LaunchTemplate") or {}
        given = [of_all.get("LaunchTemplateSpecification")]
        given += [one.get("LaunchTemplateSpecification") for one in of_all.get("Overrides") or ()]
    else:
        given = [found.get("LaunchTemplate")]
    refs = [ref for one in given if one and (ref := template_ref(one)).template]
    tags = {tag.get("Key", ""): tag.get("Value", "") for tag in found.get("Tags") or ()}
    return ScalingGroup(
        found["AutoScalingGroupName"],
        tuple(dict.fromkeys(refs)),
        mixed is not None,
        tags.get(STACK_TAG, ""),
    )


def template_ref(one: LaunchTemplateSpecification) -> TemplateRef:
    """Without a version it is $Default ("LaunchTemplateSpecification", Auto Scaling API reference)."""
    template = one.get("LaunchTemplateId") or one.get("LaunchTemplateName") or ""
    return TemplateRef(template, one.get("Version") or DEFAULT)


def template_of(found: Iterable[LaunchTemplateVersion], stack: str | None = None) -> Template | None:
    """The latest version must be among them."""
    versions = {one["VersionNumber"]: _version(one) for one in found}
    if not versions:
        return None
    default = next((one["VersionNumber"] for one in found if one.get("DefaultVersion")), 0)
    name = next(one["LaunchTemplateId"] for one in found)
    return Template(name, versions, max(versions), default, stack)


def _version(found: LaunchTemplateVersion) -> Version:
    data = found.get("LaunchTemplateData") or {}
    block = {name: value for name, value in (data.get("MetadataOptions") or {}).items() if name != "State"}
    rest = {name: value for name, value in data.items() if name != "MetadataOptions"}
    text = json.dumps(rest, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Version(found["VersionNumber"], block, digest, str(data.get("ImageId") or ""))


def node_class_options(block: Mapping[str, Any]) -> Options:
    """Of an EC2NodeClass. Karpenter sets instanceMetadataTags to disabled on all that it launches."""
    given = {field.replace("IPv6", "Ipv6"): value for field, value in block.items()}
    try:
        return msgspec.convert({**given, "instanceMetadataTags": "disabled"}, Options)
    except msgspec.ValidationError:
        return Options()  # of a later version of Karpenter: nothing that could be read
