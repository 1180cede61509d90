"""The shell blocks of README, CONTRIBUTING, docs/ and the chart's README: what readers type.

Pure but for reading the pages. A block is known by its page, the heading above it and its number there.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from testbed.paths import CHECKOUT

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```|^(#+) ([^\n]+)$", re.MULTILINE | re.DOTALL)
_SHELLS: Final = ("sh", "console")


class Block(NamedTuple):
    """`language`: sh, a script; or console, commands after `$ ` and what they print."""

    page: str
    heading: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        number = f" ({self.number})" if self.number > 1 else ""
        return f"{self.page}: {self.heading}{number}"

    @property
    def script(self) -> str:
        """The commands alone."""
        if self.language == "sh":
            return self.text
        return "\n".join(line[2:] for line in self.text.splitlines() if line.startswith("$ "))


def blocks() -> Iterator[Block]:
    """All of them, by page."""
    pages = [
        *CHECKOUT.glob("*.md"),
        *(CHECKOUT / "docs").rglob("*.md"),
        CHECKOUT / "helm/caretaker/README.md",
    ]
    for page in sorted(pages):
        name = page.relative_to(CHECKOUT).as_posix()
        heading, numbers = "", Counter[str]()
        for language, text, _, title in _FENCE.findall(page.read_text()):
            heading = title or heading
            if language in _SHELLS:
                numbers[heading] += 1
                yield Block(name, heading, numbers[heading], language, text)


@cache
def run_by_tests() -> frozenset[tuple[str, str, int]]:
    """(page, heading, number) of what tests of guides run, by `documented(page, heading, number)`."""
    found = set()
    for file in (CHECKOUT / "tests").rglob("test_*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if ".documented(" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "documented":
                words = [word.value for word in node.args if isinstance(word, ast.Constant)]
                page, heading, *number = words
                found.add((f"docs/{page}", str(heading).lstrip("# "), int(*number) + 1 if number else 1))
    return frozenset(found)


def scratch(folder: Path) -> Path:
    """A folder like the checkout for commands that read it, in which what they write does no harm."""
    for name in ("crds", "deploy", "docs", "examples", "helm"):
        (folder / name).symlink_to(CHECKOUT / name)
    return folder
