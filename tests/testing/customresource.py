"""A custom resource of any kind as a test follows it: read, edited, waited for."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from testbed.admin import Admin, Json

# Seconds. It ends a wait for what never comes and measures nothing: a busy machine takes 4 times as long.
TIMEOUT: Final = 300.0


def condition(found: Mapping[str, Any], kind: str) -> Json:
    """The condition of that type; an empty dict when it is not there."""
    conditions = (found.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def stands(found: Mapping[str, Any], kind: str, status: str = "True", reason: str | None = None) -> bool:
    """Whether the condition has this status (and reason), and is about the spec as it is now."""
    has = condition(found, kind)
    current = has.get("observedGeneration") == found["metadata"]["generation"]
    return current and has.get("status") == status and reason in (None, has.get("reason"))


class Resource:
    """One resource, by its URL path."""

    def __init__(self, admin: Admin, url: str) -> None:
        self._admin = admin
        self.url = url

    async def get(self) -> Json:
        """As the API server has it."""
        return await self._admin.get(self.url)

    async def when(self, wanted: Callable[[Json], bool], timeout: float = TIMEOUT) -> Json:
        """The resource once `wanted` holds for it and its status is about the spec as it is now."""

        def holds(found: Json) -> bool:
            seen = (found.get("status") or {}).get("observedGeneration")
            return seen == found["metadata"]["generation"] and wanted(found)

        return await self._admin.wait_for(self.url, holds, timeout)

    async def condition(
        self, kind: str, status: str = "True", reason: str | None = None, timeout: float = TIMEOUT
    ) -> Json:
        """The condition once it has this status (and reason)."""
        return condition(await self.when(lambda f: stands(f, kind, status, reason), timeout), kind)

    async def edit(self, **spec: Any) -> Json:
        """Merge-patch the spec."""
        return await self._admin.patch(self.url, {"spec": spec})

    async def delete(self) -> None:
        """As kubectl delete does."""
        await self._admin.delete(self.url)
