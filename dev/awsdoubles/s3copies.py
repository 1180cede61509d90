"""S3's CopyObject as its documentation has it, in front of MiniStack, which is kinder in some ways.

Input: MiniStack's address. Everything else passes as it is. What differs, by the documentation of CopyObject:
`If-Match` is judged by the object that is to be replaced (MiniStack does not look); with the metadata
directive REPLACE a Content-Type or Content-Encoding that is not sent is gone (MiniStack keeps the source's);
and so is a storage class with any directive (likewise). An object that was uploaded in parts has the tags
and the ACL that the upload was begun with (MiniStack leaves those of the object before). The conditions are
judged one after the other, the source's when it is read and `If-Match` when it is written, with `between`
between the two: a writer who comes then is met by the second alone.

    with S3Copies(aws.url, between=lambda key: ...) as s3:    # called in a thread of its own
        ...
        assert [copy.status for copy in s3.copies] == [200, 412]
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from yarl import URL

from awsdoubles.serverthread import ServerThread

SOURCE: Final = "x-amz-copy-source"
_OWN_HEADERS: Final = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "date"}


class Copy(NamedTuple):
    """One CopyObject or CompleteMultipartUpload: of which key, how it was answered, what was sent with it."""

    key: str
    status: int
    headers: Mapping[str, str]  # names in small letters


class S3Copies(ServerThread):
    """See the module. `copies` and `requests` (method, key, names in the query) grow as they are answered."""

    def __init__(self, upstream: str, between: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self.between = between
        self.denied: set[str] = set()  # keys that may not be written
        self.copies: list[Copy] = []
        self.requests: list[tuple[str, str, frozenset[str]]] = []
        self._begun: dict[str, Mapping[str, str]] = {}  # id of an upload -> what it was begun with
        self._upstream = upstream.rstrip("/")
        self._session: aiohttp.ClientSession
        self._alone: asyncio.Lock

    def routes(self) -> list[web.RouteDef]:
        """Everything."""
        return [web.route("*", "/{path:.*}", self._handle)]

    async def opened(self) -> None:
        """A client that changes nothing of what passes."""
        self._alone = asyncio.Lock()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(60), auto_decompress=False
        )

    async def closing(self) -> None:
        """Close it."""
        await self._session.close()

    async def _handle(self, http: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in http.headers.items()}
        headers = {name: value for name, value in headers.items() if name not in _OWN_HEADERS}
        key = _key(http)
        self.requests.append((http.method, key, frozenset(http.query)))
        copied = http.method == "PUT" and SOURCE in headers and "partNumber" not in http.query
        completed = http.method == "POST" and "uploadId" in http.query
        if not (copied or completed):
            answer = await self._forward(http, headers)
            if "uploads" in http.query and isinstance(answer.body, bytes):
                self._begun[answer.body.decode().partition("<UploadId>")[2].partition("<")[0]] = headers
            return answer
        async with self._alone:
            answer = await self._write(http, headers, copied=copied)
            self.copies.append(Copy(key, answer.status, headers))
        return answer

    async def _write(self, http: web.Request, headers: dict[str, str], *, copied: bool) -> web.Response:
        if copied and not await self._matches(http, headers, f"{SOURCE}-if-match"):
            return _refusal(412, "PreconditionFailed")
        await asyncio.to_thread(self.between, _key(http))
        if _key(http) in self.denied:
            return _refusal(403, "AccessDenied")
        if not copied:
            return await self._complete(http, headers)
        if not await self._matches(http, headers, "if-match"):
            return _refusal(412, "PreconditionFailed")
        return await self._forward(http, _documented(headers))

    async def _complete(self, http: web.Request, headers: dict[str, str]) -> web.Response:
        answer = await self._forward(http, headers)  # MiniStack judges If-Match itself
        begun = self._begun.get(http.query["uploadId"], {})
        place, account = http.raw_path.partition("?")[0], {"authorization": headers["authorization"]}
        if answer.status == 200 and "x-amz-tagging" not in begun:
            await self._session.delete(self._url(f"{place}?tagging"), headers=account)
        if answer.status == 200 and not any(name.startswith("x-amz-grant-") for name in begun):
            private = {**account, "x-amz-acl": "private"}
            await self._session.put(self._url(f"{place}?acl"), headers=private)
        return answer

    async def _matches(self, http: web.Request, headers: Mapping[str, str], condition: str) -> bool:
        """Whether the object is the one of this condition; the copies here are of objects onto themselves."""
        wanted = headers.get(condition)
        if wanted is None:
            return True
        # MiniStack takes the account from the key in here; it does not look at the signature.
        account = {"authorization": headers["authorization"]}
        async with self._session.head(self._url(http.raw_path.partition("?")[0]), headers=account) as found:
            return found.status == 200 and found.headers["ETag"].strip('"') == wanted.strip('"')

    async def _forward(self, http: web.Request, headers: Mapping[str, str]) -> web.Response:
        body = await http.read()
        url = self._url(http.raw_path)
        sent = self._session.request(
            http.method, url, headers=headers, data=body or None, allow_redirects=False
        )
        async with sent as response:
            kept = [(k, v) for k, v in response.headers.items() if k.lower() not in _OWN_HEADERS]
            answer = web.Response(status=response.status, body=await response.read())
        answer.headers.popall("Content-Type", None)
        answer.headers.extend(kept)
        return answer

    def _url(self, raw_path: str) -> URL:
        return URL(self._upstream + raw_path, encoded=True)


def _key(http: web.Request) -> str:
    return unquote(http.raw_path.partition("?")[0].lstrip("/").partition("/")[2])


def _refusal(status: int, code: str) -> web.Response:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")


def _documented(headers: Mapping[str, str]) -> dict[str, str]:
    """What MiniStack has to be sent to do with these as S3 does."""
    lost = {"x-amz-storage-class": "STANDARD"}
    if headers.get("x-amz-metadata-directive") == "REPLACE":
        lost |= {"content-type": "binary/octet-stream", "content-encoding": ""}
    judged = {f"{SOURCE}-if-match", "if-match"}
    return {**lost, **{name: value for name, value in headers.items() if name not in judged}}
