"""The API server behind ApiProxy: where it is, how to trust it, who to be. Read from a kubeconfig.

It must not retry: what goes wrong upstream goes wrong downstream.
"""

import asyncio
import base64
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from testbed.closing import connections_closed
from testing import manifests

_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_PATIENCE = 60.0  # seconds for cancelled requests to be answered before the session closes


class Upstream:
    """A client of the API server. Use as `async with`, once, in the loop that sends the requests."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, token: str) -> None:
        self.server = server.rstrip("/")
        self._tls = tls
        self._token = token
        self._session: aiohttp.ClientSession
        self._opening: set[asyncio.Task[aiohttp.ClientResponse]] = set()

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """The current context's cluster and user: token, token file or client certificate."""
        config = manifests.load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"] or {}
        token = user.get("token") or ""
        if not token and user.get("tokenFile"):
            token = (path.parent / user["tokenFile"]).read_text().strip()
        return cls(cluster["server"], _tls(cluster, user, path.parent), token)

    async def __aenter__(self) -> Self:
        # Headers and bodies pass as they are: no decompression, no headers of aiohttp's own.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opening:
            await asyncio.wait(self._opening, timeout=_PATIENCE)
        await self._session.close()
        await connections_closed()

    @asynccontextmanager
    async def send(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, its body unread. Raises aiohttp.ClientError. `path` is percent-encoded."""
        sent = dict(headers)
        if self._token and "Authorization" not in sent:
            sent["Authorization"] = f"Bearer {self._token}"
        url = URL(self.server + path, encoded=True).with_query(query)
        response = await self._open(method, url, sent, body)
        try:
            yield response
        finally:
            _abort(response)
            response.release()

    async def _open(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        """Shielded: aiohttp closes the TLS connection of a cancelled request politely, outliving the loop."""

        async def request() -> aiohttp.ClientResponse:
            return await self._session.request(
                method, url, headers=headers, data=body or None, allow_redirects=False
            )

        opening = asyncio.create_task(request())
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_abandon)
            raise


def _abandon(opening: asyncio.Task[aiohttp.ClientResponse]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        _abort(opening.result())
        opening.result().close()


def _abort(response: aiohttp.ClientResponse) -> None:
    connection = response.connection  # None once the body is read to its end
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext | None:
    if not cluster["server"].startswith("https:"):
        return None
    context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority", folder) or None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _pem(user, "client-certificate", folder), _pem(user, "client-key", folder)
    if certificate:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
            pair.write(certificate + "\n" + key)
            pair.flush()
            context.load_cert_chain(pair.name)
    return context


def _pem(entry: dict[str, Any], field: str, folder: Path) -> str:
    """`FIELD-data` (base64) or the file named in `FIELD`, relative to the kubeconfig's folder."""
    if entry.get(f"{field}-data"):
        return base64.b64decode(entry[f"{field}-data"]).decode()
    return (folder / entry[field]).read_text() if entry.get(field) else ""
