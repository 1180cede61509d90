"""Everything the double knows: instances, launch templates, groups, defaults, settings, the call ledger.

Single-threaded: only the server's loop touches it.
"""

import copy
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from awsdoubles.ec2.clock import Clock
from awsdoubles.ec2.instances import BASE, OPTIONS, Instance, Options, checked
from awsdoubles.ec2.throttle import Buckets

ZONES: Final = "abc"
RESERVATION_SIZE: Final = 10  # instances that were launched together share one
GROUP_TAG: Final = "aws:autoscaling:groupName"
# "Launching an IMDSv1-enabled instance fails", and the same of "Modifying an IMDSv1-enabled instance fails".
IMDSV1_REFUSED: Final = (
    "You can't launch instances with IMDSv1 because httpTokensEnforced is enabled for this account. Either "
    "launch the instance with httpTokens=required or contact your account owner to disable "
    "httpTokensEnforced using the ModifyInstanceMetadataDefaults API or the account settings in the EC2 "
    "console."
)
TEMPLATE_TAGS: Final = ("aws:ec2launchtemplate:id", "aws:ec2launchtemplate:version")


@dataclass
class Settings:
    """What the manuals leave open, and what makes a test slow. Changed through the control API."""

    apply_seconds: float = 1.0  # from pending to applied; AWS names no figure
    stale_seconds: float = 0.0  # for which descriptions miss a change: "Eventual consistency in the ... API"
    throttling: bool = True
    eager_tokens: bool = False  # a page that is just full has a token, and the next one nothing
    omit_tags: bool = False  # instances without their tags
    omit: list[str] = field(default_factory=list)  # instances that descriptions leave out
    endpoint_off_stands_alone: bool = True  # HttpEndpoint=disabled with other options is refused
    gone_code: str = "IncorrectInstanceState"  # for terminated instances
    managed_code: str = "UnsupportedOperation"  # for those with Operator.Managed


@dataclass
class Template:
    """A launch template; version n is `versions[n - 1]`, a ResponseLaunchTemplateData each."""

    id: str
    name: str
    region: str
    number: int
    created_at: float
    default: int = 1
    versions: list[dict[str, Any]] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, tuple[dict[str, Any], int]] = field(default_factory=dict)  # request and version made

    def version(self, wanted: str) -> int | None:
        """The number that `$Latest`, `$Default`, a number or nothing (the default) stand for."""
        named = {"$Latest": len(self.versions), "$Default": self.default, "": self.default}
        number = named.get(wanted, int(wanted) if wanted.isdecimal() else 0)
        return number if 0 < number <= len(self.versions) else None

    def view(self) -> dict[str, Any]:
        """For the control API."""
        return {"id": self.id, "name": self.name, "default": self.default, "latest": len(self.versions)}


@dataclass
class World:
    """One account's EC2 in all regions."""

    clock: Clock = field(default_factory=Clock)
    settings: Settings = field(default_factory=Settings)
    instances: dict[str, Instance] = field(default_factory=dict)  # in the order of launches
    templates: dict[str, Template] = field(default_factory=dict)  # by id
    groups: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by region and name
    defaults: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the account, by region
    denied: dict[str, str] = field(default_factory=dict)  # operation: message
    calls: list[dict[str, Any]] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.buckets = Buckets(self.clock)

    def reset(self) -> None:
        """As at the start."""
        for part in (self.instances, self.templates, self.groups, self.defaults, self.denied, self.calls):
            part.clear()
        self.settings = Settings()
        self.clock.reset()
        self.buckets.clear()

    def number(self) -> int:
        """A place in the order in which things were made."""
        self.made += 1
        return self.made

    def launch(
        self,
        region: str,
        *,
        count: int = 1,
        tags: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        template: Mapping[str, str] | None = None,
        group: str = "",
        **fields: Any,
    ) -> list[Instance]:
        """New instances, all alike; `template` is {"LaunchTemplateId": ..., "Version": ...}.

        A group's instances come from its template unless one is given, and carry the tags that Auto
        Scaling sets.
        """
        source = dict(template or self._template_of(region, group))
        found = self._launched_from(region, source)
        labels = dict(tags or {})
        if group:
            labels[GROUP_TAG] = group
        if found is not None:
            source = {"LaunchTemplateId": found[0].id, "Version": str(found[1])}
            labels |= dict(zip(TEMPLATE_TAGS, source.values(), strict=True))
        given = self._options(region, found, options or {})
        if self.enforces_tokens(region) and given["HttpTokens"] != "required":
            raise ValueError(IMDSV1_REFUSED)
        fields |= {"tags": labels, "options": given, "template": source}
        made: list[Instance] = []
        for place in range(count):
            if place % RESERVATION_SIZE == 0:
                fields["reservation"] = f"r-{secrets.token_hex(9)[1:]}"
            made.append(self._instance(region, copy.deepcopy(fields)))
        return made

    def enforces_tokens(self, region: str) -> bool:
        """ "Enforce IMDSv2 at the account level"; it is "evaluated after the order of precedence"."""
        return self.defaults.get(region, {}).get("HttpTokensEnforced") == "enabled"

    def template(self, region: str, wanted: str) -> Template | None:
        """By id or name."""
        for one in self.templates.values():
            if one.region == region and wanted in {one.id, one.name}:
                return one
        return None

    def add_template(
        self, region: str, name: str, versions: list[dict[str, Any]], tags: Mapping[str, str]
    ) -> Template:
        """A launch template with these versions, the first of which is the default."""
        made = Template(
            id=f"lt-{secrets.token_hex(9)[1:]}",
            name=name,
            region=region,
            number=self.number(),
            created_at=self.clock.now(),
            versions=versions,
            tags=dict(tags),
        )
        self.templates[made.id] = made
        return made

    def members(self, region: str, group: str) -> list[Instance]:
        """The instances of a group."""
        return [
            one
            for one in self.instances.values()
            if one.region == region and one.tags.get(GROUP_TAG) == group and one.state != "terminated"
        ]

    def _instance(self, region: str, fields: dict[str, Any]) -> Instance:
        number = self.number()
        made = Instance(
            id=f"i-{secrets.token_hex(9)[1:]}",
            number=number,
            region=region,
            zone=region + ZONES[number % len(ZONES)],
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            launched_at=self.clock.now() - fields.pop("age", 0.0),
            **fields,
        )
        self.instances[made.id] = made
        return made

    def _template_of(self, region: str, group: str) -> Mapping[str, str]:
        known = self.groups.get((region, group), {})
        mixed = known.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
        found: Mapping[str, str] = known.get("LaunchTemplate") or mixed.get("LaunchTemplateSpecification", {})
        return found

    def _launched_from(self, region: str, source: Mapping[str, str]) -> tuple[Template, int] | None:
        wanted = source.get("LaunchTemplateId") or source.get("LaunchTemplateName")
        if not wanted:
            return None
        template = self.template(region, wanted)
        version = template.version(source.get("Version", "")) if template else None
        if template is None or version is None:
            raise ValueError(f"no launch template {wanted!r} with version {source.get('Version')!r}")
        return template, version

    def _options(self, region: str, source: tuple[Template, int] | None, given: Mapping[str, Any]) -> Options:
        """In the "Order of precedence for instance metadata options": launch, account, AMI."""
        account = {name: value for name, value in self.defaults.get(region, {}).items() if name in OPTIONS}
        launch = source[0].versions[source[1] - 1].get("MetadataOptions", {}) if source else {}
        return {**BASE, **account, **launch, **checked(given)}
