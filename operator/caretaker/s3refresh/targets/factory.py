"""Makes the TargetClient of a spec. Every module on this package's path with a TARGET_TYPE is a target, and
no other module lists them."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from caretaker.api.s3refresh import Spec
from caretaker.s3refresh import targets
from caretaker.s3refresh.target_types import TargetType, spec_type, target_type_of
from caretaker.s3refresh.targets import TargetClient, Tools

Make = Callable[[Any, Spec, Tools], TargetClient]


class TargetRegistry(msgspec.Struct, frozen=True):
    """The installed targets. `spec` is the type of a spec that may have any of them."""

    spec: type[Spec]
    makers: Mapping[type[TargetType], Make]


def registry() -> TargetRegistry:
    """All targets that lie on the package's path now."""
    return _on(tuple(targets.__path__))


def make(spec: Spec, tools: Tools) -> TargetClient:
    """The client of the target in the spec. ValueError if it has none."""
    meant = target_type_of(spec)
    return registry().makers[type(meant)](meant, spec, tools)


@cache
def _on(path: tuple[str, ...]) -> TargetRegistry:
    names = [module.name for module in pkgutil.iter_modules(path, f"{targets.__name__}.")]
    modules = [importlib.import_module(name) for name in names if name != __name__]
    makers: dict[type[TargetType], Make] = {
        one.TARGET_TYPE: one.make for one in modules if hasattr(one, "TARGET_TYPE")
    }
    return TargetRegistry(spec_type(makers), makers)
