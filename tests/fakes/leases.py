"""One Lease object in memory and unreliable lines to it.

Inputs: merge patches and creates as an API server takes them. It must keep the server's promises (one
resourceVersion per write, 409 when it no longer holds, 404, AlreadyExists); everything else may go wrong.
"""
# ruff: noqa: A002, ARG002  the interface is the client's, of which one object in memory needs little

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from caretaker.kube.errors import ApiError, error_from
from caretaker.kube.transport import Request
from caretaker.runtime.lease import WireLease
from fakes.answers import already_exists, conflict, not_found

_LEASES: Final = "leases.coordination.k8s.io"
_NAME: Final = "caretaker"


class LeaseServer:
    """The stored object; `writes` are the acknowledged states in order: (holder, time of the write)."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] | None = None
        self.version = 0
        self.writes: list[tuple[str, float]] = []

    def read(self) -> dict[str, Any]:
        if self.spec is None:
            raise _refused(not_found(_LEASES, _NAME))
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": dict(self.spec)}

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.spec is not None:
            raise _refused(already_exists(_LEASES, _NAME))
        return self._store(body["spec"])

    def patch(self, body: dict[str, Any]) -> dict[str, Any]:
        current = self.read()
        if body["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            raise _refused(conflict(_LEASES, _NAME))
        return self._store(current["spec"] | body["spec"])

    def _store(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.spec = {name: value for name, value in spec.items() if value is not None}
        self.writes.append((self.spec.get("holderIdentity", ""), asyncio.get_running_loop().time()))
        return self.read()


def _refused(body: dict[str, Any]) -> ApiError:
    return error_from(body["code"], msgspec.json.encode(body))


Work = Callable[[], dict[str, Any]]


class Line:
    """One candidate's way to the server: a LeaseClient.

    delay      seconds to the server, and again back
    blackhole  requests are lost, nothing answers
    deaf       requests arrive, answers are lost
    failing    every request is answered 503
    """

    def __init__(self, server: LeaseServer, delay: float = 0.005) -> None:
        self.server = server
        self.delay = delay
        self.blackhole = False
        self.deaf = False
        self.failing = False

    async def urgent(self, request: Request, type: Any) -> WireLease:
        body = msgspec.json.decode(request.body or b"{}")
        works: dict[str, Work] = {
            "get": self.server.read,
            "create": lambda: self.server.create(body),
            "patch": lambda: self.server.patch(body),
        }
        return await self._request(works[request.verb], request.timeout)

    async def _request(self, work: Work, timeout: float) -> WireLease:
        # A request that has arrived is executed though its sender has stopped waiting.
        travelling = asyncio.ensure_future(self._travel(work))
        # Nobody may be left to hear how it ended; asyncio would complain in whichever test runs by then.
        travelling.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(travelling), timeout)
        except TimeoutError:
            raise ApiError(0, "Timeout") from None

    async def _travel(self, work: Work) -> WireLease:
        await self._vanish(self.blackhole)
        await asyncio.sleep(self.delay)
        if self.failing:
            raise ApiError(503, "ServiceUnavailable")
        answer = work()
        await self._vanish(self.deaf)
        await asyncio.sleep(self.delay)
        return msgspec.convert(answer, WireLease)

    async def _vanish(self, lost: bool) -> None:
        if lost:
            await asyncio.get_running_loop().create_future()
