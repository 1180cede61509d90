"""A gauge with a changing number of series for each object: it drops series that an object no longer has.

Inputs: the gauge and the current series. It must not do I/O.
"""

from collections.abc import Mapping
from typing import Any

from prometheus_client import Gauge

Labels = tuple[str, ...]


class GaugeSeries:
    """See the module. `gauge` has the labels of an object first, then those of a series."""

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
