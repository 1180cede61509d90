"""The part of a kubelet that serves logs: HTTPS on loopback, for the API server to fetch them from.

Inputs: what each container wrote. The path is the kubelet's own (k8s.io/kubernetes pkg/kubelet/server):
/containerLogs/NAMESPACE/POD/CONTAINER?tailLines=N. Without a CA of kubelets the API server takes any
certificate.
"""

import asyncio
import ssl
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from testbed.admin import Admin, path
from testbed.closing import server_closed


class KubeletLogs:
    """Use it as an async context manager.

    texts  (Pod name, container name) -> what it wrote; others wrote "POD CONTAINER" and a line break
    """

    def __init__(self, admin: Admin, certificate: Path, key: Path) -> None:
        self.texts: dict[tuple[str, str], str] = {}
        self.port = 0
        self._admin = admin
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await server_closed(self._runner)

    async def serve(self, nodes: Iterable[str], port: int | None = None) -> None:
        """Be where these nodes say that their kubelet listens; another `port`: nobody is."""
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port or self.port}},
        }
        urls = (path("nodes", name=node, sub="status") for node in nodes)
        await asyncio.gather(*(self._admin.patch(url, {"status": status}) for url in urls))

    async def _serve(self, request: web.Request) -> web.Response:
        place = request.match_info["pod"], request.match_info["container"]
        text = self.texts.get(place, f"{' '.join(place)}\n")
        if "tailLines" in request.query:
            lines = text.splitlines(keepends=True)
            text = "".join(lines[max(len(lines) - int(request.query["tailLines"]), 0) :])
        return web.Response(text=text)
