"""Runs the clients through places, hop limits and token settings, one at a time, and keeps what they say.

Input: a running lab. Output: values; figures are seconds. It must not run two clients at once, since on a
small machine they would measure each other.
"""

import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from hoplab.answers import ROLE, ROLES_PATH
from hoplab.clients import Client
from hoplab.imds import FakeImds
from hoplab.lab import HopLab
from hoplab.network import PLACES
from hoplab.options import MetadataOptions
from hoplab.ttlscan import needed

# What a program does once only (imports, caches of the SDK) is no matter of the hop limit.
OPEN: Final = MetadataOptions(http_put_response_hop_limit=64, http_tokens="optional")

Tokens = Literal["optional", "required"]


class Measurement(msgspec.Struct, frozen=True, rename="camel"):
    """One client in one place under one setting; `version` is IMDSv2 or IMDSv1, empty without credentials."""

    client: str
    place: str
    hop_limit: int
    tokens: Tokens
    seconds: float
    version: str
    error: str


class Needed(msgspec.Struct, frozen=True):
    """The hop limit that a place needs, over each protocol; nothing where there is no way."""

    place: str
    ipv4: int | None
    ipv6: int | None


def scan(lab: HopLab) -> list[Needed]:
    """The minimal TTL from every place."""
    return [
        Needed(place, needed(lab, place), needed(lab, place, socket.AF_INET6) if lab.ipv6 else None)
        for place in PLACES
    ]


def measure(
    lab: HopLab,
    name: str,
    command: list[str],
    settings: Sequence[MetadataOptions] | None,
    progress: Callable[[str], None],
) -> Iterator[Measurement]:
    """One client everywhere, under each of the settings; None leaves the lab's own source in charge."""
    clients = {place: Client(lab, place, command) for place in PLACES}
    if settings is not None:
        lab.setting.options = OPEN
    for client in clients.values():
        client.resolve()
    for setting in [None] if settings is None else settings:
        if setting is not None:
            lab.setting.options = setting
        options = lab.imds.source()
        progress(f"{name}: hop limit {options.http_put_response_hop_limit}, tokens {options.http_tokens}")
        for place, client in clients.items():
            before = len(lab.imds.requests)
            found = client.resolve()
            yield Measurement(
                client=name,
                place=place,
                hop_limit=options.http_put_response_hop_limit,
                tokens=options.http_tokens,
                seconds=found.seconds,
                version="" if found.error else _version(lab.imds, before),
                error=found.error,
            )


def every(hops: Sequence[int], tokens: Sequence[Tokens]) -> list[MetadataOptions]:
    """All pairs of the two."""
    return [
        MetadataOptions(http_put_response_hop_limit=hop, http_tokens=required)
        for required, hop in itertools.product(tokens, hops)
    ]


def _version(imds: FakeImds, before: int) -> str:
    """By which version the credentials were handed out, from the service's own record."""
    given = [r for r in imds.requests[before:] if r.path == ROLES_PATH + ROLE and r.status == 200]
    return "" if not given else "IMDSv2" if given[-1].token else "IMDSv1"
