"""The test's side of the double: plain JSON under `/_control/`.

`control.Control` is its client; what each call does stands there.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from awsdoubles.clients import client
from awsdoubles.controlapi import BadRequestError, ControlBase, Handler, Json, common
from awsdoubles.gateway.bucket import Buckets
from awsdoubles.gateway.faults import Fault, Faults
from awsdoubles.gateway.inventory import ROOT, Inventory, Listing, differences, folder_of, tree
from awsdoubles.gateway.refresh import Refresher, upload
from awsdoubles.gateway.state import (
    STATUSES,
    AccessPoint,
    Settings,
    Share,
    World,
    access_point_arn,
    alias_of,
    view,
)


class ControlApi(ControlBase):
    """Every call is a POST of an object and answers one."""

    def __init__(self, world: World, refresher: Refresher, faults: Faults, buckets: Buckets) -> None:
        self._world = world
        self._refresher = refresher
        self._faults = faults
        self._buckets = buckets
        own: dict[str, Handler] = {
            "reset": self._reset,
            "add-gateway": self._add_gateway,
            "add-share": self._add_share,
            "add-access-point": self._add_access_point,
            "remove-access-point": lambda body: self._world.access_points.pop(body["arn"], None) and None,
            "deny-access-point": self._deny_access_point,
            "set-status": self._set_status,
            "remove-share": self._remove_share,
            "shares": self._shares,
            "refreshes": self._refreshes,
            "inventory": self._inventory,
            "read": self._read,
            "differences": self._differences,
            "upload-event": self._upload_event,
        }
        super().__init__({**common(world, faults, Fault), **own})

    async def _reset(self, _: Json) -> Json:
        self._faults.all.clear()
        self._world.gateways.clear()
        self._world.shares.clear()
        self._world.refreshes.clear()
        self._world.calls.clear()
        self._world.access_points.clear()
        self._world.denied.clear()
        self._world.settings = Settings()
        return {}

    async def _add_gateway(self, body: Json) -> Json:
        return {"arn": self._world.add_gateway(body["region"]).arn}

    async def _add_share(self, body: Json) -> Json:
        gateway = self._world.gateways[body["gateway"]]
        prefix = body.get("prefix", "")
        if prefix and not prefix.endswith("/"):
            raise BadRequestError("prefix must end in /")
        protocol = body.get("protocol", "NFS")
        share = self._world.add_share(gateway, protocol, body["bucket"], prefix, body.get("location", ""))
        share.status = _status(body)
        if body.get("read", True):
            await self._refresher.read(share, ROOT, recursive=True)
        return view(share)

    async def _add_access_point(self, body: Json) -> Json:
        arn, alias = access_point_arn(body["region"], body["account"], body["name"]), alias_of(body["name"])
        made = AccessPoint(body["bucket"], alias, time.monotonic() + body["lag"])
        self._world.access_points[arn] = made
        return {"arn": arn, "alias": alias}

    async def _deny_access_point(self, body: Json) -> Json:
        change = self._world.denied.add if body["denied"] else self._world.denied.discard
        change(body["arn"])
        return {}

    async def _set_status(self, body: Json) -> Json:
        self._share(body).status = _status(body)
        return view(self._share(body))

    async def _remove_share(self, body: Json) -> Json:
        return view(self._world.shares.pop(self._share(body).arn))

    async def _shares(self, _: Json) -> list[Json]:
        return [view(share) for share in self._world.shares.values()]

    async def _refreshes(self, body: Json) -> list[Json]:
        return [r.view() for r in self._world.refreshes if body.get("share") in {None, r.share.arn}]

    async def _inventory(self, body: Json) -> Json:
        return _readable(self._share(body).inventory.listings)

    async def _read(self, body: Json) -> Json:
        folder = folder_of(body.get("folder", "/"))
        recursive = body.get("recursive", True)
        return _readable(await self._refresher.read(self._share(body), folder, recursive=recursive))

    async def _differences(self, body: Json) -> Json:
        share = self._share(body)
        objects = await _thread(self._buckets.everything, share.gateway.region, share.bucket, share.prefix)
        truth = tree(objects, share.prefix)
        cached: Inventory = share.inventory
        return {
            "differences": differences(cached, truth),
            "objects": len(objects),
            "cachedFolders": len(cached.listings),
            "inFlight": sum(r.completed_at is None for r in self._world.refreshes if r.share is share),
            "at": time.time(),
        }

    async def _upload_event(self, body: Json) -> Json:
        share = self._share(body)
        event = upload(share, body["key"], body.get("size", 0))
        queue: str = body["queue"]
        await _thread(_send, queue, share.gateway.region, event)
        return event

    def _share(self, body: Json) -> Share:
        if body.get("share") not in self._world.shares:
            raise BadRequestError(f"no share {body.get('share')!r}")
        return self._world.shares[body["share"]]


async def _thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


def _send(queue: str, region: str, event: Json) -> None:
    sqs = client("sqs", queue.rsplit("/", 2)[0], region=region)
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(event))
    sqs.close()


def _status(body: Json) -> str:
    status: str = body.get("status", "AVAILABLE")
    if status not in STATUSES:
        raise BadRequestError(f"status {status!r} is none of {', '.join(STATUSES)}")
    return status


def _readable(listings: dict[str, Listing]) -> Json:
    return {
        f"/{folder}": {"files": dict(seen.files), "folders": sorted(seen.folders)}
        for folder, seen in sorted(listings.items())
    }
