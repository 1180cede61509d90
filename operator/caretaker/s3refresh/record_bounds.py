"""The bounds of the record: all targets of a resource have to fit into one object.

Pure. A scope that is too long becomes everything: a refresh of more, never of less.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from caretaker.s3refresh import folders
from caretaker.s3refresh.debounce import MAX_MESSAGE, DirtyScope, TargetState
from caretaker.s3refresh.match import Share

# An object in etcd is below 1.5 MiB; managedFields and the spec need some of it.
MAX_RECORD_BYTES: Final = 768 * 1024


def fit(targets: dict[str, TargetState], shares: Iterable[Share]) -> None:
    """The largest scopes become everything until the record fits."""
    urls = defaultdict(str, {share.id: share.endpoint for share in shares})
    sizes = {name: size(target, urls[name]) for name, target in targets.items()}
    total = sum(sizes.values())
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if total <= MAX_RECORD_BYTES:
            return
        targets[name] = widened(targets[name])
        total -= sizes[name] - size(targets[name], urls[name])


def size(target: TargetState, endpoint: str = "") -> int:
    """Bytes of the folders, the endpoint and the failure's message on record, about. `endpoint`: of the next
    call."""
    requests = [part.request.scope for part in (target.claim, target.in_flight) if part is not None]
    waiting = [one.scope for one in (target.dirty, target.dirty and target.dirty.later) if one is not None]
    urls = max(folders.length(url) if url else 0 for url in (target.last.endpoint, endpoint))
    why = folders.length(target.failure.message[:MAX_MESSAGE]) if target.failure is not None else 0
    return urls + why + sum(folders.size(scope) for scope in (*requests, *waiting))


def widened(target: TargetState) -> TargetState:
    """Everything waits instead of many folders: a shorter record."""
    if target.dirty is None:
        return target
    return replace(
        target, dirty=DirtyScope(target.dirty.since, folders.EVERYTHING, requested=target.dirty.asked)
    )
