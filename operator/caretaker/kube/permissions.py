"""Which verbs RBAC refuses us, as far as requests have told.

Inputs: the refusals and the successes of a transport. Not every 403 counts: quotas and admission policies
refuse with it, too. It must not ask the API server anything.
"""

from collections.abc import Callable
from typing import Final

from caretaker.kube.errors import ApiError

# Answers of handlers and admission; authentication (401) and flow control (429) come before authorization.
_AUTHORIZED: Final = (404, 409, 410, 422)

Hook = Callable[[str, str, bool], None]


class Permissions:
    """Calls `on_change(verb, resource, missing)` when a permission is found missing, and when it works again.

    resource  the plural, with its subresource if any: `daemontasks/status`, as a role names it
    """

    def __init__(self) -> None:
        self.on_change: Hook | None = None
        self.missing: set[tuple[str, str]] = set()

    def refused(self, error: ApiError) -> None:
        """Note an error. One that comes after authorization (404, 409, 422) shows that RBAC let us."""
        found = error.missing_permission
        if found is not None and found not in self.missing:
            self.missing.add(found)
            self._tell(found, missing=True)
        elif error.status in _AUTHORIZED:
            self.granted(error.verb, error.path)

    def granted(self, verb: str, path: str) -> None:
        """Note that a request of `verb` to `path` was let through."""
        if not self.missing:
            return  # the ordinary case: nothing is worked out
        found = (verb, named_resource(path))
        if found in self.missing:
            self.missing.discard(found)
            self._tell(found, missing=False)

    def _tell(self, found: tuple[str, str], *, missing: bool) -> None:
        if self.on_change is not None:
            self.on_change(*found, missing)


def named_resource(path: str) -> str:
    """What a role calls the resource at `path`: "pods" of .../pods/b, "pods/log" of .../pods/b/log."""
    parts = path.strip("/").split("/")
    parts = parts[2 if parts[0] == "api" else 3 :]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return "/".join(parts[:1] + parts[2:3])
