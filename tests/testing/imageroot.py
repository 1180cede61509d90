"""An image of an OCI layout as a root file system, whose entry point runs in a chroot; this takes root.

QEMU's user emulation runs one of another architecture. It is started by name, and nothing is registered with
the kernel: what the entry point itself starts is not emulated.
"""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matrix import debian
from realnode.images import arch
from realnode.needs import SEARCH
from release.oci import Image, Layout

MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_EMULATOR: Final = "/emulator"
# Ended with its mounts. Nothing below / can be written but what is mounted there.
_RUN: Final = """set -e
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount -t tmpfs tmpfs "$0/tmp"
mount -o remount,bind,ro "$0"
exec "$1" --userspec="$2" "$0" "${@:3}"
"""


@dataclass(frozen=True)
class ImageRoot:
    """What a container of an image would see."""

    folder: Path
    config: Mapping[str, Any]
    architecture: str

    @classmethod
    def unpacked(cls, layout: Layout, image: Image, folder: Path) -> "ImageRoot":
        """Into an empty folder."""
        folder.chmod(0o755)
        for layer in layout.layers(image):
            subprocess.run(["tar", "-xf", layer, "-C", folder], check=True)
        assert not list(folder.rglob(".wh.*")), "files that a layer removes are not known here"
        for name in ("proc", "dev", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        architecture = image.platform.partition("-")[2]
        if architecture != arch():
            shutil.copy(debian.emulator(MACHINES[architecture]), f"{folder}{_EMULATOR}")
        return cls(folder, image.config["config"], architecture)

    def run(self, *arguments: str, variables: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
        """Run the entry point with these arguments, as its user, and with no more environment than it has."""
        command = self._command([*self.config["Entrypoint"], *arguments])
        env = dict(one.split("=", 1) for one in self.config["Env"]) | variables
        chroot = shutil.which("chroot", path=SEARCH) or "chroot"
        apart = ["unshare", "--mount", "bash", "-c", _RUN, str(self.folder)]
        words = [*apart, chroot, self.config["User"], *command]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=200)

    def _command(self, words: list[str]) -> list[str]:
        """The program, from the image's PATH; where it is a script, what runs it, as the kernel finds it."""
        (path,) = (one.partition("=")[2] for one in self.config["Env"] if one.startswith("PATH="))
        found = next(f"{place}/{words[0]}" for place in path.split(":") if self._has(f"{place}/{words[0]}"))
        if self.architecture == arch():
            return [found, *words[1:]]
        with Path(f"{self.folder}{self._followed(found)}").open("rb") as file:
            first = file.readline()
        script = [first[2:].decode().strip()] if first.startswith(b"#!") else []
        return [_EMULATOR, *script, found, *words[1:]]

    def _has(self, name: str) -> bool:
        return Path(f"{self.folder}{self._followed(name)}").is_file()

    def _followed(self, name: str) -> str:
        """Where links lead, within the image."""
        while (link := Path(f"{self.folder}{name}")).is_symlink():
            name = str(Path(name).parent / link.readlink())
        return name
