"""What a PromQL expression asks for, held against what the operator has.

Input: an expression's text. It is no parser (promtool judges the syntax): it finds metrics of ours with their
matchers, and the labels that are grouped or joined by. Pure.
"""

import re
from collections.abc import Iterator
from typing import Final

from observability.catalogue import METRICS, family
from observability.labels import Label
from observability.metric import Metric
from observability.page import described

# What Prometheus or the cluster's configuration adds to every series.
SCRAPED: Final = frozenset(("job", "namespace", "pod", "instance", "le"))
# Of Prometheus' client: no labels, and named as in docs/metrics.md.
_PROCESS: Final = re.compile(r"process_\w+|python_gc_\w+")
_METRIC: Final = re.compile(r"\b((?:caretaker|process|python)_\w+)\b(?:\s*\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*')
_GROUPING: Final = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
# A dashboard's variables stand for values that exist.
_VARIABLE: Final = re.compile(r"\$\w+")


def faults(expression: str) -> Iterator[str]:
    """What it asks for in vain: unknown metrics and labels, values that a label never has."""
    asked: set[str] = set(SCRAPED)
    for name, matchers in _METRIC.findall(expression):
        metric = METRICS.get(family(name))
        if metric is not None:
            asked |= set(metric.labels)
            yield from _metric(name, metric, matchers)
        elif not _PROCESS.fullmatch(name):
            yield f"there is no metric {name}"
    for labels in _GROUPING.findall(expression):
        for label in set(re.findall(r"\w+", labels)) - asked:
            yield f"no metric in it has a label {label}"


def _metric(name: str, metric: Metric, matchers: str) -> Iterator[str]:
    if name not in _exported(family(name)):
        yield f"{name} is no series of a {described()[family(name)].kind}"
    for label, operator, value in _MATCHER.findall(matchers):
        if label in metric.labels:
            if not _fits(metric.labels[label], operator, value):
                yield f"{name}: {label} is never {value}"
        elif label not in SCRAPED:
            yield f"{name} has no label {label}"


def _exported(name: str) -> set[str]:
    """The series of a metric."""
    if described()[name].kind == "histogram":
        return {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return {name}


def _fits(label: Label, operator: str, value: str) -> bool:
    """Whether a label may ever have what a matcher names."""
    if _VARIABLE.search(value):
        return True
    if "~" not in operator:
        return label.allows(value)
    return not label.values or any(re.fullmatch(value, one) for one in label.values)
