"""The content of the Secrets that a spec names.

Inputs: a client that may read Secrets in the resource's namespace, by a Role there. No key is logged, kept in
status or put into a message.
"""

import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from caretaker.api.conditions import RefreshReason as Reason
from caretaker.aws.identity import Keys
from caretaker.kube.client import KubeClient
from caretaker.kube.errors import ApiError
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh.snapshot import Rejection, SecretRead

FIELD = "spec.aws.credentialsSecretRef.name"
# Between two reads of the Secret; sooner while AWS refuses something.
KEYS_SECONDS: Final = 300.0
KEYS_DOUBTED_SECONDS: Final = 30.0


def max_age(*, doubted: bool, flushing: bool) -> float:
    """The seconds for which known keys are used. `doubted`: the queue cannot be read with them. Deleting a
    namespace deletes the Secret, too: a flush uses the remembered keys."""
    if flushing:
        return math.inf
    return KEYS_DOUBTED_SECONDS if doubted else KEYS_SECONDS


class _Secret(msgspec.Struct, frozen=True):
    data: dict[str, str] | None = None


class KeyRing:
    """The keys of Secrets, read now and then: no event reports a change.

    Resources that name one Secret have the same keys at all times, or each would read their queue as a reader
    of its own. `on_change` is called for the others when one of them finds new ones, `on_replaced` with keys
    that no Secret has any more.
    """

    def __init__(
        self,
        client: KubeClient,
        on_change: Callable[[Key], None],
        on_replaced: Callable[[Keys], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._on_replaced = on_replaced
        self._cache: dict[tuple[str, str], SecretRead] = {}  # by (namespace, name); only with keys
        self._users: dict[Key, tuple[str, str]] = {}

    async def read(self, key: Key, name: str, max_age: float) -> SecretRead:
        """The Secret's keys, read at most `max_age` seconds ago, or why there are none. Stores nothing."""
        cached = self._cache.get((key.namespace, name))
        if cached is not None and time.monotonic() - cached.at < max_age:
            return cached
        keys, rejection = await _keys_of(self._client, key.namespace, name)
        return SecretRead(name, keys, rejection, time.monotonic())

    def store(self, key: Key, read: SecretRead) -> None:
        """`key` uses these keys. Others that name the Secret are notified of new ones."""
        former, place = self._users.get(key), (key.namespace, read.name)
        self._users[key] = place
        if former is not None and former != place:
            self._drop(former)
        cached = self._cache.get(place)
        if cached is not None and cached.at >= read.at:
            return
        if read.keys is None:
            self._replaced(self._cache.pop(place, None))
            return
        self._cache[place] = read
        if cached is not None and read.keys != cached.keys:
            for user, theirs in self._users.items():
                if theirs == place and user != key:
                    self._on_change(user)
            self._replaced(cached)

    def forget(self, key: Key) -> None:
        """The resource is gone; credentials that only it used are not kept."""
        place = self._users.pop(key, None)
        if place is not None:
            self._drop(place)

    def _drop(self, place: tuple[str, str]) -> None:
        if place not in self._users.values():
            self._replaced(self._cache.pop(place, None))

    def _replaced(self, read: SecretRead | None) -> None:
        keys = read.keys if read is not None else None
        if keys is not None and all(other.keys != keys for other in self._cache.values()):
            self._on_replaced(keys)


async def _keys_of(client: KubeClient, namespace: str, name: str) -> tuple[Keys | None, Rejection | None]:
    """(the Secret's keys, why there are none). Raises ApiError when the API server does not answer."""
    try:
        secret = await client.get(f"/api/v1/namespaces/{namespace}/secrets/{name}", _Secret)
    except ApiError as error:
        if error.not_found:
            message = f"there is no Secret {name} in namespace {namespace}"
        elif error.missing_permission is not None:
            message = (
                f"the operator may not read Secret {name}: bind a Role that lets it get this Secret "
                f"in namespace {namespace}"
            )
        else:
            raise
    else:
        try:
            return Keys.from_secret(secret.data or {}), None
        except ValueError as error:
            message = f"Secret {name}: {error}"
    return None, Rejection(Reason.CREDENTIALS_UNAVAILABLE, f"{FIELD}: {message}")
