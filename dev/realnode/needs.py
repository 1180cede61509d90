"""What a container engine of our own needs of the machine, and what to do where it is missing.

Inputs: the PATH and the rights of this process. `missing` changes nothing; `install` calls apt-get.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from realnode.errors import NodeError

# Program -> the Debian package that has it.
TOOLS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "mount": "mount",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
CAPABILITIES: Final = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN")
# By their numbers in linux/capability.h.
_KNOWN: Final = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT
SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ
PERFMON BPF CHECKPOINT_RESTORE
"""
# Debian keeps some of these where only root's PATH looks.
SEARCH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def program(name: str) -> str:
    """The path of a program; NodeError where there is none."""
    found = shutil.which(name, path=SEARCH)
    if found is None:
        raise NodeError(f"{name} is missing: apt-get install -y --no-install-recommends {TOOLS[name]}")
    return found


def install(name: str) -> None:
    """One program, with apt-get, where it is missing and apt-get is there; NodeError where that fails."""
    if shutil.which(name, path=SEARCH) is None:
        _install([TOOLS[name]])


def absent() -> list[str]:
    """The Debian packages that have what is not there."""
    return sorted({package for tool, package in TOOLS.items() if shutil.which(tool, path=SEARCH) is None})


def missing() -> list[str]:
    """One line for each thing that keeps it from running here; none when it can."""
    lines = [*_rights()]
    if packages := absent():
        lines.append(f"programs: {_install_command(packages)}")
    return lines


def check() -> None:
    """Install what apt-get can install, as root; NodeError with all that is missing then."""
    if rights := _rights():
        packages = absent()
        raise NodeError(
            "\n".join([*rights, *([f"programs: {_install_command(packages)}"] if packages else [])])
        )
    if packages := absent():
        _install(packages)
    if lines := missing():
        raise NodeError("\n".join(lines))


def _rights() -> list[str]:
    if sys.platform != "linux":
        return [f"Linux: this is {sys.platform}"]
    lines = []
    if os.geteuid():
        lines.append("root: run it with sudo, or in a container that is privileged")
    wanted = [name for name in lacking() if name in CAPABILITIES]
    if wanted and not os.geteuid():
        lines.append(
            f"{' and '.join(wanted)}: root lacks them here, as in a container that is not privileged"
        )
    if not lines:
        lines += _refusals()
    return lines


def _refusals() -> list[str]:
    """What no capability tells: an LSM, a seccomp profile, a read-only cgroup file system."""
    lines = []
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        lines.append(f"namespaces: the kernel refuses them ({tried.stderr.strip()})")
    if not any(
        os.access(place, os.W_OK) for place in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
    ):
        lines.append("cgroups: /sys/fs/cgroup cannot be written")
    return lines


def lacking(status: Path = Path("/proc/self/status")) -> list[str]:
    """The capabilities that this process has not, of those that Linux knows: `CAP_SYS_RESOURCE`."""
    held = 0
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            held = int(value, 16)
    return [f"CAP_{name}" for bit, name in enumerate(_KNOWN.split()) if not held >> bit & 1]


def _install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        return
    print(f"installing {', '.join(packages)} (once)", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # One source of many that cannot be reached makes it fail, and may be none that has these packages.
    subprocess.run(["apt-get", "update", "-qq"], env=environment, capture_output=True, check=False)
    command = _install_command(packages).split()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def _install_command(packages: list[str]) -> str:
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"
