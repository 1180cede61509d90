"""The metrics of each kind: those that name a resource go with it, and all stand on the kind's page."""

import inspect
import itertools
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from caretaker.obs.series import GaugeSeries
from caretaker.registry import KINDS, KindInfo
from observability import kinds
from observability.metric import Metric

ROOT = Path(__file__).parents[3]
WATCHED = {kind: import_module(f"{kinds.__name__}.{kind.package}") for kind in KINDS}
# A kind whose series are made by a class of its metrics.py; the function of a smaller kind returns nothing.
CLASSES = [kind for kind, module in WATCHED.items() if inspect.isclass(module.register)]
KEY = {"namespace": "ns", "name": "r"}


def gauges(registry: CollectorRegistry) -> dict[str, Gauge]:
    """Those that name a resource."""
    named = registry._names_to_collectors.items()
    return {n: one for n, one in named if isinstance(one, Gauge) and "name" in one._labelnames}


def fill(metrics: object, documented: Mapping[str, Metric], registry: CollectorRegistry) -> None:
    """A series of the resource for each value of each label, set as the kind does it."""
    held = {one._gauge: one for one in vars(metrics).values() if isinstance(one, GaugeSeries)}
    for name, gauge in gauges(registry).items():
        key = {label: KEY[label] for label in gauge._labelnames if label in KEY}
        rest = [label for label in gauge._labelnames if label not in KEY]
        values = list(itertools.product(*(documented[name].labels[label].values or ("x",) for label in rest)))
        if gauge in held:
            held[gauge].show(tuple(key.values()), dict.fromkeys(values, 1.0))
        else:
            for chosen in values:
                gauge.labels(**key, **dict(zip(rest, chosen, strict=True))).set(1)


def left(registry: CollectorRegistry) -> list[str]:
    """The names of those with a series of a resource."""
    families = (family for family in registry.collect() if family.name in gauges(registry))
    return sorted({family.name for family in families if family.samples})


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("method", ["forget", "clear"])
def test_series_of_a_resource_go(kind: KindInfo, method: str) -> None:
    module = WATCHED[kind]
    made: Any = module.register(registry := CollectorRegistry())
    fill(made, module.METRICS, registry)
    assert left(registry) == sorted(gauges(registry))
    given = [KEY["namespace"], KEY["name"]] if kind.namespaced else [KEY["name"]]
    getattr(made, method)(*(given if method == "forget" else ()))
    file = f"operator/caretaker/{kind.package}/metrics.py"
    assert left(registry) == [], f"{file}: {method}() has to drop these series, of every value of a label"


@pytest.mark.parametrize("kind", KINDS, ids=[kind.kind for kind in KINDS])
def test_the_page_of_a_kind_has_its_metrics(kind: KindInfo) -> None:
    file = f"docs/spec/{kind.kind.lower()}.md"
    paragraphs = re.findall(r"\bMetrics:.*?(?=\n\n)", (ROOT / file).read_text(), re.DOTALL)
    shown = set(re.findall(r"`(caretaker_\w+)", "\n".join(paragraphs)))
    missing = sorted(WATCHED[kind].METRICS.keys() - shown)
    assert missing == [], f"{file}: in the paragraph that begins with `Metrics:`"
