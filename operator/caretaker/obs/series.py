"""Bounds the series of metrics, which are kept for ever: limits the values of a label that come from outside,
and drops the series of a gauge that an object no longer has. It must not do I/O.
"""

import re
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OTHER: Final = "other"
MAX_VALUES: Final = 100  # different words of one LabelLimiter
Labels = tuple[str, ...]
_WORD: Final = re.compile(r"[A-Za-z][\w./]{0,79}")


def makers(registry: CollectorRegistry) -> tuple[partial[Counter], partial[Gauge], partial[Histogram]]:
    """Factories of metrics in a registry."""
    return (
        partial(Counter, registry=registry),
        partial(Gauge, registry=registry),
        partial(Histogram, registry=registry),
    )


class LabelLimiter:
    """Returns the first MAX_VALUES different words unchanged if they are valid; OTHER for all others. Safe in
    any thread."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, word: str) -> str:
        """`word`, or OTHER."""
        if not _WORD.fullmatch(word):
            return OTHER
        with self._lock:
            if word not in self._known and len(self._known) >= MAX_VALUES:
                return OTHER
            self._known.add(word)
        return word


class GaugeSeries:
    """A gauge with a changing number of series for each object. It has the labels of an object first, then
    those of a series."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: dict[Labels, set[Labels]] = {}  # object -> its series

    def show(self, key: Labels, series: Mapping[Any, float]) -> None:
        """Set the object's series (labels -> value), and drop all others of it."""
        for old in self._shown.pop(key, set()) - series.keys():
            self._gauge.remove(*key, *old)
        for labels, value in series.items():
            self._gauge.labels(*key, *labels).set(value)
        if series:
            self._shown[key] = set(series)

    def clear(self) -> None:
        """Drop the series of all objects."""
        self._gauge.clear()
        self._shown.clear()
