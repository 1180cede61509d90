"""Writes docs/metrics.md: `python -m observability.page > docs/metrics.md`.

Inputs: the registry of an operator that has done nothing yet (names, types, help texts) and the catalogue
(labels, when to look). A test keeps the page as this prints it.
"""

import sys
import textwrap
from collections.abc import Iterator
from typing import Final, NamedTuple

from caretaker.obs.metrics import create_metrics
from observability import kinds
from observability.catalogue import SECTIONS
from observability.metric import Metric

HEAD: Final = """\
# Metrics

Served at `/metrics` on port 8080 (`--metrics-port`), in Prometheus' text format or OpenMetrics. What alerts
mean stands in [operations.md](operations.md#alerts); they and the dashboard are files of the chart:
`helm/caretaker/files/alerts/` and `helm/caretaker/files/dashboard.json`.

This page is written by `PYTHONPATH=dev .venv/bin/python -m observability.page`, from the code: help texts
stand with the metrics, labels of a kind's metrics in `dev/observability/kinds/`, all others in
`dev/observability/catalogue.py`. Tests compare both, and every series that an operator shows in a test
has to fit.

What to know when writing expressions:

- Every replica has the metrics of the operator and of its calls. Those with the label `name`, of a
  resource, come from the leader alone: a standby has none, and a leader that loses its Lease drops them.
- A resource that is deleted loses its series.
- `namespace` is the resource's. Scrape with `honorLabels: true` (a ServiceMonitor) or `honor_labels: true`,
  or Prometheus renames it to `exported_namespace`.
- No label takes values that grow with the cluster or its traffic: there are none of nodes, pods, instances,
  folders, queues or messages. At most, a resource has about 12 series of `caretaker_condition`, and a
  DaemonTask 40 of `caretaker_daemontask_result`.
- Counters and histograms begin at 0 with each process, as always: take `rate` or `increase` before any sum.
"""
TAIL: Final = """
## Process

Prometheus' client for Python adds `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_open_fds`, `process_start_time_seconds` and their kin, `python_gc_*` and `python_info`.
"""
UNITS: Final = (("_timestamp_seconds", "seconds since 1970"), ("_seconds", "seconds"), ("_info", "none"))


class Described(NamedTuple):
    """What the code says of a metric."""

    kind: str
    help: str
    labels: tuple[str, ...]


def described() -> dict[str, Described]:
    """Every metric of ours, by name."""
    registry = create_metrics("0").registry
    kinds.register(registry)
    found = {}
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith("caretaker_"):
            collector = registry._names_to_collectors[name]
            found[name] = Described(family.type, family.documentation, getattr(collector, "_labelnames", ()))
    return found


def unit(name: str, kind: str) -> str:
    """The unit of a metric's value, from its name (https://prometheus.io/docs/practices/naming)."""
    measured = next((words for end, words in UNITS if name.endswith(end)), "")
    return measured or ("count" if kind in ("counter", "histogram") else "number")


def page() -> str:
    """The whole page."""
    every = described()
    parts = [HEAD]
    for title, metrics in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        parts += ["\n".join(_entry(name, every[name], metric)) + "\n" for name, metric in metrics.items()]
    return "".join([*parts, TAIL])


def _entry(name: str, said: Described, metric: Metric) -> Iterator[str]:
    yield f"\n### {name}\n"
    text = said.help.replace("<error>", "`<error>`")  # else HTML
    yield _wrapped(f"{said.kind.capitalize()}, {unit(name, said.kind)}. {text}")
    if said.labels:
        yield ""
    for label in said.labels:
        yield _wrapped(f"- `{label}`: {metric.labels[label].words}", "  ")
    yield ""
    yield _wrapped(f"When to look: {metric.when}")


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(page())
