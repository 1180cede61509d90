"""The command line. See commands.py."""

from caretaker.cli.commands import main

__all__ = ["main"]
