"""The kinds that `plan` and `status` show. Each has its VIEW in its own package."""

import importlib
from typing import Final

from caretaker.cli.options import KindCommands
from caretaker.registry import KINDS, KindInfo


def _load(info: KindInfo) -> KindCommands:
    view: KindCommands = importlib.import_module(f"caretaker.cli.{info.package}").VIEW
    return view


KIND_COMMANDS: Final = tuple(map(_load, KINDS))


def commands_of(kind: KindInfo) -> KindCommands:
    """The kind's view."""
    return next(view for view in KIND_COMMANDS if view.kind == kind)
