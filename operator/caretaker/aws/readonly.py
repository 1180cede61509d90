"""A service of which nothing can be changed: operations that may are refused before anything is sent.

Inputs: a service's Protocol as aws.calls.Aws answers it. It must not know which operations there are: what
is not known to be harmless is refused.
"""

from typing import Any, TypeVar, cast

from caretaker.aws.services import api_name, is_write

S = TypeVar("S")


class ReadOnlyError(AssertionError):
    """Somebody tried to change something who must not: a fault of ours."""


def read_only(service: S) -> S:
    """The same service, for reading."""
    return cast(S, _ReadOnly(service))


class _ReadOnly:
    """Passes on what changes nothing."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, operation: str) -> Any:
        if is_write(api_name(operation)):
            raise ReadOnlyError(f"{api_name(operation)} is refused: nothing may be changed here")
        return getattr(self._service, operation)
