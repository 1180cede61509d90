"""Which verbs RBAC refuses us, as far as requests have told.

Inputs: the refusals and the successes of a transport. Not every 403 counts: quotas and admission policies
refuse with it, too. It must not ask the API server anything.
"""

import itertools
import time
from collections.abc import Callable
from typing import Final

from caretaker.kube.errors import ApiError

# Answers of handlers and admission; authentication (401) and flow control (429) come before authorization.
_AUTHORIZED: Final = (404, 409, 410, 422)
# What is not refused again for so long is asked for by nobody any more: its resource was deleted, say. Twice
# the longest wait between two tries that we have by ourselves, `retry.max` of an S3AggregatedRefresh (passes
# over resources wait for 8 minutes at most): what goes on being refused is not forgotten in between.
FORGET_SECONDS: Final = 1800.0

Hook = Callable[[str, str, bool], None]


class Permissions:
    """Calls `on_change(verb, resource, missing)` when a permission is found missing, in the first namespace
    of any, and when that is over in the last: it works again, or was not refused for FORGET_SECONDS.

    resource  the plural, with its subresource if any: `daemontasks/status`, as a role names it
    missing   (verb, resource, namespace) -> when it was last refused, the longest ago first; the namespace is
              empty where all are asked for at once, or the resource has none
    `clock` is one that never goes back. That time has passed is noticed with the next request that is let
    through: the Lease's each few seconds, and where there is none, that of a watch within minutes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Hook | None = None
        self.missing: dict[tuple[str, str, str], float] = {}
        self._clock = clock

    def refused(self, error: ApiError) -> None:
        """Note an error. One that comes after authorization (404, 409, 422) shows that RBAC let us."""
        found = error.missing_permission
        if found is not None:
            self._forget_old()
            told = self._is_missing(*found)
            key = (*found, _split(error.path)[0])
            self.missing.pop(key, None)  # to the end: the dict is in the order of time
            self.missing[key] = self._clock()
            if not told:
                self._tell(*found, missing=True)
        elif error.status in _AUTHORIZED:
            self.granted(error.verb, error.path)

    def granted(self, verb: str, path: str) -> None:
        """Note that a request of `verb` to `path` was let through."""
        if not self.missing:
            return  # the ordinary case: nothing is worked out
        namespace, parts = _split(path)
        self._over((verb, _named(parts), namespace))
        self._forget_old()

    def clear(self) -> None:
        """Nothing is known any more: whoever is refused from now on tells it anew."""
        for key in list(self.missing):
            self._over(key)

    def _forget_old(self) -> None:
        horizon = self._clock() - FORGET_SECONDS
        for key in list(itertools.takewhile(lambda key: self.missing[key] < horizon, self.missing)):
            self._over(key)

    def _over(self, key: tuple[str, str, str]) -> None:
        if self.missing.pop(key, None) is not None and not self._is_missing(*key[:2]):
            self._tell(*key[:2], missing=False)

    def _is_missing(self, verb: str, resource: str) -> bool:
        return any(key[:2] == (verb, resource) for key in self.missing)

    def _tell(self, verb: str, resource: str, *, missing: bool) -> None:
        if self.on_change is not None:
            self.on_change(verb, resource, missing)


def named_resource(path: str) -> str:
    """What a role calls the resource at `path`: "pods" of .../pods/b, "pods/log" of .../pods/b/log."""
    return _named(_split(path)[1])


def _named(parts: list[str]) -> str:
    return "/".join(parts[:1] + parts[2:3])


def _split(path: str) -> tuple[str, list[str]]:
    """(the namespace of `path` or nothing, its parts from the resource on)."""
    parts = path.strip("/").split("/")
    parts = parts[2 if parts[0] == "api" else 3 :]
    if len(parts) > 2 and parts[0] == "namespaces":
        return parts[1], parts[2:]
    return "", parts
