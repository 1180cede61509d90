"""The metadata options of the lab's instance, and where they come from while it runs.

A source is any callable that gives the options in force now; the fake IMDS asks it at every request. The
JSON is EC2's own: the structure `MetadataOptions` of DescribeInstances; fields that the lab does
not act on are ignored. It must not remember: what changes in the source counts at once.
"""

import http.client
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from hoplab.needs import HopLabError

ASK_SECONDS: Final = 1.0
TRIES: Final = 3
RETRY_SECONDS: Final = 0.02
# Never through a proxy that the user's environment names.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Switch = Literal["enabled", "disabled"]


class MetadataOptions(msgspec.Struct, frozen=True, rename="pascal"):
    """API reference of EC2, "InstanceMetadataOptionsResponse"; the defaults are those of ModifyInstance...

    `http_put_response_hop_limit` counts hops, 1 to 64.
    """

    http_put_response_hop_limit: int = 1
    http_tokens: Literal["optional", "required"] = "required"
    http_endpoint: Switch = "enabled"
    http_protocol_ipv6: Switch = "enabled"

    def __post_init__(self) -> None:
        if not 1 <= self.http_put_response_hop_limit <= 64:
            raise ValueError("HttpPutResponseHopLimit goes from 1 to 64")


Source = Callable[[], MetadataOptions]


class Setting:
    """A source that is set by hand."""

    def __init__(self, options: MetadataOptions) -> None:
        self.options = options

    def __call__(self) -> MetadataOptions:
        return self.options


def from_file(path: Path) -> Source:
    """The options in a JSON file. Half-written contents are read again before they are an error."""

    def read() -> MetadataOptions:
        return _patiently(path.read_bytes, str(path))

    return read


def from_url(url: str) -> Source:
    """The options that an HTTP GET answers with."""

    def ask() -> bytes:
        with _DIRECT.open(url, timeout=ASK_SECONDS) as answer:
            body: bytes = answer.read()
            return body

    def read() -> MetadataOptions:
        return _patiently(ask, url)

    return read


def _patiently(get: Callable[[], bytes], source: str) -> MetadataOptions:
    for attempt in range(1, TRIES + 1):
        try:
            return msgspec.json.decode(get(), type=MetadataOptions)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise HopLabError(f"no metadata options from {source}: {error}") from None
            time.sleep(RETRY_SECONDS)
    raise AssertionError
