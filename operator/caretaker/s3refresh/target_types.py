"""The types of targets: the attributes of a target on which the rest of the code depends.

Pure. Each module of targets/ defines its own TargetType and spec_type() receives them all. No pure module
refers to one by name.
"""

import math
from collections.abc import Iterable
from typing import ClassVar, Final, cast

import msgspec
from msgspec.structs import replace

from caretaker.api.objects import Wire
from caretaker.api.s3refresh import Spec, TargetSpec
from caretaker.s3refresh.options import DebounceOptions

REDISCOVER_SECONDS: Final = 600.0


class TargetType(Wire, frozen=True):
    """Base of a target's part of the spec, whose fields are the subclass's. Where that overrides nothing, the
    buckets of spec.filter are refreshed, as many at a time as are due, and the result of a refresh comes with
    the answer or is asked for.

    member      its name in spec.target
    idempotent  whether a call that is made again with the same claim takes effect once
    by_key      as of Share
    of_buckets  whether each bucket of spec.filter.buckets is one target, without a call
    noun, chosen_by   the noun for targets, of which there can be too many; the field that selects fewer
    ends_field  the field that `ends_url` stands in
    reports_end whether a refresh may go on after its call was accepted; its end is asked for, or reported
    """

    member: ClassVar[str]
    idempotent: ClassVar[bool]
    by_key: ClassVar[bool] = False
    of_buckets: ClassVar[bool] = True
    noun: ClassVar[str] = "buckets"
    chosen_by: ClassVar[str] = "spec.filter.buckets"
    ends_field: ClassVar[str] = ""
    reports_end: ClassVar[bool] = True

    @property
    def prefix(self) -> str:
        """The prefix that is refreshed in each bucket; "" = the whole bucket."""
        return ""

    @property
    def named_buckets(self) -> frozenset[str]:
        """Buckets of shares that the spec names, and not the service."""
        return frozenset()

    @property
    def limit(self) -> int:
        """Refreshes at a time of one group (Share.group); 0: no limit."""
        return 0

    @property
    def whole(self) -> bool:
        """Whether everything is refreshed each time, never folders."""
        return False

    @property
    def ends_url(self) -> str:
        """The queue with the completion events of refreshes; "" = there is none."""
        return ""

    def called(self, region: str) -> dict[str, str]:  # noqa: ARG002 - for those that override it
        """The destinations of refreshes, which targetARNs have to grant: field -> ARN."""
        return {}

    @property
    def rediscover(self) -> float:
        """Seconds between two discoveries. ValueError with the field."""
        return REDISCOVER_SECONDS

    def debounce_options(self, options: DebounceOptions) -> DebounceOptions:
        """The options, with those that only the target knows. ValueError with the field."""
        longest = math.inf if self.reports_end else 0.0
        return replace(options, tracked=True, assume_after=math.inf, completion_timeout=longest)


class NoTarget(TargetType, frozen=True):
    """The target type of a resource whose spec cannot be read."""

    member = ""
    idempotent = False


NO_TARGET: Final = NoTarget()


def target_type_of(spec: Spec | None) -> TargetType:
    """The type that spec.target names; NO_TARGET without a spec. Raises ValueError where it names none."""
    if spec is None:
        return NO_TARGET
    members = (getattr(spec.target, name) for name in spec.target.__struct_fields__)
    found: TargetType | None = next((one for one in members if one is not None), None)
    if found is None:
        raise ValueError("spec.target: must name what to refresh, such as storageGateway")
    return found


def spec_type(target_types: Iterable[type[TargetType]]) -> type[Spec]:
    """Spec whose target has these members, each under its name in the CRD."""
    members = [(one.member, one | None, None) for one in target_types]
    target = msgspec.defstruct(TargetSpec.__name__, members, bases=(TargetSpec,))
    return cast(type[Spec], msgspec.defstruct(Spec.__name__, [("target", target)], bases=(Spec,)))
