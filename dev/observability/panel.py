"""A panel of the dashboard, and its expressions.

Pure data. JOB restricts to the scraped operators that are chosen, HERE to the namespaces of resources; what
is cluster-scoped has an empty one. RATE is Grafana's: four scrapes at least.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

JOB: Final = 'job=~"$job"'
HERE: Final = 'namespace=~"$namespace|"'
RATE: Final = "[$__rate_interval]"
# What Grafana puts for its variables, where there is no Grafana.
VARIABLES: Final = {"$__rate_interval": "15s", "$job": ".*", "$namespace": ".*"}
PER_SECOND: Final = "reqps"
NUMBER: Final = "short"
# For names in legends that mean good or bad: a colour by chance would mislead.
GOOD, BAD, LATER, UNDER_WAY = "#73bf69", "#f2495c", "#f2cc0c", "#5794f2"
WAITS, CANNOT, OUTSIDE, NOT_KNOWN, DIFFERS = "#b4b7bd", "#7b8087", "#4d5158", "#b877d9", "#ff780a"


class Panel(msgspec.Struct, frozen=True):
    """One graph: (expression, legend) pairs in one of Grafana's units, with a line that says what to see.
    Colours of legends, as #rrggbb, where a name has one of its own."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str
    stacked: bool = False
    colours: Mapping[str, str] = {}


def plain(expression: str) -> str:
    """Without variables."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def rate(by: str, metric: str, *more: str) -> str:
    """What happens a second, by labels."""
    return f"sum by ({by}) (rate({metric}{{{','.join((JOB, *more))}}}{RATE}))"


def quantile(part: float, metric: str, by: str = "", *more: str) -> str:
    """Of a histogram."""
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({part}, {rate(labels, f'{metric}_bucket', *more)})"


def quantiles(metric: str, *more: str) -> tuple[tuple[str, str], ...]:
    """The middle and the slow end."""
    return (
        (quantile(0.5, metric, "", *more), "median"),
        (quantile(0.95, metric, "", *more), "95th percentile"),
    )


def count(kind: str, types: str, value: int, by: str = "type, reason") -> str:
    """How many resources have a condition that stands so."""
    chosen = f'{JOB},{HERE},kind="{kind}",type=~"{types}"'
    return f"count by ({by}) (caretaker_condition{{{chosen}}} == {value})"
