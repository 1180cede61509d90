"""Resolves an endpoint from a tenant's spec and checks its addresses when a connection is made.

Inputs: the allowed exceptions (see api/egress.py) and the API server's host. Called in worker threads. It
resolves names and opens no connection.
"""

import socket
from collections.abc import Collection, Iterator

from caretaker.api.egress import Egress
from caretaker.aws.classes import ErrorClass
from caretaker.aws.errors import AwsError

ADDRESS_REFUSED = "AddressRefused"


class EgressCheck:
    """Applies the address rule of target.http to connections to AWS."""

    def __init__(self, allowed: Collection[str], api_server: str) -> None:
        self._egress = Egress(allowed)
        self._api_server = api_server

    def addresses(self, host: str, port: int) -> Iterator[str]:
        """The addresses that the host resolves to now and that are allowed, in order. Raises OSError if the
        name does not resolve, AwsError if every address is refused."""
        name = host.strip("[]").rstrip(".").lower()
        own = _addresses(self._api_server, 443) if self._api_server else ()
        refusals = {found: self._egress.refusal(name, found, own) for found in _addresses(name, port)}
        if all(refusals.values()):
            raise AwsError(
                ErrorClass.INVALID_REQUEST, ADDRESS_REFUSED, f"endpointURLs: {next(iter(refusals.values()))}"
            )
        return (found for found, refusal in refusals.items() if not refusal)


def _addresses(host: str, port: int) -> tuple[str, ...]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(info[4][0]) for info in found))
