"""Target types: a module each, with a TARGET_TYPE and a make(); a new one touches no other module.

TARGET_TYPE  its part of the spec, a subclass of target_types.TargetType: the interface for all other code
make         (the part as it is in a spec, that spec, Tools) -> TargetClient

A module knows its service and nothing of debouncing. Every module on the package's path with a TARGET_TYPE is
a target, and no other module lists them; those without one are shared by targets. All are loaded wherever a
spec is read, such as by `caretaker status`: none may import boto3.
"""

import importlib
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from caretaker.api.objects import WireMeta
from caretaker.api.s3refresh import Spec
from caretaker.aws.identity import Keys
from caretaker.kube.client import KubeClient
from caretaker.s3refresh.debounce import Claim
from caretaker.s3refresh.match import Share
from caretaker.s3refresh.snapshot import Discovery, End, Result
from caretaker.s3refresh.target_types import TargetType, spec_type, target_type_of
from caretaker.s3refresh.targets.access_points import AccessPoints
from caretaker.s3refresh.targets.call_slots import CallSlots
from caretaker.s3refresh.targets.lookups import Lookups

if TYPE_CHECKING:
    from caretaker.aws.calls import Aws


class TargetClient(Protocol):
    """No method raises an answer of the service. The error of a write's guard (NotLeader) comes through:
    nothing was sent then."""

    async def discover(self) -> Discovery:
        """The shares, and the obstacles to their refresh, before any event comes. Not complete while
        something could not be asked or understood."""

    async def refresh(self, share: Share, claim: Claim) -> Result:
        """Make the call that the claim records, once."""

    async def ended(self, notification_ids: Collection[str]) -> Sequence[End]:  # noqa: ARG002
        """The ended ones of these refreshes in flight, and how; the others are asked for again. The default
        is for targets with completion events, or without any report of an end: none."""
        return ()


class Tools(msgspec.Struct, frozen=True):
    """The tools of a TargetClient."""

    aws: "Aws"
    client: KubeClient
    resource: WireMeta
    keys: Keys | None = None  # of spec.aws.credentialsSecretRef
    egress_allow: Collection[str] = ()  # otherwise refused destinations of the http target
    lookups: Lookups = msgspec.field(default_factory=Lookups)
    call_slots: CallSlots = msgspec.field(default_factory=CallSlots)  # of the http target
    access_points: AccessPoints = msgspec.field(default_factory=AccessPoints)  # of file shares


class TargetRegistry(msgspec.Struct, frozen=True):
    """The installed targets. `spec` is the type of a spec that may have any of them."""

    spec: type[Spec]
    makers: Mapping[type[TargetType], Callable[[Any, Spec, Tools], TargetClient]]


def registry() -> TargetRegistry:
    """All targets that lie on the package's path now."""
    return _on(tuple(__path__))


def make(spec: Spec, tools: Tools) -> TargetClient:
    """The client of the target in the spec. ValueError if it has none."""
    meant = target_type_of(spec)
    return registry().makers[type(meant)](meant, spec, tools)


@cache
def _on(path: tuple[str, ...]) -> TargetRegistry:
    modules = [importlib.import_module(one.name) for one in pkgutil.iter_modules(path, f"{__name__}.")]
    makers = {one.TARGET_TYPE: one.make for one in modules if hasattr(one, "TARGET_TYPE")}
    return TargetRegistry(spec_type(makers), makers)
