"""Instances and their metadata options: what was asked for, what is in force, and since when.

Single-threaded: only the server's loop touches them. Options are mappings by the names of the API.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

HOP_LIMITS: Final = range(1, 65)
SWITCH: Final = ("enabled", "disabled")
VALUES: Final[dict[str, Container[Any]]] = {
    "HttpTokens": ("optional", "required"),
    "HttpPutResponseHopLimit": HOP_LIMITS,
    "HttpEndpoint": SWITCH,
    "HttpProtocolIpv6": SWITCH,
    "InstanceMetadataTags": SWITCH,
}
OPTIONS: Final = tuple(VALUES)
# An AMI that says nothing: "Order of precedence for instance metadata options".
BASE: Final[dict[str, Any]] = {
    "HttpTokens": "optional",
    "HttpPutResponseHopLimit": 1,
    "HttpEndpoint": "enabled",
    "HttpProtocolIpv6": "disabled",
    "InstanceMetadataTags": "disabled",
}
# "InstanceState" in the API reference.
STATES: Final = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
GONE: Final = ("shutting-down", "terminated")
# "Tag your Amazon EC2 resources": what the metadata service can show as a path.
TAG_KEY: Final = re.compile(r"[0-9a-zA-Z\-_+=,.@:]{1,255}")
RESERVED_KEYS: Final = (".", "..", "_index")
NEVER: Final = float("inf")

Options = dict[str, Any]


@dataclass
class Instance:
    """One instance; `number` is its place in the order of launches."""

    id: str
    number: int
    region: str
    zone: str
    address: str
    reservation: str
    launched_at: float
    instance_type: str = "m5.large"
    state: str = "running"
    tags: dict[str, str] = field(default_factory=dict)
    options: Options = field(default_factory=lambda: dict(BASE))  # as asked for last
    in_force: Options = field(default_factory=dict)
    applies_at: float | None = None  # when `options` come into force; None: they are
    told_before: Options = field(default_factory=dict)  # by descriptions, until `told_until`
    told_until: float = 0.0
    operator: dict[str, Any] = field(default_factory=dict)  # as the API's OperatorResponse
    template: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _known("state", self.state, STATES)
        self.in_force = self.in_force or dict(self.options)

    @property
    def private_dns(self) -> str:
        """The name that the kubelet registers on most nodes."""
        return f"ip-{self.address.replace('.', '-')}.{self.region}.compute.internal"

    @property
    def provider_id(self) -> str:
        """What stands in a Node's spec.providerID."""
        return f"aws:///{self.zone}/{self.id}"

    def settle(self, now: float) -> None:
        """Let options come into force whose time has come."""
        if self.applies_at is not None and now >= self.applies_at:
            self.in_force, self.applies_at = dict(self.options), None

    def modify(self, changes: Mapping[str, Any], now: float, *, seconds: float, stale: float) -> None:
        """Ask for options, which come into force after `seconds`; others stay as asked for before.

        Those of a stopped instance wait for its start: "ModifyInstanceMetadataOptions". Descriptions tell
        what was before for `stale` seconds.
        """
        self.told_before, self.told_until = self.described_options(now), now + stale
        self.options = {**self.options, **changes}
        self.applies_at = now + seconds if self.state in {"running", "pending"} else NEVER

    def put(self, changes: Mapping[str, Any]) -> None:
        """Another hand has changed options, and they are in force."""
        self.options = {**self.options, **changes}
        self.in_force, self.applies_at = dict(self.options), None

    def become(self, state: str, now: float, seconds: float) -> None:
        """Enter a state; a start brings waiting options into force after `seconds`."""
        _known("state", state, STATES)
        if state == "running" and self.state != "running" and self.applies_at is not None:
            self.applies_at = now + seconds
        self.state = state

    def metadata_options(self, now: float) -> Options:
        """As ModifyInstanceMetadataOptions answers them."""
        self.settle(now)
        return {"State": "applied" if self.applies_at is None else "pending", **self.options}

    def described_options(self, now: float) -> Options:
        """The same, as late as descriptions may be."""
        return self.told_before if now < self.told_until else self.metadata_options(now)

    def unfit_tag_key(self) -> str | None:
        """A tag that the metadata service could not show."""
        return next((k for k in self.tags if not TAG_KEY.fullmatch(k) or k in RESERVED_KEYS), None)

    def view(self, now: float) -> dict[str, Any]:
        """For the control API."""
        self.settle(now)
        return {
            "id": self.id,
            "region": self.region,
            "zone": self.zone,
            "privateDns": self.private_dns,
            "providerID": self.provider_id,
            "state": self.state,
            "tags": self.tags,
            "options": self.options,
            "inForce": self.in_force,
            "pending": self.applies_at is not None,
        }


def checked(options: Mapping[str, Any]) -> Options:
    """Options of the control API; ValueError when they are none."""
    for name, value in options.items():
        _known("metadata option", name, VALUES)
        _known(name, value, VALUES[name])
    return dict(options)


def _known(what: str, value: Any, values: Container[Any]) -> None:
    if value not in values:
        raise ValueError(f"{what} {value!r} is none of {values}")
