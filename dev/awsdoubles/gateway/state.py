"""The double's gateways, file shares, settings and refreshes: data, and the lookups over it.

Single-threaded: only the server's loop touches it.
"""

import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from awsdoubles.clients import ACCOUNT
from awsdoubles.gateway.bucket import Requests
from awsdoubles.gateway.inventory import Inventory

STATUSES: Final = (
    "AVAILABLE",
    "CREATING",
    "UPDATING",
    "DELETING",
    "FORCE_DELETING",
    "INVISIBLE",
    "UNAVAILABLE",
)
_DIGITS: Final = "0123456789ABCDEF"


@dataclass
class Settings:
    """What the manuals leave open, and what makes a test slow. Changed through the control API."""

    objects_per_second: float = 5_500.0  # AWS's limit of requests for each prefix
    min_interval: float = 60.0  # seconds in which a further accepted call evicts nothing
    max_in_flight: int = 2
    in_flight_per: str = "gateway"  # gateway | share: the manuals disagree
    completion_queue: str = ""  # URL; "" = no events
    completion_region: str = ""  # of the queue; "" = the share's
    folder_list_in_detail: bool = True  # the manual's example has it outside
    missing_folder: str = "accept"  # accept | refuse
    leading_slash: str = "accept"  # accept | refuse: "/a" for "a"


@dataclass
class Gateway:
    """A Storage Gateway; holds nothing but its name."""

    arn: str
    region: str


@dataclass
class Share:
    """A file share: `prefix` is empty or ends in /."""

    arn: str
    gateway: Gateway
    protocol: str
    bucket: str
    prefix: str
    location: str
    status: str = "AVAILABLE"
    inventory: Inventory = field(default_factory=Inventory)
    last_accepted: float = float("-inf")  # monotonic

    @property
    def id(self) -> str:
        """share-..."""
        return self.arn.rsplit("/", 1)[1]


@dataclass
class Refresh:
    """One accepted call; times are Unix seconds."""

    id: str
    share: Share
    folders: list[str]  # as asked
    recursive: bool
    evicts: bool  # false under the rule of `min_interval`
    accepted_at: float = field(default_factory=time.time)
    completed_at: float | None = None
    listed: list[str] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    error: str = ""

    def view(self) -> dict[str, Any]:
        """For the control API."""
        return {
            "id": self.id,
            "share": self.share.arn,
            "folders": self.folders,
            "recursive": self.recursive,
            "evicts": self.evicts,
            "acceptedAt": self.accepted_at,
            "completedAt": self.completed_at,
            "listed": self.listed,
            "error": self.error,
            **asdict(self.requests),
        }


@dataclass
class AccessPoint:
    """An access point of S3; not to be seen before `visible_at`, by time.monotonic()."""

    bucket: str
    alias: str
    visible_at: float = 0.0


@dataclass
class World:
    """Everything the double knows."""

    settings: Settings = field(default_factory=Settings)
    gateways: dict[str, Gateway] = field(default_factory=dict)  # by ARN
    shares: dict[str, Share] = field(default_factory=dict)  # by ARN
    refreshes: list[Refresh] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    access_points: dict[str, AccessPoint] = field(default_factory=dict)  # by ARN
    denied: set[str] = field(default_factory=set)  # ARNs of access points that may not be looked up

    def add_gateway(self, region: str) -> Gateway:
        """A new gateway in a region."""
        arn = f"arn:aws:storagegateway:{region}:{ACCOUNT}:gateway/sgw-{_id()}"
        self.gateways[arn] = Gateway(arn, region)
        return self.gateways[arn]

    def add_share(self, gateway: Gateway, protocol: str, bucket: str, prefix: str, location: str) -> Share:
        """A new share; `location` is its LocationARN when that is no plain bucket ARN."""
        arn = f"arn:aws:storagegateway:{gateway.region}:{ACCOUNT}:share/share-{_id()}"
        location = location or f"arn:aws:s3:::{bucket}" + (f"/{prefix}" if prefix else "")
        self.shares[arn] = Share(arn, gateway, protocol, bucket, prefix, location)
        return self.shares[arn]

    def shares_in(self, region: str, gateway_arn: str = "") -> list[Share]:
        """The shares that a client of this region sees, in a stable order."""
        return [
            share
            for share in sorted(self.shares.values(), key=lambda one: one.arn)
            if share.gateway.region == region and gateway_arn in {"", share.gateway.arn}
        ]

    def in_flight(self, share: Share) -> int:
        """How many refreshes count against the limit for a call on this share."""
        running = [one for one in self.refreshes if one.completed_at is None]
        if self.settings.in_flight_per == "share":
            return sum(one.share is share for one in running)
        return sum(one.share.gateway is share.gateway for one in running)


def access_point_arn(region: str, account: str, name: str) -> str:
    """As policies name it."""
    return f"arn:aws:s3:{region}:{account}:accesspoint/{name}"


def alias_of(name: str) -> str:
    """A new alias: 63 characters at most, of which S3 makes the last 43."""
    made = "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(34))
    return f"{name[:20]}-{made}-s3alias"


def _id() -> str:
    return "".join(secrets.choice(_DIGITS) for _ in range(8))


def view(share: Share) -> dict[str, Any]:
    """A share for the control API."""
    fields: Iterable[str] = ("arn", "id", "protocol", "bucket", "prefix", "location", "status")
    return {name: getattr(share, name) for name in fields} | {"gateway": share.gateway.arn}
