"""The commit that is checked out: what git says of it, and its files in a folder of their own.

Built is what is in the commit, with its time and with modes that no umask changes: what lies about in the
checkout is not looked at.
"""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from release.checks import Commit, ReleaseError
from testbed.paths import CHECKOUT

# What of a user's own settings would change what git prints or the bytes of files.
_SETTINGS: Final = ("core.autocrlf=false", "core.eol=lf", "tar.umask=0022", "core.quotePath=true")
_TAGS: Final = "--format=%(refname:short) %(objectname) %(*objectname)"


def commit() -> Commit:
    """What is checked out, and how the tree differs from it."""
    said, seconds = _git("show", "--no-patch", "--format=%H %ct", "HEAD").decode().split()
    changes = _git("status", "--porcelain", "--untracked-files=normal").decode().splitlines()
    lines = _git("for-each-ref", _TAGS, "refs/tags/v*").decode().splitlines()
    # Of an annotated tag the last is the commit, of another one the only.
    tags = {words[0]: words[-1] for words in map(str.split, lines)}
    return Commit(said, int(seconds), tuple(changes), tags)


def export(of: str, folder: Path) -> None:
    """Write the files of a commit into a folder, which is made."""
    packed = _git("archive", "--format=tar", of)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def _git(*arguments: str) -> bytes:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    done = subprocess.run(["git", *settings, *arguments], cwd=CHECKOUT, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ReleaseError(
            f"git {arguments[0]}: {said[0] if said else 'failed'}: a release is made in a clone"
        )
    return done.stdout
