"""Every version of one object, and who manages which of its fields.

Input: a watch of the API server, from before the object exists until it is gone. It changes nothing. A
version that the API server never showed to any watcher is not seen, as it is not by any controller either.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from testbed.admin import Admin, Json

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
LIST_SECONDS: Final = 30.0
# Set by the API server alone.
_SERVERS: Final = frozenset(
    ("resourceVersion", "managedFields", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
)


class Versions:
    """The versions of `name` below `collection`, oldest first."""

    def __init__(self, admin: Admin, collection: str, name: str) -> None:
        self.seen: list[Json] = []
        self.gone = asyncio.Event()
        self._states = admin.states(collection, fields=f"metadata.name={name}")
        self._listed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        await asyncio.wait_for(self._listed.wait(), LIST_SECONDS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._states) as states:
            async for objects in states:
                self._listed.set()
                self.seen.extend(objects.values())
                if self.seen and not objects:
                    self.gone.set()


def managed(version: Mapping[str, Any]) -> dict[tuple[str, str], set[str]]:
    """(manager, subresource) -> the paths of the fields that it manages, such as metadata.finalizers."""
    found: dict[tuple[str, str], set[str]] = {}
    for entry in version["metadata"].get("managedFields", ()):
        key = (entry["manager"], entry.get("subresource", ""))
        found.setdefault(key, set()).update(_leaves(entry["fieldsV1"]))
    return found


def _leaves(fields: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, below in fields.items():
        if name == ".":
            continue
        path = f"{above}.{name.removeprefix('f:')}".lstrip(".")
        yield from _leaves(below, path) if below else (path,)


def meant(version: Mapping[str, Any]) -> Json:
    """Of metadata what somebody means by it: all but what the API server and kubectl note down."""
    kept = {key: value for key, value in version["metadata"].items() if key not in _SERVERS}
    kept["annotations"] = {k: v for k, v in kept.get("annotations", {}).items() if k != LAST_APPLIED}
    return kept
