"""The cgroup that holds a node's pods, in version 1's hierarchies or version 2's one.

Input: a name below the root. The kubelet makes what is below; `remove` drops all of it, what a killed run
left behind included. It must not touch other groups.
"""

import contextlib
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
REMOVE_SECONDS: Final = 5.0
# What the kubelet asks version 2 for in its root group.
CONTROLLERS: Final = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")


def make(name: str) -> None:
    """An empty group, in every hierarchy."""
    for hierarchy in _hierarchies():
        if (hierarchy / "cgroup.subtree_control").exists():
            _delegate(hierarchy)
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        # A group without CPUs and memory nodes takes no process (cpuset(7)); version 2 inherits them.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / file).exists() and hierarchy != ROOT:
                (folder / file).write_text((hierarchy / file).read_text())


def remove(name: str) -> None:
    """Drop the group and those below it; the kernel takes a moment to let go of what ran there."""
    deadline = time.monotonic() + REMOVE_SECONDS
    left = [hierarchy / name for hierarchy in _hierarchies()]
    while left:
        for folder in left:
            for group in sorted(folder.glob("**/"), key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()
        left = [folder for folder in left if folder.exists()]
        if time.monotonic() > deadline:
            return
        if left:
            time.sleep(0.1)


def _delegate(hierarchy: Path) -> None:
    """Let groups below have the controllers; those that the kernel lacks, or has given away, stay out."""
    for controller in CONTROLLERS:
        with contextlib.suppress(OSError):
            (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [folder for folder in ROOT.iterdir() if folder.is_dir() and (folder / "cgroup.procs").exists()]
