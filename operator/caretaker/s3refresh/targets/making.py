"""From spec.target to a Target: every module of this package that has a TARGET_TYPE is one, wherever on the
package's path it lies. Which there are is looked up here alone.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from caretaker.api.s3refresh import Spec
from caretaker.s3refresh import targets
from caretaker.s3refresh.target_types import TargetType, spec_type, target_type_of
from caretaker.s3refresh.targets import Target, Tools

Make = Callable[[Any, Spec, Tools], Target]


class Known(msgspec.Struct, frozen=True):
    """The targets that there are. `spec` is the type of a spec that may mean any of them."""

    spec: type[Spec]
    makers: Mapping[type[TargetType], Make]


def known() -> Known:
    """All that lie on the package's path now."""
    return _on(tuple(targets.__path__))


def make(spec: Spec, tools: Tools) -> Target:
    """The target that the spec means. ValueError when it means none."""
    meant = target_type_of(spec)
    return known().makers[type(meant)](meant, spec, tools)


@cache
def _on(path: tuple[str, ...]) -> Known:
    names = [module.name for module in pkgutil.iter_modules(path, f"{targets.__name__}.")]
    modules = [importlib.import_module(name) for name in names if name != __name__]
    makers: dict[type[TargetType], Make] = {
        one.TARGET_TYPE: one.make for one in modules if hasattr(one, "TARGET_TYPE")
    }
    return Known(spec_type(makers), makers)
