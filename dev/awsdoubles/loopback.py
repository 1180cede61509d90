"""Plain HTTP to our own servers: never through the proxy that the user's environment may name."""

import os
import urllib.request
from typing import Final

LOOPBACK: Final = "127.0.0.1"
DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def past_proxy(host: str) -> dict[str, str]:
    """Variables with which a program goes to `host` directly, as to what the user's environment excepts."""
    excepted = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    return dict.fromkeys(("NO_PROXY", "no_proxy"), f"{excepted},{host}" if excepted else host)
