"""What an endpoint that a tenant named leads to, at the moment when a connection is made.

Inputs: which places are allowed besides (see api/egress.py), and the API server's host. Called in worker
threads; it resolves names, and opens no connection.
"""

import socket
from collections.abc import Collection, Iterator

from caretaker.api.egress import Egress
from caretaker.aws.classes import ErrorClass
from caretaker.aws.errors import AwsError

REFUSED = "AddressRefused"


class Reach:
    """The rule of target.http, for connections to AWS."""

    def __init__(self, allowed: Collection[str], api_server: str) -> None:
        self._egress = Egress(allowed)
        self._api_server = api_server

    def addresses(self, host: str, port: int) -> Iterator[str]:
        """Those that the host stands for now and that may be connected to, in order. Raises OSError for a
        name that nobody knows, AwsError if every address is refused."""
        name = host.strip("[]").rstrip(".").lower()
        own = _addresses(self._api_server, 443) if self._api_server else ()
        refusals = {found: self._egress.refusal(name, found, own) for found in _addresses(name, port)}
        if all(refusals.values()):
            raise AwsError(
                ErrorClass.INVALID_REQUEST, REFUSED, f"endpointURLs: {next(iter(refusals.values()))}"
            )
        return (found for found, refusal in refusals.items() if not refusal)


def _addresses(host: str, port: int) -> tuple[str, ...]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(info[4][0]) for info in found))
