"""An HTTP session for kopf that requests some kinds as metadata only.

Inputs: the headers, TLS and proxy of our own client, and the plurals of the kinds.

One tenant's objects cannot end the watch of all objects, nor fill the memory: a spec that nests deeper than a
decoder can read is not requested; managedFields, which nests as deep, and labels are skipped; of annotations
kopf gets a digest; and a page of a list has PAGE_BYTES at most.
"""

import json
import json.decoder
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from hashlib import blake2b
from typing import Any, Final, cast
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import aiohttp
import msgspec

from caretaker.kube.client import METADATA_LIST_ONLY, METADATA_ONLY, PAGE, PageLimit
from caretaker.kube.transport import lines, read

# Objects may nest 10,000 deep (k8s.io/apiserver). In Python 3.11 this limit alone keeps decoders in C, which
# take a call a level, from the end of the stack: 22,000 levels, as a message of SQS may have, end the
# process. Later versions bound them by themselves; a level takes two calls of PurePythonDecoder, which is
# not.
RECURSION_LIMIT: Final = 12_000 if sys.version_info < (3, 12) else 25_000


class PurePythonDecoder(json.JSONDecoder):
    """Slow, but bound by the recursion limit of Python alone: the usual decoder is bound to the C stack, at
    1,500 levels in Python 3.12. Uses the standard library's own fallback for a missing C extension."""

    def __init__(self) -> None:
        super().__init__()
        python: Any = json.decoder
        self.parse_object = python.JSONObject
        self.parse_array = python.JSONArray
        self.parse_string = python.py_scanstring
        self.scan_once = python.scanner.py_make_scanner(self)


def decode_json(text: str) -> Any:
    """JSON, however deep."""
    try:
        return json.loads(text)
    except RecursionError:
        return PurePythonDecoder().decode(text)


class _Metadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """The fields that are read; others are skipped, and never allocated."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None
    annotations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Object(msgspec.Struct, rename="camel", omit_defaults=True):
    metadata: _Metadata
    kind: str = ""
    api_version: str = ""

    def digest(self) -> None:
        """Put a digest in place of the annotations. The API server always writes them in the same order."""
        if self.metadata.annotations:
            digest = blake2b(self.metadata.annotations, digest_size=16).hexdigest()
            self.metadata.annotations = msgspec.Raw(msgspec.json.encode({"digest": digest}))


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Change(msgspec.Struct):
    type: str
    object: _Object


class _ListMetadata(msgspec.Struct, rename="camel", omit_defaults=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, rename="camel", omit_defaults=True):
    metadata: _ListMetadata
    items: list[_Object] | None = None
    kind: str = ""
    api_version: str = ""


_READ: Final = frozenset(field.encode_name for field in msgspec.structs.fields(_Metadata))
_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_change: Final = msgspec.json.Decoder(_Change).decode
_decode_page: Final = msgspec.json.Decoder(_Page).decode


def without_unread(text: bytes) -> bytes:
    """A list or an event without the metadata that is not read: slow, for one that nests too deep."""
    found = decode_json(text.decode())
    for one in (found.get("object"), *(found.get("items") or ())):
        if isinstance(one, dict) and isinstance(meta := one.get("metadata"), dict):
            one["metadata"] = {key: value for key, value in meta.items() if key in _READ}
    return json.dumps(found).encode()


def event_of(line: bytes) -> bytes:
    """An event of a watch with the metadata that is read. What is no change of an object stays as it is."""
    try:
        return _event_of(line)
    except RecursionError:
        return _event_of(without_unread(line))
    except msgspec.DecodeError:
        return line  # not from the API server, maybe from a proxy; kopf reports it


def _event_of(line: bytes) -> bytes:
    if _decode_event(line).type not in ("ADDED", "MODIFIED", "DELETED"):
        return line
    change = _decode_change(line)
    change.object.digest()
    return msgspec.json.encode(change)


def page_of(text: bytes, *, alone: bool = True) -> Any:
    """A page of a list with the metadata that is read. None where one of several objects nests too deep: the
    slow way takes twenty times the memory."""
    try:
        page = _decode_page(text)
    except RecursionError:
        if not alone:
            return None
        page = _decode_page(without_unread(text))
    page.items = page.items or []  # null if empty: kopf expects a list
    for one in page.items:
        one.digest()
    return json.loads(msgspec.json.encode(page))


class _ListResponse(aiohttp.ClientResponse):
    """A list, or an error. `page`: its part that has been read."""

    page: Any = None

    async def json(self, **options: Any) -> Any:
        return self.page or await super().json(**options, loads=decode_json)


class _WatchContent:
    """The content of a watch."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """Whole lines."""
        async for line in lines(self._content):
            yield event_of(line) + b"\n"


class MetadataSession:
    """The part of aiohttp.ClientSession that kopf uses; lists and watches of the kinds request metadata only.

    A run of kopf that ends closes its session before all of its watches have ended. A watch that sends one
    more request gets a new connection, as with kopf's own session: with a closed session it would wait for
    ever.
    """

    closed: Final = False

    def __init__(
        self, headers: Mapping[str, str], connection: Mapping[str, Any], plurals: Collection[str]
    ) -> None:
        self.headers = dict(headers)
        self._connection = connection  # keywords of a request
        self._plurals = frozenset(plurals)
        self._limits: dict[str, PageLimit] = {}  # by path
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> aiohttp.ClientResponse:
        """As aiohttp's."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, response_class=_ListResponse)
        session, parts = self._session, urlsplit(url)
        reduced, query = parts.path.rpartition("/")[2] in self._plurals, dict(parse_qsl(parts.query))
        watch = "watch" in query
        accept = METADATA_ONLY if watch else METADATA_LIST_ONLY
        wanted = {**self.headers, **({"Accept": accept} if reduced else {}), **(headers or {})}
        options = {**options, **self._connection, "headers": wanted}
        if reduced and not watch:
            return await self._page(session, method, parts, query, options)
        response = await session.request(method, url, **options)
        if reduced:
            response.content = cast("aiohttp.StreamReader", _WatchContent(response.content))
        return response

    async def _page(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: SplitResult,
        query: Mapping[str, str],
        options: Mapping[str, Any],
    ) -> aiohttp.ClientResponse:
        """A page with as many objects as are not too large together."""
        limit = self._limits.setdefault(url.path, PageLimit(PAGE))
        while True:
            address = url._replace(query=urlencode({**query, "limit": limit.items})).geturl()
            response = cast(_ListResponse, await session.request(method, address, **options))
            if response.status >= 300:
                return response
            text = await read(response, limit.bytes)
            if text is not None:
                response.page = page_of(text, alone=limit.items == 1)
            if text is not None and response.page is not None:
                limit.answered(len(text))
                return response
            response.close()
            limit.shrink()

    async def close(self) -> None:
        """Close the session, if one is open."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
