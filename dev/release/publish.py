"""Publishes dist/ as .github/workflows/release.yml does, in its order, and signs with a key and no identity:
images by digest, their signatures and that of the sums, then the tags by which users find them, and the chart
last.

Inputs: a whole dist/, a registry that speaks plain HTTP, and a folder for keys and for the settings of the
tools: those of the user are not read. It must not go on after a refusal: what comes later is what makes a
release.
"""

import os
import re
import subprocess
import urllib.error
from pathlib import Path
from typing import Final

import gotools
from awsdoubles.loopback import DIRECT, past_proxy
from realnode.images import TARGETS
from release.checks import ReleaseError
from release.dist import Dist

TOOLS: Final = ("cosign", "helm", "oras")
SECONDS: Final = 300.0
# No log and no time stamps by others: they are services, and a throwaway key is none of theirs.
_ALONE: Final = ("--use-signing-config=false", "--tlog-upload=false", "--yes")
# Beginnings of the variables with which users set the tools.
_SETTINGS: Final = ("COSIGN_", "HELM_")
_HTTP: Final = ("--allow-http-registry", "--allow-insecure-registry")


class Publisher:
    """Of one dist/ to one registry, `host:port`."""

    def __init__(self, dist: Dist, host: str, work: Path) -> None:
        self.dist = dist
        # As at the registry that the chart names, so that nodes may be led from there to here.
        self.place = f"{host}/{dist.registry.partition('/')[2]}"
        self.bundle = work / "SHA256SUMS.sigstore.json"
        self._host = host
        self._work = work
        work.mkdir(parents=True, exist_ok=True)

    @property
    def images(self) -> dict[str, str]:
        """Where each image is, by digest."""
        return {target: f"{self.place}/{target}@{digest}" for target, digest in self.dist.digests.items()}

    @property
    def charts(self) -> str:
        """What helm installs."""
        return f"oci://{self.place}/charts/caretaker"

    def publish(self, key: Path) -> str:
        """All of it; where the chart is, by digest. ReleaseError at the first refusal."""
        self.check_registry()
        for target in TARGETS:
            self.push_image(target)
        for image in self.images.values():
            self.sign(key, image)
        self.sign_sums(key)
        for image in self.images.values():
            self.run("oras", "tag", "--plain-http", image, self.dist.version)
        chart = self.push_chart(self.dist.chart)
        self.sign(key, chart)
        return chart

    def check_registry(self) -> None:
        """ReleaseError unless it answers."""
        try:
            DIRECT.open(f"http://{self._host}/v2/", timeout=10).close()
        except urllib.error.HTTPError as error:
            with error:
                raise ReleaseError(
                    f"the registry {self._host} refuses ({error.code} {error.reason}): log in, or make room"
                ) from None
        except OSError as error:
            raise ReleaseError(f"the registry {self._host} does not answer ({error}): start it") from None

    def push_image(self, target: str) -> None:
        """Copy one, all platforms of it, and give it no tag."""
        layout = f"{self.dist.layout(target)}@{self.dist.digests[target]}"
        self.run(
            *("oras", "cp", "--no-tty", "--from-oci-layout", "--to-plain-http"),
            *(layout, f"{self.place}/{target}"),
        )

    def push_chart(self, chart: Path) -> str:
        """Push a packed chart; where it is, by digest."""
        said = self.run("helm", "push", "--plain-http", str(chart), f"oci://{self.place}/charts")
        found = re.search(r"sha256:[0-9a-f]{64}", said)
        if found is None:
            raise ReleaseError(f"helm push tells no digest: {said}")
        return f"{self.place}/charts/caretaker@{found[0]}"

    def key(self, name: str) -> Path:
        """A key of its own; what it signs, `PATH.pub` verifies."""
        self.run("cosign", "generate-key-pair", "--output-key-prefix", name)
        (self._work / f"{name}.key").rename(self._work / name)
        (self._work / f"{name}.pub").rename(self._work / f"{name}.pub")
        return self._work / name

    def sign(self, key: Path, what: str) -> None:
        """Sign an image, and those of its platforms, or a chart."""
        self.run("cosign", "sign", "--key", str(key), "--recursive", *_ALONE, *_HTTP, what)

    def verify(self, key: Path, what: str) -> None:
        """ReleaseError unless this key has signed it."""
        self.run("cosign", "verify", "--key", f"{key}.pub", "--insecure-ignore-tlog", *_HTTP, what)

    def sign_sums(self, key: Path) -> None:
        """Sign the list of all files."""
        self.run(
            "cosign",
            "sign-blob",
            "--key",
            str(key),
            *_ALONE,
            "--bundle",
            str(self.bundle),
            str(self.dist.sums),
        )

    def verify_sums(self, key: Path, sums: Path) -> None:
        """ReleaseError unless this key has signed this list."""
        self.run(
            *("cosign", "verify-blob", "--key", f"{key}.pub", "--insecure-ignore-tlog"),
            *("--bundle", str(self.bundle), str(sums)),
        )

    def run(self, tool: str, *arguments: str) -> str:
        """What a tool says; ReleaseError with the end of it, in a line, where it fails."""
        places = {f"HELM_{part}_HOME": str(self._work / part.lower()) for part in ("CACHE", "CONFIG", "DATA")}
        users = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
        variables = {
            **users,
            **past_proxy(self._host.rpartition(":")[0]),
            **places,
            "HOME": str(self._work),
            "DOCKER_CONFIG": str(self._work),
            "COSIGN_PASSWORD": "",
        }
        command = [str(gotools.path(tool)), *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self._work,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise ReleaseError(f"{tool} {arguments[0]} has not ended after {SECONDS:.0f} s") from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-500:]
            raise ReleaseError(f"{tool} {arguments[0]} of {arguments[-1]} is refused: {said}")
        return done.stdout + done.stderr
