"""A control plane of programs that are there: what is taken, refused, or compiled all the same."""

import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from testbed import build
from testbed.compiling import BuildError

SAYS = {
    "etcd": "etcd Version: 3.6.8",
    "kube-apiserver": "Kubernetes v1.36.3",
    "kube-controller-manager": "Kubernetes v1.36.3",
    "kube-scheduler": "Kubernetes v1.36.3",
    "kubectl": "Client Version: v1.36.3",
    "kwok": "kwok version v0.8.0 go1.26 (linux/amd64)",
}
# It builds a file that says what was asked for.
GO = """\
case "$1" in
  version) echo "go version go1.30.0 linux/amd64" ;;
  env) printf 'go1.30.0\\nlinux\\namd64\\n' ;;
  build) said="$*"; while [ "$1" != -o ]; do shift; done; echo "$said" > "$2" ;;
esac
"""


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs of the versions that are wanted, and an empty cache."""
    for name, version in SAYS.items():
        program(tmp_path / "given" / name, f"echo '{version}'")
    program(tmp_path / "go" / "go", GO)
    monkeypatch.setenv("PATH", f"{tmp_path / 'go'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("KUBERNETES", "CONTROLPLANE", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "given"


def compiled(folder: Path) -> bool:
    return " build " in f" {(folder / 'kube-apiserver').read_text()}"


def test_the_versions_here_are_those_that_are_wanted() -> None:
    modules = (build.MODULE / "go.mod").read_text()
    for module, said in (
        ("go.etcd.io/etcd/server/v3", SAYS["etcd"]),
        ("k8s.io/kubernetes", SAYS["kube-apiserver"]),
        ("sigs.k8s.io/kwok", SAYS["kwok"]),
    ):
        (pinned,) = re.findall(rf"{module} (v\S+)\n", modules)
        assert str(pinned).removeprefix("v") in said, "a newer one: SAYS follows"


@pytest.mark.parametrize("variable", ["CONTROLPLANE", "KUBEBUILDER_ASSETS"])
def test_programs_of_the_same_version_are_taken(
    given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setenv(variable, str(given))
    folder = build.ensure()
    assert {name: (folder / name).resolve() for name in SAYS} == {name: given / name for name in SAYS}
    assert capsys.readouterr().out == f"taking Kubernetes 1.36.3 from {variable}={given}, not compiled\n"
    assert build.ensure() == folder  # and nothing is asked or said again
    assert capsys.readouterr().out == ""


def test_they_may_be_in_folders_as_in_path(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = given.with_name("other")
    other.mkdir()
    (given / "etcd").rename(other / "etcd")
    monkeypatch.setenv("CONTROLPLANE", f"{given}:{other}")
    assert (build.ensure() / "etcd").resolve() == other / "etcd"


def test_a_changed_program_is_asked_anew(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTROLPLANE", str(given))
    build.ensure()
    program(given / "etcd", "echo 'etcd Version: 3.5.100'")
    with pytest.raises(BuildError, match=r"is version 3\.5\.100, expected is 3\.6\.8"):
        build.ensure()


@pytest.mark.parametrize(
    ("name", "script", "said"),
    [
        (
            "kube-apiserver",
            "echo 'Kubernetes v1.35.4'",
            "is version 1.35.4, expected is 1.36.3: give that one, or",
        ),
        ("kubectl", "echo 'Client Version: v1.36.2'", "is version 1.36.2, expected is 1.36.3: "),
        ("kwok", "echo 'kwok version v0.7.0'", "is version 0.7.0, expected is 0.8.0: "),
        ("etcd", "echo hello", "is of no known version, expected is 3.6.8: "),
    ],
)
def test_another_version_is_refused_in_a_line_that_names_the_expected_one(
    given: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str, said: str
) -> None:
    program(given / name, script)
    monkeypatch.setenv("CONTROLPLANE", str(given))
    with pytest.raises(BuildError) as refused:
        build.ensure()
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"CONTROLPLANE: {given / name} {said}")


def test_what_does_not_run_is_refused(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (given / "etcd").write_bytes(b"\x7fELF of another machine")
    monkeypatch.setenv("CONTROLPLANE", str(given))
    with pytest.raises(BuildError, match=r"etcd does not run \(.*\); expected is 3\.6\.8"):
        build.ensure()


def test_what_is_missing_is_named_with_its_version(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (given / "kube-scheduler").unlink()
    monkeypatch.setenv("CONTROLPLANE", str(given))
    with pytest.raises(BuildError, match=r"has no kube-scheduler 1\.36\.3: give all folders, as in PATH"):
        build.ensure()


def test_of_another_kubernetes_its_own_versions_are_expected(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTROLPLANE", str(given))
    monkeypatch.setenv("KUBERNETES", "1.34")
    with pytest.raises(BuildError, match=r"etcd is version 3\.6\.8, expected is 3\.6\.4"):
        build.ensure()


def test_kwok_alone_is_compiled_where_it_is_missing(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (given / "kwok").unlink()
    monkeypatch.setenv("CONTROLPLANE", str(given))
    folder = build.ensure()
    assert "sigs.k8s.io/kwok/cmd/kwok" in (folder / "kwok").read_text()
    assert not compiled(folder)


def test_a_kwok_of_before_that_is_dropped_is_not_led_to(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer Go compiles one of its own; the other is removed, as nobody asks for it."""
    (given / "kwok").unlink()
    monkeypatch.setenv("CONTROLPLANE", str(given))
    before = (build.ensure() / "kwok").resolve()
    program(given.with_name("go") / "go", GO.replace("1.30", "1.31"))
    build.ensure()
    shutil.rmtree(before.parent)
    now = (build.ensure() / "kwok").resolve(strict=True)
    assert now != before


def test_assets_of_other_projects_are_not_in_the_way(
    given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """setup-envtest brings three programs, of any version."""
    for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
        (given / name).unlink()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(given))
    assert compiled(build.ensure())
    why, building, _ = capsys.readouterr().out.splitlines()
    assert "has no kube-controller-manager 1.36.3, no kube-scheduler 1.36.3: " in why
    assert building.startswith("building Kubernetes v1.36.3 (")
    assert building.endswith("; CONTROLPLANE=FOLDER takes one that is there)")


def test_what_is_compiled_already_needs_no_assets(
    given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build.ensure()
    capsys.readouterr()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(given))
    assert build.ensure() == folder
    assert capsys.readouterr().out == ""


def test_a_version_that_is_asked_for_by_name_is_compiled(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For nodes, which need more programs, and for rows of other versions."""
    monkeypatch.setenv("CONTROLPLANE", str(given))
    assert compiled(build.ensure("1.36"))
