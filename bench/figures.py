"""Figures, the table a person reads and the file a script reads.

A figure that misses its target is in the table like any other; `missed` lists them.
"""

import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from testbed.paths import CHECKOUT

OUT: Final = CHECKOUT / ".dev" / "bench"


class Figure(msgspec.Struct, frozen=True):
    """One measured value. `target` is as text, such as "<= 1.15"; empty where none was set."""

    figure: str
    value: float
    unit: str
    target: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if not self.target:
            return None
        operator, _, bound = self.target.partition(" ")
        number = float(bound)
        return {"<=": self.value <= number, ">=": self.value >= number, "=": self.value == number}[operator]


def machine() -> str:
    """Cores, memory, kernel and Python: what a figure depends on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        f"{os.cpu_count()} cores, {pages / 2**30:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table."""
    lines = ["| Figure | Value | Target | Met |", "|---|---|---|---|"]
    for f in figures:
        met = {None: "", True: "yes", False: "**no**"}[f.met]
        note = f" ({f.note})" if f.note else ""
        lines.append(f"| {f.figure}{note} | {_number(f.value)} {f.unit} | {f.target} | {met} |")
    return "\n".join(lines)


def missed(figures: Iterable[Figure]) -> list[str]:
    """A line for each figure that misses its target."""
    return [f"{f.figure}: {_number(f.value)} {f.unit}, target {f.target}" for f in figures if f.met is False]


def write(name: str, figures: list[Figure]) -> Path:
    """`.dev/bench/NAME.json`."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    body = {
        "name": name,
        "command": f"make bench BENCH={name}",
        "machine": machine(),
        "figures": [{**msgspec.to_builtins(f), "met": f.met} for f in figures],
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
