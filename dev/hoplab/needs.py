"""What the lab needs of the machine, and what to do where it is missing.

Inputs: the PATH and the rights of this process. It must not change anything.
"""

import os
import shutil
import subprocess
from typing import Final

# iproute2 makes the links; unshare and nsenter (util-linux) make and enter the namespaces.
TOOLS: Final = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}

FORWARDING: Final = "/proc/sys/net/ipv4/ip_forward"


class HopLabError(Exception):
    """The lab cannot work here; the message says why and what mends it."""


def check() -> None:
    """Return when network namespaces can be made; raises HopLabError with what is missing."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        packages = " ".join(sorted({TOOLS[tool] for tool in absent}))
        raise HopLabError(f"{', '.join(absent)} is missing: apt-get install {packages}")
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise HopLabError(_mend(tried.stderr.strip()))
    if not os.access(FORWARDING, os.W_OK):
        raise HopLabError(_mend(f"{FORWARDING} cannot be written"))


def _mend(said: str) -> str:
    if os.geteuid():
        return (
            f"network namespaces need root ({said}): run it with sudo, or, where the kernel allows user "
            "namespaces, as `unshare --user --map-root-user make hoplab`"
        )
    return (
        f"network namespaces are forbidden here although this is root ({said}): in a container it needs "
        "the capabilities SYS_ADMIN and NET_ADMIN and a writable /proc/sys, as with docker run --privileged"
    )
