"""What is fetched once, and pinned."""

import hashlib
import re
from pathlib import Path

import pytest

from awsdoubles import elasticmq, ministack
from awsdoubles.cached import DoubleError, ensure
from awsdoubles.stack import environment


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_folder_is_made_once_for_its_dependencies() -> None:
    made: list[Path] = []
    first = ensure("thing", "1", made.append, what="a thing")
    assert ensure("thing", "1", made.append, what="a thing") == first
    second = ensure("thing", "2", made.append, what="a thing")
    assert (len(made), first != second, first.is_dir(), second.is_dir()) == (2, True, True, True)


def test_a_failure_leaves_nothing_behind(cache: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").touch()
        raise DoubleError("no network")

    with pytest.raises(DoubleError, match="no network"):
        ensure("thing", "1", fill, what="a thing")
    assert [entry.name for entry in (cache / "caretaker" / "thing").iterdir()] == ["lock"]


def test_every_jar_has_a_hash_and_coordinates_only() -> None:
    lines = elasticmq.JARS.read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64} [\w./-]+\.jar", line) for line in lines)
    assert any("/elasticmq-server_2.13/" in line for line in lines)
    assert len({line.rsplit("/", 1)[1] for line in lines}) == len(lines)


def test_every_requirement_of_ministack_is_pinned_and_hashed() -> None:
    text = ministack.REQUIREMENTS.read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert all(re.match(r"[\w.-]+==[\w.]+ .*--hash=sha256:", line) for line in lines)
    assert "://" not in text


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository with one jar."""
    folder = tmp_path / "maven"
    folder.mkdir()
    (folder / "one.jar").write_bytes(b"jar")
    listed = tmp_path / "jars"
    listed.write_text(f"{hashlib.sha256(b'jar').hexdigest()} one.jar\n")
    monkeypatch.setattr(elasticmq, "JARS", listed)
    monkeypatch.setenv("MAVEN_CENTRAL", folder.as_uri())
    return folder


def test_jars_come_from_the_repository_that_is_named(repository: Path) -> None:
    assert (elasticmq.jars() / "one.jar").read_bytes() == b"jar"


def test_a_jar_with_another_hash_is_refused(repository: Path) -> None:
    (repository / "one.jar").write_bytes(b"other")
    with pytest.raises(DoubleError, match=r"one\.jar: not the file that jars lists"):
        elasticmq.jars()


def test_a_repository_that_does_not_answer_is_named(repository: Path) -> None:
    (repository / "one.jar").unlink()
    with pytest.raises(DoubleError, match=r"one\.jar: .*MAVEN_CENTRAL names another repository"):
        elasticmq.jars()


def test_the_variables_leave_no_way_to_the_real_aws() -> None:
    found = environment("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")
    assert found["AWS_ENDPOINT_URL_SQS"] == "http://127.0.0.1:3"
    assert found["AWS_ENDPOINT_URL_STORAGE_GATEWAY"] == "http://127.0.0.1:2"
    assert {found[f"AWS_ENDPOINT_URL_{name}"] for name in ("S3", "SNS", "EVENTBRIDGE", "STS")} == {
        "http://127.0.0.1:1"
    }
    assert found["AWS_CONFIG_FILE"] == "/dev/null"
    both = [f"AWS_ENDPOINT_URL_{name}" for name in ("EC2", "AUTO_SCALING")]
    assert {found[name] for name in both} == {"http://127.0.0.1:1"}
    found = environment("http://127.0.0.1:1", "http://127.0.0.1:2", ec2_url="http://127.0.0.1:4")
    assert {found[name] for name in both} == {"http://127.0.0.1:4"}
