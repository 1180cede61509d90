"""The places of the lab and the wires between them: imds - node - pod - dind, every step a router.

As on a node: the host network is where the metadata service is one hop away, a pod is routed by the
node, and a container of a docker-in-docker is routed by its pod, too. Addresses are of the lab only.
"""

import contextlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hoplab.namespaces import Namespace

IMDS: Final = "imds"
NODE: Final = "node"
POD: Final = "pod"
DIND: Final = "dind"
CHAIN: Final = (IMDS, NODE, POD, DIND)
# Where clients run, by the hops that the metadata service is away.
PLACES: Final = (NODE, POD, DIND)

# Docs of EC2, "Access instance metadata for an EC2 instance".
IMDS_IPV4: Final = "169.254.169.254"
IMDS_IPV6: Final = "fd00:ec2::254"


def ipv6() -> bool:
    """Whether the kernel has IPv6, and switched on."""
    switch = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
    return switch.exists() and switch.read_text().strip() == "0"


@contextlib.contextmanager
def network(*, with_ipv6: bool) -> Iterator[dict[str, Namespace]]:
    """The namespaces by name, wired up, until the block ends."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Namespace] = {}
        for name in CHAIN:
            made[name] = Namespace(name)
            stack.callback(made[name].close)
        for name in CHAIN:
            made[name].settings(_settings(name, with_ipv6=with_ipv6))
        for name in CHAIN[:-1]:
            _wire(made, name, with_ipv6=with_ipv6)
        for name in CHAIN:
            made[name].links(_routes(name, with_ipv6=with_ipv6))
        yield made


def place_of(address: str) -> str:
    """Which place a client's address belongs to."""
    for name in PLACES:
        if ipaddress.ip_address(address) in (ipaddress.ip_address(a) for a in _up(name)):
            return name
    return "elsewhere"


def _wire(made: dict[str, Namespace], name: str, *, with_ipv6: bool) -> None:
    """A pair of links to the next of the chain: `inner` here, `outer` there."""
    there = _next(name)
    made[name].links([f"link add name inner type veth peer name outer netns {made[there].pid}"])
    for end, place, addresses in (("inner", name, _down(name)), ("outer", there, _up(there))):
        four, six = addresses
        made[place].links(
            [
                f"address add {four}/30 dev {end}",
                *([f"address add {six}/64 dev {end}"] if with_ipv6 else []),
                f"link set {end} up",
            ]
        )


def _settings(name: str, *, with_ipv6: bool) -> dict[str, int]:
    """Of the kernel, before there are links."""
    router = int(name in (NODE, POD))
    values = {"ipv4/ip_forward": router}
    if with_ipv6:
        values["ipv6/conf/all/forwarding"] = router
        # A router asks for a neighbour with its link-local address, which would first be looked for elsewhere
        # on the wire: nothing would get through for a second or two.
        values |= {f"ipv6/conf/{which}/accept_dad": 0 for which in ("all", "default")}
    return values


def _routes(name: str, *, with_ipv6: bool) -> list[str]:
    """Upwards the metadata addresses, downwards the networks of the places behind."""
    lines = ["link set lo up"]
    if name == IMDS:
        lines += [f"address add {IMDS_IPV4}/32 dev lo"]
        lines += [f"address add {IMDS_IPV6}/128 dev lo"] if with_ipv6 else []
    else:
        four, six = _down(_before(name))
        lines += [f"route add {IMDS_IPV4} via {four}"]
        lines += [f"route add {IMDS_IPV6} via {six}"] if with_ipv6 else []
        # Answers of the metadata service carry no other address, but errors of the routers do.
    for beyond in CHAIN[CHAIN.index(name) + 2 :]:
        four, six = _up(_next(name))
        lines += [f"route add {_up(beyond)[0]} via {four}"]
        lines += [f"route add {_up(beyond)[1]} via {six}"] if with_ipv6 else []
    return lines


def _next(name: str) -> str:
    return CHAIN[CHAIN.index(name) + 1]


def _before(name: str) -> str:
    return CHAIN[CHAIN.index(name) - 1]


def _down(name: str) -> tuple[str, str]:
    """A place's addresses on the wire to the next one."""
    number = CHAIN.index(name)
    return f"10.254.{number}.1", f"fd00:1ab:0:{number}::1"


def _up(name: str) -> tuple[str, str]:
    """A place's addresses on the wire to the one before it."""
    number = CHAIN.index(name) - 1
    return f"10.254.{number}.2", f"fd00:1ab:0:{number}::2"
