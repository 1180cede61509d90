"""What stands between Docker and runc where root lacks capabilities, and an engine that hangs."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from realnode import needs
from realnode.engine import Engine, runc_for
from realnode.errors import NodeError

ASKED = ["CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_SYS_TIME"]


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("--root R --log-format json create --bundle BUNDLE --pid-file P run", "config.json"),
        ("create --bundle=BUNDLE ID", "config.json"),
        ("--root R exec --process BUNDLE/process.json --detach ID", "process.json"),
    ],
)
@pytest.mark.parametrize("asked", [ASKED, ASKED[1:], ASKED[:2], ASKED[1:2]])
@pytest.mark.parametrize("lacking", [[], ASKED[1:2], ASKED[:2]], ids=len)
def test_runc_is_not_asked_for_what_root_lacks_and_for_all_else(
    tmp_path: Path, command: str, file: str, asked: list[str], lacking: list[str]
) -> None:
    runc, told = tmp_path / "runc", tmp_path / "told"
    runc.write_text(f'#!/bin/sh\necho "$*" > {told}\n')
    script = tmp_path / "script"
    script.write_text(runc_for(lacking, str(runc)))
    for program in (runc, script):
        program.chmod(0o755)
    spec = {"bounding": asked, "effective": asked}
    (tmp_path / file).write_text(json.dumps(spec, separators=(",", ":")))
    words = command.replace("BUNDLE", str(tmp_path)).split()
    subprocess.run([script, *words], check=True)
    left = [name for name in asked if name not in lacking]
    assert json.loads((tmp_path / file).read_text()) == {"bounding": left, "effective": left}
    assert told.read_text().split() == words


def test_other_commands_of_runc_change_nothing(tmp_path: Path) -> None:
    spec = '"CAP_SYS_ADMIN","CAP_SYS_RESOURCE","CAP_SYS_TIME"'
    (tmp_path / "config.json").write_text(spec)
    script = runc_for(ASKED, "/bin/true")
    subprocess.run(["sh", "-c", script, "runc", "delete", "--bundle", str(tmp_path)], check=True)
    assert (tmp_path / "config.json").read_text() == spec


@pytest.mark.parametrize(
    ("held", "lacking"),
    [
        ("000001ffffffffff", []),
        ("000001fffeffffff", ["CAP_SYS_RESOURCE"]),
        ("000001ffffdfefff", ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]),
    ],
)
def test_what_a_process_lacks_is_read_from_what_the_kernel_tells(
    tmp_path: Path, held: str, lacking: list[str]
) -> None:
    status = tmp_path / "status"
    status.write_text(f"CapPrm:\t000001ffffffffff\nCapEff:\t{held}\nCapBnd:\t000001ffffffffff\n")
    assert needs.lacking(status) == lacking


def test_an_engine_that_hangs_is_told_of_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when what hangs is a child that keeps the pipes open."""
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nsleep 3 &\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    since = time.monotonic()
    with pytest.raises(NodeError) as refused:
        Engine("docker").run("ps", seconds=0.2)
    assert time.monotonic() - since < 10
    assert str(refused.value) == "docker ps has not ended after 0.2 s: does `docker ps` answer?"
