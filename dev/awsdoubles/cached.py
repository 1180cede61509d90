"""Fetched programs in the user's cache: each kind in a folder of its own, made once, by one process.

Inputs: a name, the text that all of it depends on, and a function that fills an empty folder. A folder
appears under its final name only when it is whole. It must not write into the checkout.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from testbed.paths import cache

KEEP_UNUSED_SECONDS: Final = 14 * 24 * 3600


class DoubleError(Exception):
    """A double cannot be fetched or started; the message says why and what mends it."""


def ensure(name: str, depends_on: str, fill: Callable[[Path], None], *, what: str) -> Path:
    """Return the folder of `name` for these dependencies, filling it first if the cache lacks it."""
    base = cache().with_name(name)
    folder = base / hashlib.sha256(depends_on.encode()).hexdigest()[:16]
    if not folder.exists():
        base.mkdir(parents=True, exist_ok=True)
        with (base / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _make(folder, fill, what)
    os.utime(folder)
    return folder


def _make(folder: Path, fill: Callable[[Path], None], what: str) -> None:
    print(f"fetching {what} (once)", flush=True)
    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        fill(work)
        work.chmod(0o755)
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"fetched {what} in {time.monotonic() - started:.0f} s", flush=True)
    oldest = time.time() - KEEP_UNUSED_SECONDS
    for entry in folder.parent.iterdir():
        if entry.is_dir() and entry != folder and entry.stat().st_mtime < oldest:
            shutil.rmtree(entry, ignore_errors=True)
