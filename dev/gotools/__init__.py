"""Programs written in Go that tests and commands use, built once from the Go module proxy.

Each is a folder here with a go.mod that names one `tool` and a go.sum: versions are pinned by these two
alone, and `go get -tool PACKAGE@VERSION` in the folder changes them. Where no such program exists, the folder
has a main.go of ours, and its `tool` is the module itself. Two comments in go.mod may say more: `// tags:
NAME` the build tags, `// on demand` that `make test` does not need it. A tool is built into the user's cache
for what it depends on. The checkout is not written to.
"""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

from awsdoubles.cached import ensure as cached
from testbed import compiling
from testbed.compiling import BuildError

FOLDER: Final = Path(__file__).parent
FLAGS: Final = ("-trimpath", "-ldflags", "-s -w")


def known() -> tuple[str, ...]:
    """The names of the tools."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/go.mod")))


def usual() -> tuple[str, ...]:
    """Those that tests need."""
    return tuple(name for name in known() if not _said(FOLDER / name, r"on demand()"))


def path(name: str) -> Path:
    """The program `name`, which is built when the cache lacks it; progress goes to stdout.

    Raises BuildError when there is no such tool, no `go`, or when it cannot be built.
    """
    if name not in known():
        raise BuildError(f"there is no tool {name}; known are {', '.join(known())}")
    go, module = compiling.compiler(), FOLDER / name
    files = [module / "go.mod", module / "go.sum", *sorted(module.glob("*.go"))]
    depends_on = "\0".join([*(f.read_text() for f in files), *FLAGS, compiling.toolchain(go, module)])
    fill = partial(_build, name, go, module)
    return cached(f"gotools-{name}", depends_on, fill, what=f"{name}, by compiling it") / name


def paths(names: Iterable[str]) -> list[Path]:
    """The programs, in this order."""
    return [path(name) for name in names]


def package(module: Path) -> str:
    """The import path that go.mod's `tool` line names."""
    found = re.findall(r"^tool (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    if len(found) != 1:
        raise BuildError(f"{module / 'go.mod'} must have one line `tool PACKAGE`: go get -tool PACKAGE")
    return str(found[0])


def tags(module: Path) -> list[str]:
    """The flags for what go.mod's comment `// tags: ` names."""
    return [f"-tags={found}" for found in _said(module, r"tags: (\S+)")]


def _said(module: Path, comment: str) -> list[str]:
    return re.findall(rf"^// {comment}$", (module / "go.mod").read_text(), re.MULTILINE)


def _build(name: str, go: str, module: Path, folder: Path) -> None:
    # Read-only: a go.mod that lacks something fails, and is not completed with versions of today.
    compiling.build(go, module, package(module), ["-mod=readonly", *tags(module), *FLAGS], folder / name)
