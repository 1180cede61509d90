"""A registry that a real node pulls from: images of one layer each, by plain HTTP, no credentials.

Format: the pull of "OCI Distribution Specification" 1.1, manifests of "Docker Image Manifest V2, Schema 2".
Set `host` to an address that the node reaches before the start. `pulled` grows with each manifest sent.
"""

import gzip
import hashlib
import json
import platform
from typing import Final

from aiohttp import web

from awsdoubles.serverthread import ServerThread

MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class Registry(ServerThread):
    """Use as a context manager; `add` what can be pulled."""

    def __init__(self) -> None:
        super().__init__()
        self.pulled: list[str] = []
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, bytes] = {}

    def add(self, name: str, layer: bytes) -> None:
        """An image (`library/busybox:1.37`) of this file system, a tar."""
        machine = platform.machine().lower()
        config = {
            "architecture": _ARCHITECTURES.get(machine, machine),
            "os": "linux",
            # A name of its own in it, so that each image has its own id.
            "config": {"Env": ["PATH=/bin"], "Labels": {"org.opencontainers.image.title": name}},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        parts = [json.dumps(config).encode(), gzip.compress(layer, 1, mtime=0)]
        self._blobs |= {_digest(part): part for part in parts}
        kinds = ("container.image.v1+json", "image.rootfs.diff.tar.gzip")
        about, packed = (
            {"mediaType": f"application/vnd.docker.{kind}", "size": len(part), "digest": _digest(part)}
            for kind, part in zip(kinds, parts, strict=True)
        )
        body = {"schemaVersion": 2, "mediaType": MANIFEST, "config": about, "layers": [packed]}
        manifest = json.dumps(body).encode()
        repository = name.partition(":")[0]
        self._manifests |= {name: manifest, f"{repository}:{_digest(manifest)}": manifest}

    def routes(self) -> list[web.RouteDef]:
        """The three ends of a pull."""
        return [
            web.get("/v2/", self._root),
            web.get("/v2/{name:.+}/manifests/{reference}", self._manifest),
            web.get("/v2/{name:.+}/blobs/{digest}", self._blob),
        ]

    async def opened(self) -> None:
        """Nothing."""

    async def closing(self) -> None:
        """Nothing."""

    async def _root(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _manifest(self, request: web.Request) -> web.Response:
        name = f"{request.match_info['name']}:{request.match_info['reference']}"
        found = self._manifests.get(name)
        if found is None:
            raise web.HTTPNotFound
        if request.method == "GET":
            self.pulled.append(name)
        headers = {"Docker-Content-Digest": _digest(found)}
        return web.Response(body=found, content_type=MANIFEST, headers=headers)

    async def _blob(self, request: web.Request) -> web.Response:
        found = self._blobs.get(request.match_info["digest"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=found, content_type="application/octet-stream")


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
