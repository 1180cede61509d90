"""Check what must be on the machine and fetch uv, which fetches the rest.

Usage: python3 dev/bootstrap.py FOLDER. Leaves `FOLDER/bin/uv` and uvx unless a uv is on the PATH. It runs
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
import tempfile
import urllib.parse
import urllib.request
import zipfile

# Which uv, and the hashes of its files: an index that has been swapped has others.
PINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "image", "tools.txt")
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
    if shutil.which("uv") or all(os.path.exists(os.path.join(folder, "bin", name)) for name in ("uv", "uvx")):
        return 0
    for way in (by_venv, by_pip, by_download):
        if way(folder):
            return 0
    print("uv cannot be fetched: python3 -m pip install --user uv, then make again", file=sys.stderr)
    return 1


def by_venv(folder):
    """The cleanest: an environment of its own, whatever Debian says about the system's (PEP 668)."""
    return run([sys.executable, "-m", "venv", "--clear", folder]) and install(
        [os.path.join(folder, "bin", "python"), "-m", "pip", "install"]
    )


def by_pip(folder):
    """Debian splits venv from pip; --target is exempt from PEP 668."""
    shutil.rmtree(folder, ignore_errors=True)
    return install([sys.executable, "-m", "pip", "install", "--target", folder])


def install(pip):
    """Have pip take uv alone, by its hashes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write(pinned()[0])
        pins.flush()
        return run([*pip, "--quiet", "--no-deps", "--require-hashes", "-r", pins.name])


def pinned():
    """uv's entry of the pins, its version and its hashes."""
    with open(PINS) as file:
        entry = re.search(r"^uv==([^ ]+) (?:.*\\\n)+.*\n", file.read(), re.MULTILINE)
    return entry.group(0), entry.group(1), re.findall("--hash=sha256:([0-9a-f]{64})", entry.group(0))


def by_download(folder):
    """Debian's bare python3 has neither: take the wheel from the package index (PEP 503)."""
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
    page = index.rstrip("/") + "/uv/"
    _, version, hashes = pinned()
    try:
        link = re.search('href="([^"#]*/' + wheel_pattern(version) + ')[#"]', read(page).decode())
        if link is None:
            print(f"uv from {page}: no wheel for this machine", file=sys.stderr)
            return False
        wheel = read(urllib.parse.urljoin(page, html.unescape(link.group(1))))
    except OSError as error:
        print(f"uv from {page}: {error}", file=sys.stderr)
        return False
    if hashlib.sha256(wheel).hexdigest() not in hashes:
        print(f"uv from {page}: the wheel has none of the hashes in {PINS}", file=sys.stderr)
        return False
    programs = os.path.join(folder, "bin")
    os.makedirs(programs, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for name in ("uv", "uvx"):
            target = os.path.join(programs, name)
            with open(target, "wb") as out:
                out.write(archive.read(f"uv-{version}.data/scripts/{name}"))
            os.chmod(target, os.stat(target).st_mode | stat.S_IXUSR)
    return True


def wheel_pattern(version):
    """The wheel for this machine."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    if sys.platform == "darwin":
        machine = machine.replace("aarch64", "arm64")
        return rf'uv-{re.escape(version)}-py3-none-macosx_[^"#]*_{machine}\.whl'
    return rf'uv-{re.escape(version)}-py3-none-manylinux[^"#]*_{machine}[^"#]*\.whl'


def read(url):
    """GET a URL."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read()


def run(command):
    """Whether a command succeeded; its errors are those of one way out of three, so not shown."""
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
