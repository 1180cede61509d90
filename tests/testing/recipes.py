"""The recipes of examples/, as their users get them: the documents of a file, and the programs in them.

Pure but for reading the files, and for `run`, which runs a program as a container would, in a folder.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.paths import CHECKOUT
from testing import manifests

Json = dict[str, Any]
HUB: Final = "docker.io"
PYTHON: Final = f"{HUB}/library/python:3.13-alpine"  # as they name it
TERMINATION_LOG: Final = "/dev/termination-log"


def documents(name: str) -> Iterator[Json]:
    """What examples/NAME.yaml holds, the items of Lists one by one."""
    for body in manifests.load_all((CHECKOUT / "examples" / f"{name}.yaml").read_text()):
        yield from body["items"] if body["kind"] == "List" else [body]


def document(name: str, kind: str, called: str = "") -> Json:
    """The one of this kind (and name)."""
    (found,) = (
        body for body in documents(name) if body["kind"] == kind and called in ("", body["metadata"]["name"])
    )
    return found


def pods(name: str) -> list[Json]:
    """The pod specs in a recipe, of DaemonTasks and of Jobs."""
    found = []
    for body in documents(name):
        spec = body.get("spec", {})
        template = spec.get("template") or spec.get("target", {}).get("job", {}).get("template")
        if template is not None:
            found.append({"restartPolicy": "Never", **template["spec"]})
    return found


def program(name: str) -> tuple[str, list[str]]:
    """(text, interpreter) of the one program of a recipe: of its ConfigMap, of `sh -c` or `python3 -c`."""
    for body in documents(name):
        if body["kind"] == "ConfigMap":
            ((file, text),) = body["data"].items()
            assert file.endswith(".py")
            return text, ["python3"]
    command = pods(name)[0]["containers"][0]["command"]
    assert command[1] == "-c"
    return command[2], [command[0]]


def variables(name: str) -> dict[str, str]:
    """What the manifest sets in the first container."""
    return {one["name"]: one["value"] for one in pods(name)[0]["containers"][0].get("env", ())}


def command(
    name: str, folder: Path, replaced: Mapping[str, str] | None = None, shell: Sequence[str] = ()
) -> list[str]:
    """The command line that runs the program here. Of its text what is `replaced` is a place of its own: the
    termination log is `folder`/told. `shell` in place of `sh`."""
    text, interpreter = program(name)
    for old, new in {TERMINATION_LOG: str(folder / "told"), **(replaced or {})}.items():
        assert old in text or old == TERMINATION_LOG, old
        text = text.replace(old, new)
    file = folder / f"{name}.program"
    file.write_text(text)
    python = [sys.executable, "-I"]  # nothing of ours to import
    return [*(python if interpreter == ["python3"] else shell or interpreter), str(file)]


def run(
    name: str,
    folder: Path,
    env: Mapping[str, str] | None = None,
    replaced: Mapping[str, str] | None = None,
    shell: Sequence[str] = (),
) -> tuple[int, str, str]:
    """(exit code, termination message, what was printed) of one run."""
    told = folder / "told"
    told.unlink(missing_ok=True)
    environment = {"PATH": os.environ["PATH"], **variables(name), **(env or {})}
    done = subprocess.run(
        command(name, folder, replaced, shell),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    message = told.read_text() if told.exists() else ""
    return done.returncode, message, done.stdout + done.stderr
