"""An HTTP session for kopf that requests some kinds as metadata only.

Inputs: the headers, TLS and proxy of our own client, and the plurals of the kinds. It does not interpret
objects.

One tenant's object cannot end the watch of all objects: a spec that nests deeper than a decoder can read is
not requested, and managedFields, which nests as deep, is removed before kopf decodes it.
"""

import json
import json.decoder
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import aiohttp

from caretaker.kube.client import METADATA_LIST_ONLY, METADATA_ONLY
from caretaker.kube.transport import lines

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


def without_managed_fields(found: Any) -> Any:
    """A list or an event of a watch without its objects' managedFields."""
    if not isinstance(found, dict):
        return found  # not from the API server, maybe from a proxy; kopf reports it
    items = found.get("items")
    for item in [found.get("object"), *(items if isinstance(items, list) else ())]:
        meta = item.get("metadata") if isinstance(item, dict) else None
        if isinstance(meta, dict):
            meta.pop("managedFields", None)
    return found


class _ListResponse(aiohttp.ClientResponse):
    """A list, or an error."""

    async def json(self, **options: Any) -> Any:
        found = await super().json(**options, loads=decode_json)
        if isinstance(found, dict) and "items" in found:
            # null if empty: kopf expects a list
            found["items"] = without_managed_fields(found)["items"] or []
        return found


class _WatchContent:
    """The content of a watch."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """Whole lines."""
        async for line in lines(self._content):
            yield json.dumps(without_managed_fields(decode_json(line.decode()))).encode() + b"\n"


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
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> aiohttp.ClientResponse:
        """As aiohttp's."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, response_class=_ListResponse)
        parts = urlsplit(url)
        reduced, watch = parts.path.rpartition("/")[2] in self._plurals, "watch" in parse_qs(parts.query)
        accept = METADATA_ONLY if watch else METADATA_LIST_ONLY
        wanted = {**self.headers, **({"Accept": accept} if reduced else {}), **(headers or {})}
        response = await self._session.request(method, url, headers=wanted, **self._connection, **options)
        if reduced and watch:
            response.content = cast("aiohttp.StreamReader", _WatchContent(response.content))
        return response

    async def close(self) -> None:
        """Close the session, if one is open."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
