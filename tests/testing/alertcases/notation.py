"""Series as PromQL writes them, and a case of an alert.

Every series comes from pod `a` unless it says otherwise.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

POD: Final = {"job": "caretaker", "pod": "a"}
OPERATOR: Final = {**POD, "namespace": "caretaker-system"}


class Case(msgspec.Struct, frozen=True):
    """Series, and what comes of them at a time: the labels of the alert that fires, beside its severity. Two
    minutes earlier it does not fire yet, which is what its `for` is. Without labels it has never fired until
    then."""

    series: Mapping[str, str]
    at: str
    fires: Mapping[str, str] | None = None


# alert -> what happens -> what is seen
Cases: TypeAlias = Mapping[str, Mapping[str, Case]]


def series(metric: str, labels: Mapping[str, str], **more: str) -> str:
    """As PromQL writes it."""
    inside = ",".join(f'{key}="{value}"' for key, value in {**labels, **more}.items())
    return f"{metric}{{{inside}}}"


def condition(kind: str, of: Mapping[str, str], what: str, reason: str) -> str:
    """A resource's condition."""
    return series("caretaker_condition", of, kind=kind, type=what, reason=reason)
