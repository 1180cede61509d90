"""What a refresh of the Storage Gateway double does to a share's inventory, and what it tells."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from awsdoubles.gateway.control import Control
from awsdoubles.gateway.server import StorageGateway
from testing.aws import Aws

GONE = "is shown and gone from the bucket"
UNSEEN = "is in the bucket and not shown"


class World:
    """A bucket, a share of it, and the means to change and refresh both."""

    def __init__(self, aws: Aws, double: StorageGateway) -> None:
        self.aws = aws
        self.control: Control = double.control
        self.client: Any = aws.client("storagegateway", double.url)
        self.control.settings(min_interval=0)
        self.gateway = self.control.add_gateway()
        self.bucket = aws.bucket("top", "a/one", "a/b/two", "c/three")
        self.share = self.control.add_share(self.gateway, bucket=self.bucket)

    def put(self, *keys: str, body: bytes = b"") -> None:
        self.aws.put(self.bucket, *keys, body=body)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.aws.s3.delete_object(Bucket=self.bucket, Key=key)

    def refresh(self, *folders: str, recursive: bool = False, wait: bool = True, share: str = "") -> str:
        more = {"FolderList": list(folders)} if folders else {}
        answer = self.client.refresh_cache(FileShareARN=share or self.share, Recursive=recursive, **more)
        if wait:
            self.control.wait_idle()
        return str(answer["NotificationId"])

    def last(self) -> dict[str, Any]:
        return self.control.refreshes()[-1]

    def differences(self) -> list[str]:
        return self.control.differences(self.share)


@pytest.fixture
def world(aws: Aws, storage_gateway: StorageGateway) -> World:
    return World(aws, storage_gateway)


def test_what_was_read_stays_as_it_was_until_a_refresh(world: World) -> None:
    assert world.differences() == []
    world.put("a/new")
    world.put("top", body=b"changed")
    world.delete("c/three")
    assert [text.split(" is shown with")[0] for text in world.differences()] == [
        "/: file 'top'",
        f"/: folder 'c' {GONE}",
        f"/a: file 'new' {UNSEEN}",
    ]
    world.refresh(recursive=True)
    assert world.differences() == []
    assert world.last()["listed"] == ["", "a", "a/b"]


def test_a_folder_covers_its_direct_children_only(world: World) -> None:
    world.put("a/new", "a/b/new", "a/d/new")
    world.refresh("a")
    assert world.differences() == [f"/a/b: file 'new' {UNSEEN}"]
    assert (world.last()["listed"], world.last()["lists"], world.last()["heads"]) == (["a"], 1, 2)


def test_a_new_folder_shows_only_in_the_listing_of_its_parent(world: World) -> None:
    world.put("x/y/new")
    world.refresh("x/y", "x")
    assert world.differences() == [f"/: folder 'x' {UNSEEN}"]
    world.refresh("/")
    assert world.differences() == []


def test_a_vanished_folder_shows_until_its_parent_is_refreshed(world: World) -> None:
    world.delete("a/b/two")
    world.refresh("a/b")
    assert world.differences() == [f"/a: folder 'b' {GONE}"]
    world.refresh("a")
    assert world.differences() == []
    assert "/a/b" not in world.control.inventory(world.share)


def test_recursive_covers_folders_that_were_listed_before(world: World) -> None:
    """A folder that nobody has opened is listed when somebody does."""
    share = world.control.add_share(world.gateway, bucket=world.bucket, read=False)
    world.control.read(share, "/", recursive=False)
    world.control.read(share, "/a", recursive=False)
    world.refresh("/", recursive=True, share=share)
    assert world.last()["listed"] == ["", "a"]
    seen = world.control.read(share)
    assert sorted(seen) == ["/", "/a", "/a/b", "/c"]
    world.refresh("/", recursive=True, share=share)
    assert world.last()["listed"] == ["", "a", "a/b", "c"]


def test_the_default_is_everything(world: World) -> None:
    world.client.refresh_cache(FileShareARN=world.share)
    world.control.wait_idle()
    assert (world.last()["folders"], world.last()["recursive"]) == (["/"], True)
    assert world.last()["listed"] == ["", "a", "a/b", "c"]
    assert (world.last()["lists"], world.last()["heads"]) == (4, 4)


def test_a_share_of_a_prefix_shows_what_is_below_it(world: World) -> None:
    share = world.control.add_share(world.gateway, bucket=world.bucket, prefix="a/")
    assert world.control.read(share) == world.control.inventory(share)
    assert world.control.inventory(share)["/"]["folders"] == ["b"]
    world.put("a/b/new", "outside")
    world.refresh("b", share=share)
    assert world.control.differences(share) == []


def test_long_listings_take_several_requests(world: World) -> None:
    """S3 gives 1,000 keys a page."""
    world.put(*(f"many/{n:04d}" for n in range(1001)))
    world.refresh("many")
    assert (world.last()["lists"], world.last()["heads"]) == (2, 1001)


def test_odd_keys(world: World) -> None:
    """A share cannot show empty names; the others it must."""
    world.put("/leading", "a//b", "dir/", "ü +%/é.txt", "a/./x", "k" * 1000 + "/" + "n" * 23)
    world.refresh("/")
    assert world.differences() == []
    assert set(world.control.read(world.share)) >= {"/dir", "/ü +%", "/" + "k" * 1000}


def test_a_refresh_takes_time_and_shows_the_moment_of_its_listing(world: World) -> None:
    """An object that comes after its folder was listed needs another refresh."""
    world.control.settings(objects_per_second=2)
    world.put("a/new")
    world.refresh("a", wait=False)
    started = time.monotonic()
    while world.last()["heads"] < 2:
        assert time.monotonic() - started < 10
    world.put("a/late")
    world.control.wait_idle()
    assert world.last()["completedAt"] - world.last()["acceptedAt"] >= 1.0
    assert world.differences() == [f"/a: file 'late' {UNSEEN}"]


def test_two_refreshes_at_a_time_for_each_gateway(world: World) -> None:
    """Of one share or of two; and the third is not remembered."""
    second = world.control.add_share(world.gateway, bucket=world.bucket)
    elsewhere = world.control.add_share(world.control.add_gateway(), bucket=world.bucket)
    world.control.fault("slow_refresh", seconds=30, count=2)
    world.refresh("/", wait=False)
    world.refresh("/", wait=False, share=second)
    for share in (world.share, second):
        with pytest.raises(ClientError, match=r"InvalidGatewayRequestException.*Too many requests"):
            world.refresh("/", share=share)
    world.refresh("/", share=elsewhere, wait=False)
    assert len(world.control.refreshes()) == 3
    world.control.settings(in_flight_per="share")
    world.refresh("/", wait=False)


def test_a_finished_refresh_frees_its_slot(world: World) -> None:
    world.control.settings(max_in_flight=1)
    world.refresh("/")
    world.refresh("/")


def test_a_call_too_soon_after_the_last_evicts_nothing(world: World) -> None:
    """Accepted, finished and told of, like any other."""
    queue = world.aws.queue()
    world.control.settings(min_interval=60, completion_queue=queue.url)
    world.refresh("/")
    world.put("new")
    second = world.refresh("/")
    assert [one["evicts"] for one in world.control.refreshes()] == [True, False]
    assert world.differences() == [f"/: file 'new' {UNSEEN}"]
    told = [event["detail"]["notification-id"] for event in world.aws.receive(queue, 2)]
    assert second in told
    world.control.settings(min_interval=0)
    world.refresh("/")
    assert world.differences() == []


def test_the_interval_is_of_one_share_and_counts_from_the_last_accepted_call(world: World) -> None:
    world.control.settings(min_interval=60)
    other = world.control.add_share(world.gateway, bucket=world.bucket)
    world.control.fault("refuse")
    with pytest.raises(ClientError):
        world.refresh("/")
    world.refresh("/")
    world.refresh("/", share=other)
    assert [one["evicts"] for one in world.control.refreshes()] == [True, True]


def test_completion_is_told_by_an_event(world: World) -> None:
    queue = world.aws.queue()
    world.control.settings(completion_queue=queue.url)
    before = datetime.now(UTC).replace(microsecond=0)
    notification = world.refresh("a", "c")
    (event,) = world.aws.receive(queue)
    assert event["source"] == "aws.storagegateway"
    assert event["detail-type"] == "Storage Gateway Refresh Cache Event"
    assert event["resources"] == [world.share, world.gateway]
    detail = event["detail"]
    assert detail["event-type"] == "refresh-complete"
    assert detail["notification-id"] == notification
    assert detail["folderList"] == ["a", "c"]
    assert before <= datetime.fromisoformat(detail["started"]) <= datetime.fromisoformat(detail["completed"])
    world.control.settings(folder_list_in_detail=False)
    world.refresh("a")
    (event,) = world.aws.receive(queue)
    assert (event["folderList"], "folderList" in event["detail"]) == (["a"], False)


def test_completion_may_come_before_the_reply(world: World) -> None:
    queue = world.aws.queue()
    world.control.settings(completion_queue=queue.url)
    world.control.fault("early_completion")
    notification = world.refresh("/", wait=False)
    assert world.aws.depth(queue.url) == (1, 0)
    assert world.aws.receive(queue)[0]["detail"]["notification-id"] == notification


def test_completion_may_stay_away_or_come_twice(world: World) -> None:
    queue = world.aws.queue()
    world.control.settings(completion_queue=queue.url)
    world.control.fault("no_completion")
    world.refresh("/")
    world.control.fault("duplicate_completion")
    second = world.refresh("/")
    told = [event["detail"]["notification-id"] for event in world.aws.receive(queue, 2)]
    assert told == [second, second]
    assert world.aws.depth(queue.url) == (0, 0)


def test_the_upload_of_one_gateway_is_an_event_for_another(world: World) -> None:
    queue = world.aws.queue()
    world.control.upload_event(world.share, "a/new", queue.url, size=3)
    (event,) = world.aws.receive(queue)
    assert event["detail-type"] == "Storage Gateway Object Upload Event"
    assert (event["detail"]["bucket-name"], event["detail"]["object-key"]) == (world.bucket, "a/new")


def test_a_bucket_that_is_gone_fails_the_refresh_and_frees_the_slot(world: World) -> None:
    share = world.control.add_share(world.gateway, bucket="no-such-bucket", read=False)
    for _ in range(3):
        world.refresh("/", share=share)
    assert "NoSuchBucket" in world.last()["error"]


def test_waiting_for_freshness_says_what_is_missing(world: World) -> None:
    world.put("a/new")
    with pytest.raises(AssertionError, match=r"1 differences:\n  /a: file 'new'"):
        world.control.wait_fresh(world.share, timeout=0)
    world.refresh("a", wait=False)
    found = world.control.wait_fresh(world.share)
    assert (found["objects"], found["cachedFolders"]) == (5, 4)
