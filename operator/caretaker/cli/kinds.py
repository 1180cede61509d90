"""The kinds that `plan` and `status` show. Each has its VIEW in its own package."""

import importlib
from typing import Final

from caretaker.cli.options import View
from caretaker.registry import KINDS, KindInfo


def _load(info: KindInfo) -> View:
    view: View = importlib.import_module(f"caretaker.cli.{info.package}").VIEW
    return view


VIEWS: Final = tuple(map(_load, KINDS))


def view_of(kind: KindInfo) -> View:
    """The kind's view."""
    return next(view for view in VIEWS if view.kind == kind)
