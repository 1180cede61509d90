"""Graphs in rows, drawn by matplotlib (dependency group `pictures`).

Inputs: panels, and what Prometheus answered to their expressions. It must not decide the contents.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from observability.panel import Panel
from observability.prometheus import Points

COLUMNS: Final = 3
BACKGROUND, FRAME, LINES, WORDS = "#111217", "#181b1f", "#2c3235", "#ccccdc"
COLOURS: Final = [
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff780a",
    "#f2495c",
    "#5794f2",
    "#b877d9",
    "#705da0",
    "#37872d",
    "#fade2a",
    "#c0d8ff",
    "#ffb357",
]
MOST_LEGENDS: Final = 8


class Graph(NamedTuple):
    """A panel, and for each of its queries the legend and the series that came."""

    panel: Panel
    answers: Sequence[tuple[str, Sequence[tuple[Mapping[str, str], Points]]]]

    def lines(self) -> list[tuple[str, Points]]:
        """Names and points of the curves."""
        found = [
            (_named(legend, labels), _broken(points))
            for legend, series in self.answers
            for labels, points in series
        ]
        return sorted(
            (name, points) for name, points in found if not all(math.isnan(value) for _, value in points)
        )


def draw(rows: Mapping[str, Sequence[Graph]], since: float, until: float, file: Path) -> None:
    """Write the picture of what was between two times, in seconds since the epoch."""
    heights = [height for graphs in rows.values() for height in (0.18, *[1.0] * _lines(graphs))]
    figure = Figure(figsize=(15, 1.75 * sum(heights)), facecolor=BACKGROUND, layout="constrained")
    grid = figure.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    line = 0
    for title, graphs in rows.items():
        head = figure.add_subplot(grid[line, :])
        head.axis("off")
        head.text(0, 0.2, title, color=WORDS, fontsize=13, fontweight="bold", transform=head.transAxes)
        for place, graph in enumerate(graphs):
            axes = figure.add_subplot(grid[line + 1 + place // COLUMNS, place % COLUMNS])
            axes.set_xlim(0, (until - since) / 60)
            _graph(axes, graph, since)
        line += 1 + _lines(graphs)
    _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    """As text, in which words stay words; the same graphs give the same file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": file.name}):
        figure.savefig(file, facecolor=BACKGROUND, metadata={"Date": None})


def _lines(graphs: Sequence[Graph]) -> int:
    return -(-len(graphs) // COLUMNS)


def _graph(axes: Any, graph: Graph, since: float) -> None:
    lines = graph.lines()
    below: dict[float, float] = {}  # of a stack, at each time
    for at, (name, points) in enumerate(lines):
        colour = graph.panel.colours.get(name, COLOURS[at % len(COLOURS)])
        floor = [below.get(when, 0.0) for when, _ in points]
        values = [
            value + (low if graph.panel.stacked else 0.0)
            for (_, value), low in zip(points, floor, strict=True)
        ]
        times = [(when - since) / 60 for when, _ in points]
        axes.plot(times, values, color=colour, linewidth=1.1, label=name if at < MOST_LEGENDS else None)
        if graph.panel.stacked:
            axes.fill_between(times, floor, values, color=colour, alpha=0.25, linewidth=0)
            below.update(zip((when for when, _ in points), values, strict=True))
    if not lines:
        axes.text(0.5, 0.5, "nothing", color="#7b8087", ha="center", va="center", transform=axes.transAxes)
    _look(axes, graph.panel, legends=bool(lines))


def _look(axes: Any, panel: Panel, *, legends: bool) -> None:
    axes.set_facecolor(FRAME)
    axes.set_title(panel.title, color=WORDS, fontsize=9, loc="left")
    axes.set_ylim(bottom=0)
    axes.grid(color=LINES, linewidth=0.5)
    axes.tick_params(colors="#9fa7b3", labelsize=7, length=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _amount(value, panel.unit)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    for spine in axes.spines.values():
        spine.set_color(LINES)
    if legends:
        axes.legend(
            fontsize=6.5,
            labelcolor=WORDS,
            facecolor=FRAME,
            edgecolor=LINES,
            loc="upper right",
            framealpha=0.7,
        )


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "s":
        return f"{value * 1000:g} ms" if 0 < abs(value) < 1 else f"{value:g} s"
    return f"{value:g}/s" if unit == "reqps" else f"{value:g}"


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def _broken(points: Points) -> Points:
    """With a hole where there was no answer: a line across it would show what never was."""
    step = min((b[0] - a[0] for a, b in pairwise(points)), default=0.0)
    found: Points = []
    for at, value in points:
        if found and at - found[-1][0] > 1.5 * step:
            found.append((at - step, math.nan))
        found.append((at, value))
    return found
