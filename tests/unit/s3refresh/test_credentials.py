"""The keys of Secrets: one Secret has one set of keys for all who name it."""

import base64
import math
from typing import Any

import pytest

from caretaker.aws.identity import Keys
from caretaker.kube.errors import ApiError
from caretaker.runtime.queue import Key
from caretaker.s3refresh import credentials as module
from caretaker.s3refresh.credentials import KeyRing, max_age
from caretaker.s3refresh.snapshots import Refusal

ONE, TWO, ELSEWHERE = (
    Key("S3AggregatedRefresh", namespace, name)
    for namespace, name in (("ns", "1"), ("ns", "2"), ("other", "1"))
)


class Secrets:
    """An API server that holds one Secret, in every namespace."""

    def __init__(self) -> None:
        self.secret_key = "first"
        self.reads = 0
        self.there = True

    async def get(self, path: str, wanted: Any) -> Any:
        assert path.endswith("/secrets/keys")
        self.reads += 1
        if not self.there:
            raise ApiError(404, "NotFound", "no")
        values = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return wanted(
            data={name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
        )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


async def test_who_finds_new_keys_tells_the_others_that_name_the_secret(clock: Clock) -> None:
    """Else each would read the queue as a reader of its own, for as long as they differ."""
    secrets, told = Secrets(), list[Key]()
    ring = KeyRing(secrets, told.append)  # type: ignore[arg-type]
    for key in (ONE, TWO, ELSEWHERE):
        assert await ring.get(key, "keys", 300.0) == Keys("AKIA", "first")
    assert (secrets.reads, told) == (2, []), "read once for each namespace"
    secrets.secret_key = "second"
    clock.now += 300
    assert await ring.get(ONE, "keys", 300.0) == Keys("AKIA", "second")
    assert told == [TWO]
    assert await ring.get(TWO, "keys", 300.0) == Keys("AKIA", "second")
    assert (secrets.reads, told) == (3, [TWO])


async def test_a_secret_that_goes_is_looked_for_each_time_and_forgotten_with_its_last_user(
    clock: Clock,
) -> None:
    secrets = Secrets()
    ring = KeyRing(secrets, lambda _: None)  # type: ignore[arg-type]
    await ring.get(ONE, "keys", 300.0)
    await ring.get(TWO, "keys", 300.0)
    ring.forget(ONE)
    await ring.get(TWO, "keys", 300.0)
    assert secrets.reads == 1
    ring.forget(TWO)
    secrets.there = False
    for reads in (2, 3):
        assert isinstance(await ring.get(TWO, "keys", 300.0), Refusal)
        assert secrets.reads == reads


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
