"""Writers of S3 objects, and what each of their writes is owed: a refresh of its folder, accepted later.

Inputs: a bucket, seeded random generators. Which keys are written, overwritten and deleted follows from the
seed; when, from the machine. It must not look at what the operator does.
"""

import asyncio
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.admin import Json
from testing.aws import Aws

PAUSES: Final = (0.02, 0.1, 0.3, 1.0)
ODD: Final = ("a b", "a+b", "ü", "100%", "x&y=z", "日本")


@dataclass(frozen=True)
class Write:
    """One write; `at` is when it began, Unix seconds."""

    bucket: str
    key: str
    at: float


class Writer:
    """Writes below one folder of one bucket until it is cancelled. Use one for each task."""

    def __init__(self, aws: Aws, bucket: str, top: str, seed: str) -> None:
        self.writes: list[Write] = []
        self._s3 = aws.client("s3")
        self._bucket = bucket
        self._top = top
        self._random = random.Random(seed)
        self._keys: list[str] = []
        self._number = 0

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await asyncio.to_thread(self.write)
            await asyncio.sleep(self._random.choice(PAUSES))

    def write(self) -> None:
        """A new object (in a folder of its own, or beside others), another content, or a deletion."""
        draw = self._random.random()
        if draw < 0.5 or not self._keys:
            self._put(self._new_folder())
        elif draw < 0.7:
            self._put(self._random.choice(self._keys).rpartition("/")[0])
        elif draw < 0.85:
            self._put_key(self._random.choice(self._keys))
        else:
            key = self._keys.pop(self._random.randrange(len(self._keys)))
            self._note(key)
            self._s3.delete_object(Bucket=self._bucket, Key=key)

    def _new_folder(self) -> str:
        self._number += 1
        parts = [self._top, *self._random.sample(ODD, self._random.randrange(3)), str(self._number)]
        return "/".join(parts)

    def _put(self, folder: str) -> None:
        self._number += 1
        key = f"{folder}/{self._number}"
        self._keys.append(key)
        self._put_key(key)

    def _put_key(self, key: str) -> None:
        self._note(key)
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=self._random.randbytes(8))

    def _note(self, key: str) -> None:
        self.writes.append(Write(self._bucket, key, time.time()))


def unrefreshed(writes: Iterable[Write], shares: Sequence[Json], refreshes: Sequence[Json]) -> Iterator[str]:
    """The writes whose folder no refresh of a share was asked for afterwards; `shares` and `refreshes` as the
    gateway's Control has them."""
    for share in shares:
        latest = _latest(one for one in refreshes if one["share"] == share["arn"] and one["evicts"])
        for write in writes:
            if write.bucket != share["bucket"] or not write.key.startswith(share["prefix"]):
                continue
            folder = write.key.removeprefix(share["prefix"]).rpartition("/")[0] or "/"
            if latest.get((folder, False), 0.0) < write.at and _tree(latest, folder) < write.at:
                yield f"{share['arn']}: {write.key!r} of {write.at:.3f} was not followed by a refresh"


def _latest(refreshes: Iterable[Json]) -> dict[tuple[str, bool], float]:
    """(folder, whether with all below it) -> when a refresh of it was last accepted."""
    found: dict[tuple[str, bool], float] = {}
    for one in refreshes:
        for folder in one["folders"]:
            place = folder, bool(one["recursive"])
            found[place] = max(found.get(place, 0.0), one["acceptedAt"])
    return found


def _tree(latest: dict[tuple[str, bool], float], folder: str) -> float:
    """When a tree that holds the folder was last refreshed."""
    parts = folder.split("/")
    above = ["/", *("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))]
    return max(latest.get((name, True), 0.0) for name in above)
