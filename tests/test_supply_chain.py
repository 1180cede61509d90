"""What is shipped and what tests fetch: pinned, with hashes, of known licences, and listed truly."""

import ast
import functools
import hashlib
import json
import re
import shutil
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import bootstrap
import sbom

ROOT = Path(__file__).resolve().parents[1]
LOCK: dict[str, dict[str, Any]] = {
    package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
}
OURS = "caretaker"
REQUIREMENTS = sorted((ROOT / "dev").rglob("*.txt"))
RELEASE = re.compile(r"\d+(\.\d+)*(\.post\d+)?")
# Licences under which parts may be shipped along, in the words of packages.
LICENCES = {
    *("Apache-2.0", "Apache Software License", "Apache-2.0 AND MIT", "Apache-2.0 AND BSD-2-Clause"),
    *("MIT", "MIT License", "BSD-2-Clause", "BSD-3-Clause", "BSD License"),
    *("PSF-2.0", "Python Software Foundation License", "Mozilla Public License 2.0 (MPL 2.0)"),
}


def shipped() -> set[str]:
    """caretaker and all that it needs, on whatever platform and Python."""
    found: set[str] = set()
    todo = [OURS]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [needed["name"] for needed in LOCK[name].get("dependencies", ())]
    return found


def test_every_package_is_pinned_with_hashes_from_a_registry() -> None:
    sources = {json.dumps(package["source"]) for name, package in LOCK.items() if name != OURS}
    assert len(sources) == 1
    assert json.loads(sources.pop())["registry"].startswith("https://")
    for name, package in LOCK.items():
        if name == OURS:
            assert package["source"] == {"editable": "."}
            continue
        assert RELEASE.fullmatch(package["version"]), f"{name} {package['version']} is no release"
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        assert files, name
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", file["hash"]) for file in files), name


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_what_tests_fetch_is_pinned_with_hashes(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    entries = re.split(r"\n(?=\S)", "\n".join(lines).strip())
    assert entries
    for entry in entries:
        first, *hashes = entry.replace("\\\n", "").split("--hash=")
        assert re.match(r"[A-Za-z0-9._\[\]-]+==[^ ]+ ", first), entry
        assert hashes, entry
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one.strip()) for one in hashes), entry


@pytest.fixture
def swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An index with a manipulated uv and a matching hash."""
    _, version, _ = bootstrap.pinned()
    folder = tmp_path / "index" / "uv"
    folder.mkdir(parents=True)
    links = []
    for tag in ("manylinux_2_17_x86_64.manylinux2014_x86_64", "manylinux_2_17_aarch64", "macosx_11_0_arm64"):
        name = f"uv-{version}-py3-none-{tag}.whl"
        with zipfile.ZipFile(folder / name, "w") as wheel:
            wheel.writestr(f"uv-{version}.data/scripts/uv", "#!/bin/sh")
            wheel.writestr(f"uv-{version}.dist-info/METADATA", f"Name: uv\nVersion: {version}\n")
            wheel.writestr(f"uv-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        hashed = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        links.append(f'<a href="/uv/{name}#sha256={hashed}">{name}</a>')
    (folder / "index.html").write_text("\n".join(links))
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        yield
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("way", [bootstrap.by_venv, bootstrap.by_download], ids=["pip", "download"])
def test_a_uv_that_is_not_ours_is_not_taken(
    swapped: None, way: Callable[[str], bool], tmp_path: Path
) -> None:
    """Even though the hash of the index matches."""
    assert not way(str(tmp_path / "uv"))
    assert not (tmp_path / "uv" / "bin" / "uv").exists()


@pytest.mark.slow
def test_a_uv_without_uvx_is_not_taken_as_whole(
    swapped: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, programs = tmp_path / "path", tmp_path / "uv" / "bin"
    for folder in (path, programs):
        folder.mkdir(parents=True)
    for name in bootstrap.PREREQUISITES:
        (path / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(path))
    for name in ("uv", "uvx"):
        (programs / name).touch()
    assert bootstrap.main(str(tmp_path / "uv")) == 0
    (programs / "uvx").unlink()
    assert bootstrap.main(str(tmp_path / "uv")) == 1  # it is fetched anew, and the index has been swapped
    assert capsys.readouterr().err.endswith("then make again\n")


def test_go_programs_have_sums_of_all_that_they_take() -> None:
    found = [file for file in (ROOT / "dev").rglob("go.mod") if "node_modules" not in file.parts]
    modules = [file for file in found if "require" in file.read_text()]
    assert modules
    assert [file for file in modules if not file.with_name("go.sum").exists()] == []


def test_what_is_shipped_is_under_known_licences() -> None:
    known = {}
    for name in sorted(shipped()):
        try:
            about = metadata.distribution(name).metadata
        except metadata.PackageNotFoundError:  # of another platform or Python
            continue
        found = [one.get("expression") or one["license"]["name"] for one in sbom.licences(about)]
        known[name] = found
    assert known[OURS] == ["Apache-2.0"]
    assert {name: found for name, found in known.items() if not found or not set(found) <= LICENCES} == {}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """The bill of what is installed here."""
    return sbom.bill(metadata.distributions())


class TestBill:
    def test_it_lists_what_is_installed_in_the_version_of_the_lock(self, made: dict[str, Any]) -> None:
        main = made["metadata"]["component"]
        assert (main["name"], main["version"]) == (OURS, metadata.version(OURS))
        listed = {one["name"]: one["version"] for one in made["components"]}
        assert {name: LOCK[name]["version"] for name in listed} == listed
        here = {one for one in shipped() if any(metadata.distributions(name=one))}
        assert here - {OURS} <= set(listed)

    def test_every_reference_leads_to_one_component(self, made: dict[str, Any]) -> None:
        assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.6", 1)
        components = [made["metadata"]["component"], *made["components"]]
        references = {one["bom-ref"] for one in components}
        assert len(references) == len(components)
        assert len(made["dependencies"]) == len(components)
        assert {one["ref"] for one in made["dependencies"]} == references
        assert {ref for one in made["dependencies"] for ref in one["dependsOn"]} <= references
        ours = next(one for one in made["dependencies"] if one["ref"] == components[0]["bom-ref"])
        names = {ref.removeprefix("pkg:pypi/").partition("@")[0] for ref in ours["dependsOn"]}
        assert {"kopf", "boto3", "kubernetes"} <= names
        assert re.fullmatch("urn:uuid:[0-9a-f-]{36}", made["serialNumber"])

    def test_the_same_content_gives_the_same_bytes(self) -> None:
        some = [metadata.distribution(name) for name in (OURS, "kopf", "boto3")]
        texts = {json.dumps(sbom.bill(found)) for found in (some, some[::-1])}
        assert len(texts) == 1
        assert json.dumps(sbom.bill(some[:2])) not in texts

    def test_without_caretaker_it_says_so(self) -> None:
        with pytest.raises(ValueError, match="caretaker is not installed"):
            sbom.bill([])


class TestBillOfTheProbe:
    def test_it_lists_the_probe_alone(self, tmp_path: Path) -> None:
        made = sbom.bill_of_part([installed(tmp_path, "caretaker_probe/__init__.py")], "caretaker_probe")
        main = made["metadata"]["component"]
        assert (main["name"], main["version"]) == ("caretaker-probe", "1.2.3")
        assert main["purl"] == main["bom-ref"] == "pkg:pypi/caretaker@1.2.3#caretaker_probe"
        assert main["licenses"] == [{"expression": "Apache-2.0"}]
        assert made["components"] == []
        assert made["dependencies"] == [{"ref": main["bom-ref"], "dependsOn": []}]

    def test_a_package_that_is_not_there_has_none(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no package caretaker_probe"):
            sbom.bill_of_part([installed(tmp_path, "caretaker/__init__.py")], "caretaker_probe")

    def test_the_probe_imports_nothing_that_would_have_to_be_listed(self) -> None:
        names = set()
        for file in (ROOT / "operator" / "caretaker_probe").glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom):
                    names.add((node.module or "").partition(".")[0])
                elif isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
        assert len(names) > 5
        assert names - sys.stdlib_module_names == {"caretaker_probe"}


def installed(folder: Path, file: str) -> metadata.Distribution:
    """caretaker as a wheel installs it, with one file."""
    about = folder / "caretaker-1.2.3.dist-info"
    about.mkdir()
    head = "Metadata-Version: 2.4\nName: caretaker\nVersion: 1.2.3\nLicense-Expression: Apache-2.0\n"
    (about / "METADATA").write_text(head)
    (about / "RECORD").write_text(f"{file},,\n")
    (folder / file).parent.mkdir()
    (folder / file).touch()
    (found,) = metadata.distributions(path=[str(folder)])
    return found
