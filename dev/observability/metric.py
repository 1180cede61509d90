"""What the catalogue says of one metric.

Pure.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from observability import labels as known
from observability.labels import Label

OBJECT: Final = {"namespace": known.NAMESPACE, "name": known.NAME}


class Metric(msgspec.Struct, frozen=True):
    """What the code does not say of a metric itself."""

    when: str  # to look at it, a sentence or two
    labels: Mapping[str, Label] = {}
