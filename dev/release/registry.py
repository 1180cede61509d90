"""A registry that takes and serves all that a release publishes: the CNCF's Distribution, as one process.

Input: a folder, in which it keeps what it is sent. It speaks plain HTTP and asks for no credentials.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import yaml

import gotools
from awsdoubles.launch import Server


class Distribution(Server):
    """`with Distribution(folder) as registry: ... registry.url`; set `host` first where nodes shall reach
    it."""

    name: ClassVar[str] = "registry"

    def prepare(self) -> None:
        """Build it unless the cache has it."""
        gotools.path("registry")

    @property
    def ready_path(self) -> str:
        """The root of the API."""
        return "/v2/"

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """With a file of settings: it takes none without."""
        settings: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "stored")}},
            "http": {"addr": f"{self.host}:{port}"},
        }
        file = self.folder / "registry.yaml"
        file.write_text(yaml.safe_dump(settings))
        # Else it looks for a collector of traces.
        return [str(gotools.path("registry")), "serve", str(file)], {"OTEL_TRACES_EXPORTER": "none"}
