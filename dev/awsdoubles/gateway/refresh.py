"""Run refreshes: which calls are accepted, what they evict and list, how long they take, what they tell.

It lives in the server's loop; S3 and SQS are asked in worker threads. A refresh shows what the bucket
held when its folder was listed, not when it was called nor when it ended: events that come meanwhile
need another one.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from awsdoubles.clients import client
from awsdoubles.gateway.bucket import Buckets, Requests
from awsdoubles.gateway.faults import Fault
from awsdoubles.gateway.inventory import EMPTY, ROOT, Listing, folder_of, join
from awsdoubles.gateway.state import Refresh, Share, World


class RefusedError(Exception):
    """InvalidGatewayRequestException, with the `errorCode` that AWS puts beside the message."""

    def __init__(self, error_code: str, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class Refresher:
    """Accepts and runs the refreshes of a world."""

    def __init__(self, world: World, buckets: Buckets) -> None:
        self._world = world
        self._buckets = buckets
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._queues: dict[str, Any] = {}  # SQS clients by region

    async def close(self) -> None:
        """Drop the refreshes that run."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for one in self._queues.values():
            one.close()

    async def accept(
        self, share: Share, names: list[str], faults: Mapping[str, Fault], *, recursive: bool
    ) -> Refresh:
        """Start a refresh, or raise RefusedError. AWS's order of these checks is not documented."""
        if share.status != "AVAILABLE":
            raise RefusedError("InvalidParameters", f"The file share is in status {share.status}.")
        folders = [self._folder(name) for name in names]
        if self._world.settings.missing_folder == "refuse":
            await self._refuse_missing(share, folders)
        if self._world.in_flight(share) >= self._world.settings.max_in_flight:
            raise RefusedError("InternalError", "Too many requests have been sent to server.")
        now = time.monotonic()
        evicts = now - share.last_accepted >= self._world.settings.min_interval
        share.last_accepted = now
        refresh = Refresh(str(uuid4()), share, names, recursive, evicts)
        self._world.refreshes.append(refresh)
        self._tasks[refresh.id] = asyncio.create_task(self._run(refresh, folders, faults))
        return refresh

    async def finish(self, refresh: Refresh) -> None:
        """Return once the refresh is over and its event is sent."""
        await asyncio.shield(self._tasks[refresh.id])

    async def read(self, share: Share, folder: str, *, recursive: bool) -> dict[str, Listing]:
        """What a reader sees: cached listings, and fresh ones of folders that nobody opened before."""
        seen: dict[str, Listing] = {}
        todo = [folder]
        while todo:
            name = todo.pop()
            if name not in share.inventory.listings:
                share.inventory.put(name, await self._list(share, name, Requests()))
            seen[name] = share.inventory.listings[name]
            if recursive:
                todo += [join(name, child) for child in seen[name].folders]
        return seen

    def _folder(self, name: str) -> str:
        if name != "/" and name.startswith("/") and self._world.settings.leading_slash == "refuse":
            raise RefusedError("InvalidParameters", f"Folder {name!r} must not begin with a slash.")
        try:
            return folder_of(name)
        except ValueError as error:
            raise RefusedError("InvalidParameters", f"{error}.") from None

    async def _refuse_missing(self, share: Share, folders: list[str]) -> None:
        for folder in folders:
            if folder != ROOT and await self._list(share, folder, Requests()) == EMPTY:
                raise RefusedError("InvalidParameters", f"The specified folder {folder!r} was not found.")

    async def _run(self, refresh: Refresh, folders: list[str], faults: Mapping[str, Fault]) -> None:
        try:
            if "slow_refresh" in faults:
                await asyncio.sleep(faults["slow_refresh"].seconds)
            if refresh.evicts:
                for folder in _covered(refresh.share, folders, recursive=refresh.recursive):
                    # A subfolder may have vanished with the listing of its parent, just now.
                    if folder in folders or folder in refresh.share.inventory.listings:
                        await self._refresh_folder(refresh, folder)
        except Exception as error:  # noqa: BLE001  a deleted bucket, say: shown, and the slot is freed
            refresh.error = f"{type(error).__name__}: {error}"
        finally:
            refresh.completed_at = time.time()
        if not refresh.error and "no_completion" not in faults:
            for _ in range(2 if "duplicate_completion" in faults else 1):
                await self._tell(refresh)

    async def _refresh_folder(self, refresh: Refresh, folder: str) -> None:
        before = refresh.requests.heads
        listing = await self._list(refresh.share, folder, refresh.requests)
        speed = self._world.settings.objects_per_second
        await asyncio.sleep((refresh.requests.heads - before) / speed if speed else 0)
        known = folder in refresh.share.inventory.listings
        if listing != EMPTY or known or folder == ROOT:
            refresh.share.inventory.put(folder, listing)
        refresh.listed.append(folder)

    async def _list(self, share: Share, folder: str, counted: Requests) -> Listing:
        prefix = share.prefix + (f"{folder}/" if folder else "")
        return await asyncio.to_thread(
            self._buckets.folder, share.gateway.region, share.bucket, prefix, counted
        )

    async def _tell(self, refresh: Refresh) -> None:
        url = self._world.settings.completion_queue
        if not url:
            return
        region = self._world.settings.completion_region or refresh.share.gateway.region
        if region not in self._queues:
            # The address is the queue's own: a proxy in front of a consumer is no business of AWS's.
            self._queues[region] = client("sqs", url.rsplit("/", 2)[0], region=region)
        body = json.dumps(completion(refresh, in_detail=self._world.settings.folder_list_in_detail))
        with contextlib.suppress(Exception):  # as EventBridge does it: at most a lost event
            await asyncio.to_thread(self._queues[region].send_message, QueueUrl=url, MessageBody=body)


def _covered(share: Share, folders: list[str], *, recursive: bool) -> list[str]:
    """The folders to list, each once: those named, and recursively those below that were listed before."""
    below = [name for folder in folders for name in share.inventory.cached_below(folder)] if recursive else []
    return list(dict.fromkeys([*folders, *below]))


def completion(refresh: Refresh, *, in_detail: bool = True) -> dict[str, Any]:
    """The EventBridge event that tells of a finished refresh."""
    share = refresh.share
    detail: dict[str, Any] = {
        "event-type": "refresh-complete",
        "notification-id": refresh.id,
        "started": _time(refresh.accepted_at),
        "completed": _time(refresh.completed_at or time.time()),
    }
    event = _event("Storage Gateway Refresh Cache Event", share, detail)
    (detail if in_detail else event)["folderList"] = refresh.folders
    return event


def upload(share: Share, key: str, size: int) -> dict[str, Any]:
    """The EventBridge event that tells of a file which this gateway has uploaded to the bucket."""
    now = _time(time.time())
    detail = {
        "event-type": "object-upload-complete",
        "bucket-name": share.bucket,
        "object-key": key,
        "object-size": size,
        "prefix": share.prefix,
        "modification-time": now,
        "upload-time": now,
    }
    return _event("Storage Gateway Object Upload Event", share, detail)


def _event(kind: str, share: Share, detail: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid4()),
        "detail-type": kind,
        "source": "aws.storagegateway",
        "account": share.arn.split(":")[4],
        "time": _time(time.time()),
        "region": share.gateway.region,
        "resources": [share.arn, share.gateway.arn],
        "detail": detail,
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
