"""Which events count, and which folders of which targets they make stale.

Pure. A share is matched by its bucket and its prefix; several may serve one bucket, and all of them count.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from caretaker.api.s3refresh import Filter
from caretaker.s3refresh import folders
from caretaker.s3refresh.envelope import ObjectEvent
from caretaker.s3refresh.folders import EVERYTHING, Scope


class Share(msgspec.Struct, frozen=True):
    """A place that can be refreshed. `group` is what bounds concurrency: the gateway."""

    id: str
    arn: str
    bucket: str
    prefix: str = ""
    group: str = ""
    region: str = ""
    ready: bool = True  # AVAILABLE


def wanted(filter_: Filter, event: ObjectEvent) -> bool:
    """Whether spec.filter lets the event pass. One without a key passes: it may be about any object."""
    if event.kind not in filter_.events:
        return False
    if filter_.buckets and event.bucket not in filter_.buckets:
        return False
    if any(fnmatchcase(event.principal, pattern) for pattern in filter_.ignore_principals):
        return False
    return not event.key or _key_passes(filter_, event.key)


def _key_passes(filter_: Filter, key: str) -> bool:
    return (
        (not filter_.prefixes or key.startswith(filter_.prefixes))
        and not key.startswith(filter_.exclude_prefixes)
        and (not filter_.suffixes or key.endswith(filter_.suffixes))
        and not key.endswith(filter_.exclude_suffixes)
    )


def scopes(
    events: Iterable[ObjectEvent], shares: Mapping[str, Sequence[Share]], *, whole: bool = False
) -> dict[str, Scope]:
    """Target id -> what the events make stale. `shares` by bucket; `whole`: spec asks for whole shares."""
    found: dict[str, set[Scope]] = {}
    for event in events:
        for share in shares.get(event.bucket, ()):
            scope = folders.of_key(event.key, share.prefix) if event.key else EVERYTHING
            if scope:
                found.setdefault(share.id, set()).add(EVERYTHING if whole else scope)
    return {target: folders.merge(*these) for target, these in found.items()}


def of_buckets(names: Iterable[str], *, ready: bool = True) -> tuple[Share, ...]:
    """Whole buckets as targets of their own, each bounding its own concurrency."""
    return tuple(Share(name, "", name, group=name, ready=ready) for name in sorted(set(names)))


def by_bucket(shares: Iterable[Share]) -> dict[str, list[Share]]:
    """Shares by the bucket that they serve."""
    found: dict[str, list[Share]] = {}
    for share in shares:
        found.setdefault(share.bucket, []).append(share)
    return found
