"""Checks the addresses that a URL from a tenant's spec resolves to.

Pure. The URLs are those of target.http and of aws.endpointURLs. The operator can reach services that its
tenants must not reach: the metadata service with the node's credentials, and the API server. The check is of
the address that is about to be connected to, not of the name: a name may resolve differently a moment later.
"""

import re
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

# Also the `pattern` of target.http.url. No user, no backslash, no fragment: URL parsers disagree about them.
URL: Final = r"^https?://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?([/?][!-\"$-\[\]-~]*)?$"
# getaddrinfo() raises UnicodeError for others.
_LABELS: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_LAST_PORT: Final = 65535

_REFUSED: Final = tuple(
    (ip_network(network), what)
    for network, what in (
        ("0.0.0.0/8", "unspecified"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local, where metadata services are"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
        # fd00:ec2::254 is EC2's metadata service, ::23 that of EKS Pod Identity; AWS has the range to itself.
        ("fd00:ec2::/32", "a service of the EC2 instance, such as its metadata"),
        # Metadata services that are not link-local: Google Cloud's by IPv6, Azure's wire server, and those of
        # Alibaba Cloud and Oracle Cloud.
        ("fd20:ce::254/128", "a service of the machine's cloud"),
        ("168.63.129.16/32", "a service of the machine's cloud"),
        ("100.100.100.200/32", "a service of the machine's cloud"),
        ("192.0.0.192/32", "a service of the machine's cloud"),
        # RFC 8215: the position of the IPv4 address within such an address is up to the translator.
        ("64:ff9b:1::/48", "translated to an IPv4 address that cannot be told"),
    )
)
# Their last 32 bits are an IPv4 address: RFC 6052 (NAT64), RFC 2765 (SIIT), RFC 4291 (IPv4-compatible).
_CARRIERS: Final = tuple(map(ip_network, ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")))


def host_of(url: str) -> str:
    """The host of a URL, in lower case. Raises ValueError with a correction."""
    found = re.match(URL, url)
    if found is None or url.endswith("\n"):
        raise ValueError(
            "must be http:// or https://, a host, and a path of ASCII characters; "
            "credentials go into headersFrom"
        )
    host = found[1].strip("[]").removesuffix(".").lower()
    if not (is_ipv6(host) if found[1].startswith("[") else _LABELS.fullmatch(host)):
        raise ValueError(
            "has no host: parts of a name have 1 to 63 characters, and only an IPv6 address has brackets"
        )
    if int((found[2] or ":0")[1:]) > _LAST_PORT:
        raise ValueError(f"has no port: the last one is {_LAST_PORT}")
    return host


def is_ipv6(text: str) -> bool:
    """Whether it is an IPv6 address, without brackets."""
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


class Egress:
    """`allowed`: networks (10.1.0.0/16), addresses and host names that are exempt from the refusals."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._networks = []
        self._hosts = set()
        for entry in allowed:
            try:
                self._networks.append(ip_network(entry, strict=False))
            except ValueError:
                self._hosts.add(entry.rstrip(".").lower())

    def refusal(self, host: str, address: str, api_server: Collection[str]) -> str:
        """The reason why this address, to which `host` resolves now, is refused; "" if it is allowed.

        api_server: the addresses of the API server.
        """
        if host in self._hosts:
            return ""
        given = ip_address(address)
        own = {one for text in api_server for one in _meant(ip_address(text))}
        for one in _meant(given):
            what = "the API server's" if one in own else _kind(one)
            if what and not (self._allows(one) or self._allows(given)):
                return (
                    f"{host} leads to {address}, which is {what}, and refused unless "
                    "`caretaker run --egress-allow` names it"
                )
        return ""

    def _allows(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _kind(address: Address) -> str:
    return next((what for network, what in _REFUSED if address in network), "")


def _meant(address: Address) -> Iterator[Address]:
    """The address, and the IPv4 one that an IPv6 address carries."""
    yield address
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if any(address in network for network in _CARRIERS):
            yield IPv4Address(int(address) & 0xFFFFFFFF)
