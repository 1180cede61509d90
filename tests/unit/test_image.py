"""The Dockerfile agrees with the rest of the project: what no build would complain of."""

import functools
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import bootstrap
from realnode.images import TARGETS
from testbed.paths import CHECKOUT

DOCKERFILE: Final = (CHECKOUT / "Dockerfile").read_text()
PROJECT: Final[dict[str, Any]] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
PURE: Final = re.compile(r"-none-any\.whl$")
# Of the Python that the image has; an ABI of all later ones counts, too.
TAGS: Final = r"-(cp313-cp313|cp3\d+-abi3)-(manylinux|musllinux)\S*"


GLIBC: Final = {"bookworm": "2_36", "trixie": "2_41"}


def stages() -> dict[str, str]:
    """The text of each, by name."""
    texts = re.split(r"^(?=FROM )", DOCKERFILE, flags=re.MULTILINE)[1:]
    return {text.splitlines()[0].rpartition(" AS ")[2]: text for text in texts}


@functools.cache
def locked() -> dict[str, dict[str, Any]]:
    packages = tomllib.loads((CHECKOUT / "uv.lock").read_text())["package"]
    return {package["name"]: package for package in packages}


def needed() -> set[str]:
    """The packages that run on Linux, from the project's own dependencies on."""
    known, found, todo = locked(), set[str](), [PROJECT["name"]]
    while todo:
        for one in known[todo.pop()].get("dependencies", []):
            marker = one.get("marker", "")
            if one["name"] not in found and "win32" not in marker and "python_full_version" not in marker:
                found.add(one["name"])
                todo.append(one["name"])
    return found


def test_the_operator_is_what_a_build_without_a_target_makes() -> None:
    assert list(stages())[-1] == "operator"
    assert "probe" in stages()


def test_either_platform_builds_the_other_without_emulation() -> None:
    """Of the target's platform are the stages that are images, and nothing runs in those."""
    for name, text in stages().items():
        words = text.split()
        if words[1] in stages():
            continue
        platform = "TARGETPLATFORM" if name in TARGETS else "BUILDPLATFORM"
        assert words[1] == f"--platform=${platform}"
        assert name not in TARGETS or not re.search(r"^RUN", text, re.MULTILINE)


def test_wheels_are_for_the_glibc_of_the_base() -> None:
    base = re.search(r"^ARG PYTHON=\S+-slim-(\w+)$", DOCKERFILE, re.MULTILINE)
    assert base
    assert re.findall(r"-manylinux_(\w+)", DOCKERFILE) == [GLIBC[base[1]]]


def test_the_images_version_is_the_projects() -> None:
    assert set(re.findall(r"^ARG VERSION=(.+)$", DOCKERFILE, re.MULTILINE)) == {PROJECT["version"]}


def test_the_images_run_as_a_user_that_has_a_name_and_nobody_asks_after_their_health() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["65532:65532"] * 2
    assert len(re.findall(r"caretaker:x:65532:65532:.* >> /etc/passwd", DOCKERFILE)) == 2
    assert not re.search(r"^HEALTHCHECK", DOCKERFILE, re.MULTILINE)


def test_the_builder_is_sent_what_it_copies_and_no_more() -> None:
    ignore = (CHECKOUT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignore if line.startswith("!")}
    copied: set[str] = set()
    for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        copied |= set(words.split()[:-1])
    assert "*" in ignore
    assert {one if one in sent else str(Path(one).parent) for one in copied} == sent


def test_what_builds_is_pinned_as_it_is_for_developers() -> None:
    _, version, hashes = bootstrap.pinned()
    assert len(hashes) > 10
    pinned = re.search(r"^uv==(\S+)", (CHECKOUT / "dev" / "image" / "tools.in").read_text(), re.MULTILINE)
    assert pinned
    assert pinned[1] == version


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_dependency_has_a_wheel_so_that_nothing_is_compiled(machine: str) -> None:
    known = locked()
    fits = re.compile(TAGS + machine)
    lacking = [
        name
        for name in sorted(needed())
        if not any(
            PURE.search(wheel["url"]) or fits.search(wheel["url"]) for wheel in known[name].get("wheels", [])
        )
    ]
    assert lacking == []
