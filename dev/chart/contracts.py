"""The lines of the kinds in pyproject.toml's contracts for import-linter, by registry and docstrings.

A kind is a layer beside the others. A module of it whose docstring has the word Pure does no I/O.
"""

import ast
import re
from functools import cache
from typing import Final

from caretaker.registry import KINDS
from testbed.paths import CHECKOUT

_ROOT: Final = CHECKOUT / "operator"
_LAYER: Final = re.compile(r"^( *)\"\(caretaker\.\w+\)(?: \| \(.+\))+\",  # by make chart$", re.MULTILINE)
_PURE: Final = re.compile(r"(?<=# of the kinds, by make chart\n)(?: *\"caretaker\.[\w.]+\",\n)*(?=\])")


def filled(text: str) -> str:
    """pyproject.toml with the kinds of the registry. Raises ValueError where it has no place for them."""
    layer = " | ".join(f"(caretaker.{kind.package})" for kind in KINDS)
    text, layers = _LAYER.subn(lambda found: f'{found[1]}"{layer}",  # by make chart', text)
    text, lists = _PURE.subn("".join(f'    "{name}",\n' for name in pure()), text)
    if (layers, lists) != (1, 1):
        raise ValueError("pyproject.toml: no lines of the kinds by make chart in [tool.importlinter]")
    return text


@cache
def pure() -> tuple[str, ...]:
    """The modules of the kinds that call themselves pure, by name."""
    found = []
    for package in sorted(kind.package for kind in KINDS):
        for file in sorted((_ROOT / "caretaker" / package).rglob("*.py")):
            doc = ast.get_docstring(ast.parse(file.read_text())) or ""
            if re.search(r"\bPure\b", doc):
                found.append(
                    ".".join(file.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
                )
    return tuple(found)
