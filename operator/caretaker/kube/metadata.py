"""An HTTP session for somebody else's client (kopf) that is given no more of some kinds than their metadata.

Inputs: the headers, TLS and proxy that our own client has, and the plurals of the kinds. It knows nothing of
what is read.

What tenants write cannot end the watch of everybody's objects: a spec that nests deeper than a decoder goes
is not asked for, and managedFields, which nests as deep, is taken out before anybody else sees it.
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
# process. Later versions bound them by themselves; a level takes two calls of PatientDecoder, which is not.
RECURSION_LIMIT: Final = 12_000 if sys.version_info < (3, 12) else 25_000


class PatientDecoder(json.JSONDecoder):
    """Slow, and as deep as Python functions may call each other: the usual one is bound to the C stack, at
    1,500 levels in Python 3.12. Made of what the standard library has for where its C half is missing."""

    def __init__(self) -> None:
        super().__init__()
        python: Any = json.decoder
        self.parse_object = python.JSONObject
        self.parse_array = python.JSONArray
        self.parse_string = python.py_scanstring
        self.scan_once = python.scanner.py_make_scanner(self)


def read(text: str) -> Any:
    """JSON, however deep."""
    try:
        return json.loads(text)
    except RecursionError:
        return PatientDecoder().decode(text)


def shallow(found: Any) -> Any:
    """A list or an event of a watch without its objects' managedFields."""
    if not isinstance(found, dict):
        return found  # not from the API server, but from a proxy, say; kopf reports it
    items = found.get("items")
    for one in [found.get("object"), *(items if isinstance(items, list) else ())]:
        meta = one.get("metadata") if isinstance(one, dict) else None
        if isinstance(meta, dict):
            meta.pop("managedFields", None)
    return found


class _Answer(aiohttp.ClientResponse):
    """A list, or an error."""

    async def json(self, **options: Any) -> Any:
        found = await super().json(**options, loads=read)
        if isinstance(found, dict) and "items" in found:
            found["items"] = shallow(found)["items"] or []  # null where there are none: kopf expects a list
        return found


class _Events:
    """The content of a watch."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """Whole lines."""
        async for line in lines(self._content):
            yield json.dumps(shallow(read(line.decode()))).encode() + b"\n"


class MetadataSession:
    """What kopf uses of an aiohttp.ClientSession; lists and watches of the kinds ask for metadata alone.

    A run of kopf that ends closes its session before all of its watches have ended. One of those that asks
    once more is connected anew, as with a session of kopf's own making: told that the session is closed it
    would wait for ever.
    """

    closed: Final = False

    def __init__(
        self, headers: Mapping[str, str], connection: Mapping[str, Any], plurals: Collection[str]
    ) -> None:
        self.headers = dict(headers)
        self._connection = connection  # keywords of a request
        self._plurals = frozenset(plurals)
        self._open: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> aiohttp.ClientResponse:
        """As aiohttp's."""
        if self._open is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._open = aiohttp.ClientSession(connector=connector, response_class=_Answer)
        parts = urlsplit(url)
        ours, watch = parts.path.rpartition("/")[2] in self._plurals, "watch" in parse_qs(parts.query)
        accept = (METADATA_ONLY if watch else METADATA_LIST_ONLY) if ours else {}
        wanted = {**self.headers, **accept, **(headers or {})}
        answer = await self._open.request(method, url, headers=wanted, **self._connection, **options)
        if ours and watch:
            answer.content = cast("aiohttp.StreamReader", _Events(answer.content))
        return answer

    async def close(self) -> None:
        """Close what is open."""
        session, self._open = self._open, None
        if session is not None:
            await session.close()
