"""The keys of Secrets: one Secret has one set of keys for all who name it."""

import base64
import math
import time
from typing import Any, Final

import pytest

from caretaker.aws.identity import Keys
from caretaker.kube.errors import ApiError
from caretaker.runtime.work_queue import Key
from caretaker.s3refresh import credentials as module
from caretaker.s3refresh.credentials import KeyRing, max_age
from caretaker.s3refresh.snapshot import Rejection, SecretRead

ONE, TWO, ELSEWHERE = (
    Key("S3AggregatedRefresh", namespace, name)
    for namespace, name in (("ns", "1"), ("ns", "2"), ("other", "1"))
)

GONE: Final = ApiError(404, "NotFound", "no")
FORBIDDEN: Final = 'secrets "keys" is forbidden: User "c" cannot get resource "secrets" in API group ""'


class Secrets:
    """An API server that holds one Secret, in every namespace."""

    def __init__(self, rejection: ApiError | None = None, *, empty: bool = False) -> None:
        self.secret_key = "first"
        self.paths: list[str] = []
        self.rejection = rejection
        self.empty = empty

    @property
    def reads(self) -> int:
        return len(self.paths)

    async def get(self, path: str, wanted: Any) -> Any:
        self.paths.append(path)
        if self.rejection is not None:
            raise self.rejection
        if self.empty:
            return wanted()
        values = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return wanted(
            data={name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
        )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


async def keys(ring: KeyRing, key: Key, name: str, max_age: float) -> Keys | Rejection:
    """The keys of a pass, which stores them."""
    read = await ring.read(key, name, max_age)
    ring.store(key, read)
    found = read.keys or read.rejection
    assert found is not None
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


async def test_who_finds_new_keys_tells_the_others_that_name_the_secret(clock: Clock) -> None:
    """Else each would read the queue as a reader of its own, for as long as they differ."""
    secrets, reported = Secrets(), list[Key]()
    ring = KeyRing(secrets, reported.append)  # type: ignore[arg-type]
    for key in (ONE, TWO, ELSEWHERE):
        assert await keys(ring, key, "keys", 300.0) == Keys("AKIA", "first")
    read = ["/api/v1/namespaces/ns/secrets/keys", "/api/v1/namespaces/other/secrets/keys"]
    assert (secrets.paths, reported) == (read, []), "read once for each namespace"
    clock.now += 300
    assert await keys(ring, ONE, "keys", 300.0) == Keys("AKIA", "first")
    assert (secrets.reads, reported) == (3, []), "nothing has changed"
    secrets.secret_key = "second"
    clock.now += 300
    assert await keys(ring, ONE, "keys", 300.0) == Keys("AKIA", "second")
    assert reported == [TWO]
    assert await keys(ring, TWO, "keys", 300.0) == Keys("AKIA", "second")
    assert (secrets.reads, reported) == (4, [TWO])


async def test_a_secret_that_goes_is_looked_for_each_time_and_forgotten_with_its_last_user(
    clock: Clock,
) -> None:
    secrets = Secrets()
    ring = KeyRing(secrets, lambda _: None)  # type: ignore[arg-type]
    await keys(ring, ONE, "keys", 300.0)
    await keys(ring, TWO, "keys", 300.0)
    ring.forget(ONE)
    await keys(ring, TWO, "keys", 300.0)
    assert secrets.reads == 1
    ring.forget(TWO)
    secrets.rejection = GONE
    for reads in (2, 3):
        assert isinstance(await keys(ring, TWO, "keys", 300.0), Rejection)
        assert secrets.reads == reads
    ring.forget(TWO)
    ring.forget(TWO)


async def test_keys_of_a_secret_that_was_seen_to_be_gone_are_not_used_again(clock: Clock) -> None:
    secrets = Secrets()
    ring = KeyRing(secrets, lambda _: None)  # type: ignore[arg-type]
    await keys(ring, ONE, "keys", 300.0)
    secrets.rejection = GONE
    clock.now += 30
    assert isinstance(await keys(ring, ONE, "keys", 30.0), Rejection), "in doubt it is read again"
    assert isinstance(await keys(ring, TWO, "keys", 300.0), Rejection)


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        pytest.param(Secrets(GONE), "there is no Secret keys in namespace ns", id="gone"),
        pytest.param(
            Secrets(ApiError(403, "Forbidden", FORBIDDEN)),
            "the operator may not read Secret keys: bind a Role that lets it get this Secret in namespace ns",
            id="no Role",
        ),
        pytest.param(Secrets(empty=True), "Secret keys: it lacks the key AWS_ACCESS_KEY_ID", id="empty"),
    ],
)
async def test_why_there_are_no_keys(secrets: Secrets, message: str) -> None:
    found = await keys(KeyRing(secrets, lambda _: None), ONE, "keys", 300.0)  # type: ignore[arg-type]
    assert found == Rejection("CredentialsUnavailable", f"spec.aws.credentialsSecretRef.name: {message}")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ApiError(503, "ServiceUnavailable", "no"), id="down"),
        pytest.param(ApiError(403, "Forbidden", "a webhook says no"), id="no matter of RBAC"),
    ],
)
async def test_an_api_server_that_does_not_answer_says_nothing_of_the_secret(error: ApiError) -> None:
    with pytest.raises(ApiError):
        await keys(KeyRing(Secrets(error), lambda _: None), ONE, "keys", 300.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("doubted", "flushing", "seconds"),
    [
        pytest.param(False, False, 300.0, id="every 5 min"),
        pytest.param(True, False, 30.0, id="every 30 s while the queue cannot be read"),
        pytest.param(True, True, math.inf, id="the Secret may go before its resource"),
    ],
)
def test_how_long_keys_are_used(*, doubted: bool, flushing: bool, seconds: float) -> None:
    assert max_age(doubted=doubted, flushing=flushing) == seconds


async def test_keys_that_no_secret_has_any_more_are_retired_once() -> None:
    secrets, gone = Secrets(), []
    ring = KeyRing(secrets, lambda _: None, gone.append)  # type: ignore[arg-type]
    await keys(ring, ONE, "keys", 0)
    await keys(ring, TWO, "keys", 0)
    await keys(ring, ELSEWHERE, "keys", 0)
    secrets.secret_key = "second"
    await keys(ring, ONE, "keys", 0)
    await keys(ring, TWO, "keys", 0)
    assert gone == []
    await keys(ring, ELSEWHERE, "keys", 0)
    assert [one.secret_access_key for one in gone] == ["first"]
    for key in (ONE, TWO, ELSEWHERE):
        ring.forget(key)
    assert [one.secret_access_key for one in gone] == ["first", "second"]


async def test_keys_of_a_secret_that_is_unusable_or_named_no_more_are_retired() -> None:
    secrets, gone = Secrets(), []
    ring = KeyRing(secrets, lambda _: None, gone.append)  # type: ignore[arg-type]
    await keys(ring, ONE, "keys", 0)
    ring.store(ONE, SecretRead("keys", None, None, time.monotonic()))
    assert [one.secret_access_key for one in gone] == ["first"]
    secrets.secret_key = "second"
    await keys(ring, ONE, "keys", 0)
    secrets.secret_key = "third"
    await keys(ring, ONE, "others", 0)
    assert [one.secret_access_key for one in gone] == ["first", "second"]
