"""The bucket and prefix of a file share: from its LocationARN, or as recorded in status.

Pure. Forms (Storage Gateway API reference, NFSFileShareInfo.LocationARN): a bucket, an access point's ARN or
an access point's alias in place of a bucket, each with or without a prefix and a trailing slash. Only the
spec or S3 resolves an access point.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from caretaker.s3refresh.match import Share
from caretaker.s3refresh.snapshot import Discovery

_ARN_FIELDS: Final = 6
_ALIAS: Final = re.compile(r"[a-z0-9-]+-[a-z0-9]{20,}-s3alias")


class UnresolvedError(ValueError):
    """The location is unknown; the message names the field to add to the spec."""


def bucket_and_prefix(location: str, access_points: Mapping[str, str]) -> tuple[str, str]:
    """`arn:aws:s3:::bucket/team/` -> ("bucket", "team/"). Raises UnresolvedError.

    `access_points` maps an access point's ARN, name or alias to its bucket. The prefix is empty or ends in a
    slash.
    """
    fields = location.split(":", _ARN_FIELDS - 1)
    if len(fields) < _ARN_FIELDS or fields[2] != "s3" or fields[5].partition("/")[0] == "":
        raise UnresolvedError(f"LocationARN {location!r} is of no known form")
    resource, bucket = fields[5], None
    if resource.startswith(("accesspoint/", "accesspoint:")):
        name, _, prefix = resource[len("accesspoint/") :].partition("/")
        arn = location[: len(location) - len(prefix)].rstrip("/")
        bucket = access_points.get(arn) or access_points.get(name)
        if not bucket:
            raise UnresolvedError(_remedy(f"access point {name}", name))
    else:
        name, _, prefix = resource.partition("/")
        bucket = access_points.get(name) if _ALIAS.fullmatch(name) else name
        if not bucket:
            raise UnresolvedError(_remedy(f"access point alias {name}", name))
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def located(discovery: Discovery, places: Mapping[str, str]) -> Discovery:
    """Adds the shares that are listed but cannot be described, at their recorded location: they cannot be
    refreshed now, but their events are matched to them. `places`: share id -> recorded location. A share
    without a record is new, and is refreshed whole once it is described. With a record but no location its
    events cannot be matched, so the result is not complete."""
    described = {share.id for share in discovery.shares}
    there = [share for share in discovery.undescribed if share.id not in described and share.id in places]
    found = [_at(share, places[share.id]) for share in there if places[share.id]]
    complete = discovery.complete and len(found) == len(there)
    return msgspec.structs.replace(discovery, complete=complete, shares=(*discovery.shares, *found))


def _at(share: Share, place: str) -> Share:
    bucket, _, prefix = place.partition("/")
    return msgspec.structs.replace(share, bucket=bucket, prefix=prefix, ready=False)


def _remedy(what: str, name: str) -> str:
    return (
        f"which bucket {what} belongs to is not known: add `{name}: BUCKET` to "
        "spec.target.storageGateway.accessPointBuckets"
    )
