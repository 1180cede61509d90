"""What people watch each kind with, in a module that is named as its package. It has

METRICS   its part of the catalogue
PANELS    its row of the dashboard
REASONS   classes whose upper-case names are the reasons of its conditions
register  makes its metrics in a registry
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from prometheus_client import CollectorRegistry

from caretaker.registry import KINDS
from observability.labels import constants
from observability.metric import Metric
from observability.panel import Panel

_MODULES: Final = {info.kind: import_module(f"{__name__}.{info.package}") for info in KINDS}
SECTIONS: Final[Mapping[str, Mapping[str, Metric]]] = {k: found.METRICS for k, found in _MODULES.items()}
ROWS: Final[Mapping[str, tuple[Panel, ...]]] = {kind: found.PANELS for kind, found in _MODULES.items()}
REASONS: Final = frozenset(
    reason for found in _MODULES.values() for holder in found.REASONS for reason in constants(holder)
)


def register(registry: CollectorRegistry) -> None:
    """Make the metrics of all kinds."""
    for found in _MODULES.values():
        found.register(registry)
