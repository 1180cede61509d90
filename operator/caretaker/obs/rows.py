"""A gauge with a changing number of series for each object: those that an object has no more are dropped.

Inputs: the gauge, and what stands now. It must not do I/O.
"""

from collections.abc import Mapping
from typing import Any

from prometheus_client import Gauge

Labels = tuple[str, ...]


class Rows:
    """See the module. `gauge` has the labels of an object first, then those of a row."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._shown: dict[Labels, set[Labels]] = {}  # object -> its rows

    def show(self, key: Labels, rows: Mapping[Any, float]) -> None:
        """These (labels -> value) are all that the object has."""
        for gone in self._shown.pop(key, set()) - rows.keys():
            self._gauge.remove(*key, *gone)
        for labels, value in rows.items():
            self._gauge.labels(*key, *labels).set(value)
        if rows:
            self._shown[key] = set(rows)

    def clear(self) -> None:
        """Drop what names any object."""
        self._gauge.clear()
        self._shown.clear()
