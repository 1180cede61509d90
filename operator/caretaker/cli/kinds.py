"""The functions of `plan` and `status` for each kind. Each kind has its COMMANDS in its own package."""

import importlib
from typing import Final

from caretaker.cli.options import KindCommands
from caretaker.registry import KINDS, KindInfo


def _load(info: KindInfo) -> KindCommands:
    commands: KindCommands = importlib.import_module(f"caretaker.cli.{info.package}").COMMANDS
    return commands


KIND_COMMANDS: Final = tuple(map(_load, KINDS))


def commands_of(kind: KindInfo) -> KindCommands:
    """The functions of the kind."""
    return next(commands for commands in KIND_COMMANDS if commands.kind == kind)
