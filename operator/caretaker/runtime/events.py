"""Event recorder: core/v1 Events on transitions, as `kubectl describe` shows them.

Inputs: a reference to the object and the pure Event values a planner returned. It must not disturb a
pass: a failed post is logged and dropped. Nor may it repeat itself: the same (uid, reason, message) is
posted once in DEDUPE_SECONDS among all processes, since the Event's name is made of them.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import msgspec

from caretaker.api.conditions import Event, ObjectRef
from caretaker.api.hashing import h10
from caretaker.api.times import format_time
from caretaker.kube.errors import ApiError, NotLeader

DEDUPE_SECONDS: Final = 600
REMEMBERED: Final = 4096  # (uid, reason, message) hashes, some 150 bytes each
MAX_MESSAGE_BYTES: Final = 1024  # ValidateEventCreate in k8s.io/kubernetes/pkg/apis/core/validation/events.go
COMPONENT: Final = "caretaker"
_ELLIPSIS: Final = "..."

log = logging.getLogger(__name__)


class EventSink(Protocol):
    """The one call of caretaker.kube.client.KubeClient that is used here."""

    async def create(self, path: str, body: dict[str, Any]) -> Any: ...


class EventRecorder:
    """Posts Events; `identity` distinguishes replicas.

    `clock` gives seconds since the epoch.
    """

    def __init__(
        self,
        client: EventSink,
        identity: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._identity = identity
        self._clock = clock
        self._posted: OrderedDict[str, float] = OrderedDict()

    async def post(self, ref: ObjectRef, events: Iterable[Event]) -> None:
        """Create one Event for each of `events` that was not posted lately. Never raises an API error.

        Without the Lease nothing is posted: the leader sees the same transition.
        """
        for event in events:
            message = cut(event.message)
            key = h10(ref.uid, event.reason, message)
            now = self._clock()
            if self._recently(key, now):
                continue
            self._remember(key, now)
            # Events are kept for an hour, logs for longer. Log levels are about the operator's own health: a
            # warning would alert its administrator for a user's Pod.
            log.info("%s: %s", event.reason, message, extra={"event": event.type})
            try:
                await self._create(ref, msgspec.structs.replace(event, message=message), key, now)
            except NotLeader:
                self._posted.pop(key, None)
                return
            except ApiError as error:
                if error.already_exists:
                    continue
                self._posted.pop(key, None)
                log.warning("event %s was not posted: %s", event.reason, error)

    async def _create(self, ref: ObjectRef, event: Event, key: str, now: float) -> None:
        # Events about cluster-scoped objects live in `default` (validation/events.go).
        namespace = ref.namespace or "default"
        body = event_body(ref, event, namespace, event_name(ref, key, now), format_time(now))
        body["source"] = {"component": COMPONENT}
        body["reportingComponent"] = COMPONENT
        body["reportingInstance"] = self._identity
        await self._client.create(f"/api/v1/namespaces/{namespace}/events", body)

    def _recently(self, key: str, now: float) -> bool:
        posted = self._posted.get(key)
        # A clock that was set back must not silence a transition for ever.
        return posted is not None and 0 <= now - posted < DEDUPE_SECONDS

    def _remember(self, key: str, now: float) -> None:
        self._posted[key] = now
        self._posted.move_to_end(key)
        while len(self._posted) > REMEMBERED:
            self._posted.popitem(last=False)


def event_name(ref: ObjectRef, key: str, now: float) -> str:
    """The same for every process within one window of DEDUPE_SECONDS; at most 253 characters."""
    window = int(now // DEDUPE_SECONDS)
    return f"{ref.name[:220].rstrip('-.')}.{key}-{window:x}"


def event_body(ref: ObjectRef, event: Event, namespace: str, name: str, now: str) -> dict[str, Any]:
    """A core/v1 Event, its source left open. `now` is RFC 3339."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def cut(message: str) -> str:
    """At most MAX_MESSAGE_BYTES of UTF-8, whole characters, ending in `...` where something was left out."""
    raw = message.encode("utf-8", "replace")
    if len(raw) <= MAX_MESSAGE_BYTES:
        return raw.decode()
    return raw[: MAX_MESSAGE_BYTES - len(_ELLIPSIS)].decode("utf-8", "ignore") + _ELLIPSIS
