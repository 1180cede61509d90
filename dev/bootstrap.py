"""Check what must be on the machine and fetch uv, which fetches the rest.

Usage: python3 dev/bootstrap.py FOLDER. Leaves `FOLDER/bin/uv` unless a uv is on the PATH. It runs
before anything is installed: the standard library only, and no syntax newer than Python 3.6, so that
an old Python is told its age instead of a syntax error.
"""

import hashlib
import html
import io
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import urllib.parse
import urllib.request
import zipfile

UV = "0.13.8"
OLDEST_PYTHON = (3, 11)
PREREQUISITES = {
    "git": "apt-get install git",
    "make": "apt-get install make",
    "go": "apt-get install golang-go, or https://go.dev/dl/ for Go 1.21 or newer",
}


def main(folder):
    """Exit 1 with one line per missing prerequisite, or leave a usable uv."""
    missing = [f"{name} is missing: {mend}" for name, mend in PREREQUISITES.items() if not shutil.which(name)]
    if sys.version_info < OLDEST_PYTHON:
        mend = "apt-get install python3 on Debian 12 or newer, or https://www.python.org/downloads/"
        missing.append(f"Python {platform.python_version()} is older than 3.11: {mend}")
    for line in missing:
        print(line, file=sys.stderr)
    if missing:
        return 1
    if shutil.which("uv") or os.path.exists(os.path.join(folder, "bin", "uv")):
        return 0
    for way in (by_venv, by_pip, by_download):
        if way(folder):
            return 0
    print("uv cannot be fetched: python3 -m pip install --user uv, then make again", file=sys.stderr)
    return 1


def by_venv(folder):
    """The cleanest: an environment of its own, whatever Debian says about the system's (PEP 668)."""
    return run([sys.executable, "-m", "venv", "--clear", folder]) and run(
        [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", "uv==" + UV]
    )


def by_pip(folder):
    """Debian splits venv from pip; --target is exempt from PEP 668."""
    shutil.rmtree(folder, ignore_errors=True)
    return run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "uv==" + UV])


def by_download(folder):
    """Debian's bare python3 has neither: take the wheel from the package index (PEP 503)."""
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
    page = index.rstrip("/") + "/uv/"
    try:
        link = re.search('href="([^"#]*/' + wheel_pattern() + ')#sha256=([0-9a-f]{64})"', read(page).decode())
        if link is None:
            print(f"uv from {page}: no wheel for this machine", file=sys.stderr)
            return False
        wheel = read(urllib.parse.urljoin(page, html.unescape(link.group(1))))
    except OSError as error:
        print(f"uv from {page}: {error}", file=sys.stderr)
        return False
    if hashlib.sha256(wheel).hexdigest() != link.group(2):
        print(f"uv from {page}: the wheel does not have the listed hash", file=sys.stderr)
        return False
    target = os.path.join(folder, "bin", "uv")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive, open(target, "wb") as out:
        out.write(archive.read(f"uv-{UV}.data/scripts/uv"))
    os.chmod(target, os.stat(target).st_mode | stat.S_IXUSR)
    return True


def wheel_pattern():
    """The wheel for this machine."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    if sys.platform == "darwin":
        machine = machine.replace("aarch64", "arm64")
        return rf'uv-{re.escape(UV)}-py3-none-macosx_[^"#]*_{machine}\.whl'
    return rf'uv-{re.escape(UV)}-py3-none-manylinux[^"#]*_{machine}[^"#]*\.whl'


def read(url):
    """GET a URL."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read()


def run(command):
    """Whether a command succeeded; its errors are those of one way out of three, so not shown."""
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
