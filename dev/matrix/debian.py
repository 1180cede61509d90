"""A Python that this machine's Debian does not have, out of the packages of a newer Debian; also one for
another architecture, which QEMU's user emulation runs.

The packages are unpacked into the user's cache, not installed. Their Python needs their libc: their loader
starts it, with their libraries, and only it: what it starts itself sees the machine's own. So an emulated
Python starts the machine's own programs, and the kernel needs no registration. Raises Missing where that
cannot be done: it takes Debian's mmdebstrap, which this installs as root.
"""

import os
import platform
from pathlib import Path
from typing import Final

from awsdoubles.cached import ensure
from matrix.missing import Missing
from realnode import needs
from realnode.errors import NodeError
from realnode.images import mmdebstrap

SUITE: Final = "forky"
# Wheels bring no C++ library, they take the machine's.
BESIDE: Final = ("libstdc++6",)
_LOADERS: Final = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # as Debian names them
_EMULATOR: Final = "qemu-user"
# It tells Python the path it was called by: that is sys.executable, and how a virtual environment is known.
_STARTER: Final = """\
#!/bin/sh
here=$(/usr/bin/readlink -f "$0")
usr=${{here%/bin/*}}
libraries="$usr/lib/{machine}-linux-gnu"
exec {emulator}"$libraries/{loader}" --argv0 "$0" --library-path "$libraries" "$here.program" "$@"
"""


def python(version: str, machine: str = "") -> str:
    """The interpreter's path. `version`: such as 3.14. `machine`: as of platform.machine(), "" = this one."""
    own = platform.machine()
    machine = machine or own
    for one in (own, machine):
        if one not in _LOADERS:
            raise Missing(
                f"Debian's Python {version} is taken on {' and '.join(_LOADERS)}, and this is {one}"
            )
    packages = ",".join([f"python{version}", f"python{version}-venv", *BESIDE])
    emulated = "" if machine == own else f'"{emulator(machine)}" '
    starter = _STARTER.format(machine=machine, loader=_LOADERS[machine], emulator=emulated)

    def fill(folder: Path) -> None:
        _unpacked(packages, folder, machine)
        program = folder / "usr" / "bin" / f"python{version}"
        program.rename(program.with_name(f"{program.name}.program"))
        program.write_text(starter)
        program.chmod(0o755)

    what = f"Python {version} for {machine}, of Debian's {SUITE}"
    folder = ensure("matrix-python", "\0".join([SUITE, packages, starter]), fill, what=what)
    return str(folder / "usr" / "bin" / f"python{version}")


def emulator(machine: str) -> Path:
    """QEMU's program that runs programs for `machine` on this one."""
    name = f"qemu-{machine}"

    def fill(folder: Path) -> None:
        _unpacked(_EMULATOR, folder, platform.machine())
        for other in (folder / "usr" / "bin").iterdir():
            if other.name != name:
                other.unlink()  # of 30 architectures

    what = f"{_EMULATOR}, of Debian's {SUITE}"
    folder = ensure("matrix-emulator", "\0".join([SUITE, _EMULATOR, name]), fill, what=what)
    return folder / "usr" / "bin" / name


def _unpacked(packages: str, folder: Path, machine: str) -> None:
    command = ["--quiet", "--variant=extract", "--format=directory", f"--include={packages}"]
    # Nothing of it is run.
    command += [f"--architectures={_ARCHITECTURES[machine]}", "--skip=check/qemu"]
    # A mirror that lags behind serves as well: what counts is that Debian signed it.
    command += ["--aptopt=Acquire::Check-Valid-Until false", SUITE, str(folder)]
    try:
        if os.geteuid() == 0:
            needs.install("mmdebstrap")
        mmdebstrap(command, f"{packages} of Debian's {SUITE} cannot be fetched")
    except NodeError as error:
        raise Missing(str(error)) from None
