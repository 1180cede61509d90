"""The verbs of the Kubernetes API, decoding straight into structs.

Inputs: paths as the API writes them (/api/v1/nodes) and the struct to decode into. It must not know any
kind, nor retry: callers interpret failures.
"""

import builtins
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.kube.errors import ApiError
from caretaker.kube.rest_config import RestConfig
from caretaker.kube.transport import JSON, JSON_PATCH, READ_SECONDS, TOO_LARGE, Params, Request, Transport

T = TypeVar("T")
R = TypeVar("R")
Body = Mapping[str, Any] | msgspec.Struct | bytes
List = builtins.list  # `list` is a method below

# What to accept, so that objects come as their metadata alone.
METADATA_ONLY = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST_ONLY = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
NESTED_TOO_DEEP = "NestedTooDeep"
# Of a page: 200 Pods as large as a tenant can make them have 300 MiB, nearly the limit of the operator's Pod.
# 500 Nodes with 50 images each have about 8 MiB.
PAGE_BYTES: Final = 8 << 20
PAGE: Final = 500  # objects
# Paged attempts at a list whose continue token expires, before it is read in one piece.
_PAGED_TRIES = 2
_DICT: Any = dict  # the default type; `Any`, for that of the result follows from where it goes


class PartialObjectMetadata(msgspec.Struct):
    """An object of any kind. get() and list() ask the API server for its metadata alone."""

    metadata: WireMeta


class ListOptions(TypedDict, total=False):
    """Keywords of list()."""

    params: Params | None
    page: int


class PageLimit:
    """How many objects the next page of a list may have, and how many bytes.

    items  `most` at most
    bytes  0 = any number: an object alone is read however large it is
    """

    def __init__(self, most: int) -> None:
        self.items = self._most = most

    @property
    def bytes(self) -> int:
        """See the class."""
        return PAGE_BYTES if self.items > 1 else 0

    def shrink(self) -> None:
        """The page was too large."""
        self.items = max(self.items // 8, 1)

    def answered(self, size: int) -> None:
        """The page has been read, and has so many bytes."""
        if size < PAGE_BYTES // 4:
            self.items = min(2 * self.items, self._most)


class KubeClient(Transport):
    """One API server, and the verbs on it.

    Reads are by quorum: no resourceVersion is sent. `type` is the type to decode into: a struct, a
    dict, bytes or msgspec.Raw for the answer as it came. Every call raises ApiError (with status 200 and the
    reason NestedTooDeep for an answer that cannot be read), and
    msgspec.ValidationError naming the field that does not fit `type`; writes raise NotLeader too, and then
    were not sent. Timeouts are in seconds.
    """

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace_default: str | None = None,
        *,
        pool: int = 64,
    ) -> Self:
        """A client for the kubeconfig given, else $KUBECONFIG, ~/.kube/config or the service account.

        namespace_default overrides the context's namespace; pool is the number of requests at a time,
        watches and the Lease apart. Raises ConfigError. Sends nothing yet.
        """
        return cls(await RestConfig.load(kubeconfig, context), namespace=namespace_default, pool=pool)

    async def get(
        self,
        path: str,
        type: type[T] = _DICT,  # noqa: A002 - the word of the interface
        *,
        params: Params | None = None,
        timeout: float = READ_SECONDS,
    ) -> T:
        """Read one object."""
        accept = METADATA_ONLY if type is PartialObjectMetadata else JSON
        return _decode(await self.call(Request("get", path, params, accept, timeout=timeout)), type)

    @overload
    async def list(
        self, path: str, item_type: type[T] = ..., *, each: None = None, **options: Unpack[ListOptions]
    ) -> tuple[List[T], str]: ...

    @overload
    async def list(
        self, path: str, item_type: type[T], *, each: Callable[[T], R], **options: Unpack[ListOptions]
    ) -> tuple[List[R], str]: ...

    async def list(
        self,
        path: str,
        item_type: Any = dict,
        *,
        each: Callable[[Any], Any] | None = None,
        params: Params | None = None,
        page: int = PAGE,
    ) -> tuple[List[Any], str]:
        """Every object of a collection as of one moment, and that moment's resourceVersion.

        Pages of `page` items, of fewer where these have more than PAGE_BYTES; `each` maps an item as its page
        arrives, so that wire structs need not all be held at once. A continue token that expires (410)
        starts the list over, the second time in one piece: a partial list is never returned.
        """
        accept = METADATA_LIST_ONLY if item_type is PartialObjectMetadata else JSON
        decode = _page_decoder(item_type)
        items: List[Any] = []
        token, tries, limit = "", 0, PageLimit(page)
        while True:
            query = dict(params or {})
            if tries < _PAGED_TRIES:
                query["limit"] = limit.items
            if token:
                query["continue"] = token
            most = limit.bytes if "limit" in query else 0
            try:
                answer = await self.call(Request("list", path, query, accept, most=most))
            except ApiError as error:
                if error.reason == TOO_LARGE:
                    limit.shrink()
                    continue
                if not (error.gone and token):
                    raise
                items, token, tries = [], "", tries + 1
                continue
            limit.answered(len(answer))
            found = decode(answer)
            items.extend(found.items or () if each is None else map(each, found.items or ()))
            token = found.metadata.continue_
            if not token:
                return items, found.metadata.resource_version

    async def create(
        self,
        path: str,
        body: Body,
        type: type[T] = _DICT,  # noqa: A002
        *,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> T:
        """POST an object to its collection; its stored form."""
        seconds = timeout or self.write_seconds
        request = Request("create", path, params, body=_encode(body), timeout=seconds)
        return _decode(await self.call(request), type)

    async def patch(
        self,
        path: str,
        body: Body | List[dict[str, Any]],
        type: type[T] = _DICT,  # noqa: A002
        *,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> T:
        """PATCH an object or a subresource; its stored form. A list of operations is a JSON Patch, any other
        body a merge patch.

        The server checks a metadata.resourceVersion or metadata.uid in the body: 409 Conflict.
        """
        seconds = timeout or self.write_seconds
        content_type = JSON_PATCH if isinstance(body, List) else ""
        request = Request("patch", path, params, JSON, _encode(body), seconds, content_type)
        return _decode(await self.call(request), type)

    async def delete(
        self,
        path: str,
        *,
        type: type[T] = _DICT,  # noqa: A002
        body: Body | None = None,
    ) -> T:
        """DELETE an object; body is its DeleteOptions (preconditions, gracePeriodSeconds).

        The answer is the object for Pods (gone, or with deletionTimestamp while it terminates), a Status
        for most other kinds. A 404 may follow our own success, see Transport.
        """
        encoded = _encode(body) if body is not None else None
        request = Request("delete", path, body=encoded, timeout=self.write_seconds)
        return _decode(await self.call(request), type)

    async def urgent(self, request: Request, type: type[T]) -> T:  # noqa: A002
        """Send a request that passes neither the guard nor the queue for a slot: for the Lease's own, and for
        reviews of access, which change nothing."""
        return _decode(await self.call(request, urgent=True), type)


def _encode(body: Body | List[dict[str, Any]]) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def _decode(answer: bytes, wanted: type[T]) -> T:
    if wanted in (bytes, msgspec.Raw):
        return wanted(answer)  # type: ignore[call-arg]
    return cast(T, _decoder(cast(Any, wanted))(answer))


@cache
def _decoder(wanted: Any) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(wanted).decode

    def checked(answer: bytes) -> Any:
        try:
            return decode(answer)
        except RecursionError:  # the depth that decoders can read differs between versions of Python
            raise ApiError(200, NESTED_TOO_DEEP, "it nests deeper than this Python can read") from None

    return checked


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


@cache
def _page_decoder(item: Any) -> Callable[[bytes], Any]:
    page = msgspec.defstruct("Page", [("metadata", _ListMeta), ("items", builtins.list[item] | None, None)])
    return _decoder(page)
