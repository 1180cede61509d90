"""The hop limit that a place of the lab needs, by the scan that the probe makes in Pods."""

import socket
from typing import Final

from caretaker_probe.ttlscan import minimal_ttl
from hoplab.lab import PORT, HopLab
from hoplab.network import IMDS_IPV4, IMDS_IPV6

# On the wires of the lab a handshake takes less than a millisecond, and nothing is lost.
CONNECT_SECONDS: Final = 0.3
LARGEST: Final = 4


def needed(lab: HopLab, place: str, family: socket.AddressFamily = socket.AF_INET) -> int | None:
    """The hop limit that the place needs; None when no TTL up to 4 connects."""
    address = IMDS_IPV6 if family == socket.AF_INET6 else IMDS_IPV4
    return minimal_ttl(
        lambda: lab.new_socket(place, family), (address, PORT), largest=LARGEST, seconds=CONNECT_SECONDS
    )
