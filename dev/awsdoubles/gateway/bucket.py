"""Read the emulated bucket through S3, and count the requests.

Blocking; the double calls it in worker threads. It must not write.
"""

from dataclasses import dataclass, field
from typing import Any

from awsdoubles.clients import client
from awsdoubles.gateway.inventory import Listing, listing


@dataclass
class Requests:
    """What a refresh cost: one LIST for each page, and as AWS bills it a HEAD for each object."""

    lists: int = 0
    heads: int = 0


@dataclass
class Buckets:
    """Reads buckets at an S3 address; one client for each region, closed by `close`."""

    url: str
    _clients: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Close the connections."""
        for one in self._clients.values():
            one.close()

    def folder(self, region: str, bucket: str, prefix: str, counted: Requests) -> Listing:
        """List one folder: `prefix` is empty or ends in /."""
        objects: dict[str, str] = {}
        common: list[str] = []
        for page in self._pages(region, bucket, prefix, counted, Delimiter="/"):
            objects |= _objects(page)
            common += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        counted.heads += len(objects)
        return listing(prefix, objects, common)

    def everything(self, region: str, bucket: str, prefix: str) -> dict[str, str]:
        """All keys under `prefix` with their ETags."""
        objects: dict[str, str] = {}
        for page in self._pages(region, bucket, prefix, Requests()):
            objects |= _objects(page)
        return objects

    def _pages(self, region: str, bucket: str, prefix: str, counted: Requests, **more: str) -> Any:
        if region not in self._clients:
            self._clients[region] = client("s3", self.url, region=region)
        pages = self._clients[region].get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix, **more):
            counted.lists += 1
            yield page


def _objects(page: Any) -> dict[str, str]:
    return {entry["Key"]: entry["ETag"].strip('"') for entry in page.get("Contents", [])}
