"""Events as values: the transition, and its object. Pure data."""

from typing import Literal

import msgspec

EventType = Literal["Normal", "Warning"]


class Event(msgspec.Struct, frozen=True):
    """A transition: `reason` in CamelCase, `message` for a person. runtime/events.py posts it."""

    type: EventType
    reason: str
    message: str


class ObjectRef(msgspec.Struct, frozen=True):
    """The object that an Event is about. `namespace` is empty for a cluster-scoped one."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
