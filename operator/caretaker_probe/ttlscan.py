"""The hop limit that a place needs, measured without rights: the smallest TTL that reaches the service.

A SYN whose TTL is too small dies at a router, and connect() fails or stays silent. The way back is as long,
so the first TTL that connects is the smallest HttpPutResponseHopLimit with which a token gets there. It
sends no data. Options: ip(7) IP_TTL, ipv6(7) IPV6_UNICAST_HOPS; neither needs a capability.
"""

import socket
from collections.abc import Callable
from typing import Final

LARGEST: Final = 8  # a docker-in-docker on an overlay network needs 3 or 4; EC2 takes 1 to 64
# A lost SYN is sent again after a second (RFC 6298), and a hop too many must not be blamed on that.
CONNECT_SECONDS: Final = 1.2


def minimal_ttl(
    make: Callable[[], socket.socket],
    address: tuple[str, int],
    *,
    largest: int = LARGEST,
    seconds: float = CONNECT_SECONDS,
) -> int | None:
    """The smallest TTL that connects; None when none up to `largest` does.

    make: a new TCP socket of the address's family each time. seconds: how long each TTL may take; over IPv6
    the routers' answer does not end a connect(), so that every TTL that is too small takes all of it.
    """
    return next((ttl for ttl in range(1, largest + 1) if _connects(make, address, ttl, seconds)), None)


def _connects(make: Callable[[], socket.socket], address: tuple[str, int], ttl: int, seconds: float) -> bool:
    with make() as attempt:
        if attempt.family == socket.AF_INET6:
            attempt.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, ttl)
        else:
            attempt.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        attempt.settimeout(seconds)
        return attempt.connect_ex(address) == 0
