"""Asks S3 for the buckets of access points, once for the resources of a namespace that sign alike.

Inputs: clients of S3 Control, access points. An access point never changes its bucket, but it can be deleted
and made again for another one, so a bucket is asked for again now and then. A failure must not take a known
bucket away at once.
"""

import asyncio
import math
import re
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from caretaker.aws.errors import AwsError
from caretaker.aws.identity import ClientKey
from caretaker.aws.s3control import S3Control
from caretaker.s3refresh import conditions
from caretaker.s3refresh.match import AccessPoint

KEPT_SECONDS: Final = 6 * 3600.0
# Without an answer, the last one counts for so long.
STALE_SECONDS: Final = 24 * 3600.0
# After a failure; where S3 throttles or does not answer, for all access points of a client.
RETRY_SECONDS: Final = 30.0
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{3,255}")  # of buckets that are older than the rules, too

_Asker = tuple[ClientKey, str]  # without its user; the namespace


class Found(msgspec.Struct, frozen=True):
    """The bucket; "" = not known. `problem`: why not, or why the answer may be old. `found_at`, `again_at`:
    when S3 answered, and when it may be asked again, by time.monotonic()."""

    bucket: str = ""
    problem: str = ""
    found_at: float = -math.inf
    again_at: float = -math.inf


NOTHING: Final = Found()


class AccessPoints:
    """Of all resources. `scale` and `clock` are for tests."""

    def __init__(self, scale: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._scale = scale
        self._clock = clock
        self._known: dict[tuple[_Asker, AccessPoint], Found] = {}
        self._paused: dict[_Asker, Found] = {}
        self._turns = WeakValueDictionary[_Asker, asyncio.Lock]()  # one call of a client at a time

    async def bucket_of(self, key: ClientKey, client: S3Control, point: AccessPoint) -> Found:
        """The bucket, by a call where the last answer is old. `key`: the client's."""
        asker = key.shared, key.namespace
        async with self._turns.setdefault(asker, asyncio.Lock()):
            known, now = self._known.get((asker, point), NOTHING), self._clock()
            if now < known.again_at:
                return known
            paused = self._paused.get(asker, NOTHING)
            if now < paused.again_at:
                return _unanswered(known, paused.problem, now)
            found = await self._ask(asker, client, point, known)
            self._drop_old(now)
            self._known[asker, point] = found
            return found

    async def _ask(self, asker: _Asker, client: S3Control, point: AccessPoint, known: Found) -> Found:
        try:
            answer = await client.get_access_point(AccountId=point.account, Name=point.name)
        except AwsError as error:
            now, problem = self._clock(), conditions.with_remedy(error, str(error))
            if error.transient:
                self._paused[asker] = Found(problem=problem, again_at=now + RETRY_SECONDS * self._scale)
                return _unanswered(known, problem, now)
            return replace(_kept(known, now), problem=problem, again_at=now + RETRY_SECONDS * self._scale)
        now = self._clock()
        found = Found(found_at=now, again_at=now + KEPT_SECONDS)
        if point.alias and answer.get("Alias") != point.alias:
            return replace(found, problem=f"{point.arn} has another alias")
        if not _BUCKET.fullmatch(answer["Bucket"]):
            return replace(found, problem=f"{point.arn} has a bucket without the name of one")
        return replace(found, bucket=answer["Bucket"])

    def _drop_old(self, now: float) -> None:
        """Access points that no share has any more."""
        since = now - STALE_SECONDS
        self._known = {
            key: one for key, one in self._known.items() if max(one.found_at, one.again_at) > since
        }
        self._paused = {key: one for key, one in self._paused.items() if one.again_at > now}


def _kept(known: Found, now: float) -> Found:
    """The last answer, without the bucket once it is old."""
    return known if now - known.found_at < STALE_SECONDS else NOTHING


def _unanswered(known: Found, problem: str, now: float) -> Found:
    """S3 may answer soon: the last answer counts, and the problem only where there is none."""
    kept = _kept(known, now)
    return replace(kept, problem="" if kept.bucket else problem, again_at=-math.inf)
