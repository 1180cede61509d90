"""What `make release-check` refuses before it starts anything, in a line; and registries that refuse it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from aiohttp import web

import chart
from awsdoubles.launch import free_port
from awsdoubles.serverthread import ServerThread
from release import check, dist
from release.checks import ReleaseError
from release.dist import Dist
from release.oci import INDEX
from release.publish import Publisher
from release.registry import Distribution
from testbed.paths import CHECKOUT

VERSION: Final = "1.2.3"
REGISTRY: Final = "ghcr.io/owner/caretaker"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"


def layout(folder: Path) -> str:
    """Write an image with nothing in it; the digest of its index."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(kind: str, content: Any) -> dict[str, Any]:
        data = json.dumps(content).encode()
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    platform = {"os": "linux", "architecture": "amd64"}
    about = {
        **platform,
        "rootfs": {"type": "layers", "diff_ids": []},
        "config": {"Labels": {"n": folder.name}},
    }
    config = blob("application/vnd.oci.image.config.v1+json", about)
    manifest = blob(MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []})
    platforms = [{**manifest, "platform": platform}]
    index = blob(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": platforms})
    listed = {"schemaVersion": 2, "manifests": [index]}
    (folder / "index.json").write_text(json.dumps(listed))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(index["digest"])


def pack(folder: Path, digests: dict[str, str]) -> None:
    """Write a chart that names these images."""
    source = folder.parent / "chart" / "caretaker"
    source.mkdir(parents=True, exist_ok=True)
    about = {"apiVersion": "v2", "name": "caretaker", "version": VERSION}
    (source / "Chart.yaml").write_text(yaml.safe_dump(about))
    image, probe = (
        {"repository": f"{REGISTRY}/{target}", "digest": digests[target]} for target in ("operator", "probe")
    )
    (source / "values.yaml").write_text(yaml.safe_dump({"image": image, "probe": {"image": probe}}))
    chart.helm("package", source, "--destination", folder.parent)
    (folder.parent / f"caretaker-{VERSION}.tgz").rename(folder / f"caretaker-chart-{VERSION}.tgz")


def sums(folder: Path, *, flat: bool) -> None:
    """Write the sums: of all files by path, or as of downloads, with a list of what is in folders."""
    for old in folder.glob("SHA256SUMS*"):
        old.unlink()
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    if flat:
        inside = {name for name in files if "/" in name}
        _list(folder, "SHA256SUMS.images", inside)
        files = files - inside | {"SHA256SUMS.images"}
    _list(folder, "SHA256SUMS", files)


def _list(folder: Path, out: str, names: set[str]) -> None:
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in sorted(names)}
    (folder / out).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dist/ that is whole."""
    made = tmp_path / "dist"
    pack(made, {target: layout(made / "images" / target) for target in ("operator", "probe")})
    (made / "images" / "operator.linux-amd64.cdx.json").write_text("{}")
    (made / "NOTES.md").write_text("notes\n")
    sums(made, flat=True)
    return made


@pytest.fixture
def line(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command refuses with; no engine and no cluster has been started."""

    def refused(*words: str, of: Path = folder) -> str:
        assert check.main([str(of), *words]) == 1
        (only,) = capsys.readouterr().err.splitlines()
        return str(only)

    return refused


@pytest.mark.parametrize("flat", [False, True], ids=["sums-by-path", "sums-by-name"])
def test_a_whole_dist_is_read(folder: Path, flat: bool) -> None:
    sums(folder, flat=flat)
    found = dist.read(folder)
    assert (found.version, found.registry) == (VERSION, REGISTRY)
    assert found.chart.exists()
    assert found.image("probe") == f"{REGISTRY}/probe@{found.digests['probe']}"


class TestARefusal:
    def test_of_a_dist_that_is_not_there(self, tmp_path: Path, line: Callable[..., str]) -> None:
        said = line(of=tmp_path / "none")
        assert said == f"{tmp_path}/none is missing: make release VERSION=x.y.z, with IMAGES=debian to try"

    def test_of_a_dist_without_images(self, folder: Path, line: Callable[..., str]) -> None:
        shutil.rmtree(folder / "images")
        assert "has no images: make release with IMAGES=published" in line()

    def test_of_a_dist_without_sums(self, folder: Path, line: Callable[..., str]) -> None:
        (folder / "SHA256SUMS").unlink()
        assert "SHA256SUMS is missing: make it again" in line()

    def test_of_a_file_that_is_not_as_listed(self, folder: Path, line: Callable[..., str]) -> None:
        (folder / "NOTES.md").write_text("other notes\n")
        assert "NOTES.md is not what SHA256SUMS says: make it again" in line()

    def test_of_a_file_that_is_listed_and_not_there(self, folder: Path, line: Callable[..., str]) -> None:
        (folder / "NOTES.md").unlink()
        assert "has 0 files NOTES.md and SHA256SUMS one: make it again" in line()

    def test_of_a_file_that_is_not_listed(self, folder: Path, line: Callable[..., str]) -> None:
        (folder / "more.txt").write_text("")
        assert "more.txt is not in SHA256SUMS: remove it" in line()

    def test_of_a_changed_part_of_an_image(self, folder: Path, line: Callable[..., str]) -> None:
        blob = next((folder / "images" / "probe" / "blobs" / "sha256").iterdir())
        blob.write_bytes(blob.read_bytes() + b" ")
        assert f"{blob.name} is not what SHA256SUMS.images says: make it again" in line()

    def test_of_a_changed_part_of_an_image_that_no_list_has(
        self, folder: Path, line: Callable[..., str]
    ) -> None:
        for layout in (folder / "images").iterdir():
            if layout.is_dir():
                shutil.move(layout, folder.parent / layout.name)
        sums(folder, flat=False)
        for name in ("operator", "probe"):
            shutil.move(folder.parent / name, folder / "images" / name)
        assert dist.read(folder).version == VERSION
        blob = next((folder / "images" / "probe" / "blobs" / "sha256").iterdir())
        blob.write_bytes(blob.read_bytes() + b" ")
        assert f"{blob.name} is not in SHA256SUMS: remove it" in line()

    def test_of_a_chart_without_digests(self, folder: Path, line: Callable[..., str]) -> None:
        pack(folder, {"operator": "", "probe": ""})
        sums(folder, flat=True)
        assert "names the image probe by no digest: make it again" in line()

    def test_of_a_chart_with_the_digest_of_another_image(
        self, folder: Path, line: Callable[..., str]
    ) -> None:
        digest = f"sha256:{'0' * 64}"
        pack(folder, {**dist.read(folder).digests, "probe": digest})
        sums(folder, flat=True)
        assert f"names probe@{digest}, and probe@sha256:" in line()

    def test_of_a_chart_that_is_cut_off(self, folder: Path, line: Callable[..., str]) -> None:
        file = folder / f"caretaker-chart-{VERSION}.tgz"
        file.write_bytes(file.read_bytes()[:100])
        sums(folder, flat=True)
        assert f"{file} cannot be read" in line()

    def test_of_a_previous_release_that_is_the_same(self, folder: Path, line: Callable[..., str]) -> None:
        assert f"is {VERSION}, too: give the dist/ of an older one" in line("--previous", str(folder))

    def test_of_a_machine_without_an_engine_and_the_rights_of_root(
        self, folder: Path, tmp_path: Path
    ) -> None:
        unable = (str(shutil.which("setpriv")), "--bounding-set=-all", "--inh-caps=-all")
        command = [*(() if os.geteuid() else unable), sys.executable, "-m", "release.check", str(folder)]
        where = {**os.environ, "PYTHONPATH": str(CHECKOUT / "dev"), "PATH": str(tmp_path)}
        done = subprocess.run(command, env=where, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert done.stdout.startswith(f"{folder} is whole: caretaker {VERSION}")
        (only,) = done.stderr.splitlines()
        assert "needs a container engine that answers (docker is not installed" in only
        assert "start one, or become root" in only


class Refusing(ServerThread):
    """A registry that answers everything, or all writes, with a status."""

    def __init__(self, status: int, *, reads: bool) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._status = status
        self._reads = reads

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def opened(self) -> None:
        """Nothing."""

    async def closing(self) -> None:
        """Nothing."""

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if self._reads and request.method in ("GET", "HEAD"):
            return web.Response(status=200 if request.path == "/v2/" else 404)
        return web.Response(status=self._status)


@pytest.fixture
def made(folder: Path) -> Dist:
    return dist.read(folder)


@pytest.fixture
def publisher(made: Dist, tmp_path: Path) -> Callable[[str], Publisher]:
    return lambda url: Publisher(made, url.removeprefix("http://"), tmp_path / "work")


class TestARegistry:
    """It is told of in a line, and nothing is published."""

    def test_that_is_not_there(self, publisher: Callable[[str], Publisher], tmp_path: Path) -> None:
        with pytest.raises(ReleaseError, match=r"does not answer \(.*\): start it") as refused:
            publisher(f"http://127.0.0.1:{free_port()}").publish(tmp_path / "key")
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        ("status", "reads"), [(401, False), (507, True), (403, True)], ids=["login", "full", "read-only"]
    )
    def test_that_refuses(
        self, publisher: Callable[[str], Publisher], tmp_path: Path, status: int, reads: bool
    ) -> None:
        with Refusing(status, reads=reads) as registry:
            with pytest.raises(ReleaseError, match=str(status)) as refused:
                publisher(registry.url).publish(tmp_path / "key")
            assert "\n" not in str(refused.value)
            assert [one for one in registry.asked if "/manifests/" in one and one.startswith("PUT")] == []
            assert [one for one in registry.asked if "/charts/" in one] == []


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Distribution]:
    with Distribution(tmp_path / "registry") as server:
        yield server


class TestSignatures:
    def test_a_whole_release_verifies_and_what_is_changed_does_not(
        self,
        publisher: Callable[[str], Publisher],
        registry: Distribution,
        made: Dist,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Whatever the user has set."""
        monkeypatch.setenv("COSIGN_REPOSITORY", "registry.example.com/elsewhere")
        monkeypatch.setenv("HELM_REGISTRY_CONFIG", "/dev/null/none")
        ours = publisher(registry.url)
        key, other = ours.key("ours"), ours.key("other")
        published = ours.publish(key)
        for what in (*ours.images.values(), published):
            ours.verify(key, what)
            with pytest.raises(ReleaseError, match=r"cosign verify of .* is refused") as refused:
                ours.verify(other, what)
            assert "\n" not in str(refused.value)
        ours.verify_sums(key, made.sums)
        made.sums.write_text(made.sums.read_text() + "\n")
        with pytest.raises(ReleaseError, match=r"cosign verify-blob of .* is refused"):
            ours.verify_sums(key, made.sums)

    def test_an_image_that_does_not_arrive_leaves_no_tag_and_no_chart(
        self, publisher: Callable[[str], Publisher], registry: Distribution, made: Dist
    ) -> None:
        ours = publisher(registry.url)
        shutil.rmtree(made.layout("operator") / "blobs")
        with pytest.raises(ReleaseError, match=r"oras cp of .* is refused"):
            ours.publish(ours.key("ours"))
        assert list(registry.folder.glob("stored/**/_manifests/tags/*")) == []
        assert list(registry.folder.glob("stored/**/charts")) == []
