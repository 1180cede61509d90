"""Contracts of import-linter that loop over the registry: a further kind does not edit pyproject.toml.

KindLayers: a contract of layers, where `kinds` stands for the packages of all kinds, side by side.
PureModules: forbidden imports of the modules that are listed, and of those of kinds that say Pure in their
docstring.
"""

import ast
import re
from typing import Any, Final

from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.domain.fields import Field

from caretaker.registry import KINDS
from testbed.paths import CHECKOUT

KINDS_LAYER: Final = "kinds"
_SOURCES: Final = CHECKOUT / "operator"


def pure() -> list[str]:
    """Modules of kinds that call themselves pure."""
    files = (file for kind in KINDS for file in (_SOURCES / "caretaker" / kind.package).rglob("*.py"))
    return sorted(
        ".".join(file.relative_to(_SOURCES).with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if re.search(r"\bPure\b", ast.get_docstring(ast.parse(file.read_text())) or "")
    )


class _InheritedFields:
    """import-linter 2.5 reads the fields of a contract's own class, and not those that it inherits."""

    @classmethod
    def _get_field_names(cls) -> list[str]:
        return [name for name in dir(cls) if isinstance(getattr(cls, name), Field)]


class KindLayers(_InheritedFields, LayersContract):
    """Layers, one of which is `kinds`."""

    def __init__(self, name: str, session_options: dict[str, Any], contract_options: dict[str, Any]) -> None:
        packages = " | ".join(f"(caretaker.{kind.package})" for kind in KINDS)
        layers = [packages if layer == KINDS_LAYER else layer for layer in contract_options["layers"]]
        super().__init__(name, session_options, {**contract_options, "layers": layers})


class PureModules(_InheritedFields, ForbiddenContract):
    """Forbidden imports of the modules that are listed or call themselves pure."""

    def __init__(self, name: str, session_options: dict[str, Any], contract_options: dict[str, Any]) -> None:
        sources = sorted({*contract_options["source_modules"], *pure()})
        super().__init__(name, session_options, {**contract_options, "source_modules": sources})
