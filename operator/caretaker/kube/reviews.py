"""Who may read our metrics: a token is reviewed, and the authorizer asked if its bearer may get /metrics.

Inputs: a client that may create TokenReviews and SubjectAccessReviews. As kube-rbac-proxy and
controller-runtime do it. An answer is remembered for a while, by the token's hash. No token is logged.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
ALLOWED_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0
KEPT: Final = 256  # answers of each kind
AT_ONCE: Final = 2  # reviews: whoever invents tokens is not to keep the API server busy by us

T = TypeVar("T")
_Answers = dict[bytes, tuple[float, HTTPStatus]]  # hash -> until when, and what; oldest first


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


class Reviews:
    """See the module. `clock` gives seconds that never go back."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        # Apart: whoever invents tokens is not to have those forgotten that are good.
        self._allowed: _Answers = {}
        self._refused: _Answers = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, token: str) -> HTTPStatus:
        """OK, UNAUTHORIZED, FORBIDDEN, or SERVICE_UNAVAILABLE while the API server does not answer."""
        try:
            key = hashlib.sha256(token.encode()).digest()
        except UnicodeEncodeError:  # of bytes that are no UTF-8
            return HTTPStatus.UNAUTHORIZED
        if (known := self._remembered(key)) is not None:
            return known
        async with self._slots:
            if (known := self._remembered(key)) is not None:
                return known
            try:
                found = await self._asked(token)
            except (ApiError, msgspec.ValidationError) as error:
                logger.warning("who may read metrics cannot be asked: %s", error)
                return HTTPStatus.SERVICE_UNAVAILABLE
        self._remember(key, found)
        return found

    def _remembered(self, key: bytes) -> HTTPStatus | None:
        now = self._clock()
        for answers in (self._allowed, self._refused):
            until, found = answers.get(key, (0.0, None))
            if now < until:
                return found
        return None

    def _remember(self, key: bytes, found: HTTPStatus) -> None:
        allowed = found is HTTPStatus.OK
        answers = self._allowed if allowed else self._refused
        answers.pop(key, None)
        while len(answers) >= KEPT:
            del answers[next(iter(answers))]
        answers[key] = (self._clock() + (ALLOWED_SECONDS if allowed else REFUSED_SECONDS), found)

    async def _asked(self, token: str) -> HTTPStatus:
        review = await self._review("authentication", "TokenReview", {"token": token}, _TokenReview)
        if not review.status.authenticated:
            return HTTPStatus.UNAUTHORIZED
        user = review.status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        access = await self._review("authorization", "SubjectAccessReview", spec, _AccessReview)
        return HTTPStatus.OK if access.status.allowed else HTTPStatus.FORBIDDEN

    async def _review(self, group: str, kind: str, spec: dict[str, Any], answer: type[T]) -> T:
        """Reviews change nothing, so a standby asks them, too."""
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"/apis/{group}.k8s.io/v1/{kind.lower()}s"
        return await self._client.create(path, body, answer, unguarded=True)
