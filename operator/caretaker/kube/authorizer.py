"""Authenticates and authorizes readers of the metrics, as kube-rbac-proxy and controller-runtime do.

A TokenReview checks the token, and a SubjectAccessReview checks that its bearer may get /metrics. Inputs: a
client that may create both. Results are cached for a while, by the token's hash. No token is logged.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec

from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.kube.transport import Request

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
ALLOWED_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0
CACHED: Final = 256  # results of each kind
AT_ONCE: Final = 2  # concurrent reviews: requests with invented tokens must not load the API server

_Results = dict[bytes, tuple[float, HTTPStatus]]  # hash -> (expiry, result); oldest first


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _Status(msgspec.Struct):
    """Of a TokenReview, or of a SubjectAccessReview."""

    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class DelegatingAuthorizer:
    """See the module. `clock` gives seconds that never go back."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        # Two caches, so that invented tokens cannot evict valid ones.
        self._allowed: _Results = {}
        self._refused: _Results = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, token: str) -> HTTPStatus:
        """OK, UNAUTHORIZED, FORBIDDEN, or SERVICE_UNAVAILABLE while the API server does not answer."""
        try:
            key = hashlib.sha256(token.encode()).digest()
        except UnicodeEncodeError:  # the header was not UTF-8
            return HTTPStatus.UNAUTHORIZED
        if (cached := self._cached(key)) is not None:
            return cached
        async with self._slots:
            if (cached := self._cached(key)) is not None:
                return cached
            try:
                status = await self._authorize(token)
            except (ApiError, msgspec.ValidationError) as error:
                logger.warning("a reader of metrics cannot be reviewed: %s", error)
                return HTTPStatus.SERVICE_UNAVAILABLE
        self._cache(key, status)
        return status

    def _cached(self, key: bytes) -> HTTPStatus | None:
        now = self._clock()
        for results in (self._allowed, self._refused):
            expiry, status = results.get(key, (0.0, None))
            if now < expiry:
                return status
        return None

    def _cache(self, key: bytes, status: HTTPStatus) -> None:
        allowed = status is HTTPStatus.OK
        results = self._allowed if allowed else self._refused
        results.pop(key, None)
        while len(results) >= CACHED:
            del results[next(iter(results))]
        results[key] = (self._clock() + (ALLOWED_SECONDS if allowed else REFUSED_SECONDS), status)

    async def _authorize(self, token: str) -> HTTPStatus:
        review = await self._review("authentication", "TokenReview", {"token": token})
        if not review.authenticated:
            return HTTPStatus.UNAUTHORIZED
        user = review.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        access = await self._review("authorization", "SubjectAccessReview", spec)
        return HTTPStatus.OK if access.allowed else HTTPStatus.FORBIDDEN

    async def _review(self, group: str, kind: str, spec: dict[str, Any]) -> _Status:
        """Reviews change nothing, so a standby may create them, too."""
        body = msgspec.json.encode({"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec})
        path = f"/apis/{group}.k8s.io/v1/{kind.lower()}s"
        request = Request("create", path, body=body, timeout=self._client.write_seconds)
        return (await self._client.urgent(request, _Review)).status
