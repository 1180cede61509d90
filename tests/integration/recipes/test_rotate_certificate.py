"""examples/rotate-certificate.yaml: its program beside a program that serves TLS."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from testing.nodeagent import SERVER_NAME, Authority, authority, issue
from testing.recipes import run, variables

NAME: Final = "rotate-certificate"
AGENT: Final = Path(__file__).parents[2] / "testing" / "nodeagent.py"
HASTE: Final = {"time.monotonic() + 30": "time.monotonic() + 3"}


class Host:
    """A host with the program at work: `file` is what it reads, `secret` the new certificate's folder."""

    def __init__(self, folder: Path, *how: str) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.mkdir()
        self.file = folder / "tls.pem"
        self.ca = authority()
        self.old = b"".join(issue(self.ca, 5))
        self.file.write_bytes(self.old)
        self.file.chmod(0o640)
        self.program = f"agent-{secrets.token_hex(3)}"
        # -P: its folder holds modules that are called like Python's own.
        command = [sys.executable, "-P", str(AGENT), str(self.file), self.program, *how]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        """The program ends."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def renew(self, certificate: bytes, key: bytes, ca: Authority | None = None) -> bytes:
        """What the Secret holds from now on, and what the file has to become."""
        (self.secret / "tls.crt").write_bytes(certificate)
        (self.secret / "tls.key").write_bytes(key)
        (self.secret / "ca.crt").write_bytes((ca or self.ca).pem)
        return certificate + key

    def rotate(self, replaced: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        env = {
            "SECRET_DIR": str(self.secret),
            "TARGET": str(self.file),
            "PROCESS": self.program,
            "SERVICE_PORT": str(self.port),
            "WATCH_SECONDS": "0.3",
        }
        assert env.keys() < variables(NAME).keys()
        assert variables(NAME)["SERVER_NAME"] == SERVER_NAME
        return run(NAME, self.folder, env, {**HASTE, **(replaced or {})})

    def files(self) -> list[str]:
        """What is beside the program of the test's own: the file, and what was left."""
        ours = (f"{NAME}.program", "secret", "told")
        return sorted(path.name for path in self.folder.iterdir() if path.name not in ours)

    def serves(self) -> bytes:
        """The certificate that the program serves, as PEM."""
        asked = ["openssl", "s_client", "-connect", f"127.0.0.1:{self.port}"]
        done = subprocess.run(asked, input="", capture_output=True, text=True, check=False, timeout=20)
        body = done.stdout.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
        return f"-----BEGIN CERTIFICATE-----{body}-----END CERTIFICATE-----\n".encode()


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(tmp_path, *getattr(request, "param", ()))
    yield made
    made.close()


def test_a_new_certificate_is_served_and_the_old_one_kept(host: Host) -> None:
    new = host.renew(*issue(host.ca, 90))
    code, told, printed = host.rotate()
    assert code == 0, told + printed
    assert 89 < json.loads(told)["daysLeft"] < 91
    assert host.file.read_bytes() == new
    assert host.file.stat().st_mode & 0o777 == 0o640
    assert new.startswith(host.serves())
    assert (host.folder / "tls.pem.previous").read_bytes() == host.old
    assert not (host.folder / "tls.pem.new").exists()


def test_once_more_it_changes_nothing(host: Host) -> None:
    host.renew(*issue(host.ca, 90))
    assert host.rotate()[0] == 0
    before = host.file.stat()
    assert host.rotate()[0] == 0
    assert host.file.stat() == before
    assert (host.folder / "tls.pem.previous").read_bytes() == host.old


def wrong_key(ca: Authority) -> tuple[bytes, bytes, Authority]:
    return issue(ca)[0], issue(ca)[1], ca


@pytest.mark.parametrize(
    ("made", "why"),
    [
        pytest.param(wrong_key, "mismatch", id="a key of another certificate"),
        pytest.param(lambda ca: (*issue(ca, -1), ca), "expired", id="one that has expired"),
        pytest.param(lambda ca: (*issue(ca), authority()), "verify failed", id="of another authority"),
        pytest.param(lambda ca: (*issue(ca, name="other.example.com"), ca), "Hostname", id="of another name"),
        pytest.param(lambda ca: (b"", b"", ca), "PEM", id="nothing"),
    ],
)
def test_a_certificate_that_would_not_work_touches_nothing(host: Host, made: Any, why: str) -> None:
    host.renew(*made(host.ca))
    code, told, _ = host.rotate()
    assert code == 1
    assert told.startswith("the new certificate was not put in place")
    assert why.lower() in told.lower()
    assert host.files() == ["tls.pem"]
    assert host.file.read_bytes() == host.old


@pytest.mark.parametrize("missing", ["tls.pem", "secret/tls.crt", "secret/tls.key", "secret/ca.crt"])
def test_what_is_missing_is_named_and_no_key_is_left_behind(host: Host, missing: str) -> None:
    host.renew(*issue(host.ca))
    (host.folder / missing).unlink()
    code, told, printed = host.rotate()
    assert (code, printed) == (1, "")
    assert told.startswith("the new certificate was not put in place")
    assert told.endswith(f"No such file or directory: '{host.folder / missing}'")
    assert host.files() == ([] if missing == "tls.pem" else ["tls.pem"])
    assert missing == "tls.pem" or host.file.read_bytes() == host.old


@pytest.mark.parametrize(
    "step", ["os.chmod(fresh", "shutil.copy2(target", "os.replace(proven", "os.replace(fresh"]
)
def test_any_failure_before_the_replacement_leaves_no_key_behind(host: Host, step: str) -> None:
    host.renew(*issue(host.ca))
    full = "(_ for _ in ()).throw(OSError(28, 'No space left on device')); "
    code, told, printed = host.rotate({step: full + step})
    assert (code, told, printed) == (
        1,
        "the new certificate was not put in place: [Errno 28] No space left on device",
        "",
    )
    assert host.files() == ["tls.pem"]
    assert host.file.read_bytes() == host.old
    assert host.rotate()[0] == 0


@pytest.mark.parametrize("host", [("deaf",)], indirect=True)
def test_one_that_the_program_does_not_take_is_taken_back(host: Host) -> None:
    host.renew(*issue(host.ca))
    code, told, _ = host.rotate()
    assert code == 1
    assert told.startswith("the previous certificate was put back: 127.0.0.1:")
    assert host.file.read_bytes() == host.old
    assert host.old.startswith(host.serves())


def test_killed_between_file_and_signal_the_next_run_ends_it(host: Host) -> None:
    new = host.renew(*issue(host.ca))
    killed = {"os.replace(fresh, target)\n": "os.replace(fresh, target)\n    os.kill(os.getpid(), 9)\n"}
    assert host.rotate(killed)[0] == -9
    assert host.old.startswith(host.serves()), "the program was not told"
    assert host.rotate()[0] == 0
    assert new.startswith(host.serves())


def test_one_that_was_proven_stays_though_the_program_is_down_later(host: Host) -> None:
    new = host.renew(*issue(host.ca))
    assert host.rotate()[0] == 0
    host.stop()
    code, told, _ = host.rotate()
    assert (code, told.partition(":")[0]) == (1, "127.0.0.1")
    assert host.file.read_bytes() == new


@pytest.mark.parametrize("host", [("deaf",)], indirect=True)
def test_after_a_trial_that_was_cut_short_the_one_before_it_is_put_back(host: Host) -> None:
    killed = {"os.replace(fresh, target)\n": "os.replace(fresh, target)\n    os.kill(os.getpid(), 9)\n"}
    host.renew(*issue(host.ca))
    assert host.rotate(killed)[0] == -9
    host.renew(*issue(host.ca))
    assert host.rotate()[0] == 1
    assert host.file.read_bytes() == host.old


def test_only_processes_of_that_name_are_told(host: Host) -> None:
    """SIGHUP ends a program that does not expect it."""
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        host.renew(*issue(host.ca))
        assert host.rotate()[0] == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert os.path.exists(f"/proc/{os.getpid()}")
