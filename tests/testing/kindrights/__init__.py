"""What each kind may do, when it is alone: verbs by resource, in a module that is named as its package."""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from caretaker.registry import KINDS

# By the kind's plural.
RIGHTS: Final[Mapping[str, Mapping[str, str]]] = {
    info.plural: import_module(f"{__name__}.{info.package}").RIGHTS for info in KINDS
}
