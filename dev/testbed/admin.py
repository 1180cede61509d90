"""A thin client of the Kubernetes API for those who look on: tests, benchmarks, the demo.

Objects are plain dicts. The operator must not use it, and it shares no code with the operator's
client, so that a fault in one is not hidden by the same fault in the other.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import aiohttp

from caretaker.registry import KINDS
from testbed.closing import connections_closed

Json: TypeAlias = dict[str, Any]
Jsons: TypeAlias = list[Json]

_PREFIXES: Final = {
    "bindings": "/api/v1",
    "configmaps": "/api/v1",
    "endpoints": "/api/v1",
    "events": "/api/v1",
    "limitranges": "/api/v1",
    "namespaces": "/api/v1",
    "nodes": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "pods": "/api/v1",
    "resourcequotas": "/api/v1",
    "secrets": "/api/v1",
    "serviceaccounts": "/api/v1",
    "services": "/api/v1",
    "daemonsets": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
    "jobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "clusterroles": "/apis/rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
    "validatingadmissionpolicies": "/apis/admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings": "/apis/admissionregistration.k8s.io/v1",
    "mutatingadmissionpolicies": "/apis/admissionregistration.k8s.io/v1",
    "mutatingadmissionpolicybindings": "/apis/admissionregistration.k8s.io/v1",
    **{info.plural: "/apis/caretaker.dev/v1alpha1" for info in KINDS},
}
_PATCH_TYPES: Final = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(Exception):
    """The API server refused a request: `status` (HTTP), `reason` and `message` of its Status object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    type: str
    object: Json


def path(resource: str, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    """The URL path of a resource by its plural, such as `path("pods", "default", "web", "status")`."""
    parts = [_PREFIXES[resource]]
    if namespace is not None:
        parts += ["namespaces", namespace]
    return "/".join([*parts, resource, *([name] if name else []), *([sub] if sub else [])])


class Admin:
    """One connection pool to one API server; use it as an async context manager."""

    def __init__(
        self,
        url: str,
        token: str,
        ca: Path,
        *,
        connections: int = 32,
        user_agent: str = "testbed",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """`headers` go with each request, such as those of impersonation; a name may come twice."""
        self.url = url
        self._ca = ca
        self._connections = connections
        self._headers = [("Authorization", f"Bearer {token}"), ("User-Agent", user_agent), *headers]
        self._session: aiohttp.ClientSession | None = None
        self._under_way: set[asyncio.Task[Json]] = set()

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(cafile=str(self._ca))
        self._session = aiohttp.ClientSession(
            self.url,
            headers=self._headers,
            # Watches hold a connection each, so the pool must not be what limits them.
            connector=aiohttp.TCPConnector(ssl=context, limit=0, limit_per_host=0),
            timeout=aiohttp.ClientTimeout(total=60),
        )
        self._slots = asyncio.Semaphore(self._connections)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            try:
                await asyncio.gather(*self._under_way, return_exceptions=True)
            finally:  # whoever is cancelled here, too
                session, self._session = self._session, None
                await session.close()
            await connections_closed()

    async def request(
        self,
        method: str,
        url: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Json:
        """Send one request and return its JSON; ApiError when refused, aiohttp's errors when not sent.

        Once begun it is seen through though the caller is cancelled: a connection that is dropped in the
        middle takes its time to close, and would outlive the event loop of whoever ends a test then.
        """
        assert self._session is not None, "use the client as an async context manager"
        await self._slots.acquire()
        sending = asyncio.create_task(self._send(method, url, body, content_type, params))
        self._under_way.add(sending)
        sending.add_done_callback(self._sent)
        return await asyncio.shield(sending)

    def _sent(self, sending: asyncio.Task[Json]) -> None:
        self._under_way.discard(sending)
        self._slots.release()

    async def _send(
        self, method: str, url: str, body: Any, content_type: str, params: Mapping[str, str] | None
    ) -> Json:
        assert self._session is not None, "it was closed while this waited for its turn"
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, url, data=data, params=params, headers={"Content-Type": content_type}
        ) as response:
            text = await response.text()
            if response.status >= 400:
                raise _error(response.status, text)
            result: Json = json.loads(text) if text.startswith("{") else {"text": text}
            return result

    async def get(self, url: str) -> Json:
        """The object at `url`; ApiError 404 when there is none."""
        return await self.request("GET", url)

    async def find(self, url: str) -> Json | None:
        """The object at `url`, or None."""
        try:
            return await self.get(url)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, url: str, *, labels: str | None = None, fields: str | None = None) -> Jsons:
        """The items at `url`, in one consistent read."""
        items: Jsons = (await self.request("GET", url, params=_selectors(labels, fields)))["items"]
        return items

    async def create(self, url: str, body: Json) -> Json:
        """POST an object to its collection (or to a sub-resource such as `eviction`)."""
        return await self.request("POST", url, body)

    async def put(self, url: str, body: Json) -> Json:
        """Replace an object."""
        return await self.request("PUT", url, body)

    async def patch(self, url: str, body: Any, kind: str = "merge") -> Json:
        """Patch an object: merge, json, strategic, or apply (server-side, forced, as `testbed`)."""
        params = {"fieldManager": "testbed", "force": "true"} if kind == "apply" else None
        return await self.request("PATCH", url, body, content_type=_PATCH_TYPES[kind], params=params)

    async def apply(self, url: str, body: Json) -> Json:
        """Server-side apply: create or update."""
        return await self.patch(url, body, "apply")

    async def delete(self, url: str, *, grace: int | None = None, propagation: str = "Background") -> None:
        """Delete an object, or every object of a collection; nothing happens when there is none."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self.request("DELETE", url, options)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(
        self, url: str, version: str, *, labels: str | None = None, fields: str | None = None
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events after resourceVersion `version`, until the server ends the stream; ApiError on ERROR."""
        assert self._session is not None, "use the client as an async context manager"
        params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        params |= _selectors(labels, fields)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with self._session.get(url, params=params, timeout=timeout) as response:
            if response.status >= 400:
                raise _error(response.status, await response.text())
            try:
                async for line in _lines(response.content):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code", 500), json.dumps(event["object"]))
                    yield WatchEvent(event["type"], event["object"])
            finally:
                # A polite TLS goodbye would outlive the event loop of whoever stops watching.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    async def states(
        self, url: str, *, labels: str | None = None, fields: str | None = None
    ) -> AsyncGenerator[dict[str, Json], None]:
        """Objects by uid, first as listed and then after each event; goes on through lost connections.

        The yielded dict is one and the same, changed in place.
        """
        while True:
            try:
                listed = await self.request("GET", url, params=_selectors(labels, fields))
                found = {item["metadata"]["uid"]: item for item in listed["items"]}
                yield found
                version = listed["metadata"]["resourceVersion"]
                async with aclosing(self.watch(url, version, labels=labels, fields=fields)) as events:
                    async for event in events:
                        if event.type != "BOOKMARK":
                            _follow(found, event)
                            yield found
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.2)  # the API server is being restarted
            except ApiError as error:
                if error.status not in {410, 429, 500, 503, 504}:
                    raise
                await asyncio.sleep(0.2)

    async def wait_for_all(
        self,
        url: str,
        predicate: Callable[[Jsons], bool],
        timeout: float = 180.0,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Jsons:
        """The objects of a collection once `predicate` holds for their list; TimeoutError shows the last."""
        items: Jsons = []
        started = time.monotonic()
        try:
            states = self.states(url, labels=labels, fields=fields)
            async with asyncio.timeout(timeout), aclosing(states):
                async for found in states:
                    items = list(found.values())
                    if predicate(items):
                        return items
        except TimeoutError:
            spent = time.monotonic() - started
            raise TimeoutError(
                f"{url}: not as expected after {spent:.1f} s; last seen:\n{_brief(items)}"
            ) from None
        raise AssertionError("states() never ends")

    async def wait_for(self, url: str, predicate: Callable[[Json], bool], timeout: float = 180.0) -> Json:
        """The object at `url` once it exists and `predicate` holds."""
        collection, _, name = url.rpartition("/")
        fields = f"metadata.name={name}"
        items = await self.wait_for_all(
            collection, lambda found: any(predicate(item) for item in found), timeout, fields=fields
        )
        return items[0]

    async def wait_gone(self, url: str, timeout: float = 180.0) -> None:
        """Return once there is no object at `url`."""
        collection, _, name = url.rpartition("/")
        await self.wait_for_all(collection, lambda found: not found, timeout, fields=f"metadata.name={name}")


def _follow(found: dict[str, Json], event: WatchEvent) -> None:
    uid = event.object["metadata"]["uid"]
    if event.type == "DELETED":
        found.pop(uid, None)
    else:
        found[uid] = event.object


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    pairs = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in pairs.items() if value is not None}


def _error(status: int, text: str) -> ApiError:
    try:
        body = json.loads(text)
        return ApiError(status, body.get("reason", ""), body.get("message", text))
    except (ValueError, AttributeError):
        return ApiError(status, "", text)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: StreamReader.readline refuses those above its buffer, and ledgers are longer."""
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def _brief(items: Jsons) -> str:
    shown = [
        {"name": item["metadata"]["name"], **{key: item[key] for key in ("status", "data") if key in item}}
        for item in items[:5]
    ]
    more = f"\n... and {len(items) - 5} more" if len(items) > 5 else ""
    return "\n".join(json.dumps(item)[:1000] for item in shown) + more
