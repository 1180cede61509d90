"""`make release` as its users run it: in clones of a repository that has this checkout as its one commit."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from testbed.paths import CHECKOUT

VERSION: Final = re.findall(r'^version = "(.+)"$', (CHECKOUT / "pyproject.toml").read_text(), re.MULTILINE)[0]
WHEEL: Final = f"caretaker-{VERSION}-py3-none-any.whl"
PLUGIN: Final = f"kubectl-caretaker-{VERSION}.tar.gz"
CHART: Final = f"caretaker-chart-{VERSION}.tgz"
REPOSITORY: Final = "https://github.com/owner/caretaker"
REGISTRY: Final = "ghcr.io/owner/caretaker"
BUILDER: Final = "https://builder.example.com/v1"
_GIT: Final = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "owner",
    "GIT_AUTHOR_EMAIL": "owner@example.com",
    "GIT_COMMITTER_NAME": "owner",
    "GIT_COMMITTER_EMAIL": "owner@example.com",
}


@dataclass(frozen=True)
class Clone:
    """A clone, and how its user works."""

    folder: Path
    umask: int = 0o022
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def dist(self) -> Path:
        """What a release writes."""
        return self.folder / "dist"

    def command(self, version: str, images: str) -> list[str]:
        """That of `make release`, which would make an environment for this clone."""
        names = ("--repository", REPOSITORY, "--registry", REGISTRY, "--builder", BUILDER)
        return [sys.executable, "-m", "release", version, *names, "--images", images]

    def start(self, version: str = VERSION, images: str = "none") -> subprocess.Popen[str]:
        """`make release`, without waiting for it."""
        return subprocess.Popen(
            self.command(version, images),
            cwd=self.folder,
            env={**os.environ, **_GIT, "PYTHONPATH": f"{self.folder / 'dev'}", **self.env},
            umask=self.umask,
            process_group=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def release(self, version: str = VERSION, images: str = "none") -> tuple[int, str, str]:
        """Exit code, stdout, stderr of `make release`."""
        process = self.start(version, images)
        out, err = process.communicate(timeout=1700)
        return process.returncode, out, err

    def released(self, images: str = "none") -> str:
        """What a release that succeeds says."""
        code, out, err = self.release(images=images)
        assert code == 0, out + err
        return out


def git(folder: Path, *arguments: str, umask: int = 0o022) -> str:
    """The stdout of git, which knows no user."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **_GIT},
        umask=umask,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {f.relative_to(folder).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def origin_in(parent: Path) -> Path:
    """A repository with one commit: this checkout as it is, with a CHANGELOG that has the version."""
    folder = parent / "caretaker"
    listed = git(CHECKOUT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (CHECKOUT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / name)
    page = folder / "CHANGELOG.md"
    page.write_text(page.read_text().replace("## [Unreleased]\n", f"## [{VERSION}] - 2026-11-27\n", 1))
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "Release")
    git(folder, "tag", "--annotate", f"v{VERSION}", "--message", VERSION)
    return folder


def first(origin: Path) -> Clone:
    """A clone beside it."""
    git(origin.parent, "clone", "--quiet", str(origin), "a")
    return Clone(origin.parent / "a", env={"TZ": "UTC"})


def another(origin: Path) -> Clone:
    """A clone of somebody else: shallow, without tags, with another umask, time zone and path, and something
    in dist/."""
    there = origin.parent / "other place"
    there.mkdir()
    shallow = ("clone", "--quiet", "--depth", "1", "--no-tags", f"file://{origin}", "b")
    git(there, *shallow, umask=0o077)
    clone = Clone(there / "b", umask=0o077, env={"TZ": "Asia/Kathmandu", "LC_ALL": "C"})
    clone.dist.mkdir()
    (clone.dist / "left").write_text("of yesterday")
    return clone
