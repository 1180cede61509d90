"""From S3 to the gateway: objects are written through S3 itself, in every way there is, and the shares show
them after one refresh of the right folders."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from awsdoubles.envelopes import Envelope
from testing.aws import Aws, Source
from testing.refreshing import Refreshing

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


def put_many(aws: Aws, bucket: str, keys: Iterable[str]) -> None:
    """A storm: several writers at a time."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: aws.put(bucket, key, body=key.encode()), keys))


def multipart(aws: Aws, bucket: str, key: str) -> None:
    """An upload in two parts."""
    where = {"Bucket": bucket, "Key": key}
    upload = aws.s3.create_multipart_upload(**where)["UploadId"]
    parts = []
    for number, body in ((1, b"x" * PART), (2, b"y")):
        made = aws.s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": made["ETag"]})
    aws.s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})


def copy(aws: Aws, bucket: str, source: str, key: str) -> None:
    aws.s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": source})


def wired(aws: Aws, envelope: Envelope, *seeds: str) -> Source:
    """A bucket with objects that were there before anybody was told of them."""
    made = Source(aws.bucket(*seeds), aws.queue())
    aws.wiring.connect(made.bucket, made.queue, envelope)
    return made


async def test_500_objects_become_one_refresh_of_the_right_folders(shared: Refreshing) -> None:
    """Holes 17 and 19: the article refreshes at the first object of an upload, and the whole bucket."""
    source = wired(shared.aws, Envelope.S3, "seed/gone", "seed/kept", "untouched/a")
    aws, bucket = shared.aws, source.bucket
    share, team = shared.share(bucket), shared.share(bucket, prefix="in/")
    resource = await shared.create(source.queue, debounce={"quietPeriod": "5s", "maxDelay": "120s"})
    await resource.condition("Ready")

    many = [f"in/{n % 5}/{n}.csv" for n in range(500)]
    await asyncio.to_thread(multipart, aws, bucket, "parts/big.bin")
    copy(aws, bucket, "seed/kept", "copies/kept")
    aws.s3.delete_object(Bucket=bucket, Key="seed/gone")
    await asyncio.to_thread(put_many, aws, bucket, [*many, *ODD])
    for one in (share, team):
        await shared.refreshed(one)
        await shared.fresh(one)
    await resource.caught_up()
    await shared.emptied(source.queue.url)
    touched = with_ancestors([*(f"in/{n}" for n in range(5)), *ODD.values(), "parts", "copies", "seed"])
    (made,) = shared.control.refreshes(share)
    assert (set(made["folders"]), made["recursive"]) == (touched, False)
    (made,) = shared.control.refreshes(team)
    assert (set(made["folders"]), made["recursive"]) == ({"/", *"01234"}, False)

    # The next window is a refresh of its own.
    gone = [{"Key": key} for key in many if key.startswith("in/3/")]
    aws.s3.delete_objects(Bucket=bucket, Delete={"Objects": gone})
    await shared.refreshed(share, 2)
    await shared.fresh(share)
    assert set(shared.control.refreshes(share)[1]["folders"]) == {"/", "in", "in/3"}


async def test_versions_and_delete_markers_are_followed(shared: Refreshing) -> None:
    source = shared.aws.source(versioned=True)
    s3, bucket, share = shared.aws.s3, source.bucket, shared.share(source.bucket)
    resource = await shared.create(source.queue)
    await resource.condition("Ready")
    for body in (b"one", b"two"):
        shared.aws.put(bucket, "marked/a", "back/a", "purged/a", body=body)
    await shared.refreshed(share)
    await shared.fresh(share)

    s3.delete_object(Bucket=bucket, Key="marked/a")  # leaves a marker
    marker = s3.delete_object(Bucket=bucket, Key="back/a")["VersionId"]
    s3.delete_object(Bucket=bucket, Key="back/a", VersionId=marker)  # and the object is there again
    for version in s3.list_object_versions(Bucket=bucket, Prefix="purged/")["Versions"]:
        s3.delete_object(Bucket=bucket, Key="purged/a", VersionId=version["VersionId"])
    await shared.refreshed(share, 2)
    await shared.fresh(share)
    made = shared.control.refreshes(share)[1]
    assert set(made["folders"]) == {"/", "marked", "back", "purged"}
    await shared.emptied(source.queue.url)


@pytest.mark.parametrize("envelope", [Envelope.SNS, Envelope.SNS_RAW, Envelope.EVENTBRIDGE])
async def test_the_same_comes_by_sns_and_eventbridge(envelope: Envelope, shared: Refreshing) -> None:
    source = wired(shared.aws, envelope, "seed/gone", "seed/kept")
    aws, bucket, share = shared.aws, source.bucket, shared.share(source.bucket)
    resource = await shared.create(source.queue, debounce={"quietPeriod": "4s", "maxDelay": "120s"})
    await resource.condition("Ready")
    many = [f"in/{n % 3}/{n}.csv" for n in range(60)]
    copy(aws, bucket, "seed/kept", "copies/0")
    aws.s3.delete_object(Bucket=bucket, Key="seed/gone")
    await asyncio.to_thread(put_many, aws, bucket, [*many, *ODD])
    (made,) = await shared.refreshed(share)
    await shared.fresh(share)
    touched = with_ancestors([*(f"in/{n}" for n in range(3)), *ODD.values(), "copies", "seed"])
    assert set(made["folders"]) == touched
    await shared.emptied(source.queue.url)
