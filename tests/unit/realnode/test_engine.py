"""What stands between Docker and runc where root lacks a capability."""

import json
import subprocess
from pathlib import Path

import pytest

from realnode.engine import RUNC

ASKED = ["CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SYS_TIME"]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("--root R --log-format json create --bundle BUNDLE --pid-file P run", "config.json"),
        ("create --bundle=BUNDLE ID", "config.json"),
        ("--root R exec --process BUNDLE/process.json --detach ID", "process.json"),
    ],
)
@pytest.mark.parametrize("asked", [ASKED, ASKED[1:], ASKED[:2]])
def test_runc_is_not_asked_for_what_root_lacks(
    tmp_path: Path, command: str, file: str, asked: list[str]
) -> None:
    runc, told = tmp_path / "runc", tmp_path / "told"
    runc.write_text(f'#!/bin/sh\necho "$*" > {told}\n')
    script = tmp_path / "script"
    script.write_text(RUNC.replace("/usr/sbin/runc", str(runc)))
    for program in (runc, script):
        program.chmod(0o755)
    spec = {"bounding": asked, "effective": asked}
    (tmp_path / file).write_text(json.dumps(spec, separators=(",", ":")))
    words = command.replace("BUNDLE", str(tmp_path)).split()
    subprocess.run([script, *words], check=True)
    left = [name for name in asked if name != "CAP_SYS_RESOURCE"]
    assert json.loads((tmp_path / file).read_text()) == {"bounding": left, "effective": left}
    assert told.read_text().split() == words


def test_other_commands_of_runc_change_nothing(tmp_path: Path) -> None:
    spec = '"CAP_SYS_ADMIN","CAP_SYS_RESOURCE","CAP_SYS_TIME"'
    (tmp_path / "config.json").write_text(spec)
    script = RUNC.replace("/usr/sbin/runc", "/bin/true")
    subprocess.run(["sh", "-c", script, "runc", "delete", "--bundle", str(tmp_path)], check=True)
    assert (tmp_path / "config.json").read_text() == spec
