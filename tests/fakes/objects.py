"""One collection in memory behind the scripted API server: what tests need of a real one, and no more.

Inputs: requests as the operator's client sends them. No schema, no admission, no selectors, no PUT;
tests/integration/kube/test_contract.py holds what is here to a real server.
"""

import asyncio
import json
from typing import Any, Final
from uuid import uuid4

from aiohttp import web

from fakes.answers import (
    Json,
    already_exists,
    bookmark,
    conflict,
    deleted,
    event,
    listing,
    not_found,
    page_expired,
    version_expired,
)
from fakes.apiserver import FakeApiServer, answer, status

_CREATED_AT: Final = "2026-01-01T00:00:00Z"


class Objects:
    """Objects of one namespace by name, at `path`.

    resource   the plural, with its group if it has one
    status     whether the kind has a status subresource
    """

    def __init__(
        self, api: FakeApiServer, path: str, resource: str, kind: str, *, status: bool = False
    ) -> None:
        self.items: dict[str, Json] = {}
        self.version = 100
        self._path, self._resource, self._kind, self._status = path, resource, kind, status
        self._api_version = path.partition("/namespaces/")[0].removeprefix("/apis/").removeprefix("/api/")
        self._oldest = self.version
        self._events: list[tuple[int, Json]] = []
        self._more = asyncio.Event()
        self._pages: dict[str, tuple[int, list[Json]]] = {}  # by continue token: as of when, what is left
        api.on("GET", path, self._list)
        api.on("POST", path, self._create)
        for method, handler in (("GET", self._get), ("PATCH", self._patch), ("DELETE", self._delete)):
            api.on(method, f"{path}/", handler)

    def compact(self) -> None:
        """Forget what was: 410 for continue tokens and for watches from before now."""
        self._oldest = self.version
        self._pages.clear()

    async def _list(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        if query.get("watch"):
            return await self._watch(request)
        version, items = self.version, [_item(self.items[name]) for name in sorted(self.items)]
        if token := query.get("continue"):
            if token not in self._pages:
                return status(page_expired())
            version, items = self._pages[token]
        limit = int(query.get("limit", 0)) or len(items)
        items, left = items[:limit], items[limit:]
        token = uuid4().hex if left else ""
        if left:
            self._pages[token] = version, left
        about = {"kind": self._kind, "api_version": self._api_version}
        return answer(listing(version, *items, token=token, left=len(left), **about))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(kind: str, item: Json) -> None:
            await response.write(json.dumps(event(kind, item)).encode() + b"\n")

        since = int(request.query.get("resourceVersion") or self.version)
        if since < self._oldest:
            await send("ERROR", version_expired(since, self._oldest))
            return response
        if request.query.get("sendInitialEvents"):
            for item in self.items.values():
                await send("ADDED", item)
            first = bookmark(self.version, self._kind, self._api_version)
            first["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
            await send("BOOKMARK", first)
        while True:
            more = self._more
            for version, line in [one for one in self._events if one[0] > since]:
                await send(**line)
                since = version
            await more.wait()

    async def _get(self, request: web.Request) -> web.StreamResponse:
        name, _ = self._named(request)
        return answer(self.items[name]) if name in self.items else status(not_found(self._resource, name))

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        name = body["metadata"]["name"]
        if name in self.items:
            return status(already_exists(self._resource, name))
        namespace = self._path.split("/")[-2]
        meta = {"namespace": namespace, "uid": str(uuid4()), "creationTimestamp": _CREATED_AT}
        item = {**body, "kind": self._kind, "apiVersion": self._api_version}
        item["metadata"] = {**body["metadata"], **meta}
        if self._status:
            item.pop("status", None)
        return answer(item if request.query.get("dryRun") else self._store("ADDED", item), 201)

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        name, sub = self._named(request)
        body, old = await request.json(), self.items.get(name)
        if old is None:
            return status(not_found(self._resource, name))
        version = old["metadata"]["resourceVersion"]
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            return status(conflict(self._resource, name))
        new = _merged(old, body)
        if self._status:  # each of the two endpoints leaves alone what is the other's
            kept, other = (old, new) if sub == "status" else (new, old)
            new = {**kept, "metadata": new["metadata"]}
            new.pop("status", None)
            new |= {"status": other["status"]} if "status" in other else {}
        return answer(new if request.query.get("dryRun") or new == old else self._store("MODIFIED", new))

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        name, _ = self._named(request)
        if name not in self.items:
            return status(not_found(self._resource, name))
        uid = self.items[name]["metadata"]["uid"]
        if not request.query.get("dryRun"):
            self._remove(name)
        return answer(deleted(self._resource, name, uid))

    def _remove(self, name: str) -> None:
        """And, as the garbage collector does, what it alone owned."""
        self._store("DELETED", self.items[name])
        self.items.pop(name)
        there = {item["metadata"]["uid"] for item in self.items.values()}
        for other, item in list(self.items.items()):
            owners = item["metadata"].get("ownerReferences")
            if other in self.items and owners and not there & {owner["uid"] for owner in owners}:
                self._remove(other)

    def _store(self, kind: str, item: Json) -> Json:
        self.version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        self.items[item["metadata"]["name"]] = item
        self._events.append((self.version, {"kind": kind, "item": item}))
        more, self._more = self._more, asyncio.Event()
        more.set()
        return item

    def _named(self, request: web.Request) -> tuple[str, str]:
        name, _, sub = request.path.removeprefix(f"{self._path}/").partition("/")
        return name, sub


def _item(stored: Json) -> Json:
    """As a list has it: kind and apiVersion are the list's."""
    return {key: value for key, value in stored.items() if key not in ("kind", "apiVersion")}


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found
