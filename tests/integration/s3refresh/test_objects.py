"""From S3 to the gateway: objects are written through S3 itself, in every way there is, and told of by every
way there is; the shares show them after one refresh of the right folders."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from awsdoubles.envelopes import Envelope, Queue
from testing.aws import Aws
from testing.refreshing import Refreshing, gateway

WRITERS = 8  # MiniStack takes 250 to 400 objects a second of them
MANY = [f"in/{n % 5}/{n}.csv" for n in range(500)]
PART = 5 * 2**20  # bytes, the least that S3 takes for a part but the last
LONG = "long/" + "x" * 1019  # 1,024 bytes, the longest key
# A file gateway shows no empty path segment: what lies below one is of its nearest real ancestor.
ODD = {
    "odd/a b.txt": "odd",
    "odd/a+b.txt": "odd",
    "odd/100%.txt": "odd",
    "odd/%20.txt": "odd",
    "odd/über/日本.txt": "odd/über",
    "odd/a&b=c?d#e/f.txt": "odd/a&b=c?d#e",
    "odd/p+q/x y/%41/f.txt": "odd/p+q/x y/%41",  # raw in EventBridge, form-encoded elsewhere
    "/lead.txt": "/",
    "/lead/below.txt": "/",
    "trail/": "trail",
    "double//slash.txt": "double",
    LONG: "long",
    "deep/1/2/3/4/5/6/f.txt": "deep/1/2/3/4/5/6",
}


def with_ancestors(folders: Iterable[str]) -> set[str]:
    """These folders and all above them."""
    found = {"/"}
    for folder in folders:
        parts = folder.strip("/").split("/") if folder != "/" else []
        found |= {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    return found


def multipart(aws: Aws, bucket: str, key: str) -> None:
    """An upload in two parts."""
    where = {"Bucket": bucket, "Key": key}
    upload = aws.s3.create_multipart_upload(**where)["UploadId"]
    parts = []
    for number, body in ((1, b"x" * PART), (2, b"y")):
        made = aws.s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": made["ETag"]})
    aws.s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})


def delete_many(aws: Aws, bucket: str, *keys: str) -> None:
    """One call for all of them."""
    aws.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})


class Plain:
    """A bucket without versions; all acts go on at the same time, as many people's would."""

    def __init__(self, aws: Aws, queue: Queue, envelope: Envelope) -> None:
        self.bucket = aws.bucket("seed/gone", "seed/kept", "bulk/gone", "bulk/too", "untouched/a")
        self._aws = aws
        aws.wiring.connect(self.bucket, queue, envelope)

    def acts(self) -> list[Callable[[], object]]:
        aws, bucket, s3 = self._aws, self.bucket, self._aws.s3
        kept = {"Bucket": bucket, "Key": "seed/kept"}
        return [
            lambda: multipart(aws, bucket, "parts/big.bin"),
            lambda: s3.copy_object(Bucket=bucket, Key="copies/kept", CopySource=kept),
            lambda: s3.delete_object(Bucket=bucket, Key="seed/gone"),
            lambda: delete_many(aws, bucket, "bulk/gone", "bulk/too"),
            *(partial(aws.put, bucket, key, body=key.encode()) for key in (*MANY, *ODD)),
        ]

    touched = ("in/0", "in/1", "in/2", "in/3", "in/4", *ODD.values(), "parts", "copies", "seed", "bulk")


class Versioned:
    """A bucket with versions of before."""

    def __init__(self, aws: Aws, queue: Queue, envelope: Envelope) -> None:
        self.bucket = aws.bucket(versioned=True)
        self._s3 = aws.s3
        for body in (b"one", b"two"):
            aws.put(self.bucket, "marked/a", "back/a", "purged/a", "older/a", "untouched/a", body=body)
        self._marker = self._s3.delete_object(Bucket=self.bucket, Key="back/a")["VersionId"]
        self._purged, self._older = self._versions("purged/"), self._versions("older/")
        aws.wiring.connect(self.bucket, queue, envelope)

    def acts(self) -> list[Callable[[], object]]:
        gone = partial(self._s3.delete_object, Bucket=self.bucket)
        return [
            partial(gone, Key="marked/a"),  # leaves a marker
            partial(gone, Key="back/a", VersionId=self._marker),  # and the object is there again
            *(partial(gone, Key="purged/a", VersionId=one) for one in self._purged),
            partial(gone, Key="older/a", VersionId=self._older[0]),  # what was overwritten is there again
        ]

    touched = ("marked", "back", "purged", "older")

    def _versions(self, prefix: str) -> list[str]:
        """The newest first."""
        found = self._s3.list_object_versions(Bucket=self.bucket, Prefix=prefix)["Versions"]
        return [one["VersionId"] for one in found]


def all_at_once(*acts: Callable[[], object]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(act) for act in acts]:
            done.result()


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope.S3,
        pytest.param(Envelope.EVENTBRIDGE, marks=pytest.mark.slow),
        pytest.param(Envelope.SNS, marks=pytest.mark.slow),
        pytest.param(Envelope.SNS_RAW, marks=pytest.mark.slow),
    ],
    ids=str,
)
async def test_500_objects_become_one_refresh_of_the_right_folders(
    envelope: Envelope, shared: Refreshing
) -> None:
    """Holes 17 and 19: the article refreshes at the first object of an upload, and the whole bucket."""
    aws, queue = shared.aws, shared.aws.queue()
    plain, versioned = Plain(aws, queue, envelope), Versioned(aws, queue, envelope)
    share, team = shared.share(plain.bucket), shared.share(plain.bucket, prefix="in/")
    markers = shared.share(versioned.bucket)
    resource = await shared.create(
        queue,
        debounce={"quietPeriod": "10s", "maxDelay": "20m"},  # longer than events are apart: all are in one
        target=gateway(completion={"assumeAfter": "10s"}),  # half a second here; a refresh takes a tenth
    )
    await resource.condition("Ready")

    await asyncio.to_thread(all_at_once, *versioned.acts(), *plain.acts())
    wanted = {share: with_ancestors(plain.touched), team: {"/", *"01234"}}
    wanted[markers] = with_ancestors(versioned.touched)
    for one, folders in wanted.items():
        await shared.refreshed(one)
        await shared.fresh(one)
        (made,) = shared.control.refreshes(one)
        assert (set(made["folders"]), made["recursive"]) == (folders, False)

    # The next window is a refresh of its own, and of nothing else.
    await asyncio.to_thread(delete_many, aws, plain.bucket, *(key for key in MANY if key.startswith("in/3/")))
    await shared.refreshed(share, 2)
    await shared.fresh(share)
    assert set(shared.control.refreshes(share)[1]["folders"]) == {"/", "in", "in/3"}
    await resource.caught_up()
    await shared.emptied(queue.url)
    assert {one: len(shared.control.refreshes(one)) for one in wanted} == {share: 2, team: 2, markers: 1}
    for one in wanted:
        await shared.fresh(one)
