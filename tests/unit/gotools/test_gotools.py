"""Go tools that are built once, and pinned."""

import os
import re
import stat
from pathlib import Path

import pytest

import gotools
from gotools.__main__ import main
from testbed.compiling import BuildError

GO = """#!/bin/sh
case "$1" in
  version) echo "go version go1.30.0 linux/amd64" ;;
  env) printf 'go1.30.0\\nlinux\\namd64\\n' ;;
  build) echo built >> "$BUILDS"; echo "$*"; while [ "$1" != -o ]; do shift; done; echo tool > "$2" ;;
esac
"""


@pytest.fixture(autouse=True)
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each build, by a `go` that only writes a file."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(go.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    return tmp_path / "builds"


@pytest.mark.parametrize("name", gotools.known())
def test_a_tool_is_pinned_by_version_and_hash(name: str) -> None:
    module = gotools.FOLDER / name
    package, text = gotools.package(module), (module / "go.mod").read_text()
    required = re.findall(r"^\s*(?:require )?(\S+) (v\S+)", text, re.MULTILINE)
    ours = f"module {package}\n" in text  # then what its main.go imports is pinned
    owners = [(path, version) for path, version in required if ours or package.startswith(f"{path}/")]
    assert owners
    hashes = (module / "go.sum").read_text()
    assert [path for path, version in owners if f"{path} {version} h1:" not in hashes] == []


def test_a_tool_is_built_once_and_its_path_alone_printed(
    builds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (main(["helm"]), main(["helm"])) == (0, 0)
    printed = capsys.readouterr()
    first, second = printed.out.splitlines()
    assert first == second
    assert Path(first).read_text() == "tool\n"
    assert builds.read_text() == "built\n"
    assert "fetched helm" in printed.err


def test_build_tags_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = tmp_path / "said"
    (tmp_path / "bin" / "go").write_text(GO.replace("echo built", f'echo "$*" > {said}; echo built'))
    assert main(["promtool"]) == 0
    assert " -tags=remove_all_sd " in said.read_text()
    assert main(["helm"]) == 0
    assert "-tags" not in said.read_text()


def test_what_no_test_needs_is_built_only_when_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    built = {Path(line).name for line in capsys.readouterr().out.splitlines()}
    assert {"helm", "promtool"} <= built
    assert "prometheus" not in built


def test_a_tool_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["helmet"]) == 1
    assert "no tool helmet; known are" in capsys.readouterr().err


def test_a_module_without_a_tool_is_told(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    with pytest.raises(BuildError, match="go get -tool"):
        gotools.package(tmp_path)
