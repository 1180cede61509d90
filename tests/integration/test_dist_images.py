"""`make release` with images: what is in dist/, and each image with a root that cannot be written."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import chart
from realnode.images import TARGETS
from release.oci import Image, Layout
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.dist import CHART, REGISTRY, VERSION, Clone, digests, first, git, origin_in
from testing.imageroot import ImageRoot

# They take root on Linux; buildah is installed where it is missing.
IMAGES: Final = "debian" if sys.platform == "linux" and not os.geteuid() else "none"
ELF: Final = {"amd64": 62, "arm64": 183}  # e_machine

# A build of four images.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with dist/."""
    clone = first(origin_in(tmp_path_factory.mktemp("origin")))
    clone.released(IMAGES)
    return clone


def test_in_ci_a_release_has_images() -> None:
    assert IMAGES == "debian" or "CI" not in os.environ


class TestImages:
    __test__ = IMAGES != "none"

    @pytest.mark.parametrize("target", ["operator", "probe"])
    def test_a_layout_has_one_index_of_platforms_and_all_that_it_names(
        self, made: Clone, target: str
    ) -> None:
        folder = made.dist / "images" / target
        (top,) = json.loads((folder / "index.json").read_text())["manifests"]
        assert top["mediaType"] == "application/vnd.oci.image.index.v1+json"
        assert top["annotations"] == {"org.opencontainers.image.ref.name": VERSION}
        named = {top["digest"]}
        listed = blob(folder, top["digest"])["manifests"]
        platforms = [one["platform"] for one in listed]
        assert platforms == [{"os": "linux", "architecture": arch} for arch in ("amd64", "arm64")]
        for one in listed:
            manifest = blob(folder, one["digest"])
            about = blob(folder, manifest["config"]["digest"])
            assert about["config"]["Labels"]["org.opencontainers.image.version"] == VERSION
            assert about["config"]["Labels"]["org.opencontainers.image.revision"] == head(made)
            assert about["config"]["User"] == "65532:65532"
            assert about["architecture"] == one["platform"]["architecture"]
            named |= {one["digest"], manifest["config"]["digest"]}
            named |= {layer["digest"] for layer in manifest["layers"]}
        blobs = {f"sha256:{file.name}" for file in (folder / "blobs" / "sha256").iterdir()}
        assert blobs == named

    def test_the_workflow_checks_all_files_and_offers_those_that_verify_in_one_folder(
        self, made: Clone, tmp_path: Path
    ) -> None:
        workflow = (CHECKOUT / ".github" / "workflows" / "release.yml").read_text()
        (check,) = re.findall(r"run: (cd dist && sha256sum .+)", workflow)
        assert done(check, made.folder) == ""
        lists = [made.dist / name for name in ("SHA256SUMS", "SHA256SUMS.images")]
        listed = [line.split("  ")[1] for file in lists for line in file.read_text().splitlines()]
        assert sorted([*listed, "SHA256SUMS"]) == sorted(digests(made.dist))

        (files,) = re.findall(r"run: (find dist .+?) -exec gh release create", workflow)
        for file in done(files, made.folder).splitlines():
            shutil.copy(made.folder / file, tmp_path)
        offered = set(done("sha256sum --check --strict SHA256SUMS", tmp_path).splitlines())
        assert offered == {f"{file.name}: OK" for file in tmp_path.iterdir() if file.name != "SHA256SUMS"}
        assert {"operator.linux-amd64.cdx.json: OK", f"{CHART}: OK"} <= offered

    def test_our_code_is_one_layer_of_at_most_2_mb_for_all_platforms_and_the_last(self, made: Clone) -> None:
        last = {image.manifest["layers"][-1]["digest"] for image in images(made, "operator").values()}
        assert len(last) == 1
        for image in images(made, "operator").values():
            (base, _), *_, (place, size) = image.sizes
            assert (base, place) == ("base", "/opt/caretaker/app")
            assert size <= 2_000_000

    @pytest.mark.parametrize("name", ["amd64", "arm64"])
    def test_each_has_a_bill(self, made: Clone, name: str) -> None:
        mains = [bill(made, target, name)["metadata"]["component"]["name"] for target in TARGETS]
        assert mains == ["caretaker-probe", "caretaker"]

    def test_chart_and_manifest_have_them_by_digest(self, made: Clone) -> None:
        rendered = chart.text(chart=made.dist / CHART)
        for text in (rendered, (made.dist / "install.yaml").read_text()):
            for target in ("operator", "probe"):
                (top,) = json.loads((made.dist / "images" / target / "index.json").read_text())["manifests"]
                assert f"{REGISTRY}/{target}@{top['digest']}" in text
            assert "registry.example.com" not in text

    def test_no_file_of_the_chart_names_a_place_that_is_nobodys(self, made: Clone) -> None:
        with tarfile.open(made.dist / CHART) as archive:
            texts = {file.name: data.read() for file in archive if (data := archive.extractfile(file))}
        assert "caretaker/Chart.yaml" in texts
        assert [name for name, text in texts.items() if b"example.com/caretaker" in text] == []

    def test_what_they_were_built_on_is_in_the_provenance(self, made: Clone) -> None:
        body = json.loads((made.dist / "provenance.json").read_text())
        definition = body["predicate"]["buildDefinition"]
        assert definition["externalParameters"]["IMAGES"] == "debian"
        bases = {one["name"] for one in definition["resolvedDependencies"] if "name" in one}
        assert bases == {"localhost/caretaker/debian-python:bookworm"}
        of = {target: {n: one.base for n, one in images(made, target).items()} for target in TARGETS}
        assert of["operator"] == of["probe"], "both are built on Debian"
        materials = [one["digest"] for one in definition["resolvedDependencies"] if "name" in one]
        assert materials == [base["digest"] for base in of["operator"].values()]


@pytest.fixture(scope="module", params=["amd64", "arm64"])
def operator(
    made: Clone, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ImageRoot]:
    folder = tmp_path_factory.mktemp("operator")
    yield unpacked(made, "operator", request.param, folder)
    shutil.rmtree(folder)


class TestAnImage:
    """As its user, with a root that cannot be written; the one of another architecture under QEMU."""

    __test__ = IMAGES != "none"

    def test_tells_how_it_is_used_and_its_version(self, operator: ImageRoot) -> None:
        assert "usage: caretaker" in said(operator, "--help")
        assert said(operator, "--version") == f"caretaker {VERSION}\n"

    def test_plans(self, operator: ImageRoot, cluster: Cluster) -> None:
        shutil.copy(CHECKOUT / "examples" / "hello.yaml", operator.folder / "task.yaml")
        kubeconfig = operator.folder / "kubeconfig"
        shutil.copy(cluster.kubeconfig, kubeconfig)
        kubeconfig.chmod(0o644)
        told = said(operator, "plan", "-n", "default", "-f", "/task.yaml", KUBECONFIG="/kubeconfig")
        assert "hello" in told

    @pytest.mark.parametrize("name", ["amd64", "arm64"])
    def test_probes(self, made: Clone, tmp_path: Path, name: str) -> None:
        root = unpacked(made, "probe", name, tmp_path)
        assert json.loads(said(root, "--endpoint", "http://127.0.0.1:9"))["verdict"] == "Refused"

    def test_has_programs_of_its_architecture(self, operator: ImageRoot) -> None:
        heads = [file.read_bytes()[:20] for file in (operator.folder / "opt").rglob("*.so*")]
        assert len(heads) > 10
        assert {head[18] for head in heads if head.startswith(b"\x7fELF")} == {ELF[operator.architecture]}

    def test_has_a_bill_of_what_is_in_it(self, operator: ImageRoot, made: Clone) -> None:
        (packages,) = operator.folder.glob("opt/caretaker/lib/python3*/site-packages")
        found = {one.name.removesuffix(".dist-info") for one in packages.glob("*.dist-info")}
        listed = bill(made, "operator", operator.architecture)["components"]
        assert {f"{one['name'].replace('-', '_')}-{one['version']}" for one in listed} == {
            re.sub("[-.](?=.*-)", "_", one).lower() for one in found
        }


def said(root: ImageRoot, *arguments: str, **variables: str) -> str:
    done = root.run(*arguments, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bill(made: Clone, target: str, architecture: str) -> Any:
    return json.loads((made.dist / f"{target}.linux-{architecture}.cdx.json").read_text())


def images(made: Clone, target: str) -> dict[str, Image]:
    """By architecture."""
    found = Layout(made.dist / "images" / target).images()
    return {image.platform.removeprefix("linux-"): image for image in found}


def unpacked(made: Clone, target: str, name: str, folder: Path) -> ImageRoot:
    layout = Layout(made.dist / "images" / target)
    return ImageRoot.unpacked(layout, images(made, target)[name], folder)


def done(command: str, folder: Path) -> str:
    """What a command line prints that does not fail."""
    ran = subprocess.run(["bash", "-ec", command], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def blob(layout: Path, digest: str) -> Any:
    return json.loads((layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_text())


def head(clone: Clone) -> str:
    return git(clone.folder, "rev-parse", "HEAD").strip()
