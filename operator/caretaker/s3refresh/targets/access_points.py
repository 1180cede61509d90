"""Asks S3 for the buckets of access points, once for the resources of a namespace that sign alike.

Inputs: clients of S3 Control, access points. An access point never changes its bucket, but it can be deleted
and made again for another one, so a bucket is asked for again now and then. A failure must not take a known
bucket away at once, nor keep another access point from being asked for.
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
from caretaker.aws.s3control import S3Control
from caretaker.s3refresh import conditions
from caretaker.s3refresh.match import AccessPoint
from caretaker.s3refresh.object_counts import Signer

KEPT_SECONDS: Final = 6 * 3600.0
# Without an answer, the last one counts for so long.
STALE_SECONDS: Final = 24 * 3600.0
# After a failure; where S3 throttles or does not answer, for all access points of an asker and a region.
RETRY_SECONDS: Final = 30.0
# For so long one that is not asked for any more keeps its place in the line. Discoveries that failed are
# repeated sooner.
LINE_SECONDS: Final = 150.0
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{3,255}")  # of buckets that are older than the rules, too

Asker = tuple[Signer, str]  # the namespace
_Where = tuple[Asker, str]  # the region


class Found(msgspec.Struct, frozen=True):
    """The bucket; "" = not known. `problem`: why not, or why the answer may be old. `found_at`, `again_at`:
    when S3 answered, and when it may be asked again, by time.monotonic(). `late`: S3 may soon answer."""

    bucket: str = ""
    problem: str = ""
    found_at: float = -math.inf
    again_at: float = -math.inf
    late: bool = False


NOTHING: Final = Found()


class _Line:
    """The access points that wait since S3 has throttled or not answered, the longest waiting first, until it
    answers. The one whose call failed goes behind the others: if it always fails, they do not wait for it."""

    def __init__(self) -> None:
        self.problem = ""
        self.again_at = -math.inf
        self.waiting: dict[AccessPoint, float] = {}  # when each was last wanted

    def passes(self, point: AccessPoint, now: float, since: float) -> bool:
        """Whether S3 may be asked for it now. If not, it waits. Those not wanted since are left out."""
        self.waiting = {one: at for one, at in self.waiting.items() if at > since}
        if now >= self.again_at and next(iter(self.waiting), point) == point:
            return True
        self.waiting[point] = now
        return False


class AccessPoints:
    """Of all resources. `clock` is for tests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[Asker, AccessPoint], Found] = {}
        self._lines: dict[_Where, _Line] = {}
        self._turns = WeakValueDictionary[_Where, asyncio.Lock]()  # one call of an asker at a time
        self._dropped_at = -math.inf

    async def bucket_of(self, asker: Asker, client: S3Control, point: AccessPoint) -> Found:
        """The bucket, by a call of the client where the last answer is old."""
        where = asker, point.region
        async with self._turns.setdefault(where, asyncio.Lock()):
            known, now = self._known.get((asker, point), NOTHING), self._clock()
            if now < known.again_at:
                return known
            line = self._lines.get(where)
            if line is not None and not line.passes(point, now, now - LINE_SECONDS):
                return _unanswered(known, line.problem, now)
            found = await self._ask(where, client, point, known)
            self._drop_old(now)
            self._known[asker, point] = found
            return found

    async def _ask(self, where: _Where, client: S3Control, point: AccessPoint, known: Found) -> Found:
        try:
            answer = await client.get_access_point(AccountId=point.account, Name=point.name)
        except AwsError as error:
            now, problem = self._clock(), conditions.with_remedy(error, str(error))
            again_at = now + RETRY_SECONDS
            if error.transient:
                line = self._lines.setdefault(where, _Line())
                line.problem, line.again_at = problem, again_at
                line.waiting.pop(point, None)
                return _unanswered(known, problem, now)
            self._lines.pop(where, None)
            return replace(_kept(known, now), problem=problem, again_at=again_at, late=False)
        self._lines.pop(where, None)
        now = self._clock()
        found = Found(found_at=now, again_at=now + RETRY_SECONDS)
        if point.alias and answer.get("Alias") != point.alias:
            return replace(found, problem=f"{point.arn} has another alias")
        if not _BUCKET.fullmatch(answer["Bucket"]):
            return replace(found, problem=f"{point.arn} has a bucket without the name of one")
        return replace(found, bucket=answer["Bucket"], again_at=now + KEPT_SECONDS)

    def _drop_old(self, now: float) -> None:
        """Access points that no share has any more."""
        if now < self._dropped_at + KEPT_SECONDS:
            return
        self._dropped_at, since = now, now - STALE_SECONDS
        self._known = {
            key: one for key, one in self._known.items() if max(one.found_at, one.again_at) > since
        }
        self._lines = {where: line for where, line in self._lines.items() if line.again_at > since}


def _kept(known: Found, now: float) -> Found:
    """The last answer, without the bucket once it is old."""
    return known if now - known.found_at < STALE_SECONDS else NOTHING


def _unanswered(known: Found, problem: str, now: float) -> Found:
    """S3 may answer soon: the last answer counts, and the problem only where there is none."""
    kept = _kept(known, now)
    return replace(kept, problem="" if kept.bucket else problem, late=True)
