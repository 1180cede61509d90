"""`make release` without images, twice, of one commit in two clones; and dist/ as its users take it, without
a checkout. With images: test_dist_images.py."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import chart
import gotools
from awsdoubles.venvs import uv
from testbed import build
from testbed.cluster import Cluster
from testbed.paths import CHECKOUT
from testing.dist import (
    BUILDER,
    CHART,
    PLUGIN,
    REPOSITORY,
    VERSION,
    WHEEL,
    Clone,
    another,
    digests,
    first,
    git,
    origin_in,
)
from testing.installed import block


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return origin_in(tmp_path_factory.mktemp("origin"))


@pytest.fixture(scope="module")
def made(origin: Path) -> Clone:
    """A clone with dist/."""
    clone = first(origin)
    clone.released()
    return clone


@pytest.fixture
def clone(origin: Path, tmp_path: Path) -> Clone:
    """A clone without dist/."""
    git(tmp_path, "clone", "--quiet", str(origin), "c")
    return Clone(tmp_path / "c")


class TestTheSameCommit:
    def test_gives_the_same_bytes_to_another_user_elsewhere(self, made: Clone, origin: Path) -> None:
        other = another(origin)
        other.released()
        assert digests(other.dist) == digests(made.dist)

    def test_leaves_nothing_behind_but_dist(self, made: Clone) -> None:
        assert git(made.folder, "status", "--porcelain") == ""
        assert sorted(f.name for f in (made.folder / ".dev").iterdir()) == ["release.lock"]


class TestDist:
    def test_the_sums_are_of_all_files_and_verify(self, made: Clone, tmp_path: Path) -> None:
        listed = {line.split("  ")[1] for line in (made.dist / "SHA256SUMS").read_text().splitlines()}
        assert listed == set(digests(made.dist)) - {"SHA256SUMS"}
        verify = block("install.md", "## From a release")
        done = subprocess.run(
            ["bash", "-ec", verify], cwd=made.dist, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for name in (WHEEL, "SHA256SUMS"):  # a user who has one file
            shutil.copy(made.dist / name, tmp_path / name)
        (tmp_path / WHEEL).write_bytes((tmp_path / WHEEL).read_bytes() + b"x")
        done = subprocess.run(
            ["bash", "-ec", verify], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert f"{WHEEL}: FAILED" in done.stdout

    def test_the_provenance_is_of_exactly_these_files_and_this_commit(self, made: Clone) -> None:
        body = json.loads((made.dist / "provenance.json").read_text())
        subjects = [(one["name"], one["digest"]["sha256"]) for one in body["subject"]]
        expected = digests(made.dist)
        del expected["provenance.json"], expected["SHA256SUMS"]
        assert len(subjects) == len(expected)
        assert dict(subjects) == expected
        (source, *_) = body["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert source["digest"] == {"gitCommit": git(made.folder, "rev-parse", "HEAD").strip()}
        assert body["predicate"]["runDetails"]["builder"]["id"] == BUILDER

    def test_the_notes_are_the_changelogs(self, made: Clone) -> None:
        notes = (made.dist / "NOTES.md").read_text()
        assert notes.startswith(f"# caretaker {VERSION}\n")
        assert "- **DaemonTask** (`daemontasks.caretaker.dev/v1alpha1`)" in notes
        assert "](docs/" not in notes
        assert "\n## " not in notes

    def test_the_wheel_has_the_crds(self, made: Clone) -> None:
        with zipfile.ZipFile(made.dist / WHEEL) as wheel:
            for crd in (CHECKOUT / "crds").glob("*.yaml"):
                assert wheel.read(f"caretaker/crds/{crd.name}") == crd.read_bytes()

    def test_a_wheel_can_be_made_of_the_sdist_alone(self, made: Clone) -> None:
        """uv does so; what the sdist lacks the wheel would lack. It brings no tests and no tools."""
        with tarfile.open(made.dist / f"caretaker-{VERSION}.tar.gz") as sdist:
            tops = {name.split("/")[1] for name in sdist.getnames()}
        assert {"pyproject.toml", "operator", "crds", "LICENSE", "README.md"} <= tops
        assert tops & {"tests", "dev", "bench", "uv.lock"} == set()

    def test_the_bill_lists_what_the_lock_has_and_no_tools(self, made: Clone) -> None:
        bill = json.loads((made.dist / f"caretaker-{VERSION}.cdx.json").read_text())
        names = {one["name"] for one in bill["components"]}
        assert {"kopf", "boto3", "kubernetes"} <= names
        assert names & {"pytest", "ruff", "mypy"} == set()


@pytest.fixture(scope="module")
def programs(made: Clone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and the locked packages it asks for."""
    place = tmp_path_factory.mktemp("user") / "venv"
    tool, wheel = str(uv()), str(made.dist / WHEEL)
    at = ("--python", str(place / "bin" / "python"))
    env = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(place)}
    for command in (
        ("venv", "--quiet", "--python", sys.executable, str(place)),
        ("sync", "--quiet", "--frozen", "--no-dev", "--no-install-project"),
        ("pip", "install", "--quiet", *at, "--offline", "--no-deps", wheel),
        ("pip", "check", *at),
    ):
        done = subprocess.run(
            [tool, *command], cwd=CHECKOUT, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    kubectl = place.parent / "kubectl"
    kubectl.mkdir()
    (kubectl / "kubectl").symlink_to(build.ensure() / "kubectl")
    return place / "bin"


@pytest.fixture(scope="module")
def run(
    programs: Path, bare: Cluster, made: Clone, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """A command's stdout, beside a cluster in which the manifest is installed."""
    home = tmp_path_factory.mktemp("home")

    def run(*command: str) -> str:
        path = os.pathsep.join([str(programs), str(programs.parents[1] / "kubectl"), os.defpath])
        env = {"PATH": path, "HOME": str(home), "KUBECONFIG": str(bare.kubeconfig)}
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("kubectl", "apply", "--server-side", "-f", str(made.dist / "install.yaml"))
    return run


class TestOnAMachineWithoutACheckout:
    def test_the_command_is_that_of_the_wheel(self, run: Callable[..., str]) -> None:
        assert run("caretaker", "--version") == f"caretaker {VERSION}\n"
        assert str(CHECKOUT) not in run("python", "-c", "import caretaker; print(caretaker.__file__)")

    @pytest.mark.parametrize("words", [("caretaker",), ("kubectl", "caretaker")], ids=" ".join)
    def test_it_plans(self, run: Callable[..., str], words: tuple[str, ...]) -> None:
        hello = CHECKOUT / "examples" / "hello.yaml"
        assert "daemontask" in run(*words, "plan", "-n", "default", "-f", str(hello)).lower()

    def test_kubectl_finds_the_plugin(self, run: Callable[..., str]) -> None:
        assert "caretaker COMMAND --help" in run("kubectl-caretaker", "--help")
        assert "kubectl-caretaker" in run("kubectl", "plugin", "list")

    @pytest.mark.parametrize("file", ["crds.yaml", "install.yaml"])
    def test_nothing_is_changed_by_a_second_apply(
        self, run: Callable[..., str], made: Clone, file: str
    ) -> None:
        """`kubectl diff` ends with 1 if anything were."""
        assert run("kubectl", "diff", "--server-side", "-f", str(made.dist / file)) == ""

    def test_the_manifest_is_the_chart_with_its_namespace_and_crds(self, made: Clone) -> None:
        def names(text: str) -> set[tuple[str, str]]:
            return {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(text) if one}

        rendered = names(chart.text("--skip-tests", chart=made.dist / CHART))
        assert names((made.dist / "install.yaml").read_text()) == rendered | {("Namespace", chart.NAMESPACE)}

    def test_krew_gets_what_its_manifest_says(self, made: Clone) -> None:
        manifest = yaml.safe_load((made.dist / "caretaker.krew.yaml").read_text())
        for one in manifest["spec"]["platforms"]:
            assert one["uri"] == f"{REPOSITORY}/releases/download/v{VERSION}/{PLUGIN}"
            assert one["sha256"] == digests(made.dist)[PLUGIN]
        with tarfile.open(made.dist / PLUGIN) as archive:
            modes = {member.name: member.mode for member in archive}
            packed = archive.extractfile(WHEEL)
            assert packed is not None
            assert packed.read() == (made.dist / WHEEL).read_bytes()
        assert modes == {
            "kubectl-caretaker": 0o755,
            WHEEL: 0o644,
            "requirements.txt": 0o644,
            "LICENSE": 0o644,
        }


@dataclass(frozen=True)
class Person:
    """Somebody with uv, kubectl and krew, and what they downloaded in a folder that is no checkout."""

    folder: Path
    env: Mapping[str, str]

    def type(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """What a command line does."""
        return subprocess.run(
            ["/bin/bash", "-ec", command],
            cwd=self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    def told(self, command: str) -> str:
        """What a command line prints that does not fail."""
        done = self.type(command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def written(start: str) -> str:
    """The command of the page that begins so."""
    page = (CHECKOUT / "docs" / "install.md").read_text()
    (found,) = re.findall(rf"`({re.escape(start)} [^`]*)`", page)
    return str(found)


@pytest.fixture(scope="module")
def person(made: Clone, bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Person:
    home = tmp_path_factory.mktemp("person")
    tool, folder, programs = Path(str(uv())), home / "downloads", home / "bin"
    folder.mkdir()
    for name in (WHEEL, PLUGIN, "caretaker.krew.yaml"):
        shutil.copy(made.dist / name, folder)
    shutil.copy(CHECKOUT / "examples" / "hello.yaml", folder / "task.yaml")
    programs.mkdir()
    for name, program in {
        "uv": tool,
        "uvx": tool.with_name("uvx"),
        "kubectl": build.ensure() / "kubectl",
        "kubectl-krew": gotools.path("krew"),
    }.items():
        (programs / name).symlink_to(program)
    cached = subprocess.run([tool, "cache", "dir"], capture_output=True, text=True, check=True).stdout
    # The index and certificates of the machine; nothing that leads to the checkout.
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    env = {
        "HOME": str(home),
        "PATH": os.pathsep.join([f"{home}/.krew/bin", str(programs), os.defpath]),
        "KUBECONFIG": str(bare.kubeconfig),
        "UV_CACHE_DIR": cached.strip(),
        "UV_PYTHON": sys.executable,
    }
    one = Person(folder, {**theirs, **env})
    one.told(f"kubectl apply --server-side -f {made.dist / 'crds.yaml'}")
    return one


class TestWithUvAlone:
    def test_it_plans_by_the_wheel(self, person: Person) -> None:
        assert "DaemonTask default/hello" in person.told(written("uvx"))

    def test_krew_installs_the_plugin_and_it_plans(self, person: Person) -> None:
        person.told(written("kubectl krew install"))
        assert f"{person.env['HOME']}/.krew/bin/kubectl-caretaker" in person.told("kubectl plugin list")
        assert "DaemonTask default/hello" in person.told("kubectl caretaker plan -f task.yaml")
        assert person.told("kubectl caretaker --version") == f"caretaker {VERSION}\n"


class TestThePluginSays:
    """In one line, what keeps it from running."""

    @pytest.fixture
    def plugin(self, person: Person, tmp_path: Path) -> str:
        with tarfile.open(person.folder / PLUGIN) as archive:
            archive.extractall(tmp_path / "plugin", filter="data")
        return str(tmp_path / "plugin" / "kubectl-caretaker")

    def test_that_uv_is_missing(self, person: Person, plugin: str, tmp_path: Path) -> None:
        for name in ("sh", "readlink", "dirname"):
            (tmp_path / name).symlink_to(str(shutil.which(name)))
        done = person.type(f"exec {plugin} --version", PATH=str(tmp_path))
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("kubectl caretaker: uv is missing: https://docs.astral.sh/uv/")

    @pytest.fixture
    def home(self, tmp_path: Path) -> str:
        """One in which nothing can be written."""
        if not os.geteuid():
            return "/proc"  # root may write in what is for nobody
        (tmp_path / "home").mkdir(mode=0o555)
        return str(tmp_path / "home")

    def test_that_the_home_cannot_be_written(self, person: Person, plugin: str, home: str) -> None:
        done = person.type(f"unset UV_CACHE_DIR XDG_CACHE_HOME; exec {plugin} --version", HOME=home)
        assert (done.returncode, done.stdout) == (1, "")
        line = f"kubectl caretaker: {home}/.cache/uv cannot be written: set UV_CACHE_DIR\n"
        assert done.stderr == line

    def test_nothing_of_an_index_that_cannot_be_reached_any_more(self, person: Person, plugin: str) -> None:
        person.told(f"{plugin} --version")
        nowhere = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("ALL", "HTTP", "HTTPS")}
        done = person.type(f"exec {plugin} --version", **nowhere, NO_PROXY="", UV_HTTP_RETRIES="0")
        assert (done.returncode, done.stdout) == (0, f"caretaker {VERSION}\n"), done.stderr

    def test_nothing_where_uv_has_a_cache_elsewhere(self, person: Person, plugin: str, home: str) -> None:
        done = person.type(f"exec {plugin} --version", HOME=home)
        assert (done.returncode, done.stdout) == (0, f"caretaker {VERSION}\n"), done.stderr


class TestARefusal:
    """One line, and dist/ is as it was."""

    def refused(self, clone: Clone, version: str = VERSION, images: str = "none") -> str:
        clone.dist.mkdir()
        (clone.dist / "before").write_text("of yesterday")
        code, out, err = clone.release(version, images)
        assert (code, out) == (1, "")
        assert set(digests(clone.dist)) == {"before"}
        (line,) = err.splitlines()
        return line

    def test_of_a_missing_version(self, clone: Clone) -> None:
        assert self.refused(clone, "") == f"VERSION is missing: make release VERSION={VERSION}"

    def test_of_a_version_that_is_not_that_of_the_files(self, clone: Clone) -> None:
        assert "VERSION=9.9.9 is not the version here" in self.refused(clone, "9.9.9")

    def test_of_a_changed_tree(self, clone: Clone) -> None:
        (clone.folder / "new").write_text("")
        assert "(?? new): commit, stash or remove" in self.refused(clone)

    def test_of_a_tag_that_is_not_the_version(self, clone: Clone) -> None:
        git(clone.folder, "tag", "--delete", f"v{VERSION}")
        git(clone.folder, "tag", "v9.9.9")
        assert f"the tag here is v9.9.9, not v{VERSION}" in self.refused(clone)

    def test_of_a_changelog_without_the_version(self, clone: Clone) -> None:
        page = clone.folder / "CHANGELOG.md"
        page.write_text(page.read_text().replace(f"## [{VERSION}]", "## [9.9.9]"))
        git(clone.folder, "tag", "--delete", f"v{VERSION}")
        git(clone.folder, "commit", "--quiet", "--all", "--message", "Rename")
        assert f"head its lines `## [{VERSION}] - YYYY-MM-DD`" in self.refused(clone)

    def test_of_an_unknown_choice_of_images(self, clone: Clone) -> None:
        assert self.refused(clone, images="all") == "IMAGES=all is none of published, debian, none"


def test_an_interrupted_run_leaves_dist_as_it_was_and_a_second_one_has_to_wait(clone: Clone) -> None:
    clone.dist.mkdir()
    (clone.dist / "before").write_text("of yesterday")
    first = clone.start(images="none")
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "building wheel and sdist\n"
        code, out, err = clone.release(images="none")
        assert (code, out) == (1, "")
        assert "another `make release` is at work" in err
        os.killpg(first.pid, signal.SIGINT)  # as Ctrl-C
        _, err = first.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
    assert (first.returncode, err) == (130, "interrupted: nothing is left running\n")
    assert set(digests(clone.dist)) == {"before"}
    assert sorted(f.name for f in (clone.folder / ".dev").iterdir()) == ["release.lock"]
