"""The demo's step for S3AggregatedRefresh: a storm of uploads becomes one refresh of the right folders.

Inputs: a Stage, and doubles of AWS that run. Objects are written through S3's own protocol, and the file
share is the Storage Gateway double's: what it shows is what a reader of the share would see.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import yaml

from awsdoubles.cloudwatch.control import Control as CloudWatchControl
from awsdoubles.envelopes import Queue, Wiring
from awsdoubles.gateway.control import Control
from testbed.admin import Json, path
from testbed.demo_operator import DEMO_NAMESPACE as NAMESPACE
from testbed.demo_steps import STEP_SECONDS, Stage, StepError
from testbed.paths import CHECKOUT

OBJECTS: Final = 500
FOLDERS: Final = ("2026/11/20", "2026/11/21", "reports/daily")
BUCKET: Final = "media"
QUEUE: Final = "media-events"
WRITERS: Final = 8
COUNTED: Final = 3000  # objects of the bucket by CloudWatch, as of yesterday
DAY: Final = 24 * 3600
PLURAL: Final = "s3aggregatedrefreshes"
QUIET: Final = "3s"


async def uploads(stage: Stage) -> str:
    """examples/s3-aggregated-refresh.yaml."""
    place = await asyncio.to_thread(_Place, stage.doubles)
    try:
        return await _show(stage, place)
    finally:
        place.close()


class _Place:
    """A bucket behind a file share, and the queue of its events."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._wiring = Wiring(variables["AWS_ENDPOINT_URL_S3"])
        self.control = Control(variables["AWS_ENDPOINT_URL_STORAGE_GATEWAY"])
        self._wiring.bucket(BUCKET)
        self.queue: Queue = self._wiring.queue(QUEUE)
        self._wiring.connect(BUCKET, self.queue)
        self.control.settings(completion_queue=self.queue.url)
        self.share = self.control.add_share(self.control.add_gateway(), bucket=BUCKET)
        dimensions = {"BucketName": BUCKET, "StorageType": "AllStorageTypes"}
        yesterday = time.time() // DAY * DAY - DAY
        cloudwatch = CloudWatchControl(variables["AWS_ENDPOINT_URL_CLOUDWATCH"])
        cloudwatch.put("AWS/S3", "NumberOfObjects", dimensions, [(yesterday, COUNTED)])

    def close(self) -> None:
        self._wiring.close()

    def shown(self) -> int:
        """Objects in the share's cached listings."""
        listings = self.control.inventory(self.share).values()
        return sum(len(listing["files"]) for listing in listings)

    def upload(self, tell: Any) -> None:
        """So many objects, as fast as they go."""
        keys = [f"{FOLDERS[n % len(FOLDERS)]}/{n:03d}.jpg" for n in range(OBJECTS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            for done, _ in enumerate(pool.map(self._put, keys), 1):
                tell(done)

    def _put(self, key: str) -> None:
        self._wiring.s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")


async def _show(stage: Stage, place: _Place) -> str:
    body = _example(place.queue.url)
    url = path(PLURAL, NAMESPACE, body["metadata"]["name"])
    await stage.admin.apply(url, body)
    await stage.admin.wait_for(
        url, lambda r: _condition(r, "Ready") and _condition(r, "CaughtUp"), STEP_SECONDS
    )
    earlier = len(place.control.refreshes(place.share))
    stage.say(
        f"bucket {BUCKET} is behind a file share whose listing is cached; its events go to {QUEUE}."
        " s3aggregatedrefresh is Ready: the share was found, the queue will do"
    )
    loop = asyncio.get_running_loop()

    def tell(done: int) -> None:
        loop.call_soon_threadsafe(stage.screen.progress, done, OBJECTS, "objects written")

    began = time.monotonic()
    await asyncio.to_thread(place.upload, tell)
    shown = await asyncio.to_thread(place.shown)
    stage.say(f"{OBJECTS} objects written in {len(FOLDERS)} folders; the share shows {shown} of them")
    await asyncio.to_thread(place.control.wait_fresh, place.share, STEP_SECONDS)
    seconds = time.monotonic() - began
    await stage.admin.wait_for(url, lambda r: _condition(r, "CaughtUp"), STEP_SECONDS)
    made = place.control.refreshes(place.share)[earlier:]
    if len(made) != 1 or made[0]["recursive"]:
        raise StepError(f"{len(made)} refreshes, not one of single folders: {made}")
    folders = sorted(made[0]["folders"])
    stage.say(
        f"{OBJECTS} events became 1 RefreshCache of {len(folders)} folders, {QUIET} after the last one:"
        f" {', '.join(folders)}. A new folder shows in its parents' listings only, so they are named too"
    )
    shown = await asyncio.to_thread(place.shown)
    stage.say(
        f"the share shows {shown} of {OBJECTS}, {seconds:.0f} s after the first upload; CaughtUp is True"
    )
    found = await stage.admin.wait_for(url, lambda r: _condition(r, "CostEstimated"), STEP_SECONDS)
    cost = found["status"]["cost"]["refreshCost"]
    stage.say(
        f"CloudWatch counts {COUNTED} objects in {BUCKET}: a refresh of everything would cost about"
        f" ${cost} (spec.cost, caretaker status); this one listed {len(folders)} folders"
    )
    return f"{OBJECTS} events, 1 refresh of {len(folders)} folders, listing fresh"


def _example(queue_url: str) -> Json:
    """The example, aimed at the doubles and quick enough to watch."""
    body: Json = yaml.safe_load((CHECKOUT / "examples" / "s3-aggregated-refresh.yaml").read_text())
    body["metadata"].pop("namespace", None)
    spec = body["spec"]
    spec["source"]["sqs"]["queueURL"] = queue_url
    spec["aws"] = {"region": "eu-west-1"}
    spec["debounce"] = {"quietPeriod": QUIET}
    spec["resync"] = {"onStart": False}
    spec["target"] = {"storageGateway": {"shares": {"discover": {}}, "completion": {"queueURL": queue_url}}}
    spec.pop("filter", None)
    return body


def _condition(resource: Json, kind: str) -> bool:
    status = resource.get("status", {})
    if status.get("observedGeneration") != resource["metadata"]["generation"]:
        return False
    return any(c["type"] == kind and c["status"] == "True" for c in status.get("conditions", []))
