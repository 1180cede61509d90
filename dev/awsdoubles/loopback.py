"""Plain HTTP to our own servers: never through the proxy that the user's environment may name."""

import urllib.request
from typing import Final

LOOPBACK: Final = "127.0.0.1"
DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
