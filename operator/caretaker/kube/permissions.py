"""Permissions that RBAC refuses, learned from the responses to requests.

Inputs: the refusals and the successes of a transport. Not every 403 counts: quotas and admission policies
use it, too. It must not send requests.
"""

import itertools
import time
from collections.abc import Callable
from typing import Final

from caretaker.kube.errors import ApiError

# Responses of handlers and admission; authentication (401) and flow control (429) come before authorization.
_AUTHORIZED: Final = (404, 409, 410, 422)
# A permission that is not refused again for this long is not needed any more: its resource was deleted, for
# example. Twice the longest wait between two attempts that a spec may ask for, `retry.max` of 15 minutes
# (passes wait for 8 at most): a permission that keeps being refused is not forgotten in between.
FORGET_SECONDS: Final = 1800.0

ChangeHook = Callable[[str, str, bool], None]


class Permissions:
    """Calls `on_change(verb, resource, missing)` when a permission is missing in a first namespace, and when
    it is missing in none any more: it was granted, or was not refused for FORGET_SECONDS.

    resource  the plural, with its subresource if any: `pods/log`, as a role names it
    missing   (verb, resource, namespace) -> when it was last refused, the longest ago first; the namespace is
              empty where all are asked for at once, or the resource has none
    `clock` never goes back. Old entries are dropped at the next permitted request: the Lease's every few
    seconds; without a Lease, that of a watch within minutes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: ChangeHook | None = None
        self.missing: dict[tuple[str, str, str], float] = {}
        self._clock = clock

    def refused(self, error: ApiError) -> None:
        """Note an error. One that comes after authorization (404, 409, 422) proves the permission."""
        found = error.missing_permission
        if found is not None:
            self._forget_old()
            was_missing = self._is_missing(*found)
            key = (*found, _split(error.path)[0])
            self.missing.pop(key, None)  # to the end: the dict is in the order of time
            self.missing[key] = self._clock()
            if not was_missing:
                self._notify(*found, missing=True)
        elif error.status in _AUTHORIZED:
            self.granted(error.verb, error.path)

    def granted(self, verb: str, path: str) -> None:
        """Note that a request of `verb` to `path` was permitted."""
        if not self.missing:
            return  # the ordinary case: no path is parsed
        namespace, parts = _split(path)
        self._resolve((verb, _named(parts), namespace))
        self._forget_old()

    def clear(self) -> None:
        """Forget all missing permissions; a refusal from now on adds them again."""
        for key in list(self.missing):
            self._resolve(key)

    def _forget_old(self) -> None:
        horizon = self._clock() - FORGET_SECONDS
        for key in list(itertools.takewhile(lambda key: self.missing[key] < horizon, self.missing)):
            self._resolve(key)

    def _resolve(self, key: tuple[str, str, str]) -> None:
        if self.missing.pop(key, None) is not None and not self._is_missing(*key[:2]):
            self._notify(*key[:2], missing=False)

    def _is_missing(self, verb: str, resource: str) -> bool:
        return any(key[:2] == (verb, resource) for key in self.missing)

    def _notify(self, verb: str, resource: str, *, missing: bool) -> None:
        if self.on_change is not None:
            self.on_change(verb, resource, missing)


def _named(parts: list[str]) -> str:
    """As a role names it: "pods" of .../pods/b, "pods/log" of .../pods/b/log."""
    return "/".join(parts[:1] + parts[2:3])


def _split(path: str) -> tuple[str, list[str]]:
    """(the namespace of `path` or nothing, its parts from the resource on)."""
    parts = path.strip("/").split("/")
    parts = parts[2 if parts[0] == "api" else 3 :]
    if len(parts) > 2 and parts[0] == "namespaces":
        return parts[1], parts[2:]
    return "", parts
