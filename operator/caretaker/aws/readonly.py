"""Read-only access to a service: write operations are refused before a request is sent.

Inputs: a service's Protocol as aws.calls.Aws provides it. It has no list of operations: every operation that
is not a known read is refused.
"""

from typing import Any, TypeVar, cast

from caretaker.aws.services import api_name, is_write

S = TypeVar("S")


class ReadOnlyError(AssertionError):
    """Our code called a write operation of a read-only service: a bug."""


def read_only(service: S) -> S:
    """The same service, for reading."""
    return cast(S, _ReadOnly(service))


class _ReadOnly:
    """Passes on reads and refuses writes."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, operation: str) -> Any:
        if is_write(api_name(operation)):
            raise ReadOnlyError(f"{api_name(operation)} is refused: nothing may be changed here")
        return getattr(self._service, operation)
