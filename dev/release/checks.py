"""What keeps a commit from being a release, said in one line that tells what to do. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Wheels (PEP 440) and charts (SemVer) write anything longer in different ways.
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
# Where the version stands, beside the CHANGELOG: file -> what is in front of it.
PLACES: Final = {
    "pyproject.toml": (r'version = "(.+)"',),
    "operator/caretaker/__init__.py": (r'__version__ = "(.+)"',),
    "helm/caretaker/Chart.yaml": (r"version: (.+)", r"appVersion: (.+)"),
    "Dockerfile": (r"ARG VERSION=(.+)",),
}
_VALUE: Final = r'[:=( ]+["(]'  # where the value begins in a pattern of PLACES
CHANGELOG: Final = "CHANGELOG.md"
# What stands on the web and is written into files: no spaces, quotes or line ends.
_URL: Final = re.compile(r"https://[\w.-]+(/[\w./@-]+)?")
_REGISTRY: Final = re.compile(r"[\w.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")


class ReleaseError(Exception):
    """There is no release; the message is a line that says what to do."""


@dataclass(frozen=True)
class Commit:
    """What is checked out."""

    id: str
    seconds: int  # its time, since 1970
    changes: tuple[str, ...]  # of the tree, as `git status --porcelain` has them
    tags: Mapping[str, str]  # those that begin with v -> commit


@dataclass(frozen=True)
class Release:
    """What is released, and the names under which it will be found."""

    version: str
    commit: str
    seconds: int
    repository: str
    registry: str
    builder: str

    @property
    def downloads(self) -> str:
        """Where GitHub has the files of a release."""
        return f"{self.repository}/releases/download/v{self.version}"


def check_version(version: str, files: Mapping[str, str]) -> None:
    """`files`: the texts of PLACES. Raises ReleaseError where one has another version."""
    found = {
        f"{name}, {re.split(_VALUE, pattern)[0]}": said[1].strip()
        for name, patterns in PLACES.items()
        for pattern in patterns
        if (said := re.search(f"^{pattern}$", files[name], re.MULTILINE))
    }
    ours = next(iter(found.values()), "x.y.z")
    if not version:
        raise ReleaseError(f"VERSION is missing: make release VERSION={ours}")
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION={version} is not three numbers: make release VERSION={ours}")
    if len(found) < sum(map(len, PLACES.values())):
        raise ReleaseError(f"the version is not where it belongs: {', '.join(PLACES)} must have it")
    others = [f"{place}: {said}" for place, said in found.items() if said != version]
    if others:
        raise ReleaseError(
            f"VERSION={version} is not the version here ({'; '.join(others)}): "
            f"give that one, or set {version} there, run `make chart` and commit"
        )


def check_commit(version: str, commit: Commit) -> None:
    """Raises ReleaseError for a changed tree, and for tags that speak of another version or commit."""
    if commit.changes:
        more = f" and {len(commit.changes) - 1} more" if len(commit.changes) > 1 else ""
        raise ReleaseError(
            f"the tree is not the commit ({commit.changes[0].strip()}{more}): "
            "commit, stash or remove the changes"
        )
    tag = f"v{version}"
    here = sorted(name for name, target in commit.tags.items() if target == commit.id)
    if here and tag not in here:
        raise ReleaseError(
            f"the tag here is {', '.join(here)}, not {tag}: give its version, or check out {tag}"
        )
    if tag in commit.tags and tag not in here:
        raise ReleaseError(
            f"the tag {tag} is at {commit.tags[tag][:12]}, not here: "
            f"git checkout {tag}, or take a new version"
        )


def check_names(repository: str, registry: str) -> None:
    """Raises ReleaseError for names that nobody could fetch from."""
    if not _URL.fullmatch(repository) or repository.endswith("/"):
        raise ReleaseError(f"REPOSITORY={repository} is no address: REPOSITORY=https://github.com/OWNER/NAME")
    if not _REGISTRY.fullmatch(registry):
        raise ReleaseError(
            f"REGISTRY={registry} is no place of images: REGISTRY=ghcr.io/owner/name, in lower case"
        )


def section(changelog: str, version: str) -> str:
    """What the CHANGELOG says of the version; ReleaseError where it says nothing."""
    heading = rf"^## \[?{re.escape(version)}\]?(?: - .*)?\n"
    body = re.split(heading, changelog, maxsplit=1, flags=re.MULTILINE)
    text = re.split(r"^## ", body[-1], maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r"(?:^\[[^\]]+\]: .*\n?)+\Z", "", text, flags=re.MULTILINE).strip()
    if len(body) == 1 or not text:
        raise ReleaseError(
            f"{CHANGELOG} has nothing of {version}: head its lines `## [{version}] - YYYY-MM-DD`, and commit"
        )
    return text
